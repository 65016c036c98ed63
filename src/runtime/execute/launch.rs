//! One call, from its first block to the engine's answer.

use std::{
    ptr,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use smallvec::{SmallVec, smallvec};

use crate::{
    config::{Inline, Spill},
    engine::{EngineError, EngineEvent, Failure, Outcome, asynchronous::Dependency, views::ViewKind},
    handlers::python::stacks,
    report::stacks::StackId,
    runtime::{
        allocator::{reclaim::WaitPolicy, spill},
        buffer::usage::Definition,
        dispatch::Thread,
        executable::loaded::Loaded,
        execute::{
            argument::Argument,
            call::{Call, Outputs},
            destination::Destination,
            device_launch::DeviceLaunch,
            donation_copy,
            host_callbacks::{self, CallbackRun},
            needs,
            nested::NestedRun,
            unplaced::Unplaced,
        },
        in_flight::{Begun, deadline::cancelled},
    },
    sys,
};

/// How long to wait for launches that want their arguments.
const WANTED_FOR: Duration = Duration::from_micros(100);

/// What the engine has accepted: it has filled in the caller's lists of results. Dropped, it leaves them as they are.
pub struct Started<'a> {
    call: Call<'a>,
    /// The completion event of each device, where the engine gives one.
    events: SmallVec<[Option<EngineEvent>; 1]>,
}

impl<'a> Started<'a> {
    /// The completion event and the results of each device.
    #[inline]
    pub fn into_devices(self) -> impl Iterator<Item = (Option<EngineEvent>, Outputs<'a>)> {
        let Self { call, events } = self;
        events.into_iter().enumerate().map(move |(index, event)| {
            // SAFETY: the engine has filled the list in with new buffers of the client; each list is passed on once.
            (event, unsafe { call.outputs(index) })
        })
    }
}

/// See the module's documentation. Dropped, it frees what it still has.
pub struct Launch<'a> {
    /// The caller's call.
    pub call: Call<'a>,
    /// Each device's part.
    pub devices: SmallVec<[DeviceLaunch<'a>; 1]>,
    /// The execution on a nested client, if there is one. It ends after the devices' arguments and destinations.
    pub nested: Option<Box<NestedRun<'a>>>,
    /// Whether its programs may fail yet, once the engine has accepted them.
    pub may_fail: bool,
    /// Whether its programs are under way although it failed, where that is known.
    pub under_way: Option<bool>,
    /// When the engine was called, and where it runs the program, if that can be chosen.
    pub began: Option<(Instant, Thread)>,
    /// From before the engine is called, until its programs are over or operations in flight.
    begun: Option<Begun<'a>>,
    /// How many handles the engine is passed for each device: the arguments, then the destinations.
    width: usize,
    /// The Python code that calls it, where that is recorded.
    stack: StackId,
}

impl<'a> Launch<'a> {
    /// A launch for which nothing is prepared yet.
    #[inline]
    pub fn new(call: Call<'a>) -> Self {
        let width = call.args.num_args + call.loaded.program.plan.destinations.len();
        Self {
            call,
            devices: SmallVec::new(),
            nested: None,
            may_fail: true,
            under_way: None,
            began: None,
            begun: None,
            width,
            stack: stacks::current(),
        }
    }

    /// Prepares scratch, destinations and donation copies.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, INVALID_ARGUMENT for an argument that was deleted or donated, or the engine's.
    #[inline]
    pub fn prepare(&mut self) -> Outcome {
        let call = self.call;
        for index in 0..call.args.num_devices {
            let (device_index, device) = call.device(index);
            let mut launch = DeviceLaunch::new(device_index, device, self.stack);
            launch.is_apart = self.is_waited_for();
            self.devices.push(launch);
        }
        match self.prepare_devices(WaitPolicy::None) {
            Err(unplaced) if unplaced.gave_up() => self.prepare_in_turn(),
            Err(unplaced) if self.may_come(&unplaced) => self.prepare_in_turn(),
            prepared => prepared.map_err(|unplaced| self.explain(unplaced)),
        }
    }

