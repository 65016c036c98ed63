//! Regions: what they are made of, and that nothing is left when they cannot be made.

use fake_cuda::control;

use crate::{
    device::{
        ScratchPool,
        cuda::{EnginePool, KeptPool, PinnedBacking, tests::*},
    },
    error::Code,
    memory::budget::{Beyond, Budget, Whole},
};

#[test]
fn regions_of_every_kind_hold_what_is_written_and_go_back() {
    let rig = Rig::new(&[]);
    let free = rig.free();
    for backing in rig.kinds() {
        let unit = backing.granularity();
        // One chunk and a shorter one behind, and less than a chunk.
        for bytes in [Bytes::mib(6), Bytes::new(unit.get() * 3), unit] {
            let (region, content) = filled(&backing, bytes.get(), bytes.get());
            assert!(region.bytes == bytes && region.address.is_aligned_to(Bytes::new(256)));
            assert!(free - rig.free() >= bytes);
            assert!(read(&rig.gpu, region.address, bytes.get()) == content);
            // SAFETY: it is released after the memory is gone, to see that the device refuses it.
            let twice = unsafe { Region::new(*region) };
            assert_eq!(backing.release(region), Ok(()));
            assert_eq!(rig.free(), free);
            assert!(backing.release(twice).is_err());
        }
        assert!(backing.reserve(Bytes::ZERO).is_err() && backing.reserve(Bytes::new(unit.get() + 1)).is_err());
    }
    let odd = CudaBacking::with_chunks(rig.gpu.clone(), Bytes::mib(3)).expect_err("no multiple");
    assert!(odd.message.contains("3.00MiB") && odd.message.contains("multiples of 2.00MiB"), "{odd}");
}

#[test]
fn what_is_not_given_back_goes_with_the_device() {
    let mut rig = Rig::new(&[("latency_us", "2000")]);
    let kinds = rig.kinds();
    for backing in &kinds {
        let region = backing.reserve(Bytes::mib(4)).expect("room");
        upload(backing, &pattern(1 << 20, 1), region.address).expect("an upload");
    }
    drop(kinds);
    // The old device goes only after the new one has come, whose context keeps the books.
    let new = CudaDevice::open(driver(), 0, &[]).expect("a GPU");
    drop(std::mem::replace(&mut rig.gpu, new));
    let info = rig.gpu.memory_info().expect("numbers");
    assert_eq!(info.free, info.total);
}

