//! Arrays from the host and back.

use std::{ptr, sync::Arc};

use smallvec::smallvec;

use super::{
    buffer::{Buffer, Storage},
    entry::{Entry, Outcome, required, slice},
    flight::Cargo,
    shape::{Shape, dense_size},
    state::{self, Client, Device},
};
use crate::{
    device::strided,
    engine::{Args, Engine, views},
    error::Error,
    sys,
};

/// A block of the device, viewed: what an array from outside is copied into.
///
/// # Errors
/// RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// The client must be alive; the element type must be viewable.
pub unsafe fn fresh(client: &Arc<Client>, device: &Device, shape: Arc<Shape>) -> Outcome<Arc<Buffer>> {
    let arena = device.arena.as_ref().ok_or_else(|| Error::internal("the device has no arena"))?;
    let held = client.allocate(arena, &shape)?;
    // SAFETY: the block is aligned, holds the array, and is freed only after the view.
    let view = unsafe {
        views::view(client.engine, client.handle.0, device.memory.0, held.address(), shape.element_type, &shape.dims)?
    };
    Ok(Buffer::new(Arc::clone(client), device.handle, device.memory, shape, view, Storage::Arena(held)))
}

/// The event that says when `buffer` is ready: at once, for one of ours that nothing writes.
///
/// # Errors
/// The engine's.
pub fn ready_event(engine: &'static Engine, buffer: &Buffer) -> Outcome<*mut sys::PJRT_Event> {
    let hold = buffer.hold()?;
    // SAFETY: the engine's handle stays while it is held.
    let args =
        unsafe { engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: hold.handle(), ..Default::default() })? };
    Ok(args.event)
}

/// The device whose arena an array goes to: that of `memory`, or else the default one of `device`. `None` when the
/// array belongs in memory that is not ours: a host memory, or a device without an arena.
pub fn destination(client: &Client, device: *mut sys::PJRT_Device, memory: *mut sys::PJRT_Memory) -> Option<&Device> {
    let device = if memory.is_null() { client.device(device) } else { client.device_of_memory(memory) };
    device.filter(|device| device.arena.is_some())
}

/// Whether a layout is what an array has when nobody says anything: dense, the last dimension fastest, no tiles.
///
/// # Safety
/// `layout` must be NULL or valid.
pub unsafe fn is_default_layout(layout: *const sys::PJRT_Buffer_MemoryLayout) -> bool {
    // SAFETY: the caller's promise.
    let Some(layout) = (unsafe { layout.as_ref() }) else { return true };
    if layout.type_ != sys::PJRT_Buffer_MemoryLayout_Type_Tiled {
        return false;
    }
    // SAFETY: the type says which field of the union is set.
    let tiled = unsafe { layout.__bindgen_anon_1.tiled };
    // SAFETY: the caller's promise.
    let order = unsafe { slice(tiled.minor_to_major, tiled.minor_to_major_size) };
    tiled.num_tiles == 0 && order.iter().rev().copied().eq(0..order.len() as i64)
}

impl Entry for sys::PJRT_Client_BufferFromHostBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Client_BufferFromHostBuffer";
        let client = state::client(self.client)?;
        client.traffic.tend(client.engine);
        // SAFETY: the caller's arrays are as long as it says.
        let (dims, strides) =
            unsafe { (slice(self.dims, self.num_dims), slice(self.byte_strides, self.num_byte_strides)) };
        if !self.byte_strides.is_null() && strides.len() != dims.len() {
            return Err(Error::invalid_argument(format!(
                "{NAME}: {} byte strides for {} dimensions",
                strides.len(),
                dims.len()
            ))
            .into());
        }
        // An outsider's memory that may be written to is the outsider's choice: the engine aliases it.
        let lends = self.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kMutableZeroCopy;
        // SAFETY: the caller's layout is NULL or valid.
        let plain = unsafe { is_default_layout(self.device_layout) };
        let device = destination(&client, self.device, self.memory)
            .filter(|_| !lends && plain && client.viewable.contains(self.type_));
        let Some((device, size)) = device.zip(dense_size(self.type_, dims)) else {
            // SAFETY: the caller's struct, handed on as it is.
            return unsafe { from_host_by_engine(self, &client, lends) };
        };
        if size.get() > 0 {
            required(self.data.cast_mut(), NAME, "data")?;
        }
        let shape = Arc::new(Shape::new(self.type_, dims, size.get() as usize));
        // SAFETY: the client is alive, the type viewable.
        let buffer = unsafe { fresh(&client, device, shape)? };
        let to = buffer.state().storage.address().ok_or_else(|| Error::internal("a fresh buffer has no block"))?;
        let strides = (!self.byte_strides.is_null()).then_some(strides);
        // SAFETY: `data` holds the strided array for the whole call, whatever the semantics; the block is ours alone
        // and as large as the dense array.
        unsafe {
            strided::copy_to_dense(
                self.data.cast(),
                ptr::with_exposed_provenance_mut(to),
                dims,
                strides,
                super::shape::element_bytes(self.type_).map_or(1, usize::from),
            );
        }
        buffer.mark_whole();
        // The copy is done, so the host array is free again whatever the semantics.
        self.done_with_host_buffer = ready_event(client.engine, &buffer)?;
        self.buffer = buffer.into_raw();
        Ok(())
    }
}

