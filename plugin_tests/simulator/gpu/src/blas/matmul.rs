//! `cublasLtMatmul`: what the attributes of its objects say, as a [`Product`].

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::{
    blas::{
        Format, Kind, Object, Product, find,
        product::{Activation, Bias, Matrix},
    },
    memory::{Home, User},
    operation::{Order, Work},
    parts::{Part, Turn},
    perform::{put, stage},
    state::{Driver, State},
    status::{self, Answer, misuse},
};

/// Attributes of a `cublasLtMatmulDesc_t`, by what C calls them after `CUBLASLT_MATMUL_DESC_`.
pub mod operation {
    /// `COMPUTE_TYPE`.
    pub const COMPUTE_TYPE: u32 = 0;
    /// `SCALE_TYPE`.
    pub const SCALE_TYPE: u32 = 1;
    /// `POINTER_MODE`.
    pub const POINTER_MODE: u32 = 2;
    /// `TRANSA`.
    pub const FIRST: u32 = 3;
    /// `TRANSB`.
    pub const SECOND: u32 = 4;
    /// `EPILOGUE`.
    pub const EPILOGUE: u32 = 7;
    /// `BIAS_POINTER`.
    pub const BIAS: u32 = 8;
    /// `BIAS_BATCH_STRIDE`.
    pub const BIAS_STRIDE: u32 = 10;
    /// `EPILOGUE_AUX_POINTER`.
    pub const BEFORE: u32 = 11;
    /// `EPILOGUE_AUX_LD`.
    pub const BEFORE_LEAD: u32 = 12;
    /// `EPILOGUE_AUX_BATCH_STRIDE`.
    pub const BEFORE_STRIDE: u32 = 13;
    /// `A_SCALE_POINTER` to `AMAX_D_POINTER`, for numbers of 8 bits.
    pub const SCALES: std::ops::RangeInclusive<u32> = 17..=21;
}

/// Attributes of a `cublasLtMatrixLayout_t`, by what C calls them after `CUBLASLT_MATRIX_LAYOUT_`.
pub mod layout {
    /// `TYPE`.
    pub const TYPE: u32 = 0;
    /// `ORDER`.
    pub const ORDER: u32 = 1;
    /// `ROWS`.
    pub const ROWS: u32 = 2;
    /// `COLS`.
    pub const COLUMNS: u32 = 3;
    /// `LD`.
    pub const LEAD: u32 = 4;
    /// `BATCH_COUNT`.
    pub const BATCH: u32 = 5;
    /// `STRIDED_BATCH_OFFSET`.
    pub const STRIDE: u32 = 6;
}

/// A call: `D = activation(alpha * op(A) * op(B) + beta * C + bias)`. Each matrix is an address and a layout.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// The operation's description.
    pub operation: u64,
    /// A, B, C and D.
    pub matrices: [(u64, u64); 4],
    /// The factors, real and imaginary.
    pub alpha: [f64; 2],
    /// See `alpha`.
    pub beta: [f64; 2],
    /// The workspace's address and size.
    pub workspace: (u64, u64),
}

/// `cublasLtMatmulAlgoGetHeuristic`: refuses what [`multiply`] would.
pub fn check(driver: &State, operation: u64, layouts: [u64; 4]) -> Answer {
    let (alpha, beta, workspace) = ([1.0, 0.0], [1.0, 0.0], (0, 0));
    Matmul { operation, matrices: layouts.map(|layout| (0, layout)), alpha, beta, workspace }
        .product(driver)
        .map(|_| ())
}

/// `cublasLtMatmul`.
pub fn multiply(driver: &mut Driver, matmul: &Matmul, stream: usize) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    let product = matmul.product(driver)?;
    let order = Product::order_of(driver, Arc::new(product), gpu)?;
    driver.issue(line, order).map(|_| ())
}

fn wrong(why: String) -> crate::status::Failure {
    misuse(status::INVALID_VALUE, why)
}

fn unknown(why: String) -> crate::status::Failure {
    misuse(status::NOT_SUPPORTED, why)
}

