//! `GetPjrtApi`: the table of the engine behind, with a function of this library in each slot.

use std::{env, ffi::c_void, mem::offset_of, ptr, sync::OnceLock};

use crate::{error, seam, sys};

/// Names the engine behind.
const VARIABLE: &str = "FAULTY_ENGINE_BEHIND";

/// What every function of the table is, but the two that return nothing.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut sys::PJRT_Error;

/// As [`Function`]; an exception may pass.
type Unwinding = unsafe extern "C-unwind" fn(*mut c_void) -> *mut sys::PJRT_Error;

/// The first slot's offset in the table.
const FIRST: usize = offset_of!(sys::PJRT_Api, PJRT_Error_Destroy);

/// Slots that there are functions for; the table has fewer.
pub const SLOTS: usize = 160;

const _: () = assert!(sys::PJRT_API_FUNCTIONS <= SLOTS);

/// The number of a function's slot.
#[macro_export]
#[doc(hidden)]
macro_rules! slot {
    ($function:ident) => {
        $crate::table::number(::std::mem::offset_of!($crate::sys::PJRT_Api, $function))
    };
}

/// The number of the slot at this offset.
pub const fn number(offset: usize) -> usize {
    (offset - FIRST) / size_of::<usize>()
}

/// The function in slot `SLOT`.
unsafe extern "C-unwind" fn call<const SLOT: usize>(args: *mut c_void) -> *mut sys::PJRT_Error {
    // SAFETY: the caller passes the struct of the function in this slot, as the C API asks.
    unsafe { seam::cross(SLOT, args) }
}

macro_rules! calls {
    ($($row:literal)*) => {
        [$(
            call::<{ 16 * $row }>, call::<{ 16 * $row + 1 }>, call::<{ 16 * $row + 2 }>, call::<{ 16 * $row + 3 }>,
            call::<{ 16 * $row + 4 }>, call::<{ 16 * $row + 5 }>, call::<{ 16 * $row + 6 }>, call::<{ 16 * $row + 7 }>,
            call::<{ 16 * $row + 8 }>, call::<{ 16 * $row + 9 }>, call::<{ 16 * $row + 10 }>, call::<{ 16 * $row + 11 }>,
            call::<{ 16 * $row + 12 }>, call::<{ 16 * $row + 13 }>, call::<{ 16 * $row + 14 }>, call::<{ 16 * $row + 15 }>,
        )*]
    };
}

static CALLS: [Unwinding; SLOTS] = calls!(0 1 2 3 4 5 6 7 8 9);

/// The engine behind, never unloaded, and the table that is shown instead of its own.
pub struct Tables {
    engine: sys::PJRT_Api,
    shown: Padded,
}

/// Words of zero behind the table: frameworks probe for newer functions by NULL without looking at the size first.
#[repr(C)]
struct Padded {
    api: sys::PJRT_Api,
    padding: [usize; 64],
}

// SAFETY: written once, before it is shared; functions of the C API may be called on any thread.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

static TABLES: OnceLock<Result<Tables, String>> = OnceLock::new();

/// The plugin's function table; NULL where there is no engine behind, which is said on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const sys::PJRT_Api {
    match TABLES.get_or_init(Tables::load) {
        Ok(tables) => &raw const tables.shown.api,
        Err(error) => {
            eprintln!("{error}");
            ptr::null()
        }
    }
}

/// The engine's function in this slot.
///
/// # Panics
/// Where it has none: then nobody can call it here either.
pub fn behind(slot: usize) -> Function {
    let tables = TABLES.get().and_then(|tables| tables.as_ref().ok()).expect("a function of the table was called");
    tables.slot(slot).expect("the table shows what the engine has")
}

/// Whether the engine has a function in this slot.
pub fn has(slot: usize) -> bool {
    TABLES.get().and_then(|tables| tables.as_ref().ok()).is_some_and(|tables| tables.slot(slot).is_some())
}

impl Tables {
    fn load() -> Result<Self, String> {
        let path = env::var_os(VARIABLE).ok_or_else(|| format!("{VARIABLE} names no engine"))?;
        let failed = |why: &dyn std::fmt::Display| format!("the engine {} cannot be used: {why}", path.display());
        // SAFETY: loading runs the library's initialisers; the test named it as a PJRT plugin.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| failed(&error))?;
        // SAFETY: the symbol has this type in every PJRT plugin.
        let get = unsafe { library.get::<unsafe extern "C" fn() -> *const sys::PJRT_Api>(b"GetPjrtApi\0") }
            .map_err(|error| failed(&error))?;
        // SAFETY: it takes nothing, and gives the plugin's static table.
        let table = unsafe { get() };
        std::mem::forget(library);
        if table.is_null() {
            return Err(failed(&"it gave no function table"));
        }
        let mut engine = sys::PJRT_Api::default();
        // SAFETY: a table is as long as its first word says, and the copy is cut at ours.
        let size = unsafe {
            let size = table.cast::<usize>().read().min(sys::PJRT_Api_STRUCT_SIZE as usize);
            ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut engine).cast(), size);
            size
        };
        engine.struct_size = size;
        let mut tables = Self { engine, shown: Padded { api: engine, padding: [0; 64] } };
        for (slot, &function) in CALLS.iter().enumerate().take((size - FIRST) / size_of::<usize>()) {
            if tables.slot(slot).is_some() {
                // SAFETY: the slot lies in the table, and holds such a function; that one may unwind is what the
                // table's type does not say.
                unsafe { (&raw mut tables.shown.api).byte_add(FIRST).cast::<Unwinding>().add(slot).write(function) };
            }
        }
        tables.shown.api.PJRT_Error_Destroy = Some(error::error_destroy);
        tables.shown.api.PJRT_Error_Message = Some(error::error_message);
        Ok(tables)
    }

    fn slot(&self, slot: usize) -> Option<Function> {
        if slot >= sys::PJRT_API_FUNCTIONS {
            return None;
        }
        // SAFETY: the slot lies in our full-size copy, and holds a nullable function pointer.
        unsafe { (&raw const self.engine).byte_add(FIRST).cast::<Option<Function>>().add(slot).read() }
    }
}
