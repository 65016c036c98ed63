//! `PJRT_LoadedExecutable_Execute`: what is checked at once, and what is left to the device.
//!
//! ```text
//!  1 check    arguments, donations; a failure here leaves everything as it was
//!  2 launch   donated arguments are consumed and results handed out; from here on a failure is the results'
//!    memory   results that take over nothing, and scratch, from the pool
//!    order    the compute stream waits for the arguments, and donated ones for copies out of them too
//!    kernel   runs the program (run.rs), and counts as its reads and writes
//! ```

use std::{collections::HashMap, sync::Arc};

use parking_lot::MutexGuard;

use crate::{
    buffer::{Buffer, Contents},
    client::{Device, PINNED_HOST},
    context::Context,
    cpu::Raw,
    driver::Range,
    entry::{Entry, list, required},
    error::{Error, Result},
    gpu::Seat,
    memory::Memory,
    milestone::Milestone,
    options::Era,
    program::{self, Loaded},
    run::{Argument, Job, Lane, Target},
    sys::{self, CStruct},
    transfer::allocate,
};

/// How XLA's kernels want their arguments (`kEntryParameterAlignBytes`).
const ALIGNMENT: u64 = 16;

/// What one device is launched with.
struct Launch<'a> {
    device: usize,
    arguments: Vec<(&'a Buffer, Contents)>,
    /// Whether the argument gives its memory up, and what has to happen before that.
    donated: Vec<Option<Vec<Arc<Milestone>>>>,
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        // Still here: nothing was started.
        for ((buffer, contents), uses) in self.arguments.iter().zip(&mut self.donated) {
            if let Some(uses) = uses.take() {
                buffer.take_back(contents, uses);
            }
        }
    }
}

/// The caller's options, as long as ours.
///
/// # Safety
/// `options` must be NULL or point to `struct_size` bytes.
unsafe fn options(options: *const sys::PJRT_ExecuteOptions) -> sys::PJRT_ExecuteOptions {
    let mut whole = sys::PJRT_ExecuteOptions::default();
    if !options.is_null() {
        // SAFETY: the caller's promise; the copy is cut at ours.
        unsafe {
            let size = options.cast::<usize>().read().min(sys::PJRT_ExecuteOptions::STRUCT_SIZE);
            (&raw mut whole).cast::<u8>().copy_from_nonoverlapping(options.cast(), size);
        }
    }
    whole
}

/// Refuses an argument twice in one call where one of the two is donated, in XLA's words.
fn check_clashes(arguments: &[*mut sys::PJRT_Buffer], donates: impl Fn(usize) -> bool, replica: usize) -> Result {
    let mut seen: HashMap<usize, (usize, bool)> = HashMap::new();
    for (index, argument) in arguments.iter().enumerate() {
        let donated = donates(index);
        let Some(&(first, before)) = seen.get(&argument.addr()) else {
            seen.insert(argument.addr(), (index, donated));
            continue;
        };
        let place = format!("(flattened argument {index}, replica {replica}, partition 0, first use: {first})");
        let (how, example) = match (before, donated) {
            (true, true) => ("donate the same buffer twice in Execute()", "f(donate(a), donate(a))"),
            (false, true) => ("donate a buffer which is also used by the same call to Execute()", "f(a, donate(a))"),
            (true, false) => {
                ("use a buffer that was previously donated in the same call to Execute()", "f(donate(a), a)")
            }
            (false, false) => continue,
        };
        return Err(Error::invalid(format!("Attempt to {how} {place}. Toy example for this bug: `{example}`.")));
    }
    Ok(())
}

