//! Every interleaving of the threads that share one buffer: users, outsiders, the owner and the mover.
//!
//! The bytes are two cells, of which one is the buffer's place at a time; the checker reports any access that races
//! with the mover's.

use crate::{
    sync::{Mutex, MutexGuard},
    usage::{Life, Reader, State, Trust, Usage, User},
};
use loom::{cell::UnsafeCell, sync::Arc, thread};

const CONTENTS: u32 = 42;
const RUBBISH: u32 = 0xdead;

/// Two places, and a buffer that lies in the first.
struct World {
    places: [UnsafeCell<u32>; 2],
    usage: Usage<usize>,
}

impl World {
    fn new() -> Arc<Self> {
        let usage = Usage::new(0);
        usage.lock().mark_defined();
        Arc::new(Self { places: [UnsafeCell::new(CONTENTS), UnsafeCell::new(RUBBISH)], usage })
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
        let Some(from) = self.usage.lock_for_move(|place| Some(*place)) else { return false };
        let to = 1 - from;
        self.write(to, self.read(from));
        self.write(from, RUBBISH);
        self.usage.unlock_after_move(|place| *place = to);
        true
    }

    /// What a copy of ours does; whether it was made, and not left to the engine.
    fn copy(&self, reader: Reader) -> bool {
        let place = {
            let mut state = self.usage.lock();
            if state.life() != Life::Live || !state.begin_copy(reader) {
                return false;
            }
            **state
        };
        assert_eq!(self.read(place), CONTENTS);
        assert_eq!(self.read(place), CONTENTS);
        drop(self.usage.end_copy(reader));
        true
    }

    /// What a launch does that is given the bytes: it writes to them at once where it `consumes` them. Whether it was
    /// launched, and not given something else.
    fn launch(&self, consumes: bool) -> bool {
        let place = {
            let Some(mut state) = self.usage.lock_for_donation() else { return false };
            if state.life() != Life::Live {
                state.end_donation();
                return false;
            }
            state.begin_use(User::Execution);
            **state
        };
        if consumes {
            self.write(place, RUBBISH);
        }
        let mut state = self.usage.lock();
        state.end_donation();
        state.end_use(User::Execution);
        if consumes {
            state.donate();
        }
        true
    }

    /// What a program does with an argument; whether the buffer was alive.
    fn run(&self) -> bool {
        let place = {
            let mut state = self.usage.lock();
            if state.life() != Life::Live {
                return false;
            }
            state.begin_use(User::Execution);
            **state
        };
        assert_eq!(self.read(place), CONTENTS);
        self.usage.lock().end_use(User::Execution);
        true
    }
}

#[test]
fn programs_never_read_bytes_that_move() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || assert!(world.run()))
            })
            .collect();
        world.relocate();
        users.into_iter().for_each(|user| user.join().expect("no panic"));
        assert_eq!(world.read(**world.usage.lock()), CONTENTS);
    });
}

#[test]
fn an_address_that_an_outsider_holds_stays() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let outsider = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let place = {
                    let mut state = world.usage.lock();
                    assert!(state.add_reference());
                    **state
                };
                assert_eq!(world.read(place), CONTENTS);
                assert_eq!(world.read(place), CONTENTS);
                assert_eq!(world.usage.lock().drop_reference(), Some(true));
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
    crate::every_interleaving(None, || {
        let world = World::new();
        // As `Buffer::land` and `Buffer::delete` do: whoever finds the bytes free takes them.
        let take_if_free = |world: &World| {
            let mut state = world.usage.lock();
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
        let ended = world.usage.lock().end(Life::Deleted);
        assert!(ended);
        let by_owner = take_if_free(&world);
        let by_user = user.join().expect("no panic");
        mover.join().expect("no panic");
        assert!(by_owner ^ by_user, "freed by the owner: {by_owner}, by the user: {by_user}");
    });
}

#[test]
fn a_dropped_block_is_a_later_launchs_or_is_freed_once() {
    const GONE: usize = 2;
    crate::every_interleaving(None, || {
        let world = World::new();
        {
            let mut state = world.usage.lock();
            state.begin_use(User::Execution);
            state.begin_use(User::Execution);
            assert!(state.end(Life::Deleted));
        }
        // As `Buffer::end_operation_use` does at the end of each program.
        let programs = [(); 2].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut state = world.usage.lock();
                state.end_use(User::Execution);
                let frees = state.is_free() && **state != GONE;
                if frees {
                    **state = GONE;
                }
                frees
            })
        });
        // As `take_while_executing` does for a launch.
        let taken = {
            let mut state = world.usage.lock();
            let takes = !state.is_unused()
                && state.is_used_by_executions_alone()
                && state.trust() == Trust::Any
                && **state != GONE;
            if takes {
                **state = GONE;
            }
            takes
        };
        assert!(!world.relocate(), "nobody moves it");
        let freed = programs.map(|program| program.join().expect("no panic"));
        assert_eq!(usize::from(taken) + freed.into_iter().filter(|&freed| freed).count(), 1);
    });
}

#[test]
fn two_movers_never_have_the_same_bytes() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.relocate())
        };
        let moved = usize::from(world.relocate()) + usize::from(other.join().expect("no panic"));
        assert!(moved >= 1);
        assert_eq!(**world.usage.lock(), moved % 2);
        assert_eq!(world.read(moved % 2), CONTENTS);
    });
}

#[test]
fn a_launch_never_writes_bytes_that_are_copied() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let copier = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.copy(Reader::Copy))
        };
        assert!(world.launch(true), "it waits for copies, and for nothing else");
        copier.join().expect("no panic");
        assert!(!world.copy(Reader::Copy), "the bytes are the program's");
    });
}

