//! The tables of functions that handlers call back with: one for each kind of handler, on any engine.
//!
//! ```text
//!  engine --metadata--> the handler's answer, its version lowered to the engine's
//!  engine --a call----> frame.api = a table from here --> handler
//!      --State_Set, State_Get--> states.rs, where they changed
//!      --Stream_Get, in jaxlib--> an error that jaxlib can read
//!      --what is missing------> the functions below
//!      --anything else--------> the engine
//! ```
//!
//! What changed over the versions is said in `pjrt_c_api/xla_ffi.h`. For a handler it is this:
//!
//! | the handler's version | calls | on an engine from before |
//! |---|---|---|
//! | 0.1, 0.2 | State_Set, State_Get with the old structs | |
//! | from 0.3 on | the same with new structs, which name a stage | states of the first stage alone, as on CPUs always |
//! | from 0.4 on | Error_GetDetails | it knows the message, and not the code: INTERNAL |
//! | from 0.4 on | FindExtension | there are no extensions |
//! | from 0.5 on | CustomOptions_Get | there are no options |
//!
//! A newer engine has all of that itself, but takes one form of the old structs for another. Every table is as long
//! as that of 0.5: a handler looks for the functions that it knows.

use std::ptr;

use once_cell::sync::OnceCell;

use crate::{
    engine::{
        Raw,
        ffi::{Asked, FfiError, FfiHandler, Functions, Table},
    },
    error::Result,
    handlers::ffi::{
        errors,
        states::{self, BOX_TYPE, STATES_CHANGED},
    },
    sys::{self, CStruct},
};

/// The newest minor version whose handlers can be adapted: that of jaxlib 0.12.
pub const NEWEST: i32 = 5;

/// The minor version whose errors show their code.
const DETAILS: i32 = 4;

/// The tables, over the functions of one engine.
pub struct Tables {
    engine: &'static Table,
    /// By [`Kind`]'s fields: the structs for states, then whether errors are taken apart.
    tables: [[Functions; 2]; 2],
}

/// There is one engine in the process, and so one of these.
static TABLES: OnceCell<Tables> = OnceCell::new();

/// What a handler's table depends on.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The minor version of XLA FFI that it was made for.
    pub minor: i32,
    /// It is jaxlib's own, which takes errors apart.
    pub in_jaxlib: bool,
}

