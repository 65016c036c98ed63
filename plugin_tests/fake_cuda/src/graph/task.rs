//! What a node of a graph does, and the operation of a stream that a launch makes of it.

use std::sync::Arc;

use crate::{
    copy::{self, Copy, Side},
    operation::{Order, Work},
    parts::Part,
    state::Driver,
    status::{self, Answer, misuse},
};

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub const KERNEL: u32 = 0;

/// A task.
#[derive(Clone, Debug)]
pub enum Task {
    /// Nothing: a place in the order.
    Empty,
    /// Runs a kernel, or what is one to the driver: a product of matrices.
    Part(Arc<dyn Part>),
    /// Copies. Both sides are read and written when the node runs, wherever they are.
    Copy {
        /// The destination.
        to: (Side, u64),
        /// The source.
        from: (Side, u64),
        /// How much.
        bytes: u64,
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
}

impl Task {
    /// The task of an operation that was put into a stream while that was captured.
    pub fn of(what: &str, work: Work) -> Answer<Self> {
        match work {
            Work::Part(part) if part.is_node() => Ok(Self::Part(part)),
            Work::Copy { to, from, bytes } => Ok(Self::Copy { to: (Side::Any, to), from: (Side::Any, from), bytes }),
            Work::Fill { to, pattern, bytes } => Ok(Self::Fill { to, pattern, bytes }),
            Work::Nothing | Work::Staged { .. } | Work::Part(_) | Work::Kernel(_) | Work::Host(_) | Work::Record(_) => {
                let why = format!(
                    "{what} cannot become a node of a graph here: kernels, fills, copies between GPUs and pinned memory, and products can"
                );
                Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, why))
            }
        }
    }

    /// Its type, `CUgraphNodeType` in C.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Part(_) => KERNEL,
            Self::Copy { .. } => 1,
            Self::Fill { .. } => 2,
            Self::Empty => 5,
        }
    }

    /// Its type in words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Part(_) => "kernel node",
            Self::Copy { .. } => "memcpy node",
            Self::Fill { .. } => "memset node",
            Self::Empty => "empty node",
        }
    }

    /// The operation that does it in a stream of a GPU. Memory is looked up now: a graph holds addresses only.
    ///
    /// # Errors
    /// Its memory is not there, or that GPU may not use it.
    pub fn order(&self, driver: &Driver, gpu: usize) -> Answer<Order> {
        let what = self.name();
        match self {
            Self::Copy { bytes: 0, .. } | Self::Fill { bytes: 0, .. } | Self::Empty => {
                Ok(Order::new(what, Work::Nothing))
            }
            Self::Part(part) => Arc::clone(part).order(driver, gpu),
            &Self::Copy { to, from, bytes } => {
                let bytes = usize::try_from(bytes).map_err(|_| status::INVALID_VALUE)?;
                let (order, _) = copy::order(driver, gpu, Copy { what, to, from, bytes, waits: false })?;
                Ok(order)
            }
            &Self::Fill { to, pattern, bytes } => copy::fill_order(driver, gpu, what, to, pattern, bytes),
        }
    }
}
