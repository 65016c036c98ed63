//! A child after fork, and what it has from its parent's clients.
//!
//! The child has copies of its parent's arrays, programs and clients, and of the parent's threads only the one that
//! forked. A lock that another thread had at that moment is never released in the child, and a program that was under
//! way never ends.
//!
//! ```text
//!  ends      nothing of the parent's: what Python collects, and what JAX destroys at its exit, stays as it is until
//!            the system takes the process back
//!  serves    nothing of the parent's: what would need a thread of the engine or a lock is FAILED_PRECONDITION
//!  shows     what is there already: an array whose program had ended is read where it lies
//! ```
//!
//! What a client of the child's own makes works and ends as ever, but for its executables and the client itself, which
//! do not end.

use std::ptr;

use crate::{
    api::{
        call::{Call, LendsBuffer},
        entry::{Entry, enter},
        transfer_manager::Manager,
    },
    engine::{EngineEvent, Outcome, Session},
    error::Error,
    runtime::{buffer::Buffer, client, executable::registry::LOADED},
    sys::{self, CStruct},
};

/// A function about something of a client.
trait About: Entry {
    /// The client; `None` if the handle is NULL, or of nothing that is known. May take locks of what makes clients.
    fn session(call: &Call<'_, Self>) -> Option<&'static Session>;
}

impl<A: Entry + LendsBuffer> About for A {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.buffer().ok().map(|buffer| buffer.session)
    }
}

impl About for sys::PJRT_Buffer_Destroy_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.peek::<Buffer>().map(|buffer| buffer.session)
    }
}

impl About for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        call.peek::<Manager>().map(|manager| manager.client.session)
    }
}

impl About for sys::PJRT_LoadedExecutable_Execute_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        LOADED.get(call.executable).map(|loaded| loaded.client.session)
    }
}

impl About for sys::PJRT_Device_MemoryStats_Args {
    fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
        client::of_device(call.device).map(|client| client.session)
    }
}

macro_rules! about {
    (managers { $($manager:ident)* } clients { $($client:ident)* }) => {
        $(impl About for sys::$manager {
            fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
                call.lent::<Manager>("transfer_manager").ok().map(|manager| manager.client.session)
            }
        })*
        $(impl About for sys::$client {
            fn session(call: &Call<'_, Self>) -> Option<&'static Session> {
                client::find(call.client).ok().map(|client| client.session)
            }
        })*
    };
}

about! {
    managers {
        PJRT_AsyncHostToDeviceTransferManager_TransferData_Args
        PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args
    }
    clients {
        PJRT_Client_Compile_Args
        PJRT_Client_Load_Args
        PJRT_Executable_DeserializeAndLoad_Args
        PJRT_Client_BufferFromHostBuffer_Args
        PJRT_Client_CreateUninitializedBuffer_Args
        PJRT_Client_CreateBuffersForAsyncHostToDevice_Args
    }
}

/// Whether the call is about something of a parent's. Takes no lock as long as this process has made no client: one
/// that has could take them.
fn is_inherited<A: About>(call: &Call<'_, A>) -> bool {
    !Session::is_any_own() || A::session(call).is_some_and(Session::is_inherited)
}

fn refusal<A: CStruct>() -> Error {
    Error::failed_precondition(format!(
        "{}: this process was forked from the one that made the client, whose threads it lacks; start processes that \
         use JAX with multiprocessing's methods spawn or forkserver",
        Call::<A>::FUNCTION
    ))
}

/// The function for something of this process; `inherited` does it for a parent's.
///
/// # Safety
/// As for [`entry`](crate::api::entry::entry).
unsafe fn by_owner<A: About>(args: *mut A, inherited: impl FnOnce(Call<'_, A>) -> Outcome) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { enter(args, |call| if is_inherited(&call) { inherited(call) } else { A::run(call) }) }
}

/// Of a parent's it ends nothing.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn ends_own<A: About>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { by_owner(args, |_| Ok(())) }
}

/// Of a parent's it serves nothing.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn serves_own<A: About>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { by_owner(args, |_| Err(refusal::<A>().into())) }
}

/// Lends the address of a parent's array that is there. Nothing is counted, because nothing of a parent's moves or is
/// freed.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn lends(args: *mut sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args) -> *mut sys::PJRT_Error {
    let inherited = |call: Call<'_, sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args>| {
        let is_there = call.buffer()?.get().hold_live()?.ready_event()?.is_ready();
        if is_there { Ok(()) } else { Err(refusal::<sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args>().into()) }
    };
    // SAFETY: as this function asks.
    unsafe { by_owner(args, inherited) }
}

/// Gives an event of a parent's array that has happened, with an error if the array is not there: jaxlib takes no error
/// of this function.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn is_there(args: *mut sys::PJRT_Buffer_ReadyEvent_Args) -> *mut sys::PJRT_Error {
    let inherited = |call: Call<'_, sys::PJRT_Buffer_ReadyEvent_Args>| {
        let buffer = call.buffer()?.get();
        let event = match buffer.hold() {
            Ok(hold) => hold.ready_event()?,
            Err(error) => EngineEvent::failed(buffer.session.engine, &error)?,
        };
        let event = if event.is_ready() {
            event
        } else {
            EngineEvent::failed(event.engine(), &refusal::<sys::PJRT_Buffer_ReadyEvent_Args>())?
        };
        call.out().event = event.into_raw();
        Ok(())
    };
    // SAFETY: as this function asks.
    unsafe { by_owner(args, inherited) }
}

/// Does nothing.
unsafe extern "C" fn leaves<A>(_: *mut A) -> *mut sys::PJRT_Error {
    ptr::null_mut()
}

/// Replaces functions in the table of a child after fork. Takes no lock.
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
        PJRT_Buffer_IncreaseExternalReferenceCount = lends;
        PJRT_Buffer_ReadyEvent = is_there;
        PJRT_Client_Compile = serves_own;
        PJRT_Client_Load = serves_own;
        PJRT_Executable_DeserializeAndLoad = serves_own;
        PJRT_LoadedExecutable_Execute = serves_own;
        PJRT_Client_BufferFromHostBuffer = serves_own;
        PJRT_Client_CreateUninitializedBuffer = serves_own;
        PJRT_Client_CreateBuffersForAsyncHostToDevice = serves_own;
        PJRT_AsyncHostToDeviceTransferManager_TransferData = serves_own;
        PJRT_AsyncHostToDeviceTransferManager_TransferLiteral = serves_own;
        PJRT_Buffer_ToHostBuffer = serves_own;
        PJRT_Buffer_CopyRawToHost = serves_own;
        PJRT_Buffer_CopyRawToHostFuture = serves_own;
        PJRT_Buffer_CopyToDevice = serves_own;
        PJRT_Buffer_CopyToMemory = serves_own;
        PJRT_Buffer_Bitcast = serves_own;
        PJRT_Buffer_DonateWithControlDependency = serves_own;
        PJRT_Buffer_UnsafePointer = serves_own;
        PJRT_Device_MemoryStats = serves_own;
    }
}
