//! The handles that the engine has given and not been asked to destroy.

use std::{collections::HashMap, ffi::c_void, sync::LazyLock};

use parking_lot::Mutex;

use crate::{
    event, slot, sys,
    table::{Function, behind},
};

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `PJRT_Buffer`.
    Buffer,
    /// `PJRT_Event`.
    Event,
    /// `PJRT_LoadedExecutable`.
    Loaded,
    /// `PJRT_Executable`.
    Executable,
    /// `PJRT_Client`.
    Client,
    /// `PJRT_TopologyDescription`.
    Topology,
    /// `PJRT_ExecuteContext`.
    Context,
    /// `PJRT_AsyncHostToDeviceTransferManager`.
    Manager,
    /// `PJRT_AsyncTrackingEvent`.
    Tracking,
}

/// Handles that are alive, and the slot of the function that gave each.
static LIVE: LazyLock<Mutex<HashMap<(Kind, usize), usize>>> = LazyLock::new(Mutex::default);
static MISUSE: Mutex<String> = Mutex::new(String::new());

/// Notes a new handle.
pub fn given(kind: Kind, handle: usize, slot: usize) {
    if handle != 0 {
        LIVE.lock().insert((kind, handle), slot);
    }
}

/// Notes the end of a handle.
pub fn gone(kind: Kind, handle: usize) {
    if handle != 0 && LIVE.lock().remove(&(kind, handle)).is_none() {
        MISUSE.lock().push_str(&format!("{kind:?} {handle:#x} was destroyed twice, or never given\n"));
    }
}

/// Handles that are alive and were given by the function in `slot`.
pub fn count(slot: usize) -> usize {
    LIVE.lock().values().filter(|&&giver| giver == slot).count()
}

/// What was done wrong with handles: lines of text.
pub fn misuse() -> String {
    MISUSE.lock().clone()
}

macro_rules! lists {
    (
        ends { $($end:ident . $ended:ident: $of:ident),* $(,)? }
        gives { $($gift:ident . $given:ident: $kind:ident),* $(,)? }
    ) => {
        /// Whether the function ends a handle.
        pub fn ends(slot: usize) -> bool {
            [$(slot!($end)),*].contains(&slot)
        }

        /// Notes what a call is about to end.
        ///
        /// # Safety
        /// `args` must be the struct of the function in `slot`.
        pub unsafe fn note_end(slot: usize, args: *mut c_void) {
            pastey::paste! {$(
                if slot == slot!($end) {
                    // SAFETY: the struct is the function's.
                    gone(Kind::$of, unsafe { (*args.cast::<sys::[<$end _Args>]>()).$ended }.addr());
                }
            )*}
        }

        /// Whether the function gives a handle.
        pub fn gives(slot: usize) -> bool {
            [$(slot!($gift),)* slot!(PJRT_LoadedExecutable_Execute)].contains(&slot)
        }

        /// Calls `with` for the place of each handle that a call gave.
        unsafe fn gifts(slot: usize, args: *mut c_void, mut with: impl FnMut(Kind, &mut *mut c_void)) {
            pastey::paste! {$(
                if slot == slot!($gift) {
                    // SAFETY: the struct is the function's, and the field a pointer.
                    with(Kind::$kind, unsafe {
                        &mut *(&raw mut (*args.cast::<sys::[<$gift _Args>]>()).$given).cast()
                    });
                }
            )*}
            if slot == slot!(PJRT_LoadedExecutable_Execute) {
                // SAFETY: the struct is the function's, which has succeeded.
                unsafe { results(&*args.cast::<sys::PJRT_LoadedExecutable_Execute_Args>(), with) };
            }
        }

        /// The function that ends a handle. The structs of all of them have it behind the head.
        fn ending(kind: Kind) -> Function {
            match kind {
                $(Kind::$of => behind(slot!($end)),)*
            }
        }
    };
}

