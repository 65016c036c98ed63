//! The functions that tests call.

use std::ffi::c_char;

use crate::{
    faults::{self, Kind},
    live, seam, slot, sys, table, throws,
};

/// Arms a fault at the `nth` call of the function in `slot` from now on: 0 fails it, 1 delays it, 2 spoils the event
/// that it gives, 3 throws, 4 fails an execution that has begun, 5 throws when the engine has done it, 6 holds it until
/// [`faulty_engine_let_go`]. Whether there is such a function, and such a kind.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_arm(slot: usize, nth: u64, kind: u32) -> bool {
    let kind = Kind::of(kind).filter(|_| table::has(slot));
    kind.map(|kind| faults::arm(slot, nth, kind)).is_some()
}

/// Takes back what is armed; whether it happened.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_disarm() -> bool {
    faults::disarm()
}

/// Whether a call is held.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_is_held() -> bool {
    faults::is_held()
}

/// Lets the call go that is held.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_let_go() {
    faults::let_go();
}

/// Calls of the function in `slot` so far.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_calls(slot: usize) -> u64 {
    faults::calls(slot)
}

/// The kinds of faults that make sense for the function in `slot`, as bits: one that an error is read with can only be
/// late, one that ends something, or waits, throws only after that, and so does no function that changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_kinds(slot: usize) -> u32 {
    let applies = |kind| match kind {
        Kind::Fail => !seam::tells_of_errors(slot),
        Kind::Delay => true,
        Kind::Event => live::gives_event(slot),
        Kind::Throw => !seam::tells_of_errors(slot) && !seam::fails_after(slot),
        Kind::Late => slot == slot!(PJRT_LoadedExecutable_Execute),
        Kind::ThrowAfter => seam::has_effects(slot),
        // A test of its own lets it go.
        Kind::Hold => false,
    };
    (0..).map_while(Kind::of).filter(|&kind| applies(kind)).map(|kind| 1 << kind as u32).sum()
}

/// Handles that are alive and were given by the function in `slot`.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_live(slot: usize) -> usize {
    live::count(slot)
}

/// Writes what was done wrong with handles, at most `size` bytes of it; the length of the whole.
///
/// # Safety
/// `text` must have room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faulty_engine_misuse(text: *mut c_char, size: usize) -> usize {
    let misuse = live::misuse();
    // SAFETY: there is room for `size` bytes, as this function asks.
    unsafe { text.cast::<u8>().copy_from_nonoverlapping(misuse.as_ptr(), misuse.len().min(size)) };
    misuse.len()
}

/// A handler of XLA FFI that throws in the middle of the execution that calls it.
#[unsafe(no_mangle)]
pub extern "C" fn faulty_engine_thrower()
-> unsafe extern "C-unwind" fn(*mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    throws::handler
}
