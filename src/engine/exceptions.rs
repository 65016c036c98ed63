//! C++ exceptions that an engine throws through the C API, or a handler of a custom call at the engine, end here, as
//! errors.
//!
//! ```text
//!  Engine::call -> pjrt_arena_call -> the engine's function -> ... -> throw
//!                        ^                                              |
//!                        '--- landing pad: the exception's text <-------'  the unwinder asks `personality`
//! ```
//!
//! XLA is built without exceptions; libraries inside of it are not. cuDNN's front end throws where cuDNN refuses, in
//! the middle of Execute or Compile. JAX's bindings, which are C++, make a Python error of it, because nothing else
//! lies between. A panic's `catch_unwind` ends the process when it meets one, so the call into the engine catches it
//! first.
//!
//! XLA catches what handlers throw. An engine that was linked with a C++ runtime of its own cannot: that runtime does
//! not know the unwinder which the handler's is on the way with.
//!
//! The one function here that needs a handler is written in assembly, because Rust's stable language has none for what
//! is no panic. Its frame has one call, so its personality (Itanium C++ ABI, "Exception Handling", section 1.6) has
//! nothing to look up: whatever is thrown lands behind that call. The text comes from libstdc++'s own runtime, if the
//! exception is one of its.

use std::ffi::{CStr, c_char, c_void};

use crate::{
    engine::abi::{Function, Handler},
    error::{Code, Error},
    sys,
};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.pjrt_arena_call, \"ax\", @progbits",
    ".p2align 4",
    ".globl pjrt_arena_call",
    ".hidden pjrt_arena_call",
    ".type pjrt_arena_call, @function",
    "pjrt_arena_call:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    ".cfi_lsda 0x1b, .Lpjrt_arena_call_pad",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    ".Lpjrt_arena_call_end:",
    "pop rbx",
    ".cfi_remember_state",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_restore_state",
    ".Lpjrt_arena_call_pad:",
    "mov qword ptr [rbx], rax",
    "xor eax, eax",
    "jmp .Lpjrt_arena_call_end",
    ".cfi_endproc",
    ".size pjrt_arena_call, . - pjrt_arena_call",
    ".popsection",
    personality = sym personality,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.pjrt_arena_call, \"ax\", @progbits",
    ".p2align 4",
    ".globl pjrt_arena_call",
    ".hidden pjrt_arena_call",
    ".type pjrt_arena_call, @function",
    "pjrt_arena_call:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    ".cfi_lsda 0x1b, .Lpjrt_arena_call_pad",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "str x19, [sp, #16]",
    ".cfi_offset x19, -16",
    "mov x29, sp",
    "mov x19, x2",
    "mov x9, x0",
    "mov x0, x1",
    "blr x9",
    ".Lpjrt_arena_call_end:",
    "ldr x19, [sp, #16]",
    ".cfi_remember_state",
    ".cfi_restore x19",
    "ldp x29, x30, [sp], #32",
    ".cfi_restore x30",
    ".cfi_restore x29",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_restore_state",
    ".Lpjrt_arena_call_pad:",
    "str x0, [x19]",
    "mov x0, xzr",
    "b .Lpjrt_arena_call_end",
    ".cfi_endproc",
    ".size pjrt_arena_call, . - pjrt_arena_call",
    ".popsection",
    personality = sym personality,
);

unsafe extern "C" {
    /// Calls `function` with `args` and gives what it returns. If it throws instead, gives NULL and leaves the
    /// exception in `thrown`.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn pjrt_arena_call(function: Function, args: *mut c_void, thrown: *mut *mut Exception) -> *mut sys::PJRT_Error;

    fn _Unwind_SetGR(context: *mut c_void, register: i32, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, value: usize);
    fn _Unwind_GetLanguageSpecificData(context: *mut c_void) -> usize;
    fn _Unwind_DeleteException(exception: *mut Exception);
}

