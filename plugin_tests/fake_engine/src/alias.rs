//! Alias buffers: handed out first, given their contents by another buffer later.
//!
//! Here they have memory of their own, which the contents are copied to.

use std::sync::Arc;

use crate::{
    buffer::Buffer,
    client::{self, Client},
    entry::{Entry, required, text},
    error::{Error, Result},
    memory::Memory,
    milestone::Milestone,
    shape::Shape,
    sys,
    transfer::{allocate, copy_to},
};

/// What an alias buffer waits for. Kept once; one that is never kept leaves the buffer pending.
struct Promise {
    client: Arc<Client>,
    device: usize,
    shape: Shape,
    memory: Arc<Memory>,
    defined: Arc<Milestone>,
}

impl Entry for sys::PJRT_Client_CreateAliasBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_Client_CreateAliasBuffer";
        let (client, device, place) = client::memory(required(self.memory, NAME, "memory")?)?;
        // SAFETY: the caller's lists.
        let shape =
            unsafe { Shape::read(self.shape_element_type, self.shape_dims, self.shape_num_dims, self.shape_layout)? };
        let memory = allocate(&client, device, place, &shape)?;
        let defined = Milestone::pending();
        let (kept, told) = (Arc::clone(&memory), Arc::clone(&defined));
        self.alias_buffer = Buffer::new(&client, device, place, shape.clone(), kept, told).into_raw();
        let promise = Promise { client, device, shape, memory, defined };
        self.fulfill_alias_buffer_cb = Box::into_raw(Box::new(promise)).cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_FulfillAliasBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_Client_FulfillAliasBuffer";
        let promise = required(self.fulfill_alias_buffer_cb, NAME, "fulfill_alias_buffer_cb")?;
        // SAFETY: the handle is a box that the caller gives up.
        let promise = unsafe { Box::from_raw(promise.cast::<Promise>()) };
        if self.status_code != sys::PJRT_Error_Code_OK {
            // SAFETY: the text is as long as the caller says.
            let message = unsafe { text(self.error_message, self.error_message_size) };
            promise.defined.finish_with(Err(Error::new(self.status_code, message)));
            return Ok(());
        }
        // SAFETY: the caller's handle is alive.
        let kept = unsafe { Buffer::borrow(self.buffer, NAME) }.and_then(|buffer| {
            if buffer.shape != promise.shape {
                let (given, promised) = (&buffer.shape, &promise.shape);
                return Err(Error::invalid(format!("{NAME}: {given:?} was given for an alias of {promised:?}")));
            }
            copy_to(buffer, &promise.client.devices[promise.device].gpu, &promise.memory, &promise.defined)?;
            // It is used up.
            buffer.delete();
            Ok(())
        });
        kept.inspect_err(|error| promise.defined.finish_with(Err(error.clone())))
    }
}
