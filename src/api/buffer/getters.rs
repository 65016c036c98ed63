//! What a `PJRT_Buffer` says about itself. All answers outlive deletion and donation.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    engine::Outcome,
    runtime::{
        buffer::{Buffer, buffer_ref::BufferRef, layout, storage::Storage, usage::Life},
        client,
    },
    sys::{self},
};

impl Entry for sys::PJRT_Buffer_ElementType_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.type_ = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_ElementType")? }.shape.element_type;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Dimensions_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let dims = &unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_Dimensions")? }.shape.dims;
        (self.dims, self.num_dims) = (dims.as_ptr(), dims.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnpaddedDimensions_Args {
    unsafe fn run(&mut self) -> Outcome {
        // Nothing that an engine of ours makes is padded: the array's own sizes are the answer, as XLA gives it.
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_UnpaddedDimensions")? };
        if matches!(buffer.state().storage, Storage::Arena(_)) {
            (self.unpadded_dims, self.num_dims) = (buffer.shape.dims.as_ptr(), buffer.shape.dims.len());
            return Ok(());
        }
        // A buffer of the engine may have dynamic dimensions.
        // SAFETY: the handle is alive, and with it what the answer points to.
        let hold = buffer.hold()?;
        // SAFETY: as above.
        let args = unsafe { buffer.session.engine.call(Self { buffer: hold.handle(), ..*self })? };
        (self.unpadded_dims, self.num_dims) = (args.unpadded_dims, args.num_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DynamicDimensionIndices_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Buffer_DynamicDimensionIndices")?;
            if buffer.state().held().is_some() {
                // A view has none, and what the engine would point to may go with the view when the block moves.
                (self.dynamic_dim_indices, self.num_dynamic_dims) = (ptr::null_mut(), 0);
                return Ok(());
            }
            let hold = buffer.hold()?;
            buffer.session.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        (self.dynamic_dim_indices, self.num_dynamic_dims) = (args.dynamic_dim_indices, args.num_dynamic_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_GetMemoryLayout_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_GetMemoryLayout")? };
        self.layout = layout::layout(&buffer)?.as_c();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_OnDeviceSizeInBytes_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_OnDeviceSizeInBytes")? };
        self.on_device_size_in_bytes = buffer.shape.size;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Device_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.device = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_Device")? }.device.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Memory_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.memory = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_Memory")? }.memory.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsDeleted_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_IsDeleted")? };
        self.is_deleted = buffer.state().life() != Life::Live;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsOnCpu_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Buffer_IsOnCpu")?;
            let hold = buffer.hold()?;
            buffer.session.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        self.is_on_cpu = args.is_on_cpu;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_ReadyEvent_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Buffer_ReadyEvent")?;
            let hold = buffer.hold()?;
            buffer.session.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        self.event = args.event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Delete_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_Delete")? }.delete()
    }
}

impl Entry for sys::PJRT_Buffer_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        if !self.buffer.is_null() {
            // SAFETY: the handle is one share, which the caller gives up.
            let buffer = unsafe { Arc::from_raw(self.buffer.cast::<Buffer>().cast_const()) };
            if let Some(consumed) = buffer.destroy()
                && let Some(client) = client::of_session(consumed.session)
            {
                client.allocator.in_flight.defer_destruction(consumed);
            }
        }
        Ok(())
    }
}
