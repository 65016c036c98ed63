//! A child after fork, and what it has from its parent's clients.
//!
//! The child has copies of its parent's arrays, programs and clients, and of the parent's threads only the one that
//! forked. A lock that another thread had at that moment is never released in the child, and a program that was under
//! way never ends. So the child may read what it has, but it ends nothing of it: what Python collects there, and what
//! JAX destroys at its exit, stays as it is until the system takes the process back.
//!
//! What a client of the child's own makes ends as ever, but for its executables and the client itself.

use std::ptr;

use crate::{
    api::{
        call::Call,
        entry::{Entry, enter},
        transfer_manager::Manager,
    },
    engine::Session,
    runtime::buffer::Buffer,
    sys,
};

/// A function that ends something of a client.
trait Ends: Entry {
    /// The client; `None` if the handle is NULL.
    fn session(call: &Call<'_, Self>) -> Option<&'static Session>;
}

impl Ends for sys::PJRT_Buffer_Destroy_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.peek::<Buffer>().map(|buffer| buffer.session)
    }
}

impl Ends for sys::PJRT_Buffer_Delete_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.buffer().ok().map(|buffer| buffer.session)
    }
}

impl Ends for sys::PJRT_Buffer_DecreaseExternalReferenceCount_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.buffer().ok().map(|buffer| buffer.session)
    }
}

impl Ends for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.peek::<Manager>().map(|manager| manager.client.session)
    }
}

/// The function for something of this process; of a parent's it ends nothing.
///
/// # Safety
/// As for [`entry`](crate::api::entry::entry).
unsafe extern "C" fn ends_own<A: Ends>(args: *mut A) -> *mut sys::PJRT_Error {
    let body = |call: Call<'_, A>| {
        if A::session(&call).is_some_and(Session::is_inherited) { Ok(()) } else { A::run(call) }
    };
    // SAFETY: as this function asks.
    unsafe { enter(args, body) }
}

/// Does nothing.
unsafe extern "C" fn leaves<A>(_: *mut A) -> *mut sys::PJRT_Error {
    ptr::null_mut()
}

/// Replaces what ends handles in the table of a child after fork. Takes no lock.
pub fn replace(api: &mut sys::PJRT_Api) {
    macro_rules! replace {
        ($($function:ident = $with:ident;)*) => {
            $(api.$function = api.$function.and(Some($with));)*
        };
    }
    replace! {
        PJRT_Client_Destroy = leaves;
        PJRT_Executable_Destroy = leaves;
        PJRT_LoadedExecutable_Destroy = leaves;
        PJRT_LoadedExecutable_Delete = leaves;
        PJRT_Buffer_Destroy = ends_own;
        PJRT_Buffer_Delete = ends_own;
        PJRT_Buffer_DecreaseExternalReferenceCount = ends_own;
        PJRT_AsyncHostToDeviceTransferManager_Destroy = ends_own;
    }
}
