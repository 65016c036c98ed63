//! One device's part of an execution: scratch, destinations and copies, before the arguments are acquired.

use std::{cell::OnceCell, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::{EngineBuffer, EngineEvent, Outcome, fence::ExecutionQueue},
    error::{Code, Error},
    memory::{
        Block, Execution, Provenance,
        budget::{Charge, Entered},
    },
    report::stacks::StackId,
    runtime::{
        allocator::{
            admission::{admit, may_admit_elsewhere},
            allocate::{LARGE_ARRAY, allocate, footprint, make_room_for_all, open_hole, reserve_scratch},
            call_needs::{CallNeeds, Had},
            pinned_host::admit_pinned,
            reclaim::{SearchEnd, WaitPolicy},
        },
        buffer::{BufferRef, VacantBuffer},
        client::{Client, Device},
        device_memory::{
            Allocation, DeviceMemory, ScratchReservation,
            dropped::{OrderedBy, Reused},
        },
        executable::loaded::{Loaded, Program},
        execute::{
            argument::{Argument, DonationCursor},
            call::{Call, Outputs},
            destination::Destination,
            donation_copy::{self, DonationCopy},
            needs,
            nested::NestedRun,
            unplaced::Unplaced,
            wanted::Wanted,
        },
        in_flight::Resources,
    },
    units::Bytes,
};

/// Whether an array stays in the tier, although no outsider refers to it.
#[cold]
fn is_kept_in_tier(buffer: BufferRef<'_>) -> bool {
    let state = buffer.state();
    state.storage.is_spilled() && !state.is_referenced()
}

/// One device's part of an execution.
pub struct DeviceLaunch<'a> {
    /// The caller's arguments, once they are acquired. Dropped first: their use ends before anything below is freed.
    pub arguments: SmallVec<[Argument<'a>; 8]>,
    /// The device's index among the program's devices, which finds its output cache: not the number of the argument
    /// list, where the caller chose one of several devices. Out of range where the program has no such device.
    pub device_index: usize,
    /// The device; `None` if this process cannot address it.
    pub device: Option<&'a Device>,
    /// This execution of the program on the device.
    pub run: Execution,
    /// The Python code that calls it, where that is recorded.
    pub stack: StackId,
    /// The part of the arena that is reserved for the program's scratch.
    pub scratch: Option<ScratchReservation>,
    /// The right of the engine to take the program's scratch; until the engine has taken it.
    pub admission: Option<Entered<'a>>,
    /// One for each destination of the plan, once prepared.
    pub destinations: SmallVec<[Destination; 4]>,
    /// Copies that are donated in place of the caller's arguments.
    pub copies: Vec<DonationCopy>,
    /// The arguments, where arrays are spilled; until they are acquired.
    pub wanted: Option<Wanted<'a>>,
    /// Whether the program runs on another client of the engine.
    pub is_apart: bool,
    /// Whether the past knows of this launch, so that another try does not note it again.
    noted: bool,
    /// Room for results that the engine will put into `pinned_host` memory of its own; until they exist.
    pub pinned: Option<Charge>,
}

impl<'a> DeviceLaunch<'a> {
    /// The part of a device with this index; nothing is prepared yet.
    pub fn new(device_index: usize, device: Option<&'a Device>, stack: StackId) -> Self {
        let memory = device.and_then(|device| device.arena.as_ref());
        // Where arrays are spilled it is numbered when it is noted for what the past tells.
        let memory = memory.filter(|memory| memory.tier.is_none());
        let run = memory.map(|memory| memory.begin_run()).unwrap_or_default();
        Self {
            device_index,
            device,
            run,
            stack,
            scratch: None,
            admission: None,
            destinations: SmallVec::new(),
            copies: Vec::new(),
            arguments: SmallVec::new(),
            wanted: None,
            is_apart: false,
            noted: false,
            pinned: None,
        }
    }