#[test]
fn a_region_that_cannot_be_made_leaves_nothing() {
    let rig = Rig::new(&[("memory", "64MiB")]);
    let free = rig.free();
    for backing in rig.kinds() {
        // For want of memory.
        let why = backing.reserve(Bytes::mib(66)).expect_err("too large");
        assert_eq!(why.code, Code::ResourceExhausted);
        assert!(why.message.starts_with("66.00MiB of GPU 0: cuMem"), "{why}");
        assert!(
            why.message.contains("CUDA_ERROR_OUT_OF_MEMORY") && why.message.ends_with("64.00MiB of 64.00MiB are free")
        );
        assert_eq!(rig.free(), free);
        // All of it can be had still.
        let region = backing.reserve(Bytes::mib(64)).expect("room");
        backing.release(region).expect("a release");
    }
    drop(rig);
    let symbols = ["cuMemAlloc_v2", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"];
    for kind in 0..2 {
        at_each_call(&[], &symbols, |rig, fail| {
            let (free, backing) = (rig.free(), &rig.kinds()[kind]);
            fail();
            match backing.reserve(Bytes::mib(8)) {
                Ok(region) => backing.release(region).expect("a release"),
                Err(why) => assert_eq!(why.code, Code::ResourceExhausted, "{why}"),
            }
            assert_eq!(rig.free(), free);
            assert!(rig.gpu.regions.are_whole());
        });
    }
}

#[test]
fn chunks_shrink_with_the_limit() {
    use crate::device::cuda::{CHUNK as LARGEST, backing::chunk_for};
    let unit = Bytes::mib(2);
    let sizes = [(1, 2), (24, 2), (512, 2), (1023, 2), (1024, 4), (1500, 4), (8191, 16), (8192, 32), (143_360, 32)];
    for (limit, chunk) in sizes {
        assert_eq!(chunk_for(Bytes::mib(limit), unit), Bytes::mib(chunk), "limit of {limit} MiB");
    }
    // A unit of some later GPU's, and no limit to speak of.
    assert_eq!(chunk_for(Bytes::mib(24), LARGEST + LARGEST), LARGEST + LARGEST);
    assert_eq!(chunk_for(Bytes::ZERO, Bytes::new(256)), Bytes::new(256));
}

#[test]
fn memory_is_asked_for_with_less_where_it_cannot_be_opened() {
    // As under WSL2, where memory for RDMA is made and mapped, and not opened then. This driver offers export alone.
    for (failures, mapped) in [(1, true), (2, false)] {
        let rig = Rig::new(&[]);
        for nth in 1..=failures {
            control::configure("fail", &format!("cuMemSetAccess:{nth}:999")).expect("a call to fail");
        }
        let free = rig.free();
        let backing = CudaBacking::new(rig.gpu.clone(), Bytes::mib(24)).expect("memory, mapped or not");
        assert_eq!(rig.free(), free, "what was tried is gone");
        assert_eq!(backing.granularity() == Bytes::mib(2), mapped, "{failures}");
        let (region, content) = filled(&backing, 24 << 20, 1);
        assert!(read(&rig.gpu, region.address, 24 << 20) == content);
        backing.release(region).expect("a release");
    }
    // A lack of memory says nothing about what the driver can.
    let rig = Rig::new(&[("fail", "cuMemCreate:1")]);
    assert_eq!(rig.chunked().granularity(), Bytes::mib(2));
}

#[test]
fn memory_is_made_with_less_whatever_code_the_driver_refuses_with() {
    // This driver offers export and RDMA; it refuses a chunk after the first has proved both. What `cuMemCreate`
    // answers with differs from driver to driver.
    for code in [1, 304, 800, 801, 999] {
        let rig = Rig::new(&[("rdma", "1")]);
        let backing = rig.chunked();
        let asked = || control::count("cuMemCreate");
        // Refused once, it is made without RDMA, and refused then, without export. From there on there is nothing left
        // to do without.
        for (refusals, is_made) in [(1, true), (2, false)] {
            for nth in 1..=refusals {
                control::configure("fail", &format!("cuMemCreate:{nth}:{code}")).expect("a call to fail");
            }
            let before = asked();
            let made = backing.reserve(CHUNK);
            assert_eq!((asked() - before, made.is_ok()), (2, is_made), "{code}: {made:?}");
            if let Ok(region) = made {
                backing.release(region).expect("a release");
            }
        }
        // What is left serves.
        let (region, content) = filled(&backing, CHUNK.get(), 1);
        assert!(read(&rig.gpu, region.address, CHUNK.get()) == content);
        backing.release(region).expect("a release");
    }
    // A context that is over has no properties to do without.
    let rig = Rig::new(&[("rdma", "1")]);
    let backing = rig.chunked();
    control::configure("fail", "cuMemCreate:1:700").expect("a call to fail");
    let before = control::count("cuMemCreate");
    let why = backing.reserve(CHUNK).expect_err("a context that is over");
    assert!(why.message.contains("cuMemCreate gave 700"), "{why}");
    assert_eq!(control::count("cuMemCreate") - before, 1);
}

#[test]
fn a_region_of_a_small_limit_gives_back_what_is_not_used() {
    let rig = Rig::new(&[]);
    let backing = CudaBacking::new(rig.gpu.clone(), Bytes::mib(24)).expect("a device that maps");
    let (region, content) = filled(&backing, 24 << 20, 1);
    let free = rig.free();
    // Something lives at both ends.
    let gone = discard(&backing, at(region.address, 1), (24 << 20) - 2).expect("chunks");
    assert_eq!((gone, rig.free() - free), (Bytes::mib(20), Bytes::mib(20)));
    assert!(read(&rig.gpu, region.address, 2 << 20) == content[..2 << 20]);
    backing.release(region).expect("a release");
}

#[test]
fn chunks_go_and_come_while_the_rest_stays() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let chunk = CHUNK.get();
    // The last one is shorter than the others.
    let backing =
        CudaBacking::with_chunks(backing.device().clone(), Bytes::new(2 * chunk)).expect("a device that maps");
    let (region, content) = filled(&backing, 7 * chunk, 1);
    let free = rig.free();
    let gone =
        |from: u64, bytes: u64| discard(&backing, at(region.address, from), bytes).expect("chunks").get() / chunk;
    assert_eq!(gone(1, 4 * chunk - 2), 0, "no whole chunk");
    assert_eq!(gone(1, 4 * chunk - 1), 2, "the second");
    assert_eq!(gone(2 * chunk, 2 * chunk), 0, "it is gone already");
    assert_eq!(gone(5 * chunk, 2 * chunk), 1, "the last one");
    assert_eq!(rig.free() - free, Bytes::new(3 * chunk));
    assert!(read(&rig.gpu, region.address, 2 * chunk) == content[..2 * chunk as usize]);
    // A part of a chunk brings all of it, and asking again brings nothing.
    let populate = |from: u64, bytes: u64| backing.populate(at(region.address, from), Bytes::new(bytes));
    assert_eq!(populate(0, 2 * chunk), Ok(()));
    assert_eq!(rig.free() - free, Bytes::new(3 * chunk));
    assert_eq!(populate(3 * chunk, 1), Ok(()));
    assert_eq!(populate(0, 0), Ok(()));
    assert_eq!(rig.free() - free, Bytes::new(chunk));
    let made = control::count("cuMemCreate");
    assert_eq!(populate(0, 6 * chunk), Ok(()));
    assert_eq!(control::count("cuMemCreate"), made);
    assert_eq!(populate(6 * chunk, chunk), Ok(()));
    assert_eq!(rig.free(), free);
    assert!(
        read(&rig.gpu, at(region.address, 4 * chunk), 2 * chunk) == content[4 * chunk as usize..6 * chunk as usize]
    );
    write(&rig.gpu, region.address, &content);
    assert!(read(&rig.gpu, region.address, 7 * chunk) == content);
    backing.release(region).expect("a release");
    assert!(rig.gpu.regions.are_whole());
}

