//! Whether there is memory for what a program takes beside its arrays, and for arrays that the engine makes itself, before the engine
//! is called.
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
//! Arrays that the engine makes in a GPU's memory (copies of what a program still writes, elements of less than a byte, arrays that come in
//! pieces) lie in the same pool, as long as they live: they come in like programs, and each program after them asks for its own scratch
//! and what they hold.
//!
//! Where the engine has a fixed share instead of a pool, nothing can be given to it: what it holds of the share itself may
//! come back when programs end, and is waited for.
//!
//! Only on devices whose engine takes scratch from the same memory (GPUs). There the engine tells of a lack of scratch after
//! it has consumed the arguments, on the results' events (XLA `common_pjrt_client.cc`, "Phase 2: Launch. It cannot fail").
//! The way back is [`Client::reclaim`]: arrays that find no memory take what is granted, while no program is on its way in.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use crate::{
    device::ScratchPool,
    error::{Code, Error, Result},
    memory::{
        Goal,
        budget::{Budget, Charge, Entered, Over},
    },
    runtime::{
        allocator::compaction,
        buffer::storage::Counted,
        client::{Client, Device},
        device_memory::DeviceMemory,
        executable::loaded::Loaded,
        shape::element_bytes,
    },
    sys,
    units::Bytes,
};

/// How often it is tried again because another thread was faster.
pub const ROUNDS: usize = 1000;

/// A device's memory as the arena and the engine share it.
#[derive(Debug)]
pub struct SharedPool {
    /// Who may have how much.
    pub budget: Arc<Budget>,
    /// The engine's part.
    pub pool: Box<dyn ScratchPool>,
    /// The largest limit that the device and the headroom allow.
    pub most: Bytes,
}

impl SharedPool {
    /// The pool's memory that no program needs goes back, and with it the right to it. How much did.
    pub fn shrink(&self) -> Bytes {
        self.budget.trim(|| self.trim_to(Bytes::ZERO).unwrap_or(Bytes::MAX))
    }

    /// What the pool holds beyond all that is granted goes back to the device: what its other users freed (CuPy, RMM; XLA's own
    /// autotuner). No program is to find it there. How much did.
    pub fn shed(&self) -> Bytes {
        let before = self.pool.reserved().unwrap_or_default();
        let granted = self.budget.open();
        if before <= granted {
            return Bytes::ZERO;
        }
        self.trim_to(granted).map_or(Bytes::ZERO, |after| before.saturating_sub(after))
    }

    /// Lets the pool see what its users have freed: it gives back only what a call of the host has waited for. Whether there was anything
    /// that it may have missed.
    ///
    /// Only for who knows that no program is under way, which this would wait for, and whose first run may be capturing a stream.
    fn observe(&self) -> bool {
        let missed = self.budget.is_quiet() && self.pool.unused().is_ok_and(|unused| !unused.is_zero());
        missed
            && self
                .pool
                .synchronize()
                .inspect_err(|error| log::debug!("the device was not waited for: {error}"))
                .is_ok()
    }

    /// What the pool has after that.
    fn trim_to(&self, keep: Bytes) -> Option<Bytes> {
        self.pool.trim(keep).inspect_err(|error| log::warn!("the engine's pool could not be trimmed: {error}")).ok()
    }

    /// Grants the pool `bytes`, if the limit and the device have so much more; else says what is missing.
    ///
    /// # Errors
    /// The device's, which cannot say what it has.
    fn grant(&self, bytes: Bytes) -> Result<Option<Shortfall>> {
        let offer = match self.budget.offer(bytes) {
            Ok(offer) => offer,
            Err(over) => return Ok(Some(Shortfall::Limit(over))),
        };
        let more = bytes.saturating_sub(self.pool.reserved()?);
        let free = self.pool.free_on_device()?;
        if free < more {
            return Ok(Some(Shortfall::Device { more, free }));
        }
        offer.take();
        Ok(None)
    }
}

/// What stands against more memory for the engine's pool.
#[derive(Clone, Copy, Debug)]
enum Shortfall {
    /// The limit that it shares with the arena.
    Limit(Over),
    /// The limit does not, but the device has less free than is wanted.
    Device { more: Bytes, free: Bytes },
}

impl Shortfall {
    fn missing(self) -> Bytes {
        match self {
            Self::Limit(over) => over.missing,
            Self::Device { more, free } => more.saturating_sub(free),
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(over) => over.fmt(f),
            Self::Device { more, free } => write!(
                f,
                "it takes {more} more, and the device has {free} free, though the limit allows it: others use the device too"
            ),
        }
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
        let scratch = loaded.program.scratch;
        match shared.budget.enter(scratch + held(device)) {
            Some(entered) => Ok(Some(entered)),
            None => self.let_in(shared, device, memory, ScratchDemand::Program(scratch)).map(Some).map_err(|error| {
                error.context(&format!(
                    "Error loading program '{}', which takes {} of scratch",
                    loaded.program.name,
                    scratch + held(device)
                ))
            }),
        }
    }

