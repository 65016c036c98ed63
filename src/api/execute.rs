//! `PJRT_LoadedExecutable_Execute`: the hot path.
//!
//! ```text
//!  1 allocate    the program's scratch (strategy tpu), a block for each destination of each device, and a view of it;
//!                copies of arguments that are to be consumed but only lend their memory (stand_in.rs)
//!  2 take up     each argument: alive? then nobody moves or frees its bytes from here on; one that the program may consume is
//!                read by nobody but the engine any more (gifts.rs)
//!  3 execute     the engine runs on the views; no lock of ours is held; a program with host callbacks is waited for
//!  4 settle      consumed arguments give up their memory; each result is matched by address with a destination or a
//!                consumed argument, and what matches nothing is the engine's own
//!  5 launch      what is not done yet is watched; done programs, the usual case for small ones, need no watch
//! ```
//!
//! Allocation comes first so that the program's own arguments may be moved to make room for its results. Every failure
//! before 4 leaves all arguments as they were, unless the engine itself consumed them. Nothing is ever run twice.

use std::{
    mem::{MaybeUninit, size_of},
    ptr,
    sync::Arc,
};

use smallvec::SmallVec;

use super::{
    buffer::Buffer,
    callbacks::{self, CallbackRun, Inside},
    candidates::{Candidate, consumed_stand_ins},
    context::Context,
    custody::{User, Writing},
    entry::{Entry, Outcome, required, slice},
    flight::{Cargo, Consumed},
    gifts::{Gifts, Taken},
    lane::{Lane, abandon, large_result},
    loaded::{Loaded, Origin},
    nested, plugin,
    results::results,
    stand_in,
    state::{self, Device},
};
use crate::{
    config::EngineKind,
    engine::{
        Engine, EngineEvent,
        views::{self, Sight},
    },
    error::Error,
    sys::{self, CStruct},
};

type Handles = SmallVec<[*mut sys::PJRT_Buffer; 16]>;

/// Arguments in use. Who still sits here when the call ends, because the program is done or never ran, lands then.
struct Passengers<'a> {
    seats: SmallVec<[Option<&'a Buffer>; 16]>,
    gifts: Gifts<'a>,
}

impl Passengers<'_> {
    /// Takes up the arguments of the device with this number and adds their handles. `kept` are the numbers of those that the caller
    /// forbade to consume.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that was deleted or donated, or as [`Gifts::take_up`].
    ///
    /// # Safety
    /// The arguments must be buffers of ours that live as long as the passengers.
    unsafe fn board(
        &mut self,
        device: usize,
        arguments: &[*mut sys::PJRT_Buffer],
        kept: &[i64],
        loaded: &Loaded,
        lane: &mut Lane<'_>,
        handles: &mut Handles,
    ) -> Outcome {
        let mut taken = Taken::new(&loaded.program.plan.donations);
        for (index, &argument) in arguments.iter().enumerate() {
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::borrow(argument, "PJRT_LoadedExecutable_Execute")? };
            let gives = taken.has(index) && !kept.contains(&(index as i64)) && !lane.has_stand_in(index);
            handles.push(if gives {
                // SAFETY: as above; the client is alive while its executable is.
                unsafe { self.gifts.take_up(buffer, (device, index), arguments, lane, loaded)? }
            } else {
                buffer.take_up_for(User::Run)?
            });
            self.seats.push(Some(buffer));
        }
        Ok(())
    }
}

impl Drop for Passengers<'_> {
    fn drop(&mut self) {
        for buffer in self.seats.iter().flatten() {
            buffer.land_for(User::Run);
        }
    }
}

/// As much of the caller's options as any version may have: unknown fields at the end travel on (trap T25).
#[repr(C)]
struct Options {
    known: sys::PJRT_ExecuteOptions,
    tail: [u64; 32],
}

