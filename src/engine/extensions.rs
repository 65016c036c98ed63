//! The engine's extensions whose functions we call.

use std::{ffi::c_void, ptr};

use once_cell::sync::OnceCell;

use crate::{
    engine::{Engine, Live, Outcome, abi::Function, process, set_struct_size},
    error::Error,
    sys::{self, CStruct},
};

/// The engine's functions, as much of each extension as the engine has; the rest is NULL.
#[derive(Default)]
pub struct Extensions {
    /// How arrays are laid out.
    pub layouts: sys::PJRT_Layouts_Extension,
    /// Streams of a device.
    pub stream: sys::PJRT_Stream_Extension,
    /// Handlers of custom calls.
    pub ffi: sys::PJRT_FFI_Extension,
    /// How programs are split over devices.
    pub shardings: sys::PJRT_Shardings_Extension,
}

// SAFETY: function tables, written once and never after.
unsafe impl Send for Extensions {}
// SAFETY: function tables that nobody writes may be read by several threads at once.
unsafe impl Sync for Extensions {}

impl Extensions {
    /// Those of the process' engine.
    pub fn of(engine: &'static Engine) -> &'static Self {
        static KNOWN: OnceCell<Extensions> = OnceCell::new();
        KNOWN.get_or_init(|| Self::read(engine))
    }

    fn read(engine: &'static Engine) -> Self {
        let mut known = Self::default();
        let mut next = engine.extensions();
        while !next.is_null() {
            // SAFETY: an extension of the engine lives as long as the process, and begins with the base.
            let base = unsafe { *next };
            let (to, size): (*mut u8, usize) = match base.type_ {
                sys::PJRT_Extension_Type_Layouts => {
                    (ptr::from_mut(&mut known.layouts).cast(), size_of_val(&known.layouts))
                }
                sys::PJRT_Extension_Type_Stream => {
                    (ptr::from_mut(&mut known.stream).cast(), size_of_val(&known.stream))
                }
                sys::PJRT_Extension_Type_FFI => (ptr::from_mut(&mut known.ffi).cast(), size_of_val(&known.ffi)),
                sys::PJRT_Extension_Type_Shardings => {
                    (ptr::from_mut(&mut known.shardings).cast(), size_of_val(&known.shardings))
                }
                _ => (ptr::null_mut(), 0),
            };
            if size > 0 {
                // SAFETY: the extension has `struct_size` bytes and ours has `size`; the two do not overlap.
                unsafe { ptr::copy_nonoverlapping(next.cast::<u8>(), to, base.struct_size.min(size)) };
            }
            next = base.next;
        }
        known
    }
}

/// Calls a function of one of the engine's extensions.
///
/// # Safety
/// The struct must satisfy the function's contract.
pub unsafe fn call<A: CStruct>(
    engine: &'static Engine,
    function: Option<unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error>,
    mut args: A,
) -> Outcome<A> {
    let function =
        function.ok_or_else(|| Error::unimplemented(format!("the engine has no function for {}", A::NAME)))?;
    set_struct_size(&mut args, A::STRUCT_SIZE);
    // SAFETY: the struct is as this function asks, and has its size; functions of a table differ only in the struct
    // that their one pointer is to.
    unsafe {
        let function: Function = std::mem::transmute(function);
        engine.invoke(&raw mut args, function)?;
    }
    Ok(args)
}

/// A stream of the engine's on `device` that a view can be made to wait for.
///
/// # Errors
/// The engine's; UNIMPLEMENTED for one without streams.
pub fn stream_of(device: Live<'_, sys::PJRT_Device>) -> Outcome<isize> {
    let originals = Extensions::of(device.engine());
    let args = sys::PJRT_Get_Stream_For_External_Ready_Events_Args { device: device.raw(), ..Default::default() };
    // SAFETY: the device is alive, and the function asks for nothing else.
    Ok(unsafe { call(device.engine(), originals.stream.get_stream, args)? }.stream)
}

/// Adds user data to a context of the engine.
///
/// # Errors
/// The engine's: there is data of that type already, or the pointer is NULL.
///
/// # Safety
/// The context must be alive.
pub unsafe fn add_user_data(context: *mut sys::PJRT_ExecuteContext, kind: i64, data: *mut c_void) -> Outcome {
    let engine = process::engine()?;
    let originals = Extensions::of(engine);
    let user_data = sys::PJRT_FFI_UserData { type_id: kind, data };
    let args = sys::PJRT_FFI_UserData_Add_Args { context, user_data, ..Default::default() };
    // SAFETY: the context is alive, as this function asks; of the data the engine only keeps the pointer.
    unsafe { call(engine, originals.ffi.user_data_add, args) }.map(drop)
}
