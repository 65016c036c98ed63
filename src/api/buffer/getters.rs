//! What a `PJRT_Buffer` is and where. All answers stay valid after deletion and donation.

use std::ptr;

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Outcome, views::ViewKind},
    runtime::{
        buffer::{layout, usage::Life},
        client,
        transfer::host::ready_event,
    },
    sys,
};

impl Entry for sys::PJRT_Buffer_ElementType_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().type_ = buffer.shape.element_type;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Dimensions_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let dims = &call.buffer()?.get().shape.dims;
        let out = call.out();
        (out.dims, out.num_dims) = (dims.as_ptr(), dims.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnpaddedDimensions_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        // No known engine pads arrays: the array's own sizes are the answer, as XLA gives it.
        let buffer = call.buffer()?;
        if buffer.usage().peek(|body| body.storage.block().is_some()) {
            let out = call.out();
            (out.unpadded_dims, out.num_dims) = (buffer.shape.dims.as_ptr(), buffer.shape.dims.len());
            return Ok(());
        }
        // A buffer of the engine may have dynamic dimensions.
        let (theirs, out) = call.forward_for(&buffer.hold()?)?;
        (out.unpadded_dims, out.num_dims) = (theirs.unpadded_dims, theirs.num_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DynamicDimensionIndices_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        if buffer.usage().peek(|body| body.storage.block().is_some()) {
            // A view has none, and the engine's list may end with the view when the block moves.
            let out = call.out();
            (out.dynamic_dim_indices, out.num_dynamic_dims) = (ptr::null_mut(), 0);
            return Ok(());
        }
        let (theirs, out) = call.forward_for(&buffer.hold()?)?;
        (out.dynamic_dim_indices, out.num_dynamic_dims) = (theirs.dynamic_dim_indices, theirs.num_dynamic_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_GetMemoryLayout_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let layout = layout::layout(call.buffer()?.get())?.as_c();
        call.out().layout = layout;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_OnDeviceSizeInBytes_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().on_device_size_in_bytes = buffer.shape.size;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Device_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().device = buffer.device.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Memory_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().memory = buffer.memory.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsDeleted_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().is_deleted = buffer.usage().life() != Life::Live;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsOnCpu_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        if buffer.session.view_kind == ViewKind::Host && buffer.usage().peek(|body| body.storage.block().is_some()) {
            call.out().is_on_cpu = true;
            return Ok(());
        }
        let (theirs, out) = call.forward_for(&buffer.hold()?)?;
        out.is_on_cpu = theirs.is_on_cpu;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_ReadyEvent_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let event = ready_event(call.buffer()?.get())?;
        call.out().event = event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Delete_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        call.buffer()?.delete()
    }
}

impl Entry for sys::PJRT_Buffer_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        if let Some(buffer) = call.take()
            && let Some(consumed) = buffer.destroy()
            && let Some(client) = client::of_session(consumed.session)
        {
            client.allocator.in_flight.defer_destruction(consumed);
        }
        Ok(())
    }
}
