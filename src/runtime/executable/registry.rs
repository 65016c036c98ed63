//! What is known about executables, by the engine's own handles.

use std::{marker::PhantomData, sync::Arc};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    fork::PerProcess,
    runtime::executable::loaded::{Loaded, Program},
    sys,
};

/// What is known about one kind of the engine's handles.
pub struct Registry<K, V>(RwLock<FxHashMap<usize, V>>, PhantomData<fn(*mut K)>);

impl<K, V> Default for Registry<K, V> {
    fn default() -> Self {
        Self(RwLock::default(), PhantomData)
    }
}

impl<K, V: Clone> Registry<K, V> {
    /// What is known about `handle`.
    pub fn get(&self, handle: *const K) -> Option<V> {
        self.0.read().get(&handle.addr()).cloned()
    }

    /// Remembers `value` for `handle`.
    pub fn insert(&self, handle: *mut K, value: V) {
        self.0.write().insert(handle.addr(), value);
    }

    /// Forgets `handle`.
    pub fn remove(&self, handle: *mut K) -> Option<V> {
        self.0.write().remove(&handle.addr())
    }

    /// Everything that is known.
    pub fn values(&self) -> Vec<V> {
        self.0.read().values().cloned().collect()
    }
}

/// Executables ready to run.
pub static LOADED: PerProcess<Registry<sys::PJRT_LoadedExecutable, Arc<Loaded>>> = PerProcess::empty();

/// Executables as descriptions; the engine makes a new handle each time it is asked for one.
pub static EXECUTABLES: PerProcess<Registry<sys::PJRT_Executable, Arc<Program>>> = PerProcess::empty();

/// In a child after fork: its parent's executables are none of its own. Takes no lock.
pub fn leave_parents() {
    LOADED.renew();
    EXECUTABLES.renew();
}