    /// Brings the arguments back from the tier, if the device has one. The first time it numbers the execution, too,
    /// and notes it.
    ///
    /// # Errors
    /// As [`Wanted::new`] and [`Wanted::bring_back`].
    #[cold]
    pub fn bring_back(&mut self, call: &Call<'a>, index: usize, wait: WaitPolicy) -> Result<(), Unplaced> {
        let Some(memory) = self.device.and_then(|device| device.arena.as_ref()) else { return Ok(()) };
        let wanted = self.wanted.insert(Wanted::new(call, index)?);
        if let Some(tier) = memory.tier.as_ref().filter(|_| !std::mem::replace(&mut self.noted, true)) {
            self.run = wanted.note(call, (memory, tier), self.stack);
        }
        let step = self.run.step;
        let Some(wanted) = &self.wanted else { return Ok(()) };
        wanted.bring_back(memory, step, wait, &|| needs::of(call, index, memory, Had::default()))
    }

    /// Reserves the program's scratch, and allocates and views every destination. `wait` says whether the
    /// allocation of the first destination waits, and whether those of the others do.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, or the engine's; what was made so far is freed with this.
    pub fn prepare(&mut self, call: &Call<'a>, index: usize, wait: [WaitPolicy; 2]) -> Result<(), Unplaced> {
        let loaded = call.loaded;
        let program = &*loaded.program;
        if !program.unplaced_pinned.is_zero()
            && let Some(pinned) = self.device.and_then(|device| device.pinned.as_ref())
        {
            let admitted = admit_pinned(&loaded.client.allocator, pinned, program.unplaced_pinned);
            self.pinned =
                Some(admitted.map_err(|error| error.context(&format!("Error loading program '{}'", program.name)))?);
        }
        let Some((device, memory)) = self.device.and_then(|device| Some((device, device.arena.as_ref()?))) else {
            return if program.plan.destinations.is_empty() {
                Ok(())
            } else {
                Err(Error::internal("a program with destinations runs on a device without an arena").into())
            };
        };
        // With a pool of the engine's, programs that take nothing are admitted, too: while one is on its way in, nobody
        // waits for the whole GPU, which would spoil the graph that its first execution captures.
        if program.plan.destinations.is_empty() && program.scratch == Bytes::ZERO && memory.shared.is_none() {
            return Ok(());
        }
        // Where the engine's own pool shares the memory, the scratch comes from it and is asked for last, because
        // arrays may take back what the pool does not need.
        if memory.shared.is_none() && program.scratch != Bytes::ZERO {
            let needs = || needs::of(call, index, memory, self.had(program, memory, &[]));
            let reserved = reserve_scratch(&loaded.client.allocator, memory, program.scratch, &needs);
            self.scratch = Some(reserved.map_err(|shortage| Unplaced::NoRoom(Arc::clone(memory), shortage))?);
        }
        self.place_destinations(call, index, device, memory, wait)?;
        let demand = (&*program.name, program.scratch);
        self.admission = match admit(&loaded.client.allocator, memory, &device.engine_bytes, demand) {
            Err(refused) if refused.code != Code::Cancelled && self.may_block_admission(loaded, device, memory) => {
                self.admit_first(call, index, device, memory, refused)?
            }
            admitted => admitted?,
        };
        Ok(())
    }

    /// Allocates every destination, in one hole opened for all of them if there is no room otherwise.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    #[inline]
    fn place_destinations(
        &mut self,
        call: &Call<'a>,
        index: usize,
        device: &Device,
        memory: &Arc<DeviceMemory>,
        wait: [WaitPolicy; 2],
    ) -> Result<(), Unplaced> {
        let outcome = self.try_place_destinations(call, index, device, wait);
        let Err(Unplaced::NoRoom(full, shortage)) = outcome else { return outcome };
        if !matches!(shortage.end, SearchEnd::InVain(_)) {
            return Err(Unplaced::NoRoom(full, shortage));
        }
        // One by one they found no room. A hole for all of them may open once those made so far, which hold nothing
        // yet, are freed.
        self.destinations.clear();
        let (loaded, program) = (call.loaded, &*call.loaded.program);
        let pinned = !Arc::ptr_eq(&full, memory);
        let in_that_memory = program.plan.destinations.iter().filter(|&&result| program.is_pinned(result) == pinned);
        let shapes = in_that_memory.map(|&result| &*program.results[result]);
        if !open_hole(&loaded.client.allocator, &full, shapes) {
            return Err(Unplaced::NoRoom(full, shortage));
        }
        self.try_place_destinations(call, index, device, wait)
    }

