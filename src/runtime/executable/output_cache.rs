//! Destinations ready to be used again.
//!
//! ```text
//!  Execute -> output (block + handle) -> the owner destroys it -> spare of that result -> next Execute's destination
//!                                                |                      ^
//!                                                `- in use: it is recycling until its last flight lands;
//!                                                   on a GPU the next Execute may have the block before that
//! ```
//!
//! Making a view costs the engine about as much as running a tiny program. But a program's output is such a view: once
//! its owner has destroyed it and nothing uses it, it can be donated to the next run as it is. Each result of a program
//! keeps spares on each device, if it is small: for a large one the view costs nothing beside the work, and its memory is
//! worth more.
//!
//! XLA:GPU puts the runs of a device into one stream. What only runs still use, the next run of the program may write at once,
//! as it does in XLA's own allocator: a step that is not donated its state then takes turns between two places however far
//! the caller runs ahead. Otherwise each step would find its arrays elsewhere, and the engine record its products anew for each (CUDA graphs).
//! The handle is not taken over: an error of the run before would cling to it. Should the next run be refused, the buffer takes
//! its block back; should it fail, the block is free when the device is done with all before it (`flight`). Copies and
//! transfers are in other streams, so what they use stays.
//!
//! The `PJRT_Buffer` itself is kept with it: it knows its place in the arena's residents, its shape and its program. It
//! refers to the spares and they to it, until they are cleared or closed.
//!
//! OutputCache are free memory to everybody else: whoever asks for statistics, or finds no room, clears them first, and while
//! somebody waits for room none is kept. A program that is waited for needs one of each result, whose block stays live.
//! One whose caller runs ahead needs as many as there are runs in the queue. Their blocks are retired from the moment that
//! the owner let go until they are written again, so that the arena's numbers are what they would be without spares.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    memory::Provenance,
    runtime::{
        allocator::core::Reclaim,
        buffer::{
            Buffer,
            pjrt_buffer::{CachedOutput, Recycle},
        },
        device_memory::Allocation,
        in_flight::InFlight,
    },
    units::Bytes,
};

/// Results up to this many bytes keep spares.
pub const LARGEST: usize = 64 << 10;

/// OutputCache of one result. The CPU engine lets 32 runs be under way, and says later than it might that one has ended.
const MOST: usize = 64;

/// What they may take together.
const MOST_BYTES: Bytes = Bytes::mib(1);

/// The spares of one program on one device, one place for each destination.
pub struct OutputCache {
    /// Whose waiting threads it makes room for.
    in_flight: Arc<InFlight>,
    places: Box<[Mutex<Vec<CachedOutput>>]>,
    /// Buffers that are recycling, where the next run may have their blocks before they land.
    recycling: Box<[Mutex<VecDeque<Arc<Buffer>>>]>,
    closed: AtomicBool,
}

impl OutputCache {
    /// Room for the spares of `destinations`; `in_order` says that the device does one run after another.
    pub fn new(destinations: usize, in_order: bool, in_flight: Arc<InFlight>) -> Arc<Self> {
        let places = (0..destinations).map(|_| Mutex::default()).collect();
        let recycling = (0..destinations).filter(|_| in_order).map(|_| Mutex::default()).collect();
        Arc::new(Self { in_flight, places, recycling, closed: AtomicBool::new(false) })
    }

    /// Whether a result of this size goes to `destination` when it is let go.
    pub fn takes(&self, destination: usize, bytes: usize) -> bool {
        destination < self.recycling.len() || destination < self.places.len() && bytes <= LARGEST
    }

    /// The spare of `destination` that came last, if there is one, for `maker` to write.
    pub fn take(&self, destination: usize, maker: Provenance) -> Option<CachedOutput> {
        let mut spare = self.places.get(destination)?.lock().pop()?;
        match spare.renew(maker) {
            Ok(()) => Some(spare),
            Err(error) => {
                log::error!("{error}");
                spare.discard();
                None
            }
        }
    }

    /// The block of the result in `destination` that was let go last, of those that runs still use, for `maker` to write after
    /// them. If there is no such run, the buffer must [take it back](Buffer::take_back).
    pub fn take_recycling(&self, destination: usize, maker: Provenance) -> Option<(Allocation, Arc<Buffer>)> {
        let place = self.recycling.get(destination)?;
        loop {
            // No lock is held while the engine destroys.
            let buffer = place.lock().pop_back()?;
            let left = buffer.state().take_while_executing();
            let Some((mut held, view)) = left else { continue };
            // SAFETY: the view is ours, and no program was donated it.
            unsafe { buffer.session.destroy(view) };
            match held.renew(maker) {
                Ok(_) => return Some((held, buffer)),
                Err(error) => {
                    log::error!("{error}");
                    buffer.put_back(held);
                    return None;
                }
            }
        }
    }

    /// Gives all spares back and takes no more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.clear();
    }
}

impl Recycle for OutputCache {
    fn has_early(&self, destination: usize) -> bool {
        destination < self.recycling.len()
    }

    fn offer(&self, destination: usize, buffer: Arc<Buffer>) {
        let Some(place) = self.recycling.get(destination) else { return };
        let mut place = place.lock();
        // Under the lock: who comes to close after this clears the place.
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        // Most that came before have landed, or were taken.
        while place.len() >= MOST || place.front().is_some_and(|first| !first.state().recycling) {
            place.pop_front();
        }
        place.push_back(buffer);
    }

    fn put(&self, destination: usize, mut spare: CachedOutput) -> std::result::Result<(), CachedOutput> {
        let Some(place) = self.places.get(destination) else { return Err(spare) };
        let mut place = place.lock();
        let others = place.len();
        let large = spare.held.size().get() > LARGEST as u64;
        let enough = large || others >= MOST || spare.held.size().get() * (others as u64 + 1) > MOST_BYTES.get();
        // Under the lock: who comes to wait or to close after this clears the place.
        if enough || self.closed.load(Ordering::Acquire) || self.in_flight.has_waiters() {
            return Err(spare);
        }
        if others > 0 && !spare.retired {
            spare.held.retire();
            spare.retired = true;
        }
        place.push(spare);
        Ok(())
    }
}

impl Reclaim for OutputCache {
    fn clear(&self) {
        for place in &self.places {
            // No lock is held while the engine destroys.
            let spares = std::mem::take(&mut *place.lock());
            spares.into_iter().for_each(CachedOutput::discard);
        }
        for place in &self.recycling {
            // They come home all the same.
            let recycling = std::mem::take(&mut *place.lock());
            drop(recycling);
        }
    }
}
