//! The extensions: the CPU engine's, with the function of Layouts that takes a buffer replaced, and handlers for CUDA
//! registered as the CPU's; and Stream, which the CPU engine does not have.

use std::{ffi::c_char, ptr};

use cudarc::driver::sys::CUstream;
use once_cell::sync::OnceCell;

use crate::{
    buffer::Buffer,
    client,
    cpu::{self, Cpu},
    entry::{Entry, entry, text},
    error::{Error, Result},
    platform::platform,
    sys::{self, CStruct},
};

/// The CPU engine's own functions in the slots that are replaced.
#[derive(Clone, Copy, Default)]
struct Originals {
    layouts: sys::PJRT_Layouts_Extension,
    ffi: sys::PJRT_FFI_Extension,
}

// SAFETY: function tables, written once.
unsafe impl Send for Originals {}
// SAFETY: as above.
unsafe impl Sync for Originals {}

static ORIGINALS: OnceCell<Originals> = OnceCell::new();

fn originals() -> Result<&'static Originals> {
    ORIGINALS.get().ok_or_else(|| Error::internal("an extension is called before the table was asked for"))
}

/// A copy of as much of an extension as both sides know, made ours.
///
/// # Safety
/// `theirs` must point to an extension of the type that `T` is.
unsafe fn copy<T: CStruct>(theirs: *const sys::PJRT_Extension_Base) -> T {
    let mut ours = T::default();
    // SAFETY: the caller's promise; an extension is as long as its first word says.
    unsafe {
        let size = (*theirs).struct_size.min(size_of::<T>());
        (&raw mut ours).cast::<u8>().copy_from_nonoverlapping(theirs.cast(), size);
    }
    ours
}

/// The chain. What it is made of lives as long as the process.
pub fn build(cpu: &Cpu) -> *mut sys::PJRT_Extension_Base {
    let mut stream = sys::PJRT_Stream_Extension {
        get_stream: Some(entry::<sys::PJRT_Get_Stream_For_External_Ready_Events_Args>),
        wait_stream: Some(entry::<sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args>),
        ..Default::default()
    };
    stream.base.struct_size = sys::PJRT_Stream_Extension::STRUCT_SIZE;
    stream.base.type_ = sys::PJRT_Extension_Type_Stream;
    let mut head: *mut sys::PJRT_Extension_Base = ptr::from_mut(Box::leak(Box::new(stream))).cast();
    let mut originals = Originals::default();
    let mut next = cpu.extensions();
    while !next.is_null() {
        // SAFETY: every extension begins with the base; those copied have the type that they say.
        unsafe {
            let base = *next;
            let ours: *mut sys::PJRT_Extension_Base = match base.type_ {
                sys::PJRT_Extension_Type_Layouts => {
                    let mut layouts = copy::<sys::PJRT_Layouts_Extension>(next);
                    originals.layouts = layouts;
                    layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout =
                        Some(entry::<sys::PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args>);
                    ptr::from_mut(Box::leak(Box::new(layouts))).cast()
                }
                sys::PJRT_Extension_Type_FFI => {
                    let mut ffi = copy::<sys::PJRT_FFI_Extension>(next);
                    originals.ffi = ffi;
                    ffi.register_handler = Some(entry::<sys::PJRT_FFI_Register_Handler_Args>);
                    ptr::from_mut(Box::leak(Box::new(ffi))).cast()
                }
                sys::PJRT_Extension_Type_MemoryDescriptions => {
                    ptr::from_mut(Box::leak(Box::new(copy::<sys::PJRT_MemoryDescriptions_Extension>(next)))).cast()
                }
                // It may take a buffer, or XLA's CUDA plugin does not have it.
                _ => ptr::null_mut(),
            };
            if !ours.is_null() {
                (*ours).next = head;
                head = ours;
            }
            next = base.next;
        }
    }
    // A second table would find the same engine.
    let _ = ORIGINALS.set(originals);
    head
}

impl Entry for sys::PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Layouts_PJRT_Buffer_MemoryLayout")? };
        let (cpu, shape) = (cpu::engine()?, &buffer.shape);
        let mut layout = shape.layout();
        let args = sys::PJRT_Client_CreateUninitializedBuffer_Args {
            client: buffer.client.handle.0,
            shape_dims: shape.dims.as_ptr(),
            shape_num_dims: shape.dims.len(),
            shape_element_type: shape.element_type,
            shape_layout: &raw mut layout,
            memory: buffer.memory_space().handle.0,
            ..Default::default()
        };
        // The CPU engine makes a layout object for a buffer of its own only.
        // SAFETY: the handles are alive, and the shape outlives the call; the stand-in is ours.
        unsafe {
            let stand_in = cpu.call(args)?.buffer;
            let mut args = Self { buffer: stand_in, ..*self };
            let made = cpu.call_extension(originals()?.layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout, &raw mut args);
            cpu.destroy(stand_in);
            made?;
            self.layout = args.layout;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_FFI_Register_Handler_Args {
    unsafe fn run(&mut self) -> Result {
        const HOST: &str = "Host";
        // SAFETY: the caller's text.
        if unsafe { text(self.platform_name, self.platform_name_size) }.eq_ignore_ascii_case(platform().name) {
            (self.platform_name, self.platform_name_size) = (HOST.as_ptr().cast::<c_char>(), HOST.len());
        }
        // SAFETY: the caller's struct, handed on.
        unsafe { cpu::engine()?.call_extension(originals()?.ffi.register_handler, self) }
    }
}

impl Entry for sys::PJRT_Get_Stream_For_External_Ready_Events_Args {
    unsafe fn run(&mut self) -> Result {
        let (client, device) = client::device(self.device)?;
        self.stream = client.devices[device].gpu.external().expose_provenance() as isize;
        Ok(())
    }
}

impl Entry for sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Wait_Until_Buffer_Ready_On_Stream")? };
        let contents = buffer.contents()?;
        let stream: CUstream = ptr::with_exposed_provenance_mut(self.stream as usize);
        match contents.defined.recorded() {
            Some(mark) => buffer.gpu().follow(stream, &mark),
            None => Ok(()),
        }
    }
}
