//! NCCL, for GPUs of one process or of several: communicators, and collectives as operations of streams that meet.
//!
//! ```text
//!  GPU 0's stream   kernel --- ncclAllReduce ----------- copy        each rank's operation reads its own send buffer,
//!                                   |  all have come: the last          writes its own receive buffer, and ends when
//!  GPU 1's stream   --------- kernel --- ncclAllReduce - kernel        all have come and the bytes were moved
//!
//!  bootstrap      ranks find each other by a unique id or a split                registration   buffers that must stay mapped
//!  communicator   what a rank has then, and what all of its ranks share
//!  group          calls of a thread between ncclGroupStart and ncclGroupEnd: one operation for each communicator
//!  task           what a rank asks for, in numbers: kind, count, type; how many of its bytes that uses
//!  rendezvous     the same collective of all ranks, or a send and its receive: who has called, who has come, the clocks
//!  transfer       the bytes, once all have come                                     reduction   sums and the like
//!  others, hub    ranks of other processes on this machine, met by TCP
//! ```
//!
//! For the race detector a collective comes after what was in the streams of all ranks before it, and a receive after
//! what was in the sender's. Ranks that call in different order, kinds, counts or types are a violation; their
//! operations then end without moving anything, where NCCL would hang or mix up data.
//!
//! What differs from NCCL: no other machines, no kernels that communicate themselves, no one-sided operations. A rank's
//! operation always waits for the others, also where NCCL could let it go on, as the root of a broadcast.

use std::{cell::RefCell, collections::BTreeMap, ffi::CString};

use crate::status::{Failure, Status, misuse};

pub mod bootstrap;
pub mod communicator;
pub mod group;
mod hub;
mod others;
mod reduction;
pub mod registration;
mod rendezvous;
mod task;
mod transfer;

pub use others::Others;
pub use reduction::{Reduction, Type};
pub use registration::{Registrations, deregister, register};
pub use rendezvous::{Launch, Meetings};
pub use task::{Kind, Task};

/// `ncclSuccess`.
pub const SUCCESS: Status = 0;
/// `ncclUnhandledCudaError`.
pub const UNHANDLED_CUDA_ERROR: Status = 1;
/// `ncclSystemError`.
pub const SYSTEM_ERROR: Status = 2;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: Status = 4;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: Status = 5;
/// `ncclRemoteError`.
pub const REMOTE_ERROR: Status = 6;
/// `ncclInProgress`.
pub const IN_PROGRESS: Status = 7;

/// The NCCL that is simulated: 2.28.0, the first with `ncclAlltoAll`.
pub const VERSION: i32 = 22800;

/// What is known of all communicators.
#[derive(Debug, Default)]
pub struct Collectives {
    /// Communicators as ranks have them, by handle.
    communicators: BTreeMap<u64, communicator::Communicator>,
    /// What the ranks of a communicator share, by number.
    cliques: BTreeMap<u64, communicator::Clique>,
    /// Ranks that wait for others.
    bootstraps: BTreeMap<bootstrap::Key, bootstrap::Bootstrap>,
    /// Registered buffers, by handle.
    registrations: BTreeMap<u64, registration::Registration>,
}

/// A failure of the driver as NCCL passes it on.
fn of_cuda(failure: Failure) -> Failure {
    Failure { code: UNHANDLED_CUDA_ERROR, ..failure }
}

/// A rank's mistake in how it uses NCCL.
fn wrong_usage(sentence: impl Into<String>) -> Failure {
    misuse(INVALID_USAGE, sentence)
}

/// A mistake in an argument.
fn wrong_argument(sentence: impl Into<String>) -> Failure {
    misuse(INVALID_ARGUMENT, sentence)
}

thread_local! {
    /// What `ncclGetLastError` tells this thread.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps a sentence for `ncclGetLastError`.
pub fn keep_error(sentence: &str) {
    let text = CString::new(sentence.replace('\0', "")).unwrap_or_default();
    // At the end of a thread nobody asks any more.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// The last sentence, which stays until the next one on this thread.
pub fn last_error() -> *const std::ffi::c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
