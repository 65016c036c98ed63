//! A product of matrices as a loop.
//!
//! ```text
//!  stored, column by column     rows           lead - rows: a gap
//!                            |--------------|.....|--------------|.....|
//!                             column 0              column 1
//! ```

use crate::blas::number::{Format, Number};

/// A matrix in memory, or a batch of them.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Its first element.
    pub address: u64,
    /// What an element is.
    pub format: Format,
    /// Elements from one column to the next.
    pub lead: usize,
    /// Elements from one matrix of a batch to the next.
    pub stride: usize,
    /// Rows as they are stored.
    pub rows: usize,
    /// Columns as they are stored.
    pub columns: usize,
    /// Whether rows and columns are swapped in the product.
    pub transposed: bool,
    /// Whether the imaginary parts are negated in the product.
    pub conjugated: bool,
}

/// A number for each row, of the result's format, that is added in every column.
#[derive(Clone, Copy, Debug)]
pub struct Bias {
    /// The first one.
    pub address: u64,
    /// From those of one matrix of a batch to those of the next.
    pub stride: usize,
}

/// What is done with each number at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Nothing,
    /// What is negative becomes 0.
    Relu,
    /// The normal distribution's, by its approximation with a hyperbolic tangent.
    Gelu,
}

/// A product with all that it needs.
#[derive(Clone, Debug)]
pub struct Product {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// What is summed over.
    pub depth: usize,
    /// How many products.
    pub batch: usize,
    /// The first factor.
    pub a: Matrix,
    /// The second factor.
    pub b: Matrix,
    /// What is added; none where its factor is 0, because it may be no number.
    pub c: Option<Matrix>,
    /// The result.
    pub d: Matrix,
    /// The factor of A * B.
    pub alpha: [f64; 2],
    /// The factor of C.
    pub beta: [f64; 2],
    /// What is added to rows.
    pub bias: Option<Bias>,
    /// See [`Activation`].
    pub activation: Activation,
    /// Where the result goes as it is before the activation.
    pub before: Option<Matrix>,
    /// Memory that is given for whatever the library likes.
    pub workspace: Option<(u64, u64)>,
}

impl Matrix {
    /// Bytes from the first element of the first matrix to the last one of the last; none if that is too many.
    pub fn bytes(&self, batch: usize) -> Option<u64> {
        if batch == 0 || self.rows == 0 || self.columns == 0 {
            return Some(0);
        }
        let columns = self.lead.checked_mul(self.columns - 1)?;
        let elements = self.stride.checked_mul(batch - 1)?.checked_add(columns)?.checked_add(self.rows)?;
        u64::try_from(elements.checked_mul(self.format.bytes())?).ok()
    }

    /// The address of a column of one matrix of the batch. Its memory was looked up, so this does not wrap.
    fn column(&self, index: usize, column: usize) -> u64 {
        self.address + ((index * self.stride + column * self.lead) * self.format.bytes()) as u64
    }

    /// A column as numbers.
    fn read<N: Number>(&self, index: usize, column: usize, read: impl Fn(u64, u64) -> Vec<u8>) -> Vec<N> {
        let bytes = self.format.bytes();
        let column = read(self.column(index, column), (self.rows * bytes) as u64);
        column.chunks(bytes).map(|element| N::read(self.format, element)).collect()
    }

    fn write<N: Number>(&self, index: usize, column: usize, numbers: &[N], write: impl Fn(u64, &[u8])) {
        let mut bytes = Vec::with_capacity(self.rows * self.format.bytes());
        numbers.iter().for_each(|number| number.write(self.format, &mut bytes));
        write(self.column(index, column), &bytes);
    }

    /// One matrix of the batch, column by column and without gaps.
    fn elements<N: Number>(&self, index: usize, read: impl Fn(u64, u64) -> Vec<u8>) -> Vec<N> {
        let mut elements: Vec<N> = (0..self.columns).flat_map(|column| self.read(index, column, &read)).collect();
        if self.conjugated {
            elements.iter_mut().for_each(|element| {
                let [real, imaginary] = element.parts();
                *element = N::new([real, -imaginary]);
            });
        }
        elements
    }
}

