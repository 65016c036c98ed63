//! `PJRT_LoadedExecutable_Execute`: the hot path.
//!
//! ```text
//!  0 check       the call and its options (call.rs); a program with host callbacks gets a client of the engine to itself (beside.rs)
//!  1 prepare     the program's scratch (strategy tpu), a block for each destination of each device, and a view of it;
//!                copies of arguments that are to be consumed but only lend their memory (lane.rs, stand_in.rs)
//!  2 board       each argument: alive? then nobody moves or frees its bytes from here on; one that the program may consume is
//!                read by nobody but the engine any more (passengers.rs, gifts.rs)
//!  3 launch      the engine runs on the views; no lock of ours is held; a program with host callbacks is waited for
//!  4 settle      consumed arguments give up their memory; each result is matched by address with a destination or a
//!                consumed argument, and what matches nothing is the engine's own (settle.rs, results.rs)
//!  5 watch       what is not done yet goes into a flight (flight.rs); done programs, the usual case for small ones, need none
//! ```
//!
//! Allocation comes first so that the program's own arguments may be moved to make room for its results. Every failure
//! before 4 leaves all arguments as they were, unless the engine itself consumed them. Nothing fails from 4 on. Nothing is ever run
//! twice.

use std::{mem::MaybeUninit, ptr};

use smallvec::SmallVec;

use crate::{
    engine::{EngineError, EngineEvent, Outcome, process, views::ViewKind},
    runtime::{
        buffer::Buffer,
        executable::loaded::Loaded,
        execute::{
            argument_holds::{ArgumentHolds, Handles},
            call::{Call, NAME},
            context::Context,
            device_launch::{DeviceLaunch, abandon},
            host_callbacks::CallbackRun,
            nested::NestedRun,
        },
    },
    sys,
};

pub mod argument_holds;
pub mod call;
pub mod candidates;
pub mod collect;
pub mod context;
pub mod device_launch;
pub mod donation_copy;
pub mod donations;
pub mod host_callbacks;
pub mod nested;
pub mod results;

/// The end of the program on each device, where the engine tells.
type Events = SmallVec<[Option<EngineEvent>; 1]>;

/// Runs a program: call, launch, collect.
///
/// # Errors
/// INVALID_ARGUMENT for a call that is not as the program asks, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// What the caller passed must be as the C API says: lists as long as their numbers, handles and the context alive.
pub unsafe fn execute(loaded: &Loaded, args: &sys::PJRT_LoadedExecutable_Execute_Args) -> Outcome {
    let client = &*loaded.client;
    client.allocator.in_flight.tend(client.session.engine);
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    let call = unsafe { Call::check(args, loaded, &mut room)? };
    // Contexts mean nothing but user data to the engines that are known.
    let looks = !(loaded.program.plan.needs_no_context && process::kind().is_some());
    let context = call.context.filter(|_| looks);
    let handle = context.map(Context::handle).transpose()?;
    // SAFETY: the copy is ours.
    unsafe { (*call.options).context = handle.unwrap_or(ptr::null_mut()) };

    let mut launch = Launch::new(call);
    if nested::is_called_for(loaded.program.plan.host_callbacks) {
        // SAFETY: the caller passes lists of live buffers, as long as it says; the client is alive while its
        // executable is.
        launch.beside = Some(Box::new(unsafe { NestedRun::begin(call)? }));
    }
    // SAFETY: the caller passes lists of live buffers, as long as it says; the client is alive while its executable is.
    unsafe {
        if let Err(failure) = launch.prepare().and_then(|()| launch.board()) {
            // The views were never shown to a program.
            abandon(client, &mut launch.lanes);
            return Err(failure);
        }
        let mut events = match launch.start() {
            Ok(events) => events,
            Err(error) => {
                launch.give_up();
                return Err(error.into());
            }
        };
        for (index, event) in events.iter_mut().enumerate() {
            launch.settle(index, event.take(), context);
        }
        launch.release();
    }
    Ok(())
}

/// One call, from its first block to its results.
struct Launch<'a> {
    call: Call<'a>,
    /// They land before the lanes go.
    passengers: ArgumentHolds<'a>,
    /// What another client of the engine runs it with, if one does.
    beside: Option<Box<NestedRun<'a>>>,
    /// What each device runs on.
    lanes: SmallVec<[DeviceLaunch<'a>; 1]>,
    /// What the engine is passed: the arguments of a device and its destinations, then those of the next.
    handles: Handles,
    /// How many of these each device has.
    width: usize,
}

impl<'a> Launch<'a> {
    fn new(call: Call<'a>) -> Self {
        let width = call.args.num_args + call.loaded.program.plan.destinations.len();
        let (passengers, lanes, handles) = (ArgumentHolds::default(), SmallVec::new(), Handles::new());
        Self { call, passengers, beside: None, lanes, handles, width }
    }

    /// Scratch, destinations and stand-ins. From here on a failure has to give them back.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, INVALID_ARGUMENT for an argument that is not to be had, or the engine's.
    ///
    /// # Safety
    /// The arguments must be live buffers of ours, and the client alive.
    unsafe fn prepare(&mut self) -> Outcome {
        let call = self.call;
        for index in 0..call.args.num_devices {
            let (slot, device) = call.device(index);
            self.lanes.push(DeviceLaunch::new(slot, device));
            let lane = &mut self.lanes[index];
            // SAFETY: the caller's promise.
            unsafe {
                lane.prepare(call.loaded)?;
                donation_copy::prepare(lane, call.loaded, call.arguments(index), call.kept)?;
            }
        }
        Ok(())
    }

