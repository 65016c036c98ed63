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
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    engine::{Engine, EngineError, Raw, abi::Handler},
    error::{Code, Error, Result},
    sys::{self, CStruct},
};

/// What [`Table::learn`] registers.
const PROBE: &str = "pjrt_arena_probe";

/// The table that the probe was called with.
static SEEN: AtomicPtr<sys::XLA_FFI_Api> = AtomicPtr::new(ptr::null_mut());

/// What frees an object of a type; `None` when nothing does.
pub type Deleter = Option<unsafe extern "C" fn(*mut std::ffi::c_void)>;

/// A handler of XLA FFI that may be called, and registered, as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct FfiHandler(Handler);

impl FfiHandler {
    /// A handler that stays.
    ///
    /// # Safety
    /// The function is a handler of XLA FFI: it takes the engine's frames, those for metadata too, at any time.
    pub const unsafe fn new(handler: Handler) -> Self {
        Self(handler)
    }

    /// The function.
    pub fn function(self) -> Handler {
        self.0
    }

    /// Where its code is.
    pub fn address(self) -> usize {
        self.0 as usize
    }
}

/// The handlers of a custom call's stages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages<H = FfiHandler> {
    /// Of the stage instantiate.
    pub instantiate: Option<H>,
    /// Of the stage prepare.
    pub prepare: Option<H>,
    /// Of the stage initialize.
    pub initialize: Option<H>,
    /// Of the stage execute.
    pub execute: Option<H>,
}

impl<H: Copy> Stages<H> {
    /// Those that there are.
    pub fn iter(&self) -> impl Iterator<Item = H> {
        [self.instantiate, self.prepare, self.initialize, self.execute].into_iter().flatten()
    }

    /// Whether there is one before the stage execute, which may leave a state.
    pub fn is_stateful(&self) -> bool {
        self.instantiate.is_some() || self.prepare.is_some() || self.initialize.is_some()
    }

    /// Other handlers for the same stages.
    ///
    /// # Errors
    /// The first that `each` gives.
    pub fn try_map<G>(self, mut each: impl FnMut(H) -> Result<G>) -> Result<Stages<G>> {
        Ok(Stages {
            instantiate: self.instantiate.map(&mut each).transpose()?,
            prepare: self.prepare.map(&mut each).transpose()?,
            initialize: self.initialize.map(&mut each).transpose()?,
            execute: self.execute.map(&mut each).transpose()?,
        })
    }
}

/// The engine's functions of XLA FFI, as many as the newest version that is known here has; `None` in slots that the
/// engine's own, shorter table lacks.
#[derive(Clone, Copy)]
pub struct Functions(pub sys::XLA_FFI_Api_V05);

// SAFETY: the table's functions may be called from any thread, and its pointers are the engine's constants, which
// nothing here follows.
unsafe impl Send for Functions {}
// SAFETY: as above, by several threads at once too.
unsafe impl Sync for Functions {}

/// The engine's table of XLA FFI functions.
pub struct Table {
    functions: Functions,
    /// The engine's own.
    raw: Raw<sys::XLA_FFI_Api>,
}

/// The engine's FFI extension, as much of it as it has; `None` if it has none, or one that cannot register handlers.
pub fn extension(engine: &Engine) -> Option<sys::PJRT_FFI_Extension> {
    let mut extension = sys::PJRT_FFI_Extension::default();
    // SAFETY: the chain is the engine's, which is never unloaded. Every extension begins with the base and has
    // `struct_size` bytes, of which no more are read than ours has room for.
    unsafe {
        let mut next = engine.extensions();
        while next.as_ref()?.type_ != sys::PJRT_Extension_Type_FFI {
            next = (*next).next;
        }
        let length = (*next).struct_size.min(size_of_val(&extension));
        ptr::copy_nonoverlapping(next.cast::<u8>(), (&raw mut extension).cast(), length);
    }
    extension.register_handler.is_some().then_some(extension)
}

/// Registers an execute handler through the extension, as PJRT has it: a refusal may go unreported.
///
/// # Errors
/// The engine's; UNIMPLEMENTED when it has no such function.
pub fn register_plainly(
    engine: &'static Engine,
    name: &str,
    platform: &str,
    handler: FfiHandler,
    traits: u32,
) -> Result<(), EngineError> {
    let Some(register) = extension(engine).and_then(|extension| extension.register_handler) else {
        return Err(EngineError::missing(engine, "PJRT_FFI_Register_Handler"));
    };
    let mut args = sys::PJRT_FFI_Register_Handler_Args {
        struct_size: sys::PJRT_FFI_Register_Handler_Args::STRUCT_SIZE,
        target_name: name.as_ptr().cast(),
        target_name_size: name.len(),
        handler: handler.function() as *mut _,
        platform_name: platform.as_ptr().cast(),
        platform_name_size: platform.len(),
        traits: sys::PJRT_FFI_Handler_TraitsBits(traits),
    };
    // SAFETY: the struct is the function's; the names live during the call, which copies them, and the handler stays
    // (`FfiHandler`). The error is a new one, and ours.
    unsafe { EngineError::check(engine, register(&raw mut args)) }
}

