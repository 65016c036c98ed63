//! `PJRT_Plugin`: initialisation and attributes, and where engines are looked for.

use std::{
    ffi::{CStr, OsStr, c_char},
    os::unix::ffi::OsStrExt,
};

use crate::{
    api::entry::{Entry, pass},
    engine::{Outcome, process},
    sys::{self, CStruct},
};

/// Sets the folders, separated by colons, in which engines are looked for; Python's `sys.path` as a rule. NULL clears
/// them. Has no effect once an engine is loaded.
///
/// # Safety
/// `paths` must be NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_set_search_path(paths: *const c_char) {
    let folders = if paths.is_null() {
        Vec::new()
    } else {
        // SAFETY: not NULL, so it is a C string, as this function asks.
        let bytes = unsafe { CStr::from_ptr(paths) }.to_bytes();
        std::env::split_paths(OsStr::from_bytes(bytes)).filter(|path| !path.as_os_str().is_empty()).collect()
    };
    process::set_search_path(folders);
}

/// `PJRT_Plugin_Attributes`: the engine's.
///
/// Callers older than 0.71 (jaxlib 0.6) pass a size that leaves out the last field, which their struct has and which
/// they read. It is the one struct in which more is written than the caller's size says.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct.
pub unsafe extern "C" fn attributes(args: *mut sys::PJRT_Plugin_Attributes_Args) -> *mut sys::PJRT_Error {
    type Args = sys::PJRT_Plugin_Attributes_Args;
    let size = args.cast::<usize>();
    // SAFETY: not NULL, so a struct that begins with its size.
    let told_short = !args.is_null() && unsafe { size.read() } == Args::MIN_SIZE;
    // SAFETY: the struct is NULL or valid, as this function asks; one of that size is as long as this library's, see
    // above.
    unsafe {
        if told_short {
            size.write(Args::STRUCT_SIZE);
        }
        let error = pass(args);
        if told_short {
            size.write(Args::MIN_SIZE);
        }
        error
    }
}

impl Entry for sys::PJRT_Plugin_Initialize_Args {
    unsafe fn run(&mut self) -> Outcome {
        // Without an engine there is nothing to initialise; the creation of a client says why there is none.
        if let Ok(engine) = process::engine() {
            // SAFETY: the struct is valid, as `run` asks; it has only its head.
            unsafe { engine.call(*self)? };
        }
        Ok(())
    }
}