impl Entry for sys::PJRT_LoadedExecutable_Execute_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_LoadedExecutable_Execute";
        let executable = required(self.executable, NAME, "executable")?;
        let loaded = state::LOADED.get(executable).ok_or_else(|| {
            Error::invalid_argument(format!("{NAME}: {executable:p} is no executable of this plugin"))
        })?;
        let client = &*loaded.client;
        let engine = client.engine;
        client.traffic.tend(engine);
        let plan = &loaded.program.plan;
        if let Some(expected) = plan.arguments
            && self.num_args != expected
        {
            // XLA's words, with the user's numbers.
            return Err(Error::invalid_argument(format!(
                "Execution supplied {} buffers but compiled program expected {expected} buffers",
                self.num_args
            ))
            .into());
        }
        let devices = if self.execute_device.is_null() { loaded.devices.len() } else { 1 };
        if self.num_devices != devices {
            return Err(Error::invalid_argument(format!(
                "{NAME}: num_devices is {}, but the program runs on {devices} addressable device(s)",
                self.num_devices
            ))
            .into());
        }
        if self.num_args > 0 {
            let lists = required(self.argument_lists.cast_mut(), NAME, "argument_lists")?;
            for index in 0..self.num_devices {
                // SAFETY: the caller passes `num_devices` lists.
                required(unsafe { *lists.add(index) }.cast_mut(), NAME, "argument_lists' list of a device")?;
            }
        }
        if !loaded.program.results.is_empty() {
            required(self.output_lists.cast_mut(), NAME, "output_lists")?;
        }
        let mut options = MaybeUninit::<Options>::uninit();
        let options = options.as_mut_ptr().cast::<sys::PJRT_ExecuteOptions>();
        // SAFETY: the options are the caller's, `struct_size` bytes long; ours have room for what is copied.
        unsafe { copy_options(self.options, engine, options)? };
        // SAFETY: the copy is as long as the struct.
        let given = unsafe { (*options).context };
        // SAFETY: a context is NULL or one of ours, alive during the call.
        let context = unsafe { given.cast::<Context>().as_ref() };
        // Contexts mean nothing but user data to the engines that are known.
        let looks = !(plan.needs_no_context && plugin::kind().is_some());
        let handle = context.filter(|_| looks).map(Context::handle).transpose()?;
        // SAFETY: the copy is ours.
        unsafe { (*options).context = handle.unwrap_or(ptr::null_mut()) };

        if Inside::depth() > 0 && plugin::kind() == Some(EngineKind::Cpu) {
            // SAFETY: the caller's arguments, checked; the options are complete.
            return unsafe { nested::execute(self, options, context, &loaded) };
        }

        // 1. Scratch and destinations; from here on a failure has to give them back.
        // SAFETY: the caller passes `num_devices` lists of `num_args` live buffers, and as many indices as it says.
        let (lists, kept) = unsafe {
            let options = &*options;
            let kept = slice(options.non_donatable_input_indices, options.num_non_donatable_input_indices);
            (slice(self.argument_lists, self.num_devices), kept)
        };
        let list = |index: usize| {
            let list = lists.get(index).copied().unwrap_or(ptr::null());
            // SAFETY: as above.
            unsafe { slice(list, self.num_args) }
        };
        let mut lanes: SmallVec<[Lane<'_>; 1]> = SmallVec::new();
        for index in 0..self.num_devices {
            let (slot, device) = device(&loaded, index, self.execute_device);
            lanes.push(Lane::new(slot, device));
            // SAFETY: the client is alive while its executable is.
            let outcome = unsafe {
                let lane = &mut lanes[index];
                lane.prepare(&loaded).and_then(|()| stand_in::prepare(lane, &loaded, list(index), kept))
            };
            if let Err(failure) = outcome {
                // SAFETY: the views were never shown to a program.
                unsafe { abandon(client, &mut lanes) };
                return Err(failure);
            }
        }

        // 2. Arguments.
        let width = self.num_args + plan.destinations.len();
        let (mut handles, mut passengers) =
            (Handles::new(), Passengers { seats: SmallVec::new(), gifts: Gifts::default() });
        handles.reserve(width * self.num_devices);
        passengers.seats.reserve(self.num_args * self.num_devices);
        for index in 0..self.num_devices {
            // SAFETY: as above.
            let boarded =
                unsafe { passengers.board(index, list(index), kept, &loaded, &mut lanes[index], &mut handles) };
            if let Err(failure) = boarded {
                // SAFETY: the views were never shown to a program.
                unsafe { abandon(client, &mut lanes) };
                return Err(failure);
            }
            for stand_in in &lanes[index].stand_ins {
                handles[index * width + stand_in.argument] = stand_in.place.view.0;
            }
            lanes[index].destinations.iter().for_each(|destination| handles.push(destination.view.0));
            if client.sight == Sight::Device {
                let seats = &passengers.seats[index * self.num_args..];
                let arguments = seats.iter().flatten().map(|buffer| buffer.state().storage.address().unwrap_or(0));
                let destinations = lanes[index].destinations.iter().map(|destination| destination.held.address());
                loaded.note_addresses(lanes[index].slot, arguments.chain(destinations));
            }
        }

        // 3. The engine.
        let mut argument_lists: SmallVec<[*const *mut sys::PJRT_Buffer; 1]> = SmallVec::new();
        let mut raw_events: SmallVec<[*mut sys::PJRT_Event; 1]> = SmallVec::new();
        for index in 0..self.num_devices {
            argument_lists.push(handles[index * width..].as_ptr());
            raw_events.push(ptr::null_mut());
        }
        let callback_run = plan.host_callbacks.then(|| CallbackRun::begin(&loaded.client));
        // SAFETY: the handles are alive and stay so while the arguments are taken up; the lists are as long as said.
        let outcome = unsafe {
            engine.call(sys::PJRT_LoadedExecutable_Execute_Args {
                extension_start: self.extension_start,
                executable,
                options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: self.num_devices,
                num_args: width,
                output_lists: self.output_lists,
                device_complete_events: raw_events.as_mut_ptr(),
                execute_device: self.execute_device,
                ..Default::default()
            })
        };
        let mut events: SmallVec<[Option<EngineEvent>; 1]> = SmallVec::new();
        for event in raw_events {
            // SAFETY: an event that the engine filled in is ours.
            events.push(unsafe { engine.own_event(event) });
        }
        let result_count = loaded.program.results.len();
        let outcome = outcome.and_then(|_| match &callback_run {
            // SAFETY: the caller passes `num_devices` lists, which the engine filled in.
            Some(_) => callbacks::wait(&events).inspect_err(|_| unsafe {
                let lists = if result_count == 0 { &[] } else { slice(self.output_lists, self.num_devices) };
                callbacks::destroy_outputs(engine, lists, result_count);
            }),
            None => Ok(()),
        });
        if let Err(error) = outcome {
            // What the engine has launched on other devices until then may be under way.
            let mut waited_for = Vec::new();
            // SAFETY: as above; the engine gave up on the programs, or is done with them, or will be waited for.
            unsafe {
                for (index, lane) in lanes.iter_mut().enumerate() {
                    let seats = &mut passengers.seats[index * self.num_args..][..self.num_args];
                    let mut cargo = Cargo { user: User::Run, ..Cargo::default() };
                    let handles = &handles[index * width..];
                    let mut consumed = Handles::new();
                    passengers.gifts.settle(engine, index, handles, true, |argument, memory| {
                        consumed.push(handles[argument]);
                        cargo.leftovers.extend(memory.into_held());
                    });
                    match lane.queue(client) {
                        Some(queue) => {
                            cargo.buffers.extend(seats.iter_mut().filter_map(Option::take).map(|buffer| again(buffer)));
                            lane.leave_behind(client, queue, cargo);
                        }
                        None => waited_for.push((consumed, cargo.leftovers)),
                    }
                }
                // A program's end is the end of what it was donated. Memory that others have in use goes back after that too, and
                // all waiting comes first: the memory of one device is not another's, but an argument's may be an outsider's.
                waited_for.iter().flat_map(|(consumed, _)| consumed).for_each(|&handle| views::end(engine, handle));
                abandon(client, &mut lanes);
            }
            return Err(error.into());
        }

        // 4. and 5., device by device.
        for (index, lane) in lanes.iter_mut().enumerate() {
            loaded.program.executions.count();
            let event = events[index].take();
            let seats = index * self.num_args..(index + 1) * self.num_args;
            // SAFETY: the caller passes one list of places a device, which the engine filled in; none if it expects nothing.
            let places = if result_count == 0 { ptr::null_mut() } else { unsafe { *self.output_lists.add(index) } };
            // SAFETY: as above.
            let outputs = unsafe { slice(places, result_count) };
            let mut candidates: SmallVec<[Candidate; 8]> = SmallVec::new();
            let mut consumed = Consumed::new();
            for (number, destination) in lane.destinations.drain(..).enumerate() {
                consumed.push(destination.view);
                let candidate = Candidate::new(Origin::Destination(number), destination.held);
                candidates.push(Candidate { shell: destination.shell, ..candidate });
            }
            let mut leftovers = Vec::new();
            // SAFETY: the handles are alive.
            unsafe {
                passengers.gifts.settle(engine, index, &handles[index * width..], false, |argument, storage| {
                    candidates.push(Candidate::consumed(argument, storage));
                });
                let arguments = &passengers.seats[seats.clone()];
                let stand_ins = &mut lane.stand_ins;
                consumed_stand_ins(&loaded, arguments, stand_ins, &mut candidates, &mut consumed, &mut leftovers);
            }
            // What the engine put into memory of its own counts by itself from here on.
            lane.pinned = None;
            let (writing, behind) = match &event {
                Some(event) if !event.is_ready() => (Writing::UnderWay, None),
                Some(event) if event.wait().is_err() => match lane.queue(client) {
                    // The device may still be at what was launched of it, and at the runs before.
                    Some(queue) => (Writing::UnderWay, Some(queue)),
                    None => (Writing::Failed, None),
                },
                _ => (Writing::Done, None),
            };
            // SAFETY: the outputs are live buffers of the engine that are ours from here on.
            let results = unsafe { results(&loaded, lane, outputs, &mut candidates, writing)? };
            match &event {
                Some(event) if writing == Writing::UnderWay => {
                    // SAFETY: the caller's context is alive during the call.
                    let context = unsafe { handle.and_then(|_| Context::share(given)) };
                    let scratch = lane.scratch.take();
                    let mut cargo = Cargo { consumed, context, scratch, user: User::Run, ..Cargo::default() };
                    for seat in &mut passengers.seats[seats] {
                        // SAFETY: the caller's arguments are shares of `Arc`s, alive during the call.
                        cargo.buffers.extend(seat.take().map(|buffer| unsafe { again(buffer) }));
                    }
                    cargo.results.extend(results.iter().map(Arc::clone));
                    cargo.leftovers = leftovers;
                    cargo.leftovers.extend(candidates.into_iter().filter_map(|candidate| candidate.held));
                    // SAFETY: as above; the client is alive while its executable is.
                    unsafe {
                        match behind {
                            Some(queue) => client.traffic.launch_behind(queue, engine, cargo),
                            None => client.traffic.launch(event, large_result(&loaded, outputs), cargo),
                        }
                    }
                }
                _ => {
                    for view in consumed {
                        // SAFETY: the program is done, so this does not block; nobody else knows the view.
                        unsafe { views::destroy(engine, view.0) };
                    }
                }
            }
            for (output, result) in results.into_iter().enumerate() {
                // SAFETY: there is one place for each output.
                unsafe { *places.add(output) = result.into_raw() };
            }
            if !self.device_complete_events.is_null() {
                let raw = event.map_or(ptr::null_mut(), EngineEvent::into_raw);
                // SAFETY: the caller passes one place a device.
                unsafe { *self.device_complete_events.add(index) = raw };
            }
        }
        // Given away, but read only: gone when the program has read them.
        let devices = if plan.released.is_empty() { 0 } else { self.num_devices };
        for index in 0..devices {
            for &argument in plan.released.iter().filter(|&&argument| !kept.contains(&(argument as i64))) {
                // SAFETY: the caller's arguments are buffers of ours, alive during the call.
                let deleted = unsafe { Buffer::borrow(list(index)[argument], NAME)? }.delete();
                // The results are the caller's already.
                _ = deleted.inspect_err(|failure| log::warn!("a donated array stays: {failure:?}"));
            }
        }
        Ok(())
    }
}

