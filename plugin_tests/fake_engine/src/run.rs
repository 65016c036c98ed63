//! What a kernel does: the CPU engine runs the program on the addresses that the launch was given.
//!
//! ```text
//!  arguments   views of their addresses; donated ones may be written in place
//!  Execute     on this thread, and waited for
//!  results     those that did not land where they belong are copied there
//! ```
//! A program of several devices is run once, by the kernel that comes last; the others wait for it, as kernels with
//! collectives do.

use std::{
    mem, ptr, slice,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};

use crate::{
    context::Context,
    cpu::{self, Cpu, Raw},
    error::{Error, Result},
    memory::at,
    milestone::Milestone,
    program::Loaded,
    shape::Shape,
    sys::{self, CStruct},
};

/// An argument of one device.
pub struct Argument {
    /// Its first byte.
    pub address: u64,
    /// What it is.
    pub shape: Shape,
    /// The memory space.
    pub space: Raw<sys::PJRT_Memory>,
    /// When its contents are there.
    pub defined: Arc<Milestone>,
}

/// Where a result belongs.
pub struct Target {
    /// Its first byte.
    pub address: u64,
    /// What it is.
    pub shape: Shape,
}

/// What one device runs on.
pub struct Lane {
    /// In the program's order.
    pub arguments: Vec<Argument>,
    /// In the program's order.
    pub results: Vec<Target>,
    /// When it is done.
    pub done: Arc<Milestone>,
}

/// One launch.
pub struct Job {
    /// The program.
    pub loaded: Arc<Loaded>,
    /// The caller's data for custom calls.
    pub context: Option<Arc<Context>>,
    /// Arguments that must survive.
    pub kept: Vec<i64>,
    /// The only device, if the caller named one.
    pub device: Raw<sys::PJRT_Device>,
    /// One for each device.
    pub lanes: Vec<Lane>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    over: bool,
}