    /// Copies the arguments that must be copied before they are donated; `wait` says whether their allocations wait.
    ///
    /// # Errors
    /// As [`donation_copy::prepare`].
    #[inline]
    pub fn copy_arguments(&mut self, call: &Call<'a>, index: usize, wait: WaitPolicy) -> Result<(), Unplaced> {
        let donated = call.donated().unwrap_or_default();
        if donated.is_empty() {
            return Ok(());
        }
        let mut copies = std::mem::take(&mut self.copies);
        let needs = |copies: &[DonationCopy]| self.needs_beside(call, index, copies);
        let copied = donation_copy::prepare(call, index, (self.device, self.run, wait), donated, &needs, &mut copies);
        self.copies = copies;
        copied
    }

    /// What the call needs of the device's arena, of which it has these copies.
    #[cold]
    fn needs_beside(&self, call: &Call<'a>, index: usize, copies: &[DonationCopy]) -> CallNeeds {
        let Some(memory) = self.device.and_then(|device| device.arena.as_ref()) else { return CallNeeds::default() };
        needs::of(call, index, memory, self.had(&call.loaded.program, memory, copies))
    }

    /// What it has of `memory`, with these copies.
    #[cold]
    fn had(&self, program: &Program, memory: &Arc<DeviceMemory>, copies: &[DonationCopy]) -> Had {
        let of_memory = |block: &Allocation| Arc::ptr_eq(block.memory(), memory).then(|| block.block());
        let destinations =
            self.destinations.iter().filter_map(|destination| destination.vacant.with_block(of_memory)?);
        let blocks: Vec<Block> =
            destinations.chain(copies.iter().filter_map(|copy| of_memory(&copy.allocation))).collect();
        let is_arena = self.device.and_then(|device| device.arena.as_ref()).is_some_and(|own| Arc::ptr_eq(own, memory));
        let scratch = self.scratch.as_ref().filter(|_| is_arena);
        Had {
            bytes: blocks.iter().map(|block| block.size).sum::<Bytes>()
                + scratch.map_or(Bytes::ZERO, |_| program.scratch),
            scratch: scratch.is_some(),
            blocks: blocks.iter().map(|block| block.id).collect(),
        }
    }

    /// Frees what was prepared.
    #[cold]
    pub fn give_back(&mut self) {
        self.destinations.clear();
        self.copies.clear();
        (self.scratch, self.admission, self.pinned, self.wanted) = (None, None, None, None);
    }

    /// Whether the destinations may be why the program was not admitted.
    #[cold]
    fn may_block_admission(&self, loaded: &Loaded, device: &Device, memory: &Arc<DeviceMemory>) -> bool {
        let is_there = |block: &Allocation| Arc::ptr_eq(block.memory(), memory);
        self.destinations.iter().any(|destination| destination.vacant.with_block(is_there).unwrap_or(false))
            && may_admit_elsewhere(memory, &device.engine_bytes, loaded.program.scratch)
    }

