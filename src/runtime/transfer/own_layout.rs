//! Copies of arrays in a layout of their own, on a processor.
//!
//! XLA:CPU at PJRT 0.81 and 0.106 gives the copy the bytes in one order and the layout of another: `device_put` of
//! such an array to another device or memory gives wrong numbers (without pjrt-arena too; at 0.115 it does not;
//! `python_smoke/test_layouts.py`). So the bytes are copied here, as they are, and the copy has the layout of the
//! array. Such arrays are rare, and the caller waits for the copy.

use std::{ptr, sync::Arc};

use crate::{
    engine::{
        EngineBuffer, Outcome, Raw,
        views::{self, Array, ViewKind},
    },
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        buffer::{
            Buffer,
            layout::{layout, layout_of},
            storage::Storage,
        },
        client::{Client, MemorySpace},
        shape::{Layout, Shape},
        transfer::upload::Upload,
    },
    sys::{self, slice},
    units::{Address, Bytes},
};

/// A copy in `space`, or, with none, in the engine's `memory`. `None` if the array has the default layout, if its
/// elements are packed, which only the engine can copy, or if it is an error, which the engine's copy is too.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, UNIMPLEMENTED where the engine does not take the layout,
/// or the engine's.
///
/// # Safety
/// The client and the memory must be alive.
pub unsafe fn copy(
    client: &Client,
    buffer: &Arc<Buffer>,
    space: Option<MemorySpace<'_>>,
    memory: Raw<sys::PJRT_Memory>,
) -> Outcome<Option<Arc<Buffer>>> {
    if client.session.view_kind != ViewKind::Host || !buffer.shape.is_without_gaps() {
        return Ok(None);
    }
    // The layout of an array in an arena is known, if it is not the default one.
    let in_arena = matches!(buffer.state().storage, Storage::Arena(_));
    let known = if in_arena { buffer.shape.own_layout() } else { layout(buffer).ok() };
    let Some(own) = known.filter(|layout| !layout.is_default()) else { return Ok(None) };
    if buffer.wait().is_err() {
        return Ok(None);
    }
    let bytes = Bytes::new(buffer.shape.size as u64);
    let Some(space) = space else {
        // SAFETY: client and memory are alive, as this function asks; the bytes are defined, and stay while they are
        // lent.
        return unsafe {
            let reading = buffer.lend()?;
            copied_by_engine(client, memory, &buffer.shape, own, reading.address()).map(Some)
        };
    };
    let upload = Upload::new(client, space, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    // SAFETY: the client is alive. Source and block hold the array; the source is defined and neither changes, moves
    // nor is freed while it is lent; nothing else uses the new block.
    unsafe {
        let reading = buffer.lend()?;
        let from = Address::new(reading.address() as u64);
        upload.fill(&[], |carrier, to| carrier.copy(from, to, bytes)).map(Some)
    }
}

/// A copy in memory of the engine of the array at `address`.
///
/// Engines do not agree on the order of such bytes, so this engine's copy is compared with them.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// The client and the memory must be alive; `address` must have as many bytes as the shape says.
unsafe fn copied_by_engine(
    client: &Client,
    memory: Raw<sys::PJRT_Memory>,
    shape: &Shape,
    own: &Layout,
    address: usize,
) -> Outcome<Arc<Buffer>> {
    let engine = client.session.engine;
    let admitted = client.admit_shape((ptr::null_mut(), memory.0), shape.element_type, &shape.dims)?;
    let array = Array { minor_to_major: Some(&own.minor_to_major), ..Array::new(shape.element_type, &shape.dims) };
    // SAFETY: client and memory are alive, and the address has the array's bytes, as this function asks; the buffer
    // is new, with no other owner.
    let buffer = unsafe {
        let made = views::copy(engine, (client.session.handle.0, memory.0), address, array)?;
        client.adopt_admitted(EngineBuffer::own(client.session, made), admitted)?
    };
    buffer.wait()?;
    let hold = buffer.hold()?;
    // SAFETY: the hold keeps handle and bytes, which are defined; the source has as many bytes, as this function
    // asks.
    let is_the_same = unsafe {
        let made = slice(ptr::with_exposed_provenance::<u8>(hold.address()?), buffer.shape.size);
        made == slice(ptr::with_exposed_provenance::<u8>(address), shape.size)
            && layout_of(engine, hold.handle())? == *own
    };
    drop(hold);
    if !is_the_same {
        return Err(Error::unimplemented("an array in a layout of its own cannot be copied to this memory").into());
    }
    Ok(buffer)
}