impl<'a> Launch<'a> {
    /// Checks one device's arguments, and takes the donated ones.
    ///
    /// # Safety
    /// The arguments must be live buffers of this engine.
    unsafe fn prepare(
        loaded: &Loaded,
        device: usize,
        replica: usize,
        arguments: &[*mut sys::PJRT_Buffer],
        kept: &[i64],
    ) -> Result<Self> {
        let program = &loaded.program;
        let donates = |index: usize| program.aliases.contains(&Some(index)) && !kept.contains(&(index as i64));
        check_clashes(arguments, donates, replica)?;
        let mut launch = Self { device, arguments: Vec::new(), donated: Vec::new() };
        for (index, &argument) in arguments.iter().enumerate() {
            // SAFETY: the caller's promise.
            let buffer: &'a Buffer = unsafe { Buffer::borrow(argument, "PJRT_LoadedExecutable_Execute")? };
            let invalid = |error: Error| {
                Error::new(
                    error.code,
                    format!("Invalid buffer passed to Execute() as argument {index} to replica {replica}: {error}"),
                )
            };
            if !Arc::ptr_eq(&buffer.client, &loaded.client) || buffer.device != device {
                return Err(Error::invalid(format!(
                    "Buffer passed to Execute() as argument {index} to replica {replica} is on device {}, but replica is \
                     assigned to device {device}.",
                    buffer.device
                )));
            }
            let (bytes, expected) = (buffer.shape.bytes(), program.arguments[index]);
            if let Some(expected) = expected.filter(|&expected| expected != bytes) {
                return Err(Error::invalid(format!(
                    "Executable expected parameter {index} of size {expected} but got buffer with incompatible size {bytes}"
                )));
            }
            // `CommonPjRtClient::PrepareArguments`. The shape of a view says whose memory it is in from 0.114 on.
            let denied = program.aliases.contains(&Some(index)) && !donates(index);
            let knows =
                || loaded.client.era == Era::Api114 || buffer.contents().is_ok_and(|held| !held.memory.is_foreign());
            if denied && buffer.memory_space().kind == PINNED_HOST && knows() {
                return Err(Error::unimplemented(
                    "pinned_host buffers do not support donation denial at runtime via \
                     `ExecuteOptions::non_donatable_input_indices`",
                ));
            }
            if donates(index) {
                let (contents, uses) = buffer.donate().map_err(|error| match error.message.as_str() {
                    "Donation requested for buffer with external reference" => error,
                    _ => invalid(error),
                })?;
                launch.arguments.push((buffer, contents));
                launch.donated.push(Some(uses));
            } else {
                launch.arguments.push((buffer, buffer.contents().map_err(invalid)?));
                launch.donated.push(None);
            }
        }
        Ok(launch)
    }
}

/// One device of a launch that has started.
struct Started {
    device: usize,
    arguments: Vec<Contents>,
    uses: Vec<Arc<Milestone>>,
    reads: Vec<Range>,
    results: Vec<(usize, Arc<Memory>)>,
    temp: u64,
    done: Arc<Milestone>,
}

impl Started {
    /// Consumes the donated arguments, and finds memory for the results.
    fn new(loaded: &Loaded, mut launch: Launch<'_>) -> (Self, Result) {
        let program = &loaded.program;
        let home = &loaded.client.devices[launch.device];
        let mut started = Self {
            device: launch.device,
            arguments: launch.arguments.drain(..).map(|(_, contents)| contents).collect(),
            uses: Vec::new(),
            reads: Vec::new(),
            results: Vec::new(),
            temp: 0,
            done: Milestone::of_work(),
        };
        let mut outcome = Ok(());
        for (result, alias) in program.aliases.iter().enumerate() {
            let place = place(home, program.kinds[result]);
            let reused = alias.filter(|&argument| launch.donated[argument].is_some());
            let memory = match reused {
                Some(argument) => Ok(Arc::clone(&started.arguments[argument].memory)),
                None if outcome.is_ok() => allocate(&loaded.client, started.device, place, &program.results[result]),
                None => Ok(Memory::none()),
            };
            let memory = memory.unwrap_or_else(|error| {
                outcome = Err(error);
                Memory::none()
            });
            started.results.push((place, memory));
        }
        for (contents, uses) in started.arguments.iter().zip(launch.donated.drain(..)) {
            match uses {
                Some(uses) => started.uses.extend(uses),
                None => started.reads.extend(contents.memory.range()),
            }
        }
        if let Some(argument) = started.arguments.iter().position(|contents| contents.memory.address() % ALIGNMENT != 0)
        {
            let at = started.arguments[argument].memory.address();
            outcome = Err(Error::internal(format!(
                "Address of buffer {argument} must be a multiple of {ALIGNMENT:x}, but was {at:#x}"
            )));
        }
        if outcome.is_ok() {
            match home.gpu.allocate(program.temp) {
                Ok(temp) => started.temp = temp,
                Err(error) => outcome = Err(error),
            }
        }
        (started, outcome)
    }

