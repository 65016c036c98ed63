//! A device's part in a group of processes that share its memory.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::Error,
    group::{Ask, Group, MemberInfo, Refused, Share, Taken, Wanted},
    memory::{
        budget::{Beyond, Whole},
        group::OWED_FOR,
    },
    runtime::device_memory::spill_record::TransferCounts,
    units::Bytes,
};

/// How long memory that could not be given back is not offered again, while as much is in use as before.
const STUCK_FOR: Duration = Duration::from_secs(1);

thread_local! {
    /// What a group refused to this thread since [`GroupPart::forget_refusal`]. An allocation runs on one thread.
    static REFUSAL: Cell<Option<Refusal>> = const { Cell::new(None) };
}

/// How long others that did not give what they owed are not waited for again.
const LATE_FOR: Duration = Duration::from_secs(10);

/// Why a group gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// So much was not free.
    Short(Bytes),
    /// It cannot be used.
    Broken,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct GroupPart {
    share: Share,
    /// The number of the device in the group.
    device: usize,
    /// All that this client has of it.
    taken: Mutex<Option<Taken>>,
    stuck: Mutex<Option<Stuck>>,
    /// When others were found not to give what they owe.
    late: Mutex<Option<Instant>>,
    /// What was asked for, and how long that was waited for.
    pub asked: TransferCounts,
    /// What was given back for others, and how long that took.
    pub given: TransferCounts,
}

/// Memory that lies idle and could not be given back.
#[derive(Debug)]
struct Stuck {
    /// What was in use then.
    used: Bytes,
    bytes: Bytes,
    since: Instant,
}

impl GroupPart {
    /// The part in the device of this number.
    ///
    /// # Errors
    /// OUT_OF_RANGE for a device that the group does not have.
    pub fn new(group: &Arc<Group>, device: usize) -> Result<Self, Error> {
        Ok(Self {
            share: group.share(device)?,
            device,
            taken: Mutex::default(),
            stuck: Mutex::default(),
            late: Mutex::default(),
            asked: TransferCounts::default(),
            given: TransferCounts::default(),
        })
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        self.share.group()
    }

    /// The limit of all members together.
    pub fn limit(&self) -> Bytes {
        self.share.limit()
    }

    /// What this process holds.
    pub fn held(&self) -> Bytes {
        self.share.held()
    }

    /// What this client holds; another one of the process may hold more.
    pub fn taken(&self) -> Bytes {
        self.taken.lock().as_ref().map_or(Bytes::ZERO, Taken::bytes)
    }

    /// Everybody who has the device.
    ///
    /// # Errors
    /// DATA_LOSS for a file that is damaged.
    pub fn members(&self) -> Result<Vec<MemberInfo>, Error> {
        self.group().members(self.device)
    }

    /// Tells the others what is in use here, and what could be given back at once: `idle`, but for what is known to
    /// stay.
    pub fn publish(&self, used: Bytes, idle: Bytes) {
        let mut stuck = self.stuck.lock();
        stuck.take_if(|stuck| stuck.used != used || stuck.since.elapsed() > STUCK_FOR);
        let stays = stuck.as_ref().map_or(Bytes::ZERO, |stuck| stuck.bytes);
        self.share.publish(used, idle.saturating_sub(stays));
    }

    /// Of what lies idle, `bytes` could not be given back while `used` are in use.
    pub fn keeps(&self, used: Bytes, bytes: Bytes) {
        *self.stuck.lock() = Some(Stuck { used, bytes, since: Instant::now() });
        self.publish(used, bytes);
    }

    /// Counts so much that was given back for others, which took so long.
    pub fn gave(&self, bytes: Bytes, took: Duration) {
        self.given.add(bytes, took);
        self.share.count(Bytes::ZERO, bytes);
    }

    /// Whether another process asks for memory of the device.
    pub fn is_asked(&self) -> bool {
        self.share.is_asked()
    }

