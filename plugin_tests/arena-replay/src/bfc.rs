//! XLA's BFC allocator as a policy: what JAX users have today, for the figures beside ours.
//!
//! ```text
//!  chunks by address    | used | free | used |      free      |      doubly linked, no two free ones touch
//!                              |                 |
//!  bins by size         [256 B, 512 B) ...   [256 MiB, ...)           21 sets ordered by (size, address)
//! ```
//!
//! Rules, from `xla/tsl/framework/bfc_allocator.{h,cc}` as of PJRT 0.112, for a pool that is taken up front:
//!
//! - Requests are rounded up to 256 bytes.
//! - Bin `b` of 21 holds the free chunks of `256 << b` bytes up to twice that; the last has no upper end.
//! - The smallest free chunk that is large enough is taken, of equal ones the lowest.
//! - It is split only if it has twice the request, or 128 MiB more than it. Otherwise all of it is handed out.
//! - A freed chunk is joined with its free neighbours at once.
//!
//! Left out, because a replay has no use for it: regions added on demand, time stamps, the retry that waits for 10
//! seconds. Where the original walks through a bin from its smallest chunk, this takes the first that fits by a search
//! in the ordered set: the same chunk, sooner.

use std::{collections::BTreeSet, num::NonZeroU32};

use parking_lot::Mutex;
use pjrt_arena::{
    memory::Move,
    units::{Address, Bytes},
};

use crate::{
    policy::Policy,
    trace::{UNIT, rounded},
};

const BINS: usize = 21;
/// A chunk that exceeds the request by this much is split though it has less than twice the request.
const MOST_SLACK: Bytes = Bytes::mib(128);

/// A chunk's number plus one, so that an optional link takes four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkId(NonZeroU32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Taken,
    /// The chunk was absorbed by another one, and its number waits for reuse.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    address: Address,
    size: Bytes,
    prev: Option<ChunkId>,
    next: Option<ChunkId>,
    state: Use,
}

/// See the module's documentation. The lock is there so that times compare: the original has one, too.
#[derive(Debug)]
pub(crate) struct Bfc(Mutex<State>);

#[derive(Debug)]
struct State {
    chunks: Vec<Chunk>,
    gone: Vec<ChunkId>,
    bins: [BTreeSet<(Bytes, Address, ChunkId)>; BINS],
}

impl ChunkId {
    fn new(index: usize) -> Self {
        // 2^32 chunks would take more memory than a machine has before the number could be wrong.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Bfc {
    /// A pool of `capacity`, rounded down to 256 bytes.
    pub(crate) fn new(capacity: Bytes) -> Self {
        let mut state = State { chunks: Vec::new(), gone: Vec::new(), bins: [const { BTreeSet::new() }; BINS] };
        let size = capacity.round_down(UNIT);
        if !size.is_zero() {
            let whole =
                state.add(Chunk { address: Address::new(1 << 32), size, prev: None, next: None, state: Use::Free });
            state.file(whole);
        }
        Self(Mutex::new(state))
    }
}

impl Policy for Bfc {
    type Block = ChunkId;

    fn allocate(&mut self, size: Bytes, _: &mut impl FnMut(Move)) -> Option<(ChunkId, Address)> {
        self.0.lock().allocate(size)
    }

    fn free(&mut self, block: ChunkId) {
        self.0.lock().free(block);
    }

    fn settled(&self) -> Result<(), String> {
        let state = self.0.lock();
        match state.bins.iter().map(BTreeSet::len).sum() {
            0 | 1 => Ok(()),
            chunks => Err(format!("nothing is held, but {chunks} free chunks were not joined")),
        }
    }
}

impl State {
    fn bin(size: Bytes) -> usize {
        let units = (size.get() / UNIT.get()).max(1);
        (units.ilog2() as usize).min(BINS - 1)
    }

    fn allocate(&mut self, size: Bytes) -> Option<(ChunkId, Address)> {
        let need = rounded(size)?;
        let least = (need, Address::new(0), ChunkId::new(0));
        let fits = |bin: &BTreeSet<_>| bin.range(least..).next().copied();
        let (size, address, id) = self.bins[Self::bin(need)..].iter().find_map(fits)?;
        self.unfile(id);
        let rest = size - need;
        if rest >= need || rest >= MOST_SLACK {
            self.split(id, need);
        }
        self.chunks[id.index()].state = Use::Taken;
        Some((id, address))
    }

    fn free(&mut self, mut id: ChunkId) {
        let Chunk { prev, next, .. } = self.chunks[id.index()];
        if let Some(next) = next.filter(|&next| self.is_free(next)) {
            self.unfile(next);
            self.absorb_next(id);
        }
        if let Some(prev) = prev.filter(|&prev| self.is_free(prev)) {
            self.unfile(prev);
            self.absorb_next(prev);
            id = prev;
        }
        self.chunks[id.index()].state = Use::Free;
        self.file(id);
    }

