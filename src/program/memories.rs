//! Results bound to memories of the host, for an engine to which all memory is one.
//!
//! ```text
//!   main(a) -> (b {mhlo.memory_kind = "pinned_host"})        the result has the kind of memory that the program says: the caller's
//!                                                            to tell, since the engine says `device` of each
//!   %b = custom_call @annotate_device_placement(%0)   -->    %b = convert %0          of a type to itself, which is nothing
//! ```
//!
//! JAX writes the annotation where `out_shardings` name a memory (`wrap_with_memory_kind` in its `mlir.py`), and
//! wherever a program that was exported for another platform moves an array. XLA:CPU learned it after PJRT 0.81; an
//! engine that is older refuses the program. On a processor nothing moves, so that nothing is lost.
//!
//! The operation keeps its place, its operand and its result, and with them every number that others know it by.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{AttrId, OpNameId, PropertyId, ValueId},
        ops::{self, DEEPEST, Head, Regions, mask},
        reader::Cursor,
        section,
        tables::{Additions, Tables},
        writer::{put_section, put_varint},
    },
    reject::Reject,
    signature::{MemoryKind, Program},
    vhlo::{self, Attribute, VHLO},
};

/// The target of the custom call that says where a value is to lie.
const ANNOTATION: &[u8] = b"annotate_device_placement";

/// The attribute that binds a parameter or result.
const MEMORY_KIND: &[u8] = b"mhlo.memory_kind";

/// A memory of the host that a result can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HostMemory {
    /// `pinned_host`
    Pinned,
    /// `unpinned_host`
    Unpinned,
}

impl HostMemory {
    /// JAX's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned_host",
            Self::Unpinned => "unpinned_host",
        }
    }
}

/// A program without annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unbound<'a> {
    /// The artifact: borrowed, and the one that was given, where nothing was annotated.
    pub bytes: Cow<'a, [u8]>,
    /// For each result the memory of the host that it is bound to; empty if none is bound to any.
    pub results: Vec<Option<HostMemory>>,
}

/// Takes the annotations out of a program, in all of its functions, and says which results are bound to which memory.
/// Linear in the artifact; of one that names no memory only the tables are read.
///
/// # Errors
/// [`Reject`] where the program has to be compiled as it is.
pub fn without_annotations(artifact: &[u8]) -> Result<Unbound<'_>, Reject> {
    let file = Artifact::parse(artifact)?;
    let names = |name: &[u8]| file.tables.strings().contains(&name);
    let mut unbound = Unbound { bytes: Cow::Borrowed(artifact), results: Vec::new() };
    if names(MEMORY_KIND) {
        let bound = |kind: MemoryKind| match kind {
            MemoryKind::PinnedHost(..) => Some(HostMemory::Pinned),
            MemoryKind::UnpinnedHost => Some(HostMemory::Unpinned),
            MemoryKind::Device | MemoryKind::Named(..) | MemoryKind::Other => None,
        };
        let program = Program::find(&file)?;
        unbound.results = program.results.iter().map(|(_, known)| bound(known.memory_kind)).collect();
        if unbound.results.iter().all(Option::is_none) {
            unbound.results.clear();
        }
    }
    if names(ANNOTATION) {
        let mut added = Additions::new(&file.tables);
        let mut walk = Walk {
            tables: &file.tables,
            replacement: added.op_name(VHLO, b"convert_v1")?,
            replaced: 0,
            out: Vec::new(),
        };
        let mut cursor = Cursor::new(file.ir);
        walk.block(&mut cursor, 0)?;
        cursor.finish("bytes after the module")?;
        if walk.replaced > 0 {
            unbound.bytes = Cow::Owned(file.emit(&added, &walk.out)?);
        }
    }
    Ok(unbound)
}

/// Copies operations with everything in them, isolated regions too.
struct Walk<'t, 'a> {
    tables: &'t Tables<'a>,
    replacement: OpNameId,
    replaced: usize,
    out: Vec<u8>,
}

