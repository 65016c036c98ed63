//! Every interleaving of the threads that share one buffer: users, outsiders, the owner and the mover.
//!
//! The file under test is the library's own, compiled against the model checker's locks. The bytes are two cells, of
//! which one is the buffer's place at a time; the checker reports any access that races with the mover's.

#[path = "../../../src/api/custody.rs"]
#[allow(dead_code, missing_docs, reason = "the library uses and documents what the models here do not need")]
mod custody;
#[allow(missing_docs, reason = "see the types that it stands for")]
mod sync;

use custody::{Custody, Life, User};
use loom::{cell::UnsafeCell, sync::Arc, thread};

const CONTENTS: u32 = 42;
const RUBBISH: u32 = 0xdead;

/// Two places, and a buffer that lies in the first.
struct World {
    places: [UnsafeCell<u32>; 2],
    custody: Custody<usize>,
}

impl World {
    fn new() -> Arc<Self> {
        let custody = Custody::new(0);
        custody.lock().mark_whole();
        Arc::new(Self { places: [UnsafeCell::new(CONTENTS), UnsafeCell::new(RUBBISH)], custody })
    }

    fn read(&self, place: usize) -> u32 {
        // SAFETY: the checker tracks every access and fails the test when two threads meet.
        self.places[place].with(|cell| unsafe { *cell })
    }

    fn write(&self, place: usize, value: u32) {
        // SAFETY: as above.
        self.places[place].with_mut(|cell| unsafe { *cell = value });
    }

    /// What the mover does; whether it moved.
    fn relocate(&self) -> bool {
        let Some(from) = self.custody.seize(|place| Some(*place)) else { return false };
        let to = 1 - from;
        self.write(to, self.read(from));
        self.write(from, RUBBISH);
        self.custody.release(|place| *place = to);
        true
    }

    /// What a program does with an argument; whether the buffer was alive.
    fn run(&self) -> bool {
        let place = {
            let mut state = self.custody.lock();
            if state.life() != Life::Live {
                return false;
            }
            state.begin_use(User::Run);
            **state
        };
        assert_eq!(self.read(place), CONTENTS);
        self.custody.lock().end_use(User::Run);
        true
    }
}

#[test]
fn programs_never_read_bytes_that_move() {
    loom::model(|| {
        let world = World::new();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || assert!(world.run()))
            })
            .collect();
        world.relocate();
        users.into_iter().for_each(|user| user.join().expect("no panic"));
        assert_eq!(world.read(**world.custody.lock()), CONTENTS);
    });
}

#[test]
fn an_address_that_an_outsider_holds_stays() {
    loom::model(|| {
        let world = World::new();
        let outsider = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let place = {
                    let mut state = world.custody.lock();
                    assert!(state.add_reference());
                    **state
                };
                assert_eq!(world.read(place), CONTENTS);
                assert_eq!(world.read(place), CONTENTS);
                assert_eq!(world.custody.lock().drop_reference(), Some(true));
            })
        };
        world.relocate();
        world.relocate();
        outsider.join().expect("no panic");
        assert!(world.relocate(), "a released buffer moves");
    });
}

#[test]
fn bytes_are_freed_once_whoever_lets_go_last() {
    loom::model(|| {
        let world = World::new();
        // As `Buffer::land` and `Buffer::delete` do: whoever finds the bytes free takes them.
        let take_if_free = |world: &World| {
            let mut state = world.custody.lock();
            let free = state.is_free() && **state < 2;
            if free {
                **state = 2;
            }
            free
        };
        let user = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run() && take_if_free(&world))
        };
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.relocate())
        };
        let ended = world.custody.lock().end(Life::Deleted);
        assert!(ended);
        let by_owner = take_if_free(&world);
        let by_user = user.join().expect("no panic");
        mover.join().expect("no panic");
        assert!(by_owner ^ by_user, "freed by the owner: {by_owner}, by the user: {by_user}");
    });
}

#[test]
fn two_movers_never_have_the_same_bytes() {
    loom::model(|| {
        let world = World::new();
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.relocate())
        };
        let moved = usize::from(world.relocate()) + usize::from(other.join().expect("no panic"));
        assert!(moved >= 1);
        assert_eq!(**world.custody.lock(), moved % 2);
        assert_eq!(world.read(moved % 2), CONTENTS);
    });
}
