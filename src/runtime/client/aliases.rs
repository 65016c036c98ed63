//! Alias buffers whose contents are to come: which buffer gets the memory of the one that fulfils it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::runtime::buffer::{Buffer, storage::Storage};

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

    /// The promise is kept: the alias, if something still refers to it, has the memory from here on.
    pub fn fulfil(&self, promise: usize, memory: Option<Storage>) {
        let alias = self.waiting.lock().remove(&promise).and_then(|alias| alias.upgrade());
        match (memory, alias) {
            // The alias counts as many bytes.
            (Some(Storage::Engine(counted)), _) => drop(counted),
            (Some(memory), Some(alias)) => self.kept.lock().extend(alias.take_over(memory).err()),
            // Neither a caller nor an operation under way has the alias, so nothing uses the memory.
            (memory, _) => drop(memory),
        }
    }
}
