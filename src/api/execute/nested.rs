//! Programs that host callbacks run: on a client of the engine beside the user's.
//!
//! ```text
//!  program on device 0, queued in the user's client ---> callback ---> another program on device 0
//!        ^                                                                   |
//!        +---- is over when the callback is             is queued behind ----+     for ever
//! ```
//!
//! XLA's CPU client runs what is enqueued on a device in order, multi-device programs one after the other, and all of it
//! on as many threads as there are cores. jaxlib's own callbacks tell the client that they are callbacks, and it then
//! runs what they ask for on the spot; through the C API nobody can tell it. So such programs get queues and threads of
//! their own: one more client of the engine for each level of callbacks inside of callbacks, made when first needed.
//!
//! The bytes stay in the arena: arguments and destinations are views there as well. The call waits for the program,
//! so nobody else ever sees a buffer of that client. What cannot be viewed there (elements of less than a byte, tokens,
//! memories other than the device's default) is refused in one sentence.
//!
//! The user's client does not know that its arrays are read, so they are lent (`reading.rs`): one that is deleted meanwhile
//! goes afterwards, and another program that is donated one gets a copy. One that is donated to the program itself is only
//! read as well, and deleted at the end.
//!
//! An argument that is itself the result of a program queued behind the waiting one never comes, here or elsewhere.

mod results;

use std::{ptr, sync::Arc};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    call::{Call, NAME},
    callbacks::{self, CallbackRun, Inside, Level},
    lane::{Lane, abandon},
};
use crate::{
    api::{
        buffer::{Buffer, reading::Reading},
        client::named_values,
        entry::{Failure, Outcome, slice},
        plugin,
        programs::{executable, loaded::Donations},
        state::Client,
    },
    engine::{Engine, EngineEvent, Raw, views},
    error::Error,
    sys,
};

/// The clients beside one of the user's: one for each level of callbacks, from the first.
#[derive(Default)]
pub struct Beside(Mutex<Vec<Arc<Other>>>);

/// A client of the engine that only programs from callbacks know.
struct Other {
    handle: Raw<sys::PJRT_Client>,
    /// Its devices with their default memories, in the order of the user's.
    devices: Vec<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>)>,
}

/// One program, loaded once more for each level of callbacks.
#[derive(Default)]
pub struct Twins(Mutex<Vec<(usize, Raw<sys::PJRT_LoadedExecutable>)>>);

impl Beside {
    /// The client for what callbacks at `depth` (1 for a callback of the user's program) run. It is made without the lock:
    /// of two threads that make the same one, one made it in vain.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The user's client must be alive.
    unsafe fn at(&self, user: &Client, depth: usize) -> Outcome<Arc<Other>> {
        loop {
            let known = {
                let clients = self.0.lock();
                if let Some(other) = clients.get(depth - 1) {
                    return Ok(Arc::clone(other));
                }
                clients.len()
            };
            // SAFETY: the caller's promise.
            let made = Arc::new(unsafe { Other::new(user)? });
            let mut clients = self.0.lock();
            if clients.len() == known {
                clients.push(made);
            } else {
                drop(clients);
                // SAFETY: nobody else has it.
                unsafe { made.destroy(user.engine) };
            }
        }
    }

    /// Ends them, before the user's client ends.
    pub fn end(&self, engine: &'static Engine) {
        let clients = std::mem::take(&mut *self.0.lock());
        // SAFETY: calls wait for their programs, and the user makes none any more.
        clients.iter().for_each(|other| unsafe { other.destroy(engine) });
    }
}