    /// Room for an array that the engine is about to make in `memory`, or where that is NULL in the own memory of `device`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the numbers.
    pub fn admit_array(
        &self,
        (device, memory): (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
        bytes: Bytes,
    ) -> Result<Admission<'_>> {
        if let Some((_, pinned)) = self.pinned(memory) {
            return Ok(Admission::Pinned(self.admit_pinned(pinned, bytes)?));
        }
        let device = if memory.is_null() { self.device(device) } else { self.device_of_memory(memory) };
        let shared = device.and_then(|device| {
            let memory = device.arena.as_deref()?;
            Some((device, memory, memory.shared.as_ref()?))
        });
        let Some((device, memory, shared)) = shared else { return Ok(Admission::Unlimited) };
        // Before it is looked whether there is room: two threads that do this at once do not take the same.
        let counted = Counted::new(Arc::clone(&device.engine_bytes), bytes.get() as usize);
        let entered = match shared.budget.enter(held(device)) {
            Some(entered) => entered,
            None => self.let_in(shared, device, memory, ScratchDemand::Array(bytes)).map_err(|error| {
                error.context(&format!(
                    "Out of memory while trying to allocate {bytes} ({} bytes) on {} [the engine's own]",
                    bytes.get(),
                    memory.name()
                ))
            })?,
        };
        Ok(Admission::Pool { _counted: counted, _entered: entered })
    }

    /// As [`Self::admit_array`], of an array whose size only the engine knows. Elements that it packs are taken for whole bytes until
    /// the array is there.
    ///
    /// # Errors
    /// As [`Self::admit_array`].
    pub fn admit_shape(
        &self,
        place: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
        element_type: sys::PJRT_Buffer_Type,
        dims: &[i64],
    ) -> Result<Admission<'_>> {
        let element = element_bytes(element_type).map_or(1, u64::from);
        let most = dims.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(u64::try_from(dim).ok()?));
        // What is no size is the engine's to refuse.
        most.map_or(Ok(Admission::Unlimited), |most| self.admit_array(place, Bytes::new(most)))
    }

    #[cold]
    fn let_in<'a>(
        &self,
        shared: &'a SharedPool,
        device: &Device,
        memory: &DeviceMemory,
        entrant: ScratchDemand,
    ) -> Result<Entered<'a>> {
        match shared.budget.share() {
            None => self.make_way(shared, device, memory, entrant),
            Some(share) => self.wait_for_share(shared, device, entrant, share),
        }
    }

    /// Whether a run that was not let in may be if its destinations, which are among the arena's blocks, lie elsewhere: blocks and
    /// scratch would fit the limit, but not with the holes beside these blocks that memory cannot be taken out of.
    #[cold]
    pub fn may_admit_elsewhere(&self, loaded: &Loaded, device: &Device, memory: &DeviceMemory) -> bool {
        let stats = memory.stats();
        let blocks = stats.pool_bytes.saturating_sub(stats.free_bytes);
        let wanted = loaded.program.scratch + held(device);
        memory.shared.as_ref().is_some_and(|shared| shared.budget.could_grant(wanted, blocks))
    }

    #[cold]
    fn make_way<'a>(
        &self,
        shared: &'a SharedPool,
        device: &Device,
        memory: &DeviceMemory,
        entrant: ScratchDemand,
    ) -> Result<Entered<'a>> {
        self.in_flight.waiting(self.engine, || {
            // The pool may not be able to join what it has: with more than the last program needed, it would hold both.
            if matches!(entrant, ScratchDemand::Program(_)) && self.observe(shared) {
                shared.trim_to(Bytes::ZERO);
            }
            let patience = self.patience();
            let mut rounds = 0..ROUNDS;
            let mut packed = false;
            loop {
                let arrivals = self.in_flight.arrivals();
                let bytes = entrant.wants(device);
                let lack = match shared.grant(bytes)? {
                    None => {
                        // Otherwise an array took it back at this moment.
                        if let Some(entered) = shared.budget.enter(bytes) {
                            return Ok(entered);
                        }
                        if rounds.next().is_none() || patience.is_over() {
                            return Err(Error::new(
                                Code::ResourceExhausted,
                                "arrays take the memory back as fast as it is granted",
                            ));
                        }
                        continue;
                    }
                    Some(lack) => lack,
                };
                if !give(memory, lack.missing()).is_zero() {
                    continue;
                }
                self.settle();
                if !give(memory, lack.missing()).is_zero() {
                    continue;
                }
                if self.compacts() && !std::mem::replace(&mut packed, true) {
                    drop(compaction::carry_out(self, memory, Goal::Pack));
                    continue;
                }
                if !self.in_flight.wait_for_arrival(arrivals, &patience) {
                    return Err(exhausted(entrant, lack));
                }
                packed = false;
                self.in_flight.sweep(self.engine);
            }
        })
    }

    /// Lets in who takes of the engine's fixed share, once the engine holds so little of it.
    fn wait_for_share<'a>(
        &self,
        shared: &'a SharedPool,
        device: &Device,
        entrant: ScratchDemand,
        share: Bytes,
    ) -> Result<Entered<'a>> {
        self.in_flight.waiting(self.engine, || {
            let patience = self.patience();
            loop {
                let arrivals = self.in_flight.arrivals();
                self.settle();
                let wanted = entrant.wants(device);
                if let Some(entered) = shared.budget.enter(wanted) {
                    return Ok(entered);
                }
                if entrant.bytes() > share || !self.in_flight.wait_for_arrival(arrivals, &patience) {
                    return Err(Error::new(
                        Code::ResourceExhausted,
                        format!(
                            "Out of memory for {entrant}: programs' scratch and the engine's own arrays have {share}, of which such arrays \
                             hold {}; gpu_scratch={} divides the limit, as the engine has no memory pools on this GPU",
                            wanted.saturating_sub(entrant.bytes()),
                            self.settings.gpu_scratch
                        ),
                    ));
                }
                self.in_flight.sweep(self.engine);
            }
        })
    }

    /// Arrays have found no memory, `refused` by the device or by the limit: takes back what the engine's pool has and does not need.
    /// Whether anything came.
    pub fn reclaim(&self, memory: &DeviceMemory, refused: bool) -> bool {
        let Some(shared) = &memory.shared else { return false };
        let take_back = || refused && !shared.shed().is_zero() || !shared.shrink().is_zero();
        take_back() || self.observe(shared) && take_back()
    }

    /// Gives back what compiling has left in the engine's pools beyond what programs may have.
    pub fn shed(&self) {
        for shared in self.devices.iter().filter_map(|device| device.arena.as_ref()?.shared.as_ref()) {
            shared.shed();
            if shared.pool.reserved().is_ok_and(|reserved| reserved > shared.budget.open()) && self.observe(shared) {
                shared.shed();
            }
        }
    }

    /// The engine found no memory to compile with, for its autotuner tries kernels out on arrays of its own: gives back what arrays do not
    /// use. Whether anything went.
    #[cold]
    pub fn make_room_to_compile(&self) -> bool {
        self.settle();
        let memories = self.devices.iter().filter_map(|device| device.arena.as_deref());
        let given = memories.filter(|memory| memory.shared.is_some()).map(|memory| give(memory, Bytes::MAX));
        given.sum::<Bytes>() > Bytes::ZERO
    }

    /// As [`SharedPool::observe`], unless programs are under way: who waits for memory is woken when they end. Nor in a host callback, which
    /// the device may be waiting for.
    fn observe(&self, shared: &SharedPool) -> bool {
        !self.in_flight.is_busy() && self.callbacks_under_way.load(Ordering::Relaxed) == 0 && shared.observe()
    }
}

