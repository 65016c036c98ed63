//! Random sequences against a model that is too simple to be wrong: a list of blocks, compared range by range.

// Named, because the arena has a `Strategy` too.
use proptest::prelude::{Strategy, *};

use crate::{
    device::fake::{Call, Fault},
    memory::{Strategy as Kind, tests::*},
};

#[derive(Clone, Debug)]
enum Step {
    Allocate(Bytes),
    Retire(prop::sample::Index),
    Renew(prop::sample::Index),
    Free(prop::sample::Index),
    FreeStale(prop::sample::Index),
    Trim,
    ClearPeaks,
    /// Asks for the largest request that is said to succeed, and first for one byte more.
    AllocateLargest,
    /// Finds the largest request that is said to fit once all that pends is freed; frees it, and asks for that or,
    /// if `false`, for one byte more.
    Settle(bool),
    /// The nth reservation from here on fails.
    Refuse(u64),
}

/// Sizes from nothing to twice the largest limit, small ones as often as large ones.
fn size(limit: Bytes) -> impl Strategy<Value = Bytes> {
    let bits = limit.get().ilog2() + 2;
    (0..bits, any::<u64>()).prop_map(move |(shift, random)| Bytes::new(random >> (64 - bits) >> shift))
}

fn step(limit: Bytes, faults: bool) -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        12 => size(limit).prop_map(Step::Allocate),
        4 => index().prop_map(Step::Retire),
        2 => index().prop_map(Step::Renew),
        7 => index().prop_map(Step::Free),
        1 => index().prop_map(Step::FreeStale),
        1 => Just(Step::Trim),
        1 => Just(Step::ClearPeaks),
        1 => Just(Step::AllocateLargest),
        2 => any::<bool>().prop_map(Step::Settle),
        if faults { 2 } else { 0 } => (0..3u64).prop_map(Step::Refuse),
    ]
}

fn scenario() -> impl Strategy<Value = (Kind, Bytes, Bytes, bool, Vec<Step>)> {
    // 256 KiB has no slabs, 80 MiB has extents of one page, 2 GiB full ones. 2 MiB is a GPU's granularity.
    let limits = prop::sample::select(vec![Bytes::kib(256), Bytes::mib(80), Bytes::gib(2)]);
    let pages = prop::sample::select(vec![PAGE, PAGE, Bytes::kib(64), Bytes::mib(2)]);
    (prop::sample::select(ALL.to_vec()), limits, pages, any::<bool>()).prop_flat_map(|(kind, limit, page, faults)| {
        let limit = limit.max(page);
        let steps = prop::collection::vec(step(limit, faults), 1..120);
        (Just(kind), Just(limit), Just(page), Just(faults), steps)
    })
}

#[derive(Default)]
struct Model {
    blocks: Vec<(Block, BlockState)>,
    stale: Vec<BlockId>,
    peak: Bytes,
    peak_used: Bytes,
    largest: Bytes,
    allocations: u64,
}

impl Model {
    fn sum(&self, state: BlockState) -> Bytes {
        self.blocks.iter().filter(|(_, s)| *s == state).map(|(block, _)| block.size).sum()
    }

    fn add(&mut self, block: Block) {
        self.blocks.push((block, BlockState::Live));
        self.peak = self.peak.max(self.sum(BlockState::Live));
        self.peak_used = self.peak_used.max(self.blocks.iter().map(|(block, _)| block.size).sum());
        self.largest = self.largest.max(block.size);
        self.allocations += 1;
    }

    fn check(&self, arena: &Arena, device: &FakeBacking) {
        let stats = assert_sums(arena);
        assert_eq!(stats.bytes_in_use, self.sum(BlockState::Live));
        assert_eq!(stats.pending_bytes, self.sum(BlockState::Retired));
        assert_eq!((stats.live_blocks + stats.pending_blocks) as usize, self.blocks.len());
        assert_eq!((stats.peak_bytes_in_use, stats.peak_used_bytes), (self.peak, self.peak_used));
        assert_eq!((stats.num_allocs, stats.largest_alloc_size), (self.allocations, self.largest));

        let mut regions = arena.regions();
        regions.sort_by_key(|region| region.address);
        assert_eq!(regions, device.regions());
        assert_eq!(regions.iter().map(|region| region.bytes).sum::<Bytes>(), stats.pool_bytes);

        let mut listed = arena.blocks();
        listed.sort_by_key(|info| info.block.address);
        let mut expected = self.blocks.clone();
        expected.sort_by_key(|(block, _)| block.address);
        assert_eq!(listed.iter().map(|info| (info.block, info.state)).collect::<Vec<_>>(), expected);
        assert_eq!(listed.iter().map(|info| info.held - info.block.size).sum::<Bytes>(), stats.slack_bytes);
        for pair in listed.windows(2) {
            assert!(pair[0].block.address + pair[0].held <= pair[1].block.address, "{pair:?} overlap");
        }
        for info in &listed {
            let Block { address, size, .. } = info.block;
            assert!(address.is_aligned_to(Bytes::new(256)) && info.held >= size && !info.held.is_zero());
            let inside = |region: &AddressRange| {
                region.address <= address && address + info.held <= region.address + region.bytes
            };
            assert!(regions.iter().any(inside), "{info:?} lies in no region");
        }
        assert_eq!(device.violations(), 0);
    }
}

