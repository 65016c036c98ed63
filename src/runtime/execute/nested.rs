//! Programs that call back into the host, on a CPU: each has a client of the engine to itself, beside the user's, while
//! it runs.
//!
//! ```text
//!  the user's client    program, program, program ...    of any thread, a callback's too: none of them waits for a callback
//!                                 ^
//!  a client beside it   program --+-> callback --> waits for what it likes
//! ```
//!
//! XLA's CPU client runs what is enqueued on a device in order, whichever thread enqueues it, multi-device programs one
//! after the other, and all of it on as many threads as there are cores. Behind a program whose callback waits for a
//! thread, what that thread runs would wait for ever. jaxlib's own callbacks tell the client that they are callbacks,
//! and it then runs what they ask for on the spot; through the C API nobody can tell it, and neither do they for
//! threads that they start. So it is the program with the callback that goes elsewhere. Its callback may run another
//! such program, and that one yet another: each gets a client that no program runs on ([`clients`]). The program is
//! loaded there at its first run.
//!
//! The bytes stay in the arena: arguments and destinations are views there as well. The call waits for its arguments,
//! because a view is ready at once, and for the program, so nobody else ever sees a buffer of that client. What cannot
//! be viewed (elements of less than a byte) is copied; a token, which has no bytes, is made anew.
//!
//! The user's client does not know that its arrays are read, so they are lent (`reading.rs`): one that is deleted
//! meanwhile goes afterwards, and another program that is donated one gets a copy. One that the program itself is given
//! for good it has alone (`gifts.rs`), or it only reads it where somebody else does too.
//!
//! Handlers of custom calls may call us as well, and nobody knows of a program that its handlers do. So what the thread
//! of such a handler runs goes beside too, and while it is under way, what threads of callbacks run: it may be what its
//! own callback runs.

use std::{ptr, time::Duration};

use rustc_hash::FxHashMap;

use crate::{
    config::EngineKind,
    engine::{
        Engine, EngineError, EngineEvent, Outcome, Raw, process,
        views::{self, Array},
    },
    error::Error,
    handlers::depth::{ProgramOfHandler, is_in_handler},
    runtime::{
        buffer::{
            Buffer,
            layout::{layout, note_layout},
            reading::Reading,
        },
        executable::loaded::Donations,
        execute::{
            call::{Call, NAME},
            device_launch::Destination,
            donations::{DonationCursor, DonationHolds},
        },
        nested::NestedLease,
        shape::Shape,
    },
    sys,
};

/// How long a launch waits for others to have read what it is given: it reads it itself then, and the engine takes a
/// copy.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether a program runs beside the user's client.
pub fn is_called_for(host_callbacks: bool) -> bool {
    (host_callbacks || is_in_handler()) && process::kind() == Some(EngineKind::Cpu)
}

/// A run beside, and what the other client is shown for it.
pub struct NestedRun<'a> {
    call: Call<'a>,
    /// The program there.
    pub executable: *mut sys::PJRT_LoadedExecutable,
    /// The device there that the caller chose; NULL if it did not.
    pub execute_device: *mut sys::PJRT_Device,
    /// Buffers of the other client that arguments are.
    buffers: Vec<*mut sys::PJRT_Buffer>,
    /// Memory that results may lie in, by its address; with the user's view, where the result is known.
    places: FxHashMap<usize, Option<(*const Shape, *mut sys::PJRT_Buffer)>>,
    /// Arguments that are read.
    loans: Vec<Reading<'a>>,
    stay: NestedLease,
    _of_handler: Option<ProgramOfHandler>,
}

impl Drop for NestedRun<'_> {
    fn drop(&mut self) {
        let engine = self.call.loaded.client.session.engine;
        let own = self.places.values().flatten().map(|&(_, view)| view);
        for buffer in self.buffers.drain(..).chain(own) {
            // SAFETY: ours, and the program that used it is over or never ran.
            unsafe { views::destroy(engine, buffer) };
        }
    }
}

