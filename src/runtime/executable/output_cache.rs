//! Outputs that are ready to be destinations again.
//!
//! ```text
//!  Execute -> output (block + handle) -> the owner destroys it -> cache of that result -> next Execute's destination
//!                                                |                      ^
//!                                                `- in use: it is recycling until its last operation is reaped;
//!                                                   on a GPU the next Execute may have the block before that
//! ```
//!
//! Making a view costs the engine about as much as running a tiny program. But a program's output is such a view:
//! once its owner has destroyed it and nothing uses it, it can be donated to the next execution as it is. The cache
//! keeps such outputs for each result of a program on each device, if the result is small: for a large one the view
//! costs nothing compared with the work, and its memory is worth more.
//!
//! XLA:GPU puts the executions of a device into one stream. The next execution of the program may write at once to a
//! block that only executions still use, as it does in XLA's own allocator: a step that is not donated its state then
//! alternates between two addresses however far the caller runs ahead. Otherwise each step would find its arrays at
//! other addresses, and the engine would record its kernels anew for each (CUDA graphs). The handle is not reused: it
//! could hold an error of the execution before. If the next execution is refused, the buffer takes its block back; if
//! it fails, the block is free when the device is done with all executions before it (`in_flight`). Copies and
//! transfers are in other streams, so a block that they use is not reused.
//!
//! The `PJRT_Buffer` itself is kept with block and handle: it has its entry among the arena's residents, its shape
//! and its program. It refers to the cache and the cache to it, until the cache is cleared or closed.
//!
//! Cached outputs count as free memory for every other use: a caller that asks for statistics, and an allocation that
//! finds no room, clear the caches first, and while an allocation waits the cache keeps nothing. A caller that waits
//! for each execution needs one output of each result, whose block stays live. A caller that runs ahead needs as many
//! as there are executions in the queue. Their blocks are retired from the owner's destruction of the buffer until
//! they are written again, so that the arena's numbers are what they would be without a cache.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    memory::Provenance,
    runtime::{
        allocator::core::Reclaim,
        buffer::{
            Buffer,
            pjrt_buffer::{CachedOutput, Recycle},
        },
        device_memory::Allocation,
        executable::kept::Kept,
        in_flight::InFlight,
    },
    units::Bytes,
};

/// Results up to this many bytes are cached.
pub const LARGEST: usize = 64 << 10;

/// Outputs of one result at most. The CPU engine lets 32 executions be under way, and reports the end of one late.
const MOST: usize = 64;

/// Bytes of the outputs of one result at most.
const MOST_BYTES: Bytes = Bytes::mib(1);

/// The cached outputs of one program on one device, a list for each destination.
pub struct OutputCache {
    /// Says whether an allocation waits for memory.
    in_flight: Arc<InFlight>,
    places: Kept<Vec<CachedOutput>>,
    /// Buffers that are recycling, where the next execution may have their blocks before they are free.
    recycling: Kept<VecDeque<Arc<Buffer>>>,
}

impl OutputCache {
    /// An empty cache for `destinations`; `in_order` says that the device does one execution after another.
    pub fn new(destinations: usize, in_order: bool, in_flight: Arc<InFlight>) -> Arc<Self> {
        let (places, recycling) = (Kept::new(destinations), Kept::new(if in_order { destinations } else { 0 }));
        Arc::new(Self { in_flight, places, recycling })
    }

    /// Whether a result of this size is cached for `destination` when its owner destroys it.
    pub fn takes(&self, destination: usize, bytes: usize) -> bool {
        destination < self.recycling.places() || destination < self.places.places() && bytes <= LARGEST
    }

    /// The output of `destination` that was cached last, if there is one, for the execution in `provenance` to write.
    #[inline]
    pub fn take(&self, destination: usize, provenance: Provenance) -> Option<CachedOutput> {
        let mut output = self.places.list(destination)?.pop()?;
        match output.renew(provenance) {
            Ok(()) => Some(output),
            Err(error) => {
                log::error!("{error}");
                None
            }
        }
    }

    /// The block of the result in `destination` whose owner destroyed it last, of those that executions still use,
    /// for the execution in `provenance` to write after them. If there is no such execution after all, the buffer
    /// must [take it back](Buffer::take_back).
    pub fn take_recycling(&self, destination: usize, provenance: Provenance) -> Option<(Allocation, Arc<Buffer>)> {
        loop {
            // No lock is held while the engine destroys handles.
            let buffer = self.recycling.list(destination)?.pop_back()?;
            let left = buffer.state().take_while_executing();
            let Some((view, mut allocation)) = left else { continue };
            drop(view);
            match allocation.renew(provenance) {
                Ok(_) => return Some((allocation, buffer)),
                Err(error) => {
                    log::error!("{error}");
                    buffer.put_back(allocation);
                    return None;
                }
            }
        }
    }

    /// Clears the cache and keeps nothing more.
    pub fn close(&self) {
        self.places.close();
        self.recycling.close();
    }
}

impl Recycle for OutputCache {
    fn reuses_early(&self, destination: usize) -> bool {
        destination < self.recycling.places()
    }

    fn offer(&self, destination: usize, buffer: Arc<Buffer>) {
        let Some(mut place) = self.recycling.open(destination, || false) else { return };
        // Most buffers that came before are free, or were taken.
        while place.len() >= MOST || place.front().is_some_and(|first| !first.state().recycling) {
            place.pop_front();
        }
        place.push_back(buffer);
    }

    fn put(&self, destination: usize, mut output: CachedOutput) {
        if let Some(mut place) = self.places.open(destination, || self.in_flight.has_waiters()) {
            let others = place.len();
            let bytes = output.allocation.size().get();
            let enough = bytes > LARGEST as u64 || others >= MOST || bytes * (others as u64 + 1) > MOST_BYTES.get();
            if !enough {
                if others > 0 && !output.retired {
                    output.allocation.retire();
                    output.retired = true;
                }
                place.push(output);
                return;
            }
        }
        // No lock is held while the engine destroys handles.
        drop(output);
    }
}

impl Reclaim for OutputCache {
    fn clear(&self) {
        self.places.clear();
        // Their last use still ends their recycling.
        self.recycling.clear();
    }
}
