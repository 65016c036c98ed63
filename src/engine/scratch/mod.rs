//! Warm memory for what the engine allocates itself: programs' scratch, and results without a destination.
//!
//! ```text
//!  engine:  posix_memalign(64, n) or aligned_alloc(64, n)         free(p), realloc(p, n)
//!                |  n >= 1 MiB       |  else                           |
//!                v                   v                                 v
//!              pool                malloc              p inside of the pool's region ? pool : malloc
//!                |
//!              one region, best fit; pages that were touched stay
//! ```
//!
//! XLA:CPU takes a program's scratch from malloc for each run, and gives it back after it. From 32 MiB on glibc maps
//! and unmaps each allocation (`DEFAULT_MMAP_THRESHOLD_MAX`), so that every run touches all of it anew: a quarter of
//! the time of a small transformer's training step. No option of the engine takes another allocator, and PJRT has no
//! argument for one. What is left is the place where the engine's library meets malloc: the entries of its import table
//! (`imports`).
//!
//! Why it is sound:
//! - Only the engine's own imports change, in this process's copy; malloc, and who else calls it, stay as they are.
//! - `free` and `realloc` change first, and tell memory of the pool by its address, so they serve both kinds always. A
//!   failure on the way leaves them behind, which changes nothing.
//! - What is taken over is what comes from `posix_memalign` and `aligned_alloc`. C requires that it goes back through
//!   `free` or `realloc`, and C++'s `delete` for it has no `new`. XLA wraps both in a pair of its own
//!   (`tsl::port::AlignedMalloc`, `AlignedFree`).
//! - Other functions of malloc's that take an address (`TAKERS`) would take one of the pool for their own. Where the
//!   library imports one of them, there is no pool.
//! - `malloc` is left alone: the engine's other libraries share it.
//! - The pool is never unmapped, and neither library is unloaded.
//!
//! Setting the thresholds of glibc instead (`mallopt`) was measured: it reaches 64 MiB in all for each of the engine's
//! threads (`HEAP_MAX_SIZE`), and changes malloc for the whole process.

use std::{
    ffi::{CStr, c_int, c_void},
    mem::{self, MaybeUninit},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    engine::{
        imports, order,
        scratch::pool::{ALIGN, Discard, Pool},
    },
    error::{Error, Result},
    fork,
    memory::{Arena, ArenaGuard, Backing},
    sync::Mutex,
    units::Bytes,
};

mod pool;

pub use crate::engine::scratch::pool::Usage;

/// Allocations from this size on are the pool's: what malloc keeps below it costs few page faults.
const LEAST: usize = 1 << 20;

/// Functions of malloc's that take an address, besides those that are replaced. No engine that is known imports one.
const TAKERS: [&CStr; 5] = [c"malloc_usable_size", c"reallocarray", c"free_sized", c"free_aligned_sized", c"cfree"];

static POOL: OnceLock<Pool> = OnceLock::new();

/// Whether new allocations go to the pool. What lies in it is freed there all the same.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Lets the library that `inside` belongs to take its large allocations from memory that `backing` gives, at most
/// `limit`, once [`open`] says so. To be called once, before the library has threads.
///
/// # Errors
/// The library's import table cannot be read or written, or has a function of malloc's that would be given memory of
/// the pool; or there is no address space. The library works on as before.
///
/// # Safety
/// `inside` must be the address of a function of a library that is never unloaded, and no other thread may be resolving
/// its imports.
pub unsafe fn install(inside: *const c_void, backing: Box<dyn Backing>, limit: Bytes, discard: Discard) -> Result<()> {
    // SAFETY: the library is never unloaded, as this function asks.
    if let Some(taker) = unsafe { imports::first_imported(inside, &TAKERS)? } {
        let taker = taker.to_string_lossy();
        return Err(Error::unimplemented(format!("the engine imports {taker}, which does not know memory of a pool")));
    }
    let pool = Pool::new(backing, limit, discard)?;
    // SAFETY: the functions have the types of those that they replace, and behave like them; the library is never
    // unloaded, and no other thread is resolving its imports, as this function asks.
    unsafe {
        imports::redirect(inside, &[(c"free", free as *const c_void), (c"realloc", realloc as *const c_void)])?;
        if POOL.set(pool).is_ok() {
            hold_over_forks();
            // XLA calls one or the other, by its version: that of PJRT 0.115 does not import `aligned_alloc`.
            let posix = imports::redirect(inside, &[(c"posix_memalign", posix_memalign as *const c_void)]);
            let c = imports::redirect(inside, &[(c"aligned_alloc", aligned_alloc as *const c_void)]);
            posix.or(c)?;
        }
    }
    Ok(())
}

/// The lock of the pool's arena, while the process forks.
static LOCKED: Mutex<Option<ArenaGuard<'static>>> = Mutex::new(None);

