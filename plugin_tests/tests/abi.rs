//! Our declaration of the PJRT C ABI against other people's.
//!
//! ```text
//!  a header --cc -E--> its structs, fields, enumerators --> a C program that prints
//!                                                           their sizes, offsets, values
//!  ours (pjrt_c_api/)          --list--+
//!  the engine wheel's (0.81)   --list--+--> the same numbers under the same names?
//!  data/abi_0.112.txt (sizes alone), --+
//!  data/abi_0.114.txt, such lists -----+
//!  Rust's size_of (bindgen)    --------+
//! ```
//! `data/abi_growth.txt` says which structs grew, and when: all that may differ between two versions.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use pjrt_arena::sys;

/// The API version of the header that `xla-cpu-pjrt` 0.0.1 ships.
const ENGINE_MINOR: u64 = 81;
const NEWEST_MINOR: u64 = 114;

/// What a header says, as numbers: bytes, or an enumerator's value.
#[derive(Default)]
struct Abi {
    structs: BTreeMap<String, Struct>,
    values: BTreeMap<String, u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct Struct {
    size: u64,
    /// In the order of the header.
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    offset: u64,
    size: u64,
}

impl Field {
    /// The first byte behind the field.
    fn end(&self) -> u64 {
        self.offset + self.size
    }
}

impl Abi {
    /// Reads lines `struct NAME size FIELD offset size FIELD offset size ...` and `value NAME number`.
    fn parse(text: &str) -> Self {
        let mut abi = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("`{word}` is no number in `{line}`"));
            match words.as_slice() {
                ["struct", name, size, fields @ ..] => {
                    let field = |words: &[&str]| Field {
                        name: words[0].to_owned(),
                        offset: number(words[1]),
                        size: number(words[2]),
                    };
                    let fields = fields.chunks_exact(3).map(field).collect();
                    abi.structs.insert((*name).to_owned(), Struct { size: number(size), fields });
                }
                ["value", name, value] => {
                    abi.values.insert((*name).to_owned(), number(value));
                }
                _ => panic!("`{line}` is neither a struct nor a value"),
            }
        }
        assert!(!abi.structs.is_empty() && !abi.values.is_empty(), "the list holds no struct or no value");
        abi
    }

    /// Compiles and runs the program that lists `header`.
    fn of_header(header: &Path, name: &str) -> Self {
        Self::parse(&list(header, name))
    }

    fn struct_size(&self, name: &str) -> u64 {
        let constant = format!("{name}_STRUCT_SIZE");
        *self.values.get(&constant).unwrap_or_else(|| panic!("{constant} is not declared"))
    }

    /// The enumerators proper, without the constants that tell a struct's size.
    fn enumerators(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.values.iter().filter(|(name, _)| !name.ends_with("_STRUCT_SIZE") && !name.ends_with("_MIN_SIZE"))
    }
}

static OURS: LazyLock<Abi> = LazyLock::new(|| {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pjrt_c_api/pjrt_c_api_extensions.h");
    Abi::of_header(&header, "ours")
});
static NEWEST: LazyLock<Abi> = LazyLock::new(|| Abi::parse(include_str!("../data/abi_0.114.txt")));

/// The header beside the engine that `PJRT_ARENA_TEST_ENGINE` names, or else beside the one in `.venv`.
fn engine_header() -> PathBuf {
    let engine = env::var_os("PJRT_ARENA_TEST_ENGINE").map(PathBuf::from).or_else(engine_in_venv);
    let header = engine.and_then(|engine| Some(engine.parent()?.join("include/pjrt_c_api.h")));
    header.filter(|header| header.is_file()).unwrap_or_else(|| {
        panic!("no engine with its header was found: run `make`, or set PJRT_ARENA_TEST_ENGINE to xla_cpu_pjrt.so")
    })
}

fn engine_in_venv() -> Option<PathBuf> {
    let versions = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib")).ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"))
        .find(|engine| engine.is_file())
}

/// `abi_growth.txt`: for each struct that grew, (minor version, STRUCT_SIZE from then on), in the order of versions.
fn growth() -> BTreeMap<&'static str, Vec<(u64, u64)>> {
    let mut growth: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in include_str!("../data/abi_growth.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("`{line}` has fewer than three words"));
        let (name, minor, size) = (word(), word(), word());
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("`{word}` is no number in `{line}`"));
        growth.entry(name).or_default().push((number(minor), number(size)));
    }
    growth
}

/// The struct's size in that version; `None` when it is not one that grew, or not there yet.
fn size_at(growth: &BTreeMap<&str, Vec<(u64, u64)>>, name: &str, minor: u64) -> Option<u64> {
    let steps = growth.get(name)?;
    steps.iter().rev().find(|(from, _)| *from <= minor).map(|(_, size)| *size)
}

// ---- From a header to its list -------------------------------------------------------------------------------------