    /// What the others want to have back.
    pub fn wanted(&self) -> Wanted {
        self.share.wanted()
    }

    /// Forgets what this thread was refused, by any group: an allocation is about to try.
    pub fn forget_refusal() {
        REFUSAL.set(None);
    }

    /// What this thread was refused last, if that was not something else's doing: the device may have refused.
    pub fn refusal() -> Option<Refusal> {
        REFUSAL.get()
    }

    /// Whether the others have so much more for this process, and may be expected to give it if it asked.
    pub fn is_owed(&self, bytes: Bytes) -> bool {
        self.share.is_owed(bytes) && !self.others_are_late()
    }

    fn others_are_late(&self) -> bool {
        self.late.lock().is_some_and(|since| since.elapsed() < LATE_FOR)
    }

    /// Asks the others for memory, no longer than `until`; for nothing that they cannot give.
    ///
    /// # Errors
    /// As [`Share::ask`].
    pub fn ask(&self, bytes: Bytes, until: Instant) -> Result<Option<Asking<'_>>, Error> {
        if !self.could_hold(bytes) {
            return Ok(None);
        }
        let since = Instant::now();
        let ask = self.share.ask(bytes, until)?;
        Ok(Some(Asking { part: self, ask, bytes, since, until, is_slow: false }))
    }

    /// Whether this process could have so much more if the others had no more than their minima.
    fn could_hold(&self, bytes: Bytes) -> bool {
        self.share.held().checked_add(bytes).is_some_and(|after| after <= self.share.most())
    }
}

impl Whole for GroupPart {
    fn take(&self, bytes: Bytes) -> Result<(), Beyond> {
        match self.share.take(bytes) {
            Ok(more) => {
                Self::forget_refusal();
                let mut taken = self.taken.lock();
                match &mut *taken {
                    Some(taken) => taken.add(more),
                    none => *none = Some(more),
                }
                Ok(())
            }
            Err(Refused::Short(short)) => {
                REFUSAL.set(Some(Refusal::Short(bytes)));
                let others = short.others + short.guaranteed + short.asked;
                Err(Beyond { available: short.available, others, broken: None })
            }
            Err(Refused::Broken(error)) => {
                REFUSAL.set(Some(Refusal::Broken));
                Err(Beyond { broken: Some(error), ..Beyond::default() })
            }
        }
    }

    fn give(&self, bytes: Bytes) {
        if let Some(taken) = &mut *self.taken.lock() {
            taken.trim_to(taken.bytes().saturating_sub(bytes));
        }
    }
}

/// An ask that takes so long is told of.
const SLOW: Duration = Duration::from_secs(1);

/// Less than this is not worth a change of what others see.
const PROLONGED_BY: Duration = Duration::from_millis(10);

/// An ask that others see, until this is dropped.
pub struct Asking<'a> {
    part: &'a GroupPart,
    ask: Ask,
    bytes: Bytes,
    since: Instant,
    until: Instant,
    /// Whether it was found to take long.
    is_slow: bool,
}