    /// What the kernel is to run on.
    fn lane(&self, loaded: &Loaded, spaces: &[Raw<sys::PJRT_Memory>], shapes: Vec<crate::shape::Shape>) -> Lane {
        let arguments = self.arguments.iter().zip(spaces).zip(shapes).map(|((contents, &space), shape)| Argument {
            address: contents.memory.address(),
            shape,
            space,
            defined: Arc::clone(&contents.defined),
        });
        let results = self.results.iter().zip(&loaded.program.results);
        Lane {
            arguments: arguments.collect(),
            results: results
                .map(|((_, memory), shape)| Target { address: memory.address(), shape: shape.clone() })
                .collect(),
            done: Arc::clone(&self.done),
        }
    }

    /// Puts the kernel into the compute stream, behind what it needs.
    fn enqueue(&self, loaded: &Loaded, job: &Arc<Job>) -> Result {
        let gpu = &loaded.client.devices[self.device].gpu;
        let needed = self.arguments.iter().map(|contents| &contents.defined).chain(&self.uses);
        for milestone in needed {
            if let Some(mark) = milestone.recorded() {
                gpu.follow(gpu.compute, &mark)?;
            }
        }
        let mut writes: Vec<Range> = self.results.iter().filter_map(|(_, memory)| memory.range()).collect();
        if self.temp != 0 {
            writes.push(Range { address: self.temp, bytes: loaded.program.temp });
        }
        let job = Arc::clone(job);
        gpu.kernel(gpu.compute, &self.reads, &writes, move || job.arrive())
    }

    /// Ends the launch on this device behind its kernel.
    fn complete(self, loaded: &Loaded, seat: Seat) {
        let client = &loaded.client;
        let gpu = &client.devices[self.device].gpu;
        gpu.free(self.temp);
        let results = self.results.into_iter().map(|(_, memory)| memory);
        let memories = self.arguments.into_iter().map(|contents| contents.memory).chain(results);
        // Memory of the pool needs no keeping: it goes back in the order of the compute stream. An outsider's is kept
        // from 0.114 on.
        let keeps = |memory: &Arc<Memory>| match memory.is_foreign() {
            true => client.era == Era::Api114,
            false => !memory.is_pool(),
        };
        let kept: Vec<Arc<Memory>> = memories.filter(keeps).collect();
        // A failure is the milestone's already.
        let _ = gpu.complete(gpu.compute, &self.done, (kept, seat));
    }

    /// Ends the launch on this device without a kernel.
    fn fail(self, loaded: &Loaded, error: &Error) {
        loaded.client.devices[self.device].gpu.free(self.temp);
        self.done.finish_with(Err(error.clone()));
    }

    fn addresses(&self) -> Vec<u64> {
        let arguments = self.arguments.iter().map(|contents| contents.memory.address());
        arguments.chain(self.results.iter().map(|(_, memory)| memory.address())).chain([self.temp]).collect()
    }
}

/// The device's memory of a kind; its own where there is none.
fn place(device: &Device, kind: &str) -> usize {
    device.memories.iter().position(|place| place.kind == kind).unwrap_or(0)
}

