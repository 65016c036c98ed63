//! MLIR bytecode, as far as appending to it needs: the container, its tables and the operation grammar.
//!
//! ```text
//!  "ML\xefR"  version  producer\0  section*          section = id  length  payload
//!
//!   0 strings       count | sizes, last string first | the strings, NUL after each
//!   1 dialects      the dialects | count of op names | groups of op names, one dialect each
//!   3 offsets       count of attributes, of types | groups of attribute sizes | groups of type sizes
//!   2 data          the attributes back to back | the types back to back
//!   8 properties    count | blobs, each behind its size
//!   4 IR            the operations; they name everything above by index
//! ```
//!
//! Every table takes new entries behind the old ones, so no index that the file already holds ever changes. What is not
//! appended to is copied byte for byte.
//!
//! Facts: MLIR's `docs/BytecodeFormat.md` and `lib/Bytecode/{Encoding.h,Reader/BytecodeReader.cpp}`. Versions 5 and 6
//! are read, which every StableHLO artifact since VHLO 0.15 has.

pub(super) mod container;
pub(super) mod ops;
pub(super) mod reader;
pub(super) mod tables;
pub(super) mod writer;

pub(super) use container::Artifact;
pub(super) use reader::Cursor;
pub(super) use tables::{Additions, Entry, Tables};

/// Declares indices into the tables of a file. They are unchecked until a table looks them up.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(in crate::program) struct $name(pub(in crate::program) u64);
    )*};
}

ids! {
    /// An entry of the string table.
    StringId;
    /// An entry of the dialect table.
    DialectId;
    /// An operation name, counted over all groups.
    OpNameId;
    /// An attribute; attributes and types have separate index spaces.
    AttrId;
    /// A type.
    TypeId;
    /// A property blob.
    PropertyId;
    /// An SSA value, counted from the enclosing isolated operation.
    ValueId;
}
