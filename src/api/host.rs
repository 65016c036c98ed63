//! `PJRT_Client_BufferFromHostBuffer` and the way back.

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
        client.allocator.in_flight.reap_in_order(client.session.engine);
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
        let site = destination(&client, self.device, self.memory)
            .filter(|_| !lends && plain && client.session.aliasable.contains(self.type_));
        let Some((site, size)) = site.zip(dense_size(self.type_, dims)) else {
            // SAFETY: the caller's struct, handed on as it is.
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
            // SAFETY: the caller's struct; the array is dense.
            return unsafe { alias(self, &client, site, shape) };
        }
        let from = HostArray { data: self.data.cast(), dims, strides, element };
        let arrival = Upload::new(&client, site, shape, OriginKind::Host)?;
        // SAFETY: the client is alive. `data` holds the strided array for the whole call, whatever the semantics; the block is
        // ours alone and as large as the dense array.
        let buffer = unsafe { arrival.fill(&[], |carrier, to| carrier.upload(from, to))? };
        // The host array was read, so it is free again whatever the semantics; at the latest when the bytes are there.
        self.done_with_host_buffer = ready_event(client.session.engine, &buffer)?;
        self.buffer = buffer.into_raw();
        Ok(())
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