impl Tables {
    /// The tables for handlers on this engine; `None` when this library does not know its major version.
    ///
    /// # Errors
    /// The engine's, when it refuses the type of the boxes; UNIMPLEMENTED when it has no functions for states.
    pub fn get(engine: &'static Table) -> Result<Option<&'static Self>> {
        if engine.version().0 != sys::XLA_FFI_API_MAJOR as i32 {
            return Ok(None);
        }
        TABLES.get_or_try_init(|| Self::over(engine)).map(Some)
    }

    fn over(engine: &'static Table) -> Result<Self> {
        states::over(engine)?;
        let minor = engine.version().1;
        let mut table = *engine.functions();
        table.base.struct_size = sys::XLA_FFI_Api_V05::STRUCT_SIZE;
        table.base.api_version.minor_version = minor.max(NEWEST);
        if minor < DETAILS {
            table.base.XLA_FFI_Error_GetMessage = Some(error_get_details);
        }
        table.XLA_FFI_InvokeContext_FindExtension.get_or_insert(find_extension);
        table.XLA_FFI_CustomOptions_Get.get_or_insert(custom_options);
        table.base.XLA_FFI_State_Set = Some(states::set);
        table.base.XLA_FFI_State_Get = Some(states::get);
        // Handlers that get this table call the two with the old structs.
        let mut old = table;
        old.base.XLA_FFI_State_Set = Some(states::old_set);
        old.base.XLA_FFI_State_Get = Some(states::old_get);
        let with_errors = |plain: sys::XLA_FFI_Api_V05| {
            let mut readable = plain;
            if readable.base.XLA_FFI_Stream_Get.is_some() {
                readable.base.XLA_FFI_Stream_Get = Some(stream_get);
            }
            [Functions(plain), Functions(readable)]
        };
        Ok(Self { engine, tables: [with_errors(old), with_errors(table)] })
    }

    /// The table for a handler of that kind.
    pub fn api(&self, kind: Kind) -> *const sys::XLA_FFI_Api {
        let of_version = &self.tables[usize::from(kind.minor >= STATES_CHANGED)];
        &raw const of_version[usize::from(kind.in_jaxlib)].0.base
    }

    /// Answers the engine's question for `handler`: with all that it says, but with a version that the engine takes.
    #[cold]
    pub fn answer(&self, handler: FfiHandler, asked: Asked<'_>) -> *mut sys::XLA_FFI_Error {
        let metadata = match self.engine.describe(handler) {
            Ok(metadata) => metadata,
            Err(error) => return self.engine.error(sys::XLA_FFI_Error_Code_INVALID_ARGUMENT, &error.message),
        };
        let mut version = metadata.api_version;
        version.minor_version = version.minor_version.min(self.engine.version().1);
        let has_state = metadata.state_type_id.type_id != 0;
        asked.answer(version, Some(metadata.traits), has_state.then_some(BOX_TYPE));
        ptr::null_mut()
    }

    /// The engine's error for a handler that threw.
    #[cold]
    pub fn failed(&self, message: &str) -> *mut sys::XLA_FFI_Error {
        self.engine.error(sys::XLA_FFI_Error_Code_UNKNOWN, message)
    }
}

/// The message by the engine's function; the code, which the engine cannot tell, as XLA's header has it by default.
unsafe extern "C" fn error_get_details(args: *mut sys::XLA_FFI_Error_GetMessage_Args) {
    let engines = TABLES.get().and_then(|tables| tables.engine.functions().base.XLA_FFI_Error_GetMessage);
    // SAFETY: a handler passes a valid struct, which begins with its size; the code is written only where it has one.
    unsafe {
        if (*args).struct_size >= sys::XLA_FFI_Error_GetDetails_Args::STRUCT_SIZE {
            (*args.cast::<sys::XLA_FFI_Error_GetDetails_Args>()).errc = sys::XLA_FFI_Error_Code_INTERNAL;
        }
        if let Some(get) = engines {
            get(args);
        }
    }
}

/// An older engine attaches no extensions.
unsafe extern "C" fn find_extension(
    args: *mut sys::XLA_FFI_InvokeContext_FindExtension_Args,
) -> *mut sys::XLA_FFI_Error {
    // SAFETY: a handler passes a valid struct of its version.
    unsafe { (*args).extension = ptr::null() };
    ptr::null_mut()
}

/// An empty dictionary, made when the first handler asks for one: its pointers are NULL.
static NO_OPTIONS: OnceCell<Raw<sys::XLA_FFI_Attrs>> = OnceCell::new();

/// An older engine takes no options.
unsafe extern "C" fn custom_options(args: *mut sys::XLA_FFI_CustomOptions_Get_Args) -> *mut sys::XLA_FFI_Error {
    let none = NO_OPTIONS.get_or_init(|| {
        let struct_size = sys::XLA_FFI_Attrs::STRUCT_SIZE;
        Raw(Box::leak(Box::new(sys::XLA_FFI_Attrs { struct_size, ..Default::default() })))
    });
    // SAFETY: a handler passes a valid struct of its version.
    unsafe { (*args).attrs = none.0 };
    ptr::null_mut()
}

/// The engine's stream, or why there is none, as an error that any Abseil can read.
unsafe extern "C" fn stream_get(args: *mut sys::XLA_FFI_Stream_Get_Args) -> *mut sys::XLA_FFI_Error {
    let engine = TABLES.get().map(|tables| tables.engine);
    let Some((engine, get)) = engine.and_then(|table| Some((table, table.functions().base.XLA_FFI_Stream_Get?))) else {
        return ptr::null_mut(); // not without an engine that has the function
    };
    // SAFETY: a handler passes a valid struct of its version; the error is a new one of the engine, and ours.
    let Err(error) = (unsafe { FfiError::check(engine, get(args)) }) else { return ptr::null_mut() };
    let (code, message) = error.end();
    // Before engines told, this was the one code that the function had.
    errors::readable(code.unwrap_or(sys::XLA_FFI_Error_Code_UNIMPLEMENTED), message)
}
