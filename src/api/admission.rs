//! Whether there is memory for what a program takes beside its arrays, before the engine is called.
//!
//! ```text
//!  enter     what it takes was granted to the engine's pool: two atomic operations        the usual case
//!  grant     the limit has room beside what the arena holds
//!  give      the arena gives memory behind its holes back
//!  drain     what is done lands, spares go back; then again
//!  compact   holes become larger than the pieces that memory goes back in, where compaction is on
//!  wait      for programs to end, whose arrays may be dropped already
//!  replace   the run's own destinations, if they stand in the way: they have got their places before, and cannot move (`lane.rs`)
//!  error     RESOURCE_EXHAUSTED, and nothing was consumed
//! ```
//!
//! Where the engine has a fixed share instead of a pool, nothing can be given to it: what it holds of the share itself may
//! come back when programs end, and is waited for.
//!
//! Only on devices whose engine takes scratch from the same memory (GPUs). There the engine tells of a lack of scratch after
//! it has consumed the arguments, on the results' events (XLA `common_pjrt_client.cc`, "Phase 2: Launch. It cannot fail").
//! The way back is [`Client::reclaim`]: arrays that find no memory take what is granted, while no program is on its way in.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{
    compaction,
    device_memory::DeviceMemory,
    loaded::Loaded,
    state::{Client, Device},
};
use crate::{
    device::ScratchPool,
    error::{Code, Error, Result},
    memory::{
        Goal,
        budget::{Budget, Entered, Over},
    },
    units::Bytes,
};

/// How often it is tried again because another thread was faster.
pub const ROUNDS: usize = 1000;

/// A device's memory as the arena and the engine share it.
#[derive(Debug)]
pub struct Shared {
    /// Who may have how much.
    pub budget: Arc<Budget>,
    /// The engine's part.
    pub pool: Box<dyn ScratchPool>,
    /// The largest limit that the device and the headroom allow.
    pub most: Bytes,
}

impl Shared {
    /// The pool's memory that no program needs goes back, and with it the right to it. How much did.
    pub fn shrink(&self) -> Bytes {
        self.budget.shrink(|| {
            self.pool.trim().unwrap_or_else(|error| {
                log::warn!("the engine's pool could not be trimmed: {error}");
                Bytes::MAX
            })
        })
    }

    /// Whether the device itself has so much more for the pool.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the numbers.
    fn check_device(&self, bytes: Bytes) -> Result<()> {
        let more = bytes.saturating_sub(self.pool.reserved()?);
        let free = self.pool.free_on_device()?;
        if free >= more {
            return Ok(());
        }
        Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "the scratch of programs takes {more} more, and the device has {free} free, though the limit allows it: others \
                 use the device too"
            ),
        ))
    }
}

