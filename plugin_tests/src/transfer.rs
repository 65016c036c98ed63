//! Asynchronous host-to-device transfers.

use crate::{
    Plugin,
    buffer::{Buffer, ElementType, HostLayout},
    call,
    client::{Client, Device, Memory, Value},
    event::Event,
    raw::{Code, Result},
    sized, sys,
};

/// An owned `PJRT_AsyncHostToDeviceTransferManager`.
pub struct Transfer {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_AsyncHostToDeviceTransferManager,
}

// SAFETY: managers are thread-safe by contract.
unsafe impl Send for Transfer {}
// SAFETY: as above.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// See [`Client::transfer`].
    ///
    /// # Errors
    /// The plugin's.
    pub fn create(client: &Client, element_type: ElementType, shapes: &[&[i64]]) -> Result<Self> {
        Self::create_in(client, client.device().default_memory(), element_type, shapes, &[])
    }

    /// In `memory`, with the layouts given.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create_in(
        client: &Client,
        memory: Memory,
        element_type: ElementType,
        shapes: &[&[i64]],
        layouts: &[HostLayout<'_>],
    ) -> Result<Self> {
        let mut layouts: Vec<_> = layouts.iter().map(HostLayout::raw).collect();
        let mut layouts: Vec<_> = layouts.iter_mut().map(std::ptr::from_mut).collect();
        let spec = |dims: &&[i64]| {
            let mut spec = sized!(PJRT_ShapeSpec);
            (spec.dims, spec.num_dims, spec.element_type) = (dims.as_ptr(), dims.len(), element_type.raw());
            spec
        };
        let mut specs: Vec<_> = shapes.iter().map(spec).collect();
        let args = call!(
            client.plugin(),
            PJRT_Client_CreateBuffersForAsyncHostToDevice {
                client: client.raw(),
                shape_specs: specs.as_mut_ptr(),
                num_shape_specs: specs.len(),
                device_layouts: layouts.as_mut_ptr(),
                num_device_layouts: layouts.len(),
                memory: memory.raw(),
            }
        )?;
        Ok(Self { plugin: client.plugin(), raw: args.transfer_manager })
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_AsyncHostToDeviceTransferManager {
        self.raw
    }

    /// `..._BufferCount`.
    pub fn count(&self) -> usize {
        call!(self.plugin, PJRT_AsyncHostToDeviceTransferManager_BufferCount { transfer_manager: self.raw })
            .expect("BufferCount")
            .buffer_count
    }

    /// `..._BufferSize`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn size(&self, index: i32) -> Result<usize> {
        let args = call!(
            self.plugin,
            PJRT_AsyncHostToDeviceTransferManager_BufferSize { transfer_manager: self.raw, buffer_index: index }
        )?;
        Ok(args.buffer_size)
    }

    /// `..._Device`.
    pub fn device(&self) -> Device {
        let args = call!(self.plugin, PJRT_AsyncHostToDeviceTransferManager_Device { transfer_manager: self.raw })
            .expect("Device");
        Device::new(self.plugin, args.device_out)
    }

    /// `..._RetrieveBuffer`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn retrieve(&self, index: i32) -> Result<Buffer> {
        let args = call!(
            self.plugin,
            PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer { transfer_manager: self.raw, buffer_index: index }
        )?;
        Ok(Buffer::own(self.plugin, args.buffer_out))
    }

    /// `..._TransferData`; the data must stay as it is until the event is ready.
    ///
    /// # Errors
    /// The plugin's.
    pub fn send(&self, index: i32, offset: i64, data: &[u8], last: bool) -> Result<Event> {
        let args = call!(
            self.plugin,
            PJRT_AsyncHostToDeviceTransferManager_TransferData {
                transfer_manager: self.raw,
                buffer_index: index,
                data: data.as_ptr().cast(),
                offset: offset,
                transfer_size: data.len() as i64,
                is_last_transfer: last,
            }
        )?;
        Ok(Event::own(self.plugin, args.done_with_h2d_transfer).expect("TransferData always gives an event"))
    }

    /// `..._SetBufferError`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn fail(&self, index: i32, code: Code, message: &str) -> Result<()> {
        call!(
            self.plugin,
            PJRT_AsyncHostToDeviceTransferManager_SetBufferError {
                transfer_manager: self.raw,
                buffer_index: index,
                error_code: sys::PJRT_Error_Code(code.0),
                error_message: message.as_ptr().cast(),
                error_message_size: message.len(),
            }
        )
        .map(drop)
    }

    /// `..._AddMetadata` with one entry.
    ///
    /// # Errors
    /// The plugin's.
    pub fn add_metadata(&self, name: &str, value: &Value) -> Result<()> {
        let named = value.named(name);
        call!(
            self.plugin,
            PJRT_AsyncHostToDeviceTransferManager_AddMetadata {
                transfer_manager: self.raw,
                transfer_metadata: &raw const named,
                num_metadata: 1,
            }
        )
        .map(drop)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_AsyncHostToDeviceTransferManager_Destroy { transfer_manager: self.raw })
            .expect("Destroy");
    }
}