    /// Prepares once more, and waits for memory: what was prepared is given back before, and of the launches that
    /// wait while they hold destinations, one goes after the other.
    #[cold]
    fn prepare_in_turn(&mut self) -> Outcome {
        self.devices.iter_mut().for_each(DeviceLaunch::give_back);
        let loaded = self.call.loaded;
        let (client, name) = (&loaded.client, &loaded.program.name);
        let _turn = client.allocator.turn(name)?;
        let deadline = client.allocator.deadline().telling(|waited| {
            log::info!("a launch of {name} waits for memory, for {waited:.1?} so far");
        });
        let mut emptied = false;
        loop {
            let unplaced = match self.prepare_devices(WaitPolicy::LaunchWaits) {
                Ok(()) => return Ok(()),
                Err(unplaced) if self.may_come(&unplaced) => unplaced,
                Err(unplaced) => return Err(self.explain(unplaced)),
            };
            let others_want = self.others_want();
            self.devices.iter_mut().for_each(DeviceLaunch::give_back);
            deadline.look_for_signals();
            if let Some(after) = deadline.interrupted() {
                return Err(cancelled(after, "Other programs had the memory that this one needed.").into());
            }
            if others_want && !deadline.is_over() {
                // They either use their arguments soon, or wait for their turn.
                thread::sleep(WANTED_FOR);
            } else if !std::mem::replace(&mut emptied, true) {
                // The arguments themselves may divide the memory: they come back side by side.
                let memories = self.devices.iter().filter_map(|launch| launch.device?.arena.as_ref());
                memories.for_each(|memory| _ = spill::make_room_until(&deadline, &client.allocator, memory, None));
            } else {
                return Err(self.explain(unplaced));
            }
        }
    }

    /// Whether the call returns when the program is over: it calls back into the host, or runs on another client of the
    /// engine, or both.
    #[inline]
    fn is_waited_for(&self) -> bool {
        self.call.loaded.program.plan.host_callbacks || self.nested.is_some()
    }

    /// Whether arrays are spilled.
    #[inline]
    pub fn spills(&self) -> bool {
        self.call.loaded.client.allocator.spill != Spill::Off
    }

    /// What the caller is told, once all is given back.
    #[cold]
    fn explain(&mut self, unplaced: Unplaced) -> Failure {
        self.devices.iter_mut().for_each(DeviceLaunch::give_back);
        needs::explain(&self.call, unplaced, |index| {
            self.devices.get(index).map(|launch| launch.run).unwrap_or_default()
        })
    }

    /// Whether there may be room when other launches have gone on, or all has been spilled.
    fn may_come(&self, unplaced: &Unplaced) -> bool {
        self.spills() && unplaced.is_exhaustion() && !unplaced.is_final()
    }

    /// Whether other launches want their arguments at this moment.
    fn others_want(&self) -> bool {
        let own = self.devices.iter().filter(|device| device.wanted.is_some()).count();
        self.call.loaded.client.allocator.wanting.load(Ordering::Relaxed) > own
    }

    /// Prepares each device; `holding` is whether an allocation waits while the launch holds destinations.
    #[inline]
    fn prepare_devices(&mut self, holding: WaitPolicy) -> Result<(), Unplaced> {
        let spills = self.spills();
        // What a launch wants is memory that it holds.
        let mut first = if spills { holding } else { WaitPolicy::LaunchWaits };
        for (index, launch) in self.devices.iter_mut().enumerate() {
            if spills {
                launch.bring_back(&self.call, index, holding)?;
            }
            launch.prepare(&self.call, index, [first, holding])?;
            first = holding;
            launch.copy_arguments(&self.call, index, holding)?;
            if let Some(scratch) = &launch.scratch {
                scratch.note_launch(launch.run);
            }
        }
        Ok(())
    }