    fn is_free(&self, id: ChunkId) -> bool {
        self.chunks[id.index()].state == Use::Free
    }

    fn key(&self, id: ChunkId) -> (Bytes, Address, ChunkId) {
        let chunk = &self.chunks[id.index()];
        (chunk.size, chunk.address, id)
    }

    fn file(&mut self, id: ChunkId) {
        let key = self.key(id);
        self.bins[Self::bin(key.0)].insert(key);
    }

    fn unfile(&mut self, id: ChunkId) {
        let key = self.key(id);
        self.bins[Self::bin(key.0)].remove(&key);
    }

    /// Cuts a chunk that is in no bin after `keep` bytes; the rest becomes a free chunk.
    fn split(&mut self, id: ChunkId, keep: Bytes) {
        let Chunk { address, size, next, .. } = self.chunks[id.index()];
        let rest = Chunk { address: address + keep, size: size - keep, prev: Some(id), next, state: Use::Free };
        let upper = self.add(rest);
        if let Some(after) = next {
            self.chunks[after.index()].prev = Some(upper);
        }
        let lower = &mut self.chunks[id.index()];
        (lower.size, lower.next) = (keep, Some(upper));
        self.file(upper);
    }

    /// Joins a chunk with the one above it; both are in no bin.
    fn absorb_next(&mut self, id: ChunkId) {
        let Some(upper) = self.chunks[id.index()].next else { return };
        let Chunk { size, next, .. } = self.chunks[upper.index()];
        self.chunks[upper.index()].state = Use::Gone;
        self.gone.push(upper);
        let lower = &mut self.chunks[id.index()];
        lower.size += size;
        lower.next = next;
        if let Some(after) = next {
            self.chunks[after.index()].prev = Some(id);
        }
    }