/// Buffers of the CPU engine, destroyed at the end.
struct Handles(&'static Cpu, Vec<*mut sys::PJRT_Buffer>);

impl Drop for Handles {
    fn drop(&mut self) {
        for &buffer in &self.1 {
            // SAFETY: the buffers are ours, and no program uses them any more.
            unsafe { self.0.destroy(buffer) };
        }
    }
}

impl Job {
    /// A launch that no kernel has come to yet.
    pub fn new(
        loaded: Arc<Loaded>,
        context: Option<Arc<Context>>,
        kept: Vec<i64>,
        device: Raw<sys::PJRT_Device>,
        lanes: Vec<Lane>,
    ) -> Self {
        Self { loaded, context, kept, device, lanes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// One device's kernel: runs the program if it is the last, and else waits for the last.
    pub fn arrive(&self) {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived < self.lanes.len() {
            while !state.over {
                self.changed.wait(&mut state);
            }
            return;
        }
        if state.over {
            return;
        }
        drop(state);
        self.end(self.run());
    }

    /// Ends a launch whose kernels cannot all run.
    pub fn abort(&self, error: &Error) {
        self.end(Err(error.clone()));
    }

    fn end(&self, outcome: Result) {
        let mut state = self.state.lock();
        if !mem::replace(&mut state.over, true) {
            self.lanes.iter().for_each(|lane| lane.done.ran(outcome.clone()));
        }
        self.changed.notify_all();
    }

    fn run(&self) -> Result {
        // Kernels of the arguments have run by now, so that it is known whether they failed.
        if let Some(error) =
            self.lanes.iter().flat_map(|lane| &lane.arguments).find_map(|argument| argument.defined.failure())
        {
            return Err(error);
        }
        let cpu = cpu::engine()?;
        let client = self.loaded.client.handle.0;
        let mut arguments = Handles(cpu, Vec::new());
        for argument in self.lanes.iter().flat_map(|lane| &lane.arguments) {
            // SAFETY: the launch waited for the contents, and keeps the memory until it is done.
            arguments.1.push(unsafe { view(cpu, client, argument)? });
        }
        let width = self.loaded.program.arguments.len();
        let argument_lists: Vec<_> = (0..self.lanes.len()).map(|lane| arguments.1[lane * width..].as_ptr()).collect();
        let results = self.loaded.program.results.len();
        let mut outputs = Handles(cpu, vec![ptr::null_mut(); results * self.lanes.len()]);
        let output_lists: Vec<_> = (0..self.lanes.len()).map(|lane| outputs.1[lane * results..].as_mut_ptr()).collect();
        let mut events = vec![ptr::null_mut(); self.lanes.len()];
        let mut options = sys::PJRT_ExecuteOptions {
            struct_size: sys::PJRT_ExecuteOptions::STRUCT_SIZE,
            launch_id: next_launch(),
            non_donatable_input_indices: self.kept.as_ptr(),
            num_non_donatable_input_indices: self.kept.len(),
            context: self.context.as_ref().map_or(ptr::null_mut(), |context| context.handle()),
            ..Default::default()
        };
        // SAFETY: the lists are as long as said, and all handles alive.
        unsafe {
            cpu.call(sys::PJRT_LoadedExecutable_Execute_Args {
                executable: self.loaded.handle.0,
                options: &raw mut options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: self.lanes.len(),
                num_args: width,
                output_lists: output_lists.as_ptr(),
                device_complete_events: events.as_mut_ptr(),
                execute_device: self.device.0,
                ..Default::default()
            })?;
        }
        // All of them are waited for, whatever the first ones say.
        // SAFETY: the events are ours.
        let ends: Vec<Result> = events.into_iter().map(|event| unsafe { cpu.finish(event) }).collect();
        ends.into_iter().collect::<Result>()?;
        for (&output, target) in outputs.1.iter().zip(self.lanes.iter().flat_map(|lane| &lane.results)) {
            // SAFETY: the output is alive, and the launch keeps the target's memory.
            unsafe { land(cpu, output, target)? };
        }
        Ok(())
    }
}

/// A number that no other launch has: the CPU engine's collectives meet by it.
fn next_launch() -> i32 {
    static LAUNCHES: AtomicI32 = AtomicI32::new(1);
    LAUNCHES.fetch_add(1, Ordering::Relaxed)
}

/// A buffer of the CPU engine with the argument's contents: in place, but for types that the host has in another form.
/// Where the engine is told a layout, it takes the bytes as they lie.
///
/// # Safety
/// The argument's memory must hold it until the program is done.
unsafe fn view(cpu: &Cpu, client: *mut sys::PJRT_Client, argument: &Argument) -> Result<*mut sys::PJRT_Buffer> {
    let shape = &argument.shape;
    let (space, data) = (argument.space.0, at(argument.address));
    // SAFETY: the caller's promise.
    unsafe {
        if shape.bytes() > 0 && shape.is_packed() {
            let device = slice::from_raw_parts(data, shape.bytes() as usize);
            let host = shape.to_host(device, None).unwrap_or_else(|| device.to_vec());
            let semantics = sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
            return cpu.put(client, space, host.as_ptr().cast(), shape, semantics);
        }
        cpu.put(client, space, data.cast(), shape, sys::PJRT_HostBufferSemantics_kMutableZeroCopy)
    }
}

/// Brings a result to where it belongs, unless the program wrote it there.
///
/// # Safety
/// The output must be alive and done, and the target's memory have room for it.
unsafe fn land(cpu: &Cpu, output: *mut sys::PJRT_Buffer, target: &Target) -> Result {
    let shape = &target.shape;
    let bytes = shape.bytes() as usize;
    if bytes == 0 {
        return Ok(());
    }
    let to = at(target.address);
    // SAFETY: the caller's promise.
    unsafe {
        if shape.is_packed() {
            let mut host = vec![0_u8; shape.host_bytes()];
            let args = cpu.call(sys::PJRT_Buffer_ToHostBuffer_Args {
                src: output,
                dst: host.as_mut_ptr().cast(),
                dst_size: host.len(),
                ..Default::default()
            })?;
            cpu.finish(args.event)?;
            let device = shape.to_device(&host).unwrap_or(host);
            to.copy_from_nonoverlapping(device.as_ptr(), bytes);
            return Ok(());
        }
        let args = sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args { buffer: output, ..Default::default() };
        let from = cpu.call(args)?.device_memory_ptr.cast::<u8>();
        if from != to {
            // Two results may be the same memory there, and one may be an argument's.
            to.copy_from(from, bytes);
        }
    }
    Ok(())
}
