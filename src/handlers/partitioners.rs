//! Custom calls that their owner splits over devices: `jax.experimental.custom_partitioning` and what rests on it.
//!
//! ```text
//!  jaxlib   registers a partitioner for a custom call's name       Custom_Partitioner extension --> PARTITIONERS
//!  Compile  a program over several devices that names one          --> jax_plugins.arena, which asks jaxlib's own XLA
//!                                                                      for the shardings and the partitioner for the
//!                                                                      code of one device
//!           the same program, with that code in the call's place   <--
//! ```
//!
//! XLA keeps partitioners in a registry of its C++, which an engine without this extension does not share. An engine
//! that has the extension asks the partitioners itself, and nothing here runs. What writes the code is in Python
//! (`_partitioners.py`), because MLIR is; where that was not installed, programs go to the engine unchanged.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::{c_char, c_int, c_void},
};

use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::{
    engine::{Outcome, Raw},
    error::{Code, Error},
    handlers::hooks::{Give, ask},
    program,
    sys::{self, slice},
};

/// Custom calls that XLA in jaxlib has partitioners for without a registration.
const BUILT_IN: [&[u8]; 2] = [b"InspectSharding", b"xla_ffi_partitioned_python_cpu_callback"];

/// What splits a custom call.
#[derive(Clone, Copy)]
pub enum Partitioner {
    /// A framework's functions.
    Callbacks(Raw<sys::JAX_CustomCallPartitioner_Callbacks>),
    /// The leading dimensions are independent of each other.
    Batch,
}

/// The partitioners by the custom call's name. The functions stay as long as the process: a program may be compiled
/// at any time.
static PARTITIONERS: Mutex<BTreeMap<Vec<u8>, Partitioner>> = Mutex::new(BTreeMap::new());

/// `resolve(program, size, options, size, give, reply)` calls `give` once with `reply`, before it returns. The code is
/// 0 for the same program, -1 for another one, -2 for one that should be tried first, and otherwise an error's code;
/// the bytes are then its message.
type Resolve = unsafe extern "C-unwind" fn(*const u8, usize, *const u8, usize, Give, *mut c_void);

static RESOLVE: OnceCell<Resolve> = OnceCell::new();

/// Registers a partitioner; one of the same name that came before stays, as in XLA.
///
/// # Errors
/// INVALID_ARGUMENT for an empty name.
pub fn register(name: &[u8], partitioner: Partitioner) -> Outcome {
    if name.is_empty() {
        return Err(Error::invalid_argument("a partitioner is registered for a custom call without a name").into());
    }
    PARTITIONERS.lock().entry(name.to_vec()).or_insert(partitioner);
    Ok(())
}

/// The partitioner of the custom call `name`: 0 if there is none, 1 if its functions are at `*callbacks`, 2 if its
/// leading dimensions are independent of each other.
///
/// # Safety
/// `name` must be NULL or have `size` bytes; `callbacks` must be a pointer that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_partitioner(
    name: *const c_char,
    size: usize,
    callbacks: &mut *mut sys::JAX_CustomCallPartitioner_Callbacks,
) -> c_int {
    // SAFETY: the name has `size` bytes, as this function asks.
    let found = PARTITIONERS.lock().get(unsafe { slice(name.cast::<u8>(), size) }).copied();
    match found {
        None => 0,
        Some(Partitioner::Callbacks(functions)) => {
            *callbacks = functions.0;
            1
        }
        Some(Partitioner::Batch) => 2,
    }
}

/// Installs `resolve` for programs over several devices that name a custom call with a partitioner. The first one
/// stays.
///
/// # Safety
/// `resolve` must be callable from any thread as long as the process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_install_partitioners(resolve: Resolve) {
    let _ = RESOLVE.set(resolve);
}

/// A program with the code of one device in the place of each custom call that has a partitioner.
pub struct Resolved<'a> {
    /// The program.
    pub code: Cow<'a, [u8]>,
    /// Whether the caller's program computes the same, on more memory: the engine may refuse this one.
    pub optional: bool,
}

/// Resolves the custom calls of a program that have a partitioner.
///
/// # Errors
/// A partitioner's, or why one cannot be asked.
pub fn resolve<'a>(format: &[u8], code: &'a [u8], options: &[u8]) -> Outcome<Resolved<'a>> {
    let same = Resolved { code: Cow::Borrowed(code), optional: false };
    let Some(&resolve) = RESOLVE.get() else { return Ok(same) };
    let named = || {
        let known = PARTITIONERS.lock();
        program::names_one(code, |text| BUILT_IN.contains(&text) || known.contains_key(text))
    };
    if format != b"mlir" || !named() {
        return Ok(same);
    }
    // SAFETY: the installed function takes program and options of these lengths, and calls `give` with `reply` before
    // it returns, when the slices live.
    let answer =
        ask(|give, reply| unsafe { resolve(code.as_ptr(), code.len(), options.as_ptr(), options.len(), give, reply) });
    match answer {
        Some((0, _)) => Ok(same),
        Some((code @ (-1 | -2), program)) => Ok(Resolved { code: Cow::Owned(program), optional: code == -2 }),
        Some((code, message)) => {
            let message = String::from_utf8_lossy(&message).into_owned();
            Err(Error::new(code_of(code), message).into())
        }
        None => Err(Error::internal("what asks partitioners of custom calls has given no answer").into()),
    }
}

/// The code of this number; of one that this library has no name for, INTERNAL.
fn code_of(number: c_int) -> Code {
    use Code::{FailedPrecondition, Internal, InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unimplemented};
    let codes = [InvalidArgument, NotFound, ResourceExhausted, FailedPrecondition, OutOfRange, Unimplemented];
    codes.into_iter().find(|&code| code as c_int == number).unwrap_or(Internal)
}
