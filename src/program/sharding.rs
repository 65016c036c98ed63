//! Whether a result's sharding is fixed before partitioning.
//!
//! A destination parameter must end up with the sharding of its result. Where the result's is fully specified the
//! parameter gets a copy of it; where the partitioner still chooses, the two have to be tied (`tie.rs`) or left.

use std::collections::HashMap;

use super::{
    Reject,
    bytecode::{AttrId, Cursor, Tables},
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
