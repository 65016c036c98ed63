//! When arrays are used next, told from the past: which of them to spill.
//!
//! ```text
//!  launches    A B C D | A B C D | A B ...       programs run in loops: here the period is 4
//!  an array    .   x   |   x     |     now       used at a step, so probably one period later again
//!  its maker     m     |  m'     |               what was made one period earlier at the same place in the loop was
//!                                                used at steps that are known
//! ```
//!
//! One program may run for all layers of a model, so that a period is one of the programs and their arguments: an array
//! that is older than a period is an argument at the same place of each, and a younger one was made as long before.
//!
//! The best choice is the array whose next use is furthest away (Belady: "A study of replacement algorithms for a
//! virtual-storage computer", 1966). Where nothing repeats, it is the one that was not used for longest.

use std::cmp::Reverse;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::memory::provenance::{OriginId, Provenance};

/// Launches that are remembered; the longest period is half of them.
const REMEMBERED: usize = 4096;
/// The latest uses of each array that are remembered.
const USES: usize = 8;
/// A period must have shown itself over so many launches.
const LEAST_SHOWN: usize = 8;
/// So many arguments of a launch are compared.
const COMPARED: usize = 8;

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

/// The launches on one device and the arrays that they used. Steps are the caller's numbers of launches, ascending.
#[derive(Debug, Default)]
pub struct UseHistory {
    /// The last launches, the newest at the back.
    launches: VecDeque<Launch>,
    /// The steps at which arrays were used, ascending; of arrays that are gone, too.
    uses: FxHashMap<UseKey, SmallVec<[u32; USES]>>,
    /// The period, if there is one; `None` where it was not looked for since the last launch that did not fit.
    period: Option<Option<Period>>,
    /// The step up to which forgotten uses were taken out.
    swept: u32,
}

#[derive(Debug)]
struct Launch {
    step: u32,
    program: u64,
    /// The first arguments, and since which step each is known.
    arguments: SmallVec<[(UseKey, u32); COMPARED]>,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    /// Launches.
    launches: usize,
    /// Steps.
    steps: u32,
}

impl UseHistory {
    /// Notes that `program` is launched as `step` and uses these arrays; nothing, if that step is noted already: a
    /// launch that waits for memory tries more than once. O(arrays), amortized.
    pub fn launched(&mut self, step: u32, program: u64, arrays: impl Iterator<Item = UseKey>) {
        if self.launches.back().is_some_and(|last| last.step == step) {
            return;
        }
        if self.launches.len() == REMEMBERED {
            self.launches.pop_front();
        }
        let mut arguments = SmallVec::new();
        for array in arrays {
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
        self.launches.push_back(Launch { step, program, arguments });
        let period = self.period.flatten();
        let fits = period.is_some_and(|period| self.repeats_at(self.launches.len() - 1, period.launches));
        if !fits {
            self.period = None;
        }
        self.sweep();
    }

    /// When an array is used next after the last launch. O(1), but O(launches remembered) for the first after a launch
    /// that did not fit what repeats.
    pub fn next_use(&mut self, array: UseKey) -> NextUse {
        let Some(now) = self.launches.back().map(|last| last.step) else { return NextUse::Unknown(Reverse(0)) };
        let last = self.uses.get(&array).and_then(|uses| uses.last().copied());
        let unknown = NextUse::Unknown(Reverse(last.or(array.made()).unwrap_or(0)));
        let period = match self.period {
            Some(known) => known,
            None => *self.period.insert(self.find_period()),
        };
        let Some(Period { steps: period, .. }) = period else { return unknown };
        let before = match array {
            UseKey::Made(origin, step) => self.uses.get(&UseKey::Made(origin, step.wrapping_sub(period))),
            UseKey::Other(_) => None,
        };
        let own = self.uses.get(&array);
        let all = own.into_iter().chain(before).flatten().map(|&step| step.saturating_add(period));
        all.filter(|&step| step > now).min().map_or(unknown, NextUse::At)
    }

    /// The shortest period that the last launches show.
    fn find_period(&self) -> Option<Period> {
        let count = self.launches.len();
        (1..=count / 2).find_map(|launches| {
            let shown = launches.max(LEAST_SHOWN);
            let first = count.checked_sub(shown).filter(|&first| first >= launches)?;
            let repeats = (first..count).rev().all(|at| self.repeats_at(at, launches));
            let steps = self.launches[count - 1].step.wrapping_sub(self.launches[count - 1 - launches].step);
            repeats.then_some(Period { launches, steps })
        })
    }

    /// Whether the launch at this place is like the one so many launches before: the same program, with arguments that
    /// are the same in a loop of this period.
    fn repeats_at(&self, at: usize, launches: usize) -> bool {
        let Some(before) = at.checked_sub(launches).map(|before| &self.launches[before]) else { return false };
        let now = &self.launches[at];
        let lag = now.step.wrapping_sub(before.step);
        let same = |(&(one, since), &(other, _)): (&(UseKey, u32), &(UseKey, u32))| match (one, other) {
            _ if one == other => true,
            // It was there before the launch of a period ago.
            _ if since < before.step => false,
            (UseKey::Made(origin, made), UseKey::Made(other, made_before)) => {
                origin == other && made.wrapping_sub(made_before) == lag
            }
            // Uploads of each turn.
            (UseKey::Other(_), UseKey::Other(_)) => true,
            _ => false,
        };
        now.program == before.program
            && now.arguments.len() == before.arguments.len()
            && now.arguments.iter().zip(&before.arguments).all(same)
    }

    /// Takes out what was used too long ago to tell anything, once in a while.
    fn sweep(&mut self) {
        let (Some(oldest), Some(newest)) = (self.launches.front(), self.launches.back()) else { return };
        let (oldest, newest) = (oldest.step, newest.step);
        if newest.wrapping_sub(self.swept) as usize >= REMEMBERED {
            self.swept = newest;
            self.uses.retain(|_, uses| uses.last().is_some_and(|&last| last >= oldest));
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
    fn one_program_for_all_layers_is_a_loop_of_its_arguments() {
        let mut history = UseHistory::default();
        // Ten layers, and a batch that is uploaded for each turn and used by all of them.
        let launch = |history: &mut UseHistory, step: u32| {
            let batch = 1000 + step / 10;
            let arrays =
                [constant(step as usize % 10), constant(batch as usize), UseKey::Made(OriginId::new(1), step - 1)];
            history.launched(step, 5, arrays.into_iter());
        };
        (10..65).for_each(|step| launch(&mut history, step));
        let next: Vec<_> = (0..10).map(|layer| history.next_use(constant(layer))).collect();
        let expected = [70, 71, 72, 73, 74, 65, 66, 67, 68, 69].map(NextUse::At);
        assert_eq!(next, expected);
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
        for step in 1..100_000 {
            let made = UseKey::Made(OriginId::new(1), step);
            history.launched(step, u64::from(step % 3), [made].into_iter());
        }
        assert!(history.uses.len() <= 2 * REMEMBERED + 1, "{}", history.uses.len());
        assert_eq!(history.launches.len(), REMEMBERED);
    }
}