fn list(header: &Path, name: &str) -> String {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let text = output(Command::new(&compiler).args(["-E", "-P", "-x", "c"]).arg(header));
    let program = program(header, &structs(&text), &enumerators(&text));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("abi_{name}.c")), folder.join(format!("abi_{name}")));
    fs::write(&source, program).expect("the test's folder can be written to");
    output(Command::new(&compiler).args(["-w", "-o"]).arg(&binary).arg(&source));
    output(&mut Command::new(&binary))
}

fn output(command: &mut Command) -> String {
    let result = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(result.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&result.stderr));
    String::from_utf8(result.stdout).expect("names and numbers are text")
}

fn program(header: &Path, structs: &[(&str, Vec<&str>)], enumerators: &[&str]) -> String {
    let mut program = format!("#include \"{}\"\n#include <stdio.h>\nint main(void) {{\n", header.display());
    for (name, fields) in structs {
        program += &format!("printf(\"struct {name} %zu\", sizeof(struct {name}));\n");
        for field in fields {
            program += &format!(
                "printf(\" {field} %zu %zu\", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));\n"
            );
        }
        program += "puts(\"\");\n";
    }
    for name in enumerators {
        program += &format!("printf(\"value {name} %d\\n\", (int){name});\n");
    }
    program + "printf(\"value PJRT_API_MINOR %d\\n\", PJRT_API_MINOR);\nreturn 0;\n}\n"
}

/// The structs that are defined in preprocessed C, with their fields; those of an unnamed union count as the struct's.
fn structs(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("struct PJRT_") {
        let rest = &text[at + "struct ".len()..];
        let name = first_word(rest);
        if let Some(body) = rest[name.len()..].trim_start().strip_prefix('{') {
            found.push((name, fields(&body[..closing_brace(body)])));
        }
    }
    found
}

fn closing_brace(body: &str) -> usize {
    let mut depth = 1;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a struct has no end: {body}")
}

fn fields(body: &str) -> Vec<&str> {
    body.split([';', '{', '}']).map(str::trim).filter(|part| !part.is_empty() && *part != "union").map(field).collect()
}

/// `x` in `T *x` and in `void (*x)(T *y)`.
fn field(declaration: &str) -> &str {
    match declaration.split_once("(*") {
        Some((_, pointer)) => first_word(pointer.trim_start()),
        None => {
            let start = declaration.rfind(|c: char| !is_name(c)).map_or(0, |at| at + 1);
            &declaration[start..]
        }
    }
}

fn enumerators(text: &str) -> Vec<&str> {
    text.match_indices("enum ")
        .filter_map(|(at, _)| text[at..].split_once('{'))
        .filter(|(head, _)| head.split_whitespace().count() <= 2)
        .flat_map(|(_, rest)| rest[..closing_brace(rest)].split(','))
        .filter_map(enumerator)
        .collect()
}

/// `A` of `A` and of `A = 1`, but nothing of the `b)` that a comma left of `A = offsetof(a, b)`.
fn enumerator(part: &str) -> Option<&str> {
    let name = first_word(part.trim());
    let rest = part.trim()[name.len()..].trim_start();
    (name.starts_with("PJRT_") && (rest.is_empty() || rest.starts_with('='))).then_some(name)
}

