//! What becomes of an argument that a program could be donated, and is not: is it ever used after the launch?
//!
//! ```text
//!   launch 1 reads a ... a is dropped                         not used again
//!   launch 2 reads b ... b is read, or an argument once more  used again: from here on nothing is advised
//!   launch 3 reads c ... c is still there                     neither; and nothing is advised as long as c is
//!   launch 4 reads d                                          there with d
//! ```
//!
//! Each launch that reads such an argument leaves a [`LastUse`] with the buffer; the next use of the buffer takes it
//! away, or else its end does. Numbers are relaxed: who reads them while they change is told less, never more.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// So many launches make a habit: of fewer nothing is said.
const HABIT: u64 = 5;

/// One argument of a program on one device.
#[derive(Debug, Default)]
pub struct Undonated {
    /// Launches that read it.
    launches: AtomicU64,
    /// Those whose array was dropped without another use.
    dropped: AtomicU64,
    /// The last launch, while its array is there; 0 after.
    last: AtomicU32,
    /// Whether its array was used again, be it once, or could be by an outsider.
    used_again: AtomicBool,
    /// Whether the last launch's array lay where a result could have taken its place.
    replaceable: AtomicBool,
}

/// What a buffer has of the last launch that read it.
#[derive(Debug)]
pub struct LastUse {
    of: Arc<Undonated>,
    launch: u32,
}

impl Undonated {
    /// Its array was used again, or is used by somebody else.
    pub(super) fn mark_used_again(&self) {
        self.used_again.store(true, Relaxed);
    }

    /// This launch reads it. `replaceable` says whether a result could have taken the place of the array.
    pub(super) fn read_by(self: &Arc<Self>, launch: u32, replaceable: bool) -> LastUse {
        self.launches.fetch_add(1, Relaxed);
        self.last.store(launch, Relaxed);
        self.replaceable.store(replaceable, Relaxed);
        LastUse { of: Arc::clone(self), launch }
    }

    /// How many launches' arrays were dropped without another use, if no other one's was used again or is kept: but for
    /// the last one's, which its caller may be about to drop.
    fn always_dropped(&self) -> Option<u64> {
        let dropped = self.dropped.load(Relaxed);
        let left = self.launches.load(Relaxed).checked_sub(dropped)?;
        let is_last = left == u64::from(self.last.load(Relaxed) != 0);
        (is_last && dropped >= HABIT && self.replaceable.load(Relaxed) && !self.used_again.load(Relaxed))
            .then_some(dropped)
    }
}

/// After how many launches on each device the argument was always dropped without another use; `None` if it was not on
/// one of those that the program ran on.
pub fn always_dropped(devices: &[Arc<Undonated>]) -> Option<u64> {
    let mut least = None;
    for device in devices.iter().filter(|device| device.launches.load(Relaxed) > 0) {
        let dropped = device.always_dropped()?;
        least = Some(least.map_or(dropped, |least: u64| least.min(dropped)));
    }
    least
}

impl LastUse {
    /// Whether it is this launch's.
    pub(super) fn is_of(&self, launch: u32) -> bool {
        self.launch == launch
    }

    /// The buffer is used again.
    pub(super) fn used_again(self) {
        self.of.mark_used_again();
    }

    /// The buffer has ended, and was not used again.
    pub(super) fn ended(self) {
        self.of.dropped.fetch_add(1, Relaxed);
        // Of an earlier launch it is no news that it is not the last.
        let _ = self.of.last.compare_exchange(self.launch, 0, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(launches: u32) -> Arc<Undonated> {
        let argument = Arc::new(Undonated::default());
        (1..=launches).for_each(|launch| argument.read_by(launch, true).ended());
        argument
    }

    #[test]
    fn a_habit_takes_some_launches() {
        assert_eq!(after(4).always_dropped(), None);
        assert_eq!(after(5).always_dropped(), Some(5));
        assert_eq!(after(50).always_dropped(), Some(50));
    }

    #[test]
    fn one_use_more_is_never_forgotten() {
        let argument = after(50);
        argument.read_by(51, true).used_again();
        assert_eq!(argument.always_dropped(), None);
        (52..200).for_each(|launch| argument.read_by(launch, true).ended());
        assert_eq!(argument.always_dropped(), None);
    }

    #[test]
    fn what_is_there_counts_for_nothing_and_what_outlives_the_next_launch_against() {
        let argument = after(5);
        let last = argument.read_by(6, true);
        assert_eq!(argument.always_dropped(), Some(5), "the sixth may be dropped in a moment");
        let next = argument.read_by(7, true);
        assert_eq!(argument.always_dropped(), None, "the sixth is kept");
        next.ended();
        assert_eq!(argument.always_dropped(), None, "it is kept still");
        last.ended();
        assert_eq!(argument.always_dropped(), Some(7));
    }

    #[test]
    fn the_first_array_kept_for_the_whole_loop_is_a_reason_for_silence() {
        let argument = Arc::new(Undonated::default());
        let first = argument.read_by(1, true);
        for launch in 2..50 {
            argument.read_by(launch, true).ended();
            assert_eq!(argument.always_dropped(), None, "launch {launch}");
        }
        first.ended();
        assert_eq!(argument.always_dropped(), Some(49));
    }

    #[test]
    fn what_no_result_could_replace_saves_nothing() {
        let argument = after(9);
        argument.read_by(10, false).ended();
        assert_eq!(argument.always_dropped(), None);
        argument.read_by(11, true).ended();
        assert_eq!(argument.always_dropped(), Some(11));
    }

    #[test]
    fn all_devices_agree_that_ran_it() {
        let idle = || Arc::new(Undonated::default());
        assert_eq!(always_dropped(&[]), None);
        assert_eq!(always_dropped(&[idle(), idle()]), None);
        assert_eq!(always_dropped(&[after(9), idle(), after(7)]), Some(7));
        assert_eq!(always_dropped(&[after(9), after(4)]), None);
        let again = after(9);
        again.mark_used_again();
        assert_eq!(always_dropped(&[after(9), again]), None);
    }
}