/// The format of the factors that an operation's description says.
pub fn factors(driver: &State, operation: u64) -> Answer<Format> {
    let object = find(driver, Kind::Operation, operation)?;
    let kind = object.get(operation::SCALE_TYPE, 0);
    let format = Format::of(kind).filter(|format| !format.is_half());
    format
        .ok_or_else(|| unknown(format!("the factors are of the type {kind}; 0, 1, 4 and 5 are known to this library")))
}

impl Matmul {
    fn product(&self, driver: &State) -> Answer<Product> {
        let operation = find(driver, Kind::Operation, self.operation)?;
        check_operation(operation)?;
        let [a, b, c, d] = self.matrices;
        let (a, rows, depth, batch) = matrix(driver, "A", a, operation.get(operation::FIRST, 0))?;
        let (b, inner, columns, b_batch) = matrix(driver, "B", b, operation.get(operation::SECOND, 0))?;
        let (c, c_rows, c_columns, c_batch) = matrix(driver, "C", c, 0)?;
        let (d, d_rows, d_columns, d_batch) = matrix(driver, "D", d, 0)?;
        if inner != depth || [(c_rows, c_columns), (d_rows, d_columns)] != [(rows, columns); 2] {
            let why = format!(
                "{rows} x {depth} times {inner} x {columns} plus {c_rows} x {c_columns} gives no {d_rows} x {d_columns}"
            );
            return Err(wrong(why));
        }
        if [b_batch, c_batch, d_batch] != [batch; 3] {
            return Err(wrong(format!(
                "batches of {batch}, {b_batch}, {c_batch} and {d_batch} matrices are multiplied"
            )));
        }
        let fits = a.format == b.format
            && c.format == d.format
            && (a.format == d.format || a.format.is_half() && d.format == Format::Single);
        if !fits {
            let formats = [a.format, b.format, c.format, d.format];
            return Err(unknown(format!("A, B, C and D are of {formats:?}, which is not known to this library")));
        }
        if d.transposed {
            return Err(unknown("D is stored row by row; this library knows columns there".to_owned()));
        }
        let (alpha, beta) = (self.alpha, self.beta);
        let c = (beta != [0.0; 2]).then_some(c);
        let (activation, bias, before) = epilogue(operation, &d)?;
        let workspace = Some(self.workspace).filter(|&(_, bytes)| bytes > 0);
        Ok(Product { rows, columns, depth, batch, a, b, c, d, alpha, beta, bias, activation, before, workspace })
    }
}

fn check_operation(operation: &Object) -> Answer {
    let compute = operation.get(operation::COMPUTE_TYPE, 0u32);
    if !matches!(compute, 68..=71 | 74 | 75 | 77) {
        let why = format!("the computation type is {compute}; 68 to 71, 74, 75 and 77 are known to this library");
        return Err(unknown(why));
    }
    let pointers = operation.get(operation::POINTER_MODE, 0u32);
    if pointers != 0 {
        return Err(unknown(format!("the pointer mode is {pointers}; this library knows factors on the host, 0")));
    }
    if operation::SCALES.into_iter().any(|scale| operation.get(scale, 0u64) != 0) {
        return Err(unknown("there are scales for numbers of 8 bits, which this library does not know".to_owned()));
    }
    Ok(())
}

/// What is done with a product before it is written to `d`.
fn epilogue(operation: &Object, d: &Matrix) -> Answer<(Activation, Option<Bias>, Option<Matrix>)> {
    /// The bits that a number of an epilogue is made of.
    const BIAS: u32 = 4;
    const BEFORE: u32 = 128;
    let epilogue = operation.get(operation::EPILOGUE, 1);
    let activation = match epilogue & !(BIAS | BEFORE) {
        0 | 1 => Activation::Nothing,
        2 => Activation::Relu,
        32 => Activation::Gelu,
        _ => return Err(unknown(format!("the epilogue is {epilogue}; this library knows bias, ReLU and GELU"))),
    };
    if d.format.is_complex() && epilogue != 1 {
        return Err(unknown(format!("the epilogue is {epilogue} for complex numbers; this library knows 1, none")));
    }
    let size = |attribute: u32| {
        let value = operation.get(attribute, 0i64);
        usize::try_from(value).map_err(|_| wrong(format!("the attribute {attribute} is {value}, less than 0")))
    };
    let address = operation.get(operation::BIAS, 0);
    let bias = Bias { address, stride: size(operation::BIAS_STRIDE)? };
    // With ReLU, it would be bits and not numbers that say what lay before.
    let before = match (epilogue & BEFORE, activation) {
        (0, _) => None,
        (_, Activation::Gelu) => {
            let (lead, stride) = (size(operation::BEFORE_LEAD)?, size(operation::BEFORE_STRIDE)?);
            Some(Matrix { address: operation.get(operation::BEFORE, 0), lead, stride, ..*d })
        }
        _ => return Err(unknown(format!("the epilogue is {epilogue}; this library knows auxiliary output of GELU"))),
    };
    Ok((activation, (epilogue & BIAS != 0).then_some(bias), before))
}

