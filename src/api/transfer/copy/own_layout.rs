//! Copies of arrays in a layout of their own, on a processor.
//!
//! XLA:CPU at PJRT 0.81 gives the copy the bytes in one order and the layout of another: `device_put` of such an array to another
//! device or memory gives wrong numbers (seen with xla-cpu-pjrt 0.0.1, without pjrt-arena too; `python_smoke/test_layouts.py`). So the
//! bytes are copied here, as they are, and the copy has the layout of the array. Such arrays are rare, and who copies one waits for it.

use std::{ptr, sync::Arc};

use smallvec::SmallVec;

use crate::{
    api::{
        buffer::{
            Buffer,
            getters::{layout, layout_of},
            shape::{Layout, Shape, element_bytes},
            storage::Storage,
        },
        entry::{Outcome, slice},
        execute::nested::wait_for,
        state::{Client, Site},
        transfer::arrival::Arrival,
    },
    engine::{
        Raw,
        views::{self, Sight},
    },
    error::Error,
    report::snapshot::OriginKind,
    sys,
    units::{Address, Bytes},
};

/// A copy at `site`, or, with none, in the engine's `memory`; `None` if the array lies in the default layout, so that anybody may
/// copy it, if its elements are packed, which only the engine can do, or if it is an error, which the engine's copy has too.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, UNIMPLEMENTED where the engine does not take the layout, or the
/// engine's.
///
/// # Safety
/// The client and the memory must be alive.
pub unsafe fn copy(
    buffer: &Arc<Buffer>,
    site: Option<Site<'_>>,
    memory: Raw<sys::PJRT_Memory>,
) -> Outcome<Option<Arc<Buffer>>> {
    let client = &buffer.client;
    if client.sight != Sight::Host || !buffer.shape.is_without_gaps() {
        return Ok(None);
    }
    // That of what lies in an arena is known, if it is another than the default one.
    let in_arena = matches!(buffer.state().storage, Storage::Arena(_));
    let told = if in_arena { buffer.shape.own_layout() } else { layout(buffer).ok() };
    let Some(own) = told.filter(|layout| !layout.is_default()) else { return Ok(None) };
    // SAFETY: the caller's promise.
    if unsafe { wait_for(buffer) }.is_err() {
        return Ok(None);
    }
    let bytes = Bytes::new(buffer.shape.size as u64);
    let Some(site) = site else {
        // SAFETY: the caller's promise; the bytes are there, and stay as long as they are lent.
        return unsafe {
            let reading = buffer.lend()?;
            shown(client, memory, &buffer.shape, own, reading.address()).map(Some)
        };
    };
    let arrival = Arrival::new(client, site, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    // SAFETY: the client is alive. Both hold the array; the source is there and neither changes, moves nor goes while it is lent, the
    // copy is ours alone.
    unsafe {
        let reading = buffer.lend()?;
        let from = Address::new(reading.address() as u64);
        arrival.fill(&[], |carrier, to| carrier.copy(from, to, bytes)).map(Some)
    }
}

/// A copy in memory of the engine of the array at `address`.
///
/// Since not every engine takes the bytes of such an array as the C API says, what it made of them is compared.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// The client and the memory must be alive; `address` must have as many bytes as the shape says.
unsafe fn shown(
    client: &Arc<Client>,
    memory: Raw<sys::PJRT_Memory>,
    shape: &Shape,
    own: &Layout,
    address: usize,
) -> Outcome<Arc<Buffer>> {
    let engine = client.engine;
    let admitted = client.admit_shape((ptr::null_mut(), memory.0), shape.element_type, &shape.dims)?;
    let mut wanted = own.as_c();
    // SAFETY: the caller's promise.
    let strides = if unsafe { views::wants_strides(engine, (client.handle.0, memory.0)) } {
        let element = element_bytes(shape.element_type).unwrap_or(0);
        views::strides_of(&own.minor_to_major, &shape.dims, element.into())
    } else {
        SmallVec::new()
    };
    // SAFETY: the caller's promise; the engine is done with the bytes when the call returns.
    let buffer = unsafe {
        let args = engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client: client.handle.0,
            data: ptr::with_exposed_provenance(address),
            type_: shape.element_type,
            dims: shape.dims.as_ptr(),
            num_dims: shape.dims.len(),
            byte_strides: if strides.is_empty() { ptr::null() } else { strides.as_ptr() },
            num_byte_strides: strides.len(),
            host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            memory: memory.0,
            device_layout: &raw mut wanted,
            ..Default::default()
        })?;
        drop(engine.own_event(args.done_with_host_buffer));
        Buffer::adopt_admitted(client, args.buffer, admitted)?
    };
    // SAFETY: the client is alive.
    unsafe { wait_for(&buffer)? };
    let hold = buffer.hold()?;
    // SAFETY: the handle is alive while it is held, and so are the bytes, which are there; the source's are the caller's promise.
    let is_the_same = unsafe {
        let made = slice(ptr::with_exposed_provenance::<u8>(views::address(engine, hold.handle())?), buffer.shape.size);
        made == slice(ptr::with_exposed_provenance::<u8>(address), shape.size)
            && layout_of(engine, hold.handle())? == *own
    };
    drop(hold);
    if !is_the_same {
        return Err(Error::unimplemented("an array in a layout of its own cannot be copied to this memory").into());
    }
    Ok(buffer)
}
