//! Moves that fail or panic: nothing stays locked, the bytes are where the books say, and the next compaction works.
//! And pins: who makes way, and who is seen to stay.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::*;
use crate::{
    device::{
        Carrier, HostArray,
        fake::{Call, FakeBacking, Fault},
    },
    error::Error,
    memory::{Arena, Block, Provenance, Strategy, next_use::UseKey},
    runtime::{
        device_memory::{Allocation, Occupied, Spillable},
        shape::Shape,
    },
    units::Address,
};

impl Carrier for FakeBacking {
    fn is_host(&self) -> bool {
        true
    }

    unsafe fn upload(&self, _: HostArray<'_>, _: Address) -> Result<()> {
        Err(Error::unimplemented("no test uploads"))
    }

    unsafe fn copy(&self, _: Address, _: Address, _: Bytes) -> Result<()> {
        Err(Error::unimplemented("no test copies"))
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}

/// What happens when a view is prepared.
struct Views {
    prepared: AtomicU64,
    order: Mutex<Option<(u64, Fault)>>,
}

/// Why a resident does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// It says so.
    Barrier,
    /// It is in use when it is locked.
    Lock,
    /// It is gone, and its block is not free yet.
    Gone,
}

struct Thing {
    number: usize,
    block: Mutex<Block>,
    is_locked: AtomicBool,
    stays: Mutex<Option<Stays>>,
    views: Arc<Views>,
}

struct Locked(Arc<Thing>, Option<Address>);

impl Resident for Thing {
    fn occupied(&self) -> Option<Occupied> {
        let block = *self.block.lock();
        (*self.stays.lock() != Some(Stays::Gone)).then_some(Occupied {
            block: block.id,
            size: block.size,
            provenance: Provenance::default(),
        })
    }

    fn move_barrier(&self) -> Option<MoveBarrier> {
        (*self.stays.lock() == Some(Stays::Barrier)).then_some(MoveBarrier::InUse)
    }

    fn may_spill(&self) -> bool {
        false
    }

    fn spillable(&self) -> Option<Spillable> {
        None
    }

    fn copy(&self) -> Option<BlockId> {
        None
    }

    fn forget_copy(&self) -> Bytes {
        Bytes::ZERO
    }

    fn use_key(&self) -> Option<UseKey> {
        None
    }

    fn waits(&self) -> Option<(Arc<Shape>, Provenance)> {
        None
    }

    fn bring_back(self: Arc<Self>, _: Allocation) -> crate::error::Result<bool> {
        Ok(false)
    }

    fn lock_to_spill(self: Arc<Self>, _: BlockId) -> Option<Box<dyn LockedForMove>> {
        None
    }

    fn lock_for_move(self: Arc<Self>, _: BlockId) -> Option<Box<dyn LockedForMove>> {
        if self.stays.lock().is_some() {
            return None;
        }
        assert!(!self.is_locked.swap(true, Ordering::SeqCst), "locked by one alone");
        Some(Box::new(Locked(self, None)))
    }
}

impl LockedForMove for Locked {
    fn address(&self) -> Option<Address> {
        Some(self.0.block.lock().address)
    }

    fn bytes(&self) -> Bytes {
        self.0.block.lock().size
    }

    unsafe fn prepare(&mut self, to: Address) -> Result<()> {
        let number = self.0.views.prepared.fetch_add(1, Ordering::SeqCst);
        match self.0.views.order.lock().take_if(|(at, _)| *at == number) {
            Some((_, Fault::Error)) => return Err(Error::internal("no view")),
            Some((_, Fault::Panic)) => panic!("no view"),
            None => {}
        }
        self.1 = Some(to);
        Ok(())
    }

    fn moved(self: Box<Self>) {
        self.0.block.lock().address = self.1.expect("it was prepared");
    }

    fn copy(&self) -> Option<Address> {
        None
    }

    fn spilled(self: Box<Self>, _: Option<Allocation>) -> Option<BlockId> {
        unreachable!("it may not be spilled");
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::SeqCst);
    }
}

const SIZE: Bytes = Bytes::kib(64);

struct World {
    device: FakeBacking,
    memory: Arc<DeviceMemory>,
    things: Vec<Arc<Thing>>,
    views: Arc<Views>,
}

impl World {
    /// 16 blocks, every second one free.
    fn new(strategy: Strategy) -> Self {
        Self::with_free(strategy, |number| number % 2 == 0)
    }

    /// 16 blocks, these of them free.
    fn with_free(strategy: Strategy, is_free: impl Fn(usize) -> bool) -> Self {
        let limit = Bytes::new(16 * SIZE.get());
        let device = FakeBacking::with_bytes(Bytes::gib(1), Bytes::kib(4));
        let arena = Arena::new("fake:0".into(), strategy, limit, Box::new(device.clone())).expect("an arena");
        let memory = DeviceMemory::new(arena, Box::new(device.clone()));
        let views = Arc::new(Views { prepared: AtomicU64::new(0), order: Mutex::new(None) });
        let blocks: Vec<Block> = (0..16).map(|_| memory.allocate(SIZE).expect("room")).collect();
        let mut things = Vec::new();
        for (number, block) in blocks.into_iter().enumerate() {
            if is_free(number) {
                assert_eq!(memory.free(block.id), Ok(()));
                continue;
            }
            assert_eq!(device.write(block.address, &contents(number)), Ok(()));
            let (block, is_locked, stays) = (Mutex::new(block), AtomicBool::new(false), Mutex::new(None));
            let thing = Arc::new(Thing { number, block, is_locked, stays, views: Arc::clone(&views) });
            let weak = Arc::downgrade(&thing);
            memory.residents.enter(thing.block.lock().id, weak);
            things.push(thing);
        }
        Self { device, memory, things, views }
    }

