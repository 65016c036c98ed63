//! NumPy's arrays, and the elements of the engine's buffers in them.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr, slice,
};

use crate::{
    handlers::python::{
        gil::{Gil, Owned, Raised},
        table::Borrowed,
    },
    sys::{self, slice as list},
};

/// Flags of a NumPy array (`ndarraytypes.h`; they have not changed since NumPy 1.0).
mod flag {
    use std::ffi::c_int;
    pub const C_CONTIGUOUS: c_int = 0x0001;
    pub const FORCECAST: c_int = 0x0010;
    pub const ALIGNED: c_int = 0x0100;
    pub const NOTSWAPPED: c_int = 0x0200;
    pub const WRITEABLE: c_int = 0x0400;
}

/// What follows the object's head in an array (`PyArrayObject_fields`, which NumPy's own macros read as well).
#[repr(C)]
struct Fields {
    data: *mut u8,
    rank: c_int,
    dims: *const i64,
    strides: *const i64,
    base: *mut c_void,
    dtype: *mut c_void,
    flags: Cell<c_int>,
}

/// How an element is stored in a buffer of the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// As in NumPy, in so many bytes.
    Bytes(usize),
    /// Two or four bits, where NumPy has a byte.
    Packed { bits: u32, signed: bool },
}

impl Element {
    /// That of a type; `None` for a type without elements in memory, or one that is not known.
    pub(super) fn of(data_type: sys::XLA_FFI_DataType) -> Option<Self> {
        Some(match data_type {
            sys::XLA_FFI_DataType_PRED
            | sys::XLA_FFI_DataType_S8
            | sys::XLA_FFI_DataType_U8
            | sys::XLA_FFI_DataType_F8E5M2
            | sys::XLA_FFI_DataType_F8E4M3FN
            | sys::XLA_FFI_DataType_F8E4M3B11FNUZ
            | sys::XLA_FFI_DataType_F8E5M2FNUZ
            | sys::XLA_FFI_DataType_F8E4M3FNUZ
            | sys::XLA_FFI_DataType_F8E4M3
            | sys::XLA_FFI_DataType_F8E3M4
            | sys::XLA_FFI_DataType_F8E8M0FNU => Self::Bytes(1),
            sys::XLA_FFI_DataType_S16
            | sys::XLA_FFI_DataType_U16
            | sys::XLA_FFI_DataType_F16
            | sys::XLA_FFI_DataType_BF16 => Self::Bytes(2),
            sys::XLA_FFI_DataType_S32 | sys::XLA_FFI_DataType_U32 | sys::XLA_FFI_DataType_F32 => Self::Bytes(4),
            sys::XLA_FFI_DataType_S64
            | sys::XLA_FFI_DataType_U64
            | sys::XLA_FFI_DataType_F64
            | sys::XLA_FFI_DataType_C64 => Self::Bytes(8),
            sys::XLA_FFI_DataType_C128 => Self::Bytes(16),
            sys::XLA_FFI_DataType_S2 => Self::Packed { bits: 2, signed: true },
            sys::XLA_FFI_DataType_U2 => Self::Packed { bits: 2, signed: false },
            sys::XLA_FFI_DataType_S4 => Self::Packed { bits: 4, signed: true },
            sys::XLA_FFI_DataType_U4 | sys::XLA_FFI_DataType_F4E2M1FN => Self::Packed { bits: 4, signed: false },
            _ => return None,
        })
    }

    /// Bytes that so many elements take in a buffer of the engine.
    pub(super) fn bytes(self, count: usize) -> usize {
        match self {
            Self::Bytes(size) => count * size,
            Self::Packed { bits, .. } => count.div_ceil((u8::BITS / bits) as usize),
        }
    }
}

/// NumPy's type of an element type, and how large its elements are in NumPy.
#[derive(Clone, Copy)]
pub(super) struct Dtype {
    object: Borrowed<'static>,
    size: usize,
    element: Element,
}

impl Dtype {
    /// That of a type; `None` where NumPy has none.
    pub(super) fn of(gil: &Gil, data_type: sys::XLA_FFI_DataType) -> Option<Self> {
        let object = gil.python().dtypes.get(data_type.0 as usize).copied().flatten()?;
        let element = Element::of(data_type)?;
        let size = if let Element::Bytes(size) = element { size } else { 1 };
        Some(Self { object, size, element })
    }

    /// How the engine stores its elements.
    pub(super) fn element(self) -> Element {
        self.element
    }
}

/// How many elements an array of these dimensions has.
pub(super) fn count(dims: &[i64]) -> usize {
    dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product()
}

/// A NumPy array of a known type.
pub(super) struct Array<'a> {
    object: Owned<'a>,
    dtype: Dtype,
}

