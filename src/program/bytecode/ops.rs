//! The operation grammar: walking operations without knowing what they mean.
//!
//! ```text
//!  op     = name  mask  location  [attributes] [properties] [results] [operands] [successors] [use lists] [regions]
//!  region = blocks  values  block*            values counts what this region defines itself, nested regions apart
//!  block  = ops*2+hasArguments  [arguments  use-list flag  [use lists]]  op*
//! ```
//!
//! An *isolated* operation keeps its regions in one nested section and numbers their values from 0; other regions
//! number on behind everything that the enclosing region defines. Isolated regions are therefore never entered here.

use crate::program::{
    bytecode::{
        ids::{AttrId, OpNameId, PropertyId, TypeId, ValueId},
        reader::Cursor,
        section,
        tables::Tables,
    },
    reject::Reject,
};

/// Which parts an operation has.
pub(in crate::program) mod mask {
    pub(in crate::program) const ATTRIBUTES: u8 = 0x01;
    pub(in crate::program) const RESULTS: u8 = 0x02;
    pub(in crate::program) const OPERANDS: u8 = 0x04;
    pub(in crate::program) const SUCCESSORS: u8 = 0x08;
    pub(in crate::program) const REGIONS: u8 = 0x10;
    pub(in crate::program) const USE_LISTS: u8 = 0x20;
    pub(in crate::program) const PROPERTIES: u8 = 0x40;
    pub(in crate::program) const UNKNOWN: u8 = 0x80;
}

/// The byte that says that use lists follow the arguments of a block.
pub(in crate::program) const BLOCK_HAS_USE_LISTS: u8 = 0x20;

/// Regions within regions; deeper programs are left alone. XLA's own limits are reached long before.
pub(in crate::program) const DEEPEST: usize = 200;

/// Takes what a walk passes.
pub(in crate::program) trait Sink {
    /// Bytes that mean the same wherever they stand.
    fn copy(&mut self, raw: &[u8]);
    /// The next operand.
    fn operand(&mut self, value: ValueId) -> Result<(), Reject>;
    /// What to do with use lists (an order of uses, without meaning to the program).
    fn use_lists(&self) -> UseLists;
}

/// What becomes of use lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::program) enum UseLists {
    Keep,
    Drop,
}

/// Passes over operations and keeps nothing.
pub(in crate::program) struct Ignore;

impl Sink for Ignore {
    fn copy(&mut self, _: &[u8]) {}
    fn operand(&mut self, _: ValueId) -> Result<(), Reject> {
        Ok(())
    }
    fn use_lists(&self) -> UseLists {
        UseLists::Keep
    }
}

/// An operation up to its regions.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct Head {
    pub(in crate::program) name: OpNameId,
    pub(in crate::program) mask: u8,
    pub(in crate::program) location: AttrId,
    pub(in crate::program) attributes: Option<AttrId>,
    pub(in crate::program) properties: Option<PropertyId>,
    pub(in crate::program) results: usize,
    pub(in crate::program) regions: Regions,
}

/// How many regions follow, and how they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::program) enum Regions {
    /// In a nested section, numbered from 0.
    Isolated(usize),
    /// One after another, in the numbering of the enclosing region.
    Inline(usize),
}

