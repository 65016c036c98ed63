//! What every allocation of a client shares.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    config::{Compact, Settings, Spill},
    engine::{Session, views::ViewKind},
    error::Result,
    memory::{
        Strategy,
        idle::{Needed, WORTH_WATCHING},
    },
    runtime::{
        allocator::{
            output_cache::OutputCache,
            trimmer::{TrimInterval, Trimmer},
        },
        device_memory::DeviceMemory,
        in_flight::{
            InFlight,
            deadline::{Deadline, cancelled},
        },
    },
};

/// Writes a report of exhausted memory to a file.
pub type OnExhausted = fn(&std::path::Path);

/// The allocator of one client.
pub struct Allocator {
    /// The engine's client.
    pub session: &'static Session,
    /// The operations under way.
    pub in_flight: Arc<InFlight>,
    /// The own memories of its devices.
    pub memories: Vec<Arc<DeviceMemory>>,
    /// When live buffers are moved.
    pub compaction: Compact,
    /// Whether arrays take the space of a TPU's tiles.
    pub counts_tiles: bool,
    /// Programs with host callbacks that are under way.
    pub callbacks_under_way: AtomicI64,
    /// Trims memory that is not used any more.
    pub trimmer: Trimmer,
    /// The most that arrays and scratch needed at once.
    pub needed: Needed,
    /// What was decided when the client was created.
    pub settings: Arc<Settings>,
    /// Called when an allocation fails and the settings name a file for a report.
    pub on_exhausted: OnExhausted,
    /// Where arrays go when memory is full: [`Spill::Off`] without a tier.
    pub spill: Spill,
    /// Launches, one for each device, that want their arguments to stay where they are (`runtime/execute/wanted.rs`).
    pub wanting: AtomicUsize,
    /// Of the launch that waits for memory while it holds some.
    turn: Mutex<()>,
    caches: Mutex<Vec<Weak<OutputCache>>>,
}

impl Allocator {
    /// An allocator of `memories`.
    pub fn new(
        session: &'static Session,
        settings: Arc<Settings>,
        memories: Vec<Arc<DeviceMemory>>,
        on_exhausted: OnExhausted,
    ) -> Self {
        Self {
            session,
            in_flight: Arc::default(),
            spill: if memories.iter().any(|memory| memory.tier.is_some()) {
                settings.spill.value.clone()
            } else {
                Spill::Off
            },
            wanting: AtomicUsize::new(0),
            memories,
            compaction: settings.compaction(),
            counts_tiles: settings.counts_tiles(),
            callbacks_under_way: AtomicI64::new(0),
            trimmer: Trimmer::default(),
            needed: Needed::default(),
            settings,
            on_exhausted,
            turn: Mutex::default(),
            caches: Mutex::default(),
        }
    }

    /// Whether small arrays are kept for later ones. Memory that the platform strategy frees goes back to the device at
    /// once; and with compaction before each allocation, a kept array would save the allocation.
    pub fn keeps(settings: &Settings) -> bool {
        settings.strategy.value != Strategy::Platform && settings.compaction() != Compact::Always
    }

    /// Whether live buffers are moved when there is no room.
    pub fn compacts(&self) -> bool {
        self.compaction != Compact::Off
    }

    /// Whether a program with host callbacks is under way: one of its callbacks may wait for the present thread.
    pub fn runs_callbacks(&self) -> bool {
        self.callbacks_under_way.load(Ordering::Relaxed) != 0
    }

    /// How long a call of this client may wait for memory from now on.
    pub fn deadline(&self) -> Deadline<'_> {
        self.in_flight.deadline(&self.callbacks_under_way, self.session.orders_executions)
    }

    /// The right of [`Self::turn`], if nobody has it: to take memory that a launch may wait for.
    pub fn turn_at_once(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// The right to wait for memory while holding some, which one launch has at a time: two might wait for each other.
    /// `None` if no launch has given it up before the deadline, which is put off while arrays are moved for others.
    ///
    /// # Errors
    /// CANCELLED if a signal ended the wait.
    #[cold]
    pub fn turn(&self, program: &str) -> Result<Option<MutexGuard<'_, ()>>> {
        let deadline = self.deadline().telling(|waited| {
            log::info!("a launch of {program} waits for its turn to wait for memory, for {waited:.1?} so far");
        });
        while !deadline.is_over() {
            let since = Instant::now();
            if let Some(turn) = self.turn.try_lock_for(deadline.left()) {
                return Ok(Some(turn));
            }
            deadline.look_for_signals();
            if self.memories.iter().any(|memory| memory.moves.are_under_way()) {
                deadline.pause(since.elapsed());
            }
        }
        match deadline.interrupted() {
            Some(after) => Err(cancelled(after, "Another program waited for memory, which this one waited for.")),
            None => Ok(None),
        }
    }

    /// Registers a cache, which [`Self::clear_caches`] clears.
    pub fn add_cache(&self, cache: Weak<OutputCache>) {
        let mut caches = self.caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(cache);
    }

    /// Clears every cache.
    pub fn clear_caches(&self) {
        // No lock is held while the engine destroys handles.
        let caches: Vec<Arc<OutputCache>> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        caches.iter().for_each(|cache| cache.clear());
    }

    /// Reaps every operation that is done and clears the caches, so that free memory counts as free.
    pub fn drain(&self) {
        self.in_flight.reap_all();
        self.clear_caches();
    }

    /// Starts the trimmer's thread, once this memory is large enough for it.
    #[cold]
    pub fn watch(&self, memory: &DeviceMemory) {
        // The system cannot take a GPU's memory back, and preallocated memory is to keep other processes away.
        let is_host = self.session.view_kind == ViewKind::Host;
        if is_host && memory.used() >= WORTH_WATCHING {
            self.wake_trimmer();
        }
    }

    /// Starts the trimmer's thread.
    pub fn wake_trimmer(&self) {
        // Of the host's memory that is pinned for a GPU nothing goes back page by page.
        let tiers = self.memories.iter().filter_map(|memory| memory.tier.as_ref()).map(|tier| &tier.memory);
        let all = self.memories.iter().chain(tiers.filter(|memory| memory.on_host));
        self.trimmer.wake(all, &self.in_flight, TrimInterval::default());
    }
}
