//! C++ exceptions from within the engine.

use std::{
    ffi::{CString, c_char, c_void},
    mem, ptr,
};

use libloading::os::unix::Library;

use crate::{error::TEXT, sys};

type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;

/// What of libstdc++ throws (Itanium C++ ABI, "Throwing an Exception").
struct Runtime(Library);

impl Runtime {
    fn get() -> Self {
        // SAFETY: the library is libstdc++'s, which the engine behind has loaded.
        Self(unsafe { Library::new("libstdc++.so.6") }.expect("libstdc++ is installed"))
    }

    fn find(&self, name: &[u8]) -> *const c_void {
        // SAFETY: the symbol is only taken for an address.
        *unsafe { self.0.get::<*const c_void>(name) }.expect("libstdc++ exports it")
    }

    /// Throws an object of so many bytes.
    ///
    /// # Safety
    /// `construct` must make an object of the type, which `destroy` ends, if it needs an end.
    unsafe fn throw(
        self,
        bytes: usize,
        of_type: &[u8],
        destroy: Option<&[u8]>,
        construct: impl FnOnce(*mut c_void),
    ) -> ! {
        // SAFETY: the types of the functions are those of the ABI; the object is as this function asks.
        unsafe {
            let allocate: unsafe extern "C" fn(usize) -> *mut c_void =
                mem::transmute(self.find(b"__cxa_allocate_exception\0"));
            let throw: Throw = mem::transmute(self.find(b"__cxa_throw\0"));
            let (of_type, destroy) = (self.find(of_type), destroy.map_or(ptr::null(), |destroy| self.find(destroy)));
            let object = allocate(bytes);
            construct(object);
            mem::forget(self);
            throw(object, of_type, destroy)
        }
    }
}

/// Throws a `std::runtime_error`.
pub fn throw() -> ! {
    let runtime = Runtime::get();
    // SAFETY: the type of the constructor is libstdc++'s, whose exceptions of this class have 16 bytes, and which
    // copies the text.
    unsafe {
        let construct: unsafe extern "C" fn(*mut c_void, *const c_char) =
            mem::transmute(runtime.find(b"_ZNSt13runtime_errorC1EPKc\0"));
        let construct = |object| construct(object, CString::new(TEXT).expect("the text has no NUL").as_ptr());
        runtime.throw(16, b"_ZTISt13runtime_error\0", Some(b"_ZNSt13runtime_errorD1Ev\0"), construct)
    }
}

/// A handler of XLA FFI that throws a number: XLA catches nothing but a `std::exception` there, so it goes through the
/// execution that calls the handler.
///
/// # Safety
/// `frame` must be what the engine passes to handlers.
pub unsafe extern "C-unwind" fn handler(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the frame is the engine's; with an extension it is the question for the handler's version, and the
    // metadata may be written. A number needs no end.
    unsafe {
        if let Some(asked) = (*frame).extension_start.cast::<sys::XLA_FFI_Metadata_Extension>().as_ref() {
            (*asked.metadata).api_version = (*(*frame).api).api_version;
            return ptr::null_mut();
        }
        Runtime::get().throw(size_of::<i32>(), b"_ZTIi\0", None, |object| object.cast::<i32>().write(7))
    }
}
