//! `PJRT_Executable` and `PJRT_LoadedExecutable`: descriptions without the parameters that were added, serialisation,
//! destruction.

use std::{ptr, sync::Arc};

use crate::{
    api::{call::Call, entry::Entry, owned::owned},
    engine::{Live, Outcome, process},
    error::Error,
    runtime::{
        client::{self},
        executable::{
            compile::register,
            description::without_destinations,
            loaded::Program,
            registry::{EXECUTABLES, LOADED},
            serialized::{open, seal},
        },
    },
    sys::{self, slice},
};

impl Entry for sys::PJRT_LoadedExecutable_GetExecutable_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (theirs, out) = call.forward();
        let executable = theirs?.executable;
        // The engine makes a new handle each time.
        if let Some(loaded) = LOADED.get(out.loaded_executable) {
            EXECUTABLES.insert(executable, Arc::clone(&loaded.program));
        }
        out.executable = executable;
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        // Removed first: the address may be another executable's as soon as the engine has freed it.
        EXECUTABLES.remove(call.executable);
        call.forward().0.map(drop)
    }
}

impl Entry for sys::PJRT_LoadedExecutable_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        LOADED.remove(call.executable);
        call.forward().0.map(drop)
    }
}

/// The program of a description, if it was rewritten.
fn rewritten(executable: *const sys::PJRT_Executable) -> Option<Arc<Program>> {
    EXECUTABLES.get(executable).filter(|program| !program.plan.destinations.is_empty())
}

impl Entry for sys::PJRT_Executable_GetCompiledMemoryStats_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let (theirs, out) = call.forward();
        *out = theirs?;
        if let Some(program) = rewritten(executable) {
            // The engine counts each destination as an argument and as an alias of its result.
            let (own, pinned) = program.destination_bytes();
            out.argument_size_in_bytes -= own;
            out.alias_size_in_bytes -= own;
            out.host_argument_size_in_bytes -= pinned;
            out.host_alias_size_in_bytes -= pinned;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_ParameterMemoryKinds_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let (theirs, out) = call.forward();
        *out = theirs?;
        if let Some(program) = rewritten(executable) {
            out.num_parameters = program.visible(out.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_OptimizedProgram_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let engine = process::engine()?;
        let executable = call.required(call.executable, "executable")?;
        let out = call.required(call.program, "program")?;
        let Some(program) = rewritten(executable) else { return call.forward().0.map(drop) };
        let optimized = program.optimized.get_or_try_init(|| {
            // SAFETY: the executable is not NULL, so it is alive, as the call asks, and it is of this program.
            without_destinations(unsafe { Live::new(engine, executable) }, &program)
        });
        let (format, code) = optimized?;
        // SAFETY: `program` is not NULL, so it is a struct of the caller's that this call alone uses, as the call asks;
        // its `code` is NULL to ask for the size, or has `code_size` bytes, which are not the program's that is kept.
        unsafe {
            ((*out).format, (*out).format_size) = (format.as_ptr().cast(), format.len());
            if !(*out).code.is_null() {
                if (*out).code_size < code.len() {
                    return Err(Error::invalid_argument(format!(
                        "`program->code_size` {} < required bytes {}",
                        (*out).code_size,
                        code.len()
                    ))
                    .into());
                }
                ptr::copy_nonoverlapping(code.as_ptr(), (*out).code.cast(), code.len());
            }
            (*out).code_size = code.len();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_Serialize_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable.cast_mut(), "executable")?;
        let (theirs, out) = call.forward();
        let theirs = theirs?;
        let Some(program) = EXECUTABLES.get(executable) else {
            *out = theirs;
            return Ok(());
        };
        // SAFETY: the engine's blob has the length that it gives, and lives until its deleter is called, once, right
        // after the copy.
        let sealed = unsafe {
            let sealed = seal(&program.plan, slice(theirs.serialized_bytes.cast::<u8>(), theirs.serialized_bytes_size));
            if let Some(delete) = theirs.serialized_executable_deleter {
                delete(theirs.serialized_executable);
            }
            sealed?
        };
        (out.serialized_bytes, out.serialized_bytes_size) = (sealed.as_ptr().cast(), sealed.len());
        (out.serialized_executable, out.serialized_executable_deleter) = owned(sealed);
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_DeserializeAndLoad_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        let (plan, blob) = open(call.serialized_executable())?;
        // SAFETY: the blob lives until the call returns; the rest of the struct is the caller's. The new executable is
        // the client's, alive, and not used after a failure.
        let executable = unsafe {
            let executable = client
                .session
                .engine
                .call(Self {
                    serialized_executable: blob.as_ptr().cast(),
                    serialized_executable_size: blob.len(),
                    ..*call
                })?
                .loaded_executable;
            register(&client, executable, plan)?.map_err(|problem| {
                Error::invalid_argument(format!("the serialised executable does not fit this engine: {problem}"))
            })?;
            executable
        };
        call.out().loaded_executable = executable;
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_GetCompileOptions_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let Some(program) = rewritten(executable) else {
            let (theirs, out) = call.forward();
            *out = theirs?;
            return Ok(());
        };
        // The engine's options have entries for the destinations; the user's are unchanged.
        let options = program.plan.user_options.clone();
        let out = call.out();
        (out.serialized_bytes, out.serialized_bytes_size) = (options.as_ptr().cast(), options.len());
        (out.serialized_compile_options, out.serialized_compile_options_deleter) = owned(options);
        Ok(())
    }
}
