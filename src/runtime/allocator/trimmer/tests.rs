use std::{ptr, slice};

use super::*;
use crate::{
    device::host::HostBacking,
    memory::{Block, Strategy},
};

/// A device in the host's memory.
fn device(strategy: Strategy, limit: Bytes) -> Arc<DeviceMemory> {
    let host = HostBacking::new();
    let arena = Arena::new("idle:0".into(), strategy, limit, Box::new(host.clone())).unwrap();
    DeviceMemory::new(arena, Box::new(host))
}

fn round(memory: &Arc<DeviceMemory>) -> Round {
    let devices = vec![(Arc::downgrade(memory), Watched::new(idle::DELAY))];
    let process = Growth::default();
    Round { devices, in_flight: Weak::new(), newest: 0, scratch: None, process, delay: idle::DELAY }
}

fn start(block: &Block) -> *mut u8 {
    ptr::with_exposed_provenance_mut(block.address.get() as usize)
}

fn filled(memory: &DeviceMemory, mib: u64, with: u8) -> Block {
    let block = memory.allocate(Bytes::mib(mib)).unwrap();
    // SAFETY: the block is the test's own, and so long.
    unsafe { start(&block).write_bytes(with, block.size.get() as usize) };
    block
}

fn holds(block: &Block, mark: u8) -> bool {
    // SAFETY: the block is the test's own, and so long.
    unsafe { slice::from_raw_parts(start(block), block.size.get() as usize) }.iter().all(|&byte| byte == mark)
}

/// KiB of all regions that are in memory.
fn resident(memory: &DeviceMemory) -> Bytes {
    let page = 4096;
    let of = |region: AddressRange| {
        let mut pages = vec![0u8; (region.bytes.get() / page) as usize];
        let start = ptr::with_exposed_provenance_mut(region.address.get() as usize);
        // SAFETY: one byte for each page of a region.
        let refused = unsafe { libc::mincore(start, region.bytes.get() as usize, pages.as_mut_ptr().cast()) };
        assert_eq!(refused, 0);
        Bytes::new(pages.iter().filter(|&page| page & 1 != 0).count() as u64 * page)
    };
    memory.regions().into_iter().map(of).sum()
}

fn trim_at(round: &mut Round, tenth: u64) {
    round.trim(Duration::from_millis(100 * tenth), &|| false);
}

#[test]
fn what_is_dropped_goes_back_and_what_lives_stays() {
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Tpu] {
        let memory = device(strategy, Bytes::mib(512));
        let mut round = round(&memory);
        let all: Vec<Block> = (1..=8).map(|number| filled(&memory, 16, number)).collect();
        trim_at(&mut round, 5);
        assert!(resident(&memory) >= Bytes::mib(128), "{strategy}");
        let (kept, dropped): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(number, _)| number % 4 == 1);
        dropped.iter().for_each(|(_, block)| memory.free(block.id).unwrap());
        // The window in which they were dropped, and one more.
        trim_at(&mut round, 10);
        trim_at(&mut round, 15);
        assert!(strategy == Strategy::Growing || resident(&memory) >= Bytes::mib(128), "{strategy}: too soon");
        trim_at(&mut round, 20);
        let after = resident(&memory);
        assert!((Bytes::mib(32)..=Bytes::mib(33)).contains(&after), "{strategy}: {after}");
        for (number, block) in &kept {
            assert!(holds(block, *number as u8 + 1), "{strategy}: block {number}");
        }
        assert!(holds(&filled(&memory, 200, 9), 9));
    }
}

#[test]
fn what_is_used_from_time_to_time_stays() {
    let memory = device(Strategy::Preallocate, Bytes::mib(512));
    let mut round = round(&memory);
    let block = filled(&memory, 256, 1);
    memory.free(block.id).unwrap();
    for round_number in 1..20 {
        // A program between two looks.
        memory.free(filled(&memory, 100, 2).id).unwrap();
        trim_at(&mut round, 5 * round_number);
    }
    let after = resident(&memory);
    assert!((Bytes::mib(100)..=Bytes::mib(101)).contains(&after), "{after}");
    let first = memory.regions()[0].address;
    assert_eq!(filled(&memory, 100, 3).address, first, "in the pages that stayed");
    assert!(resident(&memory) <= Bytes::mib(101));
}

