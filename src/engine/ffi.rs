//! The engine's XLA FFI: the table of functions that it gives to handlers, which no PJRT function hands out.
//!
//! PJRT's own way to register a handler (FFI extension, `register_handler`) takes the execute stage alone, and in
//! engines of today it drops the error when the handler is refused. The table can do more, and reports:
//!
//! ```text
//!  register_handler(a probe) --> the engine asks the probe for its version at once --> frame.api: the table
//!      table: Handler_Register (all stages, an error), Type_Register, Error_*, State_*, ExecutionContext_Get
//! ```
//!
//! The probe stays registered under a name of ours; a program that calls it gets a custom call that does nothing.

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    engine::{Engine, EngineError, abi::Handler},
    error::{Code, Error, Result},
    sys::{self, CStruct},
};

/// What [`Table::learn`] registers.
const PROBE: &str = "pjrt_arena_probe";

/// The table that the probe was called with.
static SEEN: AtomicPtr<sys::XLA_FFI_Api> = AtomicPtr::new(ptr::null_mut());

/// The engine's table of XLA FFI functions.
pub struct Table {
    /// As long as ours, `None` in slots that the engine's own, shorter table lacks.
    functions: sys::XLA_FFI_Api_V05,
    /// The engine's own.
    raw: *const sys::XLA_FFI_Api,
}

// SAFETY: the table is written once, before the value is shared; its functions may be called from any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// The engine's FFI extension, as much of it as it has; `None` if it has none, or one that cannot register handlers.
pub fn extension(engine: &Engine) -> Option<sys::PJRT_FFI_Extension> {
    let mut next = engine.extensions();
    while !next.is_null() {
        // SAFETY: every extension begins with the base.
        let base = unsafe { *next };
        if base.type_ == sys::PJRT_Extension_Type_FFI {
            let mut extension = sys::PJRT_FFI_Extension::default();
            let length = base.struct_size.min(size_of_val(&extension));
            // SAFETY: the engine's extension has `struct_size` bytes, ours is at least `length` long.
            unsafe { ptr::copy_nonoverlapping(next.cast::<u8>(), (&raw mut extension).cast(), length) };
            return extension.register_handler.is_some().then_some(extension);
        }
        next = base.next;
    }
    None
}

/// Registers an execute handler through the extension, as PJRT has it: a refusal may go unreported.
///
/// # Errors
/// The engine's; UNIMPLEMENTED when it has no such function.
pub fn register_plainly(
    engine: &'static Engine,
    name: &str,
    platform: &str,
    handler: Handler,
    traits: u32,
) -> Result<(), EngineError> {
    let Some(register) = extension(engine).and_then(|extension| extension.register_handler) else {
        return Err(EngineError::missing(engine, "PJRT_FFI_Register_Handler"));
    };
    let mut args = sys::PJRT_FFI_Register_Handler_Args {
        struct_size: sys::PJRT_FFI_Register_Handler_Args::STRUCT_SIZE,
        target_name: name.as_ptr().cast(),
        target_name_size: name.len(),
        handler: handler as *mut _,
        platform_name: platform.as_ptr().cast(),
        platform_name_size: platform.len(),
        traits: sys::PJRT_FFI_Handler_TraitsBits(traits),
    };
    // SAFETY: the engine copies the names; the handler is a function of the caller's.
    unsafe { EngineError::check(engine, register(&raw mut args)) }
}

/// Answers the engine's question with the engine's own version, and keeps the table.
unsafe extern "C-unwind" fn probe(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the engine calls with a frame of its own; the table lives as long as the engine.
    unsafe {
        if let Some(metadata) = metadata_of(frame) {
            let api = (*frame).api;
            SEEN.store(api.cast_mut(), Ordering::Release);
            (*metadata).api_version.major_version = (*api).api_version.major_version;
            (*metadata).api_version.minor_version = (*api).api_version.minor_version;
        }
    }
    ptr::null_mut()
}

/// The metadata that a call asks for; `None` when it is a call to do something.
///
/// # Safety
/// `frame` must be a call frame.
#[inline]
pub unsafe fn metadata_of(frame: *mut sys::XLA_FFI_CallFrame) -> Option<*mut sys::XLA_FFI_Metadata> {
    // SAFETY: the caller's promise; a chain's links begin with the base.
    unsafe {
        let mut next = (*frame).extension_start;
        while !next.is_null() {
            if (*next).type_ == sys::XLA_FFI_Extension_Metadata {
                return Some((*next.cast::<sys::XLA_FFI_Metadata_Extension>()).metadata);
            }
            next = (*next).next;
        }
    }
    None
}

