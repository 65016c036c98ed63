//! What every policy has to copy at least, whatever it knows of the time to come.
//!
//! ```text
//!  launches   ... i | i+1 ........ j |        while launch i runs, the device has `capacity - room(i)` for arrays that
//!                 ^  \____ uses ___/          launch i has no use for. The others of those that i+1 to j use come back
//!                 |
//!  launches   i ........ j | j+1          while launch j+1 runs, there is `capacity - room(j+1)` for what i to j made,
//!             \__ make ___/               that still exists, and that j+1 has no use for. The others went out
//! ```
//!
//! Stretches of launches that do not overlap add up: an array comes back in one of them and again in the next, and what
//! they make are different arrays, each of which goes out at least once. The best division into stretches is found by
//! dynamic programming, once for what comes back and once for what goes out. That both are unavoidable at the same
//! time is not made use of, so that the least possible may be more.

use std::{cell::RefCell, ops::RangeInclusive};

use pjrt_arena::units::Bytes;

use crate::spill::{device::Moved, launches::Launches};

/// Arguments and results that are looked at; the longest stretch follows from it. A shorter one gives a lower floor.
const MOST_WORK: usize = 100_000_000;

/// The floor for a trace each of whose launches fits into `capacity`.
pub(super) fn floor(trace: &Launches, capacity: Bytes) -> Moved {
    let touched = trace.launches.iter().map(|launch| launch.arguments.len() + launch.results.len() + launch.gone.len());
    let longest = MOST_WORK / touched.sum::<usize>().max(1);
    let free: Vec<Bytes> = trace.launches.iter().map(|launch| capacity.saturating_sub(launch.room)).collect();
    Moved { out: out(trace, &free, longest), back: back(trace, &free, longest) }
}

/// The most that stretches hold together which do not overlap. `stretch` begins one at a launch; what it gives is
/// called with each next launch and tells what the stretch up to there holds.
fn best<F: FnMut(usize) -> Bytes>(launches: usize, longest: usize, stretch: impl Fn(usize) -> F) -> Bytes {
    let mut best = vec![Bytes::ZERO; launches + 1];
    for begin in 0..launches {
        let mut held = stretch(begin);
        for end in begin..launches.min(begin.saturating_add(longest)) {
            best[end + 1] = best[end + 1].max(best[begin] + held(end));
        }
        best[begin + 1] = best[begin + 1].max(best[begin]);
    }
    best[launches]
}

/// What comes back at least. Each of these arrays is there before the stretch, and not one that the launch before it
/// has on the device.
fn back(trace: &Launches, free: &[Bytes], longest: usize) -> Bytes {
    // The last stretch, by its first launch, that an array was counted in or that does not count it.
    let seen = RefCell::new(vec![usize::MAX; trace.arrays.len()]);
    best(trace.launches.len(), longest, |begin| {
        let before = begin.checked_sub(1).map(|before| (&trace.launches[before], free[before]));
        for &array in before.iter().flat_map(|(launch, _)| launch.arguments.iter().chain(&launch.results)) {
            seen.borrow_mut()[array] = begin;
        }
        let (seen, mut used) = (&seen, Bytes::ZERO);
        move |end| {
            let Some((_, free)) = before else { return Bytes::ZERO };
            for &array in &trace.launches[end].arguments {
                let was_there = trace.arrays[array].born.is_some_and(|born| born < begin);
                if was_there && std::mem::replace(&mut seen.borrow_mut()[array], begin) != begin {
                    used += trace.arrays[array].bytes;
                }
            }
            used.saturating_sub(free)
        }
    })
}

/// What goes out at least. A stretch counts what its launches make, or use first, while the launch after it runs.
fn out(trace: &Launches, free: &[Bytes], longest: usize) -> Bytes {
    best(trace.launches.len(), longest, |begin| {
        let mut existing = Bytes::ZERO;
        move |end| {
            let size = |arrays: &[usize], born: RangeInclusive<usize>| -> Bytes {
                let arrays = arrays.iter().map(|&array| &trace.arrays[array]);
                arrays.filter(|array| array.born.is_some_and(|at| born.contains(&at))).map(|array| array.bytes).sum()
            };
            let launch = &trace.launches[end];
            existing = existing + size(&launch.arguments, end..=end) + size(&launch.results, end..=end);
            existing -= size(&launch.gone, begin..=end);
            let Some(next) = trace.launches.get(end + 1) else { return Bytes::ZERO };
            (existing - size(&next.arguments, begin..=end)).saturating_sub(free[end + 1])
        }
    })
}