impl Asking<'_> {
    /// What is asked for is so much now, and `until` then. The ask keeps its place. Whether the others could give that.
    pub fn change(&mut self, bytes: Bytes, until: Instant) -> bool {
        if bytes != self.bytes || until > self.until + PROLONGED_BY {
            (self.bytes, self.until) = (bytes, until);
            self.ask.change(bytes, until);
        }
        self.part.could_hold(bytes)
    }

    /// How long it goes on at most, once: when it has come to take long.
    pub fn turned_slow(&mut self) -> Option<Duration> {
        if self.is_slow || self.since.elapsed() < SLOW {
            return None;
        }
        self.is_slow = true;
        Some(self.until.saturating_duration_since(Instant::now()))
    }

    /// Whether the others have had the time to give what they owe, for this ask or for one a short time ago.
    pub fn is_late(&self) -> bool {
        if self.ask.age() > OWED_FOR {
            *self.part.late.lock() = Some(Instant::now());
            return true;
        }
        self.part.others_are_late()
    }

    /// Whether what was asked for can be taken.
    pub fn is_served(&self) -> bool {
        self.ask.is_served()
    }

    /// Whether the others have what was asked for, and are to give it back.
    pub fn is_owed(&self) -> bool {
        self.ask.is_owed()
    }

    /// Withdraws it; how much was asked for, and for how long.
    pub fn end(self) -> (Bytes, Duration) {
        (self.bytes, self.since.elapsed())
    }

    /// Waits until something has changed in the group, for so long.
    pub fn wait(&self, at_most: Duration) {
        self.ask.wait(at_most);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.part.asked.add(self.bytes, self.since.elapsed());
        self.part.share.count(self.bytes, Bytes::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{group::Terms, memory::budget::Budget};

    fn group(folder: &tempfile::TempDir) -> Arc<Group> {
        let terms = Terms {
            limits: vec![Bytes::new(100)],
            platform: "cpu",
            explicit_limit: false,
            min: Bytes::ZERO,
            weight: 100,
        };
        Group::join_in(&folder.path().join("groups"), "team", &terms).expect("joined").group
    }

    #[test]
    fn what_could_not_be_given_back_is_not_offered_again_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = GroupPart::new(&group(&folder), 0).expect("a device");
        part.take(Bytes::new(40)).expect("room");
        let idle = |used, idle| {
            part.publish(Bytes::new(used), Bytes::new(idle));
            part.members().expect("sound")[0].idle.get()
        };
        assert_eq!(idle(20, 10), 10);
        part.keeps(Bytes::new(20), Bytes::new(10));
        assert_eq!(part.members().expect("sound")[0].idle, Bytes::ZERO);
        assert_eq!((idle(20, 10), idle(20, 14)), (0, 4));
        // Where another amount is in use it may go.
        assert_eq!((idle(19, 11), idle(20, 10)), (11, 10));
    }

    #[test]
    fn an_ask_that_takes_long_is_found_to_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = GroupPart::new(&group(&folder), 0).expect("a device");
        let mut asking =
            part.ask(Bytes::new(40), Instant::now() + 10 * SLOW).expect("sound").expect("others could give");
        assert_eq!(asking.turned_slow(), None);
        asking.since -= SLOW;
        let left = asking.turned_slow().expect("a second has passed");
        assert!(left > 9 * SLOW && left <= 10 * SLOW, "{left:?}");
        assert!(asking.change(Bytes::new(50), Instant::now() + 20 * SLOW));
        assert_eq!(asking.turned_slow(), None, "what was told is not told again");
    }

    #[test]
    fn a_refusal_is_the_threads_and_of_one_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let group = group(&folder);
        let [one, two] = [0, 0].map(|device| Arc::new(GroupPart::new(&group, device).expect("a device")));
        let budget = Arc::new(Budget::new(Bytes::new(100)).part_of(Arc::<GroupPart>::clone(&one)));
        let _other = two.take(Bytes::new(70));
        assert_eq!((one.taken(), two.taken(), one.held()), (Bytes::ZERO, Bytes::new(70), Bytes::new(70)));
        GroupPart::forget_refusal();
        assert!(budget.take(Bytes::new(40)).is_err());
        assert_eq!(GroupPart::refusal(), Some(Refusal::Short(Bytes::new(40))));
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(GroupPart::refusal(), None)).join().expect("no panic"));
        // The part itself has no more than that, whatever the whole has.
        GroupPart::forget_refusal();
        assert!(budget.take(Bytes::new(101)).is_err());
        assert_eq!(GroupPart::refusal(), None);
        assert!(budget.take(Bytes::new(40)).is_err());
        let taken = budget.take(Bytes::new(30)).expect("room");
        assert_eq!(GroupPart::refusal(), None);
        drop(taken);
        two.give(Bytes::new(70));
    }
}
