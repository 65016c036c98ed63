//! `PJRT_Buffer`: an array, the memory that it lies in, and when its contents are there.

use std::{ffi::c_void, mem, sync::Arc};

use parking_lot::Mutex;

use crate::shape::Shape;
use crate::{
    client::{Client, Device, PINNED_HOST, Place},
    entry::{Entry, required},
    error::{Error, Result},
    gpu::Gpu,
    memory::{Memory, at},
    milestone::Milestone,
    sys::{self, CStruct},
};

/// XLA's words for a buffer that is no more.
const GONE: &str = "Buffer has been deleted or donated.";

/// See the module.
pub struct Buffer {
    /// Its client.
    pub client: Arc<Client>,
    /// The number of its device.
    pub device: usize,
    /// The number of its memory among those of the device.
    pub place: usize,
    /// What it is.
    pub shape: Shape,
    held: Mutex<Held>,
}

struct Held {
    /// `None` after a donation or a deletion.
    memory: Option<Arc<Memory>>,
    defined: Arc<Milestone>,
    /// Copies out of it that may still run: a program that overwrites it comes after them.
    uses: Vec<Arc<Milestone>>,
    external: usize,
    /// What an outsider refers to stays, whatever becomes of the buffer.
    referred: Option<Arc<Memory>>,
}

/// What there is to work with.
#[derive(Clone)]
pub struct Contents {
    /// Where the bytes are.
    pub memory: Arc<Memory>,
    /// When they are there.
    pub defined: Arc<Milestone>,
}

impl Held {
    fn contents(&self) -> Result<Contents> {
        let memory = self.memory.clone().ok_or_else(|| Error::invalid(GONE))?;
        Ok(Contents { memory, defined: Arc::clone(&self.defined) })
    }
}

impl Buffer {
    /// A buffer whose contents are there at a milestone.
    pub fn new(
        client: &Arc<Client>,
        device: usize,
        place: usize,
        shape: Shape,
        memory: Arc<Memory>,
        defined: Arc<Milestone>,
    ) -> Self {
        let held = Held { memory: Some(memory), defined, uses: Vec::new(), external: 0, referred: None };
        Self { client: Arc::clone(client), device, place, shape, held: Mutex::new(held) }
    }

    /// Hands it to the caller of the C API, who ends it with `PJRT_Buffer_Destroy`.
    pub fn into_raw(self) -> *mut sys::PJRT_Buffer {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The buffer behind a handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for NULL.
    ///
    /// # Safety
    /// `buffer` must be NULL or a live buffer of this engine.
    pub unsafe fn borrow<'a>(buffer: *mut sys::PJRT_Buffer, function: &str) -> Result<&'a Self> {
        let buffer = required(buffer, function, "buffer")?;
        // SAFETY: every buffer that leaves this library is a box of this type.
        Ok(unsafe { &*buffer.cast::<Self>() })
    }

    /// Its device.
    pub fn home(&self) -> &Device {
        &self.client.devices[self.device]
    }

    /// What computes on it.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.home().gpu
    }

    /// Its memory space.
    pub fn memory_space(&self) -> &Place {
        &self.home().memories[self.place]
    }

    /// The contents, which the caller uses.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that is deleted or donated.
    pub fn contents(&self) -> Result<Contents> {
        self.held.lock().contents()
    }

    /// The contents for a copy out of them, which ends at `until`.
    ///
    /// # Errors
    /// As [`Self::contents`].
    pub fn contents_for_use(&self, until: &Arc<Milestone>) -> Result<Contents> {
        let mut held = self.held.lock();
        let contents = held.contents()?;
        held.uses.retain(|used| !used.is_over());
        held.uses.push(Arc::clone(until));
        Ok(contents)
    }

    /// Gives the contents up for a program that overwrites them, with what it has to come after.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that is deleted or donated, or that an outsider refers to.
    pub fn donate(&self) -> Result<(Contents, Vec<Arc<Milestone>>)> {
        let mut held = self.held.lock();
        if held.external > 0 {
            return Err(Error::invalid("Donation requested for buffer with external reference"));
        }
        let memory = held.memory.take().ok_or_else(|| Error::invalid(GONE))?;
        let contents = Contents { memory, defined: Arc::clone(&held.defined) };
        Ok((contents, mem::take(&mut held.uses)))
    }

