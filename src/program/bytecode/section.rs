//! The numbers of a file's sections.

pub(in crate::program) const STRINGS: u8 = 0;
pub(in crate::program) const DIALECTS: u8 = 1;
pub(in crate::program) const DATA: u8 = 2;
pub(in crate::program) const OFFSETS: u8 = 3;
pub(in crate::program) const IR: u8 = 4;
pub(in crate::program) const RESOURCES: u8 = 5;
pub(in crate::program) const DIALECT_VERSION: u8 = 7;
pub(in crate::program) const PROPERTIES: u8 = 8;
