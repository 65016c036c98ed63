//! Does an operation, on the thread of its stream.
//!
//! ```text
//!  memory is gone       that is an error; who took it away was noted then
//!  after an error       nothing is done any more
//!  without the lock     copies, fills, functions; `running` keeps the pages that they use
//! ```

use std::ptr;

use parking_lot::MutexGuard;

use crate::{
    clock::Clock,
    operation::{Operation, Work},
    state::{self, Driver},
    status,
};

/// Does an operation, if its memory is still there.
pub fn perform(driver: &mut Driver, operation: Operation) {
    let Operation { point, work, ranges, clock, .. } = operation;
    let Some(gpu) = driver.streams.get(&point.line).map(|stream| stream.gpu) else { return };
    if !ranges.iter().all(|(range, write)| driver.is_there(range, *write)) {
        driver.gpus[gpu].poison = Some(status::ILLEGAL_ADDRESS);
    }
    if driver.gpus[gpu].poison.is_some() || matches!(work, Work::Nothing) {
        return;
    }
    if let Some(stream) = driver.streams.get_mut(&point.line) {
        stream.running = ranges.into_iter().map(|(range, _)| range).collect();
    }
    driver.begin_work();
    if let Work::Host(_) = work {
        // The program learns here that all that came before in the stream is done, and may tell any thread.
        driver.observe(&clock);
    }
    MutexGuard::unlocked(driver, || compute(work, clock.before(point)));
    driver.end_work();
}

/// Does what needs no lock. `before` is what a function that stands for a kernel comes after.
fn compute(work: Work, before: Clock) {
    match work {
        Work::Nothing => {}
        // SAFETY: both ranges were found when this was put into the stream, and are there now; `running` keeps their
        // pages until this returns. What the program itself owns it promised to keep. They do not overlap, or it was
        // refused.
        Work::Copy { to, from, bytes } => unsafe { ptr::copy(pointer(from).cast_const(), pointer(to), bytes as usize) },
        // SAFETY: as above; the source is ours.
        Work::Staged { to, from } => unsafe { ptr::copy_nonoverlapping(from.as_ptr(), pointer(to), from.len()) },
        // SAFETY: as above.
        Work::Fill { to, pattern: [byte, rest @ ..], bytes } if rest == [byte; 3] => unsafe {
            ptr::write_bytes(pointer(to), byte, bytes as usize)
        },
        // SAFETY: as above; nothing else uses the range meanwhile, or that was noted.
        Work::Fill { to, pattern, bytes } => unsafe {
            let range = std::slice::from_raw_parts_mut(pointer(to), bytes as usize);
            range.chunks_mut(4).for_each(|word| word.copy_from_slice(&pattern[..word.len()]));
        },
        Work::Kernel((function, argument)) => state::as_kernel(before, || {
            // SAFETY: the caller promised that the function may be called once with this argument, on any thread.
            unsafe { function(ptr::with_exposed_provenance_mut(argument)) }
        }),
        Work::Host((function, argument)) => state::as_host_function(|| {
            // SAFETY: as above.
            unsafe { function(ptr::with_exposed_provenance_mut(argument)) }
        }),
    }
}

fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies the program's memory at a call.
pub fn stage(from: u64, bytes: u64) -> Vec<u8> {
    let mut staged = vec![0; bytes as usize];
    // SAFETY: the caller of the copy promised that so many bytes lie there.
    unsafe { ptr::copy_nonoverlapping(pointer(from).cast_const(), staged.as_mut_ptr(), staged.len()) };
    staged
}
