//! The numbers of values behind the arguments, which added arguments and operations push up.

use crate::program::{
    bytecode::{
        ids::ValueId,
        ops::{Sink, UseLists},
        writer::{put_varint, sum},
    },
    reject::Reject,
};

/// Copies operations, with operands renumbered.
pub(in crate::program) struct Renumber {
    pub(in crate::program) out: Vec<u8>,
    /// Values below this are arguments that keep their number.
    pub(in crate::program) arguments: u64,
    /// Values from here on belong to nested regions.
    pub(in crate::program) values: u64,
    pub(in crate::program) new_arguments: u64,
    /// Results of operations that are added before all others.
    pub(in crate::program) first_results: u64,
    /// Results of operations that are added behind all others.
    pub(in crate::program) last_results: u64,
    /// New values for operands of the next operation and their places, the first place at the end.
    pub(in crate::program) instead: Vec<(usize, ValueId)>,
    /// Operands of it that were seen.
    pub(in crate::program) seen: usize,
    pub(in crate::program) use_lists: UseLists,
}

impl Renumber {
    /// The new number of a value.
    pub(in crate::program) fn renumber(&self, value: ValueId) -> Result<ValueId, Reject> {
        let mut number = value.0;
        if value.0 >= self.arguments {
            number = sum(number, sum(self.new_arguments, self.first_results)?)?;
        }
        if value.0 >= self.values {
            number = sum(number, self.last_results)?;
        }
        Ok(ValueId(number))
    }
}

impl Sink for Renumber {
    fn copy(&mut self, raw: &[u8]) {
        self.out.extend(raw);
    }

    fn operand(&mut self, value: ValueId) -> Result<(), Reject> {
        let new = self.instead.pop_if(|(place, _)| *place == self.seen).map(|(_, new)| new);
        self.seen += 1;
        let renumbered = new.map_or_else(|| self.renumber(value), Ok)?;
        put_varint(&mut self.out, renumbered.0);
        Ok(())
    }

    fn use_lists(&self) -> UseLists {
        self.use_lists
    }
}