/// The unwinder looks for who handles the exception; nothing is unwound yet.
const SEARCH_PHASE: i32 = 1;
/// It unwinds to end the thread, which nobody stops.
const FORCE_UNWIND: i32 = 8;
const HANDLER_FOUND: i32 = 6;
const INSTALL_CONTEXT: i32 = 7;
const CONTINUE_UNWIND: i32 = 8;

/// What the unwinder asks about the frame of [`pjrt_arena_call`].
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
unsafe extern "C" fn personality(
    _version: i32,
    actions: i32,
    _class: u64,
    exception: *mut Exception,
    context: *mut c_void,
) -> i32 {
    if actions & FORCE_UNWIND != 0 {
        return CONTINUE_UNWIND;
    }
    if actions & SEARCH_PHASE != 0 {
        return HANDLER_FOUND;
    }
    // SAFETY: the context is the unwinder's, of that frame. Its language-specific data is the landing pad, which finds
    // the exception in the register for the first result: number 0 on both processors.
    unsafe {
        _Unwind_SetGR(context, 0, exception.addr());
        _Unwind_SetIP(context, _Unwind_GetLanguageSpecificData(context));
    }
    INSTALL_CONTEXT
}

/// `_Unwind_Exception`. What was thrown lies behind it, and what is known about that before it.
#[repr(C, align(16))]
struct Exception {
    class: u64,
    rest: [usize; 3],
}

/// The class of an exception that libstdc++ threw, and did not throw again.
const LIBSTDCPP: u64 = u64::from_be_bytes(*b"GNUCC++\0");
/// From libstdc++'s pointer to the type of what was thrown to the `_Unwind_Exception` (`unwind-cxx.h`,
/// `__cxa_exception`).
const TYPE_BEFORE: usize = 80;
/// `std::type_info` and `std::exception`, of which only this is asked (libstdc++ `typeinfo`, `exception`).
const DO_CATCH: usize = 4;
const WHAT: usize = 2;

type Table = *const *const c_void;

/// What of libstdc++'s runtime reads an exception.
struct Runtime {
    begin_catch: unsafe extern "C" fn(*mut Exception) -> *mut c_void,
    end_catch: unsafe extern "C" fn(),
    /// The type of `std::exception`.
    exception: *const Table,
}

impl Runtime {
    /// The runtime, if a library of this process has brought it.
    fn find() -> Option<Self> {
        use libloading::os::unix::{Library, RTLD_LAZY};
        // SAFETY: nothing is loaded that is not there; the types are those of the Itanium C++ ABI.
        unsafe {
            let library = Library::open(Some("libstdc++.so.6"), RTLD_LAZY | libc::RTLD_NOLOAD).ok()?;
            let runtime = Self {
                begin_catch: *library.get(b"__cxa_begin_catch\0").ok()?,
                end_catch: *library.get(b"__cxa_end_catch\0").ok()?,
                exception: *library.get(b"_ZTISt9exception\0").ok()?,
            };
            // The engine's library needs it as long as the process lives.
            std::mem::forget(library);
            Some(runtime)
        }
    }

    /// What `exception` says of itself, if it is a `std::exception`, and its type's name as the compiler has it.
    ///
    /// # Safety
    /// It must be one of the class [`LIBSTDCPP`], alive.
    unsafe fn read(&self, exception: *const Exception) -> (Option<String>, String) {
        // SAFETY: libstdc++ puts the type's address before the exception; a type's second word is its name. The slots
        // are those of `bool __do_catch(const type_info*, void**, unsigned) const`, which moves the pointer to the part
        // of the object that is a `std::exception`, and of `const char* what() const`, whose text is the exception's,
        // which is alive.
        let (what, name) = unsafe {
            let thrown: *const Table = exception.byte_sub(TYPE_BEFORE).cast::<*const Table>().read();
            let name = CStr::from_ptr(thrown.add(1).cast::<*const c_char>().read());
            let do_catch: unsafe extern "C" fn(*const Table, *const Table, *mut *const Table, u32) -> bool =
                std::mem::transmute(self.exception.read().add(DO_CATCH).read());
            let mut object: *const Table = exception.add(1).cast();
            let what = do_catch(self.exception, thrown, &raw mut object, 1).then(|| {
                let what: unsafe extern "C" fn(*const Table) -> *const c_char =
                    std::mem::transmute(object.read().add(WHAT).read());
                what(object)
            });
            (what.filter(|what| !what.is_null()).map(|what| CStr::from_ptr(what)), name)
        };
        (what.map(|what| what.to_string_lossy().into_owned()), name.to_string_lossy().into_owned())
    }
}