lists! {
    ends {
        PJRT_Buffer_Destroy.buffer: Buffer,
        PJRT_Event_Destroy.event: Event,
        PJRT_LoadedExecutable_Destroy.executable: Loaded,
        PJRT_Executable_Destroy.executable: Executable,
        PJRT_Client_Destroy.client: Client,
        PJRT_TopologyDescription_Destroy.topology: Topology,
        PJRT_ExecuteContext_Destroy.context: Context,
        PJRT_AsyncHostToDeviceTransferManager_Destroy.transfer_manager: Manager,
        PJRT_AsyncTrackingEvent_Destroy.event: Tracking,
    }
    gives {
        PJRT_Client_BufferFromHostBuffer.buffer: Buffer,
        PJRT_Client_BufferFromHostBuffer.done_with_host_buffer: Event,
        PJRT_Client_CreateViewOfDeviceBuffer.buffer: Buffer,
        PJRT_Client_CreateUninitializedBuffer.buffer: Buffer,
        PJRT_Client_CreateAliasBuffer.alias_buffer: Buffer,
        PJRT_Client_CreateErrorBuffer.buffer: Buffer,
        PJRT_Buffer_CopyToDevice.dst_buffer: Buffer,
        PJRT_Buffer_CopyToMemory.dst_buffer: Buffer,
        PJRT_Buffer_Bitcast.out_buffer: Buffer,
        PJRT_Buffer_DonateWithControlDependency.out_buffer: Buffer,
        PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer.buffer_out: Buffer,
        PJRT_Buffer_ReadyEvent.event: Event,
        PJRT_Buffer_ToHostBuffer.event: Event,
        PJRT_Buffer_CopyRawToHost.event: Event,
        PJRT_Buffer_CopyRawToHostFuture.event: Event,
        PJRT_AsyncHostToDeviceTransferManager_TransferData.done_with_h2d_transfer: Event,
        PJRT_AsyncHostToDeviceTransferManager_TransferLiteral.done_with_h2d_transfer: Event,
        PJRT_CopyToDeviceStream_AddChunk.transfer_complete: Event,
        PJRT_Event_Create.event: Event,
        PJRT_Client_Compile.executable: Loaded,
        PJRT_Client_Load.loaded_executable: Loaded,
        PJRT_Executable_DeserializeAndLoad.loaded_executable: Loaded,
        PJRT_LoadedExecutable_GetExecutable.executable: Executable,
        PJRT_Compile.executable: Executable,
        PJRT_Client_Create.client: Client,
        PJRT_TopologyDescription_Create.topology: Topology,
        PJRT_TopologyDescription_Deserialize.topology: Topology,
        PJRT_ExecuteContext_Create.context: Context,
        PJRT_Client_CreateBuffersForAsyncHostToDevice.transfer_manager: Manager,
        PJRT_Device_CreateAsyncTrackingEvent.event: Tracking,
    }
}

/// The events that an execution gave: none where the caller asked for none.
unsafe fn completions<'a>(args: *const sys::PJRT_LoadedExecutable_Execute_Args) -> &'a mut [*mut sys::PJRT_Event] {
    // SAFETY: the struct is the function's; the caller's list has an entry for each device.
    unsafe {
        if (*args).device_complete_events.is_null() {
            return &mut [];
        }
        std::slice::from_raw_parts_mut((*args).device_complete_events, (*args).num_devices)
    }
}

/// Calls `with` for the place of each result and event of an execution.
unsafe fn results(args: &sys::PJRT_LoadedExecutable_Execute_Args, mut with: impl FnMut(Kind, &mut *mut c_void)) {
    // SAFETY: the lists are as long as the numbers say; there are as many results as the program has.
    unsafe {
        let outputs = outputs(args.executable);
        for device in 0..args.num_devices {
            for output in 0..outputs {
                with(Kind::Buffer, &mut *(*args.output_lists.add(device)).add(output).cast());
            }
        }
        for event in completions(args) {
            with(Kind::Event, &mut *(&raw mut *event).cast());
        }
    }
}

/// Notes what a call that succeeded gave.
///
/// # Safety
/// `args` must be the struct of the function in `slot`, which has just succeeded.
pub unsafe fn note_gifts(slot: usize, args: *mut c_void) {
    // SAFETY: as this function asks.
    unsafe { gifts(slot, args, |kind, place| given(kind, place.addr(), slot)) }
}

