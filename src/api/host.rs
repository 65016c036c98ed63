//! `PJRT_Client_BufferFromHostBuffer`, and copies to the host.

use std::sync::Arc;

use crate::{
    api::{
        call::{Call, LendsBuffer, Reading},
        entry::Entry,
    },
    device::{HostArray, strided},
    engine::{Args, Outcome, views},
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        client,
        shape::{Shape, dense_size, element_bytes},
        transfer::{
            host::{SMALLEST_ALIASED, alias, destination, from_host_by_engine, read, ready_event},
            upload::Upload,
        },
    },
    sys,
};

impl Entry for sys::PJRT_Client_BufferFromHostBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        client.allocator.in_flight.reap_in_order();
        let (dims, strides) = (call.dims(), call.byte_strides());
        let has_strides = !call.byte_strides.is_null();
        if has_strides && strides.len() != dims.len() {
            return Err(Error::invalid_argument(format!(
                "{}: {} byte strides for {} dimensions",
                Call::<Self>::FUNCTION,
                strides.len(),
                dims.len()
            ))
            .into());
        }
        // For memory that programs may write to the caller chose aliasing: the engine does that.
        let is_writable = call.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kMutableZeroCopy;
        let plain = call.has_default_layout();
        let space = destination(&client, call.device, call.memory)
            .filter(|_| !is_writable && plain && client.session.can_view(call.type_, dims));
        let Some((space, size)) = space.zip(dense_size(call.type_, dims)) else {
            // SAFETY: the struct satisfies the function's contract, as a call's does, and is passed on once.
            return unsafe { from_host_by_engine(call.out(), &client, dims, plain) };
        };
        if size.get() > 0 {
            call.required(call.data.cast_mut(), "data")?;
        }
        let shape = Arc::new(Shape::new(call.type_, dims, size.get() as usize));
        let strides = has_strides.then_some(strides);
        let element = element_bytes(call.type_).map_or(1, usize::from);
        if call.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kImmutableZeroCopy
            && client.zero_copy
            && size.get() >= SMALLEST_ALIASED
            && call.data.addr().is_multiple_of(views::ALIGNMENT)
            && strided::is_dense(dims, strides, element)
        {
            // SAFETY: the struct satisfies the function's contract, as a call's does, and is passed on once; the array
            // is dense.
            return unsafe { alias(call.out(), &client, space, shape) };
        }
        let upload = Upload::new(&client, space, shape, OriginKind::Host)?;
        // SAFETY: the client is alive. `data` has the strided array for the whole call, whatever the semantics;
        // `upload` writes to the block alone, which is as large as the dense array and used by nothing else.
        let buffer = unsafe {
            let from = HostArray::new(call.data.cast(), dims, strides, element);
            upload.fill(&[], |carrier, to| carrier.upload(from, to))?
        };
        // The host array is free again once it was read, whatever the semantics: at the latest when the bytes are
        // there.
        let out = call.out();
        out.done_with_host_buffer = ready_event(&buffer)?;
        out.buffer = buffer.into_raw();
        Ok(())
    }
}

/// Has the engine read the buffer; it stays in use until the event of the answer.
///
/// # Errors
/// INVALID_ARGUMENT for a buffer that was deleted or donated, or the engine's.
fn read_by_engine<'a, A: Args + LendsBuffer<Use = Reading>>(call: Call<'a, A>) -> Outcome<(A, &'a mut A)> {
    // SAFETY: the handle is NULL or alive, and the struct satisfies the function's contract, as the call asks; the
    // event is the one that the engine makes.
    let theirs = unsafe { read(call.buffer_handle(), |buffer| call.with_buffer(buffer), A::made)? };
    Ok((theirs, call.out()))
}

impl Entry for sys::PJRT_Buffer_ToHostBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (theirs, out) = read_by_engine(call)?;
        (out.dst_size, out.event) = (theirs.dst_size, theirs.event);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHost_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (theirs, out) = read_by_engine(call)?;
        out.event = theirs.event;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHostFuture_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (theirs, out) = read_by_engine(call)?;
        out.event = theirs.event;
        out.callback_data = theirs.callback_data;
        out.future_ready_callback = theirs.future_ready_callback;
        Ok(())
    }
}