impl<'a> NestedRun<'a> {
    /// Waits until the arguments are there, and finds a client for the run.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an argument that was deleted or donated, or is given for good and passed twice; the error
    /// that one holds, or the engine's.
    ///
    /// # Safety
    /// The arguments must be live buffers of ours, and the client alive.
    pub unsafe fn begin(call: Call<'a>) -> Outcome<Self> {
        let (args, client) = (call.args, &call.loaded.client);
        // The engine sees two views, and not that they show the same.
        call.refuse_what_is_given_twice()?;
        let mut given: Vec<&Buffer> = Vec::new();
        for index in 0..args.num_devices {
            let mut taken = DonationCursor::new(&call.loaded.program.plan.donations);
            for (number, &argument) in call.arguments(index).iter().enumerate() {
                // SAFETY: the caller's promise.
                let buffer = unsafe { Buffer::borrow(argument, NAME)? };
                // SAFETY: as above.
                unsafe { wait_for(buffer)? };
                if taken.has(number) && !call.keeps(number) {
                    given.push(buffer);
                }
            }
        }
        if !given.is_empty() {
            client
                .allocator
                .in_flight
                .throttle(client.session.engine, PATIENCE, || given.iter().all(|buffer| buffer.is_at_rest()));
        }
        // SAFETY: the client is alive while its executable is.
        let (stay, executable) = unsafe { NestedLease::begin(&client.nested, args.executable, &call.loaded.twins)? };
        let chosen = Raw(args.execute_device);
        let execute_device = match stay.place(chosen) {
            Some((device, _)) => device.0,
            None if chosen.is_null() => ptr::null_mut(),
            None => return Err(Error::invalid_argument(format!("{NAME}: execute_device is not addressable")).into()),
        };
        let (buffers, places, loans) = (Vec::new(), FxHashMap::default(), Vec::new());
        Ok(Self {
            call,
            executable,
            execute_device,
            buffers,
            places,
            loans,
            stay,
            _of_handler: ProgramOfHandler::begin(),
        })
    }

    /// Where the other client has an array of one of the user's devices.
    fn place(&self, device: Raw<sys::PJRT_Device>) -> Outcome<(*mut sys::PJRT_Client, *mut sys::PJRT_Memory)> {
        let (_, memory) = self.stay.place(device).ok_or_else(|| Error::internal("an array on a device of nobody's"))?;
        Ok((self.stay.handle(), memory.0))
    }

    /// Begins the use of an argument; `gift` is its place among the call's, if the program may consume it. Gives the
    /// other client's buffer, and the argument if it is in use until the call ends.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated, or the engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn admit(
        &mut self,
        buffer: &'a Buffer,
        gift: Option<(usize, usize)>,
        gifts: &mut DonationHolds<'a>,
    ) -> Outcome<(*mut sys::PJRT_Buffer, Option<&'a Buffer>)> {
        let engine = self.call.loaded.client.session.engine;
        let place = self.place(buffer.device)?;
        // Of a program that could not be read nobody knows what it will consume: it reads all.
        let is_known = matches!(self.call.loaded.program.plan.donations, Donations::Only(_));
        if let Some(gift) = gift
            && let Some(address) = gifts.take_alone(buffer, gift, is_known)?
        {
            // SAFETY: the block is in use from here on, and nobody else uses it.
            let view = unsafe { views::view(engine, place, address, buffer.shape.array()) }
                .inspect_err(|_| gifts.land_last())?;
            self.buffers.push(view);
            self.places.insert(address, None);
            return Ok((view, Some(buffer)));
        }
        // SAFETY: the caller's promise; the array was waited for.
        let loan = unsafe { buffer.lend()? };
        let view = if buffer.shape.element_type == sys::PJRT_Buffer_Type_TOKEN {
            // SAFETY: the place is alive.
            unsafe { token(engine, place)? }
        } else if self.call.loaded.client.session.aliasable.contains(buffer.shape.element_type) {
            // What lies in an arena has its own layout noted.
            layout(buffer)?;
            // SAFETY: the bytes are there, and stay as they are until the run is over.
            unsafe { views::constant(engine, place, loan.address(), buffer.shape.array())? }
        } else {
            let hold = buffer.hold()?;
            // SAFETY: the handle is alive while it is held.
            unsafe { copy(engine, hold.handle(), place.1)? }
        };
        self.buffers.push(view);
        self.loans.push(loan);
        Ok((view, None))
    }

    /// Shows the other client memory that a result may lie in: the view is that client's from here on. `result` is the
    /// array of the result that it is meant for.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client must be alive; the memory must hold an array of this shape.
    pub unsafe fn show(
        &mut self,
        destination: &mut Destination,
        device: Raw<sys::PJRT_Device>,
        shape: &Shape,
        is_result: bool,
    ) -> Outcome {
        let engine = self.call.loaded.client.session.engine;
        let address = destination.held.address();
        // SAFETY: the caller's promise.
        let view = unsafe { views::view(engine, self.place(device)?, address, shape.array())? };
        let own = std::mem::replace(&mut destination.view, Raw(view)).0;
        if is_result {
            self.places.insert(address, Some((ptr::from_ref(shape), own)));
        } else {
            self.places.insert(address, None);
            // SAFETY: ours, and no program was shown it.
            unsafe { views::destroy(engine, own) };
        }
        Ok(())
    }

    /// Puts buffers of the user's client in the place of what the program gave.
    ///
    /// # Errors
    /// The engine's; what is in the caller's lists then is the caller's to destroy.
    ///
    /// # Safety
    /// The engine must have filled in the caller's lists, and the program must be over.
    pub unsafe fn bring_home(&mut self) -> Result<(), EngineError> {
        let loaded = self.call.loaded;
        let (client, engine) = (&loaded.client, loaded.client.session.engine);
        for index in 0..self.call.args.num_devices {
            let places = self.call.places(index);
            let Some(device) = self.call.device(index).1 else { continue };
            for (number, shape) in loaded.program.results.iter().enumerate() {
                // SAFETY: there is a place for each result, with a live buffer of the other client in it; the memory
                // that it lies in is ours until a result takes it.
                unsafe {
                    let place = places.add(number);
                    let output = *place;
                    let address = views::address(engine, output).unwrap_or(0);
                    let home = match self.places.get_mut(&address).map(Option::take) {
                        Some(Some((known, view))) if ptr::eq(known, &raw const **shape) => view,
                        Some(other) => {
                            if let Some((_, view)) = other {
                                views::destroy(engine, view);
                            }
                            note_layout(engine, output, shape);
                            client.session.view(device.memory, address, shape.array())?
                        }
                        None if shape.element_type == sys::PJRT_Buffer_Type_TOKEN => {
                            token(engine, (client.session.handle.0, device.memory.0))?
                        }
                        None => copy(engine, output, device.memory.0)?,
                    };
                    *place = home;
                    views::destroy(engine, output);
                }
            }
        }
        Ok(())
    }
}

