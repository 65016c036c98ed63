//! Kernels that are functions of the program, run on the host: what they use is said beforehand.
//!
//! ```text
//!  fake_cuda_kernel(stream, function, argument, reads, writes)      noted for the detector at the call, as copies are
//! ```

use crate::{
    memory::{Home, User},
    operation::{Callback, Order, Work},
    state::Driver,
    status::{self, Answer, misuse},
};

/// A range of the program's that a kernel uses, as C has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FakeCudaRange {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Puts a function into a stream that plays a kernel with these accesses.
pub fn launch(
    driver: &mut Driver,
    handle: usize,
    callback: Callback,
    reads: &[FakeCudaRange],
    writes: &[FakeCudaRange],
) -> Answer {
    let (line, gpu) = driver.line_to_use(handle)?;
    let mut order = Order::new("fake_cuda_kernel", Work::Kernel(callback));
    let ranges = reads.iter().map(|range| (range, false)).chain(writes.iter().map(|range| (range, true)));
    for (range, write) in ranges.filter(|(range, _)| range.bytes > 0) {
        let place = driver.place(User::Kernel(gpu), range.address, range.bytes, write);
        let place = place.map_err(|why| misuse(status::INVALID_VALUE, why))?;
        if place.home == Home::Pageable {
            let why = format!("{} bytes at {:#x} are no memory that a GPU reaches", range.bytes, range.address);
            return Err(misuse(status::INVALID_VALUE, why));
        }
        order.uses.push((place, write));
    }
    driver.issue(line, order).map(|_| ())
}
