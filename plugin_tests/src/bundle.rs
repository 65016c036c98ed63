//! Handlers of any version of XLA FFI, with a state or without, and the library's own way to register whole bundles.
//!
//! ```text
//!  stateless::<3>()   execute: y = 2 x
//!  stateful::<3>()    instantiate: leaves 10; execute: y = 10 x; the end of the executable frees the state
//! ```
//! A handler says the version that it was made for and calls back in the way of that version, whatever the engine's.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    Plugin,
    sys::{self, CStruct},
};

type Frame = *mut sys::XLA_FFI_CallFrame;
type Error = *mut sys::XLA_FFI_Error;
/// A function that handles one stage.
pub type Handler = unsafe extern "C-unwind" fn(Frame) -> Error;

/// The handlers of a custom call.
pub type Bundle = sys::XLA_FFI_Handler_Bundle;

/// Minor versions of 0.2 as it came with two layouts: with a deleter in the struct for a state, and without.
pub const WITH_DELETER: i32 = 2;
/// The other one; such handlers say 0.2 as well.
pub const WITHOUT_DELETER: i32 = -2;

/// States freed so far, over all tests of the process.
pub static FREED: AtomicUsize = AtomicUsize::new(0);

/// The id of the state's type.
static STATE_TYPE: sys::XLA_FFI_TypeId = sys::XLA_FFI_TypeId { type_id: 0x7e57_57a7 };

unsafe extern "C" fn free(state: *mut c_void) {
    // SAFETY: `instantiate` made it.
    drop(unsafe { Box::from_raw(state.cast::<f32>()) });
    FREED.fetch_add(1, Ordering::SeqCst);
}

/// Answers the question for the version; true when it was asked.
unsafe fn told(frame: Frame, minor: i32, state: bool) -> bool {
    // SAFETY: the caller's frame.
    unsafe {
        let extension = (*frame).extension_start;
        if extension.is_null() {
            return false;
        }
        let metadata = (*extension.cast::<sys::XLA_FFI_Metadata_Extension>()).metadata;
        (*metadata).api_version.minor_version = minor.abs();
        (*metadata).state_type_id.type_id = if state { STATE_TYPE.type_id } else { 0 };
        true
    }
}

/// `y = factor x` on the call's one argument and result.
unsafe fn scale(frame: Frame, factor: f32) {
    // SAFETY: the tests' programs have one argument and one result, of the same shape.
    unsafe {
        let x = &**(*frame).args.args.cast::<*const sys::XLA_FFI_Buffer>();
        let y = &**(*frame).rets.rets.cast::<*const sys::XLA_FFI_Buffer>();
        let dims = std::slice::from_raw_parts(x.dims, x.rank as usize);
        for i in 0..dims.iter().product::<i64>() as usize {
            *y.data.cast::<f32>().add(i) = factor * *x.data.cast::<f32>().add(i);
        }
    }
}

/// An error says what it was made with, asked in the way of version 0.`MINOR`.
unsafe fn errors_can_be_read<const MINOR: i32>(api: &sys::XLA_FFI_Api) {
    let mut create = sys::XLA_FFI_Error_Create_Args {
        struct_size: sys::XLA_FFI_Error_Create_Args::STRUCT_SIZE,
        message: c"a reason".as_ptr(),
        errc: sys::XLA_FFI_Error_Code_NOT_FOUND,
        ..Default::default()
    };
    // SAFETY: the engine's functions, or the arena's, for errors of the engine's.
    unsafe {
        let error = api.XLA_FFI_Error_Create.expect("all versions have it")(&raw mut create);
        let mut details = sys::XLA_FFI_Error_GetDetails_Args { error, ..Default::default() };
        details.struct_size = match MINOR {
            ..4 => sys::XLA_FFI_Error_GetMessage_Args::STRUCT_SIZE,
            _ => sys::XLA_FFI_Error_GetDetails_Args::STRUCT_SIZE,
        };
        api.XLA_FFI_Error_GetMessage.expect("all versions have it")((&raw mut details).cast());
        assert_eq!(CStr::from_ptr(details.message), c"a reason");
        // Engines from before 0.4 do not know the code.
        let codes: &[_] = match MINOR {
            ..4 => &[sys::XLA_FFI_Error_Code_OK],
            _ => &[sys::XLA_FFI_Error_Code_NOT_FOUND, sys::XLA_FFI_Error_Code_INTERNAL],
        };
        assert!(codes.contains(&details.errc), "{:?} is none of {codes:?}", details.errc);
        let struct_size = sys::XLA_FFI_Error_Destroy_Args::STRUCT_SIZE;
        let mut destroy = sys::XLA_FFI_Error_Destroy_Args { struct_size, error, ..Default::default() };
        api.XLA_FFI_Error_Destroy.expect("all versions have it")(&raw mut destroy);
    }
}

