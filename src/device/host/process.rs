//! This process as the system sees it: its memory, its threads, and what malloc keeps.

use std::fs;

use rustix::param::page_size;

use crate::units::Bytes;

/// The fields of `/proc/self/statm`, in bytes: all, resident, of files, text, 0, data and stack, 0. Fewer where the
/// kernel does not say.
pub(super) fn sizes() -> Vec<Bytes> {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
    pages.map(|pages| Bytes::new(pages * page_size() as u64)).collect()
}

/// How many threads this process has; 0 where the kernel does not say.
pub(super) fn threads() -> u64 {
    fs::read_dir("/proc/self/task").map_or(0, |threads| threads.count() as u64)
}

/// Pages of this process that are resident and no file's, which the system takes back by itself; `None` where the
/// kernel does not say. Shared memory counts as a file's. A call of the system.
pub fn resident() -> Option<Bytes> {
    let sizes = sizes();
    Some(sizes.get(1)?.saturating_sub(*sizes.get(2)?))
}

/// Has malloc give whole pages that it keeps free back to the system; nothing where malloc is not glibc's. Each of
/// malloc's arenas is locked meanwhile: a millisecond where little is free, 0.2 s for each GiB that goes back.
pub fn trim_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread. What it gives back is free, and malloc knows that it has no
    // contents. Another malloc that stands in for glibc's leaves it nothing to give.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the threads of the process share two of malloc's arenas, unless it has more already; nothing where malloc is not
/// glibc's. Each arena takes 64 MiB of addresses, and by itself malloc makes eight for each processor.
pub fn share_malloc_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the parameter is one that mallopt knows, and the value one that it takes. It may be called at any time: it
    // has the lock of malloc's main arena, and what other threads may read of it meanwhile is one word.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::c_void, hint::black_box};

    use super::*;

    #[test]
    fn what_malloc_keeps_goes_back() {
        // Below malloc's threshold for mappings, and divided by what stays, so that only the call gives it back.
        let block = || black_box(vec![1_u8; 100 << 10]);
        let (dropped, kept): (Vec<_>, Vec<_>) = (0..640).map(|_| (block(), black_box(vec![1_u8; 64]))).unzip();
        assert!(resident() >= Some(Bytes::mib(62)));
        let middles: Vec<*mut c_void> = dropped
            .iter()
            .map(|block| block.as_ptr().map_addr(|address| (address + (50 << 10)) & !4095).cast_mut().cast())
            .collect();
        drop(dropped);
        trim_malloc();
        let gone = |&page: &*mut c_void| {
            let mut state = 0;
            // SAFETY: one byte for one page; an address that is not mapped is an answer, too.
            unsafe { libc::mincore(page, 1, &raw mut state) != 0 || state & 1 == 0 }
        };
        let gone = middles.iter().filter(|page| gone(page)).count();
        // Other tests run at the same time, and may have some of it.
        assert!(gone > 320 || cfg!(not(target_env = "gnu")), "{gone} of 640");
        drop(kept);
    }
}