/// An exception that was caught here, to be ended: it is alive, and nobody else ends it.
#[must_use]
pub struct Caught(*mut Exception);

impl Caught {
    /// Ends it: INTERNAL with what it says of itself.
    #[cold]
    pub fn end(self) -> Error {
        Error::new(Code::Internal, format!("the engine threw {}", Self::described(self.read())))
    }

    /// Ends it: what XLA says when a handler throws.
    #[cold]
    pub fn end_of_handler(self) -> String {
        match self.read() {
            Some((Some(what), _)) => format!("XLA FFI call failed: {what}"),
            other => format!("XLA FFI call failed: the handler threw {}", Self::described(other)),
        }
    }

    fn described(read: Option<(Option<String>, String)>) -> String {
        let Some((what, name)) = read else { return "an exception that is not libstdc++'s".to_owned() };
        let what = what.map_or_else(String::new, |what| format!(": {what}"));
        format!("a C++ exception of the type {name}{what}")
    }

    /// Ends it, and gives what [`Runtime::read`] does; `None` if it is not libstdc++'s.
    fn read(self) -> Option<(Option<String>, String)> {
        let exception = self.0;
        let runtime = Runtime::find();
        // SAFETY: it is alive until it is ended, which nobody else does. Where its class is libstdc++'s it is ended by
        // that runtime, and lives between the two calls; any other is ended by the unwinder, as its own runtime says.
        unsafe {
            let Some(runtime) = runtime.filter(|_| (*exception).class == LIBSTDCPP) else {
                _Unwind_DeleteException(exception);
                return None;
            };
            (runtime.begin_catch)(exception);
            let read = runtime.read(exception);
            (runtime.end_catch)();
            Some(read)
        }
    }
}

/// Calls a function of the engine. On processors other than x86-64 and AArch64 an exception goes on, and ends the
/// process.
///
/// # Errors
/// What it threw.
///
/// # Safety
/// `args` must be the struct that `function` takes, its contract satisfied.
#[inline]
pub unsafe fn call(function: Function, args: *mut c_void) -> Result<*mut sys::PJRT_Error, Caught> {
    let mut thrown = std::ptr::null_mut();
    // SAFETY: the struct is the function's and its contract satisfied, as this function asks; there is a place for an
    // exception.
    let error = unsafe {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let error = pjrt_arena_call(function, args, &raw mut thrown);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let error = function(args);
        error
    };
    if thrown.is_null() { Ok(error) } else { Err(Caught(thrown)) }
}

/// Calls a handler of a custom call.
///
/// # Errors
/// What it threw.
///
/// # Safety
/// `handler` must be a handler of XLA FFI, `frame` a frame for it.
pub unsafe fn call_handler(
    handler: Handler,
    frame: *mut sys::XLA_FFI_CallFrame,
) -> Result<*mut sys::XLA_FFI_Error, Caught> {
    // SAFETY: a handler takes one pointer and returns one, as a function of the engine's does, whatever they point to;
    // the frame is one for it, as this function asks.
    let error = unsafe { call(std::mem::transmute::<Handler, Function>(handler), frame.cast()) };
    error.map(|error| error.cast())
}

#[cfg(test)]
mod tests;
