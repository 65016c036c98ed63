//! Where every call passes.

use std::{ffi::c_void, ptr, thread, time::Duration};

use crate::{
    error, event,
    faults::{self, Kind},
    live, slot, sys,
    table::behind,
    throws,
};

/// How long a delayed call is held up.
const DELAY: Duration = Duration::from_millis(2);

/// Whether the function fails after the engine has done it: what it ended is gone, what it waited for is over, and a
/// promise is used up.
pub fn fails_after(slot: usize) -> bool {
    live::ends(slot) || [slot!(PJRT_Event_Await), slot!(PJRT_Client_FulfillAliasBuffer)].contains(&slot)
}

/// Whether the function leaves something behind: a handle that it gives, or a change of what it is passed. Not so that
/// an exception could come after it: of an alias nobody could fulfil the promise, and a callback is noted last of all.
/// After an execution memory stays with the program, which has tests of its own.
pub fn has_effects(slot: usize) -> bool {
    let changes = [
        slot!(PJRT_Buffer_Delete),
        slot!(PJRT_Buffer_IncreaseExternalReferenceCount),
        slot!(PJRT_Buffer_DecreaseExternalReferenceCount),
    ];
    let none = [slot!(PJRT_Client_CreateAliasBuffer), slot!(PJRT_LoadedExecutable_Execute)];
    (fails_after(slot) || live::gives(slot) || changes.contains(&slot)) && !none.contains(&slot)
}

/// Whether the function is one that callers read an error with: two return nothing, and of the third no caller expects
/// that it fails.
pub fn tells_of_errors(slot: usize) -> bool {
    [slot!(PJRT_Error_Destroy), slot!(PJRT_Error_Message), slot!(PJRT_Error_GetCode)].contains(&slot)
}

/// One call of the function in `slot`.
///
/// # Safety
/// `args` must be the function's struct, whose contract holds.
pub unsafe fn cross(slot: usize, args: *mut c_void) -> *mut sys::PJRT_Error {
    let fault = faults::next(slot);
    match fault {
        Some(Kind::Fail) if !fails_after(slot) => return error::new(),
        Some(Kind::Delay) => thread::sleep(DELAY),
        Some(Kind::Throw) => throws::throw(),
        Some(Kind::Hold) => faults::hold(),
        _ => {}
    }
    // SAFETY: the struct is the function's, and its contract holds, as this function asks.
    unsafe {
        let failed = done(slot, args);
        if !failed.is_null() {
            return failed;
        }
        match fault {
            Some(Kind::Fail) => error::new(),
            Some(Kind::Late) => {
                live::take_back(slot, args);
                error::new()
            }
            Some(Kind::ThrowAfter) => {
                live::take_back(slot, args);
                throws::throw()
            }
            Some(Kind::Event) => {
                event::spoil(slot, args);
                ptr::null_mut()
            }
            _ => failed,
        }
    }
}

/// The call, by this library for what is its own, else by the engine.
unsafe fn done(slot: usize, args: *mut c_void) -> *mut sys::PJRT_Error {
    // SAFETY: the struct is the function's, and its contract holds, as `cross` asks.
    unsafe {
        // Before the call: another thread may be given the same address right after.
        live::note_end(slot, args);
        if error::answer(slot, args) {
            return ptr::null_mut();
        }
        if let Some(answer) = event::answer(slot, args) {
            return answer;
        }
        let error = behind(slot)(args);
        if error.is_null() {
            live::note_gifts(slot, args);
        }
        error
    }
}
