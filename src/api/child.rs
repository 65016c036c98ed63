//! A child after fork, and what it has from its parent's clients.
//!
//! The child has copies of its parent's arrays, programs and clients, and of the parent's threads only the one that
//! forked. A lock that another thread had at that moment is never released in the child, and a program that was under
//! way never ends.
//!
//! ```text
//!  ends      nothing of the parent's: what Python collects, and what JAX destroys at its exit, stays as it is until
//!            the system takes the process back
//!  serves    nothing of the parent's: what would need a thread of the engine or a lock is FAILED_PRECONDITION;
//!            `pjrt_arena_*` answer as where no client was made
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
    engine::{EngineEvent, Outcome},
    error::Error,
    runtime::{
        buffer::Buffer,
        client,
        executable::registry::{EXECUTABLES, LOADED},
    },
    sys::{self, CStruct},
};

/// A function about something of a client.
trait About: Entry {
    /// Whether that is of a parent's client; not so if the handle is NULL. Takes no lock of a parent's. What this
    /// process has in tables is its own: where it does not find a handle, that is its parent's.
    fn is_inherited(call: &Call<'_, Self>) -> bool;
}

impl<A: Entry + LendsBuffer> About for A {
    fn is_inherited(call: &Call<'_, Self>) -> bool {
        call.buffer().is_ok_and(|buffer| buffer.session.is_inherited())
    }
}

impl About for sys::PJRT_Buffer_Destroy_Args {
    fn is_inherited(call: &Call<'_, Self>) -> bool {
        call.peek::<Buffer>().is_some_and(|buffer| buffer.session.is_inherited())
    }
}

impl About for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    fn is_inherited(call: &Call<'_, Self>) -> bool {
        call.peek::<Manager>().is_some_and(|manager| manager.client.session.is_inherited())
    }
}

macro_rules! about {
    (
        managers { $($manager:ident)* }
        clients { $($client:ident)* }
        devices { $($device:ident)* }
        loaded { $($loaded:ident $field:ident)* }
        executables { $($executable:ident)* }
    ) => {
        $(impl About for sys::$manager {
            fn is_inherited(call: &Call<'_, Self>) -> bool {
                let manager = call.lent::<Manager>("transfer_manager");
                manager.is_ok_and(|manager| manager.client.session.is_inherited())
            }
        })*
        $(impl About for sys::$client {
            fn is_inherited(call: &Call<'_, Self>) -> bool {
                !call.client.is_null() && client::find(call.client).is_err()
            }
        })*
        $(impl About for sys::$device {
            fn is_inherited(call: &Call<'_, Self>) -> bool {
                !call.device.is_null() && client::of_device(call.device).is_none()
            }
        })*
        $(impl About for sys::$loaded {
            fn is_inherited(call: &Call<'_, Self>) -> bool {
                !call.$field.is_null() && LOADED.get(call.$field).is_none()
            }
        })*
        $(impl About for sys::$executable {
            fn is_inherited(call: &Call<'_, Self>) -> bool {
                !call.executable.is_null() && EXECUTABLES.get(call.executable).is_none()
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
        PJRT_Client_PlatformVersion_Args
        PJRT_Client_Compile_Args
        PJRT_Client_Load_Args
        PJRT_Compile_Args
        PJRT_Executable_DeserializeAndLoad_Args
        PJRT_Client_BufferFromHostBuffer_Args
        PJRT_Client_CreateUninitializedBuffer_Args
        PJRT_Client_CreateViewOfDeviceBuffer_Args
        PJRT_Client_CreateErrorBuffer_Args
        PJRT_Client_CreateAliasBuffer_Args
        PJRT_Client_CreateBuffersForAsyncHostToDevice_Args
    }
    devices {
        PJRT_Device_MemoryStats_Args
        PJRT_Device_ClearMemoryStats_Args
    }
    loaded {
        PJRT_LoadedExecutable_Execute_Args executable
        PJRT_LoadedExecutable_GetExecutable_Args loaded_executable
    }
    executables {
        PJRT_Executable_OptimizedProgram_Args
        PJRT_Executable_Serialize_Args
        PJRT_Executable_GetCompiledMemoryStats_Args
        PJRT_Executable_GetCostAnalysis_Args
        PJRT_Executable_OutputMemoryKinds_Args
        PJRT_Executable_ParameterMemoryKinds_Args
    }
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
    unsafe { enter(args, |call| if A::is_inherited(&call) { inherited(call) } else { A::run(call) }) }
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
        let hold = call.buffer()?.get().hold_live()?;
        let is_defined = hold.buffer().state().is_defined();
        // The engine takes a lock that a thread of the parent's may have had, so it is asked last.
        let is_there = is_defined || hold.ready_event()?.is_ready();
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
            Ok(hold) => {
                // As above.
                if buffer.state().is_defined() {
                    EngineEvent::happened(buffer.session.engine)
                } else {
                    hold.ready_event()?
                }
            }
            Err(error) => EngineEvent::failed(buffer.session.engine, &error)?,
        };
        let event = if event.is_ready() {
            event
        } else {
            EngineEvent::failed(buffer.session.engine, &refusal::<sys::PJRT_Buffer_ReadyEvent_Args>())?
        };
        call.out().event = event.into_raw();
        Ok(())
    };
    // SAFETY: as this function asks.
    unsafe { by_owner(args, inherited) }
}

/// Answers of a parent's array as ever; with `otherwise` where a thread of the parent's was at it. What is asked for
/// next is an error then; jaxlib takes none of these functions.
///
/// # Safety
/// As for [`by_owner`].
unsafe fn answers<A>(args: *mut A, otherwise: impl FnOnce(&mut A)) -> *mut sys::PJRT_Error
where
    A: Entry + LendsBuffer,
{
    let inherited = |call: Call<'_, A>| {
        let buffer = call.buffer()?.get();
        if buffer.usage().lock_at_rest().is_some() {
            return A::run(call);
        }
        otherwise(call.out());
        Ok(())
    };
    // SAFETY: as this function asks.
    unsafe { by_owner(args, inherited) }
}

