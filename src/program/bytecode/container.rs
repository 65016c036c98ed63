//! The file as a whole: header and sections.

use crate::program::{
    budget::Budget,
    bytecode::{
        reader::Cursor,
        section,
        tables::{Additions, TableSections, Tables},
        writer::{put_section, put_varint},
    },
    reject::Reject,
};

const MAGIC: [u8; 4] = *b"ML\xefR";
const PRODUCER: &[u8] = b"StableHLO_v";
const SECTION_KINDS: usize = 9;

/// A parsed portable artifact.
#[derive(Debug)]
pub(in crate::program) struct Artifact<'a> {
    version: u64,
    producer: &'a [u8],
    /// In the order of the file, which is kept.
    sections: Vec<(u8, &'a [u8])>,
    pub(in crate::program) tables: Tables<'a>,
    /// The payload of the IR section.
    pub(in crate::program) ir: &'a [u8],
}

impl<'a> Artifact<'a> {
    /// Reads header, sections and tables. Linear in the file.
    pub(in crate::program) fn parse(file: &'a [u8]) -> Result<Self, Reject> {
        let mut cursor = Cursor::new(file);
        if cursor.take(4)? != MAGIC {
            return Err(Reject::new("not MLIR bytecode"));
        }
        let version = cursor.varint()?;
        if !matches!(version, 5 | 6) {
            return Err(Reject::found("bytecode version (5 and 6 are read)", version));
        }
        let producer = cursor.c_string()?;
        if !producer.starts_with(PRODUCER) {
            return Err(Reject::new("not a StableHLO portable artifact"));
        }
        let mut sections = Vec::with_capacity(SECTION_KINDS);
        let mut payloads: [Option<&'a [u8]>; SECTION_KINDS] = [None; SECTION_KINDS];
        while !cursor.is_empty() {
            let (id, payload) = cursor.section()?;
            match payloads.get_mut(usize::from(id)) {
                Some(slot @ None) => *slot = Some(payload),
                _ => return Err(Reject::found("a section that is unknown or occurs twice", u64::from(id))),
            }
            sections.push((id, payload));
        }
        let payload = |id: u8| {
            payloads.get(usize::from(id)).copied().flatten().ok_or(Reject::found("a section is missing", u64::from(id)))
        };
        if payload(section::RESOURCES).is_ok_and(|blobs| !blobs.is_empty()) {
            return Err(Reject::new("resource blobs"));
        }
        let mut tables = Tables::parse(TableSections {
            strings: payload(section::STRINGS)?,
            dialects: payload(section::DIALECTS)?,
            data: payload(section::DATA)?,
            offsets: payload(section::OFFSETS)?,
            properties: payload(section::PROPERTIES)?,
        })?;
        tables.budget = Budget::of(file.len());
        Ok(Self { version, producer, ir: payload(section::IR)?, sections, tables })
    }

    /// The file again, with `added` at the end of its tables and `ir` in the place of its operations.
    pub(in crate::program) fn emit(&self, added: &Additions<'_, 'a>, ir: &[u8]) -> Result<Vec<u8>, Reject> {
        let old: usize = self.sections.iter().map(|(_, payload)| payload.len()).sum();
        let mut out = Vec::with_capacity(old + ir.len() - self.ir.len().min(ir.len()) + 1024);
        out.extend(MAGIC);
        put_varint(&mut out, self.version);
        out.extend(self.producer);
        out.push(0);
        for &(id, payload) in &self.sections {
            match id {
                section::STRINGS => put_section(&mut out, id, &added.strings_section()),
                section::DIALECTS => put_section(&mut out, id, &added.dialects_section()?),
                section::OFFSETS => put_section(&mut out, id, &added.offsets_section()?),
                section::DATA => {
                    out.push(id);
                    put_varint(&mut out, added.data_section().map(|piece| piece.len() as u64).sum());
                    added.data_section().for_each(|piece| out.extend(piece));
                }
                section::PROPERTIES => put_section(&mut out, id, &added.properties_section()),
                section::IR => put_section(&mut out, id, ir),
                _ => put_section(&mut out, id, payload),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_additions_comes_out_as_it_was() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/plugin_tests/data/artifacts");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "mlir") {
                let file = std::fs::read(&path).unwrap();
                let artifact = Artifact::parse(&file).unwrap();
                let again = artifact.emit(&Additions::new(&artifact.tables), artifact.ir).unwrap();
                assert_eq!(again, file, "{}", path.display());
                seen += 1;
            }
        }
        assert_eq!(seen, 154);
    }
}
