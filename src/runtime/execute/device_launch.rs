//! What one device of an execution runs on: scratch, destinations and stand-ins, before the arguments are taken up.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    engine::{EngineError, EngineEvent, Failure, Outcome, Raw, fence::ExecutionQueue, views},
    error::Error,
    memory::{
        Execution, Provenance,
        budget::{Charge, Entered},
    },
    runtime::{
        allocator::{
            admission::{admit, may_admit_elsewhere},
            allocate::{WORTH_A_MOMENT, allocate, open_hole, reserve_scratch},
            oom::exhausted,
            pinned_host::admit_pinned,
            reclaim::NoRoom,
        },
        buffer::{Buffer, CachedOutput},
        client::{Client, Device, Site},
        device_memory::{Allocation, DeviceMemory, ScratchReservation},
        executable::loaded::Loaded,
        execute::donation_copy::DonationCopy,
        in_flight::Resources,
    },
    sys,
    units::Bytes,
};

/// A block with the view that the engine will write a result into.
pub struct Destination {
    /// The block.
    pub held: Allocation,
    /// The view.
    pub view: Raw<sys::PJRT_Buffer>,
    /// The buffer that lay there in the run before, where its owner gave it back.
    pub shell: Option<Arc<Buffer>>,
    /// The buffer that had the block before, where runs still use it: takes it back if there is no next run.
    pub before: Option<Arc<Buffer>>,
}

/// Why destinations were not placed.
enum Unplaced {
    /// There is no room for one of them, as they come, in this memory.
    NoRoom(Arc<DeviceMemory>, NoRoom),
    /// Anything else.
    Failed(Failure),
}

impl Unplaced {
    /// What the caller is told.
    #[cold]
    fn explain(self, client: &Client) -> Failure {
        match self {
            Self::NoRoom(full, shortage) => exhausted(&client.allocator, &full, shortage).into(),
            Self::Failed(failure) => failure,
        }
    }
}

impl From<EngineError> for Unplaced {
    fn from(error: EngineError) -> Self {
        Self::Failed(error.into())
    }
}

/// What one device runs on.
pub struct DeviceLaunch<'a> {
    /// The device's place among the program's, which says whose spares it has: not the number of the argument list, where the caller chose
    /// one of several devices. Behind the last one where the program has no such device.
    pub slot: usize,
    /// The device; `None` if it is not ours to address.
    pub device: Option<&'a Device>,
    /// This run of the program on it.
    pub run: Execution,
    /// What the arena keeps for the program's scratch.
    pub scratch: Option<ScratchReservation>,
    /// That the engine may take the program's scratch; until the engine has taken it.
    pub admission: Option<Entered<'a>>,
    /// One for each destination of the plan, once prepared.
    pub destinations: SmallVec<[Destination; 4]>,
    /// Copies that are donated in place of the caller's arguments.
    pub stand_ins: Vec<DonationCopy>,
    /// Room for results that the engine will put into `pinned_host` memory of its own; until they are there.
    pub pinned: Option<Charge>,
}

impl<'a> DeviceLaunch<'a> {
    /// The lane of a device at this place; nothing is prepared yet.
    pub fn new(slot: usize, device: Option<&'a Device>) -> Self {
        let memory = device.and_then(|device| device.arena.as_ref());
        let run = memory.map(|memory| memory.begin_run()).unwrap_or_default();
        Self {
            slot,
            device,
            run,
            scratch: None,
            admission: None,
            destinations: SmallVec::new(),
            stand_ins: Vec::new(),
            pinned: None,
        }
    }
}