impl Client {
    /// Lets a run of `loaded` on `device` in.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, naming the program.
    #[inline]
    pub fn admit<'a>(&self, loaded: &Loaded, device: &Device, memory: &'a DeviceMemory) -> Result<Option<Entered<'a>>> {
        let Some(shared) = &memory.shared else { return Ok(None) };
        let bytes = wanted(loaded, device);
        match shared.budget.enter(bytes) {
            Some(entered) => Ok(Some(entered)),
            None => {
                let admitted = match shared.budget.share() {
                    None => self.make_way(shared, memory, bytes),
                    Some(share) => self.wait_for_share(shared, device, loaded.program.scratch, share),
                };
                admitted.map(Some).map_err(|error| {
                    error.context(&format!(
                        "Error loading program '{}', which takes {bytes} of scratch",
                        loaded.program.name
                    ))
                })
            }
        }
    }

    /// Whether a run that was not let in may be if its destinations, which are among the arena's blocks, lie elsewhere: blocks and
    /// scratch would fit the limit, but not with the holes beside these blocks that memory cannot be taken out of.
    #[cold]
    pub fn may_admit_elsewhere(&self, loaded: &Loaded, device: &Device, memory: &DeviceMemory) -> bool {
        let stats = memory.stats();
        let blocks = stats.pool_bytes.saturating_sub(stats.free_bytes);
        memory.shared.as_ref().is_some_and(|shared| shared.budget.could_grant(wanted(loaded, device), blocks))
    }

    #[cold]
    fn make_way<'a>(&self, shared: &'a Shared, memory: &DeviceMemory, bytes: Bytes) -> Result<Entered<'a>> {
        self.traffic.waiting(self.engine, || {
            let deadline = Instant::now() + self.patience();
            let mut rounds = 0..ROUNDS;
            let mut packed = false;
            loop {
                let arrivals = self.traffic.arrivals();
                let over = match shared.budget.grant(bytes) {
                    Ok(()) => {
                        shared.check_device(bytes)?;
                        // Otherwise an array took it back at this moment.
                        if let Some(entered) = shared.budget.enter(bytes) {
                            return Ok(entered);
                        }
                        if rounds.next().is_none() || Instant::now() >= deadline {
                            return Err(Error::new(
                                Code::ResourceExhausted,
                                "arrays take the memory back as fast as it is granted",
                            ));
                        }
                        continue;
                    }
                    Err(over) => over,
                };
                if !give(memory, over.missing).is_zero() {
                    continue;
                }
                self.settle();
                if !give(memory, over.missing).is_zero() {
                    continue;
                }
                if self.compacts() && !std::mem::replace(&mut packed, true) {
                    drop(compaction::carry_out(self, memory, Goal::Pack));
                    continue;
                }
                if !self.traffic.wait_for_arrival(arrivals, deadline) {
                    return Err(exhausted(over));
                }
                packed = false;
                self.traffic.sweep(self.engine);
            }
        })
    }

    /// Lets a program in that takes so much scratch of the engine's fixed share, once the engine holds so little of it.
    #[cold]
    fn wait_for_share<'a>(
        &self,
        shared: &'a Shared,
        device: &Device,
        scratch: Bytes,
        share: Bytes,
    ) -> Result<Entered<'a>> {
        self.traffic.waiting(self.engine, || {
            let deadline = Instant::now() + self.patience();
            loop {
                let arrivals = self.traffic.arrivals();
                self.settle();
                let held = device.engine_bytes.load(Ordering::Relaxed);
                let held = Bytes::new(u64::try_from(held).unwrap_or(0));
                if let Some(entered) = shared.budget.enter(scratch + held) {
                    return Ok(entered);
                }
                if scratch > share || !self.traffic.wait_for_arrival(arrivals, deadline) {
                    return Err(Error::new(
                        Code::ResourceExhausted,
                        format!(
                            "Out of memory for the scratch of programs: it has {share}, of which the engine's own arrays hold {held}; \
                             gpu_scratch={} divides the limit, as the engine has no memory pools on this GPU",
                            self.settings.gpu_scratch
                        ),
                    ));
                }
                self.traffic.sweep(self.engine);
            }
        })
    }

    /// Arrays have found no memory: takes back what the engine's pool has and does not need. Whether anything came.
    pub fn reclaim(&self, memory: &DeviceMemory) -> bool {
        memory.shared.as_ref().is_some_and(|shared| !shared.shrink().is_zero())
    }
}

/// What a run takes of the engine's pool, with what the engine's own arrays have there.
fn wanted(loaded: &Loaded, device: &Device) -> Bytes {
    let held = device.engine_bytes.load(Ordering::Relaxed);
    loaded.program.scratch + Bytes::new(u64::try_from(held).unwrap_or(0))
}

/// Gives up to about `bytes` of memory that the arena does not use back to the device: empty regions, then holes. How much went.
fn give(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let regions = memory.trim();
    regions + give_holes(memory, bytes.saturating_sub(regions))
}

/// Gives up to about `bytes` of memory behind holes back to the device. How much went.
#[cold]
pub fn give_holes(memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let mut pages = Bytes::ZERO;
    if bytes.is_zero() {
        return pages;
    }
    memory.discard_holes(|hole| {
        if pages < bytes {
            // SAFETY: the hole lies in a region of this device, and the arena keeps everybody out of it meanwhile.
            let went = unsafe { memory.carrier.discard(hole.address, hole.bytes) };
            pages += went.unwrap_or_else(|error| {
                log::warn!("a hole of {} could not be given back: {error}", hole.bytes);
                Bytes::ZERO
            });
        }
        Bytes::ZERO
    });
    pages
}

fn exhausted(over: Over) -> Error {
    Error::new(Code::ResourceExhausted, format!("Out of memory for the scratch of programs: {over}"))
}
