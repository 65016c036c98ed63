//! Memory that goes back and forth between an arena and the engine's pool on the same device.

use crate::{
    runtime::{
        allocator::core::Allocator,
        device_memory::{DeviceMemory, SharedPool},
    },
    units::Bytes,
};

/// Arrays have found no memory, `refused` by the device or by the limit: takes back what the engine's pool has and does not need.
/// Whether anything came.
pub fn take_back(allocator: &Allocator, memory: &DeviceMemory, refused: bool) -> bool {
    let Some(shared) = &memory.shared else { return false };
    let take_back = || refused && !shared.shed().is_zero() || !shared.shrink().is_zero();
    take_back() || observe(allocator, shared) && take_back()
}

/// Gives back what compiling has left in the engine's pools beyond what programs may have.
pub fn trim_pools(allocator: &Allocator) {
    for shared in allocator.memories.iter().filter_map(|memory| memory.shared.as_ref()) {
        shared.shed();
        if shared.pool.reserved().is_ok_and(|reserved| reserved > shared.budget.open()) && observe(allocator, shared) {
            shared.shed();
        }
    }
}

/// The engine found no memory to compile with, for its autotuner tries kernels out on arrays of its own: gives back what arrays do not
/// use. Whether anything went.
#[cold]
pub fn make_room_to_compile(allocator: &Allocator) -> bool {
    allocator.drain();
    let memories = allocator.memories.iter().filter(|memory| memory.shared.is_some());
    memories.map(|memory| trim(memory, Bytes::MAX)).sum::<Bytes>() > Bytes::ZERO
}

/// As [`SharedPool::observe`], unless programs are under way: a thread that waits for memory is woken when they end. Nor in a host
/// callback, which the device may be waiting for.
pub fn observe(allocator: &Allocator, shared: &SharedPool) -> bool {
    !allocator.in_flight.is_busy() && !allocator.runs_callbacks() && shared.observe()
}

/// Gives up to about `bytes` of memory that the arena does not use back to the device: empty regions, then holes. How much went.
pub fn trim(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let regions = memory.trim();
    regions + discard_holes(memory, bytes.saturating_sub(regions))
}

/// Gives up to about `bytes` of memory behind holes back to the device. How much went.
#[cold]
pub fn discard_holes(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let mut pages = Bytes::ZERO;
    if bytes.is_zero() {
        return pages;
    }
    memory.discard_holes(|hole| {
        if pages < bytes {
            // SAFETY: the hole lies in a region of this device, and the arena keeps everybody out of it meanwhile.
            let went = unsafe { memory.carrier.discard(hole.address, hole.bytes) };
            pages += went.unwrap_or_else(|error| {
                log::warn!("a hole of {} could not be given back: {error}", hole.bytes);
                Bytes::ZERO
            });
        }
        Bytes::ZERO
    });
    pages
}
