//! Programs that call back into the host: they are done before Execute returns.
//!
//! ```text
//!  Execute --> engine enqueues --> [wait for every device] --> outputs are defined, or Execute returns the error
//!                 |                       ^
//!                 a thread of the engine  |
//!                 calls Python  ----------+   which may call pjrt-arena: the thread that waits holds no lock
//! ```
//!
//! jaxlib asks its own runtime for synchronous execution of such programs; the C API has no field for that, and the
//! engine runs all but the smallest programs on threads of its own. Without the wait an error in a callback is lost,
//! and a callback of one program may run after the next program's.
//!
//! An allocation waits less long for memory meanwhile (`in_flight/deadline.rs`), because the thread that waits may
//! run such a callback. Such a program is never run a second time: what its callbacks did cannot be undone.

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;

use crate::{
    engine::{EngineError, EngineEvent},
    handlers::python,
    runtime::client::Client,
};

/// An execution of a program that calls back into the host, from Execute until the program is done.
pub struct CallbackRun(Arc<Client>);

impl CallbackRun {
    /// Begins one.
    pub fn begin(client: &Arc<Client>) -> Self {
        client.allocator.callbacks_under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(client))
    }
}

impl Drop for CallbackRun {
    fn drop(&mut self) {
        self.0.allocator.callbacks_under_way.fetch_sub(1, Ordering::Relaxed);
        // Its callbacks may have failed because the interpreter is ending.
        python::stop_if_ending();
    }
}

/// Waits for a program to end on every device, on those after a failed one too: until then the engine reads the
/// arguments and writes the results.
///
/// # Errors
/// That of the first device that failed.
pub fn wait(events: &[Option<EngineEvent>]) -> Result<(), EngineError> {
    let outcomes: SmallVec<[Result<(), EngineError>; 1]> = events.iter().flatten().map(EngineEvent::wait).collect();
    outcomes.into_iter().collect()
}
