//! Random sequences with pins, scratch and compactions, against a model that carries every block's contents.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use proptest::prelude::{Strategy, *};

use crate::memory::{
    Strategy as Kind,
    compaction::{Costs, Remap},
    tests::*,
};

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    Retire(prop::sample::Index),
    Pin(prop::sample::Index),
    Unpin(prop::sample::Index),
    /// As an outsider asks for the address: out of the way first, then pinned.
    PinOutOfTheWay(prop::sample::Index),
    /// The same where others make way: all but those whose number is a multiple of `busy`; at most `commits` moves.
    PinAmongOthers {
        index: prop::sample::Index,
        busy: u32,
        commits: usize,
    },
    /// Opens a hole of this share of what is free, in 1/256; every block whose number is a multiple of `busy` stays.
    /// Commits this many moves at most, and allocates and frees something else after each.
    OpenHole {
        share: u8,
        busy: u32,
        commits: usize,
    },
    Pack,
    BeginScratch(u64),
    EndScratch,
}

fn step(limit: u64) -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let size = (0..limit.ilog2(), any::<u64>()).prop_map(move |(shift, random)| (random % limit) >> shift);
    prop_oneof![
        20 => size.clone().prop_map(Step::Allocate),
        10 => index().prop_map(Step::Free),
        2 => index().prop_map(Step::Retire),
        3 => index().prop_map(Step::Pin),
        2 => index().prop_map(Step::Unpin),
        2 => index().prop_map(Step::PinOutOfTheWay),
        2 => (index(), 2..9u32, prop_oneof![Just(usize::MAX), 0..4usize])
            .prop_map(|(index, busy, commits)| Step::PinAmongOthers { index, busy, commits }),
        6 => (any::<u8>(), 2..9u32, prop_oneof![Just(usize::MAX), 0..4usize])
            .prop_map(|(share, busy, commits)| Step::OpenHole { share, busy, commits }),
        2 => Just(Step::Pack),
        2 => size.prop_map(|size| Step::BeginScratch(size / 4)),
        2 => Just(Step::EndScratch),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    block: Block,
    state: BlockState,
    /// Stands for the contents.
    tag: u32,
}

/// What is held, and what every granule of memory holds.
struct Model {
    arena: Arc<Arena>,
    known: Vec<Known>,
    memory: FxHashMap<Address, u32>,
    scratch: Vec<Bytes>,
    tags: u32,
}

const GRANULE: Bytes = Bytes::new(256);

/// Granules of a block that stand for all: its first, its last and up to 30 between.
fn granules(block: &Block) -> impl Iterator<Item = Address> + use<> {
    let (first, count) = (block.address, block.size.get().div_ceil(GRANULE.get()));
    let shown = count.min(32);
    (0..shown).map(move |number| {
        let granule = number * (count - 1) / (shown - 1).max(1);
        first + Bytes::new(granule * GRANULE.get())
    })
}

impl Model {
    fn allocate(&mut self, size: Bytes) {
        if let Ok(block) = self.arena.allocate(size) {
            self.adopt(block);
        }
    }

    fn adopt(&mut self, block: Block) {
        self.tags += 1;
        self.memory.extend(granules(&block).map(|address| (address, self.tags)));
        self.known.push(Known { block, state: BlockState::Live, tag: self.tags });
    }

    fn free(&mut self, at: usize) {
        let gone = self.known.swap_remove(at);
        assert_eq!(self.arena.free(gone.block.id), Ok(()));
    }

