//! What the driver leaves to another crate: modules and their kernels, and NVIDIA's and AMD's other libraries.
//!
//! ```text
//!  register(Parts)      at load, before the first call of the driver
//!  Parts                which functions there are beside those of this crate, and what is to be told to them
//!  Work::Part           an operation of theirs in a stream; Task::Part: one in a graph
//!  State::parts         what they know, under the driver's lock
//! ```

use std::{any::Any, ffi::c_void, fmt, ops::Range, sync::Arc, sync::OnceLock};

use crate::{
    clock::{Clock, Point},
    ffi::KernelParameters,
    graph::Task,
    operation::Order,
    state::{Driver, State},
    status::Answer,
};

/// Where in time and on which GPU an operation is done.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The GPU.
    pub gpu: usize,
    /// The operation's place in its stream.
    pub point: Point,
    /// What has happened before it, and itself.
    pub clock: &'a Arc<Clock>,
}

/// An operation that this crate does not know.
pub trait Part: fmt::Debug + Send + Sync {
    /// Does it, on the thread of its stream. The lock is held, and may be let go of meanwhile.
    fn run(&self, driver: &mut Driver, turn: Turn<'_>);

    /// It is not done, since its GPU has seen an error.
    fn skip(&self, _driver: &mut Driver) {}

    /// Whether it can become a node of a graph: to the driver, a node of a kernel.
    fn is_node(&self) -> bool;

    /// The operation that does it in a stream of a GPU, where a graph is launched.
    ///
    /// # Errors
    /// Its memory is not there, or that GPU may not use it.
    fn order(self: Arc<Self>, driver: &Driver, gpu: usize) -> Answer<Order>;
}

/// What another crate adds.
#[derive(Debug)]
pub struct Parts {
    /// Its functions by name.
    pub symbol: fn(&str) -> Option<*const c_void>,
    /// What it knows at first.
    pub state: fn() -> Box<dyn Any + Send>,
    /// The context of a GPU is destroyed.
    pub context_gone: fn(&mut State, usize),
    /// Memory goes away, in the way that the last argument says.
    pub memory_goes: fn(&mut State, &Range<u64>, &str),
    /// All work ends: nobody comes any more to what operations wait for.
    pub cancel: fn(&mut State),
    /// What a node of a graph does that runs a kernel.
    pub kernel: fn(&Driver, KernelParameters) -> Answer<Task>,
}

static PARTS: OnceLock<Parts> = OnceLock::new();

/// Adds them. Only the first ones of a process count.
pub fn register(parts: Parts) {
    let _ = PARTS.set(parts);
}

/// Those that were added.
pub fn parts() -> Option<&'static Parts> {
    PARTS.get()
}

/// What they know.
#[derive(Debug)]
pub struct Known(Option<Box<dyn Any + Send>>);

impl Default for Known {
    fn default() -> Self {
        Self(parts().map(|parts| (parts.state)()))
    }
}

impl Known {
    /// As the type that [`Parts::state`] made.
    ///
    /// # Panics
    /// No parts were registered before the first call of the driver, or they know something else.
    #[must_use]
    pub fn get<T: 'static>(&self) -> &T {
        self.0.as_deref().and_then(|known| known.downcast_ref()).expect("what the registered parts know")
    }

    /// As [`Self::get`], to change it.
    ///
    /// # Panics
    /// As there.
    pub fn get_mut<T: 'static>(&mut self) -> &mut T {
        self.0.as_deref_mut().and_then(|known| known.downcast_mut()).expect("what the registered parts know")
    }
}
