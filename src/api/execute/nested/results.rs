//! What a program of a callback gave, on the user's client.
//!
//! ```text
//!  in its destination          the block, by the view that the user's client has of it
//!  elsewhere                   copied, into the arena
//! ```

use std::{ptr, sync::Arc};

use super::unable;
use crate::{
    api::{
        arena::device_memory::Held,
        buffer::{Buffer, getters::note_layout, shape::Shape, storage::Storage},
        entry::Outcome,
        execute::lane::Lane,
        programs::loaded::Loaded,
        state::Device,
    },
    engine::views,
    error::Error,
    memory::Maker,
    sys,
};

/// The results of one device, in the arena but for those in a layout of their own.
///
/// # Errors
/// RESOURCE_EXHAUSTED for one that lies elsewhere, or the engine's.
///
/// # Safety
/// The outputs must be alive, and their program over.
pub(super) unsafe fn take_results(
    loaded: &Loaded,
    lane: &mut Lane<'_>,
    outputs: &[*mut sys::PJRT_Buffer],
) -> Outcome<Vec<Arc<Buffer>>> {
    let client = &loaded.client;
    let device = lane.device.ok_or_else(|| unable("its device is not addressable"))?;
    let mut results = Vec::with_capacity(outputs.len());
    let program = &*loaded.program;
    for (number, ((&output, shape), &origin)) in
        outputs.iter().zip(&program.results).zip(&program.origin_ids).enumerate()
    {
        // SAFETY: the output is alive.
        let address = unsafe { views::address(client.engine, output) }.unwrap_or(0);
        let memory = program.bound(number, device).unwrap_or(device.memory);
        let at = lane.destinations.iter().position(|place| shape.size > 0 && place.held.address() == address);
        let (mut block, view) = match at.map(|at| lane.destinations.swap_remove(at)) {
            Some(destination) => (destination.held, destination.view.0),
            // SAFETY: the output is alive, and holds a whole array of that shape.
            None => unsafe {
                note_layout(client.engine, output, shape);
                copied(loaded, device, shape, Maker { origin, run: lane.run }, address)?
            },
        };
        block.made_by(origin, None);
        let (shape, storage) = (Arc::clone(shape), Storage::Arena(block));
        let result = Buffer::new(Arc::clone(client), device.handle, memory, shape, view, storage);
        result.mark_whole();
        results.push(result);
    }
    Ok(results)
}

/// A result that the engine put elsewhere, in the arena.
///
/// # Safety
/// `address` must have as many bytes as the shape says.
unsafe fn copied(
    loaded: &Loaded,
    device: &Device,
    shape: &Shape,
    maker: Maker,
    address: usize,
) -> Outcome<(Held, *mut sys::PJRT_Buffer)> {
    let client = &loaded.client;
    let arena = device.arena.as_ref().ok_or_else(|| Error::internal("a device without an arena"))?;
    let block = client.allocate_or_tell(arena, shape, maker)?;
    // SAFETY: the block is new and large enough; the view is of it.
    unsafe {
        if shape.size > 0 {
            let to = ptr::with_exposed_provenance_mut::<u8>(block.address());
            ptr::copy_nonoverlapping(ptr::with_exposed_provenance::<u8>(address), to, shape.size);
        }
        let view = client.view(device.memory, block.address(), shape)?;
        Ok((block, view))
    }
}