    /// Takes up the arguments, and lists what the engine is passed.
    ///
    /// # Errors
    /// As [`ArgumentHolds::board`].
    ///
    /// # Safety
    /// As [`Self::prepare`], which comes before.
    unsafe fn board(&mut self) -> Outcome {
        let Self { call, passengers, beside, lanes, handles, width } = self;
        let num_args = call.args.num_args;
        handles.reserve(*width * lanes.len());
        passengers.seats.reserve(num_args * lanes.len());
        for (index, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { passengers.board(call, index, lane, handles, beside.as_deref_mut())? };
            if let Some(guests) = beside {
                // SAFETY: as above.
                unsafe { show(guests, call, index, lane)? };
            }
            for stand_in in &lane.stand_ins {
                handles[index * *width + stand_in.argument] = stand_in.place.view.0;
            }
            lane.destinations.iter().for_each(|destination| handles.push(destination.view.0));
            if call.loaded.client.session.view_kind == ViewKind::Device {
                let seats = &passengers.seats[index * num_args..];
                let arguments = seats.iter().flatten().map(|buffer| buffer.state().storage.address().unwrap_or(0));
                let destinations = lane.destinations.iter().map(|destination| destination.held.address());
                call.loaded.note_addresses(lane.slot, arguments.chain(destinations));
            }
        }
        Ok(())
    }

    /// Calls the engine, and waits for a program that calls back into the host.
    ///
    /// # Errors
    /// The engine's, or what such a program ended with; nothing of its results is left then.
    ///
    /// # Safety
    /// As [`Self::board`], which comes before.
    unsafe fn start(&mut self) -> Result<Events, EngineError> {
        let Call { args, loaded, options, .. } = self.call;
        let engine = loaded.client.session.engine;
        let mut argument_lists: SmallVec<[*const *mut sys::PJRT_Buffer; 1]> = SmallVec::new();
        let mut raw_events: SmallVec<[*mut sys::PJRT_Event; 1]> = SmallVec::new();
        for index in 0..args.num_devices {
            argument_lists.push(self.handles[index * self.width..].as_ptr());
            raw_events.push(ptr::null_mut());
        }
        let waits = loaded.program.plan.host_callbacks || self.beside.is_some();
        let _callback_run = waits.then(|| CallbackRun::begin(&loaded.client));
        let (executable, execute_device) = match &self.beside {
            Some(guests) => (guests.executable, guests.execute_device),
            None => (args.executable, args.execute_device),
        };
        // SAFETY: the handles are alive and stay so while the arguments are taken up; the lists are as long as said.
        let outcome = unsafe {
            engine.call(sys::PJRT_LoadedExecutable_Execute_Args {
                extension_start: args.extension_start,
                executable,
                options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: args.num_devices,
                num_args: self.width,
                output_lists: args.output_lists,
                device_complete_events: raw_events.as_mut_ptr(),
                execute_device,
                ..Default::default()
            })
        };
        // SAFETY: an event that the engine filled in is ours.
        let events: Events = raw_events.into_iter().map(|event| unsafe { EngineEvent::own(engine, event) }).collect();
        outcome?;
        if waits {
            let home = host_callbacks::wait(&events).and_then(|()| match &mut self.beside {
                // SAFETY: the engine filled the places in, and the program is over.
                Some(guests) => unsafe { guests.bring_home() },
                None => Ok(()),
            });
            home.inspect_err(|_| {
                for index in 0..args.num_devices {
                    // SAFETY: the engine filled the places in, and nobody else has what is there.
                    unsafe { host_callbacks::destroy_outputs(engine, self.call.outputs(index)) };
                }
            })?;
        }
        Ok(events)
    }

    /// Deletes what was given away but only read: gone when the program has read it.
    ///
    /// # Safety
    /// As [`Self::prepare`].
    unsafe fn release(&self) {
        let released = &self.call.loaded.program.plan.released;
        if released.is_empty() {
            return;
        }
        for index in 0..self.call.args.num_devices {
            let arguments = self.call.arguments(index);
            for &argument in released.iter().filter(|&&argument| !self.call.keeps(argument)) {
                // SAFETY: the caller's promise.
                let deleted = unsafe { Buffer::borrow(arguments[argument], NAME) }.and_then(Buffer::delete);
                // The results are the caller's already.
                _ = deleted.inspect_err(|failure| log::warn!("a donated array stays: {failure:?}"));
            }
        }
    }
}

/// Shows the other client the destinations and stand-ins of a run beside.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// As [`Launch::board`].
unsafe fn show(guests: &mut NestedRun<'_>, call: &Call<'_>, index: usize, lane: &mut DeviceLaunch<'_>) -> Outcome {
    let Some(device) = lane.device.map(|device| device.handle) else { return Ok(()) };
    // SAFETY: the caller's promise; each place holds an array of its shape.
    unsafe {
        for stand_in in &mut lane.stand_ins {
            let buffer = Buffer::borrow(call.arguments(index)[stand_in.argument], NAME)?;
            guests.show(&mut stand_in.place, device, &buffer.shape, false)?;
        }
        let program = &call.loaded.program;
        for (destination, &result) in lane.destinations.iter_mut().zip(&program.plan.destinations) {
            guests.show(destination, device, &program.results[result], true)?;
        }
    }
    Ok(())
}