fn first_word(text: &str) -> &str {
    &text[..text.find(|c: char| !is_name(c)).unwrap_or(text.len())]
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

// ---- The tests -----------------------------------------------------------------------------------------------------

/// Everything that `theirs`, of version `minor`, declares: we have it, in the same place, of the same size or grown as
/// `abi_growth.txt` says.
fn assert_ours_extends(theirs: &Abi, minor: u64) {
    let growth = growth();
    assert_eq!(theirs.values.get("PJRT_API_MINOR"), Some(&minor), "the header is of another version");
    for (name, their) in &theirs.structs {
        let our = OURS.structs.get(name).unwrap_or_else(|| panic!("we do not declare {name}"));
        assert!(our.fields.len() >= their.fields.len(), "{name}: {:?} is not all of {:?}", our.fields, their.fields);
        assert_eq!(our.fields[..their.fields.len()], their.fields, "{name}");
        if !growth.contains_key(name.as_str()) {
            assert_eq!(our, their, "{name}");
        }
    }
    let sizes = theirs.values.iter().filter_map(|(name, size)| Some((name.strip_suffix("_STRUCT_SIZE")?, *size)));
    for (name, size) in sizes {
        let expected = size_at(&growth, name, minor).unwrap_or_else(|| OURS.struct_size(name));
        assert_eq!(size, expected, "{name} at 0.{minor}");
        let allowed = OURS.values[&format!("{name}_MIN_SIZE")]..=OURS.struct_size(name);
        assert!(allowed.contains(&size), "{name}: a caller of 0.{minor} passes {size} bytes, we take {allowed:?}");
    }
    for (name, value) in theirs.enumerators().filter(|(name, _)| *name != "PJRT_API_MINOR") {
        assert_eq!(OURS.values.get(name), Some(value), "{name}");
    }
}

#[test]
fn the_engines_header_is_a_prefix_of_ours() {
    let engine = Abi::of_header(&engine_header(), "engine");
    assert_eq!(engine.structs["PJRT_Api"].fields.len(), 3 + 118, "0.81 has 118 functions behind the table's head");
    assert_ours_extends(&engine, ENGINE_MINOR);
}

#[test]
fn the_header_of_0_112_is_a_prefix_of_ours() {
    let theirs = Abi::parse(include_str!("../data/abi_0.112.txt"));
    assert!(theirs.values.len() > 160, "{} sizes", theirs.values.len());
    assert_ours_extends(&theirs, 112);
}

#[test]
fn the_newest_header_is_ours_in_every_number() {
    assert_ours_extends(&NEWEST, NEWEST_MINOR);
    for (name, our) in &OURS.structs {
        assert_eq!(NEWEST.structs.get(name), Some(our), "{name}");
    }
    for (name, value) in OURS.enumerators() {
        assert_eq!(NEWEST.values.get(name), Some(value), "{name}");
    }
    for (name, value) in NEWEST.values.iter().filter(|(name, _)| name.ends_with("_STRUCT_SIZE")) {
        assert_eq!(OURS.values.get(name), Some(value), "{name}");
    }
}

#[test]
fn the_table_has_138_functions_in_order() {
    let table = &OURS.structs["PJRT_Api"];
    assert_eq!(table.fields.len(), 3 + 138);
    assert_eq!(table.fields, NEWEST.structs["PJRT_Api"].fields);
    assert_eq!(table.size, 1144);
    assert_eq!(sys::PJRT_API_FUNCTIONS, 138);
    assert!(table.fields[3..].windows(2).all(|pair| pair[1].offset == pair[0].end()), "one pointer a slot, no gaps");
}

#[test]
fn sizes_told_by_older_callers_end_at_a_field_and_none_is_below_the_minimum() {
    for (name, steps) in growth() {
        assert!(steps.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{name} only grows: {steps:?}");
        assert_eq!(OURS.values[&format!("{name}_MIN_SIZE")], steps[0].1, "{name}: the smallest size since 0.54");
        assert_eq!(OURS.struct_size(name), steps[steps.len() - 1].1, "{name}: the size at 0.{NEWEST_MINOR}");
        let our = &OURS.structs[name];
        for (minor, size) in steps {
            assert!(our.fields.iter().any(|field| field.end() == size), "{name} at 0.{minor}: no field ends at {size}");
        }
    }
}

#[test]
fn structs_that_did_not_grow_have_one_size() {
    let growth = growth();
    for (name, size) in OURS.values.iter().filter_map(|(name, size)| Some((name.strip_suffix("_STRUCT_SIZE")?, size))) {
        // A table of an extension may stop anywhere behind its base.
        if !growth.contains_key(name) && !name.ends_with("_Extension") {
            assert_eq!(OURS.values[&format!("{name}_MIN_SIZE")], *size, "{name}");
        }
    }
}

#[test]
fn the_version_marks_of_the_table_agree_with_its_growth() {
    let growth = growth();
    let text = include_str!("../../pjrt_c_api/pjrt_c_api.h");
    let ends: BTreeMap<_, _> = OURS.structs["PJRT_Api"].fields.iter().map(|f| (f.name.as_str(), f.end())).collect();
    let mut marks = 0;
    for line in text.lines() {
        let Some((slot, mark)) = line.trim().strip_prefix("PJRT_SLOT(").and_then(|rest| rest.split_once(");  // [0."))
        else {
            continue;
        };
        let minor: u64 = mark.trim_end_matches(']').parse().unwrap_or_else(|_| panic!("`{line}` has no version"));
        let end = ends[slot];
        assert!(size_at(&growth, "PJRT_Api", minor.max(70)).is_some_and(|size| end <= size), "{slot} is in 0.{minor}");
        assert!(
            minor <= 70 || size_at(&growth, "PJRT_Api", minor - 1).is_some_and(|size| end > size),
            "{slot} is in 0.{} already",
            minor - 1
        );
        marks += 1;
    }
    assert_eq!(marks, 41, "slots with a mark");
}

#[test]
fn rust_sees_the_sizes_that_c_sees() {
    assert_eq!(sys::C_STRUCTS.len(), OURS.values.keys().filter(|name| name.ends_with("_STRUCT_SIZE")).count());
    for sizes in sys::C_STRUCTS {
        let name = sizes.name;
        assert_eq!(sizes.size_of as u64, OURS.structs[name].size, "{name}");
        assert_eq!(sizes.struct_size as u64, OURS.struct_size(name), "{name}");
        assert_eq!(sizes.min_size as u64, OURS.values[&format!("{name}_MIN_SIZE")], "{name}");
    }
    assert_eq!(u64::from(sys::PJRT_API_MINOR), NEWEST_MINOR);
}

#[test]
#[ignore = "no check: prints the list of the header that PJRT_ARENA_ABI_HEADER names, for data/ when a version is added"]
fn print_a_headers_list() {
    let header = env::var_os("PJRT_ARENA_ABI_HEADER").expect("PJRT_ARENA_ABI_HEADER names a header");
    print!("{}", list(Path::new(&header), "printed"));
}
