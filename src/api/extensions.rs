//! The engine's extensions, rebuilt: in extensions whose functions take handles of pjrt-arena, those functions are
//! replaced.
//!
//! Each extension is copied with the engine's own length, so that versions shorter or longer than this library's
//! work; slots are replaced only inside that length. Words of zero follow a copy, as they follow the table: a
//! framework that asks for a newer function without looking at the size reads NULL. An extension that is unknown here
//! is left out: it may take a `PJRT_Buffer`.

use std::{ffi::c_void, mem::offset_of, path::Path, ptr};

use crate::{
    api::{
        call::{Call, Forward, Sending},
        entry::{Entry, PADDING, entry},
        partitioners, profiler,
    },
    engine::{
        Engine, Outcome,
        extensions::{Extensions, call},
    },
    runtime::executable::registry::EXECUTABLES,
    sys,
};

/// Bytes of what an extension is made of: sizes, pointers and functions.
const WORD: usize = size_of::<*mut c_void>();

/// A function of an extension.
type Function<A> = unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error;

/// What happens to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its functions take no handle of pjrt-arena.
    Pass,
    /// Some of its functions take handles of pjrt-arena.
    Patch,
    /// It takes `PJRT_Buffer`s in ways that this library does not serve; frameworks then do without it.
    Drop,
}

fn fate(kind: sys::PJRT_Extension_Type) -> Fate {
    match kind {
        sys::PJRT_Extension_Type_Layouts
        | sys::PJRT_Extension_Type_Stream
        | sys::PJRT_Extension_Type_FFI
        | sys::PJRT_Extension_Type_Shardings => Fate::Patch,
        sys::PJRT_Extension_Type_Gpu_Custom_Call
        | sys::PJRT_Extension_Type_Profiler
        | sys::PJRT_Extension_Type_Custom_Partitioner
        | sys::PJRT_Extension_Type_MemoryDescriptions
        | sys::PJRT_Extension_Type_Triton
        | sys::PJRT_Extension_Type_PhaseCompile
        | sys::PJRT_Extension_Type_ExecutableMetadata
        | sys::PJRT_Extension_Type_Callback
        | sys::PJRT_Extension_Type_HostAllocator
        | sys::PJRT_Extension_Type_TpuTopology
        | sys::PJRT_Extension_Type_TpuExecutable
        | sys::PJRT_Extension_Type_Megascale
        | sys::PJRT_Extension_Type_AbiVersion
        | sys::PJRT_Extension_Type_Collectives
        | sys::PJRT_Extension_Type_MultiSlice
        | sys::PJRT_Extension_Type_HostMemoryAllocator
        | sys::PJRT_Extension_Type_XlaTransform => Fate::Pass,
        // RawBuffer, CrossHostTransfers, and whatever is newer than this table.
        _ => Fate::Drop,
    }
}

/// Builds the chain of extensions from the engine's. The copies live until the process ends, like the engine itself.
pub fn rebuild(engine: &'static Engine) -> *mut sys::PJRT_Extension_Base {
    let mut chain: Vec<(sys::PJRT_Extension_Type, Vec<*mut c_void>)> = Vec::new();
    let mut next = engine.extensions();
    while !next.is_null() {
        // SAFETY: the pointer is not NULL, so it is an extension of the engine, which lives as long as the process;
        // each begins with the base and has `struct_size` bytes. The new copy has room for them, and does not overlap
        // them; any bytes make a pointer.
        let (base, mut words) = unsafe {
            let base = *next;
            let mut words: Vec<*mut c_void> = vec![ptr::null_mut(); base.struct_size.div_ceil(WORD) + PADDING];
            ptr::copy_nonoverlapping(next.cast::<u8>(), words.as_mut_ptr().cast(), base.struct_size);
            (base, words)
        };
        let fate = match fate(base.type_) {
            Fate::Pass if base.type_ == sys::PJRT_Extension_Type_Profiler && is_plugin_of_jax(engine) => Fate::Drop,
            fate => fate,
        };
        if fate == Fate::Drop || base.struct_size < size_of::<sys::PJRT_Extension_Base>() {
            log::debug!("extension {} of the engine is left out", base.type_.0);
        } else {
            if fate == Fate::Patch {
                patch(&mut words, base);
            }
            chain.push((base.type_, words));
        }
        next = base.next;
    }
    let lacks = |wanted| !chain.iter().any(|&(kind, _)| kind == wanted);
    let mut head: *mut sys::PJRT_Extension_Base = ptr::null_mut();
    if lacks(sys::PJRT_Extension_Type_Custom_Partitioner) {
        head = partitioners::extension(head);
    }
    // A trace takes one of a library.
    if lacks(sys::PJRT_Extension_Type_Profiler) {
        head = profiler::extension(head);
    }
    for (_, mut words) in chain.into_iter().rev() {
        words[offset_of!(sys::PJRT_Extension_Base, next) / WORD] = head.cast();
        head = words.leak().as_mut_ptr().cast();
    }
    head
}