impl<'a> DeviceLaunch<'a> {
    /// Keeps the program's scratch, and allocates and views every destination.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, or the engine's; what was made so far stays for the caller to abandon.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn prepare(&mut self, loaded: &Loaded) -> Outcome {
        let program = &*loaded.program;
        if !program.unplaced_pinned.is_zero()
            && let Some(pinned) = self.device.and_then(|device| device.pinned.as_ref())
        {
            let admitted = admit_pinned(&loaded.client.allocator, pinned, program.unplaced_pinned);
            self.pinned =
                Some(admitted.map_err(|error| error.context(&format!("Error loading program '{}'", program.name)))?);
        }
        if program.plan.destinations.is_empty() && program.scratch == Bytes::ZERO {
            return Ok(());
        }
        let Some((device, memory)) = self.device.and_then(|device| Some((device, device.arena.as_ref()?))) else {
            return if program.plan.destinations.is_empty() {
                Ok(())
            } else {
                Err(Error::internal("a program with destinations runs on a device without an arena").into())
            };
        };
        // The engine's own pool gives the scratch where it lies in the same memory: that is asked for last, because arrays may
        // take back what the pool does not need.
        if memory.shared.is_none() && program.scratch != Bytes::ZERO {
            self.scratch =
                Some(reserve_scratch(&loaded.client.allocator, memory, program.scratch).map_err(|shortage| {
                    Error::from(shortage).context(&format!("Error loading program '{}'", program.name))
                })?);
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_places(loaded, device, memory) }.map_err(|unplaced| unplaced.explain(&loaded.client))?;
        let demand = (&*program.name, program.scratch);
        self.admission = match admit(&loaded.client.allocator, memory, &device.engine_bytes, demand) {
            // SAFETY: the caller's promise.
            Err(refused) if self.is_in_the_way(loaded, device, memory) => unsafe {
                self.enter_first(loaded, device, memory, refused)?
            },
            admitted => admitted?,
        };
        Ok(())
    }

    /// Finds room for every destination, in one piece where that is the way to have it.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    ///
    /// # Safety
    /// The client must be alive.
    unsafe fn find_places(
        &mut self,
        loaded: &Loaded,
        device: &Device,
        memory: &Arc<DeviceMemory>,
    ) -> Result<(), Unplaced> {
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.place(loaded, device) };
        let Err(Unplaced::NoRoom(full, shortage)) = outcome else { return outcome };
        // One by one they found no room. Room for all in one piece may be had still, once those made so far,
        // which hold nothing yet, are out of the way.
        // SAFETY: the views were never shown to a program.
        unsafe { self.clear(&loaded.client) };
        let program = &*loaded.program;
        let pinned = !Arc::ptr_eq(&full, memory);
        let there = program.plan.destinations.iter().filter(|&&result| program.is_pinned(result) == pinned);
        let shapes = there.map(|&result| &*program.results[result]);
        if !open_hole(&loaded.client.allocator, &full, shapes) {
            return Err(Unplaced::NoRoom(full, shortage));
        }
        // SAFETY: the caller's promise.
        unsafe { self.place(loaded, device) }
    }

    /// Whether the destinations may be why the program was not let in.
    #[cold]
    fn is_in_the_way(&self, loaded: &Loaded, device: &Device, memory: &Arc<DeviceMemory>) -> bool {
        self.destinations.iter().any(|destination| Arc::ptr_eq(destination.held.home(), memory))
            && may_admit_elsewhere(memory, &device.engine_bytes, loaded.program.scratch)
    }

    /// Lets a program in that was `refused`, and gives its destinations other places then. Those that they had may have kept whole
    /// chunks of memory, or a region, that would have gone to the scratch; nobody but a program moves them. What is granted stays so
    /// while they are placed.
    ///
    /// # Errors
    /// `refused`, whose numbers are those of the first try; or the engine's.
    ///
    /// # Safety
    /// The client must be alive.
    #[cold]
    unsafe fn enter_first(
        &mut self,
        loaded: &Loaded,
        device: &Device,
        memory: &'a Arc<DeviceMemory>,
        refused: Error,
    ) -> Outcome<Option<Entered<'a>>> {
        // SAFETY: the views were never shown to a program.
        unsafe { self.clear(&loaded.client) };
        let demand = (&*loaded.program.name, loaded.program.scratch);
        let admission = admit(&loaded.client.allocator, memory, &device.engine_bytes, demand);
        let Ok(admission) = admission else { return Err(refused.into()) };
        // SAFETY: the caller's promise.
        match unsafe { self.find_places(loaded, device, memory) } {
            Ok(()) => Ok(admission),
            Err(Unplaced::NoRoom(..)) => Err(refused.into()),
            Err(Unplaced::Failed(failure)) => Err(failure),
        }
    }

    /// Whether a copy is donated in place of this argument.
    pub fn has_stand_in(&self, argument: usize) -> bool {
        self.stand_ins.iter().any(|stand_in| stand_in.argument == argument)
    }

    /// The device's queue, if it does one run after another.
    pub fn queue(&self, client: &Client) -> Option<ExecutionQueue> {
        client.session.queue(self.device?.handle)
    }

    /// After a run that failed: lets `cargo`, destinations and stand-ins go when the device is done with what was launched of
    /// it all the same, and with the runs before it.
    ///
    /// # Safety
    /// The client must be alive; the views are not used again.
    pub unsafe fn leave_behind(&mut self, client: &Client, queue: ExecutionQueue, mut cargo: Resources) {
        let stand_ins = self.stand_ins.drain(..).map(|stand_in| stand_in.place);
        for destination in self.destinations.drain(..).chain(stand_ins) {
            cargo.consumed.push(destination.view);
            cargo.leftovers.push(destination.held);
        }
        // SAFETY: the caller's promise.
        unsafe { client.allocator.in_flight.launch_behind(queue, client.session.engine, cargo) };
    }

    /// Gives destinations and stand-ins back.
    ///
    /// # Safety
    /// The client must be alive; the views are not used again.
    unsafe fn clear(&mut self, client: &Client) {
        let stand_ins = self.stand_ins.drain(..).map(|stand_in| stand_in.place);
        for destination in self.destinations.drain(..).chain(stand_ins) {
            // SAFETY: the view is ours.
            unsafe { views::destroy(client.session.engine, destination.view.0) };
            if let Some(before) = destination.before {
                before.take_back(destination.held);
            }
        }
    }

    /// Allocates and views every destination.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    ///
    /// # Safety
    /// The client must be alive.
    unsafe fn place(&mut self, loaded: &Loaded, device: &Device) -> Result<(), Unplaced> {
        let plan = &loaded.program.plan;
        let client = &*loaded.client;
        for (number, &result) in plan.destinations.iter().enumerate() {
            let maker = Provenance { origin: loaded.program.origin_ids[result], run: self.run };
            let spare = loaded.spares.get(self.slot).and_then(|spares| spares.take(number, maker));
            if let Some(CachedOutput { held, view, shell, .. }) = spare {
                self.destinations.push(Destination { held, view, shell: Some(shell), before: None });
                continue;
            }
            let shape = &loaded.program.results[result];
            let site = if loaded.program.is_pinned(result) { device.pinned_site() } else { device.site() };
            let Some(Site { memory, arena, .. }) = site else {
                return Err(Unplaced::Failed(Error::internal("a destination on a device without an arena").into()));
            };
            let full = |shortage| Unplaced::NoRoom(Arc::clone(arena), shortage);
            let homing = loaded.spares.get(self.slot).and_then(|spares| spares.take_homing(number, maker));
            let (held, before) = match homing {
                Some((held, before)) => (held, Some(before)),
                None => (allocate(&client.allocator, arena, shape, maker).map_err(full)?, None),
            };
            // SAFETY: the block holds the array, aligned, and outlives the view: it is freed after the flight. Where runs use it
            // still, the engine does this one after them.
            match unsafe { client.session.view(memory, held.address(), shape.array()) } {
                Ok(view) => self.destinations.push(Destination { held, view: Raw(view), shell: None, before }),
                Err(error) => {
                    if let Some(before) = before {
                        before.take_back(held);
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}

/// Gives back the destinations and stand-ins of a call that failed. A view that a program on another device was already
/// donated is destroyed only when that program is done, so the block is not reused under it.
///
/// # Safety
/// The client must be alive; the views are not used again.
pub unsafe fn abandon(client: &Client, lanes: &mut [DeviceLaunch<'_>]) {
    for lane in lanes {
        // SAFETY: the caller's promise.
        unsafe { lane.clear(client) };
    }
}

/// The event of the first result that is large enough for its memory to be waited for, if there is one.
///
/// # Safety
/// The outputs must be live buffers of the engine, one for each result.
pub unsafe fn large_result(loaded: &Loaded, outputs: &[*mut sys::PJRT_Buffer]) -> Option<EngineEvent> {
    let engine = loaded.client.session.engine;
    let large = |size: usize| Bytes::new(size as u64) >= WORTH_A_MOMENT;
    let at = loaded.program.results.iter().position(|shape| large(shape.size))?;
    let args = sys::PJRT_Buffer_ReadyEvent_Args { buffer: *outputs.get(at)?, ..Default::default() };
    // SAFETY: the caller's promise; the event is ours.
    unsafe { engine.call(args).ok().and_then(|args| EngineEvent::own(engine, args.event)) }
}