#[test]
fn a_launch_that_consumed_nothing_leaves_the_bytes_to_copies() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let launch = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert!(world.launch(false)))
        };
        world.copy(Reader::Copy);
        launch.join().expect("no panic");
        assert!(world.copy(Reader::Copy));
    });
}

#[test]
fn a_launch_never_waits_for_a_loan_nor_writes_to_what_is_lent() {
    crate::every_interleaving(None, || {
        let world = World::new();
        let launch = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.launch(true))
        };
        let lent = world.copy(Reader::Program);
        let launched = launch.join().expect("no panic");
        assert!(lent || launched, "neither has them");
    });
}

#[test]
fn launches_that_are_given_the_same_buffers_in_another_order_do_not_wait_for_each_other() {
    // One of them is copied meanwhile, so that there is something to wait for.
    crate::every_interleaving(None, || {
        let worlds = [World::new(), World::new()];
        assert!(worlds[0].usage.lock().begin_copy(Reader::Copy));
        let take = |worlds: [&Arc<World>; 2]| {
            for world in worlds {
                assert!(world.usage.lock_for_donation().is_some());
            }
        };
        let other = {
            let [one, two] = worlds.clone();
            thread::spawn(move || take([&two, &one]))
        };
        let copier = {
            let world = Arc::clone(&worlds[0]);
            thread::spawn(move || drop(world.usage.end_copy(Reader::Copy)))
        };
        let [one, two] = &worlds;
        take([one, two]);
        other.join().expect("no panic");
        copier.join().expect("no panic");
    });
}

#[test]
fn a_launch_finds_the_bytes_where_the_mover_has_put_them_after_the_copy() {
    crate::every_interleaving(None, || {
        let world = World::new();
        assert!(world.usage.lock().begin_copy(Reader::Copy));
        let launch = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert!(world.launch(true)))
        };
        drop(world.usage.end_copy(Reader::Copy));
        let moved = world.relocate();
        launch.join().expect("no panic");
        let place = **world.usage.lock();
        assert_eq!(place, usize::from(moved));
        assert_eq!(world.read(place), RUBBISH, "the program wrote there");
    });
}

/// What the engine knows of a buffer's outsiders, and whether a program has consumed it.
#[derive(Default)]
struct Known {
    outsiders: i32,
    is_consumed: bool,
}

/// A buffer that outsiders look at, and that a program is donated.
struct Outsiders {
    /// The engine's list of those who refer to the buffer, which two threads may not change at once.
    listed: UnsafeCell<i32>,
    known: Mutex<Known>,
    /// Outsiders that have the address at this moment.
    looking: Mutex<i32>,
    usage: Usage<()>,
}

impl Outsiders {
    fn new() -> Self {
        let (known, looking) = (Mutex::new(Known::default()), Mutex::new(0));
        Self { listed: UnsafeCell::new(0), known, looking, usage: Usage::new(()) }
    }

    /// Tells the engine that outsiders come, or go; whether it agrees. Others wait until [`Usage::end_referring`].
    fn tell(&self, mut state: MutexGuard<'_, State<()>>, are_there: bool) -> bool {
        state.begin_referring();
        drop(state);
        let mut known = self.known.lock();
        let agrees = !are_there || !known.is_consumed;
        if agrees {
            known.outsiders += if are_there { 1 } else { -1 };
        }
        drop(known);
        // SAFETY: the checker tracks every access and fails the test when two threads meet.
        self.listed.with_mut(|listed| unsafe { *listed += 1 });
        if agrees {
            self.usage.lock().end_telling(are_there);
        }
        agrees
    }

    /// What an outsider does, from its coming to its end.
    fn come_and_go(&self) {
        let state = self.usage.lock_to_refer();
        if state.life() != Life::Live {
            return;
        }
        let tells = !state.is_told() && state.has_pending_donation();
        let mut state = if tells {
            if !self.tell(state, true) {
                drop(self.usage.end_referring());
                return;
            }
            self.usage.lock()
        } else {
            state
        };
        state.add_reference();
        drop(state);
        if tells {
            drop(self.usage.end_referring());
        }
        *self.looking.lock() += 1;
        *self.looking.lock() -= 1;
        let mut state = self.usage.lock_to_refer();
        state.drop_reference().expect("it was added");
        if state.is_told() && !state.is_referenced() {
            assert!(self.tell(state, false));
            drop(self.usage.end_referring());
        }
    }

    /// A call that is donated the buffer.
    fn donate(&self) {
        let mut state = self.usage.lock_for_donation().expect("nothing is lent");
        state.begin_use(User::Execution);
        let has_outsiders = state.is_referenced();
        drop(state);
        if has_outsiders {
            let state = self.usage.lock_to_refer();
            if state.is_referenced() && !state.is_told() {
                assert!(self.tell(state, true), "only this call consumes it");
                drop(self.usage.end_referring());
            }
        }
        let mut known = self.known.lock();
        known.is_consumed = known.outsiders == 0;
        let is_consumed = known.is_consumed;
        if is_consumed {
            assert_eq!(*self.looking.lock(), 0, "the program writes where an outsider looks");
        }
        drop(known);
        let mut state = self.usage.lock();
        state.end_donation();
        if is_consumed {
            state.donate();
        }
    }
}

#[test]
fn the_engine_is_told_of_outsiders_by_one_thread_at_a_time_and_before_it_decides_on_a_donation() {
    crate::every_interleaving(Some(3), || {
        let world = Arc::new(Outsiders::new());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.come_and_go())
            })
            .collect();
        world.donate();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(!world.usage.lock().is_referenced());
        assert_eq!(world.known.lock().outsiders, 0);
    });
}