/// Lets the engine take the array into memory of its own: host memories, sub-byte types, unusual layouts.
///
/// # Safety
/// `args` must satisfy the function's contract.
unsafe fn from_host_by_engine(
    args: &mut sys::PJRT_Client_BufferFromHostBuffer_Args,
    client: &Arc<Client>,
    foreign: bool,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let done = client.engine.call(*args)?;
        args.done_with_host_buffer = done.done_with_host_buffer;
        args.buffer = Buffer::adopt(client, done.buffer, foreign)?.into_raw();
    }
    Ok(())
}

/// Keeps `buffer`, which was taken up, in place until `event`, which stays the caller's, has happened.
///
/// # Safety
/// `event` must be a live event of the engine.
unsafe fn keep_until(buffer: Arc<Buffer>, event: *mut sys::PJRT_Event) {
    let client = Arc::clone(&buffer.client);
    // SAFETY: the event is alive; it is given back to the caller below, not destroyed.
    match unsafe { client.engine.own_event(event) } {
        Some(event) => {
            if event.is_ready() {
                buffer.land();
            } else {
                client.traffic.launch(&event, None, Cargo { buffers: smallvec![buffer], ..Cargo::default() });
            }
            let _caller = event.into_raw();
        }
        None => buffer.land(),
    }
}

/// Calls a function of the engine that reads a buffer's bytes, with the engine's handle in place of ours, and keeps the
/// bytes in place until the event that it gives.
///
/// # Errors
/// INVALID_ARGUMENT for a buffer that was deleted or donated, or the engine's.
///
/// # Safety
/// `buffer` must be as for [`Buffer::share`]; `args` must give a struct that satisfies the function's contract.
unsafe fn read<A: Args>(
    buffer: *mut sys::PJRT_Buffer,
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    event: impl FnOnce(&A) -> *mut sys::PJRT_Event,
) -> Outcome<A> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { Buffer::share(buffer, A::FUNCTION)? };
    let handle = buffer.take_up()?;
    // SAFETY: the engine's handle is alive and the bytes stay while the buffer is taken up; the rest is the caller's.
    match unsafe { buffer.client.engine.call(args(handle)) } {
        Ok(args) => {
            // SAFETY: the event was just made.
            unsafe { keep_until(buffer, event(&args)) };
            Ok(args)
        }
        Err(error) => {
            buffer.land();
            Err(error.into())
        }
    }
}

impl Entry for sys::PJRT_Buffer_ToHostBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |src| Self { src, event: ptr::null_mut(), ..*self };
        // SAFETY: the caller's promise.
        let args = unsafe { read(self.src, call, |args| args.event)? };
        (self.dst_size, self.event) = (args.dst_size, args.event);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHost_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |buffer| Self { buffer, event: ptr::null_mut(), ..*self };
        // SAFETY: the caller's promise.
        self.event = unsafe { read(self.buffer, call, |args| args.event)? }.event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHostFuture_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |buffer| Self { buffer, event: ptr::null_mut(), ..*self };
        // SAFETY: the caller's promise.
        let args = unsafe { read(self.buffer, call, |args| args.event)? };
        self.event = args.event;
        self.callback_data = args.callback_data;
        self.future_ready_callback = args.future_ready_callback;
        Ok(())
    }
}
