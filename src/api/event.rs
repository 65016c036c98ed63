//! Events: of the engine, which is asked about them, or the one that has happened.

use std::ptr;

use crate::{
    api::entry::pass,
    engine::{Args, handles::has_happened},
    sys,
};

/// The struct of a function that takes an event.
pub trait OfEvent: Args {
    /// The event.
    ///
    /// # Safety
    /// The struct must be alive, and as long as the oldest version of it.
    unsafe fn event(args: *const Self) -> *const sys::PJRT_Event;

    /// What the function does for the event that has happened without an error; it gives none itself.
    ///
    /// # Safety
    /// The struct must satisfy the function's contract.
    unsafe fn answer(args: *mut Self);
}

/// The exported function for the struct of a function that takes an event.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn of_event<A: OfEvent>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: the struct is NULL, or begins with its size and is as long as that says; the caller lends it for the
    // call. It is looked at up to the event, which every version has.
    unsafe {
        let size = args.cast::<usize>().as_ref();
        if size.is_some_and(|&size| size >= A::MIN_SIZE) && has_happened(A::event(args)) {
            A::answer(args);
            return ptr::null_mut();
        }
        pass(args)
    }
}

macro_rules! of_event {
    ($($args:ident $answer:expr,)*) => {$(
        impl OfEvent for sys::$args {
            unsafe fn event(args: *const Self) -> *const sys::PJRT_Event {
                // SAFETY: the struct has the event, as this function asks.
                unsafe { (*args).event }
            }

            unsafe fn answer(args: *mut Self) {
                let answer: unsafe fn(*mut Self) = $answer;
                // SAFETY: the struct satisfies its function's contract, as this function asks.
                unsafe { answer(args) }
            }
        }
    )*};
}

of_event! {
    PJRT_Event_Destroy_Args |_| {},
    PJRT_Event_Error_Args |_| {},
    PJRT_Event_Await_Args |_| {},
    PJRT_Event_IsReady_Args is_ready,
    PJRT_Event_OnReady_Args call_back,
}

/// It has happened.
unsafe fn is_ready(args: *mut sys::PJRT_Event_IsReady_Args) {
    // SAFETY: the struct is the function's.
    unsafe { (*args).is_ready = true };
}

/// Calls the callback, without an error.
unsafe fn call_back(args: *mut sys::PJRT_Event_OnReady_Args) {
    // SAFETY: the struct is the function's: the callback is NULL, or may be called once with what is given for it.
    unsafe {
        let (callback, argument) = ((*args).callback, (*args).user_arg);
        if let Some(callback) = callback {
            callback(ptr::null_mut(), argument);
        }
    }
}