impl Other {
    /// # Safety
    /// The user's client must be alive.
    unsafe fn new(user: &Client) -> Outcome<Self> {
        let engine = user.engine;
        let options = user.settings.engine_options(plugin::kind(), None)?;
        let values = named_values(&options.values);
        // SAFETY: the options live until the call returns; the handles live as long as the client.
        unsafe {
            let created = engine.call(sys::PJRT_Client_Create_Args {
                create_options: values.as_ptr(),
                num_options: values.len(),
                ..Default::default()
            })?;
            let client = created.client;
            let devices = engine.call(sys::PJRT_Client_AddressableDevices_Args { client, ..Default::default() })?;
            let handles = slice(devices.addressable_devices, devices.num_addressable_devices);
            let mut devices = Vec::with_capacity(handles.len());
            for &device in handles {
                let memory = engine.call(sys::PJRT_Device_DefaultMemory_Args { device, ..Default::default() })?;
                devices.push((Raw(device), Raw(memory.memory)));
            }
            Ok(Self { handle: Raw(client), devices })
        }
    }

    /// # Safety
    /// Nobody may use it any more.
    unsafe fn destroy(&self, engine: &'static Engine) {
        let args = sys::PJRT_Client_Destroy_Args { client: self.handle.0, ..Default::default() };
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { engine.call(args) } {
            log::warn!("the engine could not destroy its client for callbacks: {}", error.message());
        }
    }
}

impl Twins {
    /// The program on `other`, which is the client at `depth`. It is loaded without the lock, as clients are made.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// `executable` must be alive.
    unsafe fn at(
        &self,
        engine: &'static Engine,
        executable: *mut sys::PJRT_LoadedExecutable,
        other: &Other,
        depth: usize,
    ) -> Outcome<*mut sys::PJRT_LoadedExecutable> {
        let find = |twins: &[(usize, Raw<_>)]| twins.iter().find(|(level, _)| *level == depth).map(|(_, twin)| twin.0);
        if let Some(twin) = find(&self.0.lock()) {
            return Ok(twin);
        }
        // SAFETY: the caller's promise; the blob lives until it is loaded.
        let made = unsafe { executable::copy(engine, executable, other.handle.0)? };
        let first = {
            let mut twins = self.0.lock();
            let first = find(&twins);
            if first.is_none() {
                twins.push((depth, Raw(made)));
            }
            first
        };
        Ok(first.map_or(made, |first| {
            // SAFETY: made above, and nobody else has it.
            unsafe { destroy(engine, made) };
            first
        }))
    }

    /// Destroys them, while their clients live.
    pub fn end(&self, engine: &'static Engine) {
        let twins = std::mem::take(&mut *self.0.lock());
        // SAFETY: the program is the user's to run no more.
        twins.into_iter().for_each(|(_, twin)| unsafe { destroy(engine, twin.0) });
    }
}

/// # Safety
/// Nobody may use the program any more.
unsafe fn destroy(engine: &'static Engine, executable: *mut sys::PJRT_LoadedExecutable) {
    let args = sys::PJRT_LoadedExecutable_Destroy_Args { executable, ..Default::default() };
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { engine.call(args) } {
        log::warn!("the engine could not destroy a program for callbacks: {}", error.message());
    }
}

/// The buffers of the other client in one run, destroyed at its end.
struct Guests {
    engine: &'static Engine,
    handles: Vec<*mut sys::PJRT_Buffer>,
}

impl Drop for Guests {
    fn drop(&mut self) {
        for &handle in &self.handles {
            // SAFETY: ours, and the program that used it is over or never ran.
            unsafe { views::destroy(self.engine, handle) };
        }
    }
}

fn unable(what: &str) -> Failure {
    Error::unimplemented(format!(
        "a host callback runs a program on the device of the program that waits for it, and {what}: run it on JAX's own \
         CPU devices, jax.default_device(jax.devices(\"cpu\")[0])"
    ))
    .into()
}

