//! Alias buffers whose contents are to come: which buffer gets the memory of the one that fulfils it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::runtime::buffer::{Buffer, DonationHold, storage::Storage};

/// The alias buffers of a client.
#[derive(Default)]
pub struct Aliases {
    /// Those that wait, by the address of the engine's promise.
    waiting: Mutex<FxHashMap<usize, Weak<Buffer>>>,
    /// Memory that results of programs lie in which were donated an alias before it was fulfilled. No buffer is known
    /// to have it, so it stays until the client ends.
    kept: Mutex<Vec<Storage>>,
}

impl Aliases {
    /// Notes that `alias` waits for what fulfils `promise`.
    pub fn wait(&self, promise: usize, alias: &Arc<Buffer>) {
        self.waiting.lock().insert(promise, Arc::downgrade(alias));
    }

    /// The promise is kept, by the buffer that was `taken`: the alias, if something still refers to it, has the memory
    /// from here on.
    pub fn fulfil(&self, promise: usize, taken: Option<DonationHold<'_>>) {
        let alias = self.waiting.lock().remove(&promise).and_then(|alias| alias.upgrade());
        match (taken, alias) {
            (Some(taken), Some(alias)) => match taken.consumed(&alias) {
                // The result that lies there counts as many bytes.
                None | Some(Storage::Engine(_)) => {}
                Some(memory) => self.kept.lock().push(memory),
            },
            // Neither a caller nor an operation under way has the alias, so nothing uses the memory but what uses the
            // buffer.
            (Some(taken), None) => taken.consumed_for_nobody(),
            (None, _) => {}
        }
    }
}