/// The run has no extension, as a handler of 0.4 finds out.
unsafe fn no_extension(frame: Frame) {
    // SAFETY: the engine's frame, with a table of 0.4 or later.
    unsafe {
        let mut args = sys::XLA_FFI_InvokeContext_FindExtension_Args {
            struct_size: sys::XLA_FFI_InvokeContext_FindExtension_Args::STRUCT_SIZE,
            ctx: (*frame).ctx,
            extension_type: 1,
            extension: ptr::dangling(),
            ..Default::default()
        };
        let find = (*(*frame).api.cast::<sys::XLA_FFI_Api_V05>()).XLA_FFI_InvokeContext_FindExtension;
        let error = find.expect("0.4 has it")(&raw mut args);
        assert!(error.is_null() && args.extension.is_null(), "there is no extension");
    }
}

/// The run has no options, as a handler of 0.5 finds out.
unsafe fn no_options(frame: Frame) {
    // SAFETY: the engine's frame, with a table of 0.5.
    unsafe {
        let api = (*frame).api;
        assert!((*api).struct_size >= sys::XLA_FFI_Api_V05::STRUCT_SIZE, "handlers look before they call");
        let mut args = sys::XLA_FFI_CustomOptions_Get_Args {
            struct_size: sys::XLA_FFI_CustomOptions_Get_Args::STRUCT_SIZE,
            ctx: (*frame).ctx,
            ..Default::default()
        };
        let get = (*api.cast::<sys::XLA_FFI_Api_V05>()).XLA_FFI_CustomOptions_Get;
        let error = get.expect("0.5 has it")(&raw mut args);
        assert!(error.is_null() && (*args.attrs).size == 0, "there are no options");
    }
}

/// `y = 2 x`, by a handler of version 0.`MINOR`.
///
/// # Safety
/// For the engine to call.
pub unsafe extern "C-unwind" fn double<const MINOR: i32>(frame: Frame) -> Error {
    // SAFETY: the engine's frame, and the table of the version that this handler said.
    unsafe {
        if told(frame, MINOR, false) {
            return ptr::null_mut();
        }
        errors_can_be_read::<MINOR>(&*(*frame).api);
        if MINOR >= 4 {
            no_extension(frame);
        }
        if MINOR >= 5 {
            no_options(frame);
        }
        scale(frame, 2.0);
        ptr::null_mut()
    }
}

/// Leaves the state 10, as state of stage `STAGE`.
unsafe extern "C-unwind" fn instantiate<const MINOR: i32, const STAGE: u32>(frame: Frame) -> Error {
    // SAFETY: as above.
    unsafe {
        if told(frame, MINOR, true) {
            return ptr::null_mut();
        }
        let (ctx, type_id) = ((*frame).ctx, (&raw const STATE_TYPE).cast_mut());
        let state = Box::into_raw(Box::new(10_f32)).cast::<c_void>();
        let set = (*(*frame).api).XLA_FFI_State_Set.expect("all versions have it");
        if MINOR.abs() < 3 {
            let mut args = sys::XLA_FFI_State_Set_Args_V02 { ctx, type_id, state, ..Default::default() };
            (args.struct_size, args.deleter) = match MINOR {
                WITHOUT_DELETER => (sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE, None),
                _ => (sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE, Some(free as unsafe extern "C" fn(_))),
            };
            return set((&raw mut args).cast());
        }
        let stage = sys::XLA_FFI_ExecutionStage(STAGE);
        let struct_size = sys::XLA_FFI_State_Set_Args::STRUCT_SIZE;
        set(&mut sys::XLA_FFI_State_Set_Args { struct_size, ctx, stage, type_id, state, ..Default::default() })
    }
}

