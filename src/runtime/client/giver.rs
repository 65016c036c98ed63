//! A client whose devices are shared gives memory back that other processes ask for: one thread for each such client.
//!
//! ```text
//!  wait for asks  ->  for each device: what do the others want of this one?  ->  give it  ->  wait
//! ```
//!
//! No fork begins while it acts, as a child would find its locks taken.

use std::{
    process,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{fork, group::Group};

/// How often the thread looks without being asked, after members that have died and the group's file.
const TICK: Duration = Duration::from_secs(1);

/// How soon it looks again while somebody asks: what is in use now may lie idle then.
const SOON: Duration = Duration::from_millis(20);

/// The thread of one client.
#[derive(Default)]
pub struct Giver {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<Running>>,
}

/// A thread that was started.
struct Running {
    process: u32,
    group: Weak<Group>,
    handle: JoinHandle<()>,
}

impl Giver {
    /// Starts the thread, for a client whose devices `group` shares. `give` gives what the others want, as far as it
    /// can, and says whether they still ask.
    pub fn start(&self, group: &Arc<Group>, give: impl Fn() -> bool + Send + 'static) {
        fork::register_handlers();
        let (weak, group, stop) = (Arc::downgrade(group), Arc::clone(group), Arc::clone(&self.stop));
        match thread::Builder::new().name("arena-group".to_owned()).spawn(move || run(&group, &stop, give)) {
            Ok(handle) => *self.thread.lock() = Some(Running { process: process::id(), group: weak, handle }),
            Err(error) => log::warn!("no thread gives memory back to other processes of the group ({error})"),
        }
    }

    /// Ends the thread, and waits for it.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Release);
        let Some(Running { process, group, handle }) = self.thread.lock().take() else { return };
        // A child after a fork lacks the thread.
        if process != process::id() {
            std::mem::forget(handle);
            return;
        }
        if let Some(group) = group.upgrade() {
            group.end_waits();
        }
        if handle.join().is_err() {
            log::error!("the thread that gives memory back to other processes has panicked");
        }
    }
}

fn run(group: &Group, stop: &AtomicBool, give: impl Fn() -> bool) {
    let mut seen = group.asks();
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() >= TICK {
            group.look_after();
            looked = Instant::now();
        }
        // Asks that come from here on end the wait below.
        let wanted = fork::passing(&give);
        if stop.load(Ordering::Acquire) {
            return;
        }
        seen = group.wait_for_asks(seen, if wanted { SOON } else { TICK });
    }
}
