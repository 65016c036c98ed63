//! Which arrays go, what a full tier costs, and what is told of it.

use std::{
    sync::{
        Weak,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use proptest::prelude::*;
use rustc_hash::FxHashSet;

use super::*;
use crate::{
    device::{Carrier, HostArray, Mover, fake::FakeBacking},
    error::Result,
    memory::{Arena, BlockId, MoveBarrier, Strategy, compaction::Costs, next_use::UseKey},
    runtime::{
        allocator::spill::foreseen::Foreseen,
        device_memory::{
            LockedForMove, Spillable,
            spill_record::{Launched, Used},
        },
    },
    units::Address,
};

const SIZE: Bytes = Bytes::kib(4);

/// Copies nothing, and fails once so many copies were made.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<(AtomicU64, Option<u64>)>);

impl Disk {
    fn copies(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }
}

impl Mover for Disk {
    fn costs(&self) -> Costs {
        Costs::COPY
    }

    unsafe fn relocate(&self, _: Address, _: Address, _: Bytes) -> Result<()> {
        Err(Error::unimplemented("no test compacts"))
    }

    unsafe fn discard(&self, _: Address, _: Bytes) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }
}

impl Carrier for Disk {
    fn is_host(&self) -> bool {
        true
    }

    unsafe fn upload(&self, _: HostArray<'_>, _: Address) -> Result<()> {
        Err(Error::unimplemented("no test uploads"))
    }

    unsafe fn copy(&self, _: Address, _: Address, _: Bytes) -> Result<()> {
        let number = self.0.0.fetch_add(1, Ordering::Relaxed);
        if self.0.1.is_some_and(|most| number >= most) {
            return Err(Error::new(Code::ResourceExhausted, "the disk is full"));
        }
        Ok(())
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}

/// An array, on the device or in the tier.
struct Array {
    number: u64,
    /// On the device.
    own: Mutex<Option<Allocation>>,
    /// In the tier: the copy of an array that is on the device, too, or the array.
    copy: Mutex<Option<Allocation>>,
    /// How often an array was looked at, of all of a world.
    looks: Arc<AtomicI64>,
}

struct Locked(Arc<Array>);

impl Array {
    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    fn is_on_device(&self) -> bool {
        self.own.lock().is_some()
    }
}

impl Resident for Array {
    fn occupied(&self) -> Option<Occupied> {
        self.look();
        let own = self.own.lock();
        let own = own.as_ref()?;
        Some(Occupied { block: own.block().id, size: own.size(), provenance: own.provenance() })
    }

    fn move_barrier(&self) -> Option<MoveBarrier> {
        self.look();
        None
    }

    fn may_spill(&self) -> bool {
        self.look();
        self.is_on_device()
    }

    fn spillable(&self) -> Option<Spillable> {
        self.look();
        let own = self.own.lock();
        let (size, copy) = (own.as_ref()?.size(), self.copy.lock().as_ref().map(|copy| copy.block().id));
        Some(Spillable { size, key: UseKey::Other(self.number), copy })
    }

    fn copy(&self) -> Option<BlockId> {
        self.look();
        self.copy.lock().as_ref().filter(|_| self.is_on_device()).map(|copy| copy.block().id)
    }

    fn forget_copy(&self) -> Bytes {
        self.look();
        let Some(copy) = self.copy.lock().take_if(|_| self.is_on_device()) else { return Bytes::ZERO };
        copy.memory().copies.fetch_sub(copy.size().get(), Ordering::Relaxed);
        copy.size()
    }

    fn use_key(&self) -> Option<UseKey> {
        self.look();
        Some(UseKey::Other(self.number))
    }

    fn waits(&self) -> Option<(Arc<Shape>, Provenance)> {
        None
    }

    fn bring_back(self: Arc<Self>, _: Allocation) -> Result<bool> {
        Ok(false)
    }

    fn lock_for_move(self: Arc<Self>, _: BlockId) -> Option<Box<dyn LockedForMove>> {
        None
    }

    fn lock_to_spill(self: Arc<Self>, _: BlockId) -> Option<Box<dyn LockedForMove>> {
        self.look();
        Some(Box::new(Locked(self)))
    }
}

impl LockedForMove for Locked {
    fn address(&self) -> Option<Address> {
        Some(self.0.own.lock().as_ref()?.block().address)
    }

    fn bytes(&self) -> Bytes {
        self.0.own.lock().as_ref().map_or(Bytes::ZERO, Allocation::size)
    }

    unsafe fn prepare(&mut self, _: Address) -> Result<()> {
        Ok(())
    }

    fn moved(self: Box<Self>) {}

    fn copy(&self) -> Option<Address> {
        Some(self.0.copy.lock().as_ref()?.block().address)
    }

    fn spilled(self: Box<Self>, block: Option<Allocation>) -> Option<BlockId> {
        let mut copy = self.0.copy.lock();
        match block {
            Some(block) => *copy = Some(block),
            None => _ = copy.as_ref()?.memory().copies.fetch_sub(self.bytes().get(), Ordering::Relaxed),
        }
        drop(self.0.own.lock().take());
        Some(copy.as_ref()?.block().id)
    }
}

/// A device that is full of arrays, and its tier.
struct World {
    memory: Arc<DeviceMemory>,
    arrays: Vec<Arc<Array>>,
    disk: Disk,
    looks: Arc<AtomicI64>,
}

impl World {
    /// Arrays of these sizes, each with a copy or without, and a tier of so many bytes that takes so many copies.
    fn new(sizes: &[(Bytes, bool)], limit: Bytes, most: Option<u64>) -> Self {
        let arena = |name: &str, strategy, limit: Bytes| {
            let backing = FakeBacking::new(limit + Bytes::mib(64), Bytes::kib(4));
            Arena::new(name.into(), strategy, limit, Box::new(backing)).expect("room")
        };
        let disk = Disk(Arc::new((AtomicU64::new(0), most)));
        let tier = DeviceMemory::new(arena("cpu:0 spill", Strategy::Growing, limit), Box::new(disk.clone()));
        let total: Bytes = sizes.iter().map(|&(size, _)| size).sum();
        let own = arena("cpu:0", Strategy::Preallocate, total + total);
        let memory = DeviceMemory::with(own, Box::new(disk.clone()), (None, Some(Arc::clone(&tier)), None));
        let looks: Arc<AtomicI64> = Arc::default();
        let allocate = |memory: &Arc<DeviceMemory>, size| {
            let block = memory.allocate(size).expect("room");
            Allocation::new(Arc::clone(memory), block, Bytes::ZERO, Provenance::default())
        };
        let array = |(number, &(size, has_copy)): (usize, &(Bytes, bool))| {
            let (own, copy) = (allocate(&memory, size), has_copy.then(|| allocate(&tier, size)));
            if has_copy {
                tier.copies.fetch_add(size.get(), Ordering::Relaxed);
            }
            let block = own.block().id;
            let array = Arc::new(Array {
                number: number as u64,
                own: Mutex::new(Some(own)),
                copy: Mutex::new(copy),
                looks: Arc::clone(&looks),
            });
            let weak: Weak<Array> = Arc::downgrade(&array);
            memory.residents.enter(block, weak);
            array
        };
        let arrays = sizes.iter().enumerate().map(array).collect();
        Self { memory, arrays, disk, looks }
    }

    fn tier(&self) -> &Tier {
        self.memory.tier.as_ref().expect("it has one")
    }

    fn spill(&self, enough: &Enough) -> Bytes {
        spill_until(&self.memory, self.tier(), enough, |_| true, || true)
    }

    /// A program uses the first arrays, so that the others go before them.
    fn use_first(&self, count: usize) {
        let used = |number| Used { key: UseKey::Other(number), bytes: SIZE, donated: false };
        let arguments = (0..count as u64).map(used).collect();
        let launch = Launched { step: 0, program: "use".into(), arguments, results: Vec::new() };
        self.tier().record.launched(1, launch, || self.memory.begin_run());
    }

    fn on_device(&self) -> Vec<u64> {
        self.arrays.iter().filter(|array| array.is_on_device()).map(|array| array.number).collect()
    }

    /// How often an array was looked at since the last call.
    fn looks(&self) -> i64 {
        self.looks.swap(0, Ordering::Relaxed)
    }
}

/// Looks at arrays while all of so many are to go to a tier that has room for one; and to one that is full of copies of
/// arrays that are used sooner.
fn looks_at_full_tiers(count: usize) -> [(i64, Duration); 2] {
    let full = World::new(&vec![(SIZE, false); count], SIZE, None);
    let sizes = [vec![(SIZE, true); count], vec![(Bytes::new(2 * SIZE.get()), false); count]].concat();
    let copies = World::new(&sizes, Bytes::new(SIZE.get() * count as u64), None);
    copies.use_first(count);
    [full, copies].map(|world| {
        world.looks();
        let since = Instant::now();
        let gone = world.spill(&Enough::Never);
        assert!((SIZE..=world.tier().memory.limit()).contains(&gone), "{gone}");
        (world.looks(), since.elapsed())
    })
}

#[test]
fn looks_at_arrays_grow_as_their_number_where_the_tier_is_full() {
    for count in [100, 1000] {
        let looks = looks_at_full_tiers(count);
        assert!(looks.iter().all(|&(looks, _)| looks <= 20 * count as i64), "{count}: {looks:?}");
    }
}

/// `cargo test --lib -- --ignored --nocapture looks_at_arrays_of_full_tiers`.
#[test]
#[ignore = "it prints what it counts and how long that takes"]
fn looks_at_arrays_of_full_tiers() {
    for count in [1000, 10_000, 100_000] {
        let [room_for_one, copies] = looks_at_full_tiers(count);
        println!("{count} arrays: room for one {room_for_one:?}, full of copies {copies:?}");
    }
}

#[test]
fn copies_give_way_only_where_they_make_room() {
    // The tier has four copies, and no more room.
    let mut sizes = vec![(SIZE, true); 4];
    sizes.push((Bytes::new(5 * SIZE.get()), false));
    let world = World::new(&sizes, Bytes::new(4 * SIZE.get()), None);
    world.use_first(4);
    assert_eq!(world.spill(&Enough::Gone(Bytes::new(1))), SIZE);
    assert_eq!(world.tier().copies(), Bytes::new(3 * SIZE.get()), "the large array has no room in any case");
    assert_eq!(world.disk.copies(), 0);
    // One that has room, if the copies of others give way.
    let mut sizes = vec![(SIZE, true); 4];
    sizes.push((Bytes::new(2 * SIZE.get()), false));
    let world = World::new(&sizes, Bytes::new(4 * SIZE.get()), None);
    world.use_first(4);
    assert_eq!(world.spill(&Enough::Gone(Bytes::new(1))), Bytes::new(2 * SIZE.get()));
    assert_eq!((world.on_device(), world.disk.copies()), (vec![0, 1, 2, 3], 1));
    assert!(world.tier().copies() <= Bytes::new(2 * SIZE.get()));
}

#[test]
fn what_has_no_room_does_not_keep_smaller_arrays_and_those_with_copies() {
    let sizes = [(SIZE, false), (Bytes::new(8 * SIZE.get()), false), (Bytes::new(9 * SIZE.get()), false), (SIZE, true)];
    let world = World::new(&sizes, Bytes::new(2 * SIZE.get()), None);
    assert_eq!(world.spill(&Enough::Never), Bytes::new(2 * SIZE.get()));
    assert_eq!(world.on_device(), [1, 2]);
    let text = tier_details(&world.memory, world.tier());
    assert!(text.contains("could not be spilled: 68.0KiB in 2 block(s): no room in the tier"), "{text}");
    assert!(!text.contains("last error"), "{text}");
}

#[test]
fn a_disk_that_is_full_is_asked_once_and_told() {
    let sizes = [vec![(SIZE, false); 10], vec![(SIZE, true); 3]].concat();
    let world = World::new(&sizes, Bytes::mib(1), Some(4));
    assert_eq!(world.spill(&Enough::Never), Bytes::new(7 * SIZE.get()), "four were copied, and three have copies");
    assert_eq!(world.disk.copies(), 5);
    let text = tier_details(&world.memory, world.tier());
    assert!(text.contains("could not be spilled: 24.0KiB in 6 block(s): no room in the tier"), "{text}");
    assert!(text.ends_with("\n  the tier's last error: the disk is full"), "{text}");
}

#[test]
fn no_more_arrays_go_after_a_signal() {
    let world = World::new(&[(SIZE, false); 10], Bytes::mib(1), None);
    let goes_on = || world.disk.copies() < 3;
    let gone = spill_until(&world.memory, world.tier(), &Enough::Never, |_| true, goes_on);
    assert_eq!((gone, world.disk.copies()), (Bytes::new(3 * SIZE.get()), 3));
    assert!(!world.memory.moves.are_under_way());
}

proptest! {
    /// What is foreseen to stay does, and nothing else.
    #[test]
    fn what_a_tier_cannot_hold_is_foreseen(
        sizes in prop::collection::vec((1..32u64, prop::bool::weighted(0.2)), 1..24),
        more in 1..256u64,
        used in 0..24usize,
    ) {
        let sizes: Vec<_> = sizes.into_iter().map(|(size, has_copy)| (Bytes::kib(4 * size), has_copy)).collect();
        let copies: Bytes = sizes.iter().filter(|(_, has_copy)| *has_copy).map(|&(size, _)| size).sum();
        let world = World::new(&sizes, copies + Bytes::kib(4 * more), None);
        world.use_first(used.min(sizes.len()));
        let foreseen = Foreseen::of(&world.memory, world.tier(), &FxHashSet::default());
        let foreseen = foreseen.beside_arguments(&[], &|_, _| true);
        world.spill(&Enough::Never);
        let staying = world.arrays.iter().filter_map(|array| array.occupied()).map(|occupied| occupied.block);
        let staying: FxHashSet<BlockId> = staying.collect();
        prop_assert_eq!(foreseen, staying);
    }
}