/// Runs the program of an Execute that a callback makes, and waits for it.
///
/// # Errors
/// As Execute; UNIMPLEMENTED where the module says.
///
/// # Safety
/// As Execute.
pub unsafe fn execute(call: &Call<'_>) -> Outcome {
    let Call { args, loaded, context, .. } = *call;
    let client = &loaded.client;
    let (engine, program) = (client.engine, &*loaded.program);
    if let Some(result) = program.results.iter().find(|result| !client.viewable.contains(result.element_type)) {
        return Err(unable(&format!("a result has the element type {}", result.element_type.0)));
    }
    // SAFETY: the user's client is alive while its executable is.
    let (other, twin) = unsafe {
        let depth = Inside::depth();
        let other = client.beside.at(client, depth)?;
        let twin = loaded.twins.at(engine, args.executable, &other, depth)?;
        (other, twin)
    };
    let _run = CallbackRun::begin(client);
    let _level = context.map(|context| Level::begin(context.callables(), Inside::depth()));

    let mut lanes: SmallVec<[Lane<'_>; 1]> = SmallVec::new();
    let mut guests = Guests { engine, handles: Vec::new() };
    let mut loans = Vec::new();
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        run(call, &other, twin, &mut lanes, &mut guests, &mut loans).and_then(|(events, outputs)| {
            // The other client's outputs go with its views: what lies in a destination has a view of the user's.
            guests.handles.extend(outputs.iter().flatten());
            let mut results = Vec::new();
            for (lane, outputs) in lanes.iter_mut().zip(&outputs) {
                results.push(results::take_results(loaded, lane, outputs)?);
            }
            Ok((events, results))
        })
    };
    drop(guests);
    // SAFETY: what no result took was never shown to a program of the user's client.
    unsafe { abandon(client, &mut lanes) };
    let (events, results) = outcome?;
    drop(loans);
    // SAFETY: the caller's arguments, and one list of places for each device.
    unsafe {
        consume(call)?;
        for (index, results) in results.into_iter().enumerate() {
            program.executions.count();
            for (number, result) in results.into_iter().enumerate() {
                *call.places(index).add(number) = result.into_raw();
            }
        }
        if !args.device_complete_events.is_null() {
            for (index, event) in events.into_iter().enumerate() {
                *args.device_complete_events.add(index) = event.map_or(ptr::null_mut(), EngineEvent::into_raw);
            }
        }
    }
    Ok(())
}

type Ran = (SmallVec<[Option<EngineEvent>; 1]>, Vec<Vec<*mut sys::PJRT_Buffer>>);

/// Views everything on the other client, runs the program there, and waits.
///
/// # Safety
/// As [`execute`].
unsafe fn run<'a>(
    call: &Call<'a>,
    other: &Other,
    twin: *mut sys::PJRT_LoadedExecutable,
    lanes: &mut SmallVec<[Lane<'a>; 1]>,
    guests: &mut Guests,
    loans: &mut Vec<Reading<'_>>,
) -> Outcome<Ran> {
    let Call { args, loaded, options, .. } = *call;
    let client = &loaded.client;
    let (engine, program) = (client.engine, &*loaded.program);
    let mut inputs: Vec<Vec<*mut sys::PJRT_Buffer>> = Vec::new();
    let mut execute_device = ptr::null_mut();
    // SAFETY: the caller's lists, arrays and handles are as long and alive as the C API says; views are of memory that
    // stays until the run is over, because it is waited for here.
    unsafe {
        for index in 0..args.num_devices {
            let handle = match args.execute_device {
                device if device.is_null() => loaded.devices[index].0,
                device => device,
            };
            let number = client.devices.iter().position(|device| device.handle.0 == handle);
            let Some((device, &(there, memory))) =
                number.and_then(|number| Some((&client.devices[number], other.devices.get(number)?)))
            else {
                return Err(unable("its device is not addressable"));
            };
            if !args.execute_device.is_null() {
                execute_device = there.0;
            }
            let mut handles = Vec::with_capacity(args.num_args + program.plan.destinations.len());
            for &argument in call.arguments(index) {
                let buffer = Buffer::borrow(argument, NAME)?;
                if !client.viewable.contains(buffer.shape.element_type) {
                    return Err(unable(&format!("an argument has the element type {}", buffer.shape.element_type.0)));
                }
                if buffer.device.0 != device.handle.0 {
                    return Err(unable("an argument lies on another device"));
                }
                wait_for(buffer)?;
                let loan = buffer.lend()?;
                let view = constant(engine, other.handle.0, memory.0, loan.address(), buffer)?;
                loans.push(loan);
                guests.handles.push(view);
                handles.push(view);
            }
            let mut lane = Lane::new(index, Some(device));
            let prepared = lane.prepare(loaded);
            let addresses: Vec<usize> = lane.destinations.iter().map(|place| place.held.address()).collect();
            lanes.push(lane);
            prepared?;
            for (&address, &result) in addresses.iter().zip(&program.plan.destinations) {
                let shape = &program.results[result];
                let view = views::view(engine, (other.handle.0, memory.0), address, shape.array())?;
                guests.handles.push(view);
                handles.push(view);
            }
            inputs.push(handles);
        }
        let lists: Vec<_> = inputs.iter().map(|handles| handles.as_ptr()).collect();
        let mut outputs = vec![vec![ptr::null_mut(); program.results.len()]; args.num_devices];
        let places: Vec<_> = outputs.iter_mut().map(|places| places.as_mut_ptr()).collect();
        let mut events = vec![ptr::null_mut(); args.num_devices];
        engine.call(sys::PJRT_LoadedExecutable_Execute_Args {
            extension_start: args.extension_start,
            executable: twin,
            options,
            argument_lists: lists.as_ptr(),
            num_devices: args.num_devices,
            num_args: inputs.first().map_or(0, Vec::len),
            output_lists: places.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
            execute_device,
            ..Default::default()
        })?;
        let events: SmallVec<[_; 1]> = events.into_iter().map(|event| engine.own_event(event)).collect();
        if let Err(error) = callbacks::wait(&events) {
            guests.handles.extend(outputs.iter().flatten());
            return Err(error.into());
        }
        Ok((events, outputs))
    }
}

