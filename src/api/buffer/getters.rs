//! What a `PJRT_Buffer` says about itself. All answers outlive deletion and donation.

use std::{ptr, sync::Arc};

use super::{
    Buffer,
    custody::Life,
    shape::{Layout, Shape},
    storage::Storage,
};
use crate::{
    api::entry::{Entry, Outcome, slice},
    engine::{Engine, EngineError},
    sys,
};

impl Entry for sys::PJRT_Buffer_ElementType_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.type_ = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_ElementType")? }.shape.element_type;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Dimensions_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let dims = &unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_Dimensions")? }.shape.dims;
        (self.dims, self.num_dims) = (dims.as_ptr(), dims.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnpaddedDimensions_Args {
    unsafe fn run(&mut self) -> Outcome {
        // Nothing that an engine of ours makes is padded: the array's own sizes are the answer, as XLA gives it.
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_UnpaddedDimensions")? };
        if matches!(buffer.state().storage, Storage::Arena(_)) {
            (self.unpadded_dims, self.num_dims) = (buffer.shape.dims.as_ptr(), buffer.shape.dims.len());
            return Ok(());
        }
        // A buffer of the engine may have dynamic dimensions.
        // SAFETY: the handle is alive, and with it what the answer points to.
        let hold = buffer.hold()?;
        // SAFETY: as above.
        let args = unsafe { buffer.client.engine.call(Self { buffer: hold.handle(), ..*self })? };
        (self.unpadded_dims, self.num_dims) = (args.unpadded_dims, args.num_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DynamicDimensionIndices_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = Buffer::borrow(self.buffer, "PJRT_Buffer_DynamicDimensionIndices")?;
            if buffer.state().held().is_some() {
                // A view has none, and what the engine would point to may go with the view when the block moves.
                (self.dynamic_dim_indices, self.num_dynamic_dims) = (ptr::null_mut(), 0);
                return Ok(());
            }
            let hold = buffer.hold()?;
            buffer.client.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        (self.dynamic_dim_indices, self.num_dynamic_dims) = (args.dynamic_dim_indices, args.num_dynamic_dims);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_GetMemoryLayout_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_GetMemoryLayout")? };
        self.layout = layout(buffer)?.as_c();
        Ok(())
    }
}

/// How the array is laid out. The engine is asked once for all arrays of the shape.
///
/// # Errors
/// As [`Buffer::hold`], or the engine's.
pub fn layout(buffer: &Buffer) -> Outcome<&Layout> {
    buffer.shape.layout.get_or_try_init(|| ask(buffer))
}

/// Asks the engine how the array is laid out.
fn ask(buffer: &Buffer) -> Outcome<Layout> {
    let hold = buffer.hold()?;
    // SAFETY: the handle is alive while it is held.
    Ok(unsafe { layout_of(buffer.client.engine, hold.handle())? })
}

/// How the array in a buffer of the engine is laid out.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `handle` must be alive.
pub unsafe fn layout_of(engine: &'static Engine, handle: *mut sys::PJRT_Buffer) -> Result<Layout, EngineError> {
    // SAFETY: the caller's promise; what the answer points to lives as long as the handle.
    unsafe {
        let args = engine.call(sys::PJRT_Buffer_GetMemoryLayout_Args { buffer: handle, ..Default::default() })?;
        let tiled = args.layout.__bindgen_anon_1.tiled;
        let tile_dim_sizes = slice(tiled.tile_dim_sizes, tiled.num_tiles).to_vec();
        Ok(Layout {
            minor_to_major: slice(tiled.minor_to_major, tiled.minor_to_major_size).to_vec(),
            tile_dims: slice(tiled.tile_dims, tile_dim_sizes.iter().sum()).to_vec(),
            tile_dim_sizes,
        })
    }
}

/// Notes how a result of the engine is laid out, unless that is known. An engine that does not say has the default layout.
///
/// # Safety
/// `handle` must be alive, and hold an array of the shape.
pub unsafe fn note_layout(engine: &'static Engine, handle: *mut sys::PJRT_Buffer, shape: &Shape) {
    if shape.layout.get().is_none()
        // SAFETY: the caller's promise.
        && let Ok(layout) = unsafe { layout_of(engine, handle) }
    {
        // Somebody else may have been first; there is one answer.
        _ = shape.layout.set(layout);
    }
}

impl Layout {
    /// The layout as the C API shows it; the arrays live as long as `self`.
    pub fn as_c(&self) -> sys::PJRT_Buffer_MemoryLayout {
        let tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout_Tiled>(),
            minor_to_major: self.minor_to_major.as_ptr(),
            minor_to_major_size: self.minor_to_major.len(),
            tile_dims: self.tile_dims.as_ptr(),
            tile_dim_sizes: self.tile_dim_sizes.as_ptr(),
            num_tiles: self.tile_dim_sizes.len(),
            ..Default::default()
        };
        let mut layout = sys::PJRT_Buffer_MemoryLayout {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout>(),
            type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
            ..Default::default()
        };
        layout.__bindgen_anon_1.tiled = tiled;
        layout
    }
}

impl Entry for sys::PJRT_Buffer_OnDeviceSizeInBytes_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_OnDeviceSizeInBytes")? };
        self.on_device_size_in_bytes = buffer.shape.size;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Device_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.device = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_Device")? }.device.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Memory_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        self.memory = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_Memory")? }.memory.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsDeleted_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_IsDeleted")? };
        self.is_deleted = buffer.state().life() != Life::Live;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_IsOnCpu_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = Buffer::borrow(self.buffer, "PJRT_Buffer_IsOnCpu")?;
            let hold = buffer.hold()?;
            buffer.client.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        self.is_on_cpu = args.is_on_cpu;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_ReadyEvent_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        let args = unsafe {
            let buffer = Buffer::borrow(self.buffer, "PJRT_Buffer_ReadyEvent")?;
            let hold = buffer.hold()?;
            buffer.client.engine.call(Self { buffer: hold.handle(), ..*self })?
        };
        self.event = args.event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_Delete_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_Delete")? }.delete()
    }
}

impl Entry for sys::PJRT_Buffer_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        if !self.buffer.is_null() {
            // SAFETY: the handle is one share, which the caller gives up.
            unsafe { Arc::from_raw(self.buffer.cast::<Buffer>().cast_const()) }.destroy();
        }
        Ok(())
    }
}
