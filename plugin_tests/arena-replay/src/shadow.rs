//! A naive model beside the policy: which addresses are held, and by which block. It notices blocks that overlap, and
//! moves that overwrite a block or take another one's bytes.

use std::collections::BTreeMap;

use pjrt_arena::{
    memory::Move,
    units::{Address, Bytes},
};
use rustc_hash::FxHashMap;

/// The blocks held, by address and by number. The numbers stand for the blocks' contents.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    held: BTreeMap<Address, Held>,
    places: FxHashMap<usize, Address>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    number: usize,
    size: Bytes,
    pinned: bool,
}

impl Shadow {
    /// Notes the block `number`. O(log blocks).
    ///
    /// # Errors
    /// Names the held block that has one of its bytes.
    pub(crate) fn take(&mut self, number: usize, address: Address, size: Bytes) -> Result<(), String> {
        let extent = at_least_one(size);
        // No two held blocks overlap, so of those that begin before the end only the last can reach into it.
        let before = self.held.range(..address + extent).next_back();
        if let Some((&other, held)) = before.filter(|&(&other, held)| other + at_least_one(held.size) > address) {
            return Err(format!("{extent} at {address} overlap the block of {} at {other}", at_least_one(held.size)));
        }
        self.held.insert(address, Held { number, size, pinned: false });
        self.places.insert(number, address);
        Ok(())
    }

    /// Moves the block at one address to another, as `memmove` would. O(log blocks).
    ///
    /// # Errors
    /// When no such block is there, or another one is in the way.
    pub(crate) fn relocate(&mut self, step: &Move) -> Result<(), String> {
        let Some(held) = self.held.remove(&step.from).filter(|held| held.size == step.size) else {
            return Err(format!("no block of {} is held at {}", step.size, step.from));
        };
        if held.pinned {
            return Err(format!("the block at {} moves to {}, but it is pinned", step.from, step.to));
        }
        self.take(held.number, step.to, held.size)
    }

    /// Notes that the block `number` stays where it is. O(log blocks).
    ///
    /// # Errors
    /// When it is not held.
    pub(crate) fn pin(&mut self, number: usize) -> Result<(), String> {
        let held = self.places.get(&number).and_then(|address| self.held.get_mut(address));
        held.map(|held| held.pinned = true).ok_or_else(|| format!("block {number} is not held"))
    }

    /// Forgets the block `number`. O(log blocks).
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn free(&mut self, number: usize) -> Result<(), String> {
        let gone = self.places.remove(&number).and_then(|address| self.held.remove(&address));
        gone.map(drop).ok_or_else(|| format!("block {number} is not held"))
    }

    /// Whether these are the blocks held. O(blocks).
    ///
    /// # Errors
    /// The first place that only one of the two knows.
    pub(crate) fn agrees(&self, mut places: Vec<(Address, Bytes)>) -> Result<(), String> {
        places.sort_unstable();
        let mut own = self.held.iter().map(|(&address, held)| (address, held.size));
        let mut theirs = places.into_iter();
        loop {
            match (own.next(), theirs.next()) {
                (None, None) => return Ok(()),
                (own, theirs) if own == theirs => {}
                (own, theirs) => return Err(format!("held is {own:?}, the policy says {theirs:?}")),
            }
        }
    }
}

/// A block of nothing has an address of its own, too.
fn at_least_one(size: Bytes) -> Bytes {
    size.max(Bytes::new(1))
}

#[cfg(test)]
mod tests {
    use pjrt_arena::memory::{Arena, Block, Strategy};

    use super::*;

    fn after_a_block(address: u64, size: u64) -> Result<(), String> {
        let mut shadow = Shadow::default();
        shadow.take(0, Address::new(1000), Bytes::new(100))?;
        shadow.take(1, Address::new(address), Bytes::new(size))
    }

    /// Any id: the shadow does not look at it.
    fn block() -> Block {
        let device = pjrt_arena::device::fake::FakeBacking::new(Bytes::kib(4), Bytes::new(256));
        let arena = Arena::new("t".into(), Strategy::Preallocate, Bytes::kib(4), Box::new(device)).expect("an arena");
        arena.allocate(Bytes::new(1)).expect("room")
    }

    #[test]
    fn neighbours_and_reused_addresses_are_fine() {
        for (address, size) in [(1100, 1), (900, 100), (999, 0)] {
            assert_eq!(after_a_block(address, size), Ok(()));
        }
        let mut shadow = Shadow::default();
        let (low, high) = (Address::new(1), Address::new(5));
        assert_eq!(shadow.take(7, low, Bytes::new(10)), Ok(()));
        assert_eq!(shadow.free(7), Ok(()));
        assert_eq!(shadow.take(7, high, Bytes::new(10)), Ok(()));
        assert_eq!(shadow.free(8), Err("block 8 is not held".into()));
    }

    #[test]
    fn any_common_byte_is_noticed() {
        for (address, size) in [(1000, 100), (1099, 1), (950, 51), (900, 1000), (1000, 0), (1050, 0)] {
            let error = after_a_block(address, size).expect_err("the block there");
            assert!(error.ends_with("overlap the block of 100B at 0x3e8"), "{error}");
        }
    }

    #[test]
    fn a_move_takes_one_block_along_and_overwrites_none() {
        let id = block().id;
        let step =
            |from, to, size| Move { block: id, from: Address::new(from), to: Address::new(to), size: Bytes::new(size) };
        let mut shadow = Shadow::default();
        assert_eq!(shadow.take(0, Address::new(1000), Bytes::new(100)), Ok(()));
        assert_eq!(shadow.take(1, Address::new(2000), Bytes::new(100)), Ok(()));
        assert_eq!(shadow.relocate(&step(1000, 950, 100)), Ok(()), "onto a part of itself");
        let places = |first| vec![(Address::new(2000), Bytes::new(100)), (Address::new(first), Bytes::new(100))];
        assert_eq!(shadow.agrees(places(950)), Ok(()));
        assert!(shadow.agrees(places(1000)).is_err());
        assert!(shadow.agrees(vec![]).is_err());
        let error = shadow.relocate(&step(950, 1901, 100)).expect_err("the other block is there");
        assert!(error.contains("overlap"), "{error}");
        for wrong in [step(1000, 0, 100), step(2000, 0, 99)] {
            let error = shadow.relocate(&wrong).expect_err("no such block");
            assert!(error.starts_with("no block of"), "{error}");
        }
        let mut shadow = Shadow::default();
        assert_eq!(shadow.take(0, Address::new(1000), Bytes::new(100)), Ok(()));
        assert_eq!(shadow.pin(0), Ok(()));
        let error = shadow.relocate(&step(1000, 0, 100)).expect_err("pinned");
        assert!(error.ends_with("but it is pinned"), "{error}");
    }
}
