//! The functions of `libcublas.so` and `libcublasLt.so` that XLA calls: of the first, only that it makes a handle.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{In, Out};
use crate::{
    blas::{
        self, Format, Kind, Matmul,
        matmul::{self, layout, operation},
    },
    state::{Driver, call},
    status::{self, Answer, Status, misuse},
};

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HeuristicResult {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// What an algorithm says it likes for a workspace, so that programs give it one.
const WORKSPACE: usize = 1 << 20;

/// `cublasStatus_t` for a status of the driver.
fn answer(code: Status) -> Status {
    match code {
        status::SUCCESS => 0,
        status::NOT_INITIALIZED => 1,
        status::OUT_OF_MEMORY => 3,
        status::INVALID_VALUE | status::INVALID_HANDLE => 7,
        status::ILLEGAL_ADDRESS | status::LAUNCH_FAILED => 13,
        status::NOT_SUPPORTED => 15,
        _ => 14,
    }
}

/// Declares functions of cuBLAS in the frame of the driver's, and makes a table of them by name.
macro_rules! functions {
    ($($name:ident($($parameter:ident: $type:ty),*) $body:expr;)*) => {
        $(
            #[doc = concat!("cuBLAS's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As cuBLAS documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($parameter: $type),*) -> Status {
                answer(call(stringify!($name), $body))
            }
        )*

        /// The functions of this module, by name.
        pub(super) const TABLE: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}

/// A factor, real and imaginary.
fn factor(at: In<c_void>, format: Format) -> Answer<[f64; 2]> {
    match format {
        Format::Single => Ok([at.cast::<f32>().get()?.into(), 0.0]),
        Format::Double => Ok([at.cast::<f64>().get()?, 0.0]),
        Format::ComplexSingle => at.cast::<[f32; 2]>().get().map(|parts| parts.map(f64::from)),
        Format::ComplexDouble => at.cast::<[f64; 2]>().get(),
        Format::Half | Format::BFloat => {
            Err(misuse(status::NOT_SUPPORTED, "factors of 16 bits are not known to this library"))
        }
    }
}

fn read(
    driver: &Driver,
    kind: Kind,
    handle: u64,
    which: c_uint,
    value: Out<u8>,
    size: usize,
    written: Out<usize>,
) -> Answer {
    value.put_all(blas::get(driver, kind, handle, which, size)?.into_iter())?;
    written.put_if_wanted(size);
    Ok(())
}

functions! {
    cublasCreate_v2(handle: Out<u64>) |driver| handle.checked()?.put(blas::create(driver, Kind::Handle, &[])?);
    cublasDestroy_v2(handle: u64) |driver| blas::destroy(driver, Kind::Handle, handle);
    cublasLtCreate(handle: Out<u64>) |driver| handle.checked()?.put(blas::create(driver, Kind::LightHandle, &[])?);
    cublasLtDestroy(handle: u64) |driver| blas::destroy(driver, Kind::LightHandle, handle);

    cublasLtMatmulDescCreate(description: Out<u64>, compute: c_uint, scale: c_uint) |driver| {
        let attributes: [(u32, &[u8]); 2] =
            [(operation::COMPUTE_TYPE, &compute.to_le_bytes()), (operation::SCALE_TYPE, &scale.to_le_bytes())];
        description.checked()?.put(blas::create(driver, Kind::Operation, &attributes)?)
    };
    cublasLtMatmulDescDestroy(description: u64) |driver| blas::destroy(driver, Kind::Operation, description);
    cublasLtMatmulDescSetAttribute(description: u64, which: c_uint, value: In<u8>, size: usize) |driver| {
        blas::set(driver, Kind::Operation, description, which, value.list(size)?)
    };
    cublasLtMatmulDescGetAttribute(
        description: u64, which: c_uint, value: Out<u8>, size: usize, written: Out<usize>
    ) |driver| read(driver, Kind::Operation, description, which, value, size, written);

    cublasLtMatrixLayoutCreate(layout: Out<u64>, kind: c_uint, rows: u64, columns: u64, lead: i64) |driver| {
        let attributes: [(u32, &[u8]); 4] = [
            (layout::TYPE, &kind.to_le_bytes()),
            (layout::ROWS, &rows.to_le_bytes()),
            (layout::COLUMNS, &columns.to_le_bytes()),
            (layout::LEAD, &lead.to_le_bytes()),
        ];
        layout.checked()?.put(blas::create(driver, Kind::Layout, &attributes)?)
    };
    cublasLtMatrixLayoutDestroy(layout: u64) |driver| blas::destroy(driver, Kind::Layout, layout);
    cublasLtMatrixLayoutSetAttribute(layout: u64, which: c_uint, value: In<u8>, size: usize) |driver| {
        blas::set(driver, Kind::Layout, layout, which, value.list(size)?)
    };
    cublasLtMatrixLayoutGetAttribute(layout: u64, which: c_uint, value: Out<u8>, size: usize, written: Out<usize>)
        |driver| read(driver, Kind::Layout, layout, which, value, size, written);

    cublasLtMatmulPreferenceCreate(preference: Out<u64>) |driver| {
        preference.checked()?.put(blas::create(driver, Kind::Preference, &[])?)
    };
    cublasLtMatmulPreferenceDestroy(preference: u64) |driver| blas::destroy(driver, Kind::Preference, preference);
    cublasLtMatmulPreferenceSetAttribute(preference: u64, which: c_uint, value: In<u8>, size: usize) |driver| {
        blas::set(driver, Kind::Preference, preference, which, value.list(size)?)
    };

    // There is one algorithm.
    cublasLtMatmulAlgoGetHeuristic(
        handle: u64, description: u64, a: u64, b: u64, c: u64, d: u64, preference: u64, wanted: c_int,
        results: Out<HeuristicResult>, count: Out<c_int>
    ) |driver| {
        blas::known(driver, Kind::LightHandle, handle)?;
        blas::check(driver, description, [a, b, c, d])?;
        let workspace = blas::workspace(driver, preference)?.min(WORKSPACE);
        let result = HeuristicResult { algorithm: [0; 8], workspace, state: 0, waves: 1.0, reserved: [0; 4] };
        let found = wanted.clamp(0, 1);
        results.put_all(std::iter::repeat_n(result, found as usize))?;
        count.put(found)
    };
    cublasLtMatmul(
        handle: u64, description: u64, alpha: In<c_void>, a: u64, a_layout: u64, b: u64, b_layout: u64,
        beta: In<c_void>, c: u64, c_layout: u64, d: u64, d_layout: u64, _algorithm: In<c_void>, workspace: u64,
        bytes: usize, stream: usize
    ) |driver| {
        blas::known(driver, Kind::LightHandle, handle)?;
        let format = matmul::factors(driver, description)?;
        let (alpha, beta) = (factor(alpha, format)?, factor(beta, format)?);
        let matrices = [(a, a_layout), (b, b_layout), (c, c_layout), (d, d_layout)];
        let workspace = (workspace, bytes as u64);
        blas::multiply(driver, &Matmul { operation: description, matrices, alpha, beta, workspace }, stream)
    };
}

/// cuBLAS's `cublasGetStatusString`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cublasGetStatusString(code: Status) -> *const c_char {
    let text: &CStr = match code {
        0 => c"success",
        1 => c"the library was not initialized",
        3 => c"the resource allocation failed",
        7 => c"an unsupported value or parameter was passed to the function",
        13 => c"the function failed to launch on the GPU",
        15 => c"the functionality requested is not supported",
        _ => c"an internal operation failed",
    };
    text.as_ptr()
}

/// The functions of this module that give no status.
pub(super) const MORE: &[(&str, *const ())] = &[("cublasGetStatusString", cublasGetStatusString as *const ())];
