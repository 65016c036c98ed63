//! Events of this library: each has happened, with an error. An event of the engine behind is left to that.

use std::{collections::HashSet, ffi::c_void, sync::LazyLock};

use parking_lot::Mutex;

use crate::{error, live, slot, sys, table::behind};

static OWN: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);

/// Replaces the events that a call gave, once they have happened, with events that have happened with an error.
///
/// # Safety
/// `args` must be the struct of the function in `slot`, which has just succeeded.
pub unsafe fn spoil(slot: usize, args: *mut c_void) {
    // SAFETY: the struct is the function's; the places are those of events that the call gave, which are alive and the
    // caller's.
    unsafe {
        if slot == slot!(PJRT_Client_BufferFromHostBuffer)
            && (*args.cast::<sys::PJRT_Client_BufferFromHostBuffer_Args>()).host_buffer_semantics.0
                >= sys::PJRT_HostBufferSemantics_kImmutableZeroCopy.0
        {
            // It happens when the buffer is gone, and says that the host's memory is not used any more.
            return;
        }
        live::events(slot, args, |place| {
            let event = *place;
            let mut wait = sys::PJRT_Event_Await_Args { event, ..Default::default() };
            wait.struct_size = size_of_val(&wait);
            // What it gave would be this error, or one of the engine's.
            end(behind(slot!(PJRT_Event_Await))((&raw mut wait).cast()));
            live::gone(live::Kind::Event, event.addr());
            let mut destroy = sys::PJRT_Event_Destroy_Args { event, ..Default::default() };
            destroy.struct_size = size_of_val(&destroy);
            end(behind(slot!(PJRT_Event_Destroy))((&raw mut destroy).cast()));
            let own = Box::into_raw(Box::new(0_u64));
            OWN.lock().insert(own.addr());
            live::given(live::Kind::Event, own.addr(), slot);
            *place = own.cast();
        });
    }
}

/// Destroys an error of the engine's; NULL is fine.
///
/// # Safety
/// `error` must be NULL or alive, and nobody else destroy it.
pub unsafe fn end(error: *mut sys::PJRT_Error) {
    if !error.is_null() {
        let mut args = sys::PJRT_Error_Destroy_Args { error, ..Default::default() };
        args.struct_size = size_of_val(&args);
        // SAFETY: the error is the engine's, and the caller's to destroy.
        unsafe { behind(slot!(PJRT_Error_Destroy))((&raw mut args).cast()) };
    }
}

/// What a function answers about an event of this library; `None` where it is not asked about one.
///
/// # Safety
/// `args` must be the struct of the function in `slot`, whose contract holds.
pub unsafe fn answer(slot: usize, args: *mut c_void) -> Option<*mut sys::PJRT_Error> {
    let functions = [
        slot!(PJRT_Event_Destroy),
        slot!(PJRT_Event_IsReady),
        slot!(PJRT_Event_Error),
        slot!(PJRT_Event_Await),
        slot!(PJRT_Event_OnReady),
    ];
    // SAFETY: the structs of these functions all have the event behind the head.
    let event = unsafe { functions.contains(&slot).then(|| (*args.cast::<sys::PJRT_Event_Await_Args>()).event)? };
    if !OWN.lock().contains(&event.addr()) {
        return None;
    }
    if slot == slot!(PJRT_Event_IsReady) {
        // SAFETY: the struct is the function's.
        unsafe { (*args.cast::<sys::PJRT_Event_IsReady_Args>()).is_ready = true };
    } else if slot == slot!(PJRT_Event_OnReady) {
        // SAFETY: the struct is the function's; the error is the callback's to destroy.
        unsafe {
            let args = &*args.cast::<sys::PJRT_Event_OnReady_Args>();
            if let Some(callback) = args.callback {
                callback(error::new(), args.user_arg);
            }
        }
    } else if slot == slot!(PJRT_Event_Destroy) {
        OWN.lock().remove(&event.addr());
        // SAFETY: the event is a box of this library's, and this is its end.
        drop(unsafe { Box::from_raw(event.cast::<u64>()) });
    } else {
        return Some(error::new());
    }
    Some(std::ptr::null_mut())
}
