//! The block table: from an id that outsiders keep to what the arena knows about the block.
//!
//! ```text
//!  BlockId {index, generation} --> entries[index] = Taken {generation, record: requested, address, ...}
//!                                                 | Vacant {generation, next}
//! ```
//!
//! An id is honoured only with the generation of its entry, so a stale one is a miss and never another block. An entry
//! whose generations are used up (2³² - 2 blocks) is not used again. Entries take 64 bytes, a cache line; all
//! operations are O(1).

use std::{fmt, num::NonZeroU32};

use crate::{
    memory::{
        provenance::{PinReason, Provenance},
        space::node::SpanState,
        strategy::placement::BlockPlace,
    },
    units::{Address, Bytes},
};

/// Names a block for as long as it lives, and nothing afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    index: u32,
    /// From 1 on, so that an optional id takes no more than an id.
    generation: NonZeroU32,
}

const _: () = assert!(size_of::<Option<BlockId>>() == 8, "compaction keeps one for each block and hole");

impl BlockId {
    /// The number of its entry, for tables beside the arena's: small, and used again after the block.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Which block with this number it is.
    pub(super) fn generation(self) -> u32 {
        self.generation.get()
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// What the arena knows about a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// What the caller asked for; the place may hold more.
    pub(super) requested: Bytes,
    pub(super) address: Address,
    pub(super) place: BlockPlace,
    pub(super) state: SpanState,
    /// Why it is pinned, where it is.
    pub(super) pin: PinReason,
    pub(super) provenance: Provenance,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Taken { generation: NonZeroU32, record: Record },
    Vacant { generation: NonZeroU32, next: Option<u32> },
}

/// All blocks that live or are retired.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockTable {
    entries: Vec<Entry>,
    vacant: Option<u32>,
    len: u32,
}

impl BlockTable {
    /// Blocks in the table.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds a block.
    pub(super) fn insert(&mut self, record: Record) -> BlockId {
        self.len += 1;
        if let Some(index) = self.vacant
            && let Some(entry) = self.entries.get_mut(index as usize)
            && let Entry::Vacant { generation, next } = *entry
        {
            self.vacant = next;
            *entry = Entry::Taken { generation, record };
            return BlockId { index, generation };
        }
        // 2^32 blocks of one granule are 1 TiB of granules and 256 GiB of entries; a truncated index would be
        // a wrong block, so this stops instead.
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 blocks");
        let generation = NonZeroU32::MIN;
        self.entries.push(Entry::Taken { generation, record });
        BlockId { index, generation }
    }

    /// The record of `id`, unless it is stale or unknown.
    pub(super) fn get_mut(&mut self, id: BlockId) -> Option<&mut Record> {
        match self.entries.get_mut(id.index as usize) {
            Some(Entry::Taken { generation, record }) if *generation == id.generation => Some(record),
            _ => None,
        }
    }

    /// Removes the block `id`, unless it is stale or unknown.
    pub(super) fn remove(&mut self, id: BlockId) -> Option<Record> {
        let entry = self.entries.get_mut(id.index as usize)?;
        let Entry::Taken { generation, record } = *entry else { return None };
        if generation != id.generation {
            return None;
        }
        self.len -= 1;
        *entry = Entry::Vacant { generation: generation.saturating_add(1), next: self.vacant };
        if generation.get() < u32::MAX - 1 {
            self.vacant = Some(id.index);
        }
        Some(record)
    }

    /// The record of `id`, unless it is stale or unknown.
    pub(super) fn get(&self, id: BlockId) -> Option<&Record> {
        match self.entries.get(id.index as usize) {
            Some(Entry::Taken { generation, record }) if *generation == id.generation => Some(record),
            _ => None,
        }
    }

    /// All blocks, by index. O(entries ever used at once).
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Record)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| match entry {
            Entry::Taken { generation, record } => {
                Some((BlockId { index: index as u32, generation: *generation }, record))
            }
            Entry::Vacant { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: u64) -> Record {
        let place = BlockPlace::Mapping { index: 1 };
        Record {
            requested: Bytes::new(1),
            address: Address::new(address),
            place,
            state: SpanState::Live,
            pin: PinReason::default(),
            provenance: Provenance::default(),
        }
    }

    #[test]
    fn an_entry_takes_64_bytes() {
        assert_eq!(size_of::<Entry>(), 64);
    }

    #[test]
    fn a_stale_id_misses_though_its_entry_is_reused() {
        let mut table = BlockTable::default();
        let first = table.insert(record(1));
        assert_eq!(table.remove(first).map(|record| record.address), Some(Address::new(1)));
        let second = table.insert(record(2));
        assert_eq!((first.index, table.len()), (second.index, 1));
        assert!(table.get_mut(first).is_none() && table.remove(first).is_none());
        assert_eq!(table.get_mut(second).map(|record| record.address), Some(Address::new(2)));
        assert!(table.remove(BlockId { index: 99, generation: NonZeroU32::MIN }).is_none());
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn entries_are_used_again_all_of_them() {
        let mut table = BlockTable::default();
        let first: Vec<BlockId> = (0..4).map(|address| table.insert(record(address))).collect();
        for round in 0..10 {
            // More than one at a time: they wait in a list.
            let gone = [0, 2, 3].map(|number| (number + round) % 4);
            let ids: Vec<BlockId> = table.iter().map(|(id, _)| id).collect();
            gone.iter().for_each(|&number| assert!(table.remove(ids[number]).is_some()));
            let new: Vec<BlockId> = (0..3).map(|address| table.insert(record(address))).collect();
            assert!(new.iter().all(|id| !ids.contains(id)), "{new:?} among {ids:?}");
        }
        assert_eq!((table.len(), table.entries.len()), (4, first.len()), "no entry was lost");
    }

    #[test]
    fn an_entry_without_generations_left_retires() {
        let mut table = BlockTable::default();
        let id = table.insert(record(1));
        let generation = NonZeroU32::new(u32::MAX - 1).expect("not zero");
        table.entries[0] = Entry::Taken { generation, record: record(1) };
        let last = BlockId { generation, ..id };
        assert!(table.remove(last).is_some());
        assert_ne!(table.insert(record(2)).index, id.index);
        assert!(table.get_mut(last).is_none());
    }
}