impl Entry for sys::PJRT_LoadedExecutable_Execute_Args {
    unsafe fn run(&mut self) -> Result {
        const NAME: &str = "PJRT_LoadedExecutable_Execute";
        let loaded = program::loaded(required(self.executable, NAME, "executable")?)?;
        let client = Arc::clone(&loaded.client);
        let program = &loaded.program;
        if self.num_args != program.arguments.len() {
            return Err(Error::invalid(format!(
                "Execution supplied {} buffers but compiled program expected {} buffers",
                self.num_args,
                program.arguments.len()
            )));
        }
        let devices = if self.execute_device.is_null() {
            loaded.devices.clone()
        } else {
            let number = client.number(self.execute_device);
            vec![number.ok_or_else(|| Error::invalid(format!("{NAME}: execute_device is none of the client's")))?]
        };
        if self.num_devices != devices.len() {
            return Err(Error::invalid(format!(
                "Attempted to execute with {} argument lists when local device count is {}",
                self.num_devices,
                devices.len()
            )));
        }
        // SAFETY: the caller's struct and lists.
        let (options, kept, lists) = unsafe {
            let options = options(self.options);
            let kept = list(options.non_donatable_input_indices, options.num_non_donatable_input_indices).to_vec();
            (options, kept, list(self.argument_lists, self.num_devices))
        };
        if options.num_send_ops + options.num_recv_ops > 0 {
            return Err(Error::unimplemented("the fake CUDA engine has no send and receive callbacks"));
        }
        let context = Context::share(options.context)?;
        let seats: Vec<Seat> = devices.iter().map(|&device| client.devices[device].gpu.board()).collect();

        // 1. Arguments.
        let mut launches = Vec::new();
        for (replica, &device) in devices.iter().enumerate() {
            let arguments = lists.get(replica).copied().unwrap_or(std::ptr::null());
            // SAFETY: the caller passes one list of live buffers a device.
            launches.push(unsafe { Launch::prepare(&loaded, device, replica, list(arguments, self.num_args), &kept)? });
        }

        // 2. From here on nothing fails but results. Kernels of several devices wait for each other, so such launches
        // are in one order on all devices.
        let guard: Option<MutexGuard<'_, ()>> = (devices.len() > 1).then(|| client.launches.lock());
        let (mut started, mut lanes, mut failure) = (Vec::new(), Vec::new(), Ok(()));
        for launch in launches {
            let spaces: Vec<_> = launch.arguments.iter().map(|(buffer, _)| buffer.memory_space().handle).collect();
            let shapes = launch.arguments.iter().map(|(buffer, _)| buffer.shape.clone()).collect();
            let (device, outcome) = Started::new(&loaded, launch);
            loaded.note(device.device, device.addresses());
            lanes.push(device.lane(&loaded, &spaces, shapes));
            started.push(device);
            failure = failure.and(outcome);
        }
        for (index, device) in started.iter().enumerate() {
            if !self.device_complete_events.is_null() {
                // SAFETY: the caller passes one place a device.
                unsafe { *self.device_complete_events.add(index) = Arc::clone(&device.done).into_raw() };
            }
            for (result, (place, memory)) in device.results.iter().enumerate() {
                let (shape, memory, done) =
                    (program.results[result].clone(), Arc::clone(memory), Arc::clone(&device.done));
                let buffer = Buffer::new(&client, device.device, *place, shape, memory, done);
                // SAFETY: the caller passes one list a device, with one place for each result.
                unsafe { *(*self.output_lists.add(index)).add(result) = buffer.into_raw() };
            }
        }
        let job = Arc::new(Job::new(Arc::clone(&loaded), context, kept, Raw(self.execute_device), lanes));
        for device in started.iter().filter(|_| started.len() > 1) {
            // A device that fails without running its kernel must not leave the others waiting for it.
            let job = Arc::clone(&job);
            device.done.when_finished(move |done| {
                if let Some(error) = done.failure() {
                    job.abort(&error);
                }
            });
        }
        for device in &started {
            if failure.is_ok() {
                failure = device.enqueue(&loaded, &job);
            }
        }
        if let Err(error) = failure {
            job.abort(&error);
            started.into_iter().for_each(|device| device.fail(&loaded, &error));
        } else {
            started.into_iter().zip(seats).for_each(|(device, seat)| device.complete(&loaded, seat));
        }
        drop(guard);
        Ok(())
    }
}
