//! Device-independent memory management: safe code that knows no PJRT and no device.
#![deny(unsafe_code)]

/// How an arena obtains the space that it hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One region of the whole limit, taken at the first allocation.
    Preallocate,
    /// Regions on demand, doubling in size; empty regions go back to the device.
    Growing,
    /// One device allocation per buffer, given back on free.
    Platform,
}
