//! Programs that call back into the host, on a CPU: each has a nested client of the engine to itself while it runs.
//!
//! ```text
//!  the user's client    program, program, program ...    of any thread, a callback's too: none waits for a callback
//!                                 ^
//!  a nested client      program --+-> callback --> waits for what it likes
//! ```
//!
//! XLA's CPU client runs what is enqueued on a device in order, whichever thread enqueues it, multi-device programs
//! one after the other, and all of it on as many threads as there are cores. If a callback waits for a thread, and
//! that thread enqueues a program behind the callback's own, both wait for ever. jaxlib's own callbacks tell the
//! client that they are callbacks, and it then runs what they ask for at once; the C API has no way to tell it, and
//! threads that callbacks start do not tell it either. So the program with the callback runs on another client. Its
//! callback may run another such program, and that one yet another: each gets a client that no program runs on
//! ([`crate::runtime::nested`]). The program is loaded there at its first execution.
//!
//! The bytes stay in the arena: arguments and destinations are views there as well. The call waits for its arguments,
//! because a view is ready at once, and for the program, so no other thread ever sees a buffer of that client. What
//! cannot be viewed (elements of less than a byte) is copied; a token, which has no bytes, is made anew.
//!
//! The user's client does not know that its arrays are read, so they are lent (`buffer/reading.rs`): one that is
//! deleted meanwhile is freed afterwards, and another program that is donated one gets a copy. An array that is
//! donated to the program itself is the program's exclusively (`argument.rs`), or only read if something else uses it
//! too.
//!
//! Handlers of custom calls may call pjrt-arena as well, and the programs of handlers cannot be told apart
//! beforehand. So what the thread of such a handler runs gets a nested client too, and while that is under way, so
//! does what threads of callbacks run: it may be what its own callback runs.

use std::{
    mem::ManuallyDrop,
    ptr,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use crate::{
    config::EngineKind,
    engine::{
        EngineBuffer, EngineError, Live, Outcome, Raw, Session, process,
        views::{self, Array, ClientMemory, HostBytes},
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
        in_flight::deadline::Deadline,
        nested::NestedLease,
        shape::Shape,
    },
    sys,
};

/// How long a launch waits for the readers of what it is donated: after that it only reads it, and the engine takes a
/// copy.
const READERS_BOUND: Duration = Duration::from_millis(100);

/// Whether a program runs on a nested client.
pub fn is_called_for(host_callbacks: bool) -> bool {
    (host_callbacks || is_in_handler()) && process::kind() == Some(EngineKind::Cpu)
}

/// An execution on a nested client, and that client's views for it.
pub struct NestedRun<'a> {
    call: Call<'a>,
    /// The program on the nested client.
    pub executable: *mut sys::PJRT_LoadedExecutable,
    /// The nested client's device for the one that the caller chose; NULL if it chose none.
    pub execute_device: *mut sys::PJRT_Device,
    /// Buffers of the nested client that are passed as arguments.
    buffers: Vec<EngineBuffer>,
    /// Memory that results may lie in, by its address; with the view of the user's client, where the result is known.
    places: FxHashMap<usize, Option<(*const Shape, EngineBuffer)>>,
    /// Arguments that are read.
    readings: Vec<Reading<'a>>,
    lease: NestedLease,
    _handler_depth: Option<ProgramOfHandler>,
}

