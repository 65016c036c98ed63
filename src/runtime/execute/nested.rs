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

use std::{mem::ManuallyDrop, ptr, time::Duration};

use rustc_hash::FxHashMap;

use crate::{
    config::EngineKind,
    engine::{
        EngineBuffer, EngineError, Outcome, Raw, Session,
        buffers::ready_event,
        process,
        views::{self, Array},
    },
    error::Error,
    handlers::depth::{ProgramOfHandler, is_in_handler},
    runtime::{
        buffer::{
            Buffer, BufferRef,
            layout::{layout, note_layout},
            reading::Reading,
        },
        execute::{
            argument::{Argument, DonationCursor},
            call::{Call, NAME},
            destination::Destination,
            donation_copy::DonationCopy,
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

/// An execution on a nested client, and what that client is shown for it.
pub struct NestedRun<'a> {
    call: Call<'a>,
    /// The program there.
    pub executable: *mut sys::PJRT_LoadedExecutable,
    /// The device there that the caller chose; NULL if it did not.
    pub execute_device: *mut sys::PJRT_Device,
    /// Buffers of the nested client that arguments are.
    buffers: Vec<EngineBuffer>,
    /// Memory that results may lie in, by its address; with the user's view, where the result is known.
    places: FxHashMap<usize, Option<(*const Shape, EngineBuffer)>>,
    /// Arguments that are read.
    loans: Vec<Reading<'a>>,
    lease: NestedLease,
    _of_handler: Option<ProgramOfHandler>,
}

impl<'a> NestedRun<'a> {
    /// Waits until the arguments are there, and finds a client for the execution.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an argument that was deleted or donated, or is donated and passed twice; the error
    /// that one holds, or the engine's.
    pub fn begin(call: Call<'a>) -> Outcome<Self> {
        let (args, client) = (call.args, &call.loaded.client);
        // The engine sees two views, and not that they show the same.
        call.refuse_what_is_given_twice()?;
        let mut given: Vec<&Buffer> = Vec::new();
        for index in 0..args.num_devices {
            let mut donated = DonationCursor::new(call.donated());
            for number in 0..args.num_args {
                let buffer = call.argument(index, number)?;
                // SAFETY: the client is open during the call that executes one of its programs.
                unsafe { wait_for(buffer.get())? };
                if donated.has(number) && !call.keeps(number) {
                    given.push(buffer.get());
                }
            }
        }
        if !given.is_empty() {
            let unused = || given.iter().all(|buffer| buffer.is_unused());
            client.allocator.in_flight.throttle(client.session.engine, PATIENCE, unused);
        }
        // SAFETY: the client is alive while its executable is.
        let (lease, executable) =
            unsafe { NestedLease::begin(&client.nested, args.executable, &call.loaded.nested_executables)? };
        let chosen = Raw(args.execute_device);
        let execute_device = match lease.place(chosen) {
            Some((device, _)) => device.0,
            None if chosen.is_null() => ptr::null_mut(),
            None => return Err(Error::invalid_argument(format!("{NAME}: execute_device is not addressable")).into()),
        };
        let (buffers, places, loans) = (Vec::new(), FxHashMap::default(), Vec::new());
        let _of_handler = ProgramOfHandler::begin();
        Ok(Self { call, executable, execute_device, buffers, places, loans, lease, _of_handler })
    }

    /// Where the nested client has an array of one of the user's devices.
    fn place(&self, device: Raw<sys::PJRT_Device>) -> Outcome<(*mut sys::PJRT_Client, *mut sys::PJRT_Memory)> {
        let (_, memory) =
            self.lease.place(device).ok_or_else(|| Error::internal("an array on a device of nobody's"))?;
        Ok((self.lease.handle(), memory.0))
    }

    /// Acquires an argument, which the program may consume if it is `donated`: what the engine is passed is a buffer of the
    /// nested client.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated, or the engine's.
    pub fn acquire(&mut self, buffer: BufferRef<'a>, donated: bool) -> Outcome<Argument<'a>> {
        let session = self.call.loaded.client.session;
        let place = self.place(buffer.device)?;
        // Of a program that could not be read nobody knows what it will consume: it reads all.
        if donated
            && self.call.donated().is_some()
            && let Some((mut argument, address)) = Argument::donate_exclusively(buffer)?
        {
            // SAFETY: the block is held from here on, and nothing else uses it. The view is new, and ours.
            let view = unsafe {
                let view = views::view(session.engine, place, address, buffer.shape.array())?;
                EngineBuffer::own(session, view)
            };
            argument.handle = view.raw();
            self.buffers.push(view);
            self.places.insert(address, None);
            return Ok(argument);
        }
        // SAFETY: the client is open, and the array was waited for.
        let loan = unsafe { buffer.get().lend()? };
        let view = if buffer.shape.element_type == sys::PJRT_Buffer_Type_TOKEN {
            // SAFETY: the place is alive.
            unsafe { token(session, place)? }
        } else if session.aliasable.contains(buffer.shape.element_type) {
            // What lies in an arena has its own layout noted.
            layout(buffer.get())?;
            // SAFETY: the bytes are there, and stay as they are until the execution is over. The view is new, and ours.
            unsafe {
                let view = views::constant(session.engine, place, loan.address(), buffer.shape.array())?;
                EngineBuffer::own(session, view)
            }
        } else {
            let hold = buffer.get().hold()?;
            // SAFETY: the handle is alive while it is held.
            unsafe { copy(session, hold.handle(), place.1)? }
        };
        let argument = Argument::lent(buffer, view.raw(), donated);
        self.buffers.push(view);
        self.loans.push(loan);
        Ok(argument)
    }

    /// Shows the nested client the destinations and donation copies of `device`, the one with the number `index`.
    ///
    /// # Errors
    /// The engine's.
    pub fn show_all(
        &mut self,
        index: usize,
        device: Raw<sys::PJRT_Device>,
        copies: &mut [DonationCopy],
        destinations: &mut [Destination],
    ) -> Outcome {
        for copy in copies {
            let buffer = self.call.argument(index, copy.argument)?;
            self.show(&mut copy.destination, device, &buffer.shape, false)?;
        }
        let program = &self.call.loaded.program;
        for (destination, &result) in destinations.iter_mut().zip(&program.plan.destinations) {
            self.show(destination, device, &program.results[result], true)?;
        }
        Ok(())
    }

    /// Shows the nested client memory that a result may lie in: the view is that client's from here on. `is_result` says that it
    /// is meant for the result of this shape.
    ///
    /// # Errors
    /// The engine's.
    fn show(
        &mut self,
        destination: &mut Destination,
        device: Raw<sys::PJRT_Device>,
        shape: &Shape,
        is_result: bool,
    ) -> Outcome {
        let session = self.call.loaded.client.session;
        let address = destination.address();
        // SAFETY: the block holds an array of this shape, and is freed after the views of it. The view is new, and ours.
        let view = unsafe {
            let view = views::view(session.engine, self.place(device)?, address, shape.array())?;
            EngineBuffer::own(session, view)
        };
        let own = std::mem::replace(&mut destination.view, view);
        self.places.insert(address, is_result.then(|| (ptr::from_ref(shape), own)));
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
        let session = loaded.client.session;
        for index in 0..self.call.args.num_devices {
            let places = self.call.places(index);
            let Some(device) = self.call.device(index).1 else { continue };
            for (number, shape) in loaded.program.results.iter().enumerate() {
                // SAFETY: there is a place for each result, with a live buffer of the nested client in it, which is ours; the
                // memory that it lies in is ours until a result takes it.
                unsafe {
                    let place = places.add(number);
                    let output = ManuallyDrop::new(EngineBuffer::own(session, *place));
                    let address = output.address().unwrap_or(0);
                    let home = match self.places.get_mut(&address).map(Option::take) {
                        Some(Some((known, view))) if ptr::eq(known, &raw const **shape) => view,
                        Some(_) => {
                            note_layout(session.engine, output.raw(), shape);
                            EngineBuffer::own(session, session.view(device.memory, address, shape.array())?)
                        }
                        None if shape.element_type == sys::PJRT_Buffer_Type_TOKEN => {
                            token(session, (session.handle.0, device.memory.0))?
                        }
                        None => copy(session, output.raw(), device.memory.0)?,
                    };
                    *place = home.release().0;
                    drop(ManuallyDrop::into_inner(output));
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
    session: &'static Session,
    place: (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
) -> Result<EngineBuffer, EngineError> {
    #[repr(align(64))]
    struct Nothing([u8; views::ALIGNMENT]);
    static NOTHING: Nothing = Nothing([0; views::ALIGNMENT]);
    let array = Array::new(sys::PJRT_Buffer_Type_PRED, &[]);
    // SAFETY: the place is alive; the memory is there for ever, and nothing writes to it. The buffer is new, and ours.
    unsafe {
        let token = views::constant(session.engine, place, NOTHING.0.as_ptr().expose_provenance(), array)?;
        Ok(EngineBuffer::own(session, token))
    }
}

/// A copy in `memory`, which another client's may be, of a buffer that is there.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The buffer and the memory must be alive.
unsafe fn copy(
    session: &'static Session,
    buffer: *mut sys::PJRT_Buffer,
    dst_memory: *mut sys::PJRT_Memory,
) -> Result<EngineBuffer, EngineError> {
    let args = sys::PJRT_Buffer_CopyToMemory_Args { buffer, dst_memory, ..Default::default() };
    // SAFETY: buffer and memory are alive. The copy is new, and ours.
    let copy = unsafe { EngineBuffer::own(session, session.engine.call(args)?.dst_buffer) };
    copy.wait()?;
    Ok(copy)
}

/// Waits until an array is defined.
///
/// # Errors
/// INVALID_ARGUMENT if it was deleted or donated, or the error that it holds.
///
/// # Safety
/// The client must be alive.
pub unsafe fn wait_for(buffer: &Buffer) -> Outcome {
    let handle = buffer.begin_use()?;
    // SAFETY: the handle is alive while the buffer is taken up.
    let outcome = unsafe { ready_event(buffer.session, handle) }.and_then(|event| event.wait());
    buffer.land();
    Ok(outcome?)
}
