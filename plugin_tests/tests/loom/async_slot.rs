//! One array of a transfer manager: threads that write pieces of it, retrieve it, fail it and abandon it.

use loom::{cell::UnsafeCell, sync::Arc, thread};

use crate::{every_interleaving, sync::Mutex};

use crate::delivery::{Delivery, Due, Receipt};

const WRITTEN: u32 = 42;
const RUBBISH: u32 = 0xdead;

type Bytes = Arc<[UnsafeCell<u32>; 2]>;

/// The block that the array lies in. Freed, it is another's, who writes to it.
struct Block(Bytes);

impl Drop for Block {
    fn drop(&mut self) {
        self.0.iter().for_each(|byte| write(byte, RUBBISH));
    }
}

fn write(byte: &UnsafeCell<u32>, value: u32) {
    // SAFETY: the checker tracks every access and fails the test when two threads meet.
    byte.with_mut(|byte| unsafe { *byte = value });
}

fn read(bytes: &Bytes) -> [u32; 2] {
    // SAFETY: as above.
    [0, 1].map(|index: usize| bytes[index].with(|byte| unsafe { *byte }))
}

/// What the receiver of the array sees in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Array([u32; 2]),
    Error(&'static str),
}

/// An alias without bytes.
struct Promise;

struct World {
    bytes: Bytes,
    delivery: Delivery<Promise, Block, &'static str>,
    seen: Mutex<Vec<Seen>>,
    /// The block of an array that was given away: its receiver frees it.
    received: Mutex<Option<Block>>,
}

impl World {
    fn new() -> Arc<Self> {
        let bytes: Bytes = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let delivery = Delivery::new(Some(Block(Arc::clone(&bytes))));
        Arc::new(Self { bytes, delivery, seen: Mutex::default(), received: Mutex::default() })
    }

    /// What a transfer does; whether it was accepted.
    fn transfer(&self, piece: usize, last: bool) -> bool {
        let accepted = self.delivery.begin(last).is_ok();
        if accepted {
            write(&self.bytes[piece], WRITTEN);
            self.act(self.delivery.end());
        }
        accepted
    }

    fn fail(&self, reason: &'static str) -> bool {
        match self.delivery.fail(reason) {
            Ok(due) => {
                self.act(due);
                true
            }
            Err(_) => false,
        }
    }

    fn abandon(&self) {
        self.act(self.delivery.abandon(|| "abandoned"));
    }

    /// As `Slot::retrieve`; whether this is the first.
    fn retrieve(&self) -> bool {
        let given = self.delivery.retrieve(|complete| {
            Ok::<_, ()>(match complete.and_then(Option::take) {
                Some(block) => {
                    self.receive(block);
                    Receipt::Served(())
                }
                None => Receipt::Promised((), Promise),
            })
        });
        let Some(Ok(((), due))) = given else { return false };
        self.act(due);
        true
    }

    fn act(&self, due: Option<Due<Promise, Block, &'static str>>) {
        match due {
            Some(Due::Deliver(Promise, block)) => self.receive(block),
            Some(Due::Fail(Some(Promise), reason)) => self.seen.lock().push(Seen::Error(reason)),
            Some(Due::Fail(None, _)) | None => {}
        }
    }

    fn receive(&self, block: Block) {
        let array = read(&self.bytes);
        self.seen.lock().push(Seen::Array(array));
        *self.received.lock() = Some(block);
    }

    /// The one thing that the receiver saw.
    fn seen(&self) -> Seen {
        let seen = self.seen.lock();
        assert_eq!(seen.len(), 1, "{:?}", *seen);
        seen[0]
    }
}

fn in_thread<T: 'static>(world: &Arc<World>, run: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

/// The receiver gets the array once, retrieved before or after the last transfer, with the bytes of every transfer that
/// was accepted: no transfer that was accepted writes to it after that.
#[test]
fn the_array_is_delivered_once_with_all_that_was_accepted() {
    every_interleaving(None, || {
        let world = World::new();
        let first = in_thread(&world, |world| world.transfer(0, false));
        let last = in_thread(&world, |world| world.transfer(1, true));
        assert!(world.retrieve());
        let (first, last) = (first.join().expect("no panic"), last.join().expect("no panic"));
        assert!(last);
        assert_eq!(world.seen(), Seen::Array([if first { WRITTEN } else { 0 }, WRITTEN]));
        assert!(!world.retrieve(), "retrieved before");
    });
}

/// An error and the last transfer exclude each other, whoever comes first; the receiver sees the one that was accepted,
/// once, and the block of an array that failed is not freed under a transfer.
#[test]
fn an_error_or_the_array_is_delivered_and_never_both() {
    every_interleaving(None, || {
        let world = World::new();
        let piece = in_thread(&world, |world| world.transfer(1, true));
        let error = in_thread(&world, |world| world.fail("broken"));
        assert!(world.retrieve());
        let (piece, error) = (piece.join().expect("no panic"), error.join().expect("no panic"));
        assert!(piece ^ error, "accepted: the transfer {piece}, the error {error}");
        assert_eq!(world.seen(), if error { Seen::Error("broken") } else { Seen::Array([0, WRITTEN]) });
    });
}

/// A manager that is destroyed before the last transfer leaves an error to whoever was promised the array, after the
/// transfers under way, whose block stays for so long.
#[test]
fn an_array_that_is_abandoned_is_an_error_after_its_last_transfer() {
    every_interleaving(None, || {
        let world = World::new();
        let piece = in_thread(&world, |world| world.transfer(0, false));
        let retrieved = in_thread(&world, World::retrieve);
        world.abandon();
        piece.join().expect("no panic");
        assert!(retrieved.join().expect("no panic"));
        assert_eq!(world.seen(), Seen::Error("abandoned"));
        assert_eq!(read(&world.bytes), [RUBBISH; 2], "the block is freed");
    });
}

/// Of two threads that retrieve the same array one gets it.
#[test]
fn the_array_has_one_receiver() {
    every_interleaving(None, || {
        let world = World::new();
        let other = in_thread(&world, World::retrieve);
        let last = in_thread(&world, |world| world.transfer(0, true));
        let first = world.retrieve();
        assert!(first ^ other.join().expect("no panic"));
        assert!(last.join().expect("no panic"));
        assert_eq!(world.seen(), Seen::Array([WRITTEN, 0]));
    });
}
