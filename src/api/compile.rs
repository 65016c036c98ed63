//! Compilation and loading.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    engine::{Live, Outcome, failure::required, process},
    error::Error,
    program,
    runtime::{
        client,
        executable::{
            bound::unbind,
            compile::{compile, polished, register, with_code},
            description::optimized,
            loaded::{Plan, Program},
            registry,
        },
    },
    sys::{self, slice},
};

impl Entry for sys::PJRT_Client_Compile_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        let engine = client.session.engine;
        // SAFETY: the options are as long as the caller's struct says, as `run` asks.
        let options = unsafe { slice(self.compile_options.cast::<u8>(), self.compile_options_size) };
        // SAFETY: the program is valid, as `run` asks; program and options live until the call returns. A new
        // executable is the client's, alive, and not used after a failure.
        self.executable = unsafe {
            compile(
                &client,
                self.program,
                options,
                |program, options| {
                    let args = engine.call(Self {
                        program: ptr::from_ref(program),
                        compile_options: options.as_ptr().cast(),
                        compile_options_size: options.len(),
                        ..*self
                    })?;
                    Ok(args.executable)
                },
                |executable, plan| Ok(register(&client, executable, plan)?.map(|()| executable)),
            )?
        };
        Ok(())
    }
}

impl Entry for sys::PJRT_Compile_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        // SAFETY: the options are as long as the caller's struct says, as `run` asks.
        let options = unsafe { slice(self.compile_options.cast::<u8>(), self.compile_options_size) };
        let client = if self.client.is_null() { None } else { Some(client::find(self.client)?) };
        let Some(client) = client else {
            // Without a client it is not known whether memory can be viewed: compiled unchanged.
            let options = polished(engine, options);
            // SAFETY: the program is valid, as `run` asks; program and options live until the call returns. The new
            // executable is alive.
            unsafe {
                let original = *required(self.program.cast_mut(), "PJRT_Compile", "program")?;
                let format = slice(original.format.cast::<u8>(), original.format_size);
                let code = unbind(None, format, slice(original.code.cast::<u8>(), original.code_size));
                let unbound = with_code(original, &code.bytes);
                let args = engine.call(Self {
                    program: &raw const unbound,
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                    ..*self
                })?;
                let host_callbacks = program::has_host_callbacks(&code.bytes);
                let plan = Plan { host_callbacks, ..Plan::unmodified("compiled without a client") };
                let plan = Plan { bound: code.results, ..plan };
                let program = Program::new(None, Live::new(engine, args.executable), plan)?;
                registry::EXECUTABLES.insert(args.executable, Arc::new(program));
                self.executable = args.executable;
            }
            return Ok(());
        };
        // SAFETY: the program is valid, as `run` asks; program and options live until the call returns. A new
        // executable is the client's, alive, and not used after a failure.
        self.executable = unsafe {
            compile(
                &client,
                self.program,
                options,
                |program, options| {
                    let args = engine.call(Self {
                        program: ptr::from_ref(program),
                        compile_options: options.as_ptr().cast(),
                        compile_options_size: options.len(),
                        ..*self
                    })?;
                    Ok(args.executable)
                },
                |executable, plan| {
                    let program = Program::new(Some(Arc::clone(&client)), Live::new(engine, executable), plan)?;
                    if let Some(problem) = program.problem(&client) {
                        engine.call(sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() })?;
                        return Ok(Err(problem));
                    }
                    registry::EXECUTABLES.insert(executable, Arc::new(program));
                    Ok(Ok(executable))
                },
            )?
        };
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_Load_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        let executable = required(self.executable, "PJRT_Client_Load", "executable")?;
        let plan = registry::EXECUTABLES.get(executable).map_or_else(
            || {
                // SAFETY: the executable is alive, as `run` asks. An engine that does not show the program is taken
                // to have no host callbacks in it.
                let optimized_program = optimized(unsafe { Live::new(client.session.engine, executable) });
                let host_callbacks = optimized_program.is_ok_and(|(_, code)| program::has_host_callbacks(&code));
                Plan { host_callbacks, ..Plan::unmodified("of unknown origin") }
            },
            |program| program.plan.clone(),
        );
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged; the
        // new executable is the client's, alive, and not used after a failure.
        unsafe {
            let executable = client.session.engine.call(*self)?.loaded_executable;
            register(&client, executable, plan)?.map_err(Error::internal)?;
            self.loaded_executable = executable;
        }
        Ok(())
    }
}