/// Waits until an argument is defined.
///
/// # Errors
/// INVALID_ARGUMENT if it was deleted or donated, or the error that it holds.
///
/// # Safety
/// The client must be alive.
pub unsafe fn wait_for(buffer: &Buffer) -> Outcome {
    let engine = buffer.client.engine;
    let handle = buffer.take_up()?;
    // SAFETY: the handle is alive while the buffer is taken up; the event is ours.
    let outcome = unsafe {
        engine
            .call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: handle, ..Default::default() })
            .and_then(|ready| engine.own_event(ready.event).map_or(Ok(()), |event| event.wait()))
    };
    buffer.land();
    Ok(outcome?)
}

/// A view that programs only read: donated, it is copied.
///
/// # Safety
/// As [`views::view`].
unsafe fn constant(
    engine: &'static Engine,
    client: *mut sys::PJRT_Client,
    memory: *mut sys::PJRT_Memory,
    address: usize,
    buffer: &Buffer,
) -> Outcome<*mut sys::PJRT_Buffer> {
    // SAFETY: the caller's promise.
    let args = unsafe {
        let args = engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client,
            data: ptr::with_exposed_provenance(address),
            type_: buffer.shape.element_type,
            dims: buffer.shape.dims.as_ptr(),
            num_dims: buffer.shape.dims.len(),
            host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableZeroCopy,
            memory,
            ..Default::default()
        })?;
        drop(engine.own_event(args.done_with_host_buffer));
        args
    };
    Ok(args.buffer)
}

/// Deletes the arguments that the program was given for good.
///
/// # Safety
/// As [`execute`].
unsafe fn consume(call: &Call<'_>) -> Outcome {
    let plan = &call.loaded.program.plan;
    let Donations::Only(donated) = &plan.donations else { return Ok(()) };
    for index in 0..call.args.num_devices {
        let arguments = call.arguments(index);
        for &number in donated.iter().chain(&plan.released).filter(|&&number| !call.keeps(number)) {
            // SAFETY: the arguments are buffers of ours.
            unsafe { Buffer::borrow(arguments[number], NAME)? }.delete()?;
        }
    }
    Ok(())
}
