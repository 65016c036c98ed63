//! Outputs that are ready to be destinations again.
//!
//! ```text
//!  Execute -> output (block + handle) -> the owner destroys it -> cache of that result -> next Execute's destination
//!                                                |                      ^
//!                                                `- in use: after its last operation is reaped
//! ```
//!
//! Making a view costs the engine about as much as running a tiny program. But a program's output is such a view:
//! once its owner has destroyed it and nothing uses it, it can be donated to the next execution as it is. The cache
//! keeps such outputs for each result of a program on each device, if the result is small: for a large one the view
//! costs nothing compared with the work, and its memory is worth more.
//!
//! A large result that programs still use is the place of a later one before that: see
//! [`crate::runtime::device_memory::dropped`].
//!
//! The `PJRT_Buffer` itself is kept with block and handle: it has its entry among the arena's residents, its shape
//! and its program. It refers to the cache and the cache to it, until the cache is cleared or closed.
//!
//! Cached outputs count as free memory for every other use: a caller that asks for statistics, and an allocation that
//! finds no room, clear the caches first, and while an allocation waits the cache keeps nothing. A caller that waits
//! for each execution needs one output of each result, whose block stays live. A caller that runs ahead needs as many
//! as there are executions in the queue. Their blocks are retired from the owner's destruction of the buffer until
//! they are written again, so that the arena's numbers are what they would be without a cache.

use std::sync::Arc;

use crate::{
    memory::Provenance,
    runtime::{
        allocator::kept::Kept,
        buffer::{
            Buffer, VacantBuffer, Vacated,
            pjrt_buffer::{LARGEST_CACHED, Recycle},
        },
        in_flight::InFlight,
    },
    units::Bytes,
};

/// Outputs of one result at most. The CPU engine lets 32 executions be under way, and reports the end of one late.
const MOST: usize = 64;

/// Bytes of the outputs of one result at most.
const MOST_BYTES: Bytes = Bytes::mib(1);

/// The cached outputs of one program on one device, a list for each destination.
pub struct OutputCache {
    /// Says whether an allocation waits for memory.
    in_flight: Arc<InFlight>,
    places: Kept<Vec<VacantBuffer>>,
}

impl OutputCache {
    /// An empty cache for `destinations`.
    pub fn new(destinations: usize, in_flight: Arc<InFlight>) -> Arc<Self> {
        Arc::new(Self { in_flight, places: Kept::new(destinations) })
    }

    /// Whether a result of this size is cached for `destination` when its owner destroys it.
    pub fn takes(&self, destination: usize, bytes: usize) -> bool {
        destination < self.places.places() && bytes <= LARGEST_CACHED
    }

    /// The output of `destination` that was cached last, if there is one, for the execution in `provenance` to write.
    #[inline]
    pub fn take(&self, destination: usize, provenance: Provenance) -> Option<VacantBuffer> {
        let mut buffer = self.places.list(destination)?.pop()?;
        match buffer.renew(provenance) {
            Ok(()) => Some(buffer),
            Err(error) => {
                log::error!("{error}");
                None
            }
        }
    }

    /// Frees everything that the cache keeps.
    pub fn clear(&self) {
        self.places.clear();
    }

    /// Clears the cache and keeps nothing more.
    pub fn close(&self) {
        self.places.close();
    }
}

impl Recycle for OutputCache {
    fn put(&self, destination: usize, buffer: Arc<Buffer>, vacated: Vacated) {
        let mut buffer = VacantBuffer::of(buffer, vacated);
        if let Some(mut place) = self.places.open(destination, || self.in_flight.has_waiters()) {
            let others = place.len();
            let bytes = buffer.bytes();
            if others < MOST && bytes * (others as u64 + 1) <= MOST_BYTES.get() {
                if others > 0 {
                    buffer.retire();
                }
                place.push(buffer);
                return;
            }
        }
        // No lock is held while the engine destroys handles.
        drop(buffer);
    }
}