#[test]
fn memory_that_does_not_come_back_is_told_and_nothing_is_lost() {
    at_each_call(&[], &["cuMemCreate", "cuMemMap", "cuMemSetAccess"], |rig, fail| {
        let backing = rig.chunked();
        let (region, content) = filled(&backing, 8 << 20, 1);
        // Two that are not neighbours.
        discard(&backing, region.address, CHUNK.get()).expect("a chunk");
        discard(&backing, at(region.address, 2 * CHUNK.get()), CHUNK.get()).expect("a chunk");
        let free = rig.free();
        fail();
        if let Err(why) = backing.populate(region.address, Bytes::mib(5)) {
            assert_eq!(why.code, Code::ResourceExhausted, "{why}");
            assert_eq!(rig.free(), free);
            backing.populate(region.address, Bytes::mib(5)).expect("room");
        }
        assert_eq!(free - rig.free(), Bytes::new(2 * CHUNK.get()));
        for kept in [2 << 20, 6 << 20] {
            assert!(read(&rig.gpu, at(region.address, kept), 2 << 20) == content[kept as usize..][..2 << 20]);
        }
        backing.release(region).expect("a release");
    });
}

#[test]
fn regions_with_holes_go_back() {
    let rig = Rig::new(&[]);
    let free = rig.free();
    let backing = rig.chunked();
    let (region, _) = filled(&backing, 8 << 20, 1);
    discard(&backing, at(region.address, CHUNK.get()), CHUNK.get()).expect("a chunk");
    backing.release(region).expect("a release");
    assert_eq!(rig.free(), free);
    assert!(rig.gpu.regions.are_whole());
}

#[test]
fn properties_that_the_driver_refuses_are_left_out() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    // Not supported, and no value that is allowed.
    for code in [801, 1] {
        control::configure("fail", &format!("cuMemCreate:1:{code}")).expect("a call to fail");
        let made = backing.reserve(CHUNK);
        if code == 801 {
            backing.release(made.expect("memory without export")).expect("a release");
        } else {
            // There is nothing more to leave out.
            let why = made.expect_err("refused");
            assert!(why.code == Code::Internal && why.message.contains("cuMemCreate gave 1"), "{why}");
        }
    }
}

