//! What the limits of the system let this process map: addresses (`ulimit -v`) and data (`ulimit -d`).
//!
//! ```text
//!  |<------------------------- limit ------------------------->|
//!  |  libraries, stacks, what malloc has  |<------ left ------>|
//!                                         |  kept  |   free   |
//!                                                    arrays, scratch
//! ```
//!
//! What is kept is for what is made later: threads of XLA's, of both copies of it in the process, and malloc. A thread
//! that has no place for its stack ends the process, and so does malloc within XLA.

use std::fmt;

use rustix::{
    process::{Resource, getrlimit},
    thread::sched_getaffinity,
};

use crate::{
    device::host::process::{sizes, threads},
    error::{Code, Error, Result},
    units::Bytes,
};

/// For what malloc and XLA map beside threads' stacks, in arenas of malloc's of 64 MiB each.
const KEPT_BESIDE_STACKS: Bytes = Bytes::mib(128);

/// The stack of a thread where `ulimit -s` sets no limit; C then takes 2 MiB on x86-64.
const STACK: Bytes = Bytes::mib(8);

/// Where arrays and scratch would have less, an error that names the limit helps more than a start.
pub(super) const LEAST_FREE: Bytes = Bytes::mib(32);

/// What this process may still map under the limit that leaves it least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// How the shell sets the limit.
    command: &'static str,
    limit: Bytes,
    left: Bytes,
    kept: Bytes,
}

impl Mappable {
    /// As it is now; `None` where there is no such limit. Reads a file of the system's where there is one.
    pub fn now() -> Option<Self> {
        let limits = [("ulimit -v", Resource::As, 0), ("ulimit -d", Resource::Data, 5)];
        let limits = limits.map(|(command, resource, field)| Some((command, getrlimit(resource).current?, field)));
        if limits == [None; 2] {
            return None;
        }
        let sizes = sizes();
        let used = |field: usize| sizes.get(field).copied().unwrap_or(Bytes::ZERO);
        let limits = limits.into_iter().flatten();
        let limits = limits.map(|(command, limit, field)| (command, Bytes::new(limit), used(field)));
        let processors = sched_getaffinity(None).map_or(1, |set| set.count());
        Self::tightest(limits, kept(getrlimit(Resource::Stack).current.map(Bytes::new), processors, threads()))
    }

    /// The one of `limits`, each with what is used of it, that leaves least.
    fn tightest(limits: impl Iterator<Item = (&'static str, Bytes, Bytes)>, kept: Bytes) -> Option<Self> {
        let left =
            |(command, limit, used): (_, Bytes, _)| Self { command, limit, left: limit.saturating_sub(used), kept };
        limits.map(left).min_by_key(|limit| limit.left)
    }

    /// What arrays and scratch may have.
    pub fn free(&self) -> Bytes {
        self.left.saturating_sub(self.kept)
    }

    /// Whether there is room for some arrays beside what is kept, and for `more` that is to be mapped before.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where there is not; it names the limit and what is needed.
    pub fn check(&self, more: Bytes) -> Result<()> {
        let needed =
            self.kept.checked_add(more).and_then(|needed| needed.checked_add(LEAST_FREE)).unwrap_or(Bytes::MAX);
        if self.left >= needed {
            return Ok(());
        }
        Err(Error::new(Code::ResourceExhausted, format!("{self}; XLA, threads and malloc need {needed}")))
    }
}

impl fmt::Display for Mappable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, limit, left, .. } = self;
        write!(f, "`{command}` lets this process map {limit}, of which {left} are left")
    }
}

/// What has to be kept where a thread's stack takes `stack`, the process may run on so many processors, and has so many
/// threads already.
///
/// NumPy and XLA have pools with threads for each processor, and there are two copies of XLA: a process on two
/// processors had 28 threads in all after its first matrix product.
fn kept(stack: Option<Bytes>, processors: u32, threads: u64) -> Bytes {
    let to_come = (16 + 8 * u64::from(processors)).saturating_sub(threads);
    Bytes::new(stack.unwrap_or(STACK).get().saturating_mul(to_come).saturating_add(KEPT_BESIDE_STACKS.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under `ulimit -v` and `-d` of so many MiB, of which 600 and 200 are used.
    fn under(addresses: u64, data: u64) -> Mappable {
        let limits = [("ulimit -v", addresses, 600), ("ulimit -d", data, 200)];
        let limits = limits.map(|(command, limit, used)| (command, Bytes::mib(limit), Bytes::mib(used)));
        Mappable::tightest(limits.into_iter(), Bytes::mib(400)).expect("two limits")
    }

    #[test]
    fn the_limit_that_leaves_least_counts() {
        assert_eq!(Mappable::tightest([].into_iter(), Bytes::ZERO), None);
        let (addresses, data) = (under(2000, 2000), under(2000, 1500));
        assert_eq!(
            (addresses.command, addresses.left, addresses.free()),
            ("ulimit -v", Bytes::mib(1400), Bytes::mib(1000))
        );
        assert_eq!((data.command, data.left, data.free()), ("ulimit -d", Bytes::mib(1300), Bytes::mib(900)));
        // More is used than was allowed later.
        assert_eq!((under(500, 500).left, under(500, 500).free()), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn what_is_kept_and_comes_before_has_to_be_left() {
        // 532 MiB are left: 400 to keep, 100 for an engine, 32 for arrays.
        assert_eq!(under(1132, 9000).check(Bytes::mib(100)), Ok(()));
        let error = under(1131, 9000).check(Bytes::mib(100)).expect_err("one less");
        assert_eq!(error.code, Code::ResourceExhausted);
        assert_eq!(
            error.message,
            "`ulimit -v` lets this process map 1.10GiB, of which 531.00MiB are left; XLA, threads and malloc need 532.00MiB"
        );
        assert!(under(9000, 9000).check(Bytes::MAX).is_err());
    }

    #[test]
    fn stacks_are_kept_for_the_threads_of_each_processor() {
        assert_eq!(kept(None, 2, 0), kept(Some(Bytes::mib(8)), 2, 0));
        assert_eq!(kept(Some(Bytes::mib(8)), 2, 2), Bytes::mib(128 + 8 * 30));
        assert_eq!(kept(Some(Bytes::mib(2)), 64, 65), Bytes::mib(128 + 2 * 463));
        assert_eq!(kept(Some(Bytes::MAX), 64, 1), Bytes::MAX);
        // All are there, and some of the user's.
        assert_eq!(kept(None, 2, 100), Bytes::mib(128));
    }
}
