//! Memory that moves between an arena and the engine's pool on the same device.

use crate::{
    runtime::{
        allocator::core::Allocator,
        device_memory::{DeviceMemory, SharedPool},
    },
    units::Bytes,
};

/// For arrays that found no memory, `refused` by the device or by the limit: takes back what the engine's pool has
/// and does not need. Whether there was any.
pub fn take_back(allocator: &Allocator, memory: &DeviceMemory, refused: bool) -> bool {
    let Some(shared) = &memory.shared else { return false };
    let take_back = || refused && !shared.trim_excess().is_zero() || !shared.trim_unused().is_zero();
    take_back() || observe(allocator, shared) && take_back()
}

/// Trims what compiling has left in the engine's pools beyond what programs may have.
pub fn trim_pools(allocator: &Allocator) {
    for shared in allocator.memories.iter().filter_map(|memory| memory.shared.as_ref()) {
        shared.trim_excess();
        if shared.pool.reserved().is_ok_and(|reserved| reserved > shared.budget.open()) && observe(allocator, shared) {
            shared.trim_excess();
        }
    }
}

/// After the engine found no memory to compile with, because its autotuner tries kernels out on arrays of its own:
/// gives memory that arrays do not use back to the devices. Whether there was any.
#[cold]
pub fn make_room_to_compile(allocator: &Allocator) -> bool {
    allocator.drain();
    let memories = allocator.memories.iter().filter(|memory| memory.shared.is_some());
    memories.map(|memory| trim(memory, Bytes::MAX)).sum::<Bytes>() > Bytes::ZERO
}

/// As [`SharedPool::observe`], unless programs are under way: an allocation that waits is woken when they end. Nor in
/// a host callback, which the device may wait for.
pub fn observe(allocator: &Allocator, shared: &SharedPool) -> bool {
    !allocator.in_flight.is_busy() && !allocator.runs_callbacks() && shared.observe()
}

/// Gives up to about `bytes` of memory that the arena does not use back to the device: empty regions, then holes.
/// Returns how much.
pub fn trim(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let regions = memory.trim();
    regions + discard_holes(memory, bytes.saturating_sub(regions))
}

/// Gives up to about `bytes` of memory behind holes back to the device. Returns how much.
#[cold]
pub fn discard_holes(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let mut pages = Bytes::ZERO;
    if bytes.is_zero() {
        return pages;
    }
    memory.discard_holes(|hole| {
        if pages >= bytes {
            return Bytes::ZERO;
        }
        // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
        let went = unsafe { memory.discard(hole) };
        pages += went;
        went
    })
}