impl Walk<'_, '_> {
    fn block(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), Reject> {
        let mark = cursor.mark();
        let block = ops::block_head(cursor)?;
        self.out.extend(cursor.since(mark));
        for _ in 0..block.ops {
            self.operation(cursor, depth)?;
        }
        Ok(())
    }

    fn operation(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<(), Reject> {
        let (before, mark) = (cursor.clone(), cursor.mark());
        let mut operands = Operands::default();
        let head = ops::head(self.tables, cursor, &mut operands)?;
        if operands.count == 1 && self.is_annotation(&head)? {
            self.replace(before, &head, cursor)?;
        } else {
            self.out.extend(cursor.since(mark));
        }
        self.regions(cursor, head.regions, depth + 1)
    }

    fn regions(&mut self, cursor: &mut Cursor<'_>, regions: Regions, depth: usize) -> Result<(), Reject> {
        if depth > DEEPEST {
            return Err(Reject::found("regions nest too deeply", depth as u64));
        }
        match regions {
            Regions::Isolated(0) => Ok(()),
            Regions::Isolated(count) => {
                let mut inner = Cursor::new(cursor.section_of(section::IR)?);
                let outside = std::mem::take(&mut self.out);
                self.inline(&mut inner, count, depth)?;
                inner.finish("bytes after an isolated region")?;
                let inside = std::mem::replace(&mut self.out, outside);
                put_section(&mut self.out, section::IR, &inside);
                Ok(())
            }
            Regions::Inline(count) => self.inline(cursor, count, depth),
        }
    }

    fn inline(&mut self, cursor: &mut Cursor<'_>, regions: usize, depth: usize) -> Result<(), Reject> {
        for _ in 0..regions {
            let mark = cursor.mark();
            let blocks = cursor.count()?;
            if blocks > 0 {
                cursor.varint()?;
            }
            self.out.extend(cursor.since(mark));
            for _ in 0..blocks {
                self.block(cursor, depth)?;
            }
        }
        Ok(())
    }

    /// Whether it is a custom call of [`ANNOTATION`] with nothing unusual about it.
    fn is_annotation(&self, head: &Head) -> Result<bool, Reject> {
        let name = self.tables.op_name(head.name)?;
        if (name.dialect, name.name) != (VHLO, b"custom_call_v1")
            || head.mask & (mask::SUCCESSORS | mask::REGIONS) != 0
            || head.mask & mask::RESULTS == 0
        {
            return Ok(false);
        }
        let Some(properties) = head.properties else { return Ok(false) };
        let target = call_target(self.tables, properties)?;
        Ok(vhlo::attribute(self.tables, target)? == Attribute::String(ANNOTATION))
    }

    /// Writes the operation that stands at `from`, and ends where `end` is, with another name and without its
    /// properties.
    fn replace(&mut self, mut from: Cursor<'_>, head: &Head, end: &Cursor<'_>) -> Result<(), Reject> {
        from.varint()?;
        let parts = from.byte()?;
        put_varint(&mut self.out, self.replacement.0);
        self.out.push(parts & !mask::PROPERTIES);
        let mark = from.mark();
        from.varint()?;
        if head.attributes.is_some() {
            from.varint()?;
        }
        self.out.extend(from.since(mark));
        from.varint()?;
        let rest = from.left() - end.left();
        self.out.extend(from.take(rest as u64)?);
        self.replaced += 1;
        Ok(())
    }
}

/// The target's name, of a custom call's properties: the third of them in alphabetical order.
fn call_target(tables: &Tables<'_>, properties: PropertyId) -> Result<AttrId, Reject> {
    let mut cursor = Cursor::new(tables.property(properties)?);
    cursor.varint()?;
    cursor.varint()?;
    cursor.varint().map(AttrId)
}

/// Counts operands.
#[derive(Default)]
struct Operands {
    count: usize,
}

impl ops::Sink for Operands {
    fn copy(&mut self, _: &[u8]) {}

