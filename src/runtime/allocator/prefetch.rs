//! Spilled arrays that come back before the launch that is expected to need them.

use std::{sync::Arc, time::Duration};

use crate::{
    error::{Code, Error},
    fork,
    memory::{Goal, next_use::NextUse},
    runtime::{
        allocator::{
            allocate::{allocate_at_once, footprint},
            core::Allocator,
            spill::{bring_back, make_room_by},
        },
        device_memory::DeviceMemory,
    },
    units::Bytes,
};

/// Arrays for so many of the next launches come back before them.
const AHEAD: u32 = 2;

/// Brings arrays back that the next launches are expected to need, the first of them first, while there is room or
/// arrays that are used later can go. How many bytes came. O(n log n) for n arrays in the tier.
#[cold]
pub fn prefetch(allocator: &Allocator, memory: &Arc<DeviceMemory>) -> Bytes {
    let Some(tier) = &memory.tier else { return Bytes::ZERO };
    let last = memory.runs().saturating_add(AHEAD);
    let mut order = fork::step(|| tier.waiting_by_use());
    order.retain(|&(next, _)| matches!(next, NextUse::At(step) if step <= last));
    let mut came = Bytes::ZERO;
    for (next, resident) in order {
        // A launch that waits for memory, for scratch as well, comes first.
        let Some(_turn) = allocator.turn_at_once() else { break };
        let room = |shape: &_, provenance| {
            let found = allocate_at_once(allocator, memory, shape, provenance);
            let goal = Goal::Hole(footprint(allocator, shape));
            if found.is_ok() || make_room_by(allocator, memory, Some(goal), |other| other > next).is_zero() {
                return found;
            }
            allocate_at_once(allocator, memory, shape, provenance)
        };
        match bring_back::<Error>(memory, &resident, None, room) {
            // It is used where it is, or came with a launch.
            Ok(Bytes::ZERO) => {}
            Ok(bytes) => {
                tier.record.prefetched.add(bytes, Duration::ZERO);
                came += bytes;
            }
            Err(error) if error.code == Code::ResourceExhausted => {
                log::debug!("{}: no more arrays come before they are needed: {error}", memory.name());
                break;
            }
            // The launch that needs it gets the error.
            Err(error) => log::debug!("{}: an array does not come before it is needed: {error}", memory.name()),
        }
    }
    came
}
