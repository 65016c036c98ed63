//! Copies of arrays in a layout of their own, on a processor.
//!
//! XLA:CPU at PJRT 0.81 and 0.106 gives the copy the bytes in one order and the layout of another: `device_put` of
//! such an array to another device or memory gives wrong numbers (without pjrt-arena too; at 0.115 it does not;
//! `python_smoke/test_layouts.py`). So the bytes are copied here, as they are, and the copy has the layout of the
//! array. Such arrays are rare, and the caller waits for the copy.

use std::{ptr, sync::Arc};

use crate::{
    engine::{
        EngineBuffer, Live, Outcome,
        views::{self, Array, ClientMemory, HostBytes, ViewKind},
    },
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        buffer::{
            Buffer,
            layout::{layout, layout_of},
            reading::Reading,
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
pub fn copy(
    client: &Client,
    buffer: &Arc<Buffer>,
    space: Option<MemorySpace<'_>>,
    memory: Live<'_, sys::PJRT_Memory>,
) -> Outcome<Option<Arc<Buffer>>> {
    if client.session.view_kind != ViewKind::Host || !buffer.shape.is_without_gaps() {
        return Ok(None);
    }
    // The layout of an array in an arena is known, if it is not the default one.
    let in_arena = buffer.state().storage.block().is_some();
    let known = if in_arena { buffer.shape.own_layout() } else { layout(buffer).ok() };
    let Some(own) = known.filter(|layout| !layout.is_default()) else { return Ok(None) };
    if buffer.wait().is_err() {
        return Ok(None);
    }
    let bytes = Bytes::new(buffer.shape.size as u64);
    let Some(space) = space else {
        return copied_by_engine(client, memory, &buffer.shape, own, &buffer.lend()?).map(Some);
    };
    let upload = Upload::new(client, space, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    let reading = buffer.lend()?;
    let from = Address::new(reading.address() as u64);
    // SAFETY: source and block hold the array; the source is defined and neither changes, moves nor is freed while it
    // is lent; nothing else uses the new block.
    upload.fill(&[], |carrier, to| unsafe { carrier.copy(from, to, bytes) }).map(Some)
}

/// A copy in memory of the engine of the array of this shape that is lent.
///
/// Engines do not agree on the order of such bytes, so this engine's copy is compared with them.
///
/// # Errors
/// As [`copy`].
fn copied_by_engine(
    client: &Client,
    memory: Live<'_, sys::PJRT_Memory>,
    shape: &Shape,
    own: &Layout,
    lent: &Reading<'_>,
) -> Outcome<Arc<Buffer>> {
    let open = client.session.open()?;
    let admitted = client.admit_shape((ptr::null_mut(), memory.raw()), shape.element_type, &shape.dims)?;
    let array = Array { minor_to_major: Some(&own.minor_to_major), ..Array::new(shape.element_type, &shape.dims) };
    let place = ClientMemory { client: open.client(), memory };
    // SAFETY: the bytes of the array are defined, and stay while they are lent. The buffer is new, with no other owner.
    let made = unsafe {
        let made = views::from_host(place, lent.address(), array, HostBytes::Copied)?;
        EngineBuffer::own(client.session, made.into_raw())
    };
    let buffer = client.adopt_admitted(made, admitted)?;
    buffer.wait()?;
    let hold = buffer.hold()?;
    // SAFETY: the hold keeps the bytes of the copy, which are defined; those of the source are lent, and as many.
    let is_the_same = unsafe {
        let made = slice(ptr::with_exposed_provenance::<u8>(hold.address()?), buffer.shape.size);
        made == slice(ptr::with_exposed_provenance::<u8>(lent.address()), shape.size)
    } && layout_of(hold.live())? == *own;
    drop(hold);
    if !is_the_same {
        return Err(Error::unimplemented("an array in a layout of its own cannot be copied to this memory").into());
    }
    Ok(buffer)
}