/// Whether JAX loads the engine as a plugin of its own as well, as it does with all that lie in its namespace package. Its
/// profiler is JAX's then: it has one session at a time, and a second one, by our table, is an error (XLA's
/// `ProfilerSession`: "Another profiling session active").
fn is_plugin_of_jax(engine: &Engine) -> bool {
    engine.path().ancestors().nth(2).and_then(Path::file_name).is_some_and(|folder| folder == "jax_plugins")
}

/// Replaces the functions in the slots that the extension, which begins with `base`, is long enough to have.
fn patch(words: &mut [*mut c_void], base: sys::PJRT_Extension_Base) {
    macro_rules! replace {
        ($table:ident, $($slot:ident => $args:ident),*) => {{
            $(
                let _of_that_type: fn(sys::$table) -> Option<Function<sys::$args>> = |table| table.$slot;
                let at = offset_of!(sys::$table, $slot);
                // A slot that the engine left empty stays so.
                if base.struct_size >= at + WORD && !words[at / WORD].is_null() {
                    words[at / WORD] = entry::<sys::$args> as Function<sys::$args> as *mut c_void;
                }
            )*
        }};
    }
    match base.type_ {
        sys::PJRT_Extension_Type_Layouts => replace!(PJRT_Layouts_Extension,
            PJRT_Layouts_MemoryLayout_Destroy => PJRT_Layouts_MemoryLayout_Destroy_Args,
            PJRT_Layouts_MemoryLayout_Serialize => PJRT_Layouts_MemoryLayout_Serialize_Args,
            PJRT_Layouts_PJRT_Buffer_MemoryLayout => PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args,
            PJRT_Layouts_PJRT_Executable_GetParameterLayouts =>
                PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args),
        sys::PJRT_Extension_Type_Stream => replace!(PJRT_Stream_Extension,
            wait_stream => PJRT_Wait_Until_Buffer_Ready_On_Stream_Args),
        sys::PJRT_Extension_Type_FFI => replace!(PJRT_FFI_Extension,
            type_register => PJRT_FFI_Type_Register_Args,
            user_data_add => PJRT_FFI_UserData_Add_Args,
            register_handler => PJRT_FFI_Register_Handler_Args),
        sys::PJRT_Extension_Type_Shardings => replace!(PJRT_Shardings_Extension,
            PJRT_Shardings_PJRT_Executable_ParameterShardings =>
                PJRT_Shardings_PJRT_Executable_ParameterShardings_Args),
        _ => {}
    }
}

macro_rules! originals {
    ($($args:ident: $extension:ident.$function:ident;)*) => {$(
        impl Forward for sys::$args {
            fn send(sending: Sending<Self>) -> Outcome<Self> {
                let (args, engine) = sending.into_parts();
                // SAFETY: the struct satisfies its function's contract, with handles of this engine, and is sent once.
                unsafe { call(engine, Extensions::of(engine).$extension.$function, args) }
            }
        }
    )*};
}

originals! {
    PJRT_Layouts_MemoryLayout_Destroy_Args: layouts.PJRT_Layouts_MemoryLayout_Destroy;
    PJRT_Layouts_MemoryLayout_Serialize_Args: layouts.PJRT_Layouts_MemoryLayout_Serialize;
    PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args: layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout;
    PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args: layouts.PJRT_Layouts_PJRT_Executable_GetParameterLayouts;
    PJRT_Shardings_PJRT_Executable_ParameterShardings_Args: shardings.PJRT_Shardings_PJRT_Executable_ParameterShardings;
    PJRT_Wait_Until_Buffer_Ready_On_Stream_Args: stream.wait_stream;
    PJRT_FFI_Type_Register_Args: ffi.type_register;
}

macro_rules! of_parameters {
    ($($args:ident)*) => {$(
        impl Entry for sys::$args {
            fn run(call: Call<'_, Self>) -> Outcome {
                call.required(call.executable, "executable")?;
                let (theirs, out) = call.forward();
                *out = theirs?;
                if let Some(program) = EXECUTABLES.get(out.executable) {
                    out.num_parameters = program.visible(out.num_parameters);
                }
                Ok(())
            }
        }
    )*};
}

of_parameters! {
    PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args
    PJRT_Shardings_PJRT_Executable_ParameterShardings_Args
}

impl Entry for sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.forward_for(&buffer.hold()?).map(drop)
    }
}
