//! One call of the C API: argument struct in, `Result` out.

use std::fmt;

/// A canonical status code, by its number in the ABI.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

impl Code {
    /// `INVALID_ARGUMENT`.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// `NOT_FOUND`.
    pub const NOT_FOUND: Self = Self(5);
    /// `RESOURCE_EXHAUSTED`.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// `FAILED_PRECONDITION`.
    pub const FAILED_PRECONDITION: Self = Self(9);
    /// `OUT_OF_RANGE`.
    pub const OUT_OF_RANGE: Self = Self(11);
    /// `UNIMPLEMENTED`.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// `INTERNAL`.
    pub const INTERNAL: Self = Self(13);
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INVALID_ARGUMENT => f.write_str("INVALID_ARGUMENT"),
            Self::NOT_FOUND => f.write_str("NOT_FOUND"),
            Self::RESOURCE_EXHAUSTED => f.write_str("RESOURCE_EXHAUSTED"),
            Self::FAILED_PRECONDITION => f.write_str("FAILED_PRECONDITION"),
            Self::OUT_OF_RANGE => f.write_str("OUT_OF_RANGE"),
            Self::UNIMPLEMENTED => f.write_str("UNIMPLEMENTED"),
            Self::INTERNAL => f.write_str("INTERNAL"),
            Self(other) => write!(f, "code {other}"),
        }
    }
}

/// An error that the plugin returned, read and destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The canonical code.
    pub code: Code,
    /// The message.
    pub message: String,
}

impl Failure {
    /// Asserts `code` and that the message contains every one of `parts`.
    #[track_caller]
    pub fn expect(&self, code: Code, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.message);
        for part in parts {
            assert!(self.message.contains(part), "{part:?} is missing in: {}", self.message);
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

/// Results of calls through the C API.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Reads a `(pointer, size)` string of the C API; empty when the pointer is null.
pub(crate) fn text(data: *const std::ffi::c_char, size: usize) -> String {
    String::from_utf8_lossy(bytes(data, size)).into_owned()
}

/// Reads a `(pointer, size)` byte string of the C API; empty when the pointer is null.
pub(crate) fn bytes<'a>(data: *const std::ffi::c_char, size: usize) -> &'a [u8] {
    slice(data.cast(), size)
}

/// Views an array that the plugin handed out; empty when the pointer is null.
pub(crate) fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the C API promises `len` elements that live as long as their owner, which callers outlive or copy from.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// A struct of the C API with its size filled in and everything else zero.
#[macro_export]
macro_rules! sized {
    ($name:ident) => {
        $crate::sys::$name {
            struct_size: <$crate::sys::$name as $crate::sys::CStruct>::STRUCT_SIZE,
            ..::std::default::Default::default()
        }
    };
}

/// An argument struct with its size filled in, every named field set and all others zero.
#[macro_export]
macro_rules! args {
    ($name:ident { $($field:ident : $value:expr),* $(,)? }) => {
        $crate::pastey::paste! {{
            #[allow(unused_mut, reason = "a call without fields")]
            let mut args = $crate::sized!([<$name _Args>]);
            $(args.$field = $value;)*
            args
        }}
    };
}

/// Calls one function of the table; gives the filled argument struct, or the error.
///
/// A function that the plugin's table does not have is `UNIMPLEMENTED`.
#[macro_export]
macro_rules! call {
    ($plugin:expr, $name:ident { $($field:ident : $value:expr),* $(,)? }) => {{
        let plugin: &$crate::Plugin = $plugin;
        let mut args = $crate::args!($name { $($field: $value),* });
        match plugin.table().$name {
            None => Err($crate::Failure {
                code: $crate::Code::UNIMPLEMENTED,
                message: concat!("the table has no ", stringify!($name)).into(),
            }),
            Some(function) => {
                // SAFETY: the struct is the function's own, and its handles come from this plugin.
                let error = unsafe { function(&mut args) };
                plugin.check(error).map(|()| args)
            }
        }
    }};
}