/// What JAX begins with where a program takes a token, which has no bytes: the engine copies none to another client,
/// and would abort (PJRT 0.81 and 0.106).
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The place must be alive.
unsafe fn token(
    engine: &'static Engine,
    place: (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    #[repr(align(64))]
    struct Nothing([u8; views::ALIGNMENT]);
    static NOTHING: Nothing = Nothing([0; views::ALIGNMENT]);
    let array = Array::new(sys::PJRT_Buffer_Type_PRED, &[]);
    // SAFETY: the memory is there for ever, and nobody writes to it.
    unsafe { views::constant(engine, place, NOTHING.0.as_ptr().expose_provenance(), array) }
}

/// A copy in `memory`, which another client's may be, of a buffer that is there.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The buffer and the memory must be alive.
unsafe fn copy(
    engine: &'static Engine,
    buffer: *mut sys::PJRT_Buffer,
    dst_memory: *mut sys::PJRT_Memory,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // SAFETY: the caller's promise.
    unsafe {
        let args = sys::PJRT_Buffer_CopyToMemory_Args { buffer, dst_memory, ..Default::default() };
        let copy = engine.call(args)?.dst_buffer;
        ready(engine, copy).inspect_err(|_| views::destroy(engine, copy))?;
        Ok(copy)
    }
}

/// Waits until a buffer of the engine is defined.
///
/// # Errors
/// The error that it holds.
///
/// # Safety
/// The buffer must be alive.
unsafe fn ready(engine: &'static Engine, buffer: *mut sys::PJRT_Buffer) -> Result<(), EngineError> {
    // SAFETY: the caller's promise; the event is ours.
    unsafe {
        let ready = engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer, ..Default::default() })?;
        EngineEvent::own(engine, ready.event).map_or(Ok(()), |event| event.wait())
    }
}

/// Waits until an array is defined.
///
/// # Errors
/// INVALID_ARGUMENT if it was deleted or donated, or the error that it holds.
///
/// # Safety
/// The client must be alive.
pub unsafe fn wait_for(buffer: &Buffer) -> Outcome {
    let handle = buffer.take_up()?;
    // SAFETY: the handle is alive while the buffer is taken up.
    let outcome = unsafe { ready(buffer.session.engine, handle) };
    buffer.land();
    Ok(outcome?)
}