    /// Admits a program that was `refused`, and allocates its destinations anew after that. At their previous
    /// addresses they may have kept whole chunks of memory, or a region, that could have gone to the scratch; no
    /// compaction moves them. The grant stays while they are allocated.
    ///
    /// # Errors
    /// `refused`, with the numbers of the first try; or the engine's.
    #[cold]
    fn admit_first(
        &mut self,
        call: &Call<'a>,
        index: usize,
        device: &'a Device,
        memory: &'a Arc<DeviceMemory>,
        refused: Error,
    ) -> Outcome<Option<Entered<'a>>> {
        let loaded = call.loaded;
        self.destinations.clear();
        let demand = (&*loaded.program.name, loaded.program.scratch);
        let admission = admit(&loaded.client.allocator, memory, &device.engine_bytes, demand);
        let Ok(admission) = admission else { return Err(refused.into()) };
        match self.place_destinations(call, index, device, memory, [WaitPolicy::LaunchWaits; 2]) {
            Ok(()) => Ok(admission),
            Err(Unplaced::NoRoom(..)) => Err(refused.into()),
            Err(Unplaced::Failed(failure)) => Err(failure),
        }
    }

    /// Acquires the arguments of the device with the number `index`. Returns the number of a donated one that a
    /// program from a host callback reads at this moment, if there is one: it has to be copied first.
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
        let undonated = call.loaded.undonated_arguments(|| call.arguments(index), self.device);
        for number in 0..call.args.num_args {
            let buffer = call.argument(index, number)?;
            let copy = self.copies.iter().find(|copy| copy.argument == number);
            let is_donated = donated.has(number) && !call.keeps(number) && copy.is_none();
            let argument = match (copy, nested.as_deref_mut()) {
                (Some(copy), _) => {
                    let mut argument = Argument::read(buffer)?;
                    argument.pass(&copy.view);
                    argument
                }
                (None, Some(nested)) => nested.acquire(buffer, is_donated)?,
                // Memory of the tier cannot become a result's. The engine consumes nothing that an outsider refers to.
                (None, None)
                    if is_donated
                        && self.wanted.is_some()
                        && is_kept_in_tier(buffer)
                        && call.comes_once(index, number) =>
                {
                    return Ok(Some(number));
                }
                (None, None) if is_donated => match Argument::donate(buffer)? {
                    Some(argument) => argument,
                    // The engine refuses the donation of what it is passed twice.
                    None if !call.comes_once(index, number) => Argument::read(buffer)?,
                    None => return Ok(Some(number)),
                },
                (None, None) => match undonated.and_then(|all| all.of(number, self.device_index)) {
                    Some(undonated) => Argument::read_undonated(buffer, undonated, self.run)?,
                    None => Argument::read(buffer)?,
                },
            };
            self.arguments.push(argument);
        }
        Ok(None)
    }

    /// The device's queue, if the engine orders its executions.
    pub fn queue(&self, client: &Client) -> Option<ExecutionQueue> {
        // SAFETY: the device is the client's, of whose program this is a launch.
        unsafe { ExecutionQueue::of(client.session, self.device?.handle()) }
    }

    /// After an execution that failed: keeps `resources`, destinations and copies until the device is done with what
    /// was launched of it all the same, and with the executions before it.
    pub fn track_behind(&mut self, client: &Client, queue: ExecutionQueue, mut resources: Resources) {
        self.move_into(&mut resources);
        client.allocator.in_flight.track_behind(queue, resources);
    }

    /// Whether the program has consumed a destination or a copy, which it does when it begins.
    pub fn has_begun(&self) -> bool {
        self.destinations.iter().any(|destination| destination.vacant.is_consumed())
            || self.copies.iter().any(|copy| copy.view.is_consumed())
    }

    /// Adds destinations and copies to `resources`.
    pub fn move_into(&mut self, resources: &mut Resources) {
        let copies = self.copies.drain(..).map(|copy| (Some(copy.view), copy.allocation));
        let destinations = self.destinations.drain(..).filter_map(|mut destination| destination.take_out());
        for (view, allocation) in destinations.chain(copies) {
            resources.consumed.extend(view);
            resources.leftovers.push(allocation);
        }
    }

    /// Allocates and views every destination.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    fn try_place_destinations(
        &mut self,
        call: &Call<'a>,
        index: usize,
        device: &Device,
        [wait, later]: [WaitPolicy; 2],
    ) -> Result<(), Unplaced> {
        let loaded = call.loaded;
        let plan = &loaded.program.plan;
        let client = &*loaded.client;
        let makers = OnceCell::new();
        let reads_result_of =
            |run: Execution| makers.get_or_init(|| call.makers(index)).binary_search(&run.step).is_ok();
        let ordered =
            if client.session.orders_executions { OrderedBy::Device } else { OrderedBy::Buffer(&reads_result_of) };
        // What runs on another client of the engine is not behind what runs on this one.
        let is_apart = self.is_apart;
        let mut planned = false;
        for (number, &result) in plan.destinations.iter().enumerate() {
            let provenance = Provenance { origin: loaded.program.origin(result, self.stack), run: self.run };
            let output = loaded.caches.get(self.device_index).and_then(|cache| cache.take(number, provenance));
            if let Some(vacant) = output {
                self.destinations.push(Destination::new(vacant, None));
                continue;
            }
            let shape = &loaded.program.results[result];
            let space =
                if loaded.program.is_pinned(result) { device.pinned_memory_space() } else { device.memory_space() };
            let Some(space) = space else {
                return Err(Unplaced::Failed(Error::internal("a destination on a device without an arena").into()));
            };
            let wait = if self.destinations.is_empty() { wait } else { later };
            let full = |shortage| Unplaced::NoRoom(Arc::clone(space.arena()), shortage);
            let size = (shape.size, footprint(&client.allocator, shape));
            let dropped = (!is_apart).then(|| space.arena().dropped.take(size, provenance, ordered)).flatten();
            if space.arena().tier.is_some() && dropped.is_none() && !std::mem::replace(&mut planned, true) {
                let own = plan.destinations[number..].iter().filter(|&&result| !loaded.program.is_pinned(result));
                let rest = own.map(|&result| &*loaded.program.results[result]);
                let needs = || needs::of(call, index, space.arena(), self.had(&loaded.program, space.arena(), &[]));
                make_room_for_all(&client.allocator, space.arena(), rest, wait, &needs)?;
            }
            let (view, allocation, previous) = match dropped {
                Some(Reused { view, block, previous }) => (view, block, Some(previous)),
                None => {
                    let needs = || needs::of(call, index, space.arena(), self.had(&loaded.program, space.arena(), &[]));
                    let allocation = allocate(&client.allocator, space.arena(), (shape, provenance), wait, &needs);
                    (None, allocation.map_err(full)?, None)
                }
            };
            let view = match view {
                Some(view) => Ok(view),
                // SAFETY: the client is alive while its executable is. The block holds the array, aligned, and
                // outlives the view: it is freed after the operation. Where executions use it still, the engine
                // does this one after them.
                None => unsafe {
                    EngineBuffer::view(client.session, space.memory(), allocation.address(), shape.array())
                },
            };
            let view = match view {
                Ok(view) => view,
                Err(error) => {
                    if let Some(previous) = previous {
                        previous.take_back(allocation);
                    }
                    return Err(error.into());
                }
            };
            let place = (device.handle(), loaded.program.bound(result, device).unwrap_or(space.memory()));
            let slot = loaded.cache_slot(self.device_index, number);
            let vacant = VacantBuffer::new(view, place, Arc::clone(shape), allocation, slot);
            self.destinations.push(Destination::new(vacant, previous));
        }
        Ok(())
    }
}

/// The ready event of the first result that is large enough for an allocation to wait for its memory, if there is
/// one.
pub fn large_result(loaded: &Loaded, outputs: &Outputs<'_>) -> Option<EngineEvent> {
    let large = |size: usize| Bytes::new(size as u64) >= LARGE_ARRAY;
    let at = loaded.program.results.iter().position(|shape| large(shape.size))?;
    outputs.ready_event(at).ok()
}
