//! One program that is run again and again, as jaxlib runs a jitted function: for the benches.

use std::{ffi::c_void, ptr};

use crate::{Buffer, Client, Loaded, Plugin, Program, call, executable::Context, ffi, sys};

/// One program on one plugin, with its arguments.
pub struct Lane {
    plugin: &'static Plugin,
    loaded: Loaded,
    arguments: Vec<Buffer>,
    executable: *mut sys::PJRT_Executable,
    outputs: usize,
    _client: Client,
}

/// A type id of nobody's.
const USER_DATA: i64 = 1 << 20;

/// Destroys the event that it is called for.
unsafe extern "C" fn end_event(error: *mut sys::PJRT_Error, arg: *mut c_void) {
    assert!(error.is_null(), "it runs");
    // SAFETY: the box of `run_as_jaxlib`, which an event gives back once.
    let (plugin, event) = *unsafe { Box::from_raw(arg.cast::<(&Plugin, *mut sys::PJRT_Event)>()) };
    call!(plugin, PJRT_Event_Destroy { event: event }).expect("an event");
}

/// What is run: a name, the program, the number of its arguments, and their sizes.
pub type Case = (&'static str, Program, usize, &'static [i64]);

/// A program whose result is too large for its block to wait for the next run: 256 KiB.
pub fn large() -> Case {
    ("f32[256,256]: x to the fourth", Program::temp_heavy(), 1, &[256, 256])
}

/// Small programs, whose cost is that of their dispatch.
pub fn small() -> [Case; 4] {
    [
        ("f32[]: x + 1", Program::add_one_scalar(), 1, &[]),
        ("f32[1024]: a + b", Program::add(), 2, &[1024]),
        ("f32[1024]: two results", Program::two_results(), 2, &[1024]),
        ("f32[1024]: (a, b) -> (b, a, a)", Program::passthrough(), 2, &[1024]),
    ]
}

impl Lane {
    /// Compiles the program for one device of a client of its own, which is created with `options`.
    ///
    /// # Panics
    /// When the plugin refuses any of it.
    pub fn new(plugin: &'static Plugin, case: &Case, options: &[(&str, crate::Value)]) -> Self {
        let (_, program, arguments, dims) = case;
        let client = Client::create_on(plugin, 1, options).expect("a client");
        let loaded = client.compile(program).expect("the program compiles");
        let outputs = loaded.executable().num_outputs();
        let executable = call!(plugin, PJRT_LoadedExecutable_GetExecutable { loaded_executable: loaded.raw() });
        let executable = executable.expect("its description").executable;
        let values = vec![1.0_f32; dims.iter().product::<i64>() as usize];
        let arguments = (0..*arguments).map(|_| client.put(&values, dims).expect("room")).collect();
        Self { plugin, loaded, arguments, executable, outputs, _client: client }
    }

    /// One execution, not waited for: create an execute context with user data, execute with a completion event,
    /// destroy context, event and results.
    ///
    /// # Panics
    /// When the plugin refuses any of it.
    pub fn run(&self) {
        self.run_and(|event| {
            call!(self.plugin, PJRT_Event_Destroy { event: event }).expect("an event");
        });
    }

    /// As [`Self::run`], but waits for the program before its event and its results are destroyed.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_and_wait(&self) {
        self.run_and(|event| {
            call!(self.plugin, PJRT_Event_Await { event: event }).expect("it runs");
            call!(self.plugin, PJRT_Event_Destroy { event: event }).expect("an event");
        });
    }

    /// As [`Self::run`], with all that jaxlib 0.10 asks of a plugin for one call of a jitted function beside: sizes of
    /// the program, and a callback on the completion event, which destroys it.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_as_jaxlib(&self) {
        let plugin = self.plugin;
        let executable = self.executable;
        for _ in 0..2 {
            call!(plugin, PJRT_Executable_NumReplicas { executable: executable }).expect("a number");
            call!(plugin, PJRT_Executable_NumPartitions { executable: executable }).expect("a number");
        }
        call!(plugin, PJRT_Executable_NumOutputs { executable: executable }).expect("a number");
        self.run_and(|event| {
            let arg = Box::into_raw(Box::new((plugin, event)));
            call!(plugin, PJRT_Event_OnReady { event: event, callback: Some(end_event), user_arg: arg.cast() })
                .expect("a callback");
        });
    }

    fn run_and(&self, then: impl FnOnce(*mut sys::PJRT_Event)) {
        let plugin = self.plugin;
        let arguments: Vec<*mut sys::PJRT_Buffer> = self.arguments.iter().map(Buffer::raw).collect();
        let mut outputs: Vec<*mut sys::PJRT_Buffer> = vec![ptr::null_mut(); self.outputs];
        let context = Context::create(plugin).expect("a context");
        // What jaxlib hangs there: where the call's Python callables are.
        let data = ptr::from_ref(self).cast_mut().cast();
        ffi::add_user_data(plugin, &context, USER_DATA, data).expect("user data");
        let mut options = sys::PJRT_ExecuteOptions {
            struct_size: size_of::<sys::PJRT_ExecuteOptions>(),
            context: context.raw(),
            ..Default::default()
        };
        let (argument_list, output_list) = (arguments.as_ptr(), outputs.as_mut_ptr());
        let mut event = ptr::null_mut();
        call!(
            plugin,
            PJRT_LoadedExecutable_Execute {
                executable: self.loaded.raw(),
                options: &raw mut options,
                argument_lists: &raw const argument_list,
                num_devices: 1,
                num_args: arguments.len(),
                output_lists: &raw const output_list,
                device_complete_events: &raw mut event,
            }
        )
        .expect("it runs");
        drop(context);
        then(event);
        for &buffer in &outputs {
            call!(plugin, PJRT_Buffer_Destroy { buffer: buffer }).expect("a buffer");
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_Executable_Destroy { executable: self.executable }).expect("PJRT_Executable_Destroy");
    }
}