/// A matrix with the sides that it has after the operation, and the number of matrices in its batch.
fn matrix(
    driver: &State,
    name: &str,
    (address, layout): (u64, u64),
    operation: u32,
) -> Answer<(Matrix, usize, usize, usize)> {
    let object = find(driver, Kind::Layout, layout)?;
    let size = |what: &str, value: i64| {
        usize::try_from(value).map_err(|_| wrong(format!("the {what} of {name} is {value}, less than 0")))
    };
    let kind = object.get(layout::TYPE, 0);
    let format = Format::of(kind).ok_or_else(|| {
        unknown(format!("{name} is of the type {kind}; the real 0, 1, 2 and 14 and the complex 4 and 5 are known"))
    })?;
    let rows = size("rows", object.get(layout::ROWS, 0))?;
    let columns = size("columns", object.get(layout::COLUMNS, 0))?;
    let lead = size("leading dimension", object.get(layout::LEAD, 0))?;
    let stride = size("stride", object.get(layout::STRIDE, 0))?;
    let batch = size("batch", object.get(layout::BATCH, 1i32).into())?;
    // A matrix that is stored row by row is one that is stored column by column, transposed.
    let by_rows = match object.get(layout::ORDER, 0i32) {
        0 => false,
        1 => true,
        other => return Err(unknown(format!("the order of {name} is {other}; 0, columns, and 1, rows, are known"))),
    };
    let (swapped, conjugated) = match operation {
        0 => (false, false),
        1 => (true, false),
        2 => (true, true),
        _ => return Err(wrong(format!("the operation on {name} is {operation}; 0, 1 and 2 are allowed"))),
    };
    let (stored_rows, stored_columns) = if by_rows { (columns, rows) } else { (rows, columns) };
    if lead < stored_rows {
        return Err(wrong(format!(
            "the leading dimension of {name} is {lead}, less than {stored_rows}, which it holds"
        )));
    }
    let transposed = by_rows != swapped;
    let matrix =
        Matrix { address, format, lead, stride, rows: stored_rows, columns: stored_columns, transposed, conjugated };
    matrix.bytes(batch).ok_or_else(|| wrong(format!("{name} is larger than memory can be")))?;
    let (rows, columns) = if swapped { (columns, rows) } else { (rows, columns) };
    Ok((matrix, rows, columns, batch))
}

impl Product {
    /// The operation that computes it on a GPU.
    ///
    /// # Errors
    /// A matrix or the workspace is not where that GPU may use it.
    pub fn order_of(driver: &Driver, product: Arc<Self>, gpu: usize) -> Answer<Order> {
        let mut order = Order::new("cublasLtMatmul", Work::Nothing);
        for (name, address, bytes, write) in product.ranges() {
            let place = driver.place(User::Kernel(gpu), address, bytes, write);
            let place = place.map_err(|why| wrong(format!("{name}: {why}")))?;
            if place.home == Home::Pageable {
                return Err(wrong(format!("{name}: {bytes} bytes at {address:#x} are no memory that a GPU reaches")));
            }
            order.uses.push((place, write));
        }
        order.work = Work::Part(product);
        Ok(order)
    }
}

impl Part for Product {
    fn run(&self, driver: &mut Driver, _turn: Turn<'_>) {
        MutexGuard::unlocked(driver, || self.run(stage, put));
    }

    fn is_node(&self) -> bool {
        true
    }

    fn order(self: Arc<Self>, driver: &Driver, gpu: usize) -> Answer<Order> {
        Self::order_of(driver, self, gpu)
    }
}
