//! Compilation and loading.

use std::{ptr, sync::Arc};

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Live, Outcome, process},
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
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        let engine = client.session.engine;
        // SAFETY: the program is valid, as the call asks; program and options live until the call returns. A new
        // executable is the client's, alive, and not used after a failure.
        let executable = unsafe {
            compile(
                &client,
                call.program,
                call.compile_options(),
                |program, options| {
                    let args = engine.call(Self {
                        program: ptr::from_ref(program),
                        compile_options: options.as_ptr().cast(),
                        compile_options_size: options.len(),
                        ..*call
                    })?;
                    Ok(args.executable)
                },
                |executable, plan| Ok(register(&client, executable, plan)?.map(|()| executable)),
            )?
        };
        call.out().executable = executable;
        Ok(())
    }
}

impl Entry for sys::PJRT_Compile_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let engine = process::engine()?;
        let options = call.compile_options();
        let client = if call.client.is_null() { None } else { Some(client::find(call.client)?) };
        let Some(client) = client else {
            // Without a client it is not known whether memory can be viewed: compiled unchanged.
            let options = polished(engine, options);
            // SAFETY: the program is valid, as the call asks; program and options live until the call returns. The new
            // executable is alive.
            let executable = unsafe {
                let original = *call.required(call.program.cast_mut(), "program")?;
                let format = slice(original.format.cast::<u8>(), original.format_size);
                let code = unbind(None, format, slice(original.code.cast::<u8>(), original.code_size));
                let unbound = with_code(original, &code.bytes);
                let args = engine.call(Self {
                    program: &raw const unbound,
                    compile_options: options.as_ptr().cast(),
                    compile_options_size: options.len(),
                    ..*call
                })?;
                let host_callbacks = program::has_host_callbacks(&code.bytes);
                let plan = Plan { host_callbacks, ..Plan::unmodified("compiled without a client") };
                let plan = Plan { bound: code.results, ..plan };
                let program = Program::new(None, Live::new(engine, args.executable), plan)?;
                registry::EXECUTABLES.insert(args.executable, Arc::new(program));
                args.executable
            };
            call.out().executable = executable;
            return Ok(());
        };
        // SAFETY: the program is valid, as the call asks; program and options live until the call returns. A new
        // executable is the client's, alive, and not used after a failure.
        let executable = unsafe {
            compile(
                &client,
                call.program,
                options,
                |program, options| {
                    let args = engine.call(Self {
                        program: ptr::from_ref(program),
                        compile_options: options.as_ptr().cast(),
                        compile_options_size: options.len(),
                        ..*call
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
        call.out().executable = executable;
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_Load_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        let executable = call.required(call.executable, "executable")?;
        let plan = registry::EXECUTABLES.get(executable).map_or_else(
            || {
                // SAFETY: the executable is not NULL, so it is alive, as the call asks. An engine that does not show
                // the program is taken to have no host callbacks in it.
                let optimized_program = optimized(unsafe { Live::new(client.session.engine, executable) });
                let host_callbacks = optimized_program.is_ok_and(|(_, code)| program::has_host_callbacks(&code));
                Plan { host_callbacks, ..Plan::unmodified("of unknown origin") }
            },
            |program| program.plan.clone(),
        );
        let (theirs, out) = call.forward();
        let executable = theirs?.loaded_executable;
        // SAFETY: the engine has just made the executable for the client; it is not used after a failure.
        unsafe { register(&client, executable, plan)? }.map_err(Error::internal)?;
        out.loaded_executable = executable;
        Ok(())
    }
}