/// Swaps the rows and columns of a matrix that is stored column by column.
fn transpose<N: Number>(elements: &[N], rows: usize) -> Vec<N> {
    (0..rows).flat_map(|row| elements.iter().copied().skip(row).step_by(rows)).collect()
}

impl Activation {
    fn apply<N: Number>(self, number: N) -> N {
        let [x, _] = number.parts();
        match self {
            Self::Nothing => number,
            Self::Relu => N::new([x.max(0.0), 0.0]),
            Self::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                N::new([0.5 * x * (1.0 + inner.tanh()), 0.0])
            }
        }
    }
}

impl Product {
    /// What it uses: the name, the address, the size, and whether it is written.
    pub fn ranges(&self) -> Vec<(&'static str, u64, u64, bool)> {
        let of =
            |name, matrix: &Matrix, write| (name, matrix.address, matrix.bytes(self.batch).unwrap_or(u64::MAX), write);
        let mut ranges = vec![of("A", &self.a, false), of("B", &self.b, false), of("D", &self.d, true)];
        ranges.extend(self.c.as_ref().map(|c| of("C", c, false)));
        ranges.extend(self.before.as_ref().map(|before| of("the auxiliary output", before, true)));
        ranges.extend(self.bias.as_ref().map(|bias| of("the bias", &self.column_of(bias), false)));
        ranges.extend(self.workspace.map(|(address, bytes)| ("the workspace", address, bytes, true)));
        ranges.retain(|&(_, _, bytes, _)| bytes > 0 && !self.is_empty());
        ranges
    }

    /// The bias as a matrix of one column.
    fn column_of(&self, bias: &Bias) -> Matrix {
        Matrix { address: bias.address, stride: bias.stride, columns: 1, ..self.d }
    }

    /// Whether there is nothing to compute, so that nothing is touched.
    fn is_empty(&self) -> bool {
        self.rows == 0 || self.columns == 0 || self.batch == 0
    }

    /// Computes it. `read` and `write` reach the memory of [`Self::ranges`].
    pub fn run(&self, read: impl Fn(u64, u64) -> Vec<u8>, write: impl Fn(u64, &[u8])) {
        if self.is_empty() {
            return;
        }
        for index in 0..self.batch {
            if self.d.format.is_complex() {
                self.multiply::<[f64; 2]>(index, &read, &write);
            } else {
                self.multiply::<f64>(index, &read, &write);
            }
        }
    }

    fn multiply<N: Number>(&self, index: usize, read: impl Fn(u64, u64) -> Vec<u8>, write: impl Fn(u64, &[u8])) {
        let (alpha, beta) = (N::new(self.alpha), N::new(self.beta));
        // Both so that what is summed over lies side by side: rows of A, columns of B.
        let mut a = self.a.elements::<N>(index, &read);
        if !self.a.transposed {
            a = transpose(&a, self.rows);
        }
        let mut b = self.b.elements::<N>(index, &read);
        if self.b.transposed {
            b = transpose(&b, self.columns);
        }
        let bias = self.bias.as_ref().map(|bias| self.column_of(bias).read::<N>(index, 0, &read));
        for column in 0..self.columns {
            let b = b.get(column * self.depth..(column + 1) * self.depth).unwrap_or_default();
            let mut numbers: Vec<N> = match &self.c {
                Some(c) => {
                    let old = c.read::<N>(index, column, &read);
                    old.into_iter().map(|old| N::ZERO.plus_product(beta, old)).collect()
                }
                None => vec![N::ZERO; self.rows],
            };
            for (row, number) in numbers.iter_mut().enumerate() {
                let a = a.get(row * self.depth..(row + 1) * self.depth).unwrap_or_default();
                let sum = a.iter().zip(b).fold(N::ZERO, |sum, (&a, &b)| sum.plus_product(a, b));
                *number = number.plus_product(alpha, sum);
            }
            if let Some(bias) = &bias {
                let one = N::new([1.0, 0.0]);
                numbers.iter_mut().zip(bias).for_each(|(number, &bias)| *number = number.plus_product(one, bias));
            }
            if let Some(before) = &self.before {
                before.write(index, column, &numbers, &write);
            }
            numbers.iter_mut().for_each(|number| *number = self.activation.apply(*number));
            self.d.write(index, column, &numbers, &write);
        }
    }
}
