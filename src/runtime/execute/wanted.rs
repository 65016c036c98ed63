//! The arguments of a launch that is about to begin, where arrays are spilled: they come back, and stay.
//!
//! ```text
//!  prepare   want        from here on nobody spills them
//!            bring back  those that are in the tier, each into a new block; others are spilled for it
//!            ...         destinations and the rest
//!  acquire   in use      now the use keeps them
//!  collect   in flight   the want ends: a launch that finds no room sees this one as wanting, or in flight
//! ```
//!
//! An argument that an outsider or a transfer uses in the tier stays there, and the program reads it there. One that
//! the program may consume is copied first then.
//!
//! A launch that finds no room for its arguments wants nothing while it waits for its turn (`launch.rs`), so that of
//! two launches that do not fit together one goes after the other.

use std::{
    ptr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;

use crate::{
    memory::{Execution, Needs, OriginId, Provenance, next_use::UseKey},
    report::stacks::StackId,
    runtime::{
        allocator::{
            allocate::{allocate, footprint, make_room_for_all},
            call_needs::CallNeeds,
            core::Allocator,
            prospects::can_be_had,
            reclaim::{NoRoom, SearchEnd, WaitPolicy},
            spill,
        },
        buffer::BufferRef,
        device_memory::{
            DeviceMemory, Resident, Tier,
            origins::ORIGINS,
            spill_record::{Launched, Used},
        },
        execute::{call::Call, unplaced::Unplaced},
        shape::Shape,
    },
    units::Bytes,
};

/// A launch that waits so long for its arguments says so.
const SLOW: Duration = Duration::from_secs(1);

/// The arguments that one device's part of a launch wants. Dropped, it wants them no more.
pub struct Wanted<'a> {
    allocator: &'a Allocator,
    buffers: Vec<BufferRef<'a>>,
}

impl<'a> Wanted<'a> {
    /// Wants the arguments of the device with this number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a NULL.
    pub fn new(call: &Call<'a>, index: usize) -> Result<Self, Unplaced> {
        let allocator = &call.loaded.client.allocator;
        allocator.wanting.fetch_add(1, Ordering::Relaxed);
        let mut wanted = Self { allocator, buffers: Vec::with_capacity(call.args.num_args) };
        for number in 0..call.args.num_args {
            let buffer = call.argument(index, number)?;
            buffer.state().wanted += 1;
            wanted.buffers.push(buffer);
        }
        Ok(wanted)
    }

    /// Numbers the launch, and notes it for what the past tells. Once for each launch, however often it tries.
    pub fn note(&self, call: &Call<'a>, (memory, tier): (&DeviceMemory, &Tier), stack: StackId) -> Execution {
        let program = &call.loaded.program;
        let donated = call.donated().unwrap_or_default();
        let arguments = self.buffers.iter().enumerate().filter_map(|(number, buffer)| {
            let bytes = Bytes::new(buffer.shape.size as u64);
            Some(Used { key: buffer.use_key()?, bytes, donated: donated.binary_search(&number).is_ok() })
        });
        let made = |(origin, shape): (&OriginId, &Arc<Shape>)| Used {
            key: UseKey::Made(ORIGINS.made_by(*origin, stack), 0),
            bytes: Bytes::new(shape.size as u64),
            donated: false,
        };
        let launch = Launched {
            step: 0,
            program: Arc::from(&*program.name),
            arguments: arguments.collect(),
            results: program.origin_ids.iter().zip(&program.results).map(made).collect(),
        };
        tier.record.launched(ptr::from_ref(call.loaded).addr() as u64, launch, || memory.begin_run())
    }

    /// Brings those back that are in the tier of `memory`, for the launch of this `step`. Room is made for all of them
    /// together, and none where the `call` can never have what it needs.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, CANCELLED, or the engine's; each array is where it was, or back.
    pub fn bring_back(
        &self,
        memory: &Arc<DeviceMemory>,
        step: u32,
        wait: WaitPolicy,
        call: &dyn Fn() -> CallNeeds,
    ) -> Result<(), Unplaced> {
        let Some(tier) = &memory.tier else { return Ok(()) };
        // An array of another memory of the device has no tier.
        let mut waiting: Vec<_> =
            self.buffers.iter().filter(|buffer| buffer.state().storage.is_in(&tier.memory)).collect();
        // Each once.
        let mut seen = FxHashSet::default();
        waiting.retain(|buffer| seen.insert(ptr::from_ref(&***buffer)));
        if waiting.iter().any(|buffer| buffer.waits().is_some()) && !can_be_had(self.allocator, memory, call()) {
            let waiting = waiting.iter().filter_map(|buffer| buffer.waits());
            return Err(no_room(memory, never(self.allocator, memory, waiting, call())));
        }
        let shapes = waiting.iter().filter(|buffer| buffer.waits().is_some()).map(|buffer| &*buffer.shape);
        make_room_for_all(self.allocator, memory, shapes, wait, call)?;
        let (began, mut told) = (Instant::now(), Duration::ZERO);
        for (number, buffer) in waiting.iter().enumerate() {
            if began.elapsed() - told >= SLOW {
                told = began.elapsed();
                let (name, of) = (memory.name(), waiting.len());
                log::info!("a launch waits on {name} for its arguments: {number} of {of} came back in {told:.1?}");
            }
            let resident: Arc<dyn Resident> = buffer.share();
            spill::bring_back(memory, &resident, Some(step), |shape, provenance| {
                allocate(self.allocator, memory, (shape, provenance), wait, call)
                    .map_err(|shortage| no_room(memory, shortage))
            })?;
        }
        Ok(())
    }
}

/// An argument found no room: what the call wants is told with the others that wait.
#[cold]
fn no_room(memory: &Arc<DeviceMemory>, mut shortage: NoRoom) -> Unplaced {
    shortage.call.needs = shortage.call.all();
    Unplaced::NoRoom(Arc::clone(memory), shortage)
}

/// What a `call` that can never be had is told before anything comes back: the first of the arguments that wait for
/// which there is no room as things are; or the last, because the rest of the call needs what room there is.
#[cold]
fn never(
    allocator: &Allocator,
    memory: &DeviceMemory,
    waiting: impl Iterator<Item = (Arc<Shape>, Provenance)>,
    call: CallNeeds,
) -> NoRoom {
    let (mut together, mut provenance, mut size) = (Needs::default(), Provenance::default(), Bytes::ZERO);
    for (shape, of) in waiting {
        (provenance, size) = (of, footprint(allocator, &shape));
        together.arrays.push(size);
        if !memory.would_fit(&together, &|_| false, None) {
            break;
        }
    }
    NoRoom { found: memory.exhaustion(size, None), provenance, call: Box::new(call), end: SearchEnd::Never }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        for buffer in &self.buffers {
            let mut state = buffer.state();
            state.wanted = state.wanted.saturating_sub(1);
        }
        self.allocator.wanting.fetch_sub(1, Ordering::Relaxed);
    }
}