    fn compact(&self) -> std::thread::Result<Option<u64>> {
        let goal = Goal::Hole(Bytes::new(8 * SIZE.get()));
        catch_unwind(AssertUnwindSafe(|| carry_out(&self.memory, goal).ok().map(|compacted| compacted.buffers)))
    }

    /// Nothing is locked, every block is where its resident and the arena think, with its bytes.
    #[track_caller]
    fn check(&self, what: &str) {
        let blocks = self.memory.blocks();
        for thing in &self.things {
            assert!(!thing.is_locked.load(Ordering::SeqCst), "{what}: a resident stays locked");
            let block = *thing.block.lock();
            assert!(blocks.iter().any(|info| info.block == block), "{what}: {block:?}");
            let held = self.device.read(block.address, SIZE).expect("inside");
            assert!(held == contents(thing.number), "{what}: block {} lost its bytes", thing.number);
        }
        let stats = self.memory.stats();
        let parts =
            [stats.bytes_in_use, stats.pending_bytes, stats.slack_bytes, stats.reserved_bytes, stats.free_bytes];
        assert_eq!(parts.into_iter().sum::<Bytes>(), stats.pool_bytes, "{what}: {stats:?}");
        let live = (stats.live_blocks, self.device.violations());
        assert_eq!(live, (self.things.len() as u64, 0), "{what}");
    }

    /// The address of block `number` of the beginning.
    fn address(&self, number: u64) -> Address {
        self.memory.regions()[0].address + Bytes::new(number * SIZE.get())
    }
}

fn contents(number: usize) -> Vec<u8> {
    vec![number as u8; SIZE.get() as usize]
}

/// For each n until nothing fails any more.
#[test]
fn a_move_or_a_view_that_fails_or_panics_leaves_all_as_the_books_say() {
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Tpu] {
        for (fault, at_view) in
            [(Fault::Error, false), (Fault::Error, true), (Fault::Panic, false), (Fault::Panic, true)]
        {
            for n in 0.. {
                let what = format!("{strategy}: {fault:?} at {} {n}", if at_view { "view" } else { "move" });
                let world = World::new(strategy);
                if at_view {
                    *world.views.order.lock() = Some((n, fault));
                } else {
                    world.device.order(Call::Relocate, n, fault);
                }
                let outcome = world.compact();
                let happened =
                    if at_view { world.views.order.lock().take().is_none() } else { !world.device.countermand() };
                assert_eq!(outcome.is_err(), happened && fault == Fault::Panic, "{what}");
                world.check(&what);
                world.compact().expect("nothing is wrong any more");
                world.check(&what);
                assert!(
                    world.memory.allocate(Bytes::new(8 * SIZE.get())).is_ok(),
                    "{what}: a hole of half of the memory"
                );
                if !happened {
                    assert!(n > 1, "{what}: something moves");
                    break;
                }
            }
        }
    }
}

/// Of 16 blocks the lowest is free and the eighth pinned, so that one about to be pinned goes to the upper end, or
/// below the eighth.
#[test]
fn a_pin_finds_its_place_by_the_first_plan_or_learns_from_it_who_stays() {
    type Case = (&'static [(usize, Stays)], &'static [(usize, u64)]);
    // Who stays, and who has moved where in the end.
    let cases: [Case; 8] = [
        (&[], &[(15, 0), (9, 15)]),
        (&[(15, Stays::Barrier)], &[(6, 0), (9, 6)]),
        (&[(15, Stays::Lock)], &[(6, 0), (9, 6)]),
        (&[(15, Stays::Gone)], &[(6, 0), (9, 6)]),
        (&[(15, Stays::Lock), (6, Stays::Barrier)], &[]),
        (&[(9, Stays::Barrier)], &[]),
        (&[(9, Stays::Lock)], &[]),
        (&[(2, Stays::Gone), (12, Stays::Lock)], &[(15, 0), (9, 15)]),
    ];
    for strategy in [Strategy::Preallocate, Strategy::Tpu] {
        for (stay, expected) in cases {
            let what = format!("{strategy}: {stay:?}");
            let world = World::with_free(strategy, |number| number == 0);
            let thing = |number: usize| &world.things[number - 1];
            assert_eq!(world.memory.pin(thing(7).block.lock().id), Ok(()));
            stay.iter().for_each(|&(number, why)| *thing(number).stays.lock() = Some(why));
            let about_to_be_pinned: Arc<dyn Resident> = Arc::clone(thing(9)) as _;
            relocate_for_pin(&world.memory, &about_to_be_pinned);
            world.check(&what);
            for thing in &world.things {
                let moved = expected.iter().find(|(number, _)| *number == thing.number);
                let place = world.address(moved.map_or(thing.number as u64, |&(_, place)| place));
                assert_eq!(thing.block.lock().address, place, "{what}: block {}", thing.number);
            }
        }
    }
}
