//! Compilation and loading.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required, process},
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
        // SAFETY: the caller's options are as long as it says.
        let options = unsafe { slice(self.compile_options.cast::<u8>(), self.compile_options_size) };
        // SAFETY: the program and the options live until the call returns; executables are destroyed if unused.
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
                    let outcome = register(&client, executable, plan);
                    if !matches!(outcome, Ok(Ok(()))) {
                        engine.call(sys::PJRT_LoadedExecutable_Destroy_Args { executable, ..Default::default() })?;
                    }
                    outcome.map(|problem| problem.map(|()| executable))
                },
            )?
        };
        Ok(())
    }
}

impl Entry for sys::PJRT_Compile_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        // SAFETY: the caller's options are as long as it says.
        let options = unsafe { slice(self.compile_options.cast::<u8>(), self.compile_options_size) };
        let client = if self.client.is_null() { None } else { Some(client::find(self.client)?) };
        let Some(client) = client else {
            // Without a client nobody says whether memory can be viewed: compiled as it is.
            let options = polished(engine, options);
            // SAFETY: the caller's promise; the options live until the call returns.
            unsafe {
                let given = *required(self.program.cast_mut(), "PJRT_Compile", "program")?;
                let format = slice(given.format.cast::<u8>(), given.format_size);
                let code = unbind(None, format, slice(given.code.cast::<u8>(), given.code_size));
                let unbound = with_code(given, &code.bytes);
                let args = engine.call(Self {
                    program: &raw const unbound,
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                    ..*self
                })?;
                let host_callbacks = program::has_host_callbacks(&code.bytes);
                let plan = Plan { host_callbacks, ..Plan::unmodified("compiled without a client") };
                let plan = Plan { bound: code.results, ..plan };
                let program = Program::new(engine, None, args.executable, plan)?;
                registry::EXECUTABLES.insert(args.executable, Arc::new(program));
                self.executable = args.executable;
            }
            return Ok(());
        };
        // SAFETY: the program and the options live until the call returns; executables are destroyed if unused.
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
                    let program = Program::new(engine, Some(Arc::clone(&client)), executable, plan)?;
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
                // SAFETY: the executable is alive. An engine that does not show the program is believed to call nobody.
                let shown = unsafe { optimized(client.session.engine, executable) };
                let host_callbacks = shown.is_ok_and(|(_, code)| program::has_host_callbacks(&code));
                Plan { host_callbacks, ..Plan::unmodified("of unknown origin") }
            },
            |program| program.plan.clone(),
        );
        // SAFETY: the caller's promise, handed on as it is.
        unsafe {
            let executable = client.session.engine.call(*self)?.loaded_executable;
            let outcome = register(&client, executable, plan);
            if !matches!(outcome, Ok(Ok(()))) {
                client
                    .session
                    .engine
                    .call(sys::PJRT_LoadedExecutable_Destroy_Args { executable, ..Default::default() })?;
            }
            outcome?.map_err(Error::internal)?;
            self.loaded_executable = executable;
        }
        Ok(())
    }
}
