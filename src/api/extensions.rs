//! The engine's extensions, rebuilt: those whose functions take handles of ours get functions of ours in those slots.
//!
//! Each extension is copied as long as the engine's own is, so that versions shorter or longer than ours work; slots
//! are replaced only inside that length. Behind a copy lie words of zero, as behind the table: a framework that asks for
//! a newer function without looking at the size reads NULL. An extension that is unknown here is left out: it may take a
//! `PJRT_Buffer`.

use std::{ffi::c_void, mem::offset_of, ptr};

use once_cell::sync::OnceCell;

use crate::{
    api::{
        entry::{Entry, entry},
        profiler,
        table::PADDING,
    },
    engine::{Engine, Outcome, failure::required, library::Function, set_struct_size},
    error::Error,
    runtime::{buffer::Buffer, callbacks::partitioners, executable::registry::EXECUTABLES, execute::context::Context},
    sys::{self, CStruct},
};

/// What happens to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its functions take nothing of ours.
    Pass,
    /// Some of its functions take handles of ours.
    Patch,
    /// It takes `PJRT_Buffer`s in ways that we do not serve; frameworks then do without it.
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

/// The engine's own functions in the slots that we replace.
struct Originals {
    engine: &'static Engine,
    layouts: sys::PJRT_Layouts_Extension,
    stream: sys::PJRT_Stream_Extension,
    ffi: sys::PJRT_FFI_Extension,
    shardings: sys::PJRT_Shardings_Extension,
}

// SAFETY: function tables, written once.
unsafe impl Send for Originals {}
// SAFETY: as above.
unsafe impl Sync for Originals {}

static ORIGINALS: OnceCell<Originals> = OnceCell::new();

fn originals() -> Outcome<&'static Originals> {
    Ok(ORIGINALS.get().ok_or_else(|| Error::internal("an extension is called before the plugin is loaded"))?)
}

/// Builds our chain from the engine's. The copies live until the process ends, like the engine itself.
pub fn rebuild(engine: &'static Engine) -> *mut sys::PJRT_Extension_Base {
    let mut originals = Originals {
        engine,
        layouts: Default::default(),
        stream: Default::default(),
        ffi: Default::default(),
        shardings: Default::default(),
    };
    let mut chain: Vec<*mut sys::PJRT_Extension_Base> = Vec::new();
    let mut next = engine.extensions();
    while !next.is_null() {
        // SAFETY: every extension begins with the base.
        let base = unsafe { *next };
        let fate = fate(base.type_);
        if fate == Fate::Drop || base.struct_size < size_of::<sys::PJRT_Extension_Base>() {
            log::debug!("extension {} of the engine is left out", base.type_.0);
        } else {
            let words = vec![0_u64; base.struct_size.div_ceil(size_of::<u64>()) + PADDING];
            let copy: *mut sys::PJRT_Extension_Base = words.leak().as_mut_ptr().cast();
            // SAFETY: the engine's extension has `struct_size` bytes, the copy has room for them.
            unsafe { ptr::copy_nonoverlapping(next.cast::<u8>(), copy.cast(), base.struct_size) };
            if fate == Fate::Patch {
                // SAFETY: the copy is of that type and size.
                unsafe { patch(copy, base, &mut originals) };
            }
            chain.push(copy);
        }
        next = base.next;
    }
    // An engine of a real device has a profiler of its own; a trace has room for one.
    // SAFETY: the copies are ours and begin with the base.
    if !chain.iter().any(|&copy| unsafe { (*copy).type_ } == sys::PJRT_Extension_Type_Profiler) {
        chain.push(profiler::extension());
    }
    // SAFETY: as above.
    if !chain.iter().any(|&copy| unsafe { (*copy).type_ } == sys::PJRT_Extension_Type_Custom_Partitioner) {
        chain.push(partitioners::extension());
    }
    // A second table would find the same engine.
    let _ = ORIGINALS.set(originals);
    let mut head = ptr::null_mut();
    for &extension in chain.iter().rev() {
        // SAFETY: the copies are ours and begin with the base.
        unsafe { (*extension).next = head };
        head = extension;
    }
    head
}

/// Keeps the engine's functions, and puts ours into the slots that the extension is long enough to have.
///
/// # Safety
/// `copy` must point to `base.struct_size` writable bytes of an extension of type `base.type_`.
unsafe fn patch(copy: *mut sys::PJRT_Extension_Base, base: sys::PJRT_Extension_Base, originals: &mut Originals) {
    macro_rules! replace {
        ($kept:ident: $table:ident, $($slot:ident => $args:ident),*) => {{
            // SAFETY: as much as both have is copied.
            unsafe {
                ptr::copy_nonoverlapping(
                    copy.cast::<u8>(),
                    (&raw mut originals.$kept).cast(),
                    base.struct_size.min(size_of::<sys::$table>()),
                );
            }
            $(
                if base.struct_size >= offset_of!(sys::$table, $slot) + size_of::<usize>() {
                    // A slot that the engine left empty stays so.
                    let ours = originals.$kept.$slot.is_some();
                    // SAFETY: the slot lies within the extension.
                    unsafe { (*copy.cast::<sys::$table>()).$slot = ours.then_some(entry::<sys::$args>) };
                }
            )*
        }};
    }
    match base.type_ {
        sys::PJRT_Extension_Type_Layouts => replace!(layouts: PJRT_Layouts_Extension,
            PJRT_Layouts_PJRT_Buffer_MemoryLayout => PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args,
            PJRT_Layouts_PJRT_Executable_GetParameterLayouts =>
                PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args),
        sys::PJRT_Extension_Type_Stream => replace!(stream: PJRT_Stream_Extension,
            wait_stream => PJRT_Wait_Until_Buffer_Ready_On_Stream_Args),
        sys::PJRT_Extension_Type_FFI => replace!(ffi: PJRT_FFI_Extension,
            type_register => PJRT_FFI_Type_Register_Args,
            user_data_add => PJRT_FFI_UserData_Add_Args,
            register_handler => PJRT_FFI_Register_Handler_Args),
        sys::PJRT_Extension_Type_Shardings => replace!(shardings: PJRT_Shardings_Extension,
            PJRT_Shardings_PJRT_Executable_ParameterShardings =>
                PJRT_Shardings_PJRT_Executable_ParameterShardings_Args),
        _ => {}
    }
}