/// It was not deleted.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn is_deleted(args: *mut sys::PJRT_Buffer_IsDeleted_Args) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { answers(args, |out| out.is_deleted = false) }
}

/// It is not read where it lies: a copy is asked for, which is an error.
///
/// # Safety
/// As for [`by_owner`].
unsafe extern "C" fn is_on_cpu(args: *mut sys::PJRT_Buffer_IsOnCpu_Args) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { answers(args, |out| out.is_on_cpu = false) }
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
        PJRT_Buffer_IsDeleted = is_deleted;
        PJRT_Buffer_IsOnCpu = is_on_cpu;
        PJRT_Client_PlatformVersion = serves_own;
        PJRT_Client_Compile = serves_own;
        PJRT_Client_Load = serves_own;
        PJRT_Executable_DeserializeAndLoad = serves_own;
        PJRT_Compile = serves_own;
        PJRT_LoadedExecutable_Execute = serves_own;
        PJRT_LoadedExecutable_GetExecutable = serves_own;
        PJRT_Executable_OptimizedProgram = serves_own;
        PJRT_Executable_Serialize = serves_own;
        PJRT_Executable_GetCompiledMemoryStats = serves_own;
        PJRT_Executable_GetCostAnalysis = serves_own;
        PJRT_Executable_OutputMemoryKinds = serves_own;
        PJRT_Executable_ParameterMemoryKinds = serves_own;
        PJRT_Client_BufferFromHostBuffer = serves_own;
        PJRT_Client_CreateUninitializedBuffer = serves_own;
        PJRT_Client_CreateViewOfDeviceBuffer = serves_own;
        PJRT_Client_CreateErrorBuffer = serves_own;
        PJRT_Client_CreateAliasBuffer = serves_own;
        PJRT_Client_FulfillAliasBuffer = serves_own;
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
        PJRT_Device_ClearMemoryStats = serves_own;
    }
}
