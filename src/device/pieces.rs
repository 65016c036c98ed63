//! Work in pieces, on the caller's thread and a few helpers.
//!
//! Each thread takes the next piece when it is done with one, so that a helper that starts late, or shares its
//! processor with a program, costs little: the others do its pieces.

use std::{sync::LazyLock, thread};

use parking_lot::Mutex;

/// Most threads that work together, the caller's among them: what lies in one memory gains little from more.
const MOST: usize = 8;

/// Threads that may work together here. Asking the system takes longer than copying a MiB, so it is asked once.
static THREADS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, |n| n.get().min(MOST)));

/// Calls `work` once with each piece, on at most `wanted` threads; returns when all are done. Where no thread can be
/// had the caller's does it all. Starting a helper costs about 30 us, and taking a piece a lock.
pub fn each<T>(pieces: impl ExactSizeIterator<Item = T> + Send, wanted: usize, work: impl Fn(T) + Sync) {
    let threads = wanted.min(pieces.len()).min(*THREADS);
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().next();
    let labour = || {
        while let Some(piece) = next() {
            work(piece);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().name("pjrt-arena-copy".into()).spawn_scoped(scope, labour).is_err() {
                break;
            }
        }
        labour();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_piece_is_done_once_however_many_threads_there_are() {
        for (pieces, wanted) in [(0, 4), (1, 4), (7, 0), (7, 1), (1000, 2), (1000, 64)] {
            let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            each(0..pieces, wanted, |piece| {
                done[piece].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{pieces} {wanted}");
        }
    }
}
