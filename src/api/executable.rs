//! `PJRT_Executable` and `PJRT_LoadedExecutable`: descriptions without the parameters that were added, serialisation,
//! destruction.

use std::{
    ffi::{c_char, c_void},
    ptr,
    sync::Arc,
};

use crate::{
    api::entry::Entry,
    engine::{Live, Outcome, failure::required, process},
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
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        let args = unsafe { process::engine()?.call(*self)? };
        // The engine makes a new handle each time.
        if let Some(loaded) = LOADED.get(self.loaded_executable) {
            EXECUTABLES.insert(args.executable, Arc::clone(&loaded.program));
        }
        self.executable = args.executable;
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        // Removed first: the address may be another executable's as soon as the engine has freed it.
        EXECUTABLES.remove(self.executable);
        // SAFETY: the executable is alive, as `run` asks, and the caller does not use it again.
        unsafe { process::engine()?.call(*self)? };
        Ok(())
    }
}

impl Entry for sys::PJRT_LoadedExecutable_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        LOADED.remove(self.executable);
        // SAFETY: the executable is alive, as `run` asks, and the caller does not use it again.
        unsafe { process::engine()?.call(*self)? };
        Ok(())
    }
}

/// The program of a description, if it was rewritten.
fn rewritten(executable: *const sys::PJRT_Executable) -> Option<Arc<Program>> {
    EXECUTABLES.get(executable.cast_mut()).filter(|program| !program.plan.destinations.is_empty())
}

impl Entry for sys::PJRT_Executable_GetCompiledMemoryStats_Args {
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, "PJRT_Executable_GetCompiledMemoryStats", "executable")?;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        *self = unsafe { process::engine()?.call(*self)? };
        if let Some(program) = rewritten(executable) {
            // The engine counts each destination as an argument and as an alias of its result.
            let (own, pinned) = program.destination_bytes();
            self.argument_size_in_bytes -= own;
            self.alias_size_in_bytes -= own;
            self.host_argument_size_in_bytes -= pinned;
            self.host_alias_size_in_bytes -= pinned;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_ParameterMemoryKinds_Args {
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, "PJRT_Executable_ParameterMemoryKinds", "executable")?;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        *self = unsafe { process::engine()?.call(*self)? };
        if let Some(program) = rewritten(executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_OptimizedProgram_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Executable_OptimizedProgram";
        let engine = process::engine()?;
        let executable = required(self.executable, NAME, "executable")?;
        let out = required(self.program, NAME, "program")?;
        let Some(program) = rewritten(executable) else {
            // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
            unsafe { engine.call(*self)? };
            return Ok(());
        };
        // SAFETY: the executable is alive, as `run` asks, and of this program.
        let (format, code) = program
            .optimized
            .get_or_try_init(|| without_destinations(unsafe { Live::new(engine, executable) }, &program))?;
        // SAFETY: `program` is not NULL, so it is the caller's struct, as `run` asks; its `code` is NULL to ask for
        // the size, or has `code_size` bytes.
        unsafe {
            (*out).format = format.as_ptr().cast();
            (*out).format_size = format.len();
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

unsafe extern "C" fn delete_serialized(holder: *mut sys::PJRT_SerializedExecutable) {
    if !holder.is_null() {
        // SAFETY: the holder is the box that this library made, not NULL, and deleted once.
        drop(unsafe { Box::from_raw(holder.cast::<Vec<u8>>()) });
    }
}

impl Entry for sys::PJRT_Executable_Serialize_Args {
    unsafe fn run(&mut self) -> Outcome {
        required(self.executable.cast_mut(), "PJRT_Executable_Serialize", "executable")?;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        let args = unsafe { process::engine()?.call(*self)? };
        let Some(program) = EXECUTABLES.get(self.executable.cast_mut()) else {
            *self = args;
            return Ok(());
        };
        // SAFETY: the engine's blob has the length that it gives, and lives until its deleter is called, once, right
        // after the copy.
        let sealed = unsafe {
            let sealed = seal(&program.plan, slice(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size));
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Box::new(sealed?)
        };
        self.serialized_bytes = sealed.as_ptr().cast::<c_char>();
        self.serialized_bytes_size = sealed.len();
        self.serialized_executable = Box::into_raw(sealed).cast::<c_void>().cast();
        self.serialized_executable_deleter = Some(delete_serialized);
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_DeserializeAndLoad_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        let engine = client.session.engine;
        // SAFETY: the blob is as long as the caller's struct says, as `run` asks.
        let sealed = unsafe { slice(self.serialized_executable.cast::<u8>(), self.serialized_executable_size) };
        let (plan, blob) = open(sealed)?;
        // SAFETY: the blob lives until the call returns; the rest of the struct is the caller's. The new executable
        // is the client's, alive, and not used after a failure.
        unsafe {
            let args = engine.call(Self {
                serialized_executable: blob.as_ptr().cast(),
                serialized_executable_size: blob.len(),
                ..*self
            })?;
            let executable = args.loaded_executable;
            register(&client, executable, plan)?.map_err(|problem| {
                Error::invalid_argument(format!("the serialised executable does not fit this engine: {problem}"))
            })?;
            self.loaded_executable = executable;
        }
        Ok(())
    }
}

unsafe extern "C" fn delete_options(holder: *mut sys::PJRT_SerializedCompileOptions) {
    if !holder.is_null() {
        // SAFETY: the holder is the box that this library made, not NULL, and deleted once.
        drop(unsafe { Box::from_raw(holder.cast::<Vec<u8>>()) });
    }
}

impl Entry for sys::PJRT_Executable_GetCompileOptions_Args {
    unsafe fn run(&mut self) -> Outcome {
        required(self.executable, "PJRT_Executable_GetCompileOptions", "executable")?;
        let Some(program) = rewritten(self.executable) else {
            // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
            *self = unsafe { process::engine()?.call(*self)? };
            return Ok(());
        };
        // The engine's options have entries for the destinations; the user's are unchanged.
        let options = Box::new(program.plan.user_options.clone());
        self.serialized_bytes = options.as_ptr().cast::<c_char>();
        self.serialized_bytes_size = options.len();
        self.serialized_compile_options = Box::into_raw(options).cast::<c_void>().cast();
        self.serialized_compile_options_deleter = Some(delete_options);
        Ok(())
    }
}
