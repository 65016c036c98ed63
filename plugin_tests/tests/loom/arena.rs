//! The arena's lock, and threads that sleep beside it until memory is free.

use loom::thread;
use std::sync::Arc;

use crate::{
    every_interleaving,
    lock::{Interrupted, Lock},
};

/// How many blocks are free.
type Arena = Arc<Lock<u32>>;

impl Interrupted for u32 {
    fn interrupted(&mut self) {
        *self = 0;
    }
}

/// As `Arena::allocate_waiting`, for as long as it takes.
fn allocate(arena: &Arena) {
    let mut free = arena.lock();
    while *free == 0 {
        free = arena.sleep(free, None);
    }
    *free -= 1;
}

fn free(arena: &Arena) {
    let mut free = arena.lock();
    *free += 1;
    arena.wake(&free);
}

/// A thread never sleeps on after the block that it waits for was freed: a wake counts from the moment at which the
/// sleeper gives up the lock, and not only from when it sleeps.
#[test]
fn no_wake_is_lost() {
    every_interleaving(None, || {
        let arena: Arena = Arc::new(Lock::new(0));
        let waiter = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || allocate(&arena))
        };
        free(&arena);
        waiter.join().expect("no panic");
        assert_eq!(*arena.lock(), 0);
        assert_eq!(arena.sleepers(), 0);
    });
}

/// Two threads that wait, woken in whatever order, get one block each: a wake is everybody's, and the lock is held
/// again when a sleeper looks. So none takes a block that is not there.
#[test]
fn a_wake_is_everybodys_and_a_block_is_one_threads() {
    every_interleaving(3, || {
        let arena: Arena = Arc::new(Lock::new(0));
        let waiters = [(); 2].map(|()| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || allocate(&arena))
        });
        free(&arena);
        free(&arena);
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        assert_eq!(*arena.lock(), 0);
        assert_eq!(arena.sleepers(), 0);
    });
}