    /// Acquires the arguments. If one has to be copied first, all are released, because nothing is allocated while
    /// arguments are in use, and then acquired again.
    ///
    /// # Errors
    /// As [`DeviceLaunch::acquire`] and [`donation_copy::copy_borrowed`].
    #[inline]
    pub fn acquire(&mut self) -> Outcome {
        while let Some((index, number)) = self.try_acquire()? {
            self.devices.iter_mut().for_each(|launch| launch.arguments.clear());
            let (call, launch) = (&self.call, &mut self.devices[index]);
            let buffer = call.argument(index, number)?;
            let copy = donation_copy::copy_borrowed(call.loaded, buffer, launch.device, launch.run, number)?;
            launch.copies.push(copy);
        }
        let loaded = self.call.loaded;
        let mut arguments = self.devices.iter().flat_map(|launch| &launch.arguments);
        self.may_fail =
            !loaded.program.plan.needs_no_context || !arguments.all(|argument| argument.definition.is_good());
        if self.may_fail && !self.is_waited_for() {
            for launch in &self.devices {
                for argument in &launch.arguments {
                    argument.buffer().state().mark_read_by_unsure(launch.run);
                }
            }
        }
        for (index, launch) in self.devices.iter_mut().enumerate() {
            if let (Some(nested), Some(device)) = (&mut self.nested, launch.device) {
                nested.view_all_on_nested(index, device.handle(), &mut launch.copies, &mut launch.destinations)?;
                for copy in &launch.copies {
                    launch.arguments[copy.argument].pass(&copy.view);
                }
            }
            if loaded.client.session.view_kind == ViewKind::Device {
                let arguments = launch.arguments.iter().map(|argument| argument.buffer());
                let arguments = arguments.map(|buffer| buffer.state().storage.address().unwrap_or(0));
                let destinations = launch.destinations.iter().map(|destination| destination.vacant.address());
                loaded.note_addresses(launch.device_index, arguments.chain(destinations));
            }
        }
        Ok(())
    }

    /// As [`Self::acquire`], until an argument has to be copied first; returns its device and number then.
    #[inline]
    fn try_acquire(&mut self) -> Outcome<Option<(usize, usize)>> {
        for (index, launch) in self.devices.iter_mut().enumerate() {
            if let Some(number) = launch.acquire(&self.call, index, self.nested.as_deref_mut())? {
                return Ok(Some((index, number)));
            }
        }
        Ok(None)
    }

    /// Keeps a program out of the caller's thread that is long, or of which nothing is known yet, until what is given
    /// back is dropped. One that is waited for may run anywhere.
    ///
    /// # Errors
    /// As [`Self::dependencies`].
    #[inline]
    fn hold_back(&mut self) -> Result<SmallVec<[Dependency; 1]>, EngineError> {
        let loaded = self.call.loaded;
        if loaded.client.inline == Inline::Short || self.is_waited_for() {
            return Ok(SmallVec::new());
        }
        let is_held = loaded.client.inline == Inline::AllButLong && !loaded.program.dispatch.is_inline();
        let dependencies = if is_held { self.dependencies()? } else { SmallVec::new() };
        let thread = if dependencies.is_empty() { Thread::Callers } else { Thread::Engines };
        self.began = Some((Instant::now(), thread));
        Ok(dependencies)
    }

    /// Whether the engine begins the program at once, in the caller's thread, and it cannot fail, unless it waits for
    /// another launch's: it runs on one device, and its arguments are there. For what it is donated the engine has it
    /// wait for all uses before, which may end for the engine after it told us so: those of a copy's source.
    #[inline]
    fn begins_at_once(&self) -> bool {
        let Loaded { program, devices, .. } = self.call.loaded;
        let ([device], [_], Some((_, Thread::Callers))) = (&*self.devices, &**devices, self.began) else {
            return false;
        };
        let is_there =
            |argument: &Argument<'_>| argument.definition == Definition::Defined && !argument.may_be_consumed();
        !self.may_fail
            && !program.results.is_empty()
            && device.arguments.iter().all(is_there)
            && device.destinations.iter().all(Destination::is_settled)
    }

    /// What keeps the program out of the caller's thread: its first destination, or else its first donated argument, on
    /// each device. One that has neither runs there, and so does one whose donated arguments others use, unless it
    /// waits for those.
    ///
    /// # Errors
    /// An exception of the engine's: it may have used a destination or an argument up.
    #[cold]
    fn dependencies(&mut self) -> Result<SmallVec<[Dependency; 1]>, EngineError> {
        let held = self.devices.iter_mut().filter_map(|launch| match launch.destinations.first_mut() {
            Some(destination) => Some(destination.vacant.wait_for()),
            None => launch.arguments.iter_mut().find_map(Argument::wait_for),
        });
        let refused = |outcome: Result<Dependency, EngineError>| match outcome {
            Err(error) if !error.is_exception() => {
                log::warn!("a program runs in its caller's thread: {}", error.message());
                None
            }
            outcome => Some(outcome),
        };
        held.filter_map(refused).collect()
    }

