//! `PJRT_Executable` and `PJRT_LoadedExecutable`: descriptions as if no parameter had been added, serialisation, ends.

use std::{
    ffi::{c_char, c_void},
    ptr,
    sync::Arc,
};

use crate::{
    api::entry::Entry,
    engine::{Engine, Outcome, failure::required, process},
    error::{Error, Result},
    program::{has_host_callbacks, hlo},
    runtime::{
        client::{self},
        executable::{
            compile::register,
            loaded::{Plan, Program},
            registry::{EXECUTABLES, LOADED},
        },
    },
    sys::{self, slice},
};

impl Entry for sys::PJRT_LoadedExecutable_GetExecutable_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's promise, handed on as it is.
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
        // Forgotten first: the address may be another executable's as soon as the engine has freed it.
        EXECUTABLES.remove(self.executable);
        // SAFETY: the caller gives the executable up.
        unsafe { process::engine()?.call(*self)? };
        Ok(())
    }
}

impl Entry for sys::PJRT_LoadedExecutable_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        LOADED.remove(self.executable);
        // SAFETY: the caller gives the executable up.
        unsafe { process::engine()?.call(*self)? };
        Ok(())
    }
}

/// The program that a description is of, if it was rewritten.
fn rewritten(executable: *const sys::PJRT_Executable) -> Option<Arc<Program>> {
    EXECUTABLES.get(executable.cast_mut()).filter(|program| !program.plan.destinations.is_empty())
}

impl Entry for sys::PJRT_Executable_GetCompiledMemoryStats_Args {
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, "PJRT_Executable_GetCompiledMemoryStats", "executable")?;
        // SAFETY: the caller's promise, handed on as it is.
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
        // SAFETY: the caller's promise, handed on as it is.
        *self = unsafe { process::engine()?.call(*self)? };
        if let Some(program) = rewritten(executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

/// What the engine says of the optimised program: its format and its bytes.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn optimized(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> Outcome<(String, Vec<u8>)> {
    let mut program = sys::PJRT_Program { struct_size: size_of::<sys::PJRT_Program>(), ..Default::default() };
    let args =
        sys::PJRT_Executable_OptimizedProgram_Args { executable, program: &raw mut program, ..Default::default() };
    // SAFETY: without a place for the code the engine only says how long it is.
    unsafe { engine.call(args)? };
    let mut code = vec![0_u8; program.code_size];
    program.code = code.as_mut_ptr().cast();
    // SAFETY: the code has the room that the engine asked for.
    let format = unsafe {
        engine.call(args)?;
        String::from_utf8_lossy(slice(program.format.cast::<u8>(), program.format_size)).into_owned()
    };
    Ok((format, code))
}

/// The optimised program as the user should see it: its format and its bytes.
///
/// # Safety
/// `executable` must be alive, and of this program.
pub unsafe fn shown(
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
    program: &Program,
) -> Outcome<(String, Vec<u8>)> {
    // SAFETY: the caller's promise.
    let (format, code) = unsafe { optimized(engine, executable)? };
    if program.plan.destinations.is_empty() {
        return Ok((format, code));
    }
    let shown = hlo::Format::from_name(format.as_bytes())
        .zip(program.plan.arguments)
        .map(|(format, arguments)| hlo::hide_parameters(&code, format, arguments));
    Ok(match shown {
        Some(Ok(shown)) => (format, shown),
        Some(Err(reject)) => {
            log::warn!("the optimised program is shown with its destinations: {reject}");
            (format, code)
        }
        None => (format, code),
    })
}

impl Entry for sys::PJRT_Executable_OptimizedProgram_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Executable_OptimizedProgram";
        let engine = process::engine()?;
        let executable = required(self.executable, NAME, "executable")?;
        let out = required(self.program, NAME, "program")?;
        let Some(program) = rewritten(executable) else {
            // SAFETY: the caller's promise, handed on as it is.
            unsafe { engine.call(*self)? };
            return Ok(());
        };
        // SAFETY: the executable is alive.
        let (format, code) = program.optimized.get_or_try_init(|| unsafe { shown(engine, executable, &program) })?;
        // SAFETY: the caller's struct; `code` is NULL to ask for the size, or has `code_size` bytes.
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

/// What a serialised executable of ours begins with; no engine's blob does.
const MAGIC: &[u8; 16] = b"pjrt-arena\0exec1";

/// Wraps the engine's blob with the plan.
fn seal(plan: &Plan, blob: &[u8]) -> Result<Vec<u8>> {
    let plan =
        serde_json::to_vec(plan).map_err(|error| Error::internal(format!("a plan cannot be written: {error}")))?;
    let mut sealed = Vec::with_capacity(MAGIC.len() + 8 + plan.len() + blob.len());
    sealed.extend_from_slice(MAGIC);
    sealed.extend_from_slice(&(plan.len() as u64).to_le_bytes());
    sealed.extend_from_slice(&plan);
    sealed.extend_from_slice(blob);
    Ok(sealed)
}

