//! Whether a result's sharding is fixed before partitioning.
//!
//! A destination parameter must end up with the sharding of its result. Where the result's is fully specified the
//! parameter gets a copy of it; where the partitioner still chooses, the two have to be tied (`tie.rs`) or left.

use std::collections::HashMap;

use crate::program::{
    bytecode::{ids::AttrId, reader::Cursor, tables::Tables},
    reject::Reject,
    signature::Known,
};

pub(super) const SDY: &[u8] = b"sdy";

/// Codes of Shardy's attributes (`sdy/ir/bytecode.td`). A sharding grew fields behind its dimensions twice.
const DIMENSION_SHARDING: u64 = 5;
const SHARDINGS: [u64; 3] = [6, 15, 17];

/// Remembers which Shardy attributes are closed, so that each is read once.
#[derive(Debug, Default)]
pub(super) struct Shardings {
    closed: HashMap<AttrId, bool>,
}

impl Shardings {
    /// Whether the partitioner has nothing left to choose. Linear in the attribute the first time.
    pub(super) fn is_specified(&mut self, tables: &Tables<'_>, known: &Known) -> Result<bool, Reject> {
        match known.sdy_sharding {
            Some((_, sharding)) => self.is_closed(tables, sharding),
            None => Ok(known.mhlo_sharding.is_some()),
        }
    }

    /// Whether every dimension of a `#sdy.sharding` is closed. What cannot be read counts as open.
    fn is_closed(&mut self, tables: &Tables<'_>, id: AttrId) -> Result<bool, Reject> {
        if let Some(&closed) = self.closed.get(&id) {
            return Ok(closed);
        }
        let entry = tables.attribute(id)?;
        let mut cursor = Cursor::new(entry.bytes);
        let mut closed = tables.is_custom(entry, SDY) && SHARDINGS.contains(&cursor.varint()?);
        if closed {
            // The mesh, or the name of one.
            cursor.varint()?;
            for dimension in cursor.list(AttrId)? {
                closed = closed && self.is_dimension_closed(tables, dimension)?;
            }
        }
        self.closed.insert(id, closed);
        Ok(closed)
    }

    fn is_dimension_closed(&mut self, tables: &Tables<'_>, id: AttrId) -> Result<bool, Reject> {
        if let Some(&closed) = self.closed.get(&id) {
            return Ok(closed);
        }
        let entry = tables.attribute(id)?;
        let mut cursor = Cursor::new(entry.bytes);
        let mut closed = tables.is_custom(entry, SDY) && cursor.varint()? == DIMENSION_SHARDING;
        if closed {
            cursor.skip_list()?;
            closed = cursor.byte()? != 0;
        }
        self.closed.insert(id, closed);
        Ok(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::bytecode::{
        tables::TableSections,
        writer::{put_varint, varints},
    };

    /// Codes of Shardy's attributes, and of one that is none of these.
    const OTHER: u64 = 7;
    const CUSTOM: bool = true;
    const TEXT: bool = false;

    /// Asks of each attribute whether a result with this sharding leaves the partitioner nothing to choose. Attributes
    /// are dialect (0 is Shardy's), encoding, bytes.
    fn specified<const N: usize>(attributes: &[(u64, bool, Vec<u8>)], asked: [u64; N]) -> [bool; N] {
        let mut strings = varints([2, 5, 4]);
        strings.extend(b"sdy\0vhlo\0");
        let mut offsets = varints([attributes.len() as u64, 0]);
        for (dialect, custom, bytes) in attributes {
            offsets.extend(varints([*dialect, 1, (bytes.len() as u64) << 1 | u64::from(*custom)]));
        }
        let data: Vec<u8> = attributes.iter().flat_map(|(.., bytes)| bytes.iter().copied()).collect();
        let (dialects, properties) = (varints([2, 0, 1 << 1, 0]), varints([0]));
        let tables = Tables::parse(TableSections {
            strings: &strings,
            dialects: &dialects,
            data: &data,
            offsets: &offsets,
            properties: &properties,
        })
        .expect("good tables");
        let mut shardings = Shardings::default();
        let mut ask = |id| {
            let known = Known { sdy_sharding: Some((AttrId(0), AttrId(id))), ..Known::default() };
            shardings.is_specified(&tables, &known).expect("good attributes")
        };
        // What was found is remembered, and is the same the second time.
        let first = asked.map(&mut ask);
        assert_eq!(asked.map(ask), first);
        first
    }

    fn dimension(code: u64, axes: &[u64], closed: bool) -> Vec<u8> {
        let mut bytes = varints([code, axes.len() as u64]);
        axes.iter().for_each(|&axis| put_varint(&mut bytes, axis));
        bytes.push(closed.into());
        bytes
    }

    fn sharding(code: u64, dimensions: &[u64]) -> Vec<u8> {
        let mut bytes = varints([code, 99, dimensions.len() as u64]);
        dimensions.iter().for_each(|&dimension| put_varint(&mut bytes, dimension));
        bytes
    }

    #[test]
    fn one_open_dimension_is_left_to_the_partitioner() {
        let [closed, open, free] = [0, 1, 2];
        let attributes = [
            (0, CUSTOM, dimension(DIMENSION_SHARDING, &[4], true)),
            (0, CUSTOM, dimension(DIMENSION_SHARDING, &[4, 5], false)),
            (0, CUSTOM, dimension(DIMENSION_SHARDING, &[], false)),
            (0, CUSTOM, sharding(SHARDINGS[0], &[closed, closed])),
            (0, CUSTOM, sharding(SHARDINGS[1], &[open, closed])),
            (0, CUSTOM, sharding(SHARDINGS[2], &[closed, open])),
            (0, CUSTOM, sharding(SHARDINGS[0], &[free])),
            (0, CUSTOM, sharding(SHARDINGS[2], &[])),
        ];
        assert_eq!(specified(&attributes, [3, 4, 5, 6, 7]), [true, false, false, false, true]);
    }

    #[test]
    fn what_cannot_be_read_counts_as_open() {
        let attributes = [
            (0, CUSTOM, dimension(DIMENSION_SHARDING, &[], true)),
            (0, CUSTOM, dimension(OTHER, &[], true)),
            (1, CUSTOM, dimension(DIMENSION_SHARDING, &[], true)),
            (0, TEXT, dimension(DIMENSION_SHARDING, &[], true)),
            (0, CUSTOM, sharding(SHARDINGS[0], &[0])),
            (0, CUSTOM, sharding(SHARDINGS[0], &[1])),
            (0, CUSTOM, sharding(SHARDINGS[0], &[2])),
            (0, CUSTOM, sharding(SHARDINGS[0], &[3])),
            (0, CUSTOM, sharding(OTHER, &[0])),
            (1, CUSTOM, sharding(SHARDINGS[0], &[0])),
            (0, TEXT, sharding(SHARDINGS[0], &[0])),
        ];
        let asked = [4, 5, 6, 7, 8, 9, 10];
        assert_eq!(specified(&attributes, asked), [true, false, false, false, false, false, false]);
    }
}
