//! A C++ exception from within the engine, as cuDNN's front end throws them through XLA.

use std::{
    env,
    ffi::{CString, c_char, c_void},
    mem,
    sync::atomic::{AtomicBool, Ordering},
};

use libloading::os::unix::Library;
use once_cell::sync::OnceCell;

use crate::sys;

const VARIABLE: &str = "FAKE_ENGINE_THROWS";

type Args = sys::PJRT_LoadedExecutable_Execute_Args;
type Execute = unsafe extern "C" fn(*mut Args) -> *mut sys::PJRT_Error;

/// What to throw, and what executes otherwise.
static ARMED: OnceCell<(CString, Execute)> = OnceCell::new();
static THROWN: AtomicBool = AtomicBool::new(false);

/// Lets the first execution throw, if the environment says so.
pub fn arm(api: &mut sys::PJRT_Api) {
    let Some(text) = env::var(VARIABLE).ok().and_then(|text| CString::new(text).ok()) else { return };
    let Some(original) = api.PJRT_LoadedExecutable_Execute else { return };
    if ARMED.set((text, original)).is_ok() {
        // SAFETY: the two are called alike; that one may unwind is what the table's type does not say.
        let throwing = unsafe {
            mem::transmute::<unsafe extern "C-unwind" fn(*mut Args) -> *mut sys::PJRT_Error, Execute>(execute)
        };
        api.PJRT_LoadedExecutable_Execute = Some(throwing);
    }
}

unsafe extern "C-unwind" fn execute(args: *mut Args) -> *mut sys::PJRT_Error {
    let Some((text, original)) = ARMED.get() else { std::process::abort() };
    if !THROWN.swap(true, Ordering::Relaxed) {
        throw(text.as_ptr());
    }
    // SAFETY: the caller's promise.
    unsafe { original(args) }
}

/// Throws a `std::runtime_error` (Itanium C++ ABI, "Throwing an Exception").
fn throw(text: *const c_char) {
    type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;
    let Ok(library) = (
        // SAFETY: the CPU engine has loaded it.
        unsafe { Library::new("libstdc++.so.6") }
    ) else {
        return;
    };
    // SAFETY: the types are those of the ABI and of libstdc++, whose exceptions of this class have 16 bytes.
    unsafe {
        let find = |name: &[u8]| library.get::<*const c_void>(name).map(|symbol| *symbol);
        let (Ok(allocate), Ok(throw), Ok(construct), Ok(destroy), Ok(of_type)) = (
            find(b"__cxa_allocate_exception\0"),
            find(b"__cxa_throw\0"),
            find(b"_ZNSt13runtime_errorC1EPKc\0"),
            find(b"_ZNSt13runtime_errorD1Ev\0"),
            find(b"_ZTISt13runtime_error\0"),
        ) else {
            return;
        };
        mem::forget(library);
        let allocate: unsafe extern "C" fn(usize) -> *mut c_void = mem::transmute(allocate);
        let construct: unsafe extern "C" fn(*mut c_void, *const c_char) = mem::transmute(construct);
        let throw: Throw = mem::transmute(throw);
        let object = allocate(16);
        construct(object, text);
        throw(object, of_type, destroy)
    }
}
