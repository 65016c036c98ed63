//! What reading a program may cost: in proportion to its size.
//!
//! A table's entry is decoded where something refers to it, and a byte can refer to an entry as long as half the
//! program. So what is decoded, and what is kept of each reference, is charged; a program that asks for more than any
//! compiler writes is refused.

use std::cell::Cell;

use crate::program::reject::Reject;

/// Bytes for each byte of the program. A parameter takes two to five bytes of a program at least, and some 200 here.
const PER_BYTE: u64 = 128;
/// Bytes for any program, however small.
const FREE: u64 = 1 << 20;

/// Bytes that may still be spent on a program.
#[derive(Debug)]
pub(super) struct Budget(Cell<u64>);

impl Budget {
    /// For a program of so many bytes.
    pub(super) fn of(program: usize) -> Self {
        Self(Cell::new((program as u64).saturating_mul(PER_BYTE).saturating_add(FREE)))
    }

    /// Spends `count` times `size` bytes; `what` says in the error what asked for too much.
    pub(super) fn spend(&self, count: usize, size: usize, what: &'static str) -> Result<(), Reject> {
        let bytes = (count as u64).saturating_mul(size as u64);
        match self.0.get().checked_sub(bytes) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => Err(Reject::found(what, bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_what_asked_for_too_much_and_how_much() {
        let budget = Budget::of(100);
        assert_eq!(budget.spend(1, 1 << 20, "first"), Ok(()));
        assert_eq!(budget.spend(100, 128, "second"), Ok(()));
        let refused = budget.spend(3, 7, "more bytes than the program may take").expect_err("all is spent");
        assert_eq!(refused.to_string(), "more bytes than the program may take: found 21");
        assert!(Budget::of(usize::MAX).spend(usize::MAX, 64, "").is_ok());
    }
}