    /// Carries out at most `commits` moves, with traffic between them.
    fn carry_out<'a>(&mut self, mut compaction: Compaction<'a>, commits: usize) -> Compaction<'a> {
        let moves = compaction.moves().to_vec();
        for (number, step) in moves.iter().take(commits).enumerate() {
            let known = self.known.iter_mut().find(|known| known.block.id == step.block).expect("a block of ours");
            assert_eq!((known.state, known.block.address), (BlockState::Live, step.from));
            // Read all, then write all, as memmove does.
            let to = Block { address: step.to, ..known.block };
            let tags: Vec<u32> = granules(&known.block).map(|address| self.memory[&address]).collect();
            self.memory.extend(granules(&to).zip(tags));
            assert_eq!(compaction.commit(), Ok(()));
            known.block = to;
            self.traffic(&moves, number);
        }
        compaction
    }

    /// What other threads do meanwhile: never to the blocks that move.
    fn traffic(&mut self, moves: &[Move], number: usize) {
        self.allocate(Bytes::new(256 << (number % 8)));
        let still = |known: &Known| moves.iter().all(|step| step.block != known.block.id);
        if number.is_multiple_of(3)
            && let Some(at) = self.known.iter().position(still)
        {
            self.free(at);
        }
    }

    fn check(&self) {
        let mut listed = self.arena.blocks();
        listed.sort_by_key(|info| info.block.id);
        let mut known = self.known.clone();
        known.sort_by_key(|known| known.block.id);
        assert_eq!(listed.len(), known.len());
        for (info, known) in listed.iter().zip(&known) {
            assert_eq!((info.block, info.state), (known.block, known.state));
            assert!(granules(&known.block).all(|address| self.memory[&address] == known.tag), "lost: {known:?}");
        }
        listed.sort_by_key(|info| info.block.address);
        let ends_before = |pair: &[BlockInfo]| pair[0].block.address + pair[0].held <= pair[1].block.address;
        assert!(listed.windows(2).all(ends_before), "blocks overlap: {listed:?}");
        let stats = self.arena.stats();
        let sum = |state| -> Bytes {
            self.known.iter().filter(|known| known.state == state).map(|known| known.block.size).sum()
        };
        assert_eq!(stats.bytes_in_use, sum(BlockState::Live) + sum(BlockState::Pinned));
        assert_eq!((stats.pinned_bytes, stats.pending_bytes), (sum(BlockState::Pinned), sum(BlockState::Retired)));
        if self.arena.strategy() == Kind::Tpu {
            assert!(stats.reserved_bytes >= self.scratch.iter().copied().max().unwrap_or_default());
        }
        let parts =
            [stats.bytes_in_use, stats.pending_bytes, stats.slack_bytes, stats.reserved_bytes, stats.free_bytes];
        assert_eq!(parts.into_iter().sum::<Bytes>(), stats.pool_bytes, "{stats:?}");
        if let Some(scratch) = self.arena.scratch() {
            let below = listed.iter().filter(|info| info.block.address < scratch.address).count();
            let next = listed.get(below).is_none_or(|info| scratch.address + scratch.bytes <= info.block.address);
            let ends_before = |info: &BlockInfo| info.block.address + info.held <= scratch.address;
            assert!(next && listed[..below].iter().all(ends_before), "{scratch:?} in {listed:?}");
        }
    }

    /// The block that an index means, if it is in one of these states.
    fn at(&self, index: prop::sample::Index, states: &[BlockState]) -> Option<usize> {
        let at = index.get(&(0..self.known.len().max(1)).collect::<Vec<_>>()).to_owned();
        self.known.get(at).filter(|known| states.contains(&known.state)).map(|_| at)
    }
}

