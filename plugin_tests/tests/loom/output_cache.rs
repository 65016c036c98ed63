//! The lists of the output cache: adding against closing, clearing and waiting for memory; taking against clearing.

use loom::{cell::UnsafeCell, thread};
use std::sync::Arc;

use crate::{
    every_interleaving,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::kept::Kept;

const WRITTEN: u32 = 42;

/// An output that is kept: its block, written by the program before, and how many blocks were freed.
struct Output {
    block: UnsafeCell<u32>,
    freed: Arc<AtomicUsize>,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.write(0);
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Output {
    fn write(&self, value: u32) {
        // SAFETY: the checker tracks every access and fails the test when two threads meet.
        self.block.with_mut(|block| unsafe { *block = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.block.with(|block| unsafe { *block })
    }
}

/// A cache for one result, and what it needs to know.
#[derive(Clone)]
struct World {
    kept: Arc<Kept<Vec<Output>>>,
    freed: Arc<AtomicUsize>,
    waiters: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        Self { kept: Arc::new(Kept::new(1)), freed: Arc::default(), waiters: Arc::default() }
    }

    /// What the owner of an output does that destroys it.
    fn put(&self) {
        let output = Output { block: UnsafeCell::new(0), freed: Arc::clone(&self.freed) };
        output.write(WRITTEN);
        // Nothing but the lock orders this look after what a thread does that clears the list.
        if let Some(mut list) = self.kept.open(0, || self.waiters.load(Ordering::Relaxed) != 0) {
            list.push(output);
        }
    }

    /// What an execution does that wants a destination; whether there was one.
    fn take(&self) -> bool {
        let Some(output) = self.kept.list(0).and_then(|mut list| list.pop()) else { return false };
        assert_eq!(output.read(), WRITTEN);
        output.write(WRITTEN + 1);
        true
    }

    fn in_thread(&self, run: impl FnOnce(&Self) + 'static) -> thread::JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || run(&world))
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }
}

/// What is put while another thread closes the cache is cleared by that thread, or not kept.
#[test]
fn nothing_is_kept_once_it_is_closed() {
    every_interleaving(None, || {
        let world = World::new();
        let owners = [(); 2].map(|()| world.in_thread(World::put));
        world.kept.close();
        owners.into_iter().for_each(|owner| owner.join().expect("no panic"));
        assert_eq!(world.freed(), 2);
        assert!(!world.take());
    });
}

/// An allocation that waits, and has cleared the cache, finds every output's block free that is put then: the cache
/// keeps nothing until it has ended its wait.
#[test]
fn nothing_is_kept_from_an_allocation_that_waits() {
    every_interleaving(None, || {
        let world = World::new();
        let owners = [(); 2].map(|()| world.in_thread(World::put));
        world.waiters.fetch_add(1, Ordering::Relaxed);
        world.kept.clear();
        owners.into_iter().for_each(|owner| owner.join().expect("no panic"));
        assert_eq!(world.freed(), 2);
        world.waiters.fetch_sub(1, Ordering::Relaxed);
        world.put();
        assert!(world.take(), "kept again");
    });
}

/// Whatever puts, takes and clears meet: each block has one owner at a time, and is freed once.
#[test]
fn an_output_is_taken_or_cleared_and_never_both() {
    every_interleaving(None, || {
        let world = World::new();
        world.put();
        let others = [
            world.in_thread(World::put),
            world.in_thread(|world| {
                world.take();
            }),
        ];
        world.kept.clear();
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        world.kept.clear();
        assert_eq!(world.freed(), 2);
    });
}