fn run(kind: Kind, limit: Bytes, page: Bytes, faults: bool, steps: Vec<Step>) {
    let device = FakeBacking::new(limit, page);
    let arena = Arena::new("fake:0".into(), kind, limit, Box::new(device.clone())).expect("a good arena");
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Allocate(size) => {
                let promised = arena.stats().largest_request;
                match arena.allocate(size) {
                    Ok(block) => {
                        assert!(size <= promised, "{size} succeeds, {promised} was said to be the most");
                        assert_eq!(block.size, size);
                        model.add(block);
                    }
                    // A promise of nothing says nothing about a request of nothing, which takes a granule.
                    Err(_) if size.max(Bytes::new(1)) > promised => {}
                    Err(oom) => assert!(faults && oom.refusal.is_some(), "{promised} promised: {oom}"),
                }
            }
            Step::Retire(index) if !model.blocks.is_empty() => {
                let at = index.index(model.blocks.len());
                let (block, state) = &mut model.blocks[at];
                assert_eq!(arena.retire(block.id).is_ok(), *state == BlockState::Live);
                *state = BlockState::Retired;
            }
            Step::Renew(index) if !model.blocks.is_empty() => {
                let at = index.index(model.blocks.len());
                let (block, state) = model.blocks[at];
                let reused = arena.reuse_in_place(block.id, Provenance::default());
                assert_eq!(reused.is_ok(), state == BlockState::Retired);
                if let Ok(id) = reused {
                    assert_ne!(id, block.id);
                    model.blocks.swap_remove(at);
                    model.stale.push(block.id);
                    model.add(Block { id, ..block });
                }
            }
            Step::Free(index) if !model.blocks.is_empty() => {
                let (block, _) = model.blocks.swap_remove(index.index(model.blocks.len()));
                assert_eq!(arena.free(block.id), Ok(()));
                model.stale.push(block.id);
            }
            Step::FreeStale(index) if !model.stale.is_empty() => {
                let id = model.stale[index.index(model.stale.len())];
                assert!(arena.free(id).is_err() && arena.retire(id).is_err());
                assert!(arena.reuse_in_place(id, Provenance::default()).is_err());
            }
            Step::Trim => {
                let pool = arena.stats().pool_bytes;
                let given = arena.trim();
                assert_eq!(pool - arena.stats().pool_bytes, given);
                if kind == Kind::Growing {
                    let regions = arena.regions();
                    let blocks = arena.blocks();
                    let used = |region: &AddressRange| {
                        let range = region.address..region.address + region.bytes;
                        blocks.iter().any(|info| range.contains(&info.block.address))
                    };
                    assert!(regions.iter().all(used), "an empty region stayed");
                }
            }
            Step::ClearPeaks => {
                arena.clear_peaks();
                (model.peak, model.largest, model.allocations) = (model.sum(BlockState::Live), Bytes::ZERO, 0);
                model.peak_used = model.peak + model.sum(BlockState::Retired);
            }
            // A fault in between would change what was predicted.
            Step::AllocateLargest if !faults => {
                let largest = arena.stats().largest_request;
                assert!(arena.allocate(largest + Bytes::new(1)).is_err(), "{kind}: more than {largest}");
                if !largest.is_zero() {
                    model.add(arena.allocate(largest).unwrap_or_else(|oom| panic!("{largest} was promised: {oom}")));
                }
            }
            Step::Settle(within) if !faults => {
                // As `allocate_waiting` does: the prediction is for a request that does not fit now.
                let (mut fits, mut misses) = (arena.stats().largest_request, limit + Bytes::new(1));
                while misses - fits > Bytes::new(1) {
                    let middle = Bytes::new(fits.get().midpoint(misses.get()));
                    if arena.would_fit(&Needs::of(middle), &|_| false, None) { fits = middle } else { misses = middle }
                }
                for (block, state) in std::mem::take(&mut model.blocks) {
                    match state {
                        BlockState::Live | BlockState::Pinned => model.blocks.push((block, state)),
                        BlockState::Retired => assert_eq!(arena.free(block.id), Ok(())),
                    }
                }
                if !within {
                    assert!(arena.allocate(misses).is_err(), "{kind}: {misses} was said not to fit");
                } else if !fits.is_zero() {
                    model.add(arena.allocate(fits).unwrap_or_else(|oom| panic!("{fits} was said to fit: {oom}")));
                }
            }
            Step::Refuse(n) => device.order(Call::Reserve, n, Fault::Error),
            _ => {}
        }
        model.check(&arena, &device);
    }
    drop(arena);
    assert_eq!((device.regions().len(), device.violations()), (0, 0), "all regions go back, once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_sequence_agrees_with_the_model((kind, limit, page, faults, steps) in scenario()) {
        run(kind, limit, page, faults, steps);
    }
}