#[test]
fn peers_reach_the_memory_where_they_can() {
    for peer in ["1", "0"] {
        let rig = Rig::of_two(&[("peer", peer)]);
        assert_eq!(rig.gpu.peers(), if peer == "1" { &[1][..] } else { &[] });
        let backing = rig.chunked();
        let region = backing.reserve(CHUNK).expect("room");
        let other = &rig.others[&1];
        let stream = engine_stream(other);
        let launched = try_kernel(other, stream, &[], &[(region.address, 100)]);
        if peer == "0" {
            assert_ne!(launched, 0);
            rig.found(&["GPU 1 may not write", "cuMemSetAccess has not allowed it"]);
        } else {
            assert_eq!(launched, 0);
        }
        finish(other);
        backing.release(region).expect("a release");
    }
    // Refused though the driver said that it can: then the device alone.
    let rig = Rig::of_two(&[]);
    let backing = rig.chunked();
    control::configure("fail", "cuMemSetAccess:1:101").expect("a call to fail");
    let (region, _) = filled(&backing, CHUNK.get(), 1);
    backing.release(region).expect("a release");
}

/// A budget of which others want the rest: it counts how often it is asked.
#[derive(Debug, Default)]
struct Others(std::sync::Mutex<Vec<Bytes>>);

impl Whole for Others {
    fn take(&self, bytes: Bytes) -> Result<(), Beyond> {
        self.0.lock().expect("no panic").push(bytes);
        Err(Beyond { available: Bytes::mib(4), ..Beyond::default() })
    }

    fn give(&self, _: Bytes) {}
}

#[test]
fn all_that_chunks_lack_is_asked_for_at_once() {
    let rig = Rig::new(&[]);
    let others = Arc::new(Others::default());
    let budget = Arc::new(Budget::new(Bytes::mib(64)).part_of(Arc::<Others>::clone(&others)));
    let backing = rig.chunked().bound_by(&budget).expect("in time");
    let error = backing.reserve(Bytes::mib(20)).expect_err("the others have the rest");
    assert_eq!(error.code, Code::ResourceExhausted);
    assert_eq!(*others.0.lock().expect("no panic"), [Bytes::mib(20)]);
}

#[test]
fn what_cannot_be_unmapped_stays_counted() {
    let rig = Rig::new(&[]);
    let budget = Arc::new(Budget::new(Bytes::mib(64)));
    let backing = rig.chunked().bound_by(&budget).expect("in time");
    let region = backing.reserve(CHUNK + CHUNK).expect("room");
    assert_eq!(budget.taken().0, CHUNK + CHUNK);
    control::configure("fail", "cuMemUnmap:1:1").expect("a call to fail");
    assert!(backing.release(region).is_err());
    assert_eq!(budget.taken().0, CHUNK);
    control::reset_violations();
}

#[test]
fn pinned_memory_keeps_to_its_budget() {
    let rig = Rig::new(&[]);
    let budget = Arc::new(Budget::new(Bytes::mib(3)));
    let pinned = PinnedBacking::new(rig.gpu.clone()).bound_by(&budget);
    let region = pinned.reserve(Bytes::mib(2)).expect("room");
    let error = pinned.reserve(Bytes::mib(2)).expect_err("no room");
    assert_eq!(error.code, Code::ResourceExhausted);
    assert!(
        error.message.contains("pinned for GPU 0") && error.message.contains("limit of 3.00MiB by 1.00MiB"),
        "{error}"
    );
    assert_eq!(budget.taken().0, Bytes::mib(2));
    pinned.release(region).expect("a release");
    assert_eq!(budget.taken().0, Bytes::ZERO);
    pinned.release(pinned.reserve(Bytes::mib(3)).expect("room again")).expect("a release");
}

#[test]
fn pinned_memory_is_the_hosts_and_the_gpus() {
    let rig = Rig::new(&[("latency_us", "2000")]);
    let pinned = PinnedBacking::new(rig.gpu.clone());
    assert!(pinned.is_host());
    let region = pinned.reserve(Bytes::mib(2)).expect("room");
    assert!(pinned.reserve(Bytes::new(100)).is_err());
    let content = pattern(1 << 20, 3);
    // SAFETY: the bytes of a vector, and a region of ours.
    unsafe { pinned.upload(HostArray::new(content.as_ptr(), &[1 << 20], None, 1), region.address) }.expect("an upload");
    // By the GPU there and back, and the memory goes only when it has done so.
    let backing = rig.chunked();
    let block = backing.reserve(CHUNK).expect("room");
    copy(&backing, region.address, block.address, 1 << 20).expect("a copy");
    copy(&backing, block.address, at(region.address, 1 << 20), 1 << 20).expect("a copy");
    assert!(read(&rig.gpu, block.address, 1 << 20) == content);
    assert!(read(&rig.gpu, at(region.address, 1 << 20), 1 << 20) == content);
    // SAFETY: as above.
    unsafe { pinned.relocate(at(region.address, 1 << 20), at(region.address, 500), Bytes::mib(1)) }.expect("a move");
    assert!(read(&rig.gpu, at(region.address, 500), 1 << 20) == content);
    copy(&backing, at(region.address, 500), block.address, 1 << 20).expect("a copy");
    assert_eq!(pinned.release(region), Ok(()));
    assert!(read(&rig.gpu, block.address, 1 << 20) == content);
    backing.release(block).expect("a release");
}

