//! What is under way in the engine, and what it keeps alive.
//!
//! ```text
//!  launch ---- engine runs ---- completion event ---- next call into us
//!                                 |                     |
//!                                 buffers land:         graves are opened:
//!                                 blocks given up       handles that the engine consumed
//!                                 meanwhile are free    are destroyed, contexts too
//! ```
//!
//! The completion callback runs on a thread of the engine, so it only touches memory of ours. Destroying a handle that
//! a program was donated blocks until that program is done (trap T3), inside the callback for ever; such handles wait
//! in the [`Graveyard`] for the next call from outside.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    buffer::{Buffer, Held},
    context::Context,
};
use crate::{
    engine::{Engine, EngineEvent, Raw, views},
    sys,
};

/// Handles of the engine that a program consumed: donated, but still to be destroyed.
pub type Consumed = SmallVec<[Raw<sys::PJRT_Buffer>; 4]>;

/// One execution or transfer on one device.
pub struct Flight {
    done: AtomicBool,
    cargo: Mutex<Cargo>,
}

#[derive(Default)]
struct Cargo {
    consumed: Consumed,
    context: Option<Arc<Context>>,
}

/// Watches over an execution or transfer that is not done yet.
///
/// The buffers must have been taken up with [`Buffer::take_up`]; they land when `event` happens, and `leftovers` (blocks
/// that no buffer took) are free then. `consumed` and `context` are destroyed by a later call from outside.
pub fn launch(
    graveyard: &Graveyard,
    event: &EngineEvent,
    buffers: Vec<Arc<Buffer>>,
    leftovers: Vec<Held>,
    consumed: Consumed,
    context: Option<Arc<Context>>,
) {
    let buried = !consumed.is_empty() || context.is_some();
    let flight = Arc::new(Flight { done: AtomicBool::new(false), cargo: Mutex::new(Cargo { consumed, context }) });
    if buried {
        graveyard.bury(Grave::Flight(Arc::clone(&flight)));
    }
    event.on_ready(move || {
        flight.done.store(true, Ordering::Release);
        drop(leftovers);
        for buffer in buffers {
            buffer.land();
        }
    });
}

/// Something that may be destroyed once the engine is done with it.
pub enum Grave {
    /// What a flight consumed.
    Flight(Arc<Flight>),
    /// A buffer whose handle the engine consumed and whose owner is gone.
    Buffer(Arc<Buffer>),
}

impl Grave {
    fn is_ripe(&self) -> bool {
        match self {
            Self::Flight(flight) => flight.done.load(Ordering::Acquire),
            Self::Buffer(buffer) => buffer.is_at_rest(),
        }
    }

    /// # Safety
    /// The engine's client must be alive.
    unsafe fn open(self, engine: &'static Engine) {
        match self {
            Self::Flight(flight) => {
                let cargo = mem::take(&mut *flight.cargo.lock());
                for handle in cargo.consumed {
                    // SAFETY: the flight owned the handle; nobody else destroys it.
                    unsafe { views::destroy(engine, handle.0) };
                }
                drop(cargo.context);
            }
            Self::Buffer(buffer) => buffer.destroy_handle(),
        }
    }
}

/// Where handles wait until destroying them cannot block.
#[derive(Default)]
pub struct Graveyard {
    graves: Mutex<Vec<Grave>>,
    count: AtomicUsize,
}

impl Graveyard {
    /// Adds a grave.
    pub fn bury(&self, grave: Grave) {
        let mut graves = self.graves.lock();
        graves.push(grave);
        self.count.store(graves.len(), Ordering::Release);
    }

    /// Destroys what is ripe. One load when there is nothing.
    pub fn tend(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.clear(engine, Grave::is_ripe);
        }
    }

    /// Destroys everything, waiting for what still runs.
    pub fn empty(&self, engine: &'static Engine) {
        self.clear(engine, |_| true);
    }

    fn clear(&self, engine: &'static Engine, mut ripe: impl FnMut(&Grave) -> bool) {
        let mut graves = self.graves.lock();
        let open: SmallVec<[Grave; 8]> = graves.extract_if(.., |grave| ripe(grave)).collect();
        self.count.store(graves.len(), Ordering::Release);
        drop(graves);
        for grave in open {
            // SAFETY: the graveyard belongs to a client, which tends it only while the engine's client lives.
            unsafe { grave.open(engine) };
        }
    }
}