impl<'a> NestedRun<'a> {
    /// Waits until the arguments are defined, and takes a nested client for the execution.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an argument that was deleted or donated, or is donated and passed twice; the error
    /// that one holds, or the engine's.
    pub fn begin(call: Call<'a>) -> Outcome<Self> {
        let (args, client) = (call.args, &call.loaded.client);
        // The engine sees two views, and cannot see that they are of the same bytes.
        call.refuse_what_is_donated_twice()?;
        let mut donated_buffers: Vec<&Buffer> = Vec::new();
        for index in 0..args.num_devices {
            let mut donated = DonationCursor::new(call.donated());
            for number in 0..args.num_args {
                let buffer = call.argument(index, number)?;
                buffer.wait()?;
                if donated.has(number) && !call.keeps(number) {
                    donated_buffers.push(buffer.get());
                }
            }
        }
        if !donated_buffers.is_empty() {
            let used = || donated_buffers.iter().any(|buffer| !buffer.is_unused());
            client.allocator.in_flight.wait_while(&Deadline::at(Instant::now() + READERS_BOUND), used);
        }
        // SAFETY: the executable is the caller's, who destroys it after the call.
        let loaded = unsafe { Live::new(client.session.engine, args.executable) };
        let (lease, executable) = NestedLease::begin(&client.nested, loaded, &call.loaded.nested_executables)?;
        let chosen = Raw(args.execute_device);
        let execute_device = match lease.place(chosen) {
            Some((device, _)) => device.raw(),
            None if chosen.is_null() => ptr::null_mut(),
            None => return Err(Error::invalid_argument(format!("{NAME}: execute_device is not addressable")).into()),
        };
        let (buffers, places, readings) = (Vec::new(), FxHashMap::default(), Vec::new());
        let _handler_depth = ProgramOfHandler::begin();
        Ok(Self { call, executable, execute_device, buffers, places, readings, lease, _handler_depth })
    }

    /// The nested client and its memory for arrays on one of the user's devices.
    fn place(&self, device: Raw<sys::PJRT_Device>) -> Outcome<ClientMemory<'_>> {
        let place = self.lease.place(device).ok_or_else(|| Error::internal("an array on a device of no client"))?;
        Ok(place.1)
    }

    /// Acquires an argument, which the program may consume if it is `donated`: the engine is passed a buffer of the
    /// nested client.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated, or the engine's.
    pub fn acquire(&mut self, buffer: BufferRef<'a>, donated: bool) -> Outcome<Argument<'a>> {
        let session = self.call.loaded.client.session;
        let place = self.place(buffer.device)?;
        // It is not known what a program consumes that could not be read: it reads all arguments.
        if donated
            && self.call.donated().is_some()
            && let Some((mut argument, address)) = Argument::donate_exclusively(buffer)?
        {
            // SAFETY: the argument keeps the block from here on, and nothing else uses it.
            let view = unsafe { view_on(place, session, address, buffer.shape.array(), HostBytes::Writable)? };
            argument.pass(&view);
            self.buffers.push(view);
            self.places.insert(address, None);
            return Ok(argument);
        }
        let reading = buffer.get().lend()?;
        let view = if buffer.shape.element_type == sys::PJRT_Buffer_Type_TOKEN {
            token(session, place)?
        } else if session.can_view(buffer.shape.element_type, &buffer.shape.dims) {
            // Notes the layout of an array outside of the arenas; that of an array in an arena is known.
            layout(buffer.get())?;
            // SAFETY: the bytes are defined, and the reading keeps them unchanged until the execution is over.
            unsafe { view_on(place, session, reading.address(), buffer.shape.array(), HostBytes::Constant)? }
        } else {
            let hold = buffer.get().hold()?;
            copy(session, hold.live(), place.memory)?
        };
        let argument = Argument::lent(buffer, &view, donated);
        self.buffers.push(view);
        self.readings.push(reading);
        Ok(argument)
    }

    /// Replaces the views of the destinations and donation copies of `device`, the one with the number `index`, by
    /// views of the nested client.
    ///
    /// # Errors
    /// The engine's.
    pub fn view_all_on_nested(
        &mut self,
        index: usize,
        device: Raw<sys::PJRT_Device>,
        copies: &mut [DonationCopy],
        destinations: &mut [Destination],
    ) -> Outcome {
        for copy in copies {
            let buffer = self.call.argument(index, copy.argument)?;
            let address = copy.allocation.address();
            copy.view = self.view_on_nested(address, device, &buffer.shape)?;
            self.places.insert(address, None);
        }
        let program = &self.call.loaded.program;
        for (destination, &result) in destinations.iter_mut().zip(&program.plan.destinations) {
            let (shape, address) = (&*program.results[result], destination.vacant.address());
            let view = self.view_on_nested(address, device, shape)?;
            let own = destination.vacant.replace_view(view);
            self.places.insert(address, own.map(|own| (ptr::from_ref(shape), own)));
        }
        Ok(())
    }

    /// A view on the nested client of memory that a result may lie in, of an array of this shape.
    ///
    /// # Errors
    /// The engine's.
    fn view_on_nested(&self, address: usize, device: Raw<sys::PJRT_Device>, shape: &Shape) -> Outcome<EngineBuffer> {
        let session = self.call.loaded.client.session;
        // SAFETY: the block holds an array of this shape, and is freed after the views of it.
        Ok(unsafe { view_on(self.place(device)?, session, address, shape.array(), HostBytes::Writable)? })
    }

    /// Replaces the program's outputs by buffers of the user's client.
    ///
    /// # Errors
    /// The engine's; the caller must then destroy what is in its lists.
    ///
    /// # Safety
    /// The engine must have filled in the caller's lists, and the program must be over.
    pub unsafe fn replace_outputs(&mut self) -> Result<(), EngineError> {
        let loaded = self.call.loaded;
        let session = loaded.client.session;
        for index in 0..self.call.args.num_devices {
            let list = self.call.output_list(index);
            let Some(device) = self.call.device(index).1 else { continue };
            for (entry, shape) in list.iter().zip(&loaded.program.results) {
                // SAFETY: the entry is a live buffer of the nested client that has no other owner; the memory that it
                // lies in is not freed before a result takes it. The user's client is alive during the call, and the
                // memory its own.
                unsafe {
                    let output = ManuallyDrop::new(EngineBuffer::own(session, entry.get()));
                    let address = output.address().unwrap_or(0);
                    let replaced = match self.places.get_mut(&address).map(Option::take) {
                        Some(Some((known, view))) if ptr::eq(known, &raw const **shape) => view,
                        Some(_) => {
                            note_layout(&output, shape);
                            EngineBuffer::view(session, device.memory(), address, shape.array())?
                        }
                        None if shape.element_type == sys::PJRT_Buffer_Type_TOKEN => {
                            let client = Live::new(session.engine, session.handle.0);
                            token(
                                session,
                                ClientMemory { client, memory: Live::new(session.engine, device.memory().0) },
                            )?
                        }
                        None => copy(session, output.live()?, Live::new(session.engine, device.memory().0))?,
                    };
                    entry.set(replaced.into_raw());
                    drop(ManuallyDrop::into_inner(output));
                }
            }
        }
        Ok(())
    }
}

