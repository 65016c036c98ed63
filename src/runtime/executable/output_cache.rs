//! Destinations ready to be used again.
//!
//! ```text
//!  Execute -> output (block + handle) -> the owner destroys it -> spare of that result -> next Execute's destination
//!                                                |                      ^
//!                                                `- in use: it is homing until its last flight lands;
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
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    engine::{Raw, views},
    error::Result,
    memory::Provenance,
    runtime::{
        buffer::{
            Body, Buffer,
            storage::Storage,
            usage::{Life, MoveBarrier, State, User},
        },
        device_memory::Allocation,
    },
    sys,
    units::Bytes,
};

/// Results up to this many bytes keep spares.
pub const LARGEST: usize = 64 << 10;

/// OutputCache of one result. The CPU engine lets 32 runs be under way, and says later than it might that one has ended.
const MOST: usize = 64;

/// What they may take together.
const MOST_BYTES: Bytes = Bytes::mib(1);

/// A block with a view of it that a program may be donated.
pub struct CachedOutput {
    /// The block.
    pub held: Allocation,
    /// The engine's buffer over it.
    pub view: Raw<sys::PJRT_Buffer>,
    /// What its owner had: the next result in the block is this one again.
    pub shell: Arc<Buffer>,
    /// Whether the arena knows that the owner let go.
    pub retired: bool,
}

impl CachedOutput {
    /// Waits for the next run, if there may be one; otherwise block and view go back. Only in calls from outside.
    pub fn keep(self) {
        let Some((spares, destination)) = self.shell.nest().map(|nest| (Arc::clone(&nest.spares), nest.destination))
        else {
            return self.discard();
        };
        if let Err(spare) = spares.put(destination, self) {
            spare.discard();
        }
    }

    /// Gives block and view back. Only in calls from outside.
    fn discard(self) {
        let client = &self.shell.client;
        if client.is_open() && !self.view.is_null() {
            // SAFETY: the view is ours and nothing uses it.
            unsafe { views::destroy(client.engine, self.view.0) };
        }
    }

    /// Makes the block one that `maker` is about to write.
    fn renew(&mut self, maker: Provenance) -> Result<()> {
        if !std::mem::take(&mut self.retired) {
            self.held.made_by(maker.origin, Some(maker.run));
        } else if self.held.renew(maker)? {
            self.held.home().residents.enter(self.held.block().id, &self.shell);
        }
        Ok(())
    }
}

/// The spares of one program on one device, one place for each destination.
pub struct OutputCache {
    places: Box<[Mutex<Vec<CachedOutput>>]>,
    /// Buffers that are homing, where the next run may have their blocks before they land.
    homing: Box<[Mutex<VecDeque<Arc<Buffer>>>]>,
    closed: AtomicBool,
}

impl OutputCache {
    /// Room for the spares of `destinations`; `in_order` says that the device does one run after another.
    pub fn new(destinations: usize, in_order: bool) -> Arc<Self> {
        let places = (0..destinations).map(|_| Mutex::default()).collect();
        let homing = (0..destinations).filter(|_| in_order).map(|_| Mutex::default()).collect();
        Arc::new(Self { places, homing, closed: AtomicBool::new(false) })
    }

    /// Whether a result of this size goes to `destination` when it is let go.
    pub fn takes(&self, destination: usize, bytes: usize) -> bool {
        destination < self.homing.len() || destination < self.places.len() && bytes <= LARGEST
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
    pub fn take_homing(&self, destination: usize, maker: Provenance) -> Option<(Allocation, Arc<Buffer>)> {
        let place = self.homing.get(destination)?;
        loop {
            // No lock is held while the engine destroys.
            let buffer = place.lock().pop_back()?;
            let left = buffer.state().leave_early();
            let Some((mut held, view)) = left else { continue };
            let client = &buffer.client;
            if client.is_open() && !view.is_null() {
                // SAFETY: the view is ours, and no program was donated it.
                unsafe { views::destroy(client.engine, view.0) };
            }
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

    /// Whether the next run may have the block of `destination` before it is home.
    fn has_early(&self, destination: usize) -> bool {
        destination < self.homing.len()
    }

    /// Notes a buffer that has begun to home.
    fn offer(&self, destination: usize, buffer: Arc<Buffer>) {
        let Some(place) = self.homing.get(destination) else { return };
        let mut place = place.lock();
        // Under the lock: who comes to close after this clears the place.
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        // Most that came before have landed, or were taken.
        while place.len() >= MOST || place.front().is_some_and(|first| !first.state().homing) {
            place.pop_front();
        }
        place.push_back(buffer);
    }

    /// Keeps `spare` for the next run.
    ///
    /// # Errors
    /// Gives it back if there are enough, or no next run, or if somebody waits for memory.
    fn put(&self, destination: usize, mut spare: CachedOutput) -> std::result::Result<(), CachedOutput> {
        let Some(place) = self.places.get(destination) else { return Err(spare) };
        let mut place = place.lock();
        let others = place.len();
        let large = spare.held.size().get() > LARGEST as u64;
        let enough = large || others >= MOST || spare.held.size().get() * (others as u64 + 1) > MOST_BYTES.get();
        // Under the lock: who comes to wait or to close after this clears the place.
        if enough || self.closed.load(Ordering::Acquire) || spare.shell.client.in_flight.has_waiters() {
            return Err(spare);
        }
        if others > 0 && !spare.retired {
            spare.held.retire();
            spare.retired = true;
        }
        place.push(spare);
        Ok(())
    }

    /// Gives all spares back.
    pub fn clear(&self) {
        for place in &self.places {
            // No lock is held while the engine destroys.
            let spares = std::mem::take(&mut *place.lock());
            spares.into_iter().for_each(CachedOutput::discard);
        }
        for place in &self.homing {
            // They come home all the same.
            let homing = std::mem::take(&mut *place.lock());
            drop(homing);
        }
    }

    /// Gives all spares back and takes no more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.clear();
    }
}

/// The spares of all programs of a client.
#[derive(Default)]
pub struct OutputCaches(Mutex<Vec<Weak<OutputCache>>>);

impl OutputCaches {
    /// Remembers the spares of one more program.
    pub fn add(&self, spares: &Arc<OutputCache>) {
        let mut all = self.0.lock();
        all.retain(|spares| spares.strong_count() > 0);
        all.push(Arc::downgrade(spares));
    }

    /// Gives the spares of every program back.
    pub fn clear(&self) {
        // No lock is held while the engine destroys.
        let all: Vec<Arc<OutputCache>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|spares| spares.clear());
    }
}

/// Where a buffer goes when its owner destroys it.
pub struct CacheSlot {
    /// The spares of the program and device that it came from.
    pub spares: Arc<OutputCache>,
    /// The destination that it was.
    pub destination: usize,
}

/// A buffer that its owner destroyed while it was in use, now that nothing uses it.
pub struct Recycled {
    spare: CachedOutput,
    /// Whether no error clings to the handle.
    whole: bool,
}

impl Recycled {
    /// Makes it a spare, if it is fit for that and there may be a next run. Only in calls from outside.
    pub fn keep(self) {
        if self.whole && !self.spare.view.is_null() { self.spare.keep() } else { self.spare.discard() }
    }