impl<'a> Array<'a> {
    /// A read-only array of its own memory, which `fill` writes.
    ///
    /// # Errors
    /// The exception that NumPy raised.
    pub(super) fn filled(
        gil: &'a Gil,
        dtype: Dtype,
        dims: &[i64],
        fill: impl FnOnce(&mut [MaybeUninit<u8>]),
    ) -> Result<Owned<'a>, Raised> {
        let array = Self::make(gil, dtype, dims, None)?;
        let fields = array.fields();
        if count(dims) > 0 {
            // SAFETY: the array was just made, with memory of its own that is as large as the shape says, and nothing
            // else refers to it; it is alive.
            fill(unsafe { slice::from_raw_parts_mut(fields.data.cast(), count(dims) * dtype.size) });
        }
        fields.flags.set(fields.flags.get() & !flag::WRITEABLE);
        Ok(array.object)
    }

    /// A value as an array of that type: itself, or a copy. The elements of one whose elements are `in_order` lie one
    /// behind the other.
    ///
    /// # Errors
    /// The exception that NumPy raised.
    pub(super) fn from(gil: &'a Gil, dtype: Dtype, value: Borrowed<'_>, in_order: bool) -> Result<Self, Raised> {
        let in_order = if in_order { flag::C_CONTIGUOUS } else { 0 };
        let wanted = flag::ALIGNED | flag::NOTSWAPPED | flag::FORCECAST | in_order;
        let takes_over = gil.share(dtype.object).into_new();
        // SAFETY: the GIL is held; the value is alive, because it is borrowed, and the function takes over one
        // reference to the dtype.
        let array = unsafe { (gil.python().array_from)(value, takes_over, 0, 0, wanted, None) };
        Ok(Self { object: gil.own(array)?, dtype })
    }

    /// An array of its own memory, or over `memory`, which is as large as the array.
    fn make(
        gil: &'a Gil,
        dtype: Dtype,
        dims: &[i64],
        memory: Option<&'a mut [MaybeUninit<u8>]>,
    ) -> Result<Self, Raised> {
        let (data, flags) = memory.map_or((ptr::null_mut(), 0), |memory| {
            assert_eq!(memory.len(), count(dims) * dtype.size, "as large as the array");
            (memory.as_mut_ptr().cast(), flag::C_CONTIGUOUS | flag::ALIGNED | flag::WRITEABLE)
        });
        let takes_over = gil.share(dtype.object).into_new();
        let (python, rank) = (gil.python(), dims.len() as c_int);
        // SAFETY: the GIL is held; the type lives for ever, and the function takes over one reference to the dtype.
        // NumPy copies the dimensions, whose number is `rank`. `data` is NULL, or memory of this shape that is borrowed
        // for as long as the array is owned here.
        let array = unsafe {
            (python.array_new)(python.array_type, takes_over, rank, dims.as_ptr(), ptr::null(), data, flags, None)
        };
        Ok(Self { object: gil.own(array)?, dtype })
    }

    fn fields(&self) -> &Fields {
        let head = self.object.gil().python().object_size;
        // SAFETY: the object is a NumPy array, because NumPy's own functions made it, and alive; its fields begin
        // behind the object's head. Nothing of Python runs while they are borrowed.
        unsafe { self.object.borrow().address().byte_add(head).cast::<Fields>().as_ref() }
    }

    /// Elements along each dimension.
    pub(super) fn dims(&self) -> &[i64] {
        let fields = self.fields();
        // SAFETY: an array has as many dimensions as its rank says, as long as it lives.
        unsafe { list(fields.dims, usize::try_from(fields.rank).unwrap_or(0)) }
    }

    /// Its elements, where they lie one behind the other.
    pub(super) fn contents(&self) -> Option<&[u8]> {
        let fields = self.fields();
        if fields.flags.get() & flag::C_CONTIGUOUS == 0 {
            return None;
        }
        // SAFETY: a contiguous array of this type is as large as its shape says, as long as it lives; the GIL is held,
        // so nobody writes to it by Python.
        Some(unsafe { list(fields.data, count(self.dims()) * self.dtype.size) })
    }

    /// Copies its elements to `to`, which is as large, one behind the other.
    ///
    /// # Errors
    /// The exception that NumPy raised.
    pub(super) fn copy_to(&self, to: &mut [MaybeUninit<u8>]) -> Result<(), Raised> {
        if let Some(contents) = self.contents() {
            to.write_copy_of_slice(contents);
            return Ok(());
        }
        let gil = self.object.gil();
        let target = Array::make(gil, self.dtype, self.dims(), Some(to))?;
        // SAFETY: the GIL is held, and both are arrays that are alive.
        let failed = unsafe { (gil.python().array_copy)(target.object.borrow(), self.object.borrow()) } != 0;
        if failed { Err(gil.raised()) } else { Ok(()) }
    }
}
