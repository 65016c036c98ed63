//! A launch that takes its program to be over when the engine returns, beside one that leaves a program under way.

use loom::thread;
use std::sync::Arc;

use crate::{
    every_interleaving,
    launches::Launches,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The library's numbers, and the engine: whether a program is under way there that the next one waits for.
#[derive(Default)]
struct World {
    launches: Launches,
    operations: AtomicUsize,
    under_way: Mutex<bool>,
}

impl World {
    /// A launch whose program goes on after the call, and is an operation from then on.
    fn long(&self) {
        let launch = self.launches.begin();
        *self.under_way.lock() = true;
        self.operations.fetch_add(1, Ordering::Release);
        drop(launch);
    }

    /// The engine has run the long program, and a call of the C API reaps it.
    fn reap(&self) {
        *self.under_way.lock() = false;
        self.operations.fetch_sub(1, Ordering::Release);
    }

    /// A launch of a short one; whether it is taken to be over.
    fn short(&self) -> bool {
        let stillness = self.launches.stillness().filter(|_| self.operations.load(Ordering::Acquire) == 0);
        let waits = *self.under_way.lock();
        let is_over = stillness.is_some_and(|since| self.launches.is_still(since));
        assert!(!(is_over && waits), "a program that waits for another is taken to be over");
        is_over
    }
}

#[test]
fn a_program_that_waits_for_another_is_not_taken_to_be_over() {
    every_interleaving(None, || {
        let world = Arc::new(World::default());
        let others = Arc::clone(&world);
        let other = thread::spawn(move || {
            others.long();
            others.reap();
            others.long();
        });
        world.short();
        other.join().expect("no panic there");
        assert!(!world.short());
        world.reap();
        assert!(world.short(), "nothing is under way");
    });
}
