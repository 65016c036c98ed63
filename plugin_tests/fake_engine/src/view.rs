//! Buffers that copy nothing: views of outsiders' memory, and memory without contents.

use std::{process, sync::Arc};

use cudarc::driver::sys::CUstream;

use crate::{
    buffer::Buffer,
    client,
    entry::{Entry, required},
    error::{Error, Result},
    memory::Memory,
    milestone::Milestone,
    options::Era,
    shape::Shape,
    sys,
    transfer::allocate,
};

impl Entry for sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_Client_CreateViewOfDeviceBuffer";
        let (client, device, place) = client::home(self.memory, self.device, NAME)?;
        if client.era == Era::Api112 {
            // What that version does not check ends the process there too, if not at once.
            if self.layout.is_null() {
                abort("a view without a layout has a shape without one, which XLA of PJRT 0.112 fails a check on");
            }
            if self.on_delete_callback.is_none() {
                abort("a view's on_delete_callback is NULL, and XLA of PJRT 0.112 calls it unasked");
            }
        }
        // SAFETY: the caller's lists.
        let shape = unsafe { Shape::read(self.element_type, self.dims, self.num_dims, self.layout)? };
        if shape.bytes() > 0 {
            required(self.device_buffer_ptr, NAME, "device_buffer_ptr")?;
        }
        let gpu = &client.devices[device].gpu;
        let stream: CUstream = std::ptr::with_exposed_provenance_mut(self.stream as usize);
        let defined = if !stream.is_null() {
            if !gpu.is_external(stream) {
                return Err(Error::new(
                    sys::PJRT_Error_Code_NOT_FOUND,
                    format!("{stream:p} is none of the streams for external ready events of {}", gpu.name),
                ));
            }
            behind(gpu, stream)?
        } else if client.era == Era::Api112 {
            behind(gpu, gpu.compute)?
        } else {
            Milestone::done(Ok(()))
        };
        let memory = Memory::foreign(
            self.device_buffer_ptr,
            shape.bytes(),
            self.on_delete_callback,
            self.on_delete_callback_arg,
        );
        self.buffer = Buffer::new(&client, device, place, shape, memory, defined).into_raw();
        Ok(())
    }
}

/// A milestone at the end of what a stream has to do.
fn behind(gpu: &crate::gpu::Gpu, stream: CUstream) -> Result<Arc<Milestone>> {
    let milestone = Milestone::pending();
    gpu.complete(stream, &milestone, ())?;
    Ok(milestone)
}

fn abort(why: &str) -> ! {
    eprintln!("fake CUDA engine: {why}; aborting");
    process::abort()
}

impl Entry for sys::PJRT_Client_CreateUninitializedBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        let (client, device, place) = client::home(self.memory, self.device, "PJRT_Client_CreateUninitializedBuffer")?;
        // SAFETY: the caller's lists.
        let shape =
            unsafe { Shape::read(self.shape_element_type, self.shape_dims, self.shape_num_dims, self.shape_layout)? };
        let memory = allocate(&client, device, place, &shape)?;
        let gpu = &client.devices[device].gpu;
        let defined = behind(gpu, gpu.compute)?;
        self.buffer = Buffer::new(&client, device, place, shape, memory, defined).into_raw();
        Ok(())
    }
}
