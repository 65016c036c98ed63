//! The tables of a file, and what is appended to them.

use std::{borrow::Cow, collections::HashMap};

use crate::program::{
    budget::Budget,
    bytecode::{
        ids::{AttrId, DialectId, OpNameId, PropertyId, StringId, TypeId},
        reader::Cursor,
        section,
        writer::{flagged, put_varint},
    },
    reject::Reject,
};

/// An attribute or a type: who encodes it, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::program) struct Entry<'a> {
    pub(in crate::program) dialect: DialectId,
    pub(in crate::program) encoding: Encoding,
    pub(in crate::program) bytes: &'a [u8],
}

/// How the bytes of an entry are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::program) enum Encoding {
    /// In the dialect's own encoding, which begins with a code.
    Custom,
    /// As assembly text.
    Assembly,
}

/// The name of an operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct OpName<'a> {
    pub(in crate::program) dialect: &'a [u8],
    pub(in crate::program) name: &'a [u8],
}

/// The payloads of the sections that hold tables.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct TableSections<'a> {
    pub(in crate::program) strings: &'a [u8],
    pub(in crate::program) dialects: &'a [u8],
    pub(in crate::program) data: &'a [u8],
    pub(in crate::program) offsets: &'a [u8],
    pub(in crate::program) properties: &'a [u8],
}

/// All tables of a file. Lookups are O(1).
#[derive(Debug)]
pub(in crate::program) struct Tables<'a> {
    strings: Vec<&'a [u8]>,
    dialects: Vec<&'a [u8]>,
    op_names: Vec<OpName<'a>>,
    attributes: Vec<Entry<'a>>,
    types: Vec<Entry<'a>>,
    properties: Vec<&'a [u8]>,
    seams: Seams<'a>,
    /// What decoding the entries may still cost.
    pub(in crate::program) budget: Budget,
}

/// The sections cut where new entries go in.
#[derive(Debug)]
struct Seams<'a> {
    string_sizes: &'a [u8],
    string_bytes: &'a [u8],
    dialect_list: &'a [u8],
    op_groups: &'a [u8],
    attribute_groups: &'a [u8],
    type_groups: &'a [u8],
    attribute_bytes: &'a [u8],
    type_bytes: &'a [u8],
    property_blobs: &'a [u8],
}

fn look_up<T: Copy>(table: &[T], index: u64, reason: &'static str) -> Result<T, Reject> {
    usize::try_from(index).ok().and_then(|index| table.get(index).copied()).ok_or(Reject::found(reason, index))
}

