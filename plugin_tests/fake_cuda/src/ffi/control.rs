//! What tests ask for beside the driver: through a library that was opened these are C functions.

use std::ffi::{c_char, c_int, c_void};

use super::{In, Out};
use crate::{
    control,
    host_kernel::{self, FakeCudaRange},
    state::call,
    status::{self, Failure, Status, misuse},
};

/// Puts `run(argument)` into a stream. It plays a kernel that reads and writes these ranges, and nothing else, on the
/// stream's GPU. It may call the driver, because it may stand for a program that works on the host as well.
///
/// # Safety
/// `run` may be called once with `argument` from any thread; the lists have the lengths that are given with them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_kernel(
    stream: usize,
    run: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: usize,
    reads: In<FakeCudaRange>,
    read_count: usize,
    writes: In<FakeCudaRange>,
    write_count: usize,
) -> Status {
    call("fake_cuda_kernel", |driver| {
        let run = run.ok_or_else(|| misuse(status::INVALID_VALUE, "the function is null"))?;
        host_kernel::launch(driver, stream, (run, argument), &reads.list(read_count)?, &writes.list(write_count)?)
    })
}

/// Writes the violations so far, a sentence a line, as far as `capacity` goes with the NUL at the end; gives their
/// number.
///
/// # Safety
/// `out` is null, or `capacity` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_violations(out: Out<u8>, capacity: usize) -> usize {
    let (count, lines) = control::lines();
    if capacity > 0 {
        // Null where only the number is wanted.
        let shown = lines.as_bytes().iter().copied().take(capacity - 1).chain([0]);
        let _ = out.put_all(shown);
    }
    count
}

/// Forgets the violations so far, and what an illegal access has done to the contexts.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_reset_violations() {
    control::reset_violations();
}

/// Sets what the environment sets as `FAKE_CUDA_` with the name in capitals. A value that is not allowed is said on
/// stderr and gives CUDA_ERROR_INVALID_VALUE.
///
/// | | |
/// |---|---|
/// | `gpus` | how many, set before `cuInit` |
/// | `memory` | of each, in bytes, or `64MiB` |
/// | `latency_us` | of each operation of a stream |
/// | `peer`, `pools`, `rdma` | 0 or 1: whether the GPUs reach each other, have pools, have memory for network cards |
/// | `segment` | the unit in which a pool takes memory, as for `memory` |
/// | `fail` | `symbol:n` or `symbol:n:code`: the `n`th call from now on, 1 is the next one, gives that code, or out of memory |
/// | `strict` | 1: a violation is said on stderr, and the process ends with status 70 |
/// | `guard` | 1: the host is ended where it touches a GPU's own memory while no operation runs |
///
/// # Safety
/// Both are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_configure(name: In<c_char>, value: In<c_char>) -> Status {
    let done = || -> Result<(), Failure> {
        control::configure(name.text()?, value.text()?).map_err(|why| {
            eprintln!("fake_cuda: {why}");
            Failure::from(status::INVALID_VALUE)
        })
    };
    done().map_or_else(|failure| failure.code, |()| status::SUCCESS)
}

/// Calls of a function so far, those that failed included.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_counts(name: In<c_char>) -> u64 {
    name.text().map_or(0, control::count)
}

/// Says that the host reads, or with `write` writes, a range now.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_host_access(address: u64, bytes: u64, write: c_int) {
    control::host_access(address, bytes, write != 0);
}

/// Ends all work and makes the driver what it was at first, as after the start of the process.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_reset() {
    control::reset();
}

/// The functions of this module, by name.
pub(super) const TABLE: &[(&str, *const ())] = &[
    ("fake_cuda_kernel", fake_cuda_kernel as *const ()),
    ("fake_cuda_violations", fake_cuda_violations as *const ()),
    ("fake_cuda_reset_violations", fake_cuda_reset_violations as *const ()),
    ("fake_cuda_configure", fake_cuda_configure as *const ()),
    ("fake_cuda_counts", fake_cuda_counts as *const ()),
    ("fake_cuda_host_access", fake_cuda_host_access as *const ()),
    ("fake_cuda_reset", fake_cuda_reset as *const ()),
];