/// Room for an array that the engine makes. Until the array is there, what it takes is neither granted to others nor taken back.
pub enum Admission<'a> {
    /// Nobody limits the memory that it goes to.
    Unlimited,
    /// Of the host's pinned memory, as long as the array lives.
    Pinned(Charge),
    /// Of the engine's pool. It counts among what the engine holds from before it was let in.
    Pool {
        /// Until the array counts itself.
        _counted: Counted,
        /// Until the engine has the memory.
        _entered: Entered<'a>,
    },
}

impl Admission<'_> {
    /// Counts the array, which has turned out to take `bytes`, on `total`, and keeps its part of a limit.
    pub fn count(self, total: Arc<AtomicI64>, bytes: usize) -> Counted {
        match self {
            Self::Pinned(mut charge) => {
                charge.trim_to(Bytes::new(bytes as u64));
                Counted::charged(total, bytes, Some(charge))
            }
            Self::Unlimited | Self::Pool { .. } => Counted::new(total, bytes),
        }
    }
}

/// Who wants memory of the engine's pool.
#[derive(Clone, Copy, Debug)]
enum ScratchDemand {
    /// A program with so much scratch.
    Program(Bytes),
    /// An array of so many bytes, which count among what the engine holds already.
    Array(Bytes),
}

impl ScratchDemand {
    /// What it takes by itself.
    fn bytes(self) -> Bytes {
        let (Self::Program(bytes) | Self::Array(bytes)) = self;
        bytes
    }

    /// What has to be granted for it, with what the engine's own arrays have.
    fn wants(self, device: &Device) -> Bytes {
        match self {
            Self::Program(scratch) => scratch + held(device),
            Self::Array(_) => held(device),
        }
    }
}

impl fmt::Display for ScratchDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Program(_) => "the scratch of programs",
            Self::Array(_) => "arrays of the engine's own",
        })
    }
}

/// What the engine's own arrays have of its pool.
fn held(device: &Device) -> Bytes {
    let held = device.engine_bytes.load(Ordering::Relaxed);
    Bytes::new(u64::try_from(held).unwrap_or(0))
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

fn exhausted(entrant: ScratchDemand, lack: Shortfall) -> Error {
    Error::new(Code::ResourceExhausted, format!("Out of memory for {entrant}: {lack}"))
}
