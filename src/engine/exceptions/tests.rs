//! Exceptions as libstdc++ throws them.

use std::{
    ffi::{c_char, c_void},
    mem, ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use libloading::os::unix::Library;

use crate::engine::exceptions::*;

/// Something to throw.
enum Thing {
    Class { constructor: &'static [u8], destructor: &'static [u8], typeinfo: &'static [u8], text: &'static CStr },
    Number,
}

const RUNTIME_ERROR: Thing = Thing::Class {
    constructor: b"_ZNSt13runtime_errorC1EPKc\0",
    destructor: b"_ZNSt13runtime_errorD1Ev\0",
    typeinfo: b"_ZTISt13runtime_error\0",
    text: c"cuDNN says no",
};
/// A `std::logic_error`, and so a `std::exception` by two steps.
const OUT_OF_RANGE: Thing = Thing::Class {
    constructor: b"_ZNSt12out_of_rangeC1EPKc\0",
    destructor: b"_ZNSt12out_of_rangeD1Ev\0",
    typeinfo: b"_ZTISt12out_of_range\0",
    text: c"too far",
};

static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe extern "C-unwind" fn throw(thing: *mut c_void) -> *mut sys::PJRT_Error {
    type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !;
    // SAFETY: the types are those of the Itanium C++ ABI and of libstdc++; the library stays loaded.
    unsafe {
        let library = Library::new("libstdc++.so.6").expect("libstdc++");
        let find = |name: &[u8]| *library.get::<*const c_void>(name).expect("a symbol of libstdc++");
        let allocate: unsafe extern "C" fn(usize) -> *mut c_void = mem::transmute(find(b"__cxa_allocate_exception\0"));
        let throw: Throw = mem::transmute(find(b"__cxa_throw\0"));
        let object = allocate(64);
        let (typeinfo, destructor) = match &*thing.cast::<Thing>() {
            Thing::Number => {
                object.cast::<i32>().write(7);
                (find(b"_ZTIi\0"), ptr::null())
            }
            Thing::Class { constructor, destructor, typeinfo, text } => {
                let construct: unsafe extern "C" fn(*mut c_void, *const c_char) = mem::transmute(find(constructor));
                construct(object, text.as_ptr());
                (find(typeinfo), find(destructor))
            }
        };
        mem::forget(library);
        let _witness = Witness;
        throw(object, typeinfo, destructor)
    }
}

unsafe extern "C-unwind" fn give_back(what: *mut c_void) -> *mut sys::PJRT_Error {
    what.cast()
}

/// As an engine's table has it: as a function that does not say that it throws.
fn function(unwinding: unsafe extern "C-unwind" fn(*mut c_void) -> *mut sys::PJRT_Error) -> Function {
    // SAFETY: the two are called alike.
    unsafe { mem::transmute(unwinding) }
}

fn thrown(thing: &Thing) -> Error {
    // SAFETY: the function takes a pointer to such a thing.
    let outcome = unsafe { call(function(throw), ptr::from_ref(thing).cast_mut().cast()) };
    outcome.expect_err("it throws").end()
}

#[test]
fn what_returns_is_given() {
    let mut place = 0u8;
    let place: *mut c_void = (&raw mut place).cast();
    // SAFETY: the function looks at nothing.
    let given = unsafe { call(function(give_back), place) };
    assert_eq!(given.ok().map(|given| given.cast::<c_void>()), Some(place));
}

#[test]
fn exceptions_tell_their_type_and_text() {
    let before = DROPPED.load(Ordering::Relaxed);
    for _ in 0..3 {
        let error = thrown(&RUNTIME_ERROR);
        assert_eq!(error.code, Code::Internal);
        assert_eq!(error.message, "the engine threw a C++ exception of the type St13runtime_error: cuDNN says no");
    }
    assert!(thrown(&OUT_OF_RANGE).message.ends_with("of the type St12out_of_range: too far"));
    assert!(thrown(&Thing::Number).message.ends_with("of the type i"));
    assert!(DROPPED.load(Ordering::Relaxed) >= before + 5, "what lay between was unwound");
    // Nothing of it is left to confuse a panic.
    assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
}

/// A panic never comes this far; if one did, it would end as an error too.
#[test]
fn others_exceptions_are_ended() {
    unsafe extern "C-unwind" fn raise(_: *mut c_void) -> *mut sys::PJRT_Error {
        unsafe extern "C-unwind" {
            fn _Unwind_RaiseException(exception: *mut Exception) -> i32;
        }
        /// `_Unwind_Exception` with the function that frees it.
        unsafe extern "C" fn free(_: i32, exception: *mut Exception) {
            DROPPED.fetch_add(1000, Ordering::Relaxed);
            // SAFETY: it was made by a box, and this is its end.
            drop(unsafe { Box::from_raw(exception) });
        }
        let exception = Exception { class: u64::from_be_bytes(*b"TESTTEST"), rest: [free as *const () as usize, 0, 0] };
        // SAFETY: the exception is complete, and whoever ends it frees it.
        unsafe { _Unwind_RaiseException(Box::into_raw(Box::new(exception))) };
        ptr::null_mut()
    }
    let before = DROPPED.load(Ordering::Relaxed);
    // SAFETY: the function looks at nothing.
    let caught = unsafe { call(function(raise), ptr::null_mut()) }.expect_err("it throws");
    assert_eq!(caught.end().message, "the engine threw an exception that is not libstdc++'s");
    assert!(DROPPED.load(Ordering::Relaxed) >= before + 1000, "it was freed");
}