/// Keeps the engine's threads off the pool while the process forks. The pool stands in for `malloc`, whose locks C
/// holds at that time: a child whose parent's engine was allocating could not start an engine of its own.
fn hold_over_forks() {
    // Nobody has the mutex without the arena's lock, so a child finds it free.
    let take = || {
        let guard = POOL.get().map(|pool| pool.memory().0.lock());
        *LOCKED.lock() = guard;
    };
    let release = || {
        let guard = LOCKED.lock().take();
        drop(guard);
    };
    fork::hold_over_forks(take, release);
}

/// Says whether the engine's large allocations come from the pool from here on, if there is one.
pub fn open(open: bool) {
    OPEN.store(open, Ordering::Relaxed);
}

/// The pool's numbers; `None` before [`install`].
pub fn usage() -> Option<Usage> {
    POOL.get().map(Pool::usage)
}

/// Gives the pages that nothing uses back to the system, and returns their sum.
pub fn discard_holes() -> Bytes {
    POOL.get().map_or(Bytes::ZERO, Pool::discard_holes)
}

/// Gives pages that nothing uses back to the system, `bytes` of them, those at the upper end first. Returns their sum.
pub fn trim(bytes: Bytes) -> Bytes {
    POOL.get().map_or(Bytes::ZERO, |pool| pool.trim(bytes))
}

/// Calls `watcher` whenever the pool touches new memory `beyond` so many bytes: in the engine's allocation, so it must
/// be short and call nothing of the engine. Only the first one counts.
pub fn watch(beyond: Bytes, watcher: fn()) {
    if let Some(pool) = POOL.get() {
        pool.watch(beyond, watcher);
    }
}

/// The pool's arena, and what gives its pages back; `None` before [`install`].
pub fn memory() -> Option<(&'static Arena, &'static Discard)> {
    POOL.get().map(Pool::memory)
}

/// Says that the pages of the pool's holes went back, but for the lowest `keep` bytes.
pub fn cooled(keep: Bytes) {
    if let Some(pool) = POOL.get() {
        pool.cooled(keep);
    }
}

/// A place in the pool for an allocation of the engine's; NULL where it is not the pool's.
fn place(align: usize, size: usize) -> *mut c_void {
    let aligned = align.is_power_of_two() && (size_of::<*mut c_void>()..=ALIGN).contains(&align);
    // A wrong alignment is malloc's to refuse.
    if size < LEAST || !aligned || !OPEN.load(Ordering::Relaxed) {
        return ptr::null_mut();
    }
    // No panic may unwind into the engine; the arena has none that we know of.
    let found = catch_unwind(|| POOL.get().and_then(|pool| pool.allocate(size)));
    found.ok().flatten().unwrap_or(ptr::null_mut())
}

/// `posix_memalign`, whose `out` is a place to write to.
extern "C" fn posix_memalign(out: &mut MaybeUninit<*mut c_void>, align: usize, size: usize) -> c_int {
    let found = place(align, size);
    if found.is_null() {
        // SAFETY: there is a place to write to, which is written where there was no error, and malloc refuses an
        // alignment that it does not take.
        unsafe {
            let error = libc::posix_memalign(out.as_mut_ptr(), align, size);
            if error == 0 {
                order::given(out.assume_init());
            }
            return error;
        }
    }
    order::given(found);
    out.write(found);
    0
}

extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    let found = place(align, size);
    if found.is_null() {
        // SAFETY: allocating has no precondition: malloc refuses an alignment that it does not take.
        let found = unsafe { libc::aligned_alloc(align, size) };
        order::given(found);
        return found;
    }
    order::given(found);
    found
}

/// `free`, as C has it.
///
/// # Safety
/// As for `free`: the engine frees what it was given, once.
unsafe extern "C" fn free(address: *mut c_void) {
    order::taken(address);
    // A handler may have written to it.
    order::taken(&raw const order::CALLED);
    // SAFETY: it is NULL or an allocation that was not freed, as this function asks: the pool's, or else malloc's.
    unsafe {
        match POOL.get().and_then(|pool| pool.find(address)) {
            Some(allocation) => drop(catch_unwind(AssertUnwindSafe(|| allocation.free()))),
            None => libc::free(address),
        }
    }
}

/// `realloc`, as C has it.
///
/// # Safety
/// As for `realloc`.
unsafe extern "C" fn realloc(address: *mut c_void, size: usize) -> *mut c_void {
    order::taken(address);
    // SAFETY: it is NULL or an allocation that was not freed, as this function asks: malloc's, or else the pool's. The
    // new one is as long as asked for, and not in the pool, so that the two do not overlap. The old one is freed once.
    unsafe {
        let found = POOL.get().and_then(|pool| pool.find(address));
        let moved = if let Some(allocation) = found {
            let moved = libc::malloc(size);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(address.cast::<u8>(), moved.cast(), size.min(allocation.size()));
                free(address);
            }
            moved
        } else {
            libc::realloc(address, size)
        };
        order::given(moved);
        moved
    }
}

// The functions stand in for libc's, so their types must be its own.
const _: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int = libc::posix_memalign;
const _: () = assert!(mem::size_of::<usize>() == mem::size_of::<libc::size_t>());