#[test]
fn the_engines_pool_is_seen_and_trimmed() {
    let rig = Rig::new(&[]);
    let pool = EnginePool::of(&rig.gpu).expect("an answer").expect("a pool");
    assert_eq!(pool.usage(), Ok(Default::default()));
    pool.set_release_threshold(Bytes::MAX).expect("a threshold");
    assert_eq!(pool.release_threshold(), Ok(Bytes::MAX));
    let stream = engine_stream(&rig.gpu);
    let mut address = 0_u64;
    let _current = rig.gpu.context().enter().expect("a context");
    assert_eq!(cu!(cuMemAllocAsync(&raw mut address => *mut u64, 5 << 20 => usize, stream => usize)), 0);
    let usage = pool.usage().expect("numbers");
    assert!(usage.used == Bytes::mib(5) && usage.reserved >= usage.used && usage.used_high == usage.used, "{usage:?}");
    assert_eq!(cu!(cuMemFreeAsync(address => u64, stream => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    let usage = pool.usage().expect("numbers");
    assert!(
        usage.used.is_zero() && usage.reserved >= Bytes::mib(5) && usage.reserved_high >= usage.reserved,
        "{usage:?}"
    );
    pool.trim_to(Bytes::MAX).expect("nothing to do");
    assert_eq!(pool.usage().map(|now| now.reserved), Ok(usage.reserved));
    pool.trim_to(Bytes::ZERO).expect("a trim");
    assert_eq!(pool.usage().map(|now| now.reserved), Ok(Bytes::ZERO));
}

#[test]
fn the_engines_pool_gives_back_what_nobody_has_waited_for_once_we_have() {
    let rig = Rig::new(&[]);
    let pool = EnginePool::of(&rig.gpu).expect("an answer").expect("a pool");
    let kept = KeptPool::new(pool, Bytes::MAX).expect("a threshold");
    let stream = engine_stream(&rig.gpu);
    let mut address = 0_u64;
    {
        let _current = rig.gpu.context().enter().expect("a context");
        assert_eq!(cu!(cuMemAllocAsync(&raw mut address => *mut u64, 6 << 20 => usize, stream => usize)), 0);
        assert_eq!(kept.unused(), Ok(Bytes::ZERO));
        assert_eq!(cu!(cuMemFreeAsync(address => u64, stream => usize)), 0);
    }
    assert_eq!((kept.unused(), kept.trim(Bytes::ZERO)), (Ok(Bytes::mib(6)), Ok(Bytes::mib(6))));
    kept.synchronize().expect("a device that ends");
    assert_eq!((kept.trim(Bytes::ZERO), kept.unused()), (Ok(Bytes::ZERO), Ok(Bytes::ZERO)));
}

#[test]
fn arenas_run_on_it() {
    use crate::memory::{Arena, Strategy};
    let rig = Rig::new(&[]);
    let free = rig.free();
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Platform, Strategy::Tpu] {
        let backing = match strategy {
            Strategy::Platform => CudaBacking::with_driver_allocations(rig.gpu.clone()),
            _ => rig.chunked(),
        };
        let arena = Arena::new("gpu".into(), strategy, Bytes::mib(64), Box::new(backing.clone())).expect("an arena");
        let blocks: Vec<_> =
            [100, 5000, 3 << 20].map(|bytes| arena.allocate(Bytes::new(bytes)).expect("room")).to_vec();
        for (seed, block) in (0..).zip(&blocks) {
            upload(&backing, &pattern(100, seed), block.address).expect("an upload");
        }
        for (seed, block) in (0..).zip(&blocks) {
            assert!(read(&rig.gpu, block.address, 100) == pattern(100, seed), "{strategy}");
        }
        blocks.into_iter().for_each(|block| arena.free(block.id).expect("a block"));
        drop(arena);
        assert_eq!(rig.free(), free, "{strategy}");
    }
}
