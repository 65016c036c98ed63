//! A device's part in a group of processes that share its memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    error::Error,
    group::{Ask, Group, MemberInfo, Refused, Share, Taken, Wanted},
    memory::budget::{Beyond, Whole},
    runtime::device_memory::spill_record::TransferCounts,
    units::Bytes,
};

/// See the module's documentation.
#[derive(Debug)]
pub struct GroupPart {
    share: Share,
    /// The number of the device in the group.
    device: usize,
    /// All that this process has of it.
    taken: Mutex<Option<Taken>>,
    /// What was refused last, in bytes.
    refused: AtomicU64,
    /// What was asked for, and how long that was waited for.
    pub asked: TransferCounts,
    /// What was given back for others, and how long that took.
    pub given: TransferCounts,
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
            refused: AtomicU64::new(0),
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

    /// Everybody who has the device.
    ///
    /// # Errors
    /// DATA_LOSS for a file that is damaged.
    pub fn members(&self) -> Result<Vec<MemberInfo>, Error> {
        self.group().members(self.device)
    }

    /// Tells the others what is in use here, and what could be given back at once.
    pub fn publish(&self, used: Bytes, idle: Bytes) {
        self.share.publish(used, idle);
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

    /// Asks the others for what was refused last, no longer than `until`; for nothing that they cannot give.
    ///
    /// # Errors
    /// As [`Share::ask`].
    pub fn ask(&self, until: Instant) -> Result<Option<Asking<'_>>, Error> {
        let bytes = Bytes::new(self.refused.load(Ordering::Relaxed));
        if self.share.held() + bytes > self.share.most() {
            return Ok(None);
        }
        let since = Instant::now();
        let ask = self.share.ask(bytes, until)?;
        Ok(Some(Asking { part: self, ask, bytes, since, until }))
    }
}

impl Whole for GroupPart {
    fn take(&self, bytes: Bytes) -> Result<(), Beyond> {
        match self.share.take(bytes) {
            Ok(more) => {
                let mut taken = self.taken.lock();
                match &mut *taken {
                    Some(taken) => taken.add(more),
                    none => *none = Some(more),
                }
                Ok(())
            }
            Err(refused) => {
                self.refused.store(bytes.get(), Ordering::Relaxed);
                Err(match refused {
                    Refused::Short(short) => {
                        Beyond { available: short.available, others: short.others + short.guaranteed + short.asked }
                    }
                    Refused::Broken(error) => {
                        log::error!("{error}");
                        Beyond { available: Bytes::ZERO, others: Bytes::ZERO }
                    }
                })
            }
        }
    }

    fn give(&self, bytes: Bytes) {
        if let Some(taken) = &mut *self.taken.lock() {
            taken.trim_to(taken.bytes().saturating_sub(bytes));
        }
    }
}

/// An ask that others see, until this is dropped.
pub struct Asking<'a> {
    part: &'a GroupPart,
    ask: Ask,
    bytes: Bytes,
    since: Instant,
    until: Instant,
}

impl Asking<'_> {
    /// Whether it counts no longer.
    pub fn has_expired(&self) -> bool {
        Instant::now() >= self.until
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