/// The plan and the engine's blob. A blob that is not of ours, the bare engine's for instance, runs as it is.
fn open(sealed: &[u8]) -> Result<(Plan, &[u8])> {
    let Some(rest) = sealed.strip_prefix(MAGIC) else {
        // The blob holds the program as text that names its custom calls.
        let host_callbacks = has_host_callbacks(sealed);
        return Ok((Plan { host_callbacks, ..Plan::unmodified("serialised by the bare engine") }, sealed));
    };
    let broken = || Error::invalid_argument(format!("a serialised executable of {} bytes is cut short", sealed.len()));
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
    let (plan, blob) = rest.split_at_checked(length).ok_or_else(broken)?;
    let plan = serde_json::from_slice(plan)
        .map_err(|error| Error::invalid_argument(format!("a serialised executable has an unreadable plan: {error}")))?;
    Ok((plan, blob))
}

unsafe extern "C" fn delete_serialized(holder: *mut sys::PJRT_SerializedExecutable) {
    if !holder.is_null() {
        // SAFETY: the holder is the box made below, deleted once.
        drop(unsafe { Box::from_raw(holder.cast::<Vec<u8>>()) });
    }
}

impl Entry for sys::PJRT_Executable_Serialize_Args {
    unsafe fn run(&mut self) -> Outcome {
        required(self.executable.cast_mut(), "PJRT_Executable_Serialize", "executable")?;
        // SAFETY: the caller's promise, handed on as it is.
        let args = unsafe { process::engine()?.call(*self)? };
        let Some(program) = EXECUTABLES.get(self.executable.cast_mut()) else {
            *self = args;
            return Ok(());
        };
        // SAFETY: the engine's blob lives until its deleter is called, right after the copy.
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
        let engine = client.engine;
        // SAFETY: the caller's blob is as long as it says.
        let sealed = unsafe { slice(self.serialized_executable.cast::<u8>(), self.serialized_executable_size) };
        let (plan, blob) = open(sealed)?;
        // SAFETY: the blob lives until the call returns; the rest is the caller's.
        unsafe {
            let args = engine.call(Self {
                serialized_executable: blob.as_ptr().cast(),
                serialized_executable_size: blob.len(),
                ..*self
            })?;
            let executable = args.loaded_executable;
            let outcome = register(&client, executable, plan);
            if !matches!(outcome, Ok(Ok(()))) {
                engine.call(sys::PJRT_LoadedExecutable_Destroy_Args { executable, ..Default::default() })?;
            }
            outcome?.map_err(|problem| {
                Error::invalid_argument(format!("the serialised executable does not fit this engine: {problem}"))
            })?;
            self.loaded_executable = executable;
        }
        Ok(())
    }
}

/// Loads the same program on another client of the engine.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The executable and the client must be alive.
pub unsafe fn copy(
    engine: &'static Engine,
    loaded: *mut sys::PJRT_LoadedExecutable,
    client: *mut sys::PJRT_Client,
) -> Outcome<*mut sys::PJRT_LoadedExecutable> {
    // SAFETY: the caller's promise; the engine's blob lives until its deleter is called.
    unsafe {
        let described = engine
            .call(sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: loaded, ..Default::default() })?;
        let executable = described.executable;
        let blob = engine.call(sys::PJRT_Executable_Serialize_Args { executable, ..Default::default() });
        let copy = blob.and_then(|blob| {
            let copy = engine.call(sys::PJRT_Executable_DeserializeAndLoad_Args {
                client,
                serialized_executable: blob.serialized_bytes,
                serialized_executable_size: blob.serialized_bytes_size,
                ..Default::default()
            });
            if let Some(delete) = blob.serialized_executable_deleter {
                delete(blob.serialized_executable);
            }
            copy
        });
        engine.call(sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() })?;
        Ok(copy?.loaded_executable)
    }
}

unsafe extern "C" fn delete_options(holder: *mut sys::PJRT_SerializedCompileOptions) {
    if !holder.is_null() {
        // SAFETY: the holder is the box made below, deleted once.
        drop(unsafe { Box::from_raw(holder.cast::<Vec<u8>>()) });
    }
}

impl Entry for sys::PJRT_Executable_GetCompileOptions_Args {
    unsafe fn run(&mut self) -> Outcome {
        required(self.executable, "PJRT_Executable_GetCompileOptions", "executable")?;
        let Some(program) = rewritten(self.executable) else {
            // SAFETY: the caller's promise, handed on as it is.
            *self = unsafe { process::engine()?.call(*self)? };
            return Ok(());
        };
        // The engine's have entries for the destinations; the user's are as they came.
        let options = Box::new(program.plan.user_options.clone());
        self.serialized_bytes = options.as_ptr().cast::<c_char>();
        self.serialized_bytes_size = options.len();
        self.serialized_compile_options = Box::into_raw(options).cast::<c_void>().cast();
        self.serialized_compile_options_deleter = Some(delete_options);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_blobs_open_again_and_foreign_ones_pass() {
        let mut plan = Plan::unmodified("a reason");
        plan.arguments = Some(3);
        plan.destinations = vec![0, 2];
        let sealed = seal(&plan, b"blob").unwrap();
        assert_eq!(open(&sealed).unwrap(), (plan, &b"blob"[..]));
        assert_eq!(open(b"the engine's own").unwrap().1, b"the engine's own");
    }

    #[test]
    fn every_cut_of_a_sealed_blob_is_an_error_or_a_shorter_blob() {
        let sealed = seal(&Plan::unmodified("a reason"), b"blob").unwrap();
        let whole = sealed.len() - b"blob".len();
        for cut in MAGIC.len()..sealed.len() {
            assert_eq!(open(&sealed[..cut]).is_ok(), cut >= whole, "cut at {cut}");
        }
    }
}
