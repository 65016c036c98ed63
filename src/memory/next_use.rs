//! When arrays are used next, told from the past: which of them to spill.
//!
//! ```text
//!  launches    A B C D | A B C D | A B ...       programs run in loops: the last launch, B, is like the B of before,
//!                                                because the launches before both are the same
//!  an array    .   x   |   x     |     now       used two launches after that B, so probably two from now
//!  its maker     m     |  m'     |               what the launch made that m' is like was used at steps that are known
//! ```
//!
//! Each launch keeps which one it was like, so that a loop that something interrupts, an evaluation for instance, is
//! known again where it goes on. One program may run for all layers of a model, so that of the earlier launches those
//! are better whose arguments are alike, too: those that were there before are the same, younger ones were made as long
//! before.
//!
//! The best choice is the array whose next use is furthest away (Belady: "A study of replacement algorithms for a
//! virtual-storage computer", 1966). Where nothing repeats, it is the one that was not used for longest.

use std::cmp::Reverse;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::memory::provenance::{OriginId, Provenance};

/// Launches that are remembered; a loop can be told whose turn is half as long.
const REMEMBERED: usize = 4096;
/// So many launches are remembered and arguments of them, together: fewer launches where each has many arguments.
const ENTRIES: usize = 1 << 18;
/// So many launches are remembered at least.
const FEWEST: usize = 2 * LEAST_SHOWN;
/// The latest uses of each array that are remembered.
const USES: usize = 8;
/// So many launches must be the same before the last one is taken to repeat another.
const LEAST_SHOWN: usize = 4;
/// So many arguments of a launch are compared.
const COMPARED: usize = 8;
/// Over so many launches arguments are compared at most.
const COMPARED_LAUNCHES: usize = 64;
/// What is repeated by its programs alone is looked for again after so many launches.
const SOUGHT_AGAIN: usize = 8;
/// An array's maker is followed back over so many turns of a loop.
const TURNS: usize = 64;

/// What an array is called here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UseKey {
    /// A program's result, by what it is and the number of the launch that made it.
    Made(OriginId, u32),
    /// Another array, by a number of the caller's that no other array ever has.
    Other(u64),
}

impl UseKey {
    /// An array's key by what wrote it, or else by the caller's number for it.
    pub fn new(provenance: Provenance, number: impl FnOnce() -> u64) -> Self {
        match provenance.run.step {
            0 => Self::Other(number()),
            step => Self::Made(provenance.origin, step),
        }
    }

    /// The launch that made it, if a program did.
    fn made(self) -> Option<u32> {
        match self {
            Self::Made(_, step) => Some(step),
            Self::Other(_) => None,
        }
    }
}

/// How soon an array is used again, to be compared; the greatest is spilled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextUse {
    /// At this step, counted from the beginning.
    At(u32),
    /// At no step that the past shows; it was last used at this one.
    Unknown(Reverse<u32>),
}

/// A launch, and the earlier one that it repeats. What that is, is looked for only where memory is short.
#[derive(Debug)]
struct Launch {
    step: u32,
    program: u64,
    /// Its place among launches of one program in a row.
    in_row: u32,
    /// The step of the launch that it repeats, by the launches before both; 0 where none was found or looked for.
    like: u32,
    /// So many launches up to here repeat those up to that one.
    shown: usize,
    /// The arguments are like those of that launch, too.
    exact: bool,
    /// The first arguments, and since which step each is known.
    arguments: SmallVec<[(UseKey, u32); COMPARED]>,
    /// All arguments, to be forgotten with the launch.
    used: Box<[UseKey]>,
}

impl Launch {
    /// So many of [`ENTRIES`].
    fn entries(&self) -> usize {
        1 + self.used.len()
    }

