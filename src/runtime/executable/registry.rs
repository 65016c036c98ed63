//! What is known about executables, by the engine's own handles.

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    runtime::executable::loaded::{Loaded, Program},
    sys,
};

/// What is known about one kind of the engine's handles.
pub struct Registry<K, V>(RwLock<FxHashMap<usize, V>>, std::marker::PhantomData<fn(*mut K)>);

impl<K, V: Clone> Registry<K, V> {
    /// What is known about `handle`.
    pub fn get(&self, handle: *mut K) -> Option<V> {
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
pub static LOADED: once_cell::sync::Lazy<Registry<sys::PJRT_LoadedExecutable, Arc<Loaded>>> =
    once_cell::sync::Lazy::new(|| Registry(RwLock::default(), std::marker::PhantomData));

/// Executables as descriptions; the engine makes a new handle each time it is asked for one.
pub static EXECUTABLES: once_cell::sync::Lazy<Registry<sys::PJRT_Executable, Arc<Program>>> =
    once_cell::sync::Lazy::new(|| Registry(RwLock::default(), std::marker::PhantomData));
