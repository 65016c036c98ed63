//! Moves that fail or panic: nothing stays locked, the bytes are where the books say, and the next compaction works.

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
    memory::{Arena, Block, Provenance, Strategy},
    runtime::device_memory::Occupied,
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

struct Thing {
    block: Mutex<Block>,
    is_locked: AtomicBool,
    views: Arc<Views>,
}

struct Locked(Arc<Thing>, Option<Address>);

impl Resident for Thing {
    fn occupied(&self) -> Option<Occupied> {
        let block = *self.block.lock();
        Some(Occupied { block: block.id, size: block.size, provenance: Provenance::default() })
    }

    fn move_barrier(&self) -> Option<MoveBarrier> {
        None
    }

    fn lock_for_move(self: Arc<Self>, _: BlockId) -> Option<Box<dyn LockedForMove>> {
        assert!(!self.is_locked.swap(true, Ordering::SeqCst), "locked by one alone");
        Some(Box::new(Locked(self, None)))
    }
}

impl LockedForMove for Locked {
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
        let limit = Bytes::new(16 * SIZE.get());
        let device = FakeBacking::with_bytes(Bytes::gib(1), Bytes::kib(4));
        let arena = Arena::new("fake:0".into(), strategy, limit, Box::new(device.clone())).expect("an arena");
        let memory = DeviceMemory::new(arena, Box::new(device.clone()));
        let views = Arc::new(Views { prepared: AtomicU64::new(0), order: Mutex::new(None) });
        let blocks: Vec<Block> = (0..16).map(|_| memory.allocate(SIZE).expect("room")).collect();
        let mut things = Vec::new();
        for (number, block) in blocks.into_iter().enumerate() {
            if number % 2 == 0 {
                assert_eq!(memory.free(block.id), Ok(()));
                continue;
            }
            assert_eq!(device.write(block.address, &contents(number)), Ok(()));
            let (block, is_locked) = (Mutex::new(block), AtomicBool::new(false));
            let thing = Arc::new(Thing { block, is_locked, views: Arc::clone(&views) });
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
        for (number, thing) in self.things.iter().enumerate() {
            assert!(!thing.is_locked.load(Ordering::SeqCst), "{what}: a resident stays locked");
            let block = *thing.block.lock();
            assert!(blocks.iter().any(|info| info.block == block), "{what}: {block:?}");
            let held = self.device.read(block.address, SIZE).expect("inside");
            assert!(held == contents(2 * number + 1), "{what}: block {number} lost its bytes");
        }
        let stats = self.memory.stats();
        let parts =
            [stats.bytes_in_use, stats.pending_bytes, stats.slack_bytes, stats.reserved_bytes, stats.free_bytes];
        assert_eq!(parts.into_iter().sum::<Bytes>(), stats.pool_bytes, "{what}: {stats:?}");
        assert_eq!((stats.live_blocks, self.device.violations()), (8, 0), "{what}");
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