#[test]
fn before_the_process_is_larger_than_ever_what_nobody_used_since_the_last_look_goes_back() {
    for strategy in [Strategy::Preallocate, Strategy::Tpu] {
        let memory = device(strategy, Bytes::mib(512));
        let mut round = round(&memory);
        let look = |round: &mut Round| {
            // As of a process that was never looked at.
            round.process = Growth::default();
            round.look(&|| false)
        };
        let (kept, dropped) = (filled(&memory, 64, 1), filled(&memory, 128, 2));
        memory.free(dropped.id).unwrap();
        assert_eq!(look(&mut round), Look::Exceeds);
        assert!(resident(&memory) >= Bytes::mib(192), "{strategy}: it was used since the last look");
        memory.free(filled(&memory, 40, 3).id).unwrap();
        assert_eq!(look(&mut round), Look::Exceeds);
        let after = resident(&memory);
        assert!((Bytes::mib(104)..=Bytes::mib(105)).contains(&after), "{strategy}: {after}");
        // A process that is no larger gives nothing back.
        round.process.record_release(Bytes::gib(1 << 20));
        assert_ne!(round.look(&|| false), Look::Exceeds);
        assert_eq!(resident(&memory), after);
        assert!(holds(&kept, 1));
        assert!(holds(&filled(&memory, 200, 4), 4));
    }
}

#[test]
fn the_rest_of_a_plan_is_dropped_when_use_rises() {
    let memory = device(Strategy::Preallocate, Bytes::mib(512));
    memory.free(filled(&memory, 128, 1).id).unwrap();
    memory.end_window();
    let mut surplus = memory.surplus(Bytes::ZERO);
    let mut given = Vec::new();
    let mut next = |surplus: &mut _| {
        memory.discard_next(surplus, |region| {
            given.push(region);
            region.bytes
        })
    };
    // The first piece ends at a multiple of its size.
    assert!(next(&mut surplus).is_some_and(|bytes| bytes <= Bytes::mib(16)));
    assert_eq!(next(&mut surplus), Some(Bytes::mib(16)));
    let block = memory.allocate(Bytes::new(1)).unwrap();
    assert_eq!(next(&mut surplus), None);
    memory.free(block.id).unwrap();
    memory.end_window();
    memory.end_window();
    assert_eq!(next(&mut surplus), None, "it is gone");
    assert_eq!(given.len(), 2);
}

#[test]
fn what_is_warm_is_known_and_can_go_at_once() {
    let memory = device(Strategy::Preallocate, Bytes::mib(512));
    let (first, second) = (filled(&memory, 64, 1), filled(&memory, 128, 2));
    memory.free(first.id).unwrap();
    assert_eq!(memory.warm(), (Bytes::mib(128), Bytes::mib(192)));
    assert_eq!(memory.rises_by(Bytes::mib(64)), Bytes::ZERO);
    assert_eq!(memory.rises_by(Bytes::mib(100)), Bytes::mib(36));
    // In the window in which more was used.
    let mut surplus = memory.surplus(Bytes::mib(160)).at_once();
    // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
    while memory.discard_next(&mut surplus, |hole| unsafe { memory.discard(hole) }).is_some() {}
    assert_eq!(memory.warm(), (Bytes::mib(128), Bytes::mib(160)));
    assert!(resident(&memory) <= Bytes::mib(161));
    memory.cooled(Bytes::mib(64));
    assert_eq!(memory.warm().1, Bytes::mib(128), "what is used is warm");
    assert!(holds(&second, 2));
}

#[test]
fn the_thread_gives_back_and_ends() {
    let memory = device(Strategy::Preallocate, Bytes::mib(256));
    let (trimmer, tick) = (Trimmer::default(), Duration::from_millis(20));
    let block = filled(&memory, 128, 1);
    trimmer.wake([&memory].into_iter(), &Arc::default(), TrimInterval { tick, delay: 2 * tick });
    assert!(trimmer.is_awake());
    thread::sleep(3 * tick);
    memory.free(block.id).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while resident(&memory) > Bytes::mib(1) && Instant::now() < deadline {
        thread::sleep(tick);
    }
    assert!(resident(&memory) <= Bytes::mib(1));
    // The thread keeps nothing alive, and skips a device that is gone.
    let gone = Arc::downgrade(&memory);
    drop(memory);
    while gone.strong_count() > 0 && Instant::now() < deadline {
        thread::sleep(tick);
    }
    assert_eq!(gone.strong_count(), 0);
    trimmer.end();
    trimmer.end();
}

#[test]
fn a_thread_ends_before_its_tick_and_none_starts_after() {
    let memory = device(Strategy::Preallocate, Bytes::mib(1));
    let hour = Duration::from_secs(3600);
    let interval = TrimInterval { tick: hour, delay: hour };
    let trimmer = Trimmer::default();
    trimmer.wake([&memory].into_iter(), &Arc::default(), interval);
    trimmer.end();
    let never = Trimmer::default();
    never.end();
    never.wake([&memory].into_iter(), &Arc::default(), interval);
    assert!(never.thread.lock().is_none());
}
