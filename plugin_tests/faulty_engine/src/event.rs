//! Events of this library: each happens when one of the engine does, and then with an error. An event of the engine
//! behind is left to that.

use std::{collections::HashSet, ffi::c_void, ptr, sync::LazyLock};

use parking_lot::Mutex;

use crate::{error, live, slot, sys, table::behind};

static OWN: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);

/// An event with an error, as the C API sees it.
struct Own {
    /// The engine's, which says when it happens.
    engines: *mut sys::PJRT_Event,
}

/// A callback of the caller's, to be called with an error of this library.
struct Callback {
    function: unsafe extern "C" fn(*mut sys::PJRT_Error, *mut c_void),
    argument: *mut c_void,
}

/// Replaces the events that a call gave with events that happen when those do, with an error.
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
            let engines = *place;
            live::gone(live::Kind::Event, engines.addr());
            let own = Box::into_raw(Box::new(Own { engines }));
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
    if !functions.contains(&slot) {
        return None;
    }
    // SAFETY: the structs of these functions all have the event behind the head.
    let place = unsafe { &raw mut (*args.cast::<sys::PJRT_Event_Await_Args>()).event };
    // SAFETY: the struct is the caller's, who lends it for the call.
    let event = unsafe { *place };
    if !OWN.lock().contains(&event.addr()) {
        return None;
    }
    // SAFETY: the event is one of this library's, and alive. The engine is asked about its own, with the caller's
    // struct, whose callback is replaced by one that ends the engine's error and hands on this library's.
    unsafe {
        let engines = (*event.cast::<Own>()).engines;
        if slot == slot!(PJRT_Event_OnReady) {
            let args = &*args.cast::<sys::PJRT_Event_OnReady_Args>();
            let Some(function) = args.callback else { return Some(ptr::null_mut()) };
            let callback = Box::into_raw(Box::new(Callback { function, argument: args.user_arg }));
            let mut own = sys::PJRT_Event_OnReady_Args {
                event: engines,
                callback: Some(happened),
                user_arg: callback.cast(),
                ..Default::default()
            };
            own.struct_size = size_of_val(&own);
            return Some(behind(slot)((&raw mut own).cast()));
        }
        place.write(engines);
        let answer = behind(slot)(args);
        place.write(event);
        if slot == slot!(PJRT_Event_IsReady) {
            return Some(answer);
        }
        end(answer);
    }
    if slot == slot!(PJRT_Event_Destroy) {
        OWN.lock().remove(&event.addr());
        // SAFETY: the event is a box of this library's, and this is its end.
        drop(unsafe { Box::from_raw(event.cast::<Own>()) });
        return Some(ptr::null_mut());
    }
    Some(error::new())
}

/// Called by the engine when its event has happened.
unsafe extern "C" fn happened(error: *mut sys::PJRT_Error, callback: *mut c_void) {
    // SAFETY: the engine gives the callback of one `PJRT_Event_OnReady` back once; its error is the callback's to
    // destroy, and this library's is the next callback's.
    unsafe {
        end(error);
        let callback = Box::from_raw(callback.cast::<Callback>());
        (callback.function)(error::new(), callback.argument);
    }
}