    /// The end of a program that was to be over when the engine returned, and may be behind another launch's: that of
    /// its first result.
    ///
    /// # Errors
    /// The engine's: then nobody knows when it ends.
    #[cold]
    fn doubted(&mut self) -> Result<EngineEvent, EngineError> {
        // SAFETY: the engine has filled the list in, and the results are passed on nowhere yet.
        let outputs = unsafe { self.call.outputs(0) };
        outputs.ready_event(0).inspect_err(|_| self.under_way = Some(true))
    }

    /// Calls the engine, and waits for a program that calls back into the host.
    ///
    /// # Errors
    /// The engine's, or the program's if it calls back; its results are destroyed then.
    #[inline]
    pub fn start(&mut self) -> Result<Started<'a>, EngineError> {
        let Call { args, loaded, options, .. } = self.call;
        let engine = loaded.client.session.engine;
        let dependencies = self.hold_back().inspect_err(|_| self.under_way = Some(false))?;
        let in_flight = &loaded.client.allocator.in_flight;
        let begun = self.begun.insert(in_flight.begin_launch());
        let is_alone = in_flight.is_alone(begun) && self.begins_at_once();
        let mut handles: SmallVec<[*mut sys::PJRT_Buffer; 16]> = SmallVec::new();
        for device in &self.devices {
            handles.extend(device.arguments.iter().map(|argument| argument.raw()));
            handles.extend(device.destinations.iter().map(|destination| destination.vacant.handle()));
        }
        let mut argument_lists: SmallVec<[*const *mut sys::PJRT_Buffer; 1]> = SmallVec::new();
        let mut raw_events: SmallVec<[*mut sys::PJRT_Event; 1]> = SmallVec::new();
        for index in 0..args.num_devices {
            argument_lists.push(handles[index * self.width..].as_ptr());
            raw_events.push(ptr::null_mut());
        }
        let waits = self.is_waited_for();
        let _callback_run = waits.then(|| CallbackRun::begin(&loaded.client));
        let (executable, execute_device) = match &self.nested {
            Some(nested) => (nested.executable, nested.execute_device),
            None => (args.executable, args.execute_device),
        };
        // SAFETY: executable, options, arguments and destinations are alive, and stay so while the arguments are in
        // use; the lists are as long as `num_devices` and `num_args` say, and the caller's output lists as the
        // program's results.
        let outcome = unsafe {
            engine.call(sys::PJRT_LoadedExecutable_Execute_Args {
                extension_start: args.extension_start,
                executable,
                options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: args.num_devices,
                num_args: self.width,
                output_lists: args.output_lists,
                device_complete_events: if is_alone { ptr::null_mut() } else { raw_events.as_mut_ptr() },
                execute_device,
                ..Default::default()
            })
        };
        drop(dependencies);
        // SAFETY: an entry is NULL, or a new event of the engine without another owner.
        let events = raw_events.into_iter().map(|event| unsafe { EngineEvent::own(engine, event) }).collect();
        let mut started = Started { call: self.call, events };
        outcome?;
        if is_alone && !self.begun.as_ref().is_some_and(Begun::is_alone) {
            started.events = smallvec![Some(self.doubted()?)];
        }
        if waits {
            let outcome = host_callbacks::wait(&started.events).and_then(|()| match &mut self.nested {
                // SAFETY: the engine has filled the caller's lists in, and the program is over.
                Some(nested) => unsafe { nested.replace_outputs() },
                None => Ok(()),
            });
            if let Err(error) = outcome {
                // The caller gets the error, and will not destroy the results. The program is over, so this does not
                // block.
                self.under_way = Some(false);
                started.into_devices().for_each(|(_, outputs)| outputs.for_each(drop));
                return Err(error);
            }
        }
        Ok(started)
    }
}