/// The value that JAX begins with where a program takes a token, which has no bytes: the engine copies no token to
/// another client, and would abort (PJRT 0.81 and 0.106).
///
/// # Errors
/// The engine's.
fn token(session: &'static Session, place: ClientMemory<'_>) -> Result<EngineBuffer, EngineError> {
    #[repr(align(64))]
    struct Nothing([u8; views::ALIGNMENT]);
    static NOTHING: Nothing = Nothing([0; views::ALIGNMENT]);
    let array = Array::new(sys::PJRT_Buffer_Type_PRED, &[]);
    // SAFETY: the static bytes are there for ever, and nothing writes to them.
    unsafe { view_on(place, session, NOTHING.0.as_ptr().expose_provenance(), array, HostBytes::Constant) }
}

/// A buffer of bytes of the host in a memory of the client of `session`, or of one that ends before it.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// As for [`views::from_host`].
unsafe fn view_on(
    place: ClientMemory<'_>,
    session: &'static Session,
    address: usize,
    array: Array<'_>,
    bytes: HostBytes,
) -> Result<EngineBuffer, EngineError> {
    // SAFETY: the bytes are as this function asks. The buffer is new, with no other owner.
    unsafe { Ok(EngineBuffer::own(session, views::from_host(place, address, array, bytes)?.into_raw())) }
}

/// A copy of a defined buffer in `dst_memory`, which may be another client's.
///
/// # Errors
/// The engine's.
fn copy(
    session: &'static Session,
    buffer: Live<'_, sys::PJRT_Buffer>,
    memory: Live<'_, sys::PJRT_Memory>,
) -> Result<EngineBuffer, EngineError> {
    let (buffer, dst_memory) = (buffer.raw(), memory.raw());
    let args = sys::PJRT_Buffer_CopyToMemory_Args { buffer, dst_memory, ..Default::default() };
    // SAFETY: buffer and memory are alive. The copy is new, with no other owner.
    let copy = unsafe { EngineBuffer::own(session, session.engine.call(args)?.dst_buffer) };
    copy.wait()?;
    Ok(copy)
}
