//! Functions that the engine calls in place of handlers: one for each handler, made at compile time.
//!
//! A handler is a bare C function: nothing in a call of it says which handler was meant. So each handler that gets
//! another table than the engine's has a function of its own, out of an array of them:
//!
//! ```text
//!  engine --frame--> forward<17> --> SLOTS[17]: the handler, with the table for its kind
//! ```
//!
//! An exception that a handler throws becomes an error here, because an engine with a C++ runtime of its own cannot
//! catch it.
//!
//! What a call costs beyond the handler's own: a few loads, a test, two stores of `frame.api` and two of a
//! thread-local number: a handler may call Python (jaxlib's buffer callbacks do), and the program waits for the
//! programs that Python runs then. The frame is changed in place: the engine builds one for each call, and lets it be
//! written to.

use std::{
    mem, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    engine::{
        abi::Handler,
        exceptions,
        ffi::{Asked, FfiHandler},
        order,
    },
    error::{Code, Error, Result},
    handlers::{
        depth::InHandler,
        ffi::tables::{Kind, Tables},
        python,
    },
    sys,
};

/// How many handlers can have a trampoline in a process. JAX 0.10 registers about 110; a trampoline takes about 100
/// bytes.
pub const LIMIT: usize = 1024;

/// What a trampoline forwards to; written before the engine gets the trampoline.
struct Slot {
    handler: AtomicPtr<()>,
    /// The table that the handler gets.
    api: AtomicPtr<sys::XLA_FFI_Api>,
    tables: AtomicPtr<Tables>,
}

static SLOTS: [Slot; LIMIT] = [const {
    Slot {
        handler: AtomicPtr::new(ptr::null_mut()),
        api: AtomicPtr::new(ptr::null_mut()),
        tables: AtomicPtr::new(ptr::null_mut()),
    }
}; LIMIT];

/// The trampoline of each handler, by the handler's address.
static TAKEN: Mutex<Option<FxHashMap<usize, usize>>> = Mutex::new(None);

/// The trampoline of `handler`; the same one each time, so that the engine sees the same function registered again.
///
/// # Errors
/// RESOURCE_EXHAUSTED when all are taken.
pub fn assign(handler: FfiHandler, kind: Kind, tables: &'static Tables) -> Result<FfiHandler> {
    let mut taken = TAKEN.lock();
    let taken = taken.get_or_insert_default();
    let next = taken.len();
    let index = *taken.entry(handler.address()).or_insert(next);
    if index >= LIMIT {
        taken.remove(&handler.address());
        return Err(Error::new(
            Code::ResourceExhausted,
            format!("{LIMIT} handlers are registered, which is as many as can be given a table of another version"),
        ));
    }
    let slot = &SLOTS[index];
    slot.tables.store(ptr::from_ref(tables).cast_mut(), Ordering::Release);
    slot.api.store(tables.api(kind).cast_mut(), Ordering::Release);
    slot.handler.store(handler.function() as *mut (), Ordering::Release);
    // SAFETY: a trampoline whose slot was filled takes what its handler takes, and this library is never unloaded.
    Ok(unsafe { FfiHandler::new(TRAMPOLINES[index / 32][index % 32]) })
}

/// The `I`th trampoline. A C++ exception of the handler ends here.
unsafe extern "C-unwind" fn forward<const I: usize>(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    let slot = &SLOTS[I];
    // SAFETY: the engine has this trampoline only after its slot was filled, with a handler that stays (`FfiHandler`),
    // tables that live as long as the process and the table for the handler. It calls with a frame of its own, which
    // lives during the call and may be written.
    unsafe {
        let handler = mem::transmute::<*mut (), Handler>(slot.handler.load(Ordering::Acquire));
        if let Some(asked) = Asked::of(frame) {
            return (*slot.tables.load(Ordering::Acquire)).answer(FfiHandler::new(handler), asked);
        }
        order::taken(&raw const order::CALLS);
        order::taken(&raw const order::CALLED);
        let _in_handler = InHandler::enter();
        let engines = mem::replace(&mut (*frame).api, slot.api.load(Ordering::Acquire));
        let outcome = python::staying_if_ending(|| exceptions::call_handler(handler, frame));
        (*frame).api = engines;
        order::given(&raw const order::CALLED);
        outcome.unwrap_or_else(|exception| (*slot.tables.load(Ordering::Acquire)).failed(&exception.end_of_handler()))
    }
}

/// 32 trampolines from the `$row`th on.
macro_rules! row {
    ($row:literal: $($column:literal)*) => { [$(forward::<{ $row * 32 + $column }>),*] };
}

macro_rules! rows {
    ($($row:literal)*) => {
        [$(row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)),*]
    };
}

static TRAMPOLINES: [[Handler; 32]; LIMIT / 32] =
    rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
