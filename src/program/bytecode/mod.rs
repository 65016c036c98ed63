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
pub(super) mod ids;
pub(super) mod ops;
pub(super) mod reader;
pub(super) mod section;
pub(super) mod tables;
pub(super) mod writer;