    /// Whether the arguments are those of `before`, an earlier launch of the same program, if that is repeated.
    fn has_arguments_like(&self, before: &Self) -> bool {
        let lag = self.step.wrapping_sub(before.step);
        let alike = |(&(one, since), &(other, _)): (&(UseKey, u32), &(UseKey, u32))| match (one, other) {
            _ if one == other => true,
            // It was there before the launch that is repeated.
            _ if since < before.step => false,
            (UseKey::Made(origin, made), UseKey::Made(other, made_before)) => {
                origin == other && made.wrapping_sub(made_before) == lag
            }
            // Uploads of each turn.
            (UseKey::Other(_), UseKey::Other(_)) => true,
            _ => false,
        };
        self.arguments.len() == before.arguments.len() && self.arguments.iter().zip(&before.arguments).all(alike)
    }
}

/// The launches on one device and the arrays that they used. Steps are the caller's numbers of launches, ascending.
#[derive(Debug, Default)]
pub struct UseHistory {
    /// The last launches, the newest at the back.
    launches: VecDeque<Launch>,
    /// The steps at which arrays of these launches were used, ascending; of arrays that are gone, too.
    uses: FxHashMap<UseKey, SmallVec<[u32; USES]>>,
    /// It was looked for what the last launch repeats.
    sought: bool,
    /// The entries of the launches.
    entries: usize,
}

impl UseHistory {
    /// Notes that `program` is launched as `step` and uses these arrays; nothing, if that is the last launch already.
    /// O(arrays), and as much for each launch that is forgotten for it.
    pub fn launched(&mut self, step: u32, program: u64, arrays: impl Iterator<Item = UseKey>) {
        let last = self.launches.back().map(|last| (last.step, last.program, last.in_row));
        if last.is_some_and(|(last, ..)| last == step) {
            return;
        }
        let in_row = last.filter(|last| last.1 == program).map_or(1, |last| last.2.saturating_add(1));
        let mut arguments = SmallVec::new();
        let used: Box<[UseKey]> = arrays.collect();
        for &array in &used {
            let uses = self.uses.entry(array).or_default();
            if arguments.len() < COMPARED {
                arguments.push((array, array.made().or_else(|| uses.first().copied()).unwrap_or(step)));
            }
            if uses.last() == Some(&step) {
                continue;
            }
            if uses.len() == USES {
                uses.remove(0);
            }
            uses.push(step);
        }
        let mut launch = Launch { step, program, in_row, like: 0, shown: 0, exact: false, arguments, used };
        // Where arguments did not tell so far, they may by now.
        self.sought = self.goes_on(&mut launch) && (launch.exact || !launch.shown.is_multiple_of(SOUGHT_AGAIN));
        self.entries += launch.entries();
        self.launches.push_back(launch);
        while self.launches.len() > REMEMBERED || self.entries > ENTRIES && self.launches.len() > FEWEST {
            self.forget_first();
        }
    }

    /// Whether `launch` repeats the launch after the one that the last one repeats; notes it then.
    fn goes_on(&self, launch: &mut Launch) -> bool {
        let Some(last) = self.launches.back() else { return false };
        let next = self.place(last.like).and_then(|place| self.launches.get(place + 1));
        let Some(next) = next.filter(|next| next.program == launch.program) else { return false };
        if last.exact && !launch.has_arguments_like(next) {
            return false;
        }
        (launch.like, launch.shown, launch.exact) = (next.step, last.shown.saturating_add(1), last.exact);
        true
    }

