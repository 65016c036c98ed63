//! The part of XLA's FFI that the tests' handler needs, at FFI API 0.2 (XLA of November 2025).
//!
//! A handler is called once with a metadata extension, to say which FFI version it speaks, and then for every execution
//! with a call frame of arguments, results and the table of functions that it may call back.

use std::{ffi::c_void, ptr};

use crate::{Plugin, executable::Context, raw::Result, sys};

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: i32,
    next: *mut Extension,
    /// Only in the metadata extension, the one kind that an FFI call carries.
    metadata: *mut Metadata,
}

#[repr(C)]
struct Version {
    struct_size: usize,
    extension_start: *mut Extension,
    major: i32,
    minor: i32,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
}

#[repr(C)]
struct FfiBuffer {
    struct_size: usize,
    extension_start: *mut Extension,
    element_type: i32,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct List {
    struct_size: usize,
    extension_start: *mut Extension,
    len: i64,
    kinds: *const i32,
    items: *const *const FfiBuffer,
}

#[repr(C)]
struct ErrorCreate {
    struct_size: usize,
    extension_start: *mut Extension,
    message: *const std::ffi::c_char,
    code: i32,
}

#[repr(C)]
struct ContextGet {
    struct_size: usize,
    extension_start: *mut Extension,
    context: *mut c_void,
    type_id: *const i64,
    data: *mut c_void,
}

#[repr(C)]
struct Api {
    struct_size: usize,
    extension_start: *mut Extension,
    version: Version,
    internal: *const c_void,
    error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut c_void,
    error_message: *const c_void,
    error_destroy: unsafe extern "C" fn(*mut ErrorDestroy),
    handler_register: *const c_void,
    stream_get: *const c_void,
    type_register: *const c_void,
    context_get: unsafe extern "C" fn(*mut ContextGet) -> *mut c_void,
}

#[repr(C)]
struct ErrorDestroy {
    struct_size: usize,
    extension_start: *mut Extension,
    error: *mut c_void,
}

/// One call of a handler.
#[repr(C)]
pub struct CallFrame {
    struct_size: usize,
    extension_start: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: i32,
    args: List,
    rets: List,
}

/// The type of a handler: null on success, else an error made by [`CallFrame::error`].
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut c_void;

impl CallFrame {
    /// Answers the engine's question for the FFI version; false when this call is an execution.
    pub fn answer_metadata(&mut self) -> bool {
        self.answer_with(2)
    }

    /// As [`Self::answer_metadata`], with version 0.`minor`.
    pub fn answer_with(&mut self, minor: i32) -> bool {
        // SAFETY: an FFI call carries either no extension or the metadata one.
        let Some(extension) = (unsafe { self.extension_start.as_mut() }) else { return false };
        // SAFETY: the engine owns the metadata and waits for the answer.
        unsafe { ((*extension.metadata).version.major, (*extension.metadata).version.minor) = (0, minor) };
        true
    }

    fn buffer(list: &List, index: usize) -> &FfiBuffer {
        assert!((index as i64) < list.len, "the program has this operand");
        // SAFETY: the engine's list has `len` buffers.
        unsafe { &**list.items.add(index) }
    }

    fn len(buffer: &FfiBuffer) -> usize {
        crate::raw::slice(buffer.dims, buffer.rank as usize).iter().product::<i64>() as usize
    }

    /// The `index`th argument as values of `T`.
    pub fn argument<T>(&self, index: usize) -> &[T] {
        let buffer = Self::buffer(&self.args, index);
        // SAFETY: the program's types are the tests' own; the memory is the call's.
        unsafe { std::slice::from_raw_parts(buffer.data.cast(), Self::len(buffer)) }
    }

    /// The `index`th result as values of `T`.
    pub fn result<T>(&mut self, index: usize) -> &mut [T] {
        let buffer = Self::buffer(&self.rets, index);
        // SAFETY: as above; results do not overlap arguments here, since the custom call declares no aliasing.
        unsafe { std::slice::from_raw_parts_mut(buffer.data.cast(), Self::len(buffer)) }
    }

    /// An INTERNAL error with `message`, to be returned from the handler.
    pub fn error(&self, message: &std::ffi::CStr) -> *mut c_void {
        let mut args = ErrorCreate {
            struct_size: size_of::<ErrorCreate>(),
            extension_start: ptr::null_mut(),
            message: message.as_ptr(),
            code: 13,
        };
        // SAFETY: the table lives as long as the engine; the message is copied.
        unsafe { ((*self.api).error_create)(&mut args) }
    }