impl<'a> Tables<'a> {
    pub(in crate::program) fn parse(sections: TableSections<'a>) -> Result<Self, Reject> {
        // Strings: the sizes are stored last string first and include the NUL.
        let mut cursor = Cursor::new(sections.strings);
        let count = cursor.count()?;
        let mark = cursor.mark();
        let mut sizes = Vec::with_capacity(count);
        for _ in 0..count {
            sizes.push(cursor.varint()?);
        }
        let string_sizes = cursor.since(mark);
        let string_bytes = cursor.rest();
        let mut strings = Vec::with_capacity(count);
        for &size in sizes.iter().rev() {
            match cursor.take(size)? {
                [text @ .., 0] => strings.push(text),
                _ => return Err(Reject::new("a string without its NUL")),
            }
        }
        cursor.finish("bytes after the last string")?;

        let mut cursor = Cursor::new(sections.properties);
        let count = cursor.count()?;
        let property_blobs = cursor.rest();
        let mut properties = Vec::with_capacity(count);
        for _ in 0..count {
            let size = cursor.varint()?;
            properties.push(cursor.take(size)?);
        }
        cursor.finish("bytes after the last property")?;

        let mut cursor = Cursor::new(sections.dialects);
        let mark = cursor.mark();
        let count = cursor.count()?;
        let mut dialects = Vec::with_capacity(count);
        for _ in 0..count {
            let name = cursor.varint()?;
            dialects.push(look_up(&strings, name >> 1, "no such string")?);
            if name & 1 == 1 {
                cursor.section_of(section::DIALECT_VERSION)?;
            }
        }
        let dialect_list = cursor.since(mark);
        // The total of the names, a hint for readers that allocate by it; the groups say how many there are.
        cursor.varint()?;
        let op_groups = cursor.rest();
        let mut op_names = Vec::new();
        while !cursor.is_empty() {
            let dialect = look_up(&dialects, cursor.varint()?, "no such dialect")?;
            for _ in 0..cursor.count()? {
                let name = look_up(&strings, cursor.varint()? >> 1, "no such string")?;
                op_names.push(OpName { dialect, name });
            }
        }

        let mut cursor = Cursor::new(sections.offsets);
        let mut data = Cursor::new(sections.data);
        let (attributes, types) = (cursor.count()?, cursor.count()?);
        let (mark, data_mark) = (cursor.mark(), data.mark());
        let attributes = entries(&mut cursor, &mut data, &dialects, attributes)?;
        let (attribute_groups, attribute_bytes) = (cursor.since(mark), data.since(data_mark));
        let (mark, data_mark) = (cursor.mark(), data.mark());
        let types = entries(&mut cursor, &mut data, &dialects, types)?;
        let (type_groups, type_bytes) = (cursor.since(mark), data.since(data_mark));
        cursor.finish("bytes after the last type")?;

        let seams = Seams {
            string_sizes,
            string_bytes,
            dialect_list,
            op_groups,
            attribute_groups,
            type_groups,
            attribute_bytes,
            type_bytes,
            property_blobs,
        };
        let budget = Budget::of(sections.offsets.len() + sections.data.len());
        Ok(Self { strings, dialects, op_names, attributes, types, properties, seams, budget })
    }

    pub(in crate::program) fn strings(&self) -> &[&'a [u8]] {
        &self.strings
    }

    pub(in crate::program) fn string(&self, id: StringId) -> Result<&'a [u8], Reject> {
        look_up(&self.strings, id.0, "no such string")
    }

    pub(in crate::program) fn attribute(&self, id: AttrId) -> Result<Entry<'a>, Reject> {
        look_up(&self.attributes, id.0, "no such attribute")
    }

    pub(in crate::program) fn r#type(&self, id: TypeId) -> Result<Entry<'a>, Reject> {
        look_up(&self.types, id.0, "no such type")
    }

    pub(in crate::program) fn property(&self, id: PropertyId) -> Result<&'a [u8], Reject> {
        look_up(&self.properties, id.0, "no such property")
    }

    pub(in crate::program) fn op_name(&self, id: OpNameId) -> Result<OpName<'a>, Reject> {
        look_up(&self.op_names, id.0, "no such operation name")
    }

    /// The first dialect of that name. Linear in the number of dialects.
    pub(in crate::program) fn dialect(&self, name: &[u8]) -> Option<DialectId> {
        self.dialects.iter().position(|&known| known == name).map(|index| DialectId(index as u64))
    }

    /// The first operation of that name. Linear in the number of names.
    pub(in crate::program) fn find_op(&self, dialect: &[u8], name: &[u8]) -> Option<OpNameId> {
        let found = self.op_names.iter().position(|known| known.dialect == dialect && known.name == name);
        found.map(|index| OpNameId(index as u64))
    }

    /// Whether there is an operation of such a name. Linear in the number of names.
    pub(in crate::program) fn has_op(&self, is_asked: impl FnMut(&OpName<'_>) -> bool) -> bool {
        self.op_names.iter().any(is_asked)
    }

    /// Whether `entry` is in the encoding of the dialect called `name`.
    pub(in crate::program) fn is_custom(&self, entry: Entry<'_>, name: &[u8]) -> bool {
        entry.encoding == Encoding::Custom
            && look_up(&self.dialects, entry.dialect.0, "").is_ok_and(|dialect| dialect == name)
    }
}

