//! Operations in flight: the engine that completes them, calls that reap them, the trimmer, and allocations that wait
//! for their memory.

use std::{
    ops::ControlFlow,
    sync::{Arc, Weak},
    time::Duration,
};

use loom::thread;

use crate::{
    every_interleaving,
    kept::Kept,
    queue::{End, Ends, Queue},
    sync::Mutex,
};

/// An operation that has a block until it ends.
struct Operation {
    end: End,
    block: Mutex<bool>,
    memory: Arc<Memory>,
}

/// How many blocks are free.
#[derive(Default)]
struct Memory(Mutex<usize>);

impl Memory {
    fn free(&self) {
        *self.0.lock() += 1;
    }

    fn take(&self) -> bool {
        let mut free = self.0.lock();
        let found = *free > 0;
        *free -= usize::from(found);
        found
    }

    fn count(&self) -> usize {
        *self.0.lock()
    }
}

/// As the library's operations do it: reaping takes the resources out, and frees them without their lock.
impl Ends for Operation {
    fn end(&self) -> &End {
        &self.end
    }

    fn release_memory(&self) {
        let mut block = self.block.lock();
        if std::mem::take(&mut *block) {
            self.memory.free();
        }
    }

    fn reap(&self) {
        let block = std::mem::take(&mut *self.block.lock());
        if block {
            self.memory.free();
        }
    }
}

#[derive(Clone, Default)]
struct World {
    queue: Arc<Queue<Operation>>,
    memory: Arc<Memory>,
}

impl World {
    fn launch(&self) -> Arc<Operation> {
        self.queue.push(|end| Operation { end, block: Mutex::new(true), memory: Arc::clone(&self.memory) })
    }

    /// The engine's thread, which calls back when an operation is done.
    fn engine(&self, operations: impl IntoIterator<Item = Arc<Operation>>) -> thread::JoinHandle<()> {
        let operations: Vec<_> = operations.into_iter().collect();
        thread::spawn(move || {
            operations.iter().for_each(|operation| operation.end.come(|| operation.release_memory()));
        })
    }

    fn in_thread<T: 'static>(&self, run: impl FnOnce(&Self) -> T + 'static) -> thread::JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || run(&world))
    }

    /// An allocation that waits as long as there is hope, as `find_room` does; whether it found a block. It sleeps for
    /// ever if nobody wakes it, which the checker reports.
    fn allocate(&self) -> bool {
        let reap = || {
            self.queue.reap_all();
        };
        self.queue.wait_until(reap, |epoch| {
            if self.memory.take() {
                return ControlFlow::Break(true);
            }
            if self.queue.wait(epoch, || Duration::MAX, || ()) {
                reap();
                return ControlFlow::Continue(());
            }
            ControlFlow::Break(false)
        })
    }
}

fn join<T>(thread: thread::JoinHandle<T>) -> T {
    thread.join().expect("no panic")
}

/// An allocation does not give up, nor sleep on, while an operation is under way that has the block it needs: whether
/// the operation completes before it begins to wait, or before it looks, or before it sleeps.
#[test]
fn an_allocation_that_waits_gets_the_block_of_an_operation_that_completes() {
    every_interleaving(5, || {
        let world = World::default();
        let engine = world.engine([world.launch()]);
        assert!(world.allocate());
        join(engine);
    });
}

/// Nor while a call of another thread reaps the operation: it is not in the queue any more, and its block not yet free.
#[test]
fn an_allocation_that_waits_gets_the_block_of_an_operation_that_another_call_reaps() {
    every_interleaving(2, || {
        let world = World::default();
        let engine = world.engine([world.launch()]);
        let other = world.in_thread(|world| world.queue.reap_in_order());
        assert!(world.allocate());
        join(engine);
        join(other);
    });
}

/// Nor while the trimmer frees the block of an operation that stays in the queue.
#[test]
fn an_allocation_that_waits_gets_the_block_of_an_operation_that_the_trimmer_frees() {
    every_interleaving(2, || {
        let world = World::default();
        let engine = world.engine([world.launch()]);
        let trimmer = world.in_thread(|world| {
            let mut newest = 0;
            world.queue.release_stale(&mut newest);
            world.queue.release_stale(&mut newest);
        });
        assert!(world.allocate());
        join(engine);
        join(trimmer);
    });
}