    /// Gives the block back, on any thread. The handle, if there still is one, is the caller's to destroy.
    pub fn free(self) -> Option<Raw<sys::PJRT_Buffer>> {
        Some(self.spare.view).filter(|view| !view.is_null())
    }
}

impl State<Body> {
    /// Takes block and handle of a buffer that its owner destroys, if they are fit to be written again: nobody uses the
    /// bytes, nobody was promised that their address stays, and no error clings to the handle.
    pub fn spare(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if self.stay().is_some() || self.handle().is_null() || self.held().is_none() {
            return None;
        }
        self.end(Life::Deleted);
        self.take_out()
    }

    /// Takes the block of a buffer that is homing while executions on its device, and nothing else, still use it; and the handle,
    /// which is the caller's to destroy.
    fn leave_early(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if !self.homing || !self.is_only_run() {
            return None;
        }
        let taken = self.take_out()?;
        self.homing = false;
        Some(taken)
    }

    /// As [`Self::spare`], of one that programs still use: retires the block, and leaves it and the handle to the last of
    /// them. Whether it did.
    pub fn go_home(&mut self) -> bool {
        if self.stay() != Some(MoveBarrier::InUse) || self.is_copied() || self.handle().is_null() {
            return false;
        }
        let Some(held) = self.held() else { return false };
        held.retire();
        self.end(Life::Deleted);
        self.homing = true;
        true
    }

    /// Takes the handle of a buffer that is homing, because its home goes first.
    pub fn turn_away(&mut self) -> Option<Raw<sys::PJRT_Buffer>> {
        let handle = self.handle();
        (self.homing && !handle.is_null()).then(|| {
            self.set_handle(Raw::NULL);
            handle
        })
    }

    fn take_out(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        let view = self.handle();
        self.set_handle(Raw::NULL);
        std::mem::replace(&mut self.storage, Storage::Gone).into_held().map(|held| (held, view))
    }
}

impl Buffer {
    /// Lets the next run have the block of a buffer that is homing, where the engine does one run after another.
    pub fn offer(self: Arc<Self>) {
        if let Some(nest) = self.nest()
            && nest.spares.has_early(nest.destination)
        {
            let (spares, destination) = (Arc::clone(&nest.spares), nest.destination);
            spares.offer(destination, self);
        }
    }

    /// Takes the block back that [`OutputCache::take_homing`] gave away, for those who use it still.
    pub fn take_back(&self, held: Allocation) {
        held.retire();
        self.put_back(held);
    }

    fn put_back(&self, held: Allocation) {
        let freed = {
            let mut state = self.state();
            state.storage = Storage::Arena(held);
            state.settle()
        };
        drop(freed);
    }

    /// Ends a flight's use of the bytes, on any thread; `wrote` says that the flight wrote them, and well. What is to be
    /// used again, or to be destroyed, where this was the last use, is the caller's.
    pub fn arrive(self: Arc<Self>, wrote: bool, user: User) -> Option<Recycled> {
        let mut state = self.state();
        if wrote {
            state.mark_whole();
        }
        state.end_use(user);
        if state.homing && state.is_free() {
            let whole = state.is_whole();
            let (held, view) = state.take_out()?;
            state.homing = false;
            drop(state);
            return Some(Recycled { spare: CachedOutput { held, view, shell: self, retired: true }, whole });
        }
        let freed = state.settle();
        drop(state);
        // The arena has a lock of its own: free after giving up ours.
        drop(freed);
        None
    }
}
