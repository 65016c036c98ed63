//! The driver's functions as C calls them, and the table of them by name.
//!
//! Every function is a frame (`state::call`) around one of the other modules. A parameter that points to the
//! caller's memory is an [`Out`] or an [`In`], so that what `unsafe` there is, is here.

use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::sys::CUresult;

use crate::status::{self, Answer, Status, misuse};

mod control;
mod devices;
mod hip;
mod memory;
mod streams;

/// A place of the caller's for a result. Only a caller of the driver's functions, which are unsafe, makes one: it has
/// promised that the pointer is null or fit for writing a `T`, and for reading one where the function changes what is
/// there.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(misuse(status::INVALID_VALUE, "a pointer for a result is null"));
        }
        // SAFETY: it is not null, and the caller has promised the rest.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// As [`Self::put`] where null says that the result is not wanted.
    pub fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `put`.
            unsafe { self.0.write(value) };
        }
    }

    /// Refuses null before anything is done.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn checked(self) -> Answer<Self> {
        if self.0.is_null() {
            return Err(misuse(status::INVALID_VALUE, "a pointer for a result is null"));
        }
        Ok(self)
    }

    /// Puts in place of what lies there what `work` makes of it.
    ///
    /// # Errors
    /// The pointer is null, or `work` fails.
    pub fn exchange(self, work: impl FnOnce(T) -> Answer<T>) -> Answer
    where
        T: Copy,
    {
        let before = In(self.0.cast_const()).get()?;
        self.put(work(before)?)
    }

    /// Writes one result after another.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put_all(self, values: impl Iterator<Item = T>) -> Answer {
        let Self(start) = self.checked()?;
        for (index, value) in values.enumerate() {
            // SAFETY: it is not null, and the caller has promised room for as many as it said.
            unsafe { start.add(index).write(value) };
        }
        Ok(())
    }
}

/// What the caller points to. As for [`Out`]: null, or fit for reading as many as another parameter says.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads one.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(&self) -> Answer<T> {
        self.list(1).map(|list| list[0])
    }

    /// Reads `count`.
    ///
    /// # Errors
    /// The pointer is null, and the count is not 0.
    pub fn list(&self, count: usize) -> Answer<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(misuse(status::INVALID_VALUE, "a pointer to an argument is null"));
        }
        // SAFETY: it is not null, and the caller has promised the rest.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read() }).collect())
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl In<c_char> {
    /// Reads a C string.
    ///
    /// # Errors
    /// The pointer is null, or the text is not UTF-8.
    pub fn text(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(misuse(status::INVALID_VALUE, "a pointer to a text is null"));
        }
        // SAFETY: it is not null, and the caller has promised a C string that stays during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| misuse(status::INVALID_VALUE, format!("{text:?} is not UTF-8")))
    }
}

/// Declares functions of the driver in their frame, with the parameters that cudarc declares; `as` says what cudarc
/// calls a parameter that is of another type here. Does not compile where the rest differs. Makes a table of them by
/// name.
macro_rules! functions {
    (@theirs $ours:ty) => { $ours };
    (@theirs $ours:ty as $theirs:ty) => { $theirs };
    ($($frame:ident $name:ident($($parameter:ident: $ours:ty $(as $theirs:ty)?),*) $body:expr;)*) => {
        $(
            #[doc = concat!("CUDA's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As CUDA documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($parameter: $ours),*) -> $crate::status::Status {
                $crate::state::$frame(stringify!($name), $body)
            }
        )*

        const _: () = {
            $(let _: unsafe fn($(functions!(@theirs $ours $(as $theirs)?)),*) -> cudarc::driver::sys::CUresult =
                cudarc::driver::sys::$name;)*
        };

        /// The functions of this module, by name.
        pub(super) const TABLE: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}
use functions;

const _: () = assert!(size_of::<Status>() == size_of::<CUresult>());

/// The function of a name: of the driver, or of the tests' own.
pub fn symbol(name: &str) -> Option<*const c_void> {
    let tables = [devices::TABLE, memory::TABLE, streams::TABLE, control::TABLE, hip::TABLE];
    let found = tables.into_iter().flatten().find(|(known, _)| *known == name);
    found.map(|(_, function)| function.cast())
}
