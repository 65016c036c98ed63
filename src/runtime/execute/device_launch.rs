//! What one device of an execution runs on: scratch, destinations and stand-ins, before the arguments are taken up.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    engine::{EngineError, EngineEvent, Failure, Outcome, buffers::EngineBuffer, fence::ExecutionQueue},
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
        buffer::CachedOutput,
        client::{Client, Device, MemorySpace},
        device_memory::{Allocation, DeviceMemory, ScratchReservation},
        executable::loaded::Loaded,
        execute::{
            argument::{Argument, DonationCursor},
            call::Call,
            destination::{Destination, DestinationBlock},
            donation_copy::DonationCopy,
            nested::NestedRun,
        },
        in_flight::Resources,
    },
    sys,
    units::Bytes,
};

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
    /// The caller's arguments, once they are acquired. Their use ends before anything below goes.
    pub arguments: SmallVec<[Argument<'a>; 8]>,
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
    pub copies: Vec<DonationCopy>,
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
            copies: Vec::new(),
            arguments: SmallVec::new(),
            pinned: None,
        }
    }
}

impl<'a> DeviceLaunch<'a> {
    /// Keeps the program's scratch, and allocates and views every destination.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, or the engine's; what was made so far stays for the caller to abandon.
    pub fn prepare(&mut self, loaded: &Loaded) -> Outcome {
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
        self.find_places(loaded, device, memory).map_err(|unplaced| unplaced.explain(&loaded.client))?;
        let demand = (&*program.name, program.scratch);
        self.admission = match admit(&loaded.client.allocator, memory, &device.engine_bytes, demand) {
            Err(refused) if self.is_in_the_way(loaded, device, memory) => {
                self.enter_first(loaded, device, memory, refused)?
            }
            admitted => admitted?,
        };
        Ok(())
    }

