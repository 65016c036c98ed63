//! Arrays first, their bytes later: `PJRT_AsyncHostToDeviceTransferManager`.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    buffer::Buffer,
    client::{self, Client},
    cpu::Raw,
    entry::{Entry, list, required, text},
    error::{Error, Result},
    memory::Memory,
    milestone::Milestone,
    shape::Shape,
    sys,
    transfer::{Source, allocate, inward},
};

/// See the module.
struct Manager {
    client: Arc<Client>,
    device: usize,
    slots: Vec<Slot>,
}

/// One array.
struct Slot {
    shape: Shape,
    memory: Arc<Memory>,
    defined: Arc<Milestone>,
    state: Mutex<State>,
}

struct State {
    /// Not handed over yet.
    buffer: Option<Buffer>,
    /// The last bytes came, or an error.
    closed: bool,
}

impl Manager {
    /// # Safety
    /// `manager` must be NULL or a live manager of this engine.
    unsafe fn borrow<'a>(manager: *mut sys::PJRT_AsyncHostToDeviceTransferManager, function: &str) -> Result<&'a Self> {
        let manager = required(manager, function, "transfer_manager")?;
        // SAFETY: every manager that leaves this library is a box of this type.
        Ok(unsafe { &*manager.cast::<Self>() })
    }

    fn slot(&self, index: i32) -> Result<&Slot> {
        usize::try_from(index).ok().and_then(|index| self.slots.get(index)).ok_or_else(|| {
            Error::invalid(format!("buffer index {index} is out of range: there are {} buffers", self.slots.len()))
        })
    }
}

impl Slot {
    /// Starts a copy; the last one makes the array ready.
    fn transfer(&self, manager: &Manager, offset: u64, source: Source, last: bool) -> Result<Arc<Milestone>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::invalid("the buffer has all its data already, or an error"));
        }
        state.closed = last;
        let done = if last { Arc::clone(&self.defined) } else { Milestone::of_work() };
        inward(&manager.client.devices[manager.device].gpu, &self.memory, offset, source, &done)?;
        Ok(done)
    }

    fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.closed, true) {
            drop(state);
            self.defined.finish_with(Err(error));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        for slot in &self.slots {
            slot.fail(Error::internal("the transfer manager was destroyed before the buffer had all its data"));
        }
    }
}

impl Entry for sys::PJRT_Client_CreateBuffersForAsyncHostToDevice_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_Client_CreateBuffersForAsyncHostToDevice";
        let (client, device, place) = client::memory(required(self.memory, NAME, "memory")?)?;
        // SAFETY: the caller's lists.
        let (specs, layouts) = unsafe {
            (list(self.shape_specs, self.num_shape_specs), list(self.device_layouts, self.num_device_layouts))
        };
        if !layouts.is_empty() && layouts.len() != specs.len() {
            return Err(Error::invalid(format!("{} layouts for {} buffers", layouts.len(), specs.len())));
        }
        let mut slots = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let layout = layouts.get(index).copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: as above.
            let shape = unsafe { Shape::read(spec.element_type, spec.dims, spec.num_dims, layout)? };
            let memory = allocate(&client, device, place, &shape)?;
            let defined = Milestone::pending();
            let buffer = Buffer::new(&client, device, place, shape.clone(), Arc::clone(&memory), Arc::clone(&defined));
            let state = Mutex::new(State { buffer: Some(buffer), closed: false });
            slots.push(Slot { shape, memory, defined, state });
        }
        self.transfer_manager = Box::into_raw(Box::new(Manager { client, device, slots })).cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        if !self.transfer_manager.is_null() {
            // SAFETY: the handle is a box that the caller gives up.
            drop(unsafe { Box::from_raw(self.transfer_manager.cast::<Manager>()) });
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_TransferData_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_TransferData";
        // SAFETY: the caller's handle is alive.
        let manager = unsafe { Manager::borrow(self.transfer_manager, NAME)? };
        let slot = manager.slot(self.buffer_index)?;
        let size = slot.shape.bytes();
        let range = u64::try_from(self.offset).ok().zip(u64::try_from(self.transfer_size).ok());
        let Some((offset, bytes)) = range.filter(|&(at, bytes)| at.checked_add(bytes).is_some_and(|end| end <= size))
        else {
            return Err(Error::invalid(format!(
                "{NAME}: {} bytes at offset {} do not lie in a buffer of {size} bytes",
                self.transfer_size, self.offset
            )));
        };
        let source = Source::Lent(Raw(self.data.cast_mut()), bytes as usize);
        self.done_with_h2d_transfer = slot.transfer(manager, offset, source, self.is_last_transfer)?.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer";
        // SAFETY: the caller's handle is alive.
        let slot = unsafe { Manager::borrow(self.transfer_manager, NAME)? }.slot(self.buffer_index)?;
        let buffer = slot.state.lock().buffer.take();
        self.buffer_out = buffer
            .ok_or_else(|| Error::invalid(format!("{NAME}: buffer {} was retrieved already", self.buffer_index)))?
            .into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Device_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let manager =
            unsafe { Manager::borrow(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_Device")? };
        self.device_out = manager.client.devices[manager.device].handle.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let manager =
            unsafe { Manager::borrow(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_BufferCount")? };
        self.buffer_count = manager.slots.len();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let manager =
            unsafe { Manager::borrow(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_BufferSize")? };
        self.buffer_size = manager.slot(self.buffer_index)?.shape.bytes() as usize;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_SetBufferError";
        // SAFETY: the caller's handle is alive, and the text as long as it says.
        let (manager, message) = unsafe {
            (Manager::borrow(self.transfer_manager, NAME)?, text(self.error_message, self.error_message_size))
        };
        manager.slot(self.buffer_index)?.fail(Error::new(self.error_code, message));
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive. What it tells is for traces only.
        unsafe { Manager::borrow(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_AddMetadata") }.map(drop)
    }
}
