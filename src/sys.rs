//! The PJRT C ABI in Rust: what bindgen makes of `pjrt_c_api/`, and the little that makes it usable.
//!
//! * C enums are newtypes over an integer (`PJRT_Error_Code(8)`), because a newer plugin may send values that we do not
//!   know; `PJRT_Error_Code_RESOURCE_EXHAUSTED` and the like are constants, fit for `match`.
//! * A slot of a function table is an `Option` of a function pointer. A slot exists only when `struct_size` covers it:
//!   never make a `&PJRT_Api` of a table that somebody else allocated, it may be shorter than our type.
//! * The same holds for args structs that a caller hands us: they may be shorter than ours, and their out fields may be
//!   uninitialised. Read and write them field by field through the raw pointer, within `struct_size`.
//! * Opaque handles are types without size; only pointers to them make sense. `PJRT_Error` and `PJRT_Memory` look
//!   transparent but are so only from 0.107 and 0.105 on.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

/// A struct of the ABI. `Default` gives one with all bytes zero: no extensions, null pointers, `struct_size` 0 too; so
/// a call starts with `X { struct_size: X::STRUCT_SIZE, ..X::default() }`.
///
/// # Safety
/// The type is `repr(C)`, as the header declares it, valid when all its bytes are zero, and at least `STRUCT_SIZE`
/// long.
pub unsafe trait CStruct: Copy + Default {
    /// The struct's name in C, for messages.
    const NAME: &'static str;
    /// Bytes from the start to the end of the last field, without padding: what we say as a caller.
    const STRUCT_SIZE: usize;
    /// Bytes of the smallest form that a caller of API minor 0.54 or later may hand us.
    const MIN_SIZE: usize;
}

/// What `CStruct` says about one struct, and its size in Rust, padding included. All in bytes.
#[derive(Debug, Clone, Copy)]
pub struct StructSizes {
    pub name: &'static str,
    pub size_of: usize,
    pub struct_size: usize,
    pub min_size: usize,
}

impl StructSizes {
    const fn of<T: CStruct>() -> Self {
        Self { name: T::NAME, size_of: size_of::<T>(), struct_size: T::STRUCT_SIZE, min_size: T::MIN_SIZE }
    }
}

/// The slots of `PJRT_Api` that hold functions, in the newest version known here.
pub const PJRT_API_FUNCTIONS: usize =
    (PJRT_Api_STRUCT_SIZE as usize - core::mem::offset_of!(PJRT_Api, PJRT_Error_Destroy)) / size_of::<usize>();

include!("../pjrt_c_api/bindings.rs");

/// The slice that a C array describes; NULL is empty.
///
/// # Safety
/// `data` must be NULL or point to `len` values that live for `'a`.
pub unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: `data` is not NULL here, and points to `len` values that live for `'a`, as this function asks.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// The text that a C pointer and length describe; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// As for [`slice()`].
pub unsafe fn text<'a>(data: *const std::ffi::c_char, len: usize) -> std::borrow::Cow<'a, str> {
    // SAFETY: the bytes are as this function asks of its caller.
    String::from_utf8_lossy(unsafe { slice(data.cast::<u8>(), len) })
}
