//! A naive model beside the policy: which addresses are held. It notices blocks that overlap.

use std::collections::BTreeMap;

use pjrt_arena::units::{Address, Bytes};

/// The blocks held, by address.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    held: BTreeMap<Address, Bytes>,
}

impl Shadow {
    /// Notes a block. O(log blocks).
    ///
    /// # Errors
    /// Names the held block that has one of its bytes.
    pub(crate) fn take(&mut self, address: Address, size: Bytes) -> Result<(), String> {
        let size = size.max(Bytes::new(1));
        // No two held blocks overlap, so of those that begin before the end only the last can reach into it.
        let before = self.held.range(..address + size).next_back();
        if let Some((&other, &held)) = before.filter(|&(&other, &held)| other + held > address) {
            return Err(format!("{size} at {address} overlap the block of {held} at {other}"));
        }
        self.held.insert(address, size);
        Ok(())
    }

    /// Forgets the block at `address`. O(log blocks).
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn free(&mut self, address: Address) -> Result<(), String> {
        self.held.remove(&address).map(drop).ok_or_else(|| format!("no block is held at {address}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_a_block(address: u64, size: u64) -> Result<(), String> {
        let mut shadow = Shadow::default();
        shadow.take(Address::new(1000), Bytes::new(100))?;
        shadow.take(Address::new(address), Bytes::new(size))
    }

    #[test]
    fn neighbours_and_reused_addresses_are_fine() {
        for (address, size) in [(1100, 1), (900, 100), (999, 0)] {
            assert_eq!(after_a_block(address, size), Ok(()));
        }
        let mut shadow = Shadow::default();
        let (low, high) = (Address::new(1), Address::new(5));
        assert_eq!(shadow.take(low, Bytes::new(10)), Ok(()));
        assert_eq!(shadow.free(low), Ok(()));
        assert_eq!(shadow.take(high, Bytes::new(10)), Ok(()));
        assert_eq!(shadow.free(low), Err("no block is held at 0x1".into()));
    }

    #[test]
    fn any_common_byte_is_noticed() {
        for (address, size) in [(1000, 100), (1099, 1), (950, 51), (900, 1000), (1000, 0), (1050, 0)] {
            let error = after_a_block(address, size).expect_err("the block there");
            assert!(error.ends_with("overlap the block of 100B at 0x3e8"), "{error}");
        }
    }
}