/// The place of the device among the program's that the argument list with this number runs on, and the device.
fn device(loaded: &Loaded, index: usize, asked_for: *mut sys::PJRT_Device) -> (usize, Option<&Device>) {
    let (slot, handle) = if asked_for.is_null() {
        (Some(index), loaded.devices.get(index).map(|device| device.0))
    } else {
        (loaded.devices.iter().position(|device| device.0 == asked_for), Some(asked_for))
    };
    (slot.unwrap_or(usize::MAX), handle.and_then(|handle| loaded.client.device(handle)))
}

/// One more share of a caller's argument.
///
/// # Safety
/// `buffer` must be what [`Buffer::borrow`] gave for a handle that is still alive.
unsafe fn again(buffer: &Buffer) -> Arc<Buffer> {
    // SAFETY: the caller's promise: the buffer lies in an `Arc`, one share of which is the handle.
    unsafe {
        Arc::increment_strong_count(buffer);
        Arc::from_raw(buffer)
    }
}

/// Copies the caller's options to `copy`, with zeros behind up to what the engine may ask for; a longer struct keeps its
/// tail.
///
/// # Safety
/// `options` must be NULL or point to a struct of `struct_size` bytes, and `copy` to an [`Options`].
unsafe fn copy_options(
    options: *const sys::PJRT_ExecuteOptions,
    engine: &Engine,
    copy: *mut sys::PJRT_ExecuteOptions,
) -> Outcome {
    if options.is_null() {
        return Err(Error::invalid_argument("PJRT_LoadedExecutable_Execute: options is NULL").into());
    }
    // SAFETY: every version begins with its size.
    let size = unsafe { ptr::read(options.cast::<usize>()) };
    let least = sys::PJRT_ExecuteOptions::MIN_SIZE;
    if size < least {
        return Err(Error::invalid_argument(format!(
            "Unexpected PJRT_ExecuteOptions size: expected at least {least}, got {size}. Check installed software \
             versions."
        ))
        .into());
    }
    let bytes = size.min(size_of::<Options>());
    let asked_for = if engine.is_newer() { size_of::<Options>() } else { size_of::<sys::PJRT_ExecuteOptions>() };
    let total = bytes.max(asked_for);
    // SAFETY: the caller's struct has at least `bytes`; the copy has room for all of `Options`.
    unsafe {
        ptr::copy_nonoverlapping(options.cast::<u8>(), copy.cast(), bytes);
        copy.cast::<u8>().add(bytes).write_bytes(0, total - bytes);
        (*copy).struct_size = total;
    }
    Ok(())
}
