//! Memory that stays warm adds nothing to a peak: what arrays left goes back before scratch takes new pages, and what
//! scratch left before arrays do.
//!
//! ```text
//!  resident     |#### arrays ####|....warm....|## scratch ##|..warm..|
//!  needed       |#### arrays at the time ####|## scratch ##|            the most so far, looked at when either grows
//!                                  excess = resident - needed: so much goes back, of the other one
//! ```
//!
//! Pages are touched anew only where the use of arrays, or the scratch of programs, is higher than it was since they
//! went back last. A loop comes to that once. A program whose large arrays and large scratch take turns pays with a
//! page fault for what the other one gave back, as it does where malloc is asked for each.
//!
//! The third is the rest of the process, whose growth calls nobody: the trimmer's thread looks at it
//! ([`Growth`](crate::memory::idle::Growth)).
//!
//! GPUs have no such memory: their scratch lies in a pool of the engine's.

use crate::{
    engine::scratch,
    fork,
    runtime::{
        allocator::{
            core::Allocator,
            discard::{LEAST, discard_surplus},
        },
        device_memory::DeviceMemory,
    },
    units::Bytes,
};

/// Before an array of `size` bytes is placed in `memory`: where its pages may be new ones, has the engine's scratch
/// give pages back that were never needed beside such arrays.
#[inline]
pub fn before_an_array(allocator: &Allocator, memory: &DeviceMemory, size: Bytes) {
    let grows = memory.rises_by(size);
    if !grows.is_zero() {
        arrays_grow(allocator, size, grows);
    }
}

#[cold]
fn arrays_grow(allocator: &Allocator, size: Bytes, grows: Bytes) {
    let Some(scratch) = scratch::usage() else { return };
    let idle = scratch.warm.saturating_sub(scratch.in_use);
    if idle < LEAST {
        return;
    }
    let (used, warm) = of_arrays(allocator);
    let excess = allocator.needed.excess(used + size + scratch.in_use, warm + grows + scratch.warm).min(idle);
    if excess >= LEAST {
        let given = fork::step(|| scratch::trim(excess));
        log::debug!("{given} of idle scratch went back to the system, because arrays take new memory");
    }
}

/// When scratch touches new pages: has the holes between the arrays of a client give pages back that were never needed
/// beside such scratch. It runs in the engine's allocation, so it calls nothing of the engine.
pub fn scratch_grows(allocator: &Allocator) {
    let (used, warm) = of_arrays(allocator);
    let Some(scratch) = scratch::usage().filter(|_| warm.saturating_sub(used) >= LEAST) else { return };
    let mut excess = allocator.needed.excess(used + scratch.in_use, warm + scratch.warm);
    for memory in on_host(allocator) {
        let (used, warm) = memory.warm();
        let part = excess.min(warm.saturating_sub(used));
        if part < LEAST {
            continue;
        }
        // SAFETY: the arena calls it with holes of its own, or with what it keeps for scratch, and allocates nothing
        // there meanwhile. The scratch itself lies in the pool.
        let discard = |hole| unsafe { memory.discard(hole) };
        let kept = fork::passing(|| memory.discard_kept(discard));
        let surplus = memory.surplus(warm.saturating_sub(part)).at_once();
        let given = kept + discard_surplus(memory, surplus, part.saturating_sub(kept), &discard, &|| false);
        excess = excess.saturating_sub(part);
        log::debug!(
            "{}: {given} of idle memory went back to the system, because scratch takes new memory",
            memory.name()
        );
    }
}

fn on_host(allocator: &Allocator) -> impl Iterator<Item = &DeviceMemory> {
    allocator.memories.iter().map(|memory| &**memory).filter(|memory| memory.on_host)
}

/// What arrays use, and what of the memory they lie in is resident, in all.
fn of_arrays(allocator: &Allocator) -> (Bytes, Bytes) {
    let add = |(used, warm): (Bytes, Bytes), (u, w): (Bytes, Bytes)| (used + u, warm + w);
    on_host(allocator).map(|memory| memory.warm()).fold(Default::default(), add)
}
