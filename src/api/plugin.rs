//! `PJRT_Plugin`: initialisation and attributes, and where engines are looked for.

use crate::{
    api::{
        call::Call,
        entry::{Entry, pass},
        text::CText,
    },
    engine::{Outcome, process},
    sys::{self, CStruct},
};

/// Sets the folders, separated by colons, in which engines are looked for; Python's `sys.path` as a rule. NULL clears
/// them. Has no effect once an engine is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_set_search_path(paths: CText<'_>) {
    let folders = paths.to_os().map(std::env::split_paths).into_iter().flatten();
    process::set_search_path(folders.filter(|path| !path.as_os_str().is_empty()).collect());
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
    // SAFETY: the struct is NULL or valid, as this function asks, and begins with its size; one of that size is as long
    // as this library's, see above.
    unsafe {
        let told_short = !args.is_null() && size.read() == Args::MIN_SIZE;
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
    fn run(call: Call<'_, Self>) -> Outcome {
        // Without an engine there is nothing to initialise; the creation of a client says why there is none.
        if process::engine().is_ok() { call.forward().0.map(drop) } else { Ok(()) }
    }
}