    /// The user data of type `type_id` in the execution's context, if there is any.
    pub fn user_data(&self, type_id: i64) -> Option<*mut c_void> {
        let mut args = ContextGet {
            struct_size: size_of::<ContextGet>(),
            extension_start: ptr::null_mut(),
            context: self.context,
            type_id: &raw const type_id,
            data: ptr::null_mut(),
        };
        // SAFETY: as above.
        let error = unsafe { ((*self.api).context_get)(&mut args) };
        if error.is_null() {
            return Some(args.data);
        }
        let mut destroy =
            ErrorDestroy { struct_size: size_of::<ErrorDestroy>(), extension_start: ptr::null_mut(), error };
        // SAFETY: the error is ours to destroy.
        unsafe { ((*self.api).error_destroy)(&mut destroy) };
        None
    }
}

/// Type id of the FFI extension in the plugin's chain.
pub const FFI_EXTENSION: u32 = 5;

#[repr(C)]
struct TypeInfo {
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    serialize: *const c_void,
    deserialize: *const c_void,
}

#[repr(C)]
struct TypeRegister {
    struct_size: usize,
    extension_start: *mut c_void,
    name: *const u8,
    name_size: usize,
    type_id: i64,
    info: *mut TypeInfo,
}

#[repr(C)]
struct UserDataAdd {
    struct_size: usize,
    extension_start: *mut c_void,
    context: *mut sys::PJRT_ExecuteContext,
    type_id: i64,
    data: *mut c_void,
}

#[repr(C)]
struct HandlerRegister {
    struct_size: usize,
    name: *const u8,
    name_size: usize,
    handler: *const c_void,
    platform: *const u8,
    platform_size: usize,
    traits: i32,
}

#[repr(C)]
struct FfiExtension {
    base: [usize; 3],
    type_register: unsafe extern "C" fn(*mut TypeRegister) -> *mut sys::PJRT_Error,
    user_data_add: unsafe extern "C" fn(*mut UserDataAdd) -> *mut sys::PJRT_Error,
    register_handler: unsafe extern "C" fn(*mut HandlerRegister) -> *mut sys::PJRT_Error,
}

fn extension(plugin: &Plugin) -> &'static FfiExtension {
    let base = plugin.extension(FFI_EXTENSION);
    assert!(!base.is_null(), "the plugin has the FFI extension");
    // SAFETY: the type id says what the node is; it lives as long as the library.
    unsafe { &*base.cast::<FfiExtension>() }
}

/// Registers `handler` under `name` for the CPU.
///
/// # Errors
/// The plugin's, for instance when the name is taken.
pub fn register(plugin: &Plugin, name: &str, handler: Handler) -> Result<()> {
    let platform = "cpu";
    let mut args = HandlerRegister {
        struct_size: size_of::<HandlerRegister>(),
        name: name.as_ptr(),
        name_size: name.len(),
        handler: handler as *const c_void,
        platform: platform.as_ptr(),
        platform_size: platform.len(),
        traits: 0,
    };
    // SAFETY: the strings are copied; the handler is a function.
    plugin.check(unsafe { (extension(plugin).register_handler)(&mut args) })
}

/// Registers a type of user data; gives its id.
///
/// # Errors
/// The plugin's.
pub fn register_type(plugin: &Plugin, name: &str) -> Result<i64> {
    let mut info = TypeInfo { deleter: None, serialize: ptr::null(), deserialize: ptr::null() };
    let mut args = TypeRegister {
        struct_size: size_of::<TypeRegister>(),
        extension_start: ptr::null_mut(),
        name: name.as_ptr(),
        name_size: name.len(),
        type_id: 0,
        info: &raw mut info,
    };
    // SAFETY: the strings are copied.
    plugin.check(unsafe { (extension(plugin).type_register)(&mut args) })?;
    Ok(args.type_id)
}

/// Adds user data to an execute context.
///
/// # Errors
/// The plugin's.
pub fn add_user_data(plugin: &Plugin, context: &Context, type_id: i64, data: *mut c_void) -> Result<()> {
    let mut args = UserDataAdd {
        struct_size: size_of::<UserDataAdd>(),
        extension_start: ptr::null_mut(),
        context: context.raw(),
        type_id,
        data,
    };
    // SAFETY: the context is alive; the data's life is the caller's business.
    plugin.check(unsafe { (extension(plugin).user_data_add)(&mut args) })
}