    /// Takes the contents back from a program that was never started.
    pub fn take_back(&self, contents: &Contents, uses: Vec<Arc<Milestone>>) {
        let mut held = self.held.lock();
        held.memory = Some(Arc::clone(&contents.memory));
        held.uses.extend(uses);
    }

    /// When the contents are there; for a deleted one, an error.
    fn ready(&self) -> Arc<Milestone> {
        self.contents().map_or_else(|error| Milestone::done(Err(error)), |contents| contents.defined)
    }

    /// Lets go of the memory.
    pub fn delete(&self) {
        // An outsider may be told here, so no lock is held.
        let memory = self.held.lock().memory.take();
        drop(memory);
    }
}

/// The address of a buffer.
fn address(buffer: &Buffer) -> Result<*mut c_void> {
    Ok(at(buffer.contents()?.memory.address()).cast())
}

impl Entry for sys::PJRT_Buffer_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        if !self.buffer.is_null() {
            // SAFETY: the handle is a box that the caller gives up.
            drop(unsafe { Box::from_raw(self.buffer.cast::<Buffer>()) });
        }
        Ok(())
    }
}

/// Functions that ask a live buffer one thing.
macro_rules! getters {
    ($($args:ident |$this:ident, $buffer:ident| $body:block)*) => {$(
        impl Entry for sys::$args {
            unsafe fn run(&mut self) -> Result {
                let $this = self;
                // SAFETY: the caller's handle is alive.
                let $buffer = unsafe { Buffer::borrow($this.buffer, Self::NAME)? };
                $body
                Ok(())
            }
        }
    )*};
}

getters! {
    PJRT_Buffer_ElementType_Args |this, buffer| { this.type_ = buffer.shape.element_type; }
    PJRT_Buffer_Dimensions_Args |this, buffer| {
        (this.dims, this.num_dims) = (buffer.shape.dims.as_ptr(), buffer.shape.dims.len());
    }
    PJRT_Buffer_UnpaddedDimensions_Args |this, buffer| {
        (this.unpadded_dims, this.num_dims) = (buffer.shape.dims.as_ptr(), buffer.shape.dims.len());
    }
    PJRT_Buffer_DynamicDimensionIndices_Args |this, _buffer| {
        (this.dynamic_dim_indices, this.num_dynamic_dims) = (std::ptr::null(), 0);
    }
    PJRT_Buffer_GetMemoryLayout_Args |this, buffer| { this.layout = buffer.shape.layout(); }
    PJRT_Buffer_OnDeviceSizeInBytes_Args |this, buffer| {
        this.on_device_size_in_bytes = buffer.shape.bytes() as usize;
    }
    PJRT_Buffer_Device_Args |this, buffer| { this.device = buffer.home().handle.0; }
    PJRT_Buffer_Memory_Args |this, buffer| { this.memory = buffer.memory_space().handle.0; }
    PJRT_Buffer_Delete_Args |_this, buffer| { buffer.delete(); }
    PJRT_Buffer_IsDeleted_Args |this, buffer| { this.is_deleted = buffer.held.lock().memory.is_none(); }
    // `PjRtStreamExecutorClient::IsOnCpu` (0.112), `PjRtStreamExecutorRawClient::IsOnCpu` (0.114).
    PJRT_Buffer_IsOnCpu_Args |this, buffer| { this.is_on_cpu = buffer.memory_space().kind == PINNED_HOST; }
    PJRT_Buffer_ReadyEvent_Args |this, buffer| { this.event = buffer.ready().into_raw(); }
    PJRT_Buffer_UnsafePointer_Args |this, buffer| { this.buffer_pointer = address(buffer)?.expose_provenance(); }
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args |this, buffer| { this.device_memory_ptr = address(buffer)?; }
    PJRT_Buffer_IncreaseExternalReferenceCount_Args |_this, buffer| {
        let mut held = buffer.held.lock();
        let memory = held.contents()?.memory;
        held.external += 1;
        held.referred = Some(memory);
    }
    PJRT_Buffer_DecreaseExternalReferenceCount_Args |_this, buffer| {
        let mut held = buffer.held.lock();
        held.external = held.external.checked_sub(1).ok_or_else(|| {
            Error::invalid("Attempting to decrease reference on a buffer with zero reference count.")
        })?;
        let last = if held.external == 0 { held.referred.take() } else { None };
        drop(held);
        drop(last);
    }
}