/// Answers the engine's question with the engine's own version, and keeps the table.
///
/// # Safety
/// `frame` is what the engine passes to handlers.
unsafe extern "C-unwind" fn probe(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the engine calls with a frame of its own, which lives during the call; the table lives as long as the
    // engine, and begins with its size and its version.
    unsafe {
        if let Some(asked) = Asked::of(frame) {
            let api = (*frame).api;
            SEEN.store(api.cast_mut(), Ordering::Release);
            asked.answer((*api).api_version, None, None);
        }
    }
    ptr::null_mut()
}

/// The engine's question of a handler: which version of XLA FFI it speaks, what its traits are, and which type its
/// state has.
pub struct Asked<'a>(NonNull<sys::XLA_FFI_Metadata>, PhantomData<&'a mut sys::XLA_FFI_Metadata>);

impl Asked<'_> {
    /// The question that a call asks; `None` when it is a call to do something.
    ///
    /// # Safety
    /// `frame` must be a call frame, and live for the lifetime that the caller chooses.
    #[inline]
    pub unsafe fn of(frame: *mut sys::XLA_FFI_CallFrame) -> Option<Self> {
        // SAFETY: the frame is one, as this function asks; a chain's links begin with the base, and the one of this
        // type is the struct for metadata.
        unsafe {
            let mut next = (*frame).extension_start;
            while !next.is_null() {
                if (*next).type_ == sys::XLA_FFI_Extension_Metadata {
                    let metadata = (*next.cast::<sys::XLA_FFI_Metadata_Extension>()).metadata;
                    return NonNull::new(metadata).map(|metadata| Self(metadata, PhantomData));
                }
                next = (*next).next;
            }
        }
        None
    }

    /// Answers it. What is `None` stays as the engine has it.
    pub fn answer(self, version: sys::XLA_FFI_Api_Version, traits: Option<u32>, state_type: Option<i64>) {
        let metadata = self.0.as_ptr();
        // SAFETY: the metadata is the engine's, which lets the handler write it during the call (`of`). Who has a state
        // type is of a version of XLA FFI whose engines ask for it.
        unsafe {
            (*metadata).api_version.major_version = version.major_version;
            (*metadata).api_version.minor_version = version.minor_version;
            if let Some(traits) = traits {
                (*metadata).traits = traits;
            }
            if let Some(state_type) = state_type {
                (*metadata).state_type_id.type_id = state_type;
            }
        }
    }
}

/// An error of the engine's XLA FFI, owned.
#[must_use]
pub struct FfiError<'a> {
    table: &'a Table,
    error: NonNull<sys::XLA_FFI_Error>,
}

impl<'a> FfiError<'a> {
    /// `Err` with the error that a function returned.
    ///
    /// # Safety
    /// `error` must be NULL, or an error of `table`'s engine that the caller owns and gives up.
    pub unsafe fn check(table: &'a Table, error: *mut sys::XLA_FFI_Error) -> Result<(), Self> {
        NonNull::new(error).map_or(Ok(()), |error| Err(Self { table, error }))
    }

    /// What it says, and its code if the engine tells that; destroys it.
    pub fn end(self) -> (Option<sys::XLA_FFI_Error_Code>, String) {
        let error = self.error.as_ptr();
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
        let functions = &self.table.functions.0.base;
        let mut message = String::new();
        // SAFETY: the error is the engine's and alive until it is destroyed, once, because this value owned it; the
        // structs are the functions' own. Its message is a C string that lives as long as it, and is copied before.
        unsafe {
            if let Some(get) = functions.XLA_FFI_Error_GetMessage {
                get((&raw mut args).cast());
                if !args.message.is_null() {
                    message = CStr::from_ptr(args.message).to_string_lossy().into_owned();
                }
            }
            if let Some(free) = functions.XLA_FFI_Error_Destroy {
                free(&raw mut destroy);
            }
        }
        // What is left as it was is no error's code.
        ((args.errc != sys::XLA_FFI_Error_Code_OK).then_some(args.errc), message)
    }
}

/// INVALID_ARGUMENT with what it says.
impl From<FfiError<'_>> for Error {
    fn from(error: FfiError<'_>) -> Self {
        Self::new(Code::InvalidArgument, error.end().1)
    }
}