impl Table {
    /// The table of `engine`, learnt by registering the probe for `platform`; `None` when the engine did not call it.
    ///
    /// # Errors
    /// The engine's, when it reports that it refuses the probe.
    pub fn learn(engine: &'static Engine, platform: &str) -> Result<Option<Self>, EngineError> {
        register_plainly(engine, PROBE, platform, probe, 0)?;
        let raw = SEEN.load(Ordering::Acquire).cast_const();
        if raw.is_null() {
            return Ok(None);
        }
        let mut functions = sys::XLA_FFI_Api_V05::default();
        // SAFETY: the engine's table begins with its size; ours is at least that many bytes or cut off.
        unsafe {
            let length = ptr::read(raw.cast::<usize>()).min(size_of_val(&functions));
            ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut functions).cast(), length);
        }
        let base = &functions.base;
        let usable = base.XLA_FFI_Error_Create.is_some()
            && base.XLA_FFI_Error_GetMessage.is_some()
            && base.XLA_FFI_Error_Destroy.is_some()
            && base.XLA_FFI_Handler_Register.is_some();
        Ok(usable.then_some(Self { functions, raw }))
    }

    /// The version of XLA FFI that the engine speaks: major, minor.
    pub fn version(&self) -> (i32, i32) {
        let version = self.functions.base.api_version;
        (version.major_version, version.minor_version)
    }

    /// The functions, `None` in slots that the engine lacks.
    pub fn functions(&self) -> &sys::XLA_FFI_Api_V05 {
        &self.functions
    }

    /// Asks a handler for its version, its traits and the type of its state, as the engine would.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the handler's own message.
    ///
    /// # Safety
    /// `handler` must be a handler of XLA FFI.
    pub unsafe fn describe(&self, handler: Handler) -> Result<sys::XLA_FFI_Metadata> {
        let mut metadata = sys::XLA_FFI_Metadata {
            struct_size: sys::XLA_FFI_Metadata::STRUCT_SIZE,
            api_version: sys::XLA_FFI_Api_Version {
                struct_size: sys::XLA_FFI_Api_Version::STRUCT_SIZE,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut extension = sys::XLA_FFI_Metadata_Extension {
            extension_base: sys::XLA_FFI_Extension_Base {
                struct_size: sys::XLA_FFI_Metadata_Extension::STRUCT_SIZE,
                type_: sys::XLA_FFI_Extension_Metadata,
                next: ptr::null_mut(),
            },
            metadata: &raw mut metadata,
        };
        let mut frame = sys::XLA_FFI_CallFrame {
            struct_size: sys::XLA_FFI_CallFrame::STRUCT_SIZE,
            extension_start: (&raw mut extension).cast(),
            api: self.raw,
            stage: sys::XLA_FFI_ExecutionStage_EXECUTE,
            args: sys::XLA_FFI_Args { struct_size: sys::XLA_FFI_Args::STRUCT_SIZE, ..Default::default() },
            rets: sys::XLA_FFI_Rets { struct_size: sys::XLA_FFI_Rets::STRUCT_SIZE, ..Default::default() },
            attrs: sys::XLA_FFI_Attrs { struct_size: sys::XLA_FFI_Attrs::STRUCT_SIZE, ..Default::default() },
            ..Default::default()
        };
        // SAFETY: the caller's promise; the frame is one for metadata, and outlives the call.
        unsafe { self.check(handler(&raw mut frame))? };
        Ok(metadata)
    }

    /// Registers the handlers of a custom call's stages.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the engine's message.
    ///
    /// # Safety
    /// The bundle's functions must be handlers of XLA FFI, for as long as the process lives.
    pub unsafe fn register_handler(
        &self,
        name: &str,
        platform: &str,
        bundle: sys::XLA_FFI_Handler_Bundle,
        traits: u32,
    ) -> Result<()> {
        let mut args = sys::XLA_FFI_Handler_Register_Args {
            struct_size: sys::XLA_FFI_Handler_Register_Args::STRUCT_SIZE,
            name: span(name),
            platform: span(platform),
            bundle,
            traits,
            ..Default::default()
        };
        let register = self.functions.base.XLA_FFI_Handler_Register.ok_or_else(|| lacks("XLA_FFI_Handler_Register"))?;
        // SAFETY: the engine copies the names; the handlers are the caller's promise.
        unsafe { self.check(register(&raw mut args)) }
    }

    /// Registers a type under `id`, or under an id that the engine chooses when it is 0; gives the id.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the engine's message, such as that the name has another id.
    ///
    /// # Safety
    /// `deleter` must be fit for the objects of the type, for as long as the process lives.
    pub unsafe fn register_type(&self, name: &str, id: i64, deleter: Deleter) -> Result<i64> {
        let mut type_id = sys::XLA_FFI_TypeId { type_id: id };
        let info =
            sys::XLA_FFI_TypeInfo { struct_size: sys::XLA_FFI_TypeInfo::STRUCT_SIZE, deleter, ..Default::default() };
        let mut args = sys::XLA_FFI_Type_Register_Args {
            struct_size: size_of::<sys::XLA_FFI_Type_Register_Args>(),
            name: span(name),
            type_id: &raw mut type_id,
            type_info: &raw const info,
            ..Default::default()
        };
        let register = self.functions.base.XLA_FFI_Type_Register.ok_or_else(|| lacks("XLA_FFI_Type_Register"))?;
        // SAFETY: the engine copies the name and the info.
        unsafe { self.check(register(&raw mut args))? };
        Ok(type_id.type_id)
    }

    /// An error of the engine's, for the handler that asks through XLA FFI; NULL in an engine that cannot make one.
    pub fn error(&self, code: sys::XLA_FFI_Error_Code, message: &str) -> *mut sys::XLA_FFI_Error {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        let mut args = sys::XLA_FFI_Error_Create_Args {
            struct_size: sys::XLA_FFI_Error_Create_Args::STRUCT_SIZE,
            message: message.as_ptr(),
            errc: code,
            ..Default::default()
        };
        // SAFETY: the engine copies the message.
        self.functions.base.XLA_FFI_Error_Create.map_or(ptr::null_mut(), |create| unsafe { create(&raw mut args) })
    }

    /// `Err` with the message of `error` if it is not NULL; destroys it.
    ///
    /// # Safety
    /// `error` must be NULL or an error of the engine that the caller owns.
    unsafe fn check(&self, error: *mut sys::XLA_FFI_Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let (_, message) = unsafe { self.take(error) };
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// What an error says, and its code if the engine tells that; destroys it.
    ///
    /// # Safety
    /// `error` must be an error of the engine that the caller owns.
    pub unsafe fn take(&self, error: *mut sys::XLA_FFI_Error) -> (Option<sys::XLA_FFI_Error_Code>, String) {
        // Engines from before 0.4 know the struct as far as the message, and read no more of it.
        let mut args = sys::XLA_FFI_Error_GetDetails_Args {
            struct_size: sys::XLA_FFI_Error_GetDetails_Args::STRUCT_SIZE,
            error,
            ..Default::default()
        };
        let mut destroy = sys::XLA_FFI_Error_Destroy_Args {
            struct_size: sys::XLA_FFI_Error_Destroy_Args::STRUCT_SIZE,
            error,
            ..Default::default()
        };
        let mut message = String::new();
        // SAFETY: the error is alive until it is destroyed, once; its message is a C string.
        unsafe {
            if let Some(get) = self.functions.base.XLA_FFI_Error_GetMessage {
                get((&raw mut args).cast());
                if !args.message.is_null() {
                    message = CStr::from_ptr(args.message).to_string_lossy().into_owned();
                }
            }
            if let Some(free) = self.functions.base.XLA_FFI_Error_Destroy {
                free(&raw mut destroy);
            }
        }
        // What is left as it was is no error's code.
        ((args.errc != sys::XLA_FFI_Error_Code_OK).then_some(args.errc), message)
    }
}

/// What frees an object of a type; `None` when nothing does.
pub type Deleter = Option<unsafe extern "C" fn(*mut std::ffi::c_void)>;

fn lacks(function: &str) -> Error {
    Error::unimplemented(format!("the engine's XLA FFI has no function {function}"))
}

fn span(text: &str) -> sys::XLA_FFI_ByteSpan {
    sys::XLA_FFI_ByteSpan { ptr: text.as_ptr().cast::<c_char>(), len: text.len() }
}