/// Reads an operation up to its regions, which are next for the cursor.
pub(in crate::program) fn head(
    tables: &Tables<'_>,
    cursor: &mut Cursor<'_>,
    sink: &mut impl Sink,
) -> Result<Head, Reject> {
    let mark = cursor.mark();
    let name = OpNameId(cursor.varint()?);
    tables.op_name(name)?;
    sink.copy(cursor.since(mark));

    let parts = cursor.byte()?;
    if parts & mask::UNKNOWN != 0 {
        return Err(Reject::found("an operation with unknown parts", u64::from(parts)));
    }
    let drop_use_lists = sink.use_lists() == UseLists::Drop;
    sink.copy(&[if drop_use_lists { parts & !mask::USE_LISTS } else { parts }]);

    let mark = cursor.mark();
    let location = AttrId(cursor.varint()?);
    let attributes = if parts & mask::ATTRIBUTES != 0 { Some(AttrId(cursor.varint()?)) } else { None };
    let properties = if parts & mask::PROPERTIES != 0 { Some(PropertyId(cursor.varint()?)) } else { None };
    let mut results = 0;
    if parts & mask::RESULTS != 0 {
        results = cursor.count()?;
        for _ in 0..results {
            cursor.varint()?;
        }
    }
    sink.copy(cursor.since(mark));

    if parts & mask::OPERANDS != 0 {
        let mark = cursor.mark();
        let operands = cursor.count()?;
        sink.copy(cursor.since(mark));
        for _ in 0..operands {
            sink.operand(ValueId(cursor.varint()?))?;
        }
    }

    let mark = cursor.mark();
    if parts & mask::SUCCESSORS != 0 {
        cursor.skip_list()?;
    }
    sink.copy(cursor.since(mark));

    let mark = cursor.mark();
    if parts & mask::USE_LISTS != 0 {
        skip_use_lists(cursor, results)?;
    }
    if !drop_use_lists {
        sink.copy(cursor.since(mark));
    }

    let mark = cursor.mark();
    let mut regions = Regions::Inline(0);
    if parts & mask::REGIONS != 0 {
        let word = cursor.varint()?;
        let count = cursor.bounded(word >> 1)?;
        regions = if word & 1 == 1 { Regions::Isolated(count) } else { Regions::Inline(count) };
    }
    sink.copy(cursor.since(mark));
    Ok(Head { name, mask: parts, location, attributes, properties, results, regions })
}

/// Reads past the use lists of `values` values. A range of one value has neither count nor index.
fn skip_use_lists(cursor: &mut Cursor<'_>, values: usize) -> Result<(), Reject> {
    let lists = if values > 1 { cursor.count()? } else { 1 };
    for _ in 0..lists {
        if values > 1 {
            cursor.varint()?;
        }
        let word = cursor.varint()?;
        for _ in 0..cursor.bounded(word >> 1)? {
            cursor.varint()?;
        }
    }
    Ok(())
}

/// An argument of a block.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct Argument {
    pub(in crate::program) value_type: TypeId,
    /// `None` is the unknown location, which takes no bytes.
    pub(in crate::program) location: Option<AttrId>,
}

/// A block up to its operations.
#[derive(Debug)]
pub(in crate::program) struct BlockHead<'a> {
    pub(in crate::program) ops: usize,
    pub(in crate::program) arguments: Vec<Argument>,
    pub(in crate::program) use_lists: Option<&'a [u8]>,
}

/// Reads a block up to its operations.
pub(in crate::program) fn block_head<'a>(cursor: &mut Cursor<'a>) -> Result<BlockHead<'a>, Reject> {
    let word = cursor.varint()?;
    let mut block = BlockHead { ops: cursor.bounded(word >> 1)?, arguments: Vec::new(), use_lists: None };
    if word & 1 == 1 {
        let count = cursor.count()?;
        block.arguments.reserve_exact(count);
        for _ in 0..count {
            let word = cursor.varint()?;
            let location = if word & 1 == 1 { Some(AttrId(cursor.varint()?)) } else { None };
            block.arguments.push(Argument { value_type: TypeId(word >> 1), location });
        }
        if cursor.byte()? != 0 {
            let mark = cursor.mark();
            skip_use_lists(cursor, count)?;
            block.use_lists = Some(cursor.since(mark));
        }
    }
    Ok(block)
}

/// Passes the regions of an operation to `sink`, isolated ones as they are.
pub(in crate::program) fn regions(
    tables: &Tables<'_>,
    cursor: &mut Cursor<'_>,
    sink: &mut impl Sink,
    regions: Regions,
) -> Result<(), Reject> {
    regions_at(tables, cursor, sink, regions, 0)
}

/// Passes `count` operations and everything in them to `sink`.
pub(in crate::program) fn operations(
    tables: &Tables<'_>,
    cursor: &mut Cursor<'_>,
    sink: &mut impl Sink,
    count: usize,
) -> Result<(), Reject> {
    operations_at(tables, cursor, sink, count, 0)
}

