//! What the engine calls the handler with.

use std::{ffi::CString, marker::PhantomData, mem::MaybeUninit, ptr, slice};

use crate::{
    handlers::python::{
        numpy::{Element, count},
        table::Borrowed,
    },
    sys::{self, CStruct, slice as list},
};

/// The id of the user data that holds an execution's Python callables (XLA `pjrt/host_callback.cc`: the first 64 bits
/// of the SHA-512 of `xla::FfiLoadedHostCallbacks`).
const CALLABLES: i64 = 7_357_244_197_867_843_242;

/// `xla::FfiLoadedHostCallbacks`: the callables of a program.
#[repr(C)]
struct Callables<'a> {
    items: *const Option<Borrowed<'a>>,
    count: u32,
}

/// An execution of a custom call, while its handler runs.
pub(super) struct Frame<'a> {
    frame: &'a sys::XLA_FFI_CallFrame,
    arguments: &'a [Argument<'a>],
    results: &'a mut [ResultBuffer<'a>],
}

impl<'a> Frame<'a> {
    /// The frame of an execution.
    ///
    /// # Safety
    /// `frame` must be what the engine passes to handlers, and `'a` end before the handler returns. Nothing else may
    /// have it.
    pub(super) unsafe fn new(frame: *mut sys::XLA_FFI_CallFrame) -> Self {
        let count = |size: i64| usize::try_from(size).unwrap_or(0);
        // SAFETY: the frame is the engine's, as this function asks: it and what it points to live during the call, its
        // lists are as long as they say, of pointers to buffers, and nothing else writes the list of the results.
        unsafe {
            let frame = &*frame;
            let (arguments, results) = (frame.args.args.cast::<Argument<'a>>(), count(frame.rets.size));
            let first = if results == 0 { ptr::NonNull::dangling().as_ptr() } else { frame.rets.rets.cast() };
            Self {
                frame,
                arguments: list(arguments, count(frame.args.size)),
                results: slice::from_raw_parts_mut(first, results),
            }
        }
    }

    /// The arguments.
    pub(super) fn arguments(&self) -> &'a [Argument<'a>] {
        self.arguments
    }

    /// The results, to be written.
    pub(super) fn results(&mut self) -> &mut [ResultBuffer<'a>] {
        self.results
    }

    /// An error of the engine's; NULL in an engine that cannot make one.
    pub(super) fn error(&self, code: sys::XLA_FFI_Error_Code, message: &str) -> *mut sys::XLA_FFI_Error {
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        let mut args = sys::XLA_FFI_Error_Create_Args {
            struct_size: sys::XLA_FFI_Error_Create_Args::STRUCT_SIZE,
            message: message.as_ptr(),
            errc: code,
            ..Default::default()
        };
        // SAFETY: the engine's table lives as long as the engine; the message lives during the call, which copies it.
        unsafe { (*self.frame.api).XLA_FFI_Error_Create.map_or(ptr::null_mut(), |create| create(&raw mut args)) }
    }

    /// The callables of this execution; none where the engine has no user data of that kind for it.
    ///
    /// # Errors
    /// The engine's; `None` where it has no execution contexts.
    pub(super) fn callables(&self) -> Result<&'a [Option<Borrowed<'a>>], Option<*mut sys::XLA_FFI_Error>> {
        let mut id = sys::XLA_FFI_TypeId { type_id: CALLABLES };
        let mut args = sys::XLA_FFI_ExecutionContext_Get_Args {
            struct_size: sys::XLA_FFI_ExecutionContext_Get_Args::STRUCT_SIZE,
            ctx: self.frame.ctx,
            type_id: &raw mut id,
            ..Default::default()
        };
        // SAFETY: the engine's table lives as long as the engine, the context and its user data as long as the call.
        // User data of this id is the struct that has it, with as many callables as it says.
        unsafe {
            let error = (*self.frame.api).XLA_FFI_ExecutionContext_Get.ok_or(None)?(&raw mut args);
            if !error.is_null() {
                return Err(Some(error));
            }
            let callables = args.data.cast::<Callables<'a>>().as_ref();
            Ok(callables.map_or(&[], |callables| list(callables.items, callables.count as usize)))
        }
    }

    /// The attribute `index`, a number of 64 bits.
    pub(super) fn index(&self) -> Option<u64> {
        let attributes = &self.frame.attrs;
        let count = usize::try_from(attributes.size).ok()?;
        // SAFETY: the attributes are of the engine's frame, so their lists are as long as they say, and names as long
        // as theirs do. A scalar's type says how large its value is.
        unsafe {
            let names = list(attributes.names, count);
            let at = names.iter().position(|&name| list((*name).ptr.cast::<u8>(), (*name).len) == b"index")?;
            if *list(attributes.types, count).get(at)? != sys::XLA_FFI_AttrType_SCALAR {
                return None;
            }
            let scalar = list(attributes.attrs.cast::<*const sys::XLA_FFI_Scalar>(), count).get(at)?.as_ref()?;
            match scalar.dtype {
                sys::XLA_FFI_DataType_U64 | sys::XLA_FFI_DataType_S64 => {
                    Some(scalar.value.cast::<u64>().read_unaligned())
                }
                _ => None,
            }
        }
    }
}

/// A buffer of a frame.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Argument<'a>(&'a sys::XLA_FFI_Buffer);

impl<'a> Argument<'a> {
    /// The type of its elements.
    pub(super) fn data_type(self) -> sys::XLA_FFI_DataType {
        self.0.dtype
    }

    /// Elements along each dimension.
    pub(super) fn dims(self) -> &'a [i64] {
        // SAFETY: the buffer is of the engine's frame, so it has as many dimensions as it says.
        unsafe { list(self.0.dims, usize::try_from(self.0.rank).unwrap_or(0)) }
    }

    /// Bytes of its elements: none for a type that is not known.
    fn bytes(self) -> usize {
        Element::of(self.data_type()).map_or(0, |element| element.bytes(count(self.dims())))
    }

    /// Its elements.
    pub(super) fn contents(self) -> &'a [u8] {
        // SAFETY: the buffer is of the engine's frame: its memory is as large as its shape says, and an argument's is
        // defined, and does not change during the call.
        unsafe { list(self.0.data.cast(), self.bytes()) }
    }
}

/// A buffer of a frame that the handler writes.
#[repr(transparent)]
pub(super) struct ResultBuffer<'a>(Argument<'a>, PhantomData<&'a mut [MaybeUninit<u8>]>);

impl<'a> ResultBuffer<'a> {
    /// The type of its elements.
    pub(super) fn data_type(&self) -> sys::XLA_FFI_DataType {
        self.0.data_type()
    }

    /// Elements along each dimension.
    pub(super) fn dims(&self) -> &'a [i64] {
        self.0.dims()
    }

    /// Its elements, to be written.
    pub(super) fn contents(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = self.0.bytes();
        if bytes == 0 {
            return &mut [];
        }
        // SAFETY: the buffer is of the engine's frame: its memory is as large as its shape says, and a result's is the
        // handler's alone during the call, which has each result once.
        unsafe { slice::from_raw_parts_mut(self.0.0.data.cast(), bytes) }
    }
}