/// Reads groups until `count` entries are there; a group may not go past them.
fn entries<'a>(
    cursor: &mut Cursor<'a>,
    data: &mut Cursor<'a>,
    dialects: &[&[u8]],
    count: usize,
) -> Result<Vec<Entry<'a>>, Reject> {
    let mut entries = Vec::with_capacity(count);
    while entries.len() < count {
        let dialect = DialectId(cursor.varint()?);
        look_up(dialects, dialect.0, "no such dialect")?;
        let group = cursor.count()?;
        if group == 0 || group > count - entries.len() {
            return Err(Reject::found("size of a group of attributes or types", group as u64));
        }
        for _ in 0..group {
            let size = cursor.varint()?;
            let encoding = if size & 1 == 1 { Encoding::Custom } else { Encoding::Assembly };
            entries.push(Entry { dialect, encoding, bytes: data.take(size >> 1)? });
        }
    }
    Ok(entries)
}

/// Longer entries are appended without looking whether the file has them already (MLIR makes equal ones one), so that
/// big constants need not be hashed.
const LONGEST_SHARED: usize = 256;

/// Entries to go behind those of a table, each once, in custom encoding.
#[derive(Debug)]
struct Pool<'a, K> {
    ids: HashMap<(K, Cow<'a, [u8]>), u64>,
    next: u64,
    added: Vec<(K, Vec<u8>)>,
}

impl<'a, K: Copy + Eq + std::hash::Hash> Pool<'a, K> {
    fn new(known: impl ExactSizeIterator<Item = Option<(K, &'a [u8])>>) -> Self {
        let next = known.len() as u64;
        let mut ids = HashMap::with_capacity(known.len());
        for (id, entry) in known.enumerate() {
            if let Some((kind, bytes)) = entry
                && bytes.len() <= LONGEST_SHARED
            {
                ids.entry((kind, Cow::Borrowed(bytes))).or_insert(id as u64);
            }
        }
        Self { ids, next, added: Vec::new() }
    }

    fn intern(&mut self, kind: K, bytes: Vec<u8>) -> u64 {
        if bytes.len() > LONGEST_SHARED {
            return self.push(kind, bytes);
        }
        let key = (kind, Cow::Owned(bytes));
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let id = self.push(kind, key.1.to_vec());
        self.ids.insert(key, id);
        id
    }

    fn push(&mut self, kind: K, bytes: Vec<u8>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.added.push((kind, bytes));
        id
    }
}

/// What is appended to the tables of a file. An entry that the file already has is used again.
#[derive(Debug)]
pub(in crate::program) struct Additions<'t, 'a> {
    tables: &'t Tables<'a>,
    strings: Pool<'a, ()>,
    attributes: Pool<'a, DialectId>,
    types: Pool<'a, DialectId>,
    properties: Vec<Vec<u8>>,
    op_names: Vec<(DialectId, StringId)>,
}

impl<'t, 'a> Additions<'t, 'a> {
    /// Linear in the size of the tables.
    pub(in crate::program) fn new(tables: &'t Tables<'a>) -> Self {
        let custom = |entry: &Entry<'a>| match entry.encoding {
            Encoding::Custom => Some((entry.dialect, entry.bytes)),
            Encoding::Assembly => None,
        };
        Self {
            tables,
            strings: Pool::new(tables.strings.iter().map(|&text| Some(((), text)))),
            attributes: Pool::new(tables.attributes.iter().map(custom)),
            types: Pool::new(tables.types.iter().map(custom)),
            properties: Vec::new(),
            op_names: Vec::new(),
        }
    }

    pub(in crate::program) fn string(&mut self, text: &[u8]) -> StringId {
        StringId(self.strings.intern((), text.to_vec()))
    }

    pub(in crate::program) fn attribute(&mut self, dialect: DialectId, bytes: Vec<u8>) -> AttrId {
        AttrId(self.attributes.intern(dialect, bytes))
    }