fn regions_at(
    tables: &Tables<'_>,
    cursor: &mut Cursor<'_>,
    sink: &mut impl Sink,
    regions: Regions,
    depth: usize,
) -> Result<(), Reject> {
    let count = match regions {
        Regions::Inline(count) => count,
        Regions::Isolated(0) => 0,
        Regions::Isolated(_) => {
            let mark = cursor.mark();
            cursor.section_of(section::IR)?;
            sink.copy(cursor.since(mark));
            0
        }
    };
    if count > 0 && depth > DEEPEST {
        return Err(Reject::found("regions nest too deeply", depth as u64));
    }
    for _ in 0..count {
        let mark = cursor.mark();
        let blocks = cursor.count()?;
        if blocks > 0 {
            cursor.varint()?;
        }
        sink.copy(cursor.since(mark));
        for _ in 0..blocks {
            let mark = cursor.mark();
            let block = block_head(cursor)?;
            let raw = cursor.since(mark);
            match block.use_lists {
                Some(lists) if sink.use_lists() == UseLists::Drop => {
                    // The flag is the byte before the lists.
                    sink.copy(&raw[..raw.len() - lists.len() - 1]);
                    sink.copy(&[0]);
                }
                _ => sink.copy(raw),
            }
            operations_at(tables, cursor, sink, block.ops, depth)?;
        }
    }
    Ok(())
}

fn operations_at(
    tables: &Tables<'_>,
    cursor: &mut Cursor<'_>,
    sink: &mut impl Sink,
    count: usize,
    depth: usize,
) -> Result<(), Reject> {
    for _ in 0..count {
        let head = head(tables, cursor, sink)?;
        regions_at(tables, cursor, sink, head.regions, depth + 1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::bytecode::{tables::TableSections, writer::put_varint, writer::varints};

    /// Tables with the one operation `d.o`.
    fn tables() -> Tables<'static> {
        // Two strings of two bytes; one dialect; one name in one group of one; no attributes, types, properties.
        Tables::parse(TableSections {
            strings: b"\x05\x05\x05d\0o\0",
            dialects: b"\x03\x01\x03\x01\x03\x05",
            data: b"",
            offsets: b"\x01\x01",
            properties: b"\x01",
        })
        .unwrap()
    }

    /// An operation in a region of an operation, and so on, `depth` times.
    fn nest(depth: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..depth {
            out.extend(varints([0]));
            out.push(mask::REGIONS);
            // Location; one inline region of one block, no values, one operation.
            out.extend(varints([0, 1 << 1, 1, 0, 1 << 1]));
        }
        put_varint(&mut out, 0);
        out.push(0);
        put_varint(&mut out, 0);
        out
    }

    #[test]
    fn nesting_is_capped() {
        let tables = tables();
        let walk = |depth| {
            let bytes = nest(depth);
            let mut cursor = Cursor::new(&bytes);
            operations(&tables, &mut cursor, &mut Ignore, 1).map(|()| cursor.is_empty())
        };
        assert_eq!(walk(DEEPEST), Ok(true));
        assert!(walk(DEEPEST + 1).is_err());
        assert!(walk(100_000).is_err());
    }

    #[test]
    fn operations_are_copied_byte_for_byte() {
        struct Copy(Vec<u8>, UseLists);
        impl Sink for Copy {
            fn copy(&mut self, raw: &[u8]) {
                self.0.extend(raw);
            }
            fn operand(&mut self, value: ValueId) -> Result<(), Reject> {
                put_varint(&mut self.0, value.0);
                Ok(())
            }
            fn use_lists(&self) -> UseLists {
                self.1
            }
        }
        // Every part: attributes, properties, two results, an operand, a successor, use lists, a region with an
        // argument that has use lists.
        let mut bytes = varints([0]);
        bytes.push(0x7f);
        let use_lists = varints([1, 0, 2 << 1, 1, 0]);
        bytes.extend(varints([0, 0, 0, 2, 0, 0, 1, 9, 1, 0]));
        bytes.extend(&use_lists);
        bytes.extend(varints([1 << 1, 1, 1, 1, 1, 0]));
        bytes.push(BLOCK_HAS_USE_LISTS);
        bytes.extend(varints([2 << 1, 1, 0]));
        let tables = tables();
        let copy = |policy| {
            let mut cursor = Cursor::new(&bytes);
            let mut copy = Copy(Vec::new(), policy);
            operations(&tables, &mut cursor, &mut copy, 1).unwrap();
            assert!(cursor.is_empty());
            copy.0
        };
        assert_eq!(copy(UseLists::Keep), bytes);
        let mut expected = varints([0]);
        expected.push(0x7f & !mask::USE_LISTS);
        expected.extend(varints([0, 0, 0, 2, 0, 0, 1, 9, 1, 0]));
        expected.extend(varints([1 << 1, 1, 1, 1, 1, 0]));
        expected.push(0);
        assert_eq!(copy(UseLists::Drop), expected);
    }
}