    /// When an array is used next after the last launch. O(log launches) for each turn of a loop since the launch that
    /// the last one repeats, but O(launches remembered) for the first after a launch that does not go on with what was
    /// repeated so far.
    pub fn next_use(&mut self, array: UseKey) -> NextUse {
        if !std::mem::replace(&mut self.sought, true) {
            self.seek();
        }
        let Some(now) = self.launches.back() else { return NextUse::Unknown(Reverse(0)) };
        let own = self.uses.get(&array);
        let last = own.and_then(|uses| uses.last().copied()).or(array.made());
        let unknown = NextUse::Unknown(Reverse(last.unwrap_or(0)));
        if now.like == 0 || now.shown < LEAST_SHOWN {
            return unknown;
        }
        let before = match array {
            UseKey::Made(origin, step) => {
                // What is made after the launch that is repeated now is not there yet then.
                let mut makers = std::iter::successors(self.like(step), |&maker| self.like(maker)).take(TURNS);
                makers.find(|&maker| maker <= now.like).and_then(|maker| self.uses.get(&UseKey::Made(origin, maker)))
            }
            UseKey::Other(_) => None,
        };
        let all = own.into_iter().chain(before).flatten();
        let next = all.filter_map(|&step| step.checked_sub(now.like)).filter(|&later| later != 0).min();
        next.map_or(unknown, |later| NextUse::At(now.step.saturating_add(later)))
    }

    /// The step of the launch that the launch of this step repeats.
    fn like(&self, step: u32) -> Option<u32> {
        let like = self.launches[self.place(step)?].like;
        (like != 0).then_some(like)
    }

    /// Where the launch of this step is remembered.
    fn place(&self, step: u32) -> Option<usize> {
        self.launches.binary_search_by_key(&step, |launch| launch.step).ok()
    }

    /// Finds the launch that the last one repeats: the earlier one up to which most launches are those up to the last
    /// one, with their arguments if there is such a one. Of several it is one with the same place in a row of one
    /// program, because the launches of a row are all alike; and of these the latest. Those before repeat those before
    /// that one, where nothing is known of them, or their programs alone told. O(launches remembered), and for each
    /// that may be repeated as many as have arguments like the last ones, [`COMPARED_LAUNCHES`] at most.
    fn seek(&mut self) {
        let count = self.launches.len();
        let program = |back: usize| self.launches[count - 1 - back].program;
        let Some(in_row) = self.launches.back().map(|last| last.in_row) else { return };
        // The function Z of the programs, from the last on: how many are the same from there on as from the beginning.
        let mut same = vec![0; count];
        let (mut begin, mut end) = (0, 0);
        let mut best = (0, 0, false, Reverse(0));
        for back in 1..count {
            let mut length = if back < end { same[back - begin].min(end - back) } else { 0 };
            while back + length < count && program(back + length) == program(length) {
                length += 1;
            }
            if back + length > end {
                (begin, end) = (back, back + length);
            }
            same[back] = length;
            let exact = |&at: &usize| {
                let launch = &self.launches[count - 1 - at];
                launch.has_arguments_like(&self.launches[count - 1 - at - back])
            };
            let exact = (0..length.min(COMPARED_LAUNCHES)).take_while(exact).count();
            let exact = if exact < LEAST_SHOWN { 0 } else { exact };
            best = best.max((exact, length, self.launches[count - 1 - back].in_row == in_row, Reverse(back)));
        }
        let (exact, shown, _, Reverse(back)) = best;
        for earlier in 0..shown {
            let like = self.launches[count - 1 - earlier - back].step;
            let launch = &mut self.launches[count - 1 - earlier];
            if launch.like == 0 || exact > earlier && !launch.exact {
                (launch.like, launch.shown, launch.exact) = (like, shown - earlier, exact > earlier);
            }
        }
    }

