//! Devices that go to sleep by themselves, once nothing was done on them for a while: one thread of the process.
//!
//! ```text
//!  every second:   programs and allocations of each device   the same as before, for so long?  ->  sleep, once
//! ```
//!
//! It acts as a caller of `pjrt_arena_sleep` in a thread of its own would: no client ends meanwhile.

use std::{
    process,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    fork,
    runtime::{
        allocator::sleep::{Asleep, sleep},
        client::{Client, guard_all},
        device_memory::DeviceMemory,
    },
};

/// How often the thread looks.
const TICK: Duration = Duration::from_secs(1);

/// What is known of one device.
struct Watched {
    memory: Weak<DeviceMemory>,
    /// Programs launched, and arrays made.
    work: (u32, u64),
    /// Since when that is so.
    since: Instant,
    asleep: bool,
}

/// Starts the thread, once for the process, if devices of this client are to go to sleep.
pub fn watch(client: &Client) {
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let spills = client.allocator.memories.iter().any(|memory| memory.tier.is_some());
    let wanted = client.allocator.settings.sleep_after.value.0.is_some() && spills;
    // A child after a fork lacks the thread of its parent.
    if !wanted || PROCESS.swap(process::id(), Ordering::Relaxed) == process::id() {
        return;
    }
    if let Err(error) = thread::Builder::new().name("arena-sleep".to_owned()).spawn(run) {
        log::warn!("no device goes to sleep by itself: no thread for it ({error})");
    }
}

fn run() {
    fork::work_in_steps();
    let mut all: Vec<Watched> = Vec::new();
    loop {
        thread::sleep(TICK);
        all.retain(|watched| watched.memory.strong_count() > 0);
        for client in fork::step(guard_all) {
            let Some(after) = client.allocator.settings.sleep_after.value.0 else { continue };
            for memory in client.allocator.memories.iter().filter(|memory| memory.tier.is_some()) {
                look_at(&client, memory, after, &mut all);
            }
        }
    }
}

/// Sends one device to sleep, if nothing was done on it for so long.
fn look_at(client: &Client, memory: &Arc<DeviceMemory>, after: Duration, all: &mut Vec<Watched>) {
    let (work, is_busy) =
        fork::step(|| ((memory.runs(), memory.stats().allocations_total), client.allocator.in_flight.is_busy()));
    let Some(known) = all.iter_mut().find(|known| std::ptr::eq(known.memory.as_ptr(), &raw const **memory)) else {
        all.push(Watched { memory: Arc::downgrade(memory), work, since: Instant::now(), asleep: false });
        return;
    };
    if known.work != work || is_busy {
        (known.work, known.since, known.asleep) = (work, Instant::now(), false);
    }
    if known.asleep || known.since.elapsed() < after {
        return;
    }
    known.asleep = true;
    match sleep(&client.allocator, memory) {
        Ok(Asleep { spilled, given, .. }) => {
            log::info!("{} sleeps: {spilled} of arrays were spilled, {} went back", memory.name(), given.bytes);
        }
        Err(error) => log::warn!("{error}"),
    }
}
