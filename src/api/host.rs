//! `PJRT_Client_BufferFromHostBuffer`, and copies to the host.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    device::{HostArray, strided},
    engine::{Outcome, failure::required, views},
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        client,
        shape::{Shape, dense_size, element_bytes},
        transfer::{
            host::{SMALLEST_ALIASED, alias, destination, from_host_by_engine, is_default_layout, read, ready_event},
            upload::Upload,
        },
    },
    sys::{self, slice},
};

impl Entry for sys::PJRT_Client_BufferFromHostBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Client_BufferFromHostBuffer";
        let client = client::find(self.client)?;
        client.allocator.in_flight.reap_in_order();
        // SAFETY: dimensions and strides are as many as the caller's struct says, as `run` asks.
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
        // For memory that programs may write to the caller chose aliasing: the engine does that.
        let is_writable = self.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kMutableZeroCopy;
        // SAFETY: the layout is NULL or valid, as `run` asks.
        let plain = unsafe { is_default_layout(self.device_layout) };
        let space = destination(&client, self.device, self.memory)
            .filter(|_| !is_writable && plain && client.session.aliasable.contains(self.type_));
        let Some((space, size)) = space.zip(dense_size(self.type_, dims)) else {
            // SAFETY: the struct satisfies the function's contract, as `run` asks.
            return unsafe { from_host_by_engine(self, &client, dims, plain) };
        };
        if size.get() > 0 {
            required(self.data.cast_mut(), NAME, "data")?;
        }
        let shape = Arc::new(Shape::new(self.type_, dims, size.get() as usize));
        let strides = (!self.byte_strides.is_null()).then_some(strides);
        let element = element_bytes(self.type_).map_or(1, usize::from);
        if self.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kImmutableZeroCopy
            && client.zero_copy
            && size.get() >= SMALLEST_ALIASED
            && self.data.addr().is_multiple_of(views::ALIGNMENT)
            && strided::is_dense(dims, strides, element)
        {
            // SAFETY: the struct satisfies the function's contract, as `run` asks; the array is dense.
            return unsafe { alias(self, &client, space, shape) };
        }
        let upload = Upload::new(&client, space, shape, OriginKind::Host)?;
        // SAFETY: the client is alive. `data` has the strided array for the whole call, whatever the semantics;
        // `upload` writes to the block alone, which is as large as the dense array and used by nothing else.
        let buffer = unsafe {
            upload
                .fill(&[], |carrier, to| carrier.upload(HostArray::new(self.data.cast(), dims, strides, element), to))?
        };
        // The host array is free again once it was read, whatever the semantics: at the latest when the bytes are
        // there.
        self.done_with_host_buffer = ready_event(&buffer)?;
        self.buffer = buffer.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_ToHostBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |src| Self { src, event: ptr::null_mut(), ..*self };
        // SAFETY: the handle is NULL or alive, and the struct satisfies the function's contract, as `run` asks.
        let args = unsafe { read(self.src, call, |args| args.event)? };
        (self.dst_size, self.event) = (args.dst_size, args.event);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHost_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |buffer| Self { buffer, event: ptr::null_mut(), ..*self };
        // SAFETY: the handle is NULL or alive, and the struct satisfies the function's contract, as `run` asks.
        self.event = unsafe { read(self.buffer, call, |args| args.event)? }.event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHostFuture_Args {
    unsafe fn run(&mut self) -> Outcome {
        let call = |buffer| Self { buffer, event: ptr::null_mut(), ..*self };
        // SAFETY: the handle is NULL or alive, and the struct satisfies the function's contract, as `run` asks.
        let args = unsafe { read(self.buffer, call, |args| args.event)? };
        self.event = args.event;
        self.callback_data = args.callback_data;
        self.future_ready_callback = args.future_ready_callback;
        Ok(())
    }
}
