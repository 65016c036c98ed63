//! Operations: what a call asks a stream for, and what then waits in it.
//!
//! ```text
//!  a call --> Order: work, memory by pieces, what it comes after        issue()
//!                                                                          |
//!                                                                          v
//!             Operation: the same work, its place in the stream, its clock, memory by addresses
//! ```

use std::{ffi::c_void, ops::Range};

use crate::{
    clock::{Clock, Point},
    memory::Place,
};

/// A function of the program with what it is given.
pub type Callback = (unsafe extern "C" fn(*mut c_void), usize);

/// What an operation does.
#[derive(Debug)]
pub enum Work {
    /// Nothing: a place in the order.
    Nothing,
    /// Copies between ranges that both stay until it is done.
    Copy {
        /// The destination.
        to: u64,
        /// The source.
        from: u64,
        /// How much.
        bytes: u64,
    },
    /// Copies what was staged.
    Staged {
        /// The destination.
        to: u64,
        /// The bytes.
        from: Vec<u8>,
    },
    /// Repeats four bytes.
    Fill {
        /// Where.
        to: u64,
        /// Which.
        pattern: [u8; 4],
        /// How many.
        bytes: u64,
    },
    /// Runs a function that stands for a kernel.
    Kernel(Callback),
    /// Runs a function on the host that may not call the driver.
    Host(Callback),
}

/// What is put into a stream.
#[derive(Debug)]
pub struct Order {
    /// The name of the function that asked for it.
    pub what: &'static str,
    /// What it uses, and whether it writes there.
    pub uses: Vec<(Place, bool)>,
    /// What it does.
    pub work: Work,
    /// Operations of other streams that it waits for.
    pub after: Vec<Point>,
    /// What it comes after, besides its stream and the host.
    pub seen: Clock,
}

impl Order {
    /// An operation that uses no memory and waits for nothing.
    pub fn new(what: &'static str, work: Work) -> Self {
        Self { what, uses: Vec::new(), work, after: Vec::new(), seen: Clock::default() }
    }
}

/// An operation in a stream.
#[derive(Debug)]
pub struct Operation {
    /// Its place.
    pub point: Point,
    /// Operations of other streams that it waits for.
    pub after: Vec<Point>,
    /// What it does.
    pub work: Work,
    /// The addresses that it uses and the driver knows, and whether it writes there.
    pub ranges: Vec<(Range<u64>, bool)>,
    /// What has happened before it, and itself.
    pub clock: Clock,
}