    fn operand(&mut self, _: ValueId) -> Result<(), Reject> {
        self.count += 1;
        Ok(())
    }

    fn use_lists(&self) -> ops::UseLists {
        ops::UseLists::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(name: &str) -> Vec<u8> {
        let path = format!("{}/plugin_tests/data/artifacts/{name}.mlir", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    }

    /// The names of all operations, those of isolated regions too.
    fn operations(bytes: &[u8]) -> Vec<String> {
        fn block(tables: &Tables<'_>, cursor: &mut Cursor<'_>, names: &mut Vec<String>) {
            for _ in 0..ops::block_head(cursor).unwrap().ops {
                let head = ops::head(tables, cursor, &mut ops::Ignore).unwrap();
                names.push(String::from_utf8_lossy(tables.op_name(head.name).unwrap().name).into_owned());
                let region = |cursor: &mut Cursor<'_>, names: &mut Vec<String>| {
                    let blocks = cursor.varint().unwrap();
                    cursor.varint().unwrap();
                    (0..blocks).for_each(|_| block(tables, cursor, names));
                };
                match head.regions {
                    Regions::Inline(count) => (0..count).for_each(|_| region(cursor, names)),
                    Regions::Isolated(0) => {}
                    Regions::Isolated(_) => {
                        region(&mut Cursor::new(cursor.section_of(section::IR).unwrap()), names);
                    }
                }
            }
        }
        let file = Artifact::parse(bytes).unwrap();
        let mut names = Vec::new();
        block(&file.tables, &mut Cursor::new(file.ir), &mut names);
        names
    }

    #[test]
    fn an_annotation_becomes_a_conversion_of_a_type_to_itself() {
        for (name, memory) in [("0506_pinned_out", HostMemory::Pinned), ("0509_unpinned_out", HostMemory::Unpinned)] {
            let bytes = artifact(name);
            let unbound = without_annotations(&bytes).unwrap();
            assert_eq!(unbound.results, [Some(memory)], "{name}");
            let (before, after) = (operations(&bytes), operations(&unbound.bytes));
            let expected: Vec<_> =
                before.iter().map(|name| if name == "custom_call_v1" { "convert_v1" } else { name }).collect();
            assert_ne!(before, after, "{name}");
            assert_eq!(after, expected, "{name}");
            let again = without_annotations(&unbound.bytes).unwrap();
            assert_eq!((&again.bytes, &again.results), (&unbound.bytes, &unbound.results), "{name}");
        }
    }

    /// All programs of the corpus, by name.
    fn corpus() -> Vec<(String, Vec<u8>)> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/plugin_tests/data/artifacts");
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "mlir"))
            .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_program_without_annotations_is_borrowed() {
        let corpus = corpus();
        let changed = corpus.iter().filter(|(_, bytes)| {
            let unbound = without_annotations(bytes).unwrap();
            matches!(unbound.bytes, Cow::Owned(_)) || !unbound.results.is_empty()
        });
        assert_eq!(changed.map(|(name, _)| name).collect::<Vec<_>>(), ["0506_pinned_out", "0509_unpinned_out"]);
    }

    /// Most have regions in regions, isolated and inline, one and several.
    #[test]
    fn the_walk_copies_what_it_does_not_replace() {
        for (name, bytes) in corpus() {
            let file = Artifact::parse(&bytes).unwrap();
            let mut walk = Walk { tables: &file.tables, replacement: OpNameId(0), replaced: 0, out: Vec::new() };
            walk.block(&mut Cursor::new(file.ir), 0).unwrap();
            if walk.replaced == 0 {
                assert!(walk.out == file.ir, "{name}");
            }
        }
    }

    #[test]
    fn damaged_programs_are_refused_or_read_but_nothing_panics() {
        let bytes = artifact("0506_pinned_out");
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(2)] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                _ = without_annotations(&damaged);
            }
            assert!(without_annotations(&bytes[..at]).is_err() || at == bytes.len(), "cut at {at}");
        }
    }
}
