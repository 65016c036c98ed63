//! Copies of arrays in a layout of their own, on a processor.
//!
//! XLA:CPU at PJRT 0.81 and 0.106 gives the copy the bytes in one order and the layout of another: `device_put` of such
//! an array to another device or memory gives wrong numbers (without pjrt-arena too; at 0.115 it does not;
//! `python_smoke/test_layouts.py`). So the bytes are copied here, as they are, and the copy has the layout of the
//! array. Such arrays are rare, and who copies one waits for it.

use std::{ptr, sync::Arc};

use crate::{
    engine::{
        Outcome, Raw,
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
        execute::nested::wait_for,
        shape::{Layout, Shape},
        transfer::upload::Upload,
    },
    sys::{self, slice},
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
    client: &Client,
    buffer: &Arc<Buffer>,
    site: Option<MemorySpace<'_>>,
    memory: Raw<sys::PJRT_Memory>,
) -> Outcome<Option<Arc<Buffer>>> {
    if client.session.view_kind != ViewKind::Host || !buffer.shape.is_without_gaps() {
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
    let arrival = Upload::new(client, site, Arc::clone(&buffer.shape), OriginKind::Copy)?;
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
/// Engines do not agree on the order that such bytes are taken to lie in, so what this one made of them is compared.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// The client and the memory must be alive; `address` must have as many bytes as the shape says.
unsafe fn shown(
    client: &Client,
    memory: Raw<sys::PJRT_Memory>,
    shape: &Shape,
    own: &Layout,
    address: usize,
) -> Outcome<Arc<Buffer>> {
    let engine = client.session.engine;
    let admitted = client.admit_shape((ptr::null_mut(), memory.0), shape.element_type, &shape.dims)?;
    let array = Array { minor_to_major: Some(&own.minor_to_major), ..Array::new(shape.element_type, &shape.dims) };
    // SAFETY: the caller's promise.
    let buffer = unsafe {
        let made = views::copy(engine, (client.session.handle.0, memory.0), address, array)?;
        client.adopt_admitted(made, admitted)?
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
