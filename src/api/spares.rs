//! Destinations ready to be used again.
//!
//! ```text
//!  Execute -> output (block + handle) -> the owner destroys it -> spare of that result -> next Execute's destination
//! ```
//!
//! Making a view costs the engine about as much as running a tiny program. But a program's output is such a view: once
//! its owner has destroyed it, it can be donated to the next run as it is. Each result of a program keeps one spare on
//! each device, if it is small: for a large one the view costs nothing beside the work, and its memory is worth more.
//!
//! The `PJRT_Buffer` itself is kept with it: it knows its place in the arena's roster, its shape and its program. It
//! refers to the spares and they to it, until they are cleared or closed.
//!
//! Spares are free memory to everybody else: whoever asks for statistics, or finds no room, clears them first.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::{buffer::Buffer, device_memory::Held, state::Client};
use crate::{
    engine::{Raw, views},
    sys,
};

/// Results up to this many bytes keep a spare.
pub const LARGEST: usize = 64 << 10;

/// A block with a view of it that a program may be donated.
pub struct Spare {
    /// The block.
    pub held: Held,
    /// The engine's buffer over it.
    pub view: Raw<sys::PJRT_Buffer>,
    /// What its owner had: the next result in the block is this one again.
    pub shell: Arc<Buffer>,
}

impl Spare {
    /// Gives block and view back.
    pub fn discard(self, client: &Client) {
        if client.is_open() {
            // SAFETY: the view is ours and nothing uses it.
            unsafe { views::destroy(client.engine, self.view.0) };
        }
        drop(self.held);
    }
}

/// The spares of one program on one device, one place for each destination.
pub struct Spares {
    places: Box<[Mutex<Option<Spare>>]>,
    closed: AtomicBool,
}

impl Spares {
    /// Room for the spares of `destinations`.
    pub fn new(destinations: usize) -> Arc<Self> {
        Arc::new(Self { places: (0..destinations).map(|_| Mutex::new(None)).collect(), closed: AtomicBool::new(false) })
    }

    /// The spare of `destination`, if there is one.
    pub fn take(&self, destination: usize) -> Option<Spare> {
        self.places.get(destination)?.lock().take()
    }

    /// Keeps `spare` for the next run.
    ///
    /// # Errors
    /// Gives it back if there is one already, or no next run.
    pub fn put(&self, destination: usize, spare: Spare) -> Result<(), Spare> {
        let Some(place) = self.places.get(destination) else { return Err(spare) };
        let mut place = place.lock();
        if place.is_some() || self.closed.load(Ordering::Acquire) {
            return Err(spare);
        }
        *place = Some(spare);
        Ok(())
    }

    /// Gives all spares back.
    pub fn clear(&self, client: &Client) {
        for place in &self.places {
            let spare = place.lock().take();
            if let Some(spare) = spare {
                spare.discard(client);
            }
        }
    }

    /// Gives all spares back and takes no more.
    pub fn close(&self, client: &Client) {
        self.closed.store(true, Ordering::Release);
        self.clear(client);
    }
}

/// The spares of all programs of a client.
#[derive(Default)]
pub struct AllSpares(Mutex<Vec<Weak<Spares>>>);

impl AllSpares {
    /// Remembers the spares of one more program.
    pub fn add(&self, spares: &Arc<Spares>) {
        let mut all = self.0.lock();
        all.retain(|spares| spares.strong_count() > 0);
        all.push(Arc::downgrade(spares));
    }

    /// Gives the spares of every program back.
    pub fn clear(&self, client: &Client) {
        // No lock is held while the engine destroys.
        let all: Vec<Arc<Spares>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|spares| spares.clear(client));
    }
}

/// Where a buffer goes when its owner destroys it.
pub struct Nest {
    /// The spares of the program and device that it came from.
    pub spares: Arc<Spares>,
    /// The destination that it was.
    pub destination: usize,
}
