//! A device and its tier, of which only sizes are simulated: what a policy copies for a trace of executions.

use std::{cmp::Reverse, collections::BTreeSet};

use pjrt_arena::{
    memory::next_use::{NextUse, UseHistory},
    units::Bytes,
};

use crate::spill::launches::Launches;

/// Which array goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The one whose next use pjrt-arena takes to be furthest away.
    Predict,
    /// The one that was not used for longest.
    Lru,
    /// The one that is on the device for longest.
    Fifo,
    /// The one whose next use is furthest away in the trace.
    Belady,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// From the device to the tier.
    pub(super) out: Bytes,
    /// From the tier to the device.
    pub(super) back: Bytes,
}

/// Where an array is, and what policies ask of it. A time is a number of launches.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    on_device: bool,
    /// The tier has a copy. No program writes an array that stays, so that the copy is good for ever.
    in_tier: bool,
    /// When it was last an argument or a result.
    used: usize,
    /// How many came to the device before it.
    came: usize,
}

/// The simulation of one policy.
struct Device<'a> {
    trace: &'a Launches,
    order: Order,
    history: UseHistory,
    capacity: Bytes,
    in_use: Bytes,
    /// Of each array of the trace.
    states: Vec<State>,
    residents: BTreeSet<usize>,
    came: usize,
    moved: Moved,
}

/// Replays a trace each of whose launches fits into `capacity`. O(n log n) for n arrays on the device and each launch
/// that finds it full.
pub(super) fn replay(trace: &Launches, capacity: Bytes, order: Order) -> Moved {
    let states = vec![State::default(); trace.arrays.len()];
    let (history, residents) = (UseHistory::default(), BTreeSet::new());
    let (in_use, came, moved) = (Bytes::ZERO, 0, Moved::default());
    let mut device = Device { trace, order, history, capacity, in_use, states, residents, came, moved };
    (0..trace.launches.len()).for_each(|at| device.launch(at));
    device.moved
}

impl Device<'_> {
    fn launch(&mut self, at: usize) {
        let launch = &self.trace.launches[at];
        if self.order == Order::Predict {
            self.history.launched(launch.step, launch.program, launch.keys.iter().copied());
        }
        launch.arguments.iter().for_each(|&array| self.states[array].used = at);
        for &array in &launch.arguments {
            if !self.states[array].on_device {
                let bytes = self.trace.arrays[array].bytes;
                self.make_room(at, bytes);
                if self.states[array].in_tier {
                    self.moved.back += bytes;
                }
                self.arrive(array);
            }
        }
        self.make_room(at, launch.need);
        // From here on more may be in use than there is, until those are gone whose blocks the results have taken.
        for &array in &launch.results {
            self.states[array].used = at;
            self.arrive(array);
        }
        launch.gone.iter().for_each(|&array| self.leave(array));
        debug_assert!(self.in_use <= self.capacity, "step {}", launch.step);
    }

    fn arrive(&mut self, array: usize) {
        self.in_use += self.trace.arrays[array].bytes;
        self.residents.insert(array);
        self.came += 1;
        let state = &mut self.states[array];
        (state.on_device, state.came) = (true, self.came);
    }

    fn leave(&mut self, array: usize) {
        if std::mem::take(&mut self.states[array].on_device) {
            self.in_use -= self.trace.arrays[array].bytes;
            self.residents.remove(&array);
        }
    }

    /// Spills arrays that the launch at this place has no use for until `bytes` are free. Of equals those go first that
    /// cost nothing because the tier has a copy, and then the larger ones.
    fn make_room(&mut self, at: usize, bytes: Bytes) {
        let mut missing = (self.in_use + bytes).saturating_sub(self.capacity);
        if missing.is_zero() {
            return;
        }
        // What the launch uses is marked as used now.
        let idle: Vec<usize> = self.residents.iter().copied().filter(|&array| self.states[array].used != at).collect();
        let mut order: Vec<_> = idle
            .into_iter()
            .map(|array| (self.distance(at, array), self.states[array].in_tier, self.trace.arrays[array].bytes, array))
            .collect();
        order.sort_by_key(|&(distance, copied, bytes, array)| (Reverse((distance, copied, bytes)), array));
        for (_, copied, bytes, array) in order {
            if missing.is_zero() {
                break;
            }
            if !copied {
                self.moved.out += bytes;
                self.states[array].in_tier = true;
            }
            self.leave(array);
            missing = missing.saturating_sub(bytes);
        }
    }

    /// How far away the policy takes the next use to be; the greatest goes first.
    fn distance(&mut self, at: usize, array: usize) -> u64 {
        let (state, array) = (self.states[array], &self.trace.arrays[array]);
        match self.order {
            Order::Predict => match self.history.next_use(array.key) {
                NextUse::At(step) => step.into(),
                NextUse::Unknown(Reverse(last)) => u64::MAX - u64::from(last),
            },
            Order::Lru => u64::MAX - state.used as u64,
            Order::Fifo => u64::MAX - state.came as u64,
            Order::Belady => {
                let next = array.uses.partition_point(|&launch| launch <= at);
                array.uses.get(next).map_or(u64::MAX, |&launch| launch as u64)
            }
        }
    }
}