impl Table {
    /// The table of `engine`, learnt by registering the probe for `platform`; `None` when the engine did not call it.
    ///
    /// # Errors
    /// The engine's, when it reports that it refuses the probe.
    pub fn learn(engine: &'static Engine, platform: &str) -> Result<Option<Self>, EngineError> {
        // SAFETY: the probe is a handler, and this library is never unloaded.
        register_plainly(engine, PROBE, platform, unsafe { FfiHandler::new(probe) }, 0)?;
        let raw = SEEN.load(Ordering::Acquire);
        if raw.is_null() {
            return Ok(None);
        }
        let mut functions = sys::XLA_FFI_Api_V05::default();
        // SAFETY: the engine's table begins with its size, and is as long; no more of it is read than ours has room
        // for.
        unsafe {
            let length = ptr::read(raw.cast::<usize>()).min(size_of_val(&functions));
            ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut functions).cast(), length);
        }
        let base = &functions.base;
        let usable = base.XLA_FFI_Error_Create.is_some()
            && base.XLA_FFI_Error_GetMessage.is_some()
            && base.XLA_FFI_Error_Destroy.is_some()
            && base.XLA_FFI_Handler_Register.is_some();
        Ok(usable.then_some(Self { functions: Functions(functions), raw: Raw(raw) }))
    }

    /// The version of XLA FFI that the engine speaks: major, minor.
    pub fn version(&self) -> (i32, i32) {
        let version = self.functions.0.base.api_version;
        (version.major_version, version.minor_version)
    }

    /// The functions, `None` in slots that the engine lacks.
    pub fn functions(&self) -> &sys::XLA_FFI_Api_V05 {
        &self.functions.0
    }

    /// Asks a handler for its version, its traits and the type of its state, as the engine would.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the handler's own message.
    pub fn describe(&self, handler: FfiHandler) -> Result<sys::XLA_FFI_Metadata> {
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
            api: self.raw.0,
            stage: sys::XLA_FFI_ExecutionStage_EXECUTE,
            args: sys::XLA_FFI_Args { struct_size: sys::XLA_FFI_Args::STRUCT_SIZE, ..Default::default() },
            rets: sys::XLA_FFI_Rets { struct_size: sys::XLA_FFI_Rets::STRUCT_SIZE, ..Default::default() },
            attrs: sys::XLA_FFI_Attrs { struct_size: sys::XLA_FFI_Attrs::STRUCT_SIZE, ..Default::default() },
            ..Default::default()
        };
        // SAFETY: the handler stays (`FfiHandler`). The frame is one for metadata with the engine's own table, and
        // outlives the call; what the handler returns is an error that it made with that table, and ours.
        unsafe { FfiError::check(self, handler.function()(&raw mut frame)) }?;
        Ok(metadata)
    }

    /// Registers the handlers of a custom call's stages.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the engine's message.
    pub fn register_handlers(&self, name: &str, platform: &str, stages: Stages, traits: u32) -> Result<()> {
        let mut args = sys::XLA_FFI_Handler_Register_Args {
            struct_size: sys::XLA_FFI_Handler_Register_Args::STRUCT_SIZE,
            name: span(name),
            platform: span(platform),
            bundle: sys::XLA_FFI_Handler_Bundle {
                instantiate: stages.instantiate.map(FfiHandler::function),
                prepare: stages.prepare.map(FfiHandler::function),
                initialize: stages.initialize.map(FfiHandler::function),
                execute: stages.execute.map(FfiHandler::function),
            },
            traits,
            ..Default::default()
        };
        let register =
            self.functions.0.base.XLA_FFI_Handler_Register.ok_or_else(|| lacks("XLA_FFI_Handler_Register"))?;
        // SAFETY: the struct is the function's; the names live during the call, which copies them, and the handlers
        // stay (`FfiHandler`). The error is a new one, and ours.
        Ok(unsafe { FfiError::check(self, register(&raw mut args)) }?)
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
        let register = self.functions.0.base.XLA_FFI_Type_Register.ok_or_else(|| lacks("XLA_FFI_Type_Register"))?;
        // SAFETY: the struct is the function's; name and info live during the call, which copies them, and the deleter
        // fits the type, as this function asks. The error is a new one, and ours.
        unsafe { FfiError::check(self, register(&raw mut args)) }?;
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
        // SAFETY: the struct is the function's, and the message lives during the call, which copies it.
        self.functions.0.base.XLA_FFI_Error_Create.map_or(ptr::null_mut(), |create| unsafe { create(&raw mut args) })
    }
}

fn lacks(function: &str) -> Error {
    Error::unimplemented(format!("the engine's XLA FFI has no function {function}"))
}

fn span(text: &str) -> sys::XLA_FFI_ByteSpan {
    sys::XLA_FFI_ByteSpan { ptr: text.as_ptr().cast::<c_char>(), len: text.len() }
}