/// Calls a function of one of the engine's extensions.
///
/// # Safety
/// The struct must satisfy the function's contract.
unsafe fn call<A: CStruct>(
    engine: &'static Engine,
    function: Option<unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error>,
    mut args: A,
) -> Outcome<A> {
    let function =
        function.ok_or_else(|| Error::unimplemented(format!("the engine has no function for {}", A::NAME)))?;
    set_struct_size(&mut args, A::STRUCT_SIZE);
    // SAFETY: the caller's promise; functions of a table differ only in the struct that their one pointer is to.
    unsafe {
        let function: Function = std::mem::transmute(function);
        engine.invoke(&raw mut args, function)?;
    }
    Ok(args)
}

impl Entry for sys::PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
    unsafe fn run(&mut self) -> Outcome {
        let originals = originals()?;
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        unsafe {
            let buffer = Buffer::borrow(self.buffer, "PJRT_Layouts_PJRT_Buffer_MemoryLayout")?;
            let args = call(
                originals.engine,
                originals.layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout,
                Self { buffer: buffer.hold()?.handle(), ..*self },
            )?;
            self.layout = args.layout;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args {
    unsafe fn run(&mut self) -> Outcome {
        let originals = originals()?;
        required(self.executable, "PJRT_Layouts_PJRT_Executable_GetParameterLayouts", "executable")?;
        let function = originals.layouts.PJRT_Layouts_PJRT_Executable_GetParameterLayouts;
        // SAFETY: the caller's promise, handed on as it is.
        *self = unsafe { call(originals.engine, function, *self)? };
        if let Some(program) = EXECUTABLES.get(self.executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
    unsafe fn run(&mut self) -> Outcome {
        let originals = originals()?;
        required(self.executable, "PJRT_Shardings_PJRT_Executable_ParameterShardings", "executable")?;
        let function = originals.shardings.PJRT_Shardings_PJRT_Executable_ParameterShardings;
        // SAFETY: the caller's promise, handed on as it is.
        *self = unsafe { call(originals.engine, function, *self)? };
        if let Some(program) = EXECUTABLES.get(self.executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
    unsafe fn run(&mut self) -> Outcome {
        let originals = originals()?;
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        unsafe {
            let buffer = Buffer::borrow(self.buffer, "PJRT_Wait_Until_Buffer_Ready_On_Stream")?;
            call(originals.engine, originals.stream.wait_stream, Self { buffer: buffer.hold()?.handle(), ..*self })?;
        }
        Ok(())
    }
}

/// A stream of the engine's on `device` that a view can be made to wait for.
///
/// # Errors
/// The engine's; UNIMPLEMENTED for one without streams.
///
/// # Safety
/// The device must be alive.
pub unsafe fn stream_of(device: *mut sys::PJRT_Device) -> Outcome<isize> {
    let originals = originals()?;
    let args = sys::PJRT_Get_Stream_For_External_Ready_Events_Args { device, ..Default::default() };
    // SAFETY: the caller's promise.
    Ok(unsafe { call(originals.engine, originals.stream.get_stream, args)? }.stream)
}

/// Registers a type of user data with the engine, through its own function.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The struct must satisfy the function's contract.
pub unsafe fn register_type(args: sys::PJRT_FFI_Type_Register_Args) -> Outcome<sys::PJRT_FFI_Type_Register_Args> {
    let originals = originals()?;
    // SAFETY: the caller's promise.
    unsafe { call(originals.engine, originals.ffi.type_register, args) }
}

/// Adds user data to a context of the engine.
///
/// # Errors
/// The engine's: there is data of that type already, or the pointer is NULL.
///
/// # Safety
/// The context must be alive.
pub unsafe fn add_user_data(context: *mut sys::PJRT_ExecuteContext, kind: i64, data: *mut c_void) -> Outcome {
    let originals = originals()?;
    let user_data = sys::PJRT_FFI_UserData { type_id: kind, data };
    let args = sys::PJRT_FFI_UserData_Add_Args { context, user_data, ..Default::default() };
    // SAFETY: the caller's promise.
    unsafe { call(originals.engine, originals.ffi.user_data_add, args) }.map(drop)
}

impl Entry for sys::PJRT_FFI_UserData_Add_Args {
    unsafe fn run(&mut self) -> Outcome {
        let context = required(self.context, "PJRT_FFI_UserData_Add", "context")?;
        // SAFETY: the caller's context is one of ours and alive.
        unsafe { (*context.cast::<Context>()).add(self.user_data.type_id, self.user_data.data) }
    }
}