    /// Forgets the first launch, and the arrays that no later one uses. O(its arrays).
    fn forget_first(&mut self) {
        let Some(first) = self.launches.pop_front() else { return };
        self.entries -= first.entries();
        for array in &first.used {
            if self.uses.get(array).is_some_and(|uses| uses.last() == Some(&first.step)) {
                self.uses.remove(array);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(number: usize) -> UseKey {
        UseKey::Other(number as u64)
    }

    /// Runs programs of `count` layers, forward and back: layer `i` reads its weights twice and makes them anew.
    struct Training {
        history: UseHistory,
        step: u32,
        weights: Vec<UseKey>,
    }

    impl Training {
        fn new(layers: usize) -> Self {
            Self { history: UseHistory::default(), step: 0, weights: (0..layers).map(constant).collect() }
        }

        fn launch(&mut self, program: u64, arrays: &[UseKey]) {
            self.step += 1;
            // It tries twice.
            (0..2).for_each(|_| self.history.launched(self.step, program, arrays.iter().copied()));
            // Memory is short at each launch.
            self.history.next_use(constant(0));
        }

        fn turn(&mut self) {
            for layer in 0..self.weights.len() {
                self.launch(1, &[self.weights[layer]]);
            }
            for layer in (0..self.weights.len()).rev() {
                self.launch(2, &[self.weights[layer]]);
                self.weights[layer] = UseKey::Made(OriginId::new(7), self.step);
            }
        }
    }

    #[test]
    fn the_past_tells_when_the_weights_of_a_layer_are_used() {
        let mut training = Training::new(5);
        (0..3).for_each(|_| training.turn());
        // In the middle of the fourth turn.
        training.launch(1, &[training.weights[0]]);
        training.launch(1, &[training.weights[1]]);
        let begin = 31;
        let next: Vec<_> = training.weights.iter().map(|&array| training.history.next_use(array)).collect();
        // 0 and 1 on the way back, the others on the way forward.
        let expected = [begin + 9, begin + 8, begin + 2, begin + 3, begin + 4].map(NextUse::At);
        assert_eq!(next, expected);
        assert_eq!(training.history.next_use(constant(99)), NextUse::Unknown(Reverse(0)), "never seen");
    }

    #[test]
    fn a_loop_that_was_interrupted_is_known_where_it_goes_on() {
        let mut training = Training::new(16);
        (0..3).for_each(|_| training.turn());
        let evaluate = |training: &mut Training| {
            (0..16).for_each(|layer| training.launch(3, &[training.weights[layer]]));
        };
        evaluate(&mut training);
        // Six layers of the way forward. The first evaluation is over, and the past knows what follows on a turn.
        (0..6).for_each(|layer| training.launch(1, &[training.weights[layer]]));
        let now = training.step;
        let next = |training: &mut Training, layer: usize| training.history.next_use(training.weights[layer]);
        assert_eq!(next(&mut training, 6), NextUse::At(now + 1));
        assert_eq!(next(&mut training, 15), NextUse::At(now + 10));
        assert_eq!(next(&mut training, 5), NextUse::At(now + 10 + 11));
        (6..16).for_each(|layer| training.launch(1, &[training.weights[layer]]));
        for layer in (0..16).rev() {
            training.launch(2, &[training.weights[layer]]);
            training.weights[layer] = UseKey::Made(OriginId::new(7), training.step);
        }
        // Two turns later the second evaluation is like the first, before which the weights were made by others.
        training.turn();
        training.turn();
        (0..6).for_each(|layer| training.launch(3, &[training.weights[layer]]));
        let now = training.step;
        assert_eq!(next(&mut training, 6), NextUse::At(now + 1));
        assert_eq!(next(&mut training, 5), NextUse::At(now + 10 + 6), "after the evaluation");
    }

    #[test]
    fn a_row_of_one_program_is_not_taken_for_the_loop() {
        let mut training = Training::new(16);
        (0..2).for_each(|_| training.turn());
        (0..12).for_each(|layer| training.launch(1, &[training.weights[layer]]));
        let now = training.step;
        assert_eq!(training.history.next_use(training.weights[12]), NextUse::At(now + 1));
        assert_eq!(training.history.next_use(training.weights[11]), NextUse::At(now + 5 + 4));
    }

    #[test]
    fn one_program_for_all_layers_is_a_loop_of_its_arguments() {
        let mut history = UseHistory::default();
        // Ten layers, and a batch that is uploaded for each turn and used by all of them.
        let launch = |history: &mut UseHistory, step: u32| {
            let batch = 1000 + step / 10;
            let arrays =
                [constant(step as usize % 10), constant(batch as usize), UseKey::Made(OriginId::new(1), step - 1)];
            history.launched(step, 5, arrays.into_iter());
        };
        for step in 10..65 {
            launch(&mut history, step);
            // Memory is short at each launch.
            history.next_use(constant(0));
        }
        let next: Vec<_> = (0..10).map(|layer| history.next_use(constant(layer))).collect();
        let expected = [70, 71, 72, 73, 74, 65, 66, 67, 68, 69].map(NextUse::At);
        assert_eq!(next, expected);
        // Other arrays in the same order.
        let other =
            |step: u32| [constant(20 + step as usize % 10), constant(2000), UseKey::Made(OriginId::new(1), step - 1)];
        (65..87).for_each(|step| history.launched(step, 5, other(step).into_iter()));
        assert_eq!(history.next_use(constant(29)), NextUse::At(89));
        assert_eq!(history.next_use(constant(26)), NextUse::At(96));
    }

    #[test]
    fn where_nothing_repeats_what_was_unused_for_longest_goes_first() {
        let mut history = UseHistory::default();
        for step in 1..40 {
            history.launched(step, u64::from(step * step), [constant(step as usize % 7)].into_iter());
        }
        let mut order: Vec<usize> = (0..7).collect();
        order.sort_by_key(|&array| Reverse(history.next_use(constant(array))));
        // The last step was 39, of array 4.
        assert_eq!(order, [5, 6, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_never_used_again_goes_before_what_is() {
        let mut history = UseHistory::default();
        history.launched(1, 9, [constant(1), constant(2)].into_iter());
        (2..40).for_each(|step| history.launched(step, 5, [constant(2)].into_iter()));
        assert!(history.next_use(constant(1)) > history.next_use(constant(2)));
        assert_eq!(history.next_use(constant(2)), NextUse::At(40));
    }

    #[test]
    fn a_loop_that_changes_is_learnt_anew() {
        let mut history = UseHistory::default();
        let turn = |history: &mut UseHistory, from: u32, programs: &[u64]| {
            for (step, &program) in (from..).zip(programs) {
                history.launched(step, program, [constant(program as usize)].into_iter());
            }
        };
        (0..8).for_each(|turns| turn(&mut history, 1 + 3 * turns, &[1, 2, 3]));
        assert_eq!(history.next_use(constant(1)), NextUse::At(25));
        (0..8).for_each(|turns| turn(&mut history, 25 + 4 * turns, &[1, 2, 4, 4]));
        assert_eq!(history.next_use(constant(2)), NextUse::At(58));
        assert_eq!(history.next_use(constant(3)), NextUse::Unknown(Reverse(24)), "no more");
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = UseHistory::default();
        for step in 1..20_000 {
            let made = UseKey::Made(OriginId::new(1), step);
            history.launched(step, u64::from(step % 3), [made].into_iter());
        }
        assert_eq!((history.uses.len(), history.launches.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn memory_is_bounded_where_each_launch_has_thousands_of_new_arguments() {
        let leaves = 1000;
        let mut history = UseHistory::default();
        let make = |step: u32| (0..leaves).map(move |leaf| UseKey::Made(OriginId::new(leaf), step - 1));
        for step in 1..1000 {
            history.launched(step, 3, make(step));
        }
        assert!(history.uses.len() <= ENTRIES, "{}", history.uses.len());
        assert_eq!(history.entries, history.launches.iter().map(Launch::entries).sum::<usize>());
        assert_eq!(history.launches.len(), ENTRIES / (1 + leaves as usize));
        assert_eq!(history.next_use(UseKey::Made(OriginId::new(7), 999)), NextUse::At(1000), "it repeats itself");
        // Launches with more arguments than all that are remembered.
        for step in 1000..1000 + 2 * FEWEST as u32 {
            history.launched(step, 4, (0..100_000).map(|leaf| UseKey::Made(OriginId::new(leaf), step - 1)));
        }
        assert_eq!((history.launches.len(), history.uses.len()), (FEWEST, FEWEST * 100_000));
    }
}
