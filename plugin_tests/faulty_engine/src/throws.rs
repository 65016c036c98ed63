//! A C++ exception from within the engine.

use std::{ffi::c_void, mem};

use libloading::os::unix::Library;

use crate::error::TEXT;

type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;

/// Throws a `std::runtime_error` (Itanium C++ ABI, "Throwing an Exception").
pub fn throw() -> ! {
    let text = std::ffi::CString::new(TEXT).expect("the text has no NUL");
    // SAFETY: the library is libstdc++'s; types of the functions are those of the ABI and of libstdc++, whose
    // exceptions of this class have 16 bytes, and which copies the text.
    unsafe {
        let library = Library::new("libstdc++.so.6").expect("libstdc++ is installed");
        let find = |name: &[u8]| *library.get::<*const c_void>(name).expect("libstdc++ exports it");
        let allocate: unsafe extern "C" fn(usize) -> *mut c_void = mem::transmute(find(b"__cxa_allocate_exception\0"));
        let construct: unsafe extern "C" fn(*mut c_void, *const i8) =
            mem::transmute(find(b"_ZNSt13runtime_errorC1EPKc\0"));
        let throw: Throw = mem::transmute(find(b"__cxa_throw\0"));
        let (of_type, destroy) = (find(b"_ZTISt13runtime_error\0"), find(b"_ZNSt13runtime_errorD1Ev\0"));
        mem::forget(library);
        let object = allocate(16);
        construct(object, text.as_ptr().cast());
        drop(text);
        throw(object, of_type, destroy)
    }
}
