//! A client whose spilled arrays come back before they are needed: one thread, which looks after each launch.
//!
//! ```text
//!  a launch is under way  --wake-->  what do the next launches need that waits in the tier?  -->  bring it back  -->
//! wait
//! ```

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use crate::fork;

/// The thread of one client, if it has one.
#[derive(Default)]
pub struct Prefetcher {
    stop: Arc<AtomicBool>,
    /// Whether there is a thread, to be looked at without the lock: each launch asks.
    runs: AtomicBool,
    thread: Mutex<Option<(u32, JoinHandle<()>)>>,
}

impl Prefetcher {
    /// Starts the thread, which calls `prefetch` after each [`Self::wake`]: that works in steps ([`fork::step`]).
    pub fn start(&self, prefetch: impl Fn() + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        let run = move || {
            fork::work_in_steps();
            loop {
                thread::park();
                if stop.load(Ordering::Acquire) {
                    return;
                }
                prefetch();
            }
        };
        match thread::Builder::new().name("arena-prefetch".to_owned()).spawn(run) {
            Ok(handle) => {
                *self.thread.lock() = Some((process::id(), handle));
                self.runs.store(true, Ordering::Relaxed);
            }
            Err(error) => log::warn!("prefetch=on has no effect: no thread for it ({error})"),
        }
    }

    /// A launch is under way.
    pub fn wake(&self) {
        if self.runs.load(Ordering::Relaxed)
            && let Some((_, handle)) = &*self.thread.lock()
        {
            handle.thread().unpark();
        }
    }

    /// Ends the thread, and waits for it.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Release);
        let Some((process, handle)) = self.thread.lock().take() else { return };
        // A child after a fork lacks the thread.
        if process != process::id() {
            std::mem::forget(handle);
            return;
        }
        handle.thread().unpark();
        if handle.join().is_err() {
            log::error!("the thread that brings arrays back has panicked");
        }
    }
}