fn run(kind: Kind, limit: Bytes, costs: &Costs, steps: Vec<Step>) {
    let device = FakeBacking::new(Bytes::gib(64), GRANULE);
    let arena = Arena::new("fake:0".into(), kind, limit, Box::new(device.clone())).expect("a good arena");
    let arena = Arc::new(arena);
    let mut model = Model {
        arena: Arc::clone(&arena),
        known: Vec::new(),
        memory: FxHashMap::default(),
        scratch: Vec::new(),
        tags: 0,
    };
    for step in steps {
        match step {
            Step::Allocate(size) => model.allocate(Bytes::new(size)),
            Step::Free(index) => {
                if let Some(at) = model.at(index, &[BlockState::Live, BlockState::Pinned, BlockState::Retired]) {
                    model.free(at);
                }
            }
            Step::Retire(index) => {
                if let Some(at) = model.at(index, &[BlockState::Live, BlockState::Pinned]) {
                    assert_eq!(model.arena.retire(model.known[at].block.id), Ok(()));
                    model.known[at].state = BlockState::Retired;
                }
            }
            Step::Pin(index) => {
                if let Some(at) = model.at(index, &[BlockState::Live]) {
                    assert_eq!(model.arena.pin(model.known[at].block.id), Ok(()));
                    model.known[at].state = BlockState::Pinned;
                }
            }
            Step::Unpin(index) => {
                if let Some(at) = model.at(index, &[BlockState::Pinned]) {
                    assert_eq!(model.arena.unpin(model.known[at].block.id), Ok(()));
                    model.known[at].state = BlockState::Live;
                }
            }
            Step::PinOutOfTheWay(index) => {
                if let Some(at) = model.at(index, &[BlockState::Live]) {
                    let Block { id, address, .. } = model.known[at].block;
                    if let Ok(compaction) = arena.plan_pin(id) {
                        drop(model.carry_out(compaction, 1));
                    }
                    let known = model.known.iter_mut().find(|known| known.block.id == id).expect("it moved, no more");
                    assert!(known.block.address >= address, "pinned blocks go up");
                    known.state = BlockState::Pinned;
                    assert_eq!(model.arena.pin(id), Ok(()));
                }
            }
            Step::PinAmongOthers { index, busy, commits } => {
                if let Some(at) = model.at(index, &[BlockState::Live]) {
                    let id = model.known[at].block.id;
                    let stays = |id: BlockId| (id.index() as u32).is_multiple_of(busy);
                    if let Ok(compaction) = arena.plan_pin_making_way(id, costs, u64::MAX, &|other| !stays(other)) {
                        drop(model.carry_out(compaction, commits));
                    }
                    let known = model.known.iter_mut().find(|known| known.block.id == id).expect("it moved, no more");
                    known.state = BlockState::Pinned;
                    assert_eq!(model.arena.pin(id), Ok(()));
                }
            }
            Step::OpenHole { share, busy, commits } => {
                let free = model.arena.stats().free_bytes;
                let size = Bytes::new((free.get() * (u64::from(share) + 1)) >> 8);
                let stays = |id: BlockId| (id.index() as u32).is_multiple_of(busy);
                if let Ok(compaction) = arena.plan(Goal::Hole(size), costs, &|id| !stays(id)) {
                    let compaction = model.carry_out(compaction, commits);
                    if commits == usize::MAX {
                        match compaction.allocate(size) {
                            Ok(block) => model.adopt(block),
                            // The limit's rest, where a region was to come in others' place, is not kept for it.
                            Err(oom) => assert_eq!(kind, Kind::Growing, "the hole is open: {oom}"),
                        }
                    }
                }
            }
            Step::Pack => {
                if let Ok(compaction) = arena.plan(Goal::Pack, costs, &|_| true) {
                    drop(model.carry_out(compaction, usize::MAX));
                }
            }
            Step::BeginScratch(size) => {
                let size = Bytes::new(size.max(1));
                let begun = arena.begin_scratch(size).is_ok() || {
                    let planned = arena.plan(Goal::Bottom(size), costs, &|_| true);
                    planned.is_ok_and(|compaction| {
                        // An allocation of the traffic may have lowered the old floor, and taken what was under it.
                        model.carry_out(compaction, usize::MAX).begin_scratch(size).is_ok()
                    })
                };
                if begun {
                    model.scratch.push(size);
                }
            }
            Step::EndScratch => {
                if let Some(size) = model.scratch.pop() {
                    model.arena.end_scratch(size);
                }
            }
        }
        model.check();
    }
    while !model.known.is_empty() {
        model.free(0);
        model.check();
    }
    model.scratch.drain(..).for_each(|size| model.arena.end_scratch(size));
    // Whatever is kept for scratch goes to whoever needs it.
    if kind != Kind::Growing {
        let whole = model.arena.allocate(limit).expect("all is free");
        assert_eq!(model.arena.free(whole.id), Ok(()));
    }
    drop((model, arena));
    assert_eq!((device.violations(), device.regions().len()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_shared_while_blocks_move(
        kind in prop::sample::select(vec![Kind::Preallocate, Kind::Growing, Kind::Tpu]),
        // Without slabs, and with extents of one page.
        limit in prop::sample::select(vec![Bytes::kib(16), Bytes::mib(64)]),
        remaps in any::<bool>(),
        steps in prop::collection::vec(step(1 << 13), 1..150),
        large in prop::collection::vec(step(1 << 25), 1..60),
    ) {
        let remap = Remap { page: Bytes::kib(4), least: Bytes::kib(8), per_exchange: 10, per_mib: 10 };
        let costs = if remaps { Costs { remap: Some(remap), ..Costs::COPY } } else { Costs::COPY };
        // The large ones move granule by granule in the model, so that there are fewer.
        if limit < Bytes::mib(1) {
            run(kind, limit, &costs, steps);
        } else {
            run(kind, limit, &costs, large.into_iter().zip(steps).flat_map(|(one, other)| [one, other]).collect());
        }
    }
}