    /// Finds room for every destination, in one piece where that is the way to have it.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    fn find_places(&mut self, loaded: &Loaded, device: &Device, memory: &Arc<DeviceMemory>) -> Result<(), Unplaced> {
        let outcome = self.place(loaded, device);
        let Err(Unplaced::NoRoom(full, shortage)) = outcome else { return outcome };
        // One by one they found no room. Room for all in one piece may be had still, once those made so far,
        // which hold nothing yet, are out of the way.
        self.destinations.clear();
        let program = &*loaded.program;
        let pinned = !Arc::ptr_eq(&full, memory);
        let there = program.plan.destinations.iter().filter(|&&result| program.is_pinned(result) == pinned);
        let shapes = there.map(|&result| &*program.results[result]);
        if !open_hole(&loaded.client.allocator, &full, shapes) {
            return Err(Unplaced::NoRoom(full, shortage));
        }
        self.place(loaded, device)
    }

    /// Whether the destinations may be why the program was not let in.
    #[cold]
    fn is_in_the_way(&self, loaded: &Loaded, device: &Device, memory: &Arc<DeviceMemory>) -> bool {
        self.destinations
            .iter()
            .any(|destination| destination.block.allocation().is_some_and(|block| Arc::ptr_eq(block.home(), memory)))
            && may_admit_elsewhere(memory, &device.engine_bytes, loaded.program.scratch)
    }

    /// Lets a program in that was `refused`, and gives its destinations other places then. Those that they had may have kept whole
    /// chunks of memory, or a region, that would have gone to the scratch; nobody but a program moves them. What is granted stays so
    /// while they are placed.
    ///
    /// # Errors
    /// `refused`, whose numbers are those of the first try; or the engine's.
    #[cold]
    fn enter_first(
        &mut self,
        loaded: &Loaded,
        device: &Device,
        memory: &'a Arc<DeviceMemory>,
        refused: Error,
    ) -> Outcome<Option<Entered<'a>>> {
        self.destinations.clear();
        let demand = (&*loaded.program.name, loaded.program.scratch);
        let admission = admit(&loaded.client.allocator, memory, &device.engine_bytes, demand);
        let Ok(admission) = admission else { return Err(refused.into()) };
        match self.find_places(loaded, device, memory) {
            Ok(()) => Ok(admission),
            Err(Unplaced::NoRoom(..)) => Err(refused.into()),
            Err(Unplaced::Failed(failure)) => Err(failure),
        }
    }

    /// Acquires the arguments of the device with the number `index`. Gives the number of a donated one that a program from a host
    /// callback reads at this moment, if there is such a one: it has to be copied first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that was deleted or donated, or as [`NestedRun::acquire`].
    pub fn acquire(
        &mut self,
        call: &Call<'a>,
        index: usize,
        mut nested: Option<&mut NestedRun<'a>>,
    ) -> Outcome<Option<usize>> {
        let mut donated = DonationCursor::new(call.donated());
        for number in 0..call.args.num_args {
            let buffer = call.argument(index, number)?;
            let copy = self.copies.iter().find(|copy| copy.argument == number);
            let gives = donated.has(number) && !call.keeps(number) && copy.is_none();
            let argument = match (copy, nested.as_deref_mut()) {
                (Some(copy), _) => Argument::read(buffer)?.shown_as(copy.destination.view.raw()),
                (None, Some(nested)) => nested.acquire(buffer, gives)?,
                (None, None) if gives => match Argument::donate(buffer)? {
                    Some(argument) => argument,
                    // The engine refuses to be donated what it is passed twice.
                    None if !call.comes_once(index, number) => Argument::read(buffer)?,
                    None => return Ok(Some(number)),
                },
                (None, None) => Argument::read(buffer)?,
            };
            self.arguments.push(argument);
        }
        Ok(None)
    }

    /// What the engine is passed: the arguments, then the destinations.
    pub fn handles(&self) -> impl Iterator<Item = *mut sys::PJRT_Buffer> {
        let arguments = self.arguments.iter().map(|argument| argument.handle);
        arguments.chain(self.destinations.iter().map(|destination| destination.view.raw()))
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
        let copies = self.copies.drain(..).map(|copy| copy.destination);
        for destination in self.destinations.drain(..).chain(copies) {
            cargo.consumed.push(destination.view.release());
            cargo.leftovers.extend(destination.block.take());
        }
        // SAFETY: the caller's promise.
        unsafe { client.allocator.in_flight.track_behind(queue, client.session.engine, cargo) };
    }

    /// Allocates and views every destination.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    fn place(&mut self, loaded: &Loaded, device: &Device) -> Result<(), Unplaced> {
        let plan = &loaded.program.plan;
        let client = &*loaded.client;
        for (number, &result) in plan.destinations.iter().enumerate() {
            let maker = Provenance { origin: loaded.program.origin_ids[result], run: self.run };
            let spare = loaded.spares.get(self.slot).and_then(|spares| spares.take(number, maker));
            if let Some(CachedOutput { held, view, shell, .. }) = spare {
                // SAFETY: the view was the cache's, and is ours now; the client is alive while its executable is.
                let view = unsafe { EngineBuffer::own(client.session, view.0) };
                self.destinations.push(Destination { reused: Some(shell), ..Destination::new(view, held) });
                continue;
            }
            let shape = &loaded.program.results[result];
            let site =
                if loaded.program.is_pinned(result) { device.pinned_memory_space() } else { device.memory_space() };
            let Some(MemorySpace { memory, arena, .. }) = site else {
                return Err(Unplaced::Failed(Error::internal("a destination on a device without an arena").into()));
            };
            let full = |shortage| Unplaced::NoRoom(Arc::clone(arena), shortage);
            let recycling = loaded.spares.get(self.slot).and_then(|spares| spares.take_recycling(number, maker));
            let block = match recycling {
                Some((allocation, previous)) => DestinationBlock::new(allocation, Some(previous)),
                None => DestinationBlock::new(allocate(&client.allocator, arena, shape, maker).map_err(full)?, None),
            };
            let address = block.allocation().map_or(0, Allocation::address);
            // SAFETY: the block holds the array, aligned, and outlives the view: it is freed after the operation. Where executions use
            // it still, the engine does this one after them. The view is new, and ours.
            let view = unsafe {
                let view = client.session.view(memory, address, shape.array())?;
                EngineBuffer::own(client.session, view)
            };
            self.destinations.push(Destination { view, block, reused: None });
        }
        Ok(())
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