/// Of two allocations that wait for one block one gets it. The other gives up when nothing is under way any more: it
/// does not sleep for ever.
#[test]
fn an_allocation_gives_up_when_nothing_is_under_way() {
    every_interleaving(2, || {
        let world = World::default();
        let engine = world.engine([world.launch()]);
        let other = world.in_thread(World::allocate);
        assert!(world.allocate() ^ join(other));
        join(engine);
    });
}

/// Two allocations that wait get the blocks of two operations that complete.
#[test]
fn each_of_two_allocations_gets_a_block() {
    every_interleaving(2, || {
        let world = World::default();
        let engine = world.engine([world.launch(), world.launch()]);
        let other = world.in_thread(World::allocate);
        assert!(world.allocate());
        assert!(join(other));
        join(engine);
    });
}

/// An operation that is done behind one that is not is reaped in order too, however its callback met the reaping
/// before: the number of those that are done is never too low for long.
#[test]
fn what_is_done_behind_a_long_operation_is_reaped() {
    every_interleaving(None, || {
        let world = World::default();
        let long = world.launch();
        let engine = world.engine([world.launch()]);
        let early = world.queue.reap_in_order();
        join(engine);
        assert_eq!(early + world.queue.reap_in_order(), 1);
        assert_eq!(world.memory.count(), 1);
        long.end.come(|| unreachable!("no allocation waits"));
        assert_eq!(world.queue.reap_in_order(), 1);
        assert_eq!(world.memory.count(), 2);
    });
}

/// However the end of the client meets the callback and a call that reaps: each operation's memory is freed, and once.
#[test]
fn the_end_of_a_client_frees_what_completes_before_and_after() {
    every_interleaving(3, || {
        let world = World::default();
        let engine = world.engine([world.launch(), world.launch()]);
        let other = world.in_thread(|world| world.queue.reap_all());
        let closed = world.queue.close(|_| {}).len();
        join(engine);
        let reaped = join(other);
        assert_eq!((closed + reaped, world.memory.count()), (2, 2));
    });
}

/// An operation whose result goes to the output cache when it is reaped.
struct Recycling {
    operation: Operation,
    world: Weak<CachingWorld>,
}

/// A block that the cache keeps. Dropped, it is free.
struct Cached(Arc<Memory>);

struct CachingWorld {
    queue: Queue<Recycling>,
    memory: Arc<Memory>,
    cache: Kept<Vec<Cached>>,
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.0.free();
    }
}

impl Ends for Recycling {
    fn end(&self) -> &End {
        &self.operation.end
    }

    fn release_memory(&self) {
        self.operation.release_memory();
    }

    fn reap(&self) {
        let block = std::mem::take(&mut *self.operation.block.lock());
        let Some(world) = self.world.upgrade().filter(|_| block) else { return };
        let cached = Cached(Arc::clone(&world.memory));
        if let Some(mut list) = world.cache.open(0, || world.queue.has_waiters()) {
            list.push(cached);
        }
    }
}

/// An allocation that waits does not miss the block of a result that another call puts into the output cache at that
/// moment: it clears the cache, or the cache does not keep it.
#[test]
fn an_allocation_that_waits_gets_a_block_that_goes_to_the_cache() {
    every_interleaving(None, || {
        let memory = Arc::<Memory>::default();
        let world = Arc::new(CachingWorld { queue: Queue::default(), memory, cache: Kept::new(1) });
        let operation = world.queue.push(|end| {
            let operation = Operation { end, block: Mutex::new(true), memory: Arc::clone(&world.memory) };
            Recycling { operation, world: Arc::downgrade(&world) }
        });
        operation.end().come(|| unreachable!("no allocation waits"));
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.queue.reap_in_order())
        };
        let reap = || {
            world.queue.reap_all();
        };
        let found = world.queue.wait_until(reap, |epoch| {
            world.cache.clear();
            if world.memory.take() {
                ControlFlow::Break(true)
            } else if world.queue.wait(epoch, || Duration::MAX, || ()) {
                reap();
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(false)
            }
        });
        assert!(found);
        join(other);
    });
}