    fn add(&mut self, chunk: Chunk) -> ChunkId {
        if let Some(id) = self.gone.pop() {
            self.chunks[id.index()] = chunk;
            return id;
        }
        self.chunks.push(chunk);
        ChunkId::new(self.chunks.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: u64 = 1 << 32;

    /// Blocks by their offset from the pool's start.
    fn take(bfc: &mut Bfc, size: Bytes) -> Option<(ChunkId, u64)> {
        bfc.allocate(size, &mut |_| ()).map(|(id, address)| (id, address.get() - BASE))
    }

    /// The pool's chunks from the lowest on: size, and whether it is taken. Checks that they tile the pool.
    fn chunks(bfc: &Bfc) -> Vec<(u64, bool)> {
        let state = bfc.0.lock();
        let live = |chunk: &&Chunk| chunk.state != Use::Gone;
        let mut chunks: Vec<Chunk> = state.chunks.iter().filter(live).copied().collect();
        chunks.sort_by_key(|chunk| chunk.address);
        let mut end = Address::new(BASE);
        for chunk in &chunks {
            assert_eq!(chunk.address, end);
            end = chunk.address + chunk.size;
        }
        let free = chunks.iter().filter(|chunk| chunk.state == Use::Free).count();
        assert_eq!(state.bins.iter().map(BTreeSet::len).sum::<usize>(), free);
        chunks.iter().map(|chunk| (chunk.size.get(), chunk.state == Use::Taken)).collect()
    }

    #[test]
    fn bins_double_and_the_last_has_no_end() {
        let bin = |size: u64| State::bin(Bytes::new(size));
        assert_eq!([256, 511, 512, 1023, 1024].map(bin), [0, 0, 1, 1, 2]);
        assert_eq!([Bytes::mib(256), Bytes::gib(100)].map(State::bin), [20, 20]);
        assert_eq!(State::bin(Bytes::new((256 << 20) - 256)), 19);
    }

    #[test]
    fn a_chunk_below_twice_the_request_is_handed_out_whole() {
        let mut bfc = Bfc::new(Bytes::new(1023));
        assert!(take(&mut bfc, Bytes::new(400)).is_some());
        // Of 768 bytes 512 are needed, and the 256 left over are less than that.
        assert_eq!(chunks(&bfc), [(768, true)]);
        assert_eq!(take(&mut bfc, Bytes::new(1)), None);
    }

    #[test]
    fn a_chunk_of_twice_the_request_is_split() {
        let mut bfc = Bfc::new(Bytes::new(1024));
        assert_eq!(take(&mut bfc, Bytes::new(300)).map(|(_, at)| at), Some(0));
        assert_eq!(chunks(&bfc), [(512, true), (512, false)]);
    }

    #[test]
    fn a_chunk_larger_by_128_mib_is_split_though_it_is_below_twice_the_request() {
        let gib = Bytes::gib(1);
        let mut whole = Bfc::new(gib + MOST_SLACK - UNIT);
        assert!(take(&mut whole, gib).is_some());
        assert_eq!(chunks(&whole).len(), 1);
        let mut split = Bfc::new(gib + MOST_SLACK);
        assert!(take(&mut split, gib).is_some());
        assert_eq!(chunks(&split), [(1 << 30, true), (128 << 20, false)]);
    }

    #[test]
    fn the_smallest_fit_is_taken_and_of_equal_ones_the_lowest() {
        let mut bfc = Bfc::new(Bytes::mib(1));
        // Holes of 4, 2, 2 and 3 units between single ones.
        let mut holes = Vec::new();
        for units in [4, 2, 2, 3] {
            holes.push(take(&mut bfc, Bytes::new(256 * units)).expect("room"));
            take(&mut bfc, UNIT).expect("room");
        }
        // The highest first: the order of frees must not matter.
        holes.iter().rev().for_each(|&(id, _)| bfc.free(id));
        let offsets: Vec<u64> = holes.iter().map(|&(_, at)| at).collect();
        let mut next = || take(&mut bfc, Bytes::new(512)).map(|(_, at)| at);
        // Three units are no match for two exact ones, and then go whole; four are split.
        let expected = [offsets[1], offsets[2], offsets[3], offsets[0], offsets[0] + 512];
        assert_eq!(expected.map(|_| next()), expected.map(Some));
    }

    #[test]
    fn free_neighbours_are_joined_on_both_sides() {
        let mut bfc = Bfc::new(Bytes::new(4 * 256));
        let [a, b, c] = [(); 3].map(|()| take(&mut bfc, UNIT).expect("room").0);
        bfc.free(a);
        bfc.free(c);
        assert_eq!(chunks(&bfc), [(256, false), (256, true), (512, false)]);
        bfc.free(b);
        assert_eq!(chunks(&bfc), [(1024, false)]);
        assert!(take(&mut bfc, Bytes::new(1024)).is_some());
        assert_eq!(take(&mut bfc, Bytes::MAX), None);
    }

    /// The rules once more, as plainly as can be: free chunks in a list by address, searched from end to end.
    struct Naive {
        free: Vec<(u64, u64)>,
    }

    impl Naive {
        fn take(&mut self, size: u64) -> Option<(u64, u64)> {
            let need = size.max(1).div_ceil(256) * 256;
            let fitting = (0..self.free.len()).filter(|&index| self.free[index].1 >= need);
            let index = fitting.min_by_key(|&index| (self.free[index].1, self.free[index].0))?;
            let (offset, size) = self.free[index];
            if size < 2 * need && size - need < 128 << 20 {
                self.free.remove(index);
                return Some((offset, size));
            }
            self.free[index] = (offset + need, size - need);
            Some((offset, need))
        }

        fn free(&mut self, block: (u64, u64)) {
            self.free.push(block);
            self.free.sort();
            let mut joined: Vec<(u64, u64)> = Vec::new();
            for &(offset, size) in &self.free {
                match joined.last_mut() {
                    Some((below, length)) if *below + *length == offset => *length += size,
                    _ => joined.push((offset, size)),
                }
            }
            joined.retain(|&(_, size)| size != 0);
            self.free = joined;
        }
    }

    proptest! {
        #[test]
        fn every_block_lies_where_the_naive_rules_put_it(
            steps in prop::collection::vec((any::<bool>(), 0..14u32, any::<u64>(), any::<prop::sample::Index>()), 1..300),
            pool in (1u64 << 16..1 << 32).prop_map(|pool| pool / 256 * 256),
        ) {
            let (mut bfc, mut naive) = (Bfc::new(Bytes::new(pool)), Naive { free: vec![(0, pool)] });
            let mut live = Vec::new();
            for (free, exponent, size, index) in steps {
                if free && !live.is_empty() {
                    let (id, block) = live.swap_remove(index.index(live.len()));
                    bfc.free(id);
                    naive.free(block);
                } else {
                    // From a byte up to a good part of the pool, so that all rules are met.
                    let size = size % (pool >> exponent);
                    let (ours, theirs) = (take(&mut bfc, Bytes::new(size)), naive.take(size));
                    prop_assert_eq!(ours.map(|(_, offset)| offset), theirs.map(|(offset, _)| offset));
                    live.extend(ours.zip(theirs).map(|((id, _), block)| (id, block)));
                }
            }
            let held: u64 = live.iter().map(|&(_, (_, size))| size).sum();
            let taken: u64 = chunks(&bfc).iter().filter(|(_, taken)| *taken).map(|(size, _)| size).sum();
            prop_assert_eq!(taken, held);
        }
    }
}
