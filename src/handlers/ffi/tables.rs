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

use std::{mem, ptr};

use once_cell::sync::OnceCell;

use crate::{
    engine::{abi::Handler, ffi::Table},
    error::Result,
    handlers::ffi::{
        errors,
        states::{self, BOX_TYPE, Platform, STATES_CHANGED},
    },
    sys::{self, CStruct},
};

/// The newest minor version whose handlers can be adapted: that of jaxlib 0.12.
pub const NEWEST: i32 = 5;

/// The minor version whose errors show their code.
const DETAILS: i32 = 4;

type Function<A> = unsafe extern "C" fn(*mut A) -> *mut sys::XLA_FFI_Error;

/// The tables, over the functions of one engine.
pub struct Tables {
    engine: &'static Table,
    /// By [`Kind`]'s fields: the structs for states, then whether errors are taken apart.
    tables: [[sys::XLA_FFI_Api_V05; 2]; 2],
}

// SAFETY: the tables are written once, before the value is shared; their functions may be called from any thread.
unsafe impl Send for Tables {}
// SAFETY: the tables are never written once the value is shared; their functions may be called by several threads at
// once.
unsafe impl Sync for Tables {}

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
    /// The tables for handlers on this engine, which computes on `platform`; `None` when this library does not know
    /// its major version.
    ///
    /// # Errors
    /// The engine's, when it refuses the type of the boxes; UNIMPLEMENTED when it has no functions for states.
    pub fn get(engine: &'static Table, platform: Platform) -> Result<Option<&'static Self>> {
        if engine.version().0 != sys::XLA_FFI_API_MAJOR as i32 {
            return Ok(None);
        }
        TABLES.get_or_try_init(|| Self::over(engine, platform)).map(Some)
    }

    fn over(engine: &'static Table, platform: Platform) -> Result<Self> {
        states::over(engine, platform)?;
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
        let mut old = table;
        // SAFETY: the functions differ in the struct alone, and handlers that get this table call them with the old
        // structs.
        unsafe {
            type Set = Function<sys::XLA_FFI_State_Set_Args_V02>;
            type Get = Function<sys::XLA_FFI_State_Get_Args_V02>;
            old.base.XLA_FFI_State_Set = Some(mem::transmute::<Set, Function<_>>(states::old_set));
            old.base.XLA_FFI_State_Get = Some(mem::transmute::<Get, Function<_>>(states::old_get));
        }
        let with_errors = |plain: sys::XLA_FFI_Api_V05| {
            let mut readable = plain;
            if readable.base.XLA_FFI_Stream_Get.is_some() {
                readable.base.XLA_FFI_Stream_Get = Some(stream_get);
            }
            [plain, readable]
        };
        Ok(Self { engine, tables: [with_errors(old), with_errors(table)] })
    }

    /// The table for a handler of that kind.
    pub fn api(&self, kind: Kind) -> *const sys::XLA_FFI_Api {
        let of_version = &self.tables[usize::from(kind.minor >= STATES_CHANGED)];
        &raw const of_version[usize::from(kind.in_jaxlib)].base
    }

    /// Answers the engine's question for `handler`: with all that it says, but with a version that the engine takes.
    ///
    /// # Safety
    /// `asked` must be the engine's struct, `handler` a handler of a version that this library knows.
    #[cold]
    pub unsafe fn answer(&self, handler: Handler, asked: *mut sys::XLA_FFI_Metadata) -> *mut sys::XLA_FFI_Error {
        // SAFETY: the function is a handler of a known version, as this function asks.
        let metadata = match unsafe { self.engine.describe(handler) } {
            Ok(metadata) => metadata,
            Err(error) => return self.engine.error(sys::XLA_FFI_Error_Code_INVALID_ARGUMENT, &error.message),
        };
        // SAFETY: the struct is the engine's, as this function asks, and may be written.
        unsafe {
            (*asked).api_version.major_version = metadata.api_version.major_version;
            (*asked).api_version.minor_version = metadata.api_version.minor_version.min(self.engine.version().1);
            (*asked).traits = metadata.traits;
            if metadata.state_type_id.type_id != 0 {
                (*asked).state_type_id.type_id = BOX_TYPE;
            }
        }
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

/// An empty dictionary, to be read from any thread.
struct NoOptions(sys::XLA_FFI_Attrs);

// SAFETY: constant, and its pointers are NULL.
unsafe impl Sync for NoOptions {}

static NO_OPTIONS: NoOptions = NoOptions(sys::XLA_FFI_Attrs {
    struct_size: sys::XLA_FFI_Attrs::STRUCT_SIZE,
    extension_start: ptr::null_mut(),
    size: 0,
    types: ptr::null_mut(),
    names: ptr::null_mut(),
    attrs: ptr::null_mut(),
});

/// An older engine takes no options.
unsafe extern "C" fn custom_options(args: *mut sys::XLA_FFI_CustomOptions_Get_Args) -> *mut sys::XLA_FFI_Error {
    // SAFETY: a handler passes a valid struct of its version.
    unsafe { (*args).attrs = &raw const NO_OPTIONS.0 };
    ptr::null_mut()
}

/// The engine's stream, or why there is none, as an error that any Abseil can read.
unsafe extern "C" fn stream_get(args: *mut sys::XLA_FFI_Stream_Get_Args) -> *mut sys::XLA_FFI_Error {
    let engine = TABLES.get().map(|tables| tables.engine);
    let Some((engine, get)) = engine.and_then(|table| Some((table, table.functions().base.XLA_FFI_Stream_Get?))) else {
        return ptr::null_mut(); // not without an engine that has the function
    };
    // SAFETY: a handler passes a valid struct of its version.
    let error = unsafe { get(args) };
    if error.is_null() {
        return error;
    }
    // SAFETY: the error is a new one of the engine, and is taken once.
    let (code, message) = unsafe { engine.take(error) };
    // Before engines told, this was the one code that the function had.
    errors::readable(code.unwrap_or(sys::XLA_FFI_Error_Code_UNIMPLEMENTED), message)
}
