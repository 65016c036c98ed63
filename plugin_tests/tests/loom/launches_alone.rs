//! Launches that take their programs to be over when the engine returns, beside those that leave one under way.

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

/// The library's numbers, and the engine: the program that the next one waits for, if there is one.
#[derive(Default)]
struct World {
    launches: Launches,
    operations: AtomicUsize,
    last: Mutex<Option<u32>>,
}

impl World {
    /// A launch of the program `number`, which goes on after the call, and is an operation from then on.
    fn long(&self, number: u32) {
        let launch = self.launches.begin();
        *self.last.lock() = Some(number);
        self.operations.fetch_add(1, Ordering::Release);
        drop(launch);
    }

    /// The engine has run the program `number`, and a call of the C API reaps it.
    fn reap(&self, number: u32) {
        self.last.lock().take_if(|last| *last == number);
        self.operations.fetch_sub(1, Ordering::Release);
    }

    /// A launch of a short one; whether it is taken to be over. If not, and it waits for another, it is an operation.
    fn short(&self, number: u32) -> bool {
        let launch = self.launches.begin();
        let alone = launch.is_alone() && self.operations.load(Ordering::Acquire) == 0;
        let waits = {
            let mut last = self.last.lock();
            let waits = last.is_some();
            if waits {
                *last = Some(number);
            }
            waits
        };
        let is_over = alone && launch.is_alone();
        assert!(!(is_over && waits), "a program that waits for another is taken to be over");
        if waits {
            self.operations.fetch_add(1, Ordering::Release);
        }
        is_over
    }
}

#[test]
fn a_program_that_waits_for_another_is_not_taken_to_be_over() {
    every_interleaving(None, || {
        let world = Arc::new(World::default());
        let others = Arc::clone(&world);
        let other = thread::spawn(move || {
            others.long(1);
            others.reap(1);
            others.long(2);
        });
        world.short(3);
        other.join().expect("no panic there");
        assert!(!world.short(4));
        world.reap(2);
    });
}

#[test]
fn nor_is_one_that_waits_for_a_short_one_that_waits_itself() {
    every_interleaving(Some(3), || {
        let world = Arc::new(World::default());
        let (first, second) = (Arc::clone(&world), Arc::clone(&world));
        let long = thread::spawn(move || {
            first.long(1);
            first.reap(1);
        });
        let short = thread::spawn(move || second.short(2));
        world.short(3);
        long.join().expect("no panic there");
        short.join().expect("no panic there");
    });
}