    pub(in crate::program) fn r#type(&mut self, dialect: DialectId, bytes: Vec<u8>) -> TypeId {
        TypeId(self.types.intern(dialect, bytes))
    }

    /// Properties are not shared: each belongs to one operation.
    pub(in crate::program) fn property(&mut self, bytes: Vec<u8>) -> PropertyId {
        let id = self.tables.properties.len() + self.properties.len();
        self.properties.push(bytes);
        PropertyId(id as u64)
    }

    /// The operation `name` of a dialect that the file has.
    pub(in crate::program) fn op_name(&mut self, dialect: &[u8], name: &[u8]) -> Result<OpNameId, Reject> {
        if let Some(known) = self.tables.find_op(dialect, name) {
            return Ok(known);
        }
        let dialect = self.tables.dialect(dialect).ok_or(Reject::new("a dialect is missing"))?;
        let entry = (dialect, self.string(name));
        let at = self.op_names.iter().position(|&known| known == entry).unwrap_or_else(|| {
            self.op_names.push(entry);
            self.op_names.len() - 1
        });
        Ok(OpNameId((self.tables.op_names.len() + at) as u64))
    }

    pub(super) fn strings_section(&self) -> Vec<u8> {
        let (seams, added) = (&self.tables.seams, &self.strings.added);
        let mut out = Vec::with_capacity(seams.string_sizes.len() + seams.string_bytes.len() + 64);
        put_varint(&mut out, self.strings.next);
        for (_, text) in added.iter().rev() {
            put_varint(&mut out, text.len() as u64 + 1);
        }
        out.extend(seams.string_sizes);
        out.extend(seams.string_bytes);
        for (_, text) in added {
            out.extend(text);
            out.push(0);
        }
        out
    }

    pub(super) fn dialects_section(&self) -> Result<Vec<u8>, Reject> {
        let mut out = self.tables.seams.dialect_list.to_vec();
        put_varint(&mut out, (self.tables.op_names.len() + self.op_names.len()) as u64);
        out.extend(self.tables.seams.op_groups);
        for &(dialect, name) in &self.op_names {
            put_varint(&mut out, dialect.0);
            put_varint(&mut out, 1);
            put_varint(&mut out, flagged(name.0, true)?);
        }
        Ok(out)
    }

    pub(super) fn offsets_section(&self) -> Result<Vec<u8>, Reject> {
        let mut out = Vec::with_capacity(self.tables.seams.attribute_groups.len() * 2);
        put_varint(&mut out, self.attributes.next);
        put_varint(&mut out, self.types.next);
        out.extend(self.tables.seams.attribute_groups);
        put_groups(&mut out, &self.attributes.added)?;
        out.extend(self.tables.seams.type_groups);
        put_groups(&mut out, &self.types.added)?;
        Ok(out)
    }

    /// The pieces of the data section, so that big constants are copied once only.
    pub(super) fn data_section(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let seams = &self.tables.seams;
        let attributes = self.attributes.added.iter().map(|(_, bytes)| bytes.as_slice());
        let types = self.types.added.iter().map(|(_, bytes)| bytes.as_slice());
        std::iter::once(seams.attribute_bytes).chain(attributes).chain([seams.type_bytes]).chain(types)
    }

    pub(super) fn properties_section(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.tables.seams.property_blobs.len() + 64);
        put_varint(&mut out, (self.tables.properties.len() + self.properties.len()) as u64);
        out.extend(self.tables.seams.property_blobs);
        for blob in &self.properties {
            put_varint(&mut out, blob.len() as u64);
            out.extend(blob);
        }
        out
    }
}

/// Sizes of new entries, in one group for each run of entries of the same dialect.
fn put_groups(out: &mut Vec<u8>, added: &[(DialectId, Vec<u8>)]) -> Result<(), Reject> {
    for run in added.chunk_by(|a, b| a.0 == b.0) {
        for (at, (dialect, bytes)) in run.iter().enumerate() {
            if at == 0 {
                put_varint(out, dialect.0);
                put_varint(out, run.len() as u64);
            }
            put_varint(out, flagged(bytes.len() as u64, true)?);
        }
    }
    Ok(())
}
