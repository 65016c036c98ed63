//! The engine's extensions, rebuilt: in extensions whose functions take handles of pjrt-arena, those functions are
//! replaced.
//!
//! Each extension is copied with the engine's own length, so that versions shorter or longer than this library's
//! work; slots are replaced only inside that length. Words of zero follow a copy, as they follow the table: a
//! framework that asks for a newer function without looking at the size reads NULL. An extension that is unknown here
//! is left out: it may take a `PJRT_Buffer`.

use std::{mem::offset_of, ptr};

use crate::{
    api::{
        entry::{Entry, PADDING, entry},
        profiler,
    },
    engine::{
        Engine, Outcome,
        extensions::{Extensions, call},
        failure::required,
        process,
    },
    runtime::{buffer::buffer_ref::BufferRef, executable::registry::EXECUTABLES, execute::context::Context},
    sys::{self},
};

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
    let mut chain: Vec<*mut sys::PJRT_Extension_Base> = Vec::new();
    let mut next = engine.extensions();
    while !next.is_null() {
        // SAFETY: the pointer is not NULL, so it is an extension of the engine, which lives as long as the process;
        // each begins with the base.
        let base = unsafe { *next };
        let fate = fate(base.type_);
        if fate == Fate::Drop || base.struct_size < size_of::<sys::PJRT_Extension_Base>() {
            log::debug!("extension {} of the engine is left out", base.type_.0);
        } else {
            let words = vec![0_u64; base.struct_size.div_ceil(size_of::<u64>()) + PADDING];
            let copy: *mut sys::PJRT_Extension_Base = words.leak().as_mut_ptr().cast();
            // SAFETY: the engine's extension has `struct_size` bytes, the new copy has room for them, and they do not
            // overlap.
            unsafe { ptr::copy_nonoverlapping(next.cast::<u8>(), copy.cast(), base.struct_size) };
            if fate == Fate::Patch {
                // SAFETY: the copy is of that type and size.
                unsafe { patch(copy, base) };
            }
            chain.push(copy);
        }
        next = base.next;
    }
    // An engine of a real device has a profiler of its own; a trace takes one.
    // SAFETY: the copies live for ever, begin with the base, and are used by this thread alone.
    if !chain.iter().any(|&copy| unsafe { (*copy).type_ } == sys::PJRT_Extension_Type_Profiler) {
        chain.push(profiler::extension());
    }
    // SAFETY: the copies live for ever, begin with the base, and are used by this thread alone.
    if !chain.iter().any(|&copy| unsafe { (*copy).type_ } == sys::PJRT_Extension_Type_Custom_Partitioner) {
        chain.push(super::partitioners::extension());
    }
    let mut head = ptr::null_mut();
    for &extension in chain.iter().rev() {
        // SAFETY: the copies live for ever, begin with the base, and are used by this thread alone.
        unsafe { (*extension).next = head };
        head = extension;
    }
    head
}

/// Replaces the functions in the slots that the extension is long enough to have.
///
/// # Safety
/// `copy` must point to `base.struct_size` writable bytes of an extension of type `base.type_`.
unsafe fn patch(copy: *mut sys::PJRT_Extension_Base, base: sys::PJRT_Extension_Base) {
    macro_rules! replace {
        ($table:ident, $($slot:ident => $args:ident),*) => {{
            $(
                if base.struct_size >= offset_of!(sys::$table, $slot) + size_of::<usize>() {
                    // SAFETY: the slot lies within the extension, which is of this type and writable.
                    let slot = unsafe { &mut (*copy.cast::<sys::$table>()).$slot };
                    // A slot that the engine left empty stays so.
                    *slot = slot.is_some().then_some(entry::<sys::$args>);
                }
            )*
        }};
    }
    match base.type_ {
        sys::PJRT_Extension_Type_Layouts => replace!(PJRT_Layouts_Extension,
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

impl Entry for sys::PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        let originals = Extensions::of(engine);
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks; the hold keeps the engine's
        // alive.
        unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Layouts_PJRT_Buffer_MemoryLayout")?;
            let args = call(
                engine,
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
        let engine = process::engine()?;
        let originals = Extensions::of(engine);
        required(self.executable, "PJRT_Layouts_PJRT_Executable_GetParameterLayouts", "executable")?;
        let function = originals.layouts.PJRT_Layouts_PJRT_Executable_GetParameterLayouts;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        *self = unsafe { call(engine, function, *self)? };
        if let Some(program) = EXECUTABLES.get(self.executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        let originals = Extensions::of(engine);
        required(self.executable, "PJRT_Shardings_PJRT_Executable_ParameterShardings", "executable")?;
        let function = originals.shardings.PJRT_Shardings_PJRT_Executable_ParameterShardings;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        *self = unsafe { call(engine, function, *self)? };
        if let Some(program) = EXECUTABLES.get(self.executable) {
            self.num_parameters = program.visible(self.num_parameters);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        let originals = Extensions::of(engine);
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks; the hold keeps the engine's
        // alive.
        unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Wait_Until_Buffer_Ready_On_Stream")?;
            call(engine, originals.stream.wait_stream, Self { buffer: buffer.hold()?.handle(), ..*self })?;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_FFI_UserData_Add_Args {
    unsafe fn run(&mut self) -> Outcome {
        let context = required(self.context, "PJRT_FFI_UserData_Add", "context")?;
        // SAFETY: the context is not NULL, so it is a live one of this library, as `run` asks; the data lives as long
        // as the executions that get the context.
        unsafe { (*context.cast::<Context>()).add(self.user_data.type_id, self.user_data.data) }
    }
}