/// Destroys what a call gave, as if it had never been there. But for an execution, the call's work is over then: what
/// reads or writes memory of the host is waited for.
///
/// # Safety
/// `args` must be the struct of the function in `slot`, which has just succeeded, and nobody else use what it gave.
pub unsafe fn take_back(slot: usize, args: *mut c_void) {
    let end = |kind, place: &mut *mut c_void| {
        let handle = std::mem::replace(place, std::ptr::null_mut());
        if handle.is_null() {
            return;
        }
        gone(kind, handle.addr());
        // SAFETY: the handle is alive, and destroyed once, after the last look at it; the struct begins as those of all
        // functions that take it, and has room for its rest.
        unsafe {
            if kind == Kind::Event && slot != slot!(PJRT_LoadedExecutable_Execute) {
                let mut wait = sys::PJRT_Event_Await_Args { event: handle.cast(), ..Default::default() };
                wait.struct_size = size_of_val(&wait);
                event::end(behind(slot!(PJRT_Event_Await))((&raw mut wait).cast()));
            }
            let mut end = sys::PJRT_Event_Destroy_Args { event: handle.cast(), ..Default::default() };
            ask(ending(kind), &mut end);
        }
    };
    // SAFETY: as this function asks.
    unsafe { gifts(slot, args, end) }
}

/// Calls the engine itself, so that nothing is counted.
unsafe fn ask<A>(function: Function, args: &mut A) {
    // SAFETY: the struct begins with its size, and is the function's.
    unsafe {
        (&raw mut *args).cast::<usize>().write(size_of::<A>());
        assert!(function((&raw mut *args).cast()).is_null(), "the engine fails by itself");
    }
}

/// How many results a program has, as the engine says.
unsafe fn outputs(loaded_executable: *mut sys::PJRT_LoadedExecutable) -> usize {
    let mut whole = sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable, ..Default::default() };
    // SAFETY: the program is alive; its description is destroyed once.
    unsafe {
        ask(behind(slot!(PJRT_LoadedExecutable_GetExecutable)), &mut whole);
        let executable = whole.executable;
        let mut count = sys::PJRT_Executable_NumOutputs_Args { executable, ..Default::default() };
        ask(behind(slot!(PJRT_Executable_NumOutputs)), &mut count);
        let mut end = sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() };
        ask(behind(slot!(PJRT_Executable_Destroy)), &mut end);
        count.num_outputs
    }
}

macro_rules! events {
    ($($function:ident . $event:ident),* $(,)?) => {
        /// Whether the function gives an event that something happens.
        pub fn gives_event(slot: usize) -> bool {
            [$(slot!($function),)* slot!(PJRT_LoadedExecutable_Execute)].contains(&slot)
        }

        /// Calls `with` for the place of each event that a call gave.
        ///
        /// # Safety
        /// `args` must be the struct of the function in `slot`, which has just succeeded.
        pub unsafe fn events(slot: usize, args: *mut c_void, mut with: impl FnMut(&mut *mut sys::PJRT_Event)) {
            pastey::paste! {$(
                if slot == slot!($function) {
                    // SAFETY: the struct is the function's.
                    let place = unsafe { &mut (*args.cast::<sys::[<$function _Args>]>()).$event };
                    if !place.is_null() {
                        with(place);
                    }
                }
            )*}
            if slot == slot!(PJRT_LoadedExecutable_Execute) {
                // SAFETY: the struct is the function's, which has succeeded.
                unsafe { completions(args.cast()) }.iter_mut().for_each(with);
            }
        }
    };
}

events! {
    PJRT_Client_BufferFromHostBuffer.done_with_host_buffer,
    PJRT_Buffer_ReadyEvent.event,
    PJRT_Buffer_ToHostBuffer.event,
    PJRT_Buffer_CopyRawToHost.event,
    PJRT_AsyncHostToDeviceTransferManager_TransferData.done_with_h2d_transfer,
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral.done_with_h2d_transfer,
}