/// `y = s x`, where `s` is the state.
unsafe extern "C-unwind" fn scale_by_state<const MINOR: i32>(frame: Frame) -> Error {
    // SAFETY: as above.
    unsafe {
        if told(frame, MINOR, false) {
            return ptr::null_mut();
        }
        let (ctx, type_id) = ((*frame).ctx, (&raw const STATE_TYPE).cast_mut());
        let get = (*(*frame).api).XLA_FFI_State_Get.expect("all versions have it");
        let state = if MINOR.abs() < 3 {
            let mut args = sys::XLA_FFI_State_Get_Args_V02 { ctx, type_id, ..Default::default() };
            args.struct_size = sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE;
            let error = get((&raw mut args).cast());
            if !error.is_null() {
                return error;
            }
            args.state
        } else {
            let mut args = sys::XLA_FFI_State_Get_Args { ctx, type_id, ..Default::default() };
            args.struct_size = sys::XLA_FFI_State_Get_Args::STRUCT_SIZE;
            let error = get(&raw mut args);
            if !error.is_null() {
                return error;
            }
            args.state
        };
        scale(frame, *state.cast::<f32>());
        ptr::null_mut()
    }
}

/// A bundle of an execute handler alone.
pub fn of(execute: Handler) -> Bundle {
    Bundle { execute: Some(execute), ..Bundle::default() }
}

/// `y = 2 x`.
pub fn stateless<const MINOR: i32>() -> Bundle {
    of(double::<MINOR>)
}

/// `y = 10 x`, where the 10 is a state.
pub fn stateful<const MINOR: i32>() -> Bundle {
    Bundle { instantiate: Some(instantiate::<MINOR, 0>), ..of(scale_by_state::<MINOR>) }
}

/// As [`stateful`], but the first handler calls its state one of the prepare stage.
pub fn stateful_in_prepare() -> Bundle {
    Bundle { instantiate: Some(instantiate::<5, 1>), ..of(scale_by_state::<5>) }
}

/// A bundle of `execute` and a handler of 0.1 that leaves a state, with which no engine of today can be left alone.
pub fn with_old_state(execute: Handler) -> Bundle {
    Bundle { instantiate: Some(instantiate::<1, 0>), ..of(execute) }
}

/// Registers `bundle` under `name` for the CPU.
///
/// # Errors
/// The library's sentence.
///
/// # Panics
/// When the library under test is not the arena.
pub fn register(plugin: &Plugin, name: &str, bundle: &Bundle) -> Result<(), String> {
    register_on(plugin, c"cpu", name, bundle)
}

/// As [`register`], for another platform.
///
/// # Errors
/// As for [`register`].
///
/// # Panics
/// As for [`register`].
pub fn register_on(plugin: &Plugin, platform: &CStr, name: &str, bundle: &Bundle) -> Result<(), String> {
    type Register = unsafe extern "C" fn(*const c_char, *const c_char, *const Bundle, u32, *mut c_char, usize) -> usize;
    let (name, mut text) = (CString::new(name).expect("no NUL"), vec![0_u8; 4096]);
    // SAFETY: the library under test exports it with this type; the buffer is as long as it says.
    let length = unsafe {
        let register = plugin.symbol::<Register>("pjrt_arena_ffi_register_handler");
        register(name.as_ptr(), platform.as_ptr(), bundle, 0, text.as_mut_ptr().cast(), text.len())
    };
    sentence(&text[..length])
}

/// Registers the type of the tests' states under its own id.
///
/// # Errors
/// The library's sentence.
///
/// # Panics
/// When the library under test is not the arena.
pub fn register_state_type(plugin: &Plugin) -> Result<(), String> {
    type Register = unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        *mut sys::XLA_FFI_TypeId,
        *const sys::XLA_FFI_TypeInfo,
        *mut c_char,
        usize,
    ) -> usize;
    let info = sys::XLA_FFI_TypeInfo {
        struct_size: sys::XLA_FFI_TypeInfo::STRUCT_SIZE,
        deleter: Some(free),
        ..Default::default()
    };
    let (mut id, mut text) = (STATE_TYPE, vec![0_u8; 4096]);
    // SAFETY: as above.
    let length = unsafe {
        let register = plugin.symbol::<Register>("pjrt_arena_ffi_register_type");
        register(
            c"pjrt_arena_test_state".as_ptr(),
            c"cpu".as_ptr(),
            &raw mut id,
            &raw const info,
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    sentence(&text[..length])
}

fn sentence(text: &[u8]) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(text).into_owned()) }
}
