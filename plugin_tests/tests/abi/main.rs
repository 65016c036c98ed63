//! Our declaration of the PJRT C ABI against other people's.
//!
//! ```text
//!  a header --cc -E--> its structs, fields, enumerators --> a C program that prints
//!                                                           their sizes, offsets, values
//!  ours (pjrt_c_api/)          --list--+
//!  data/abi_0.81.txt,          --------+--> the same numbers under the same names?
//!  data/abi_0.112.txt (sizes alone), --+
//!  data/abi_0.114.txt, such lists -----+
//!  Rust's size_of (bindgen)    --------+
//! ```
//! `data/abi_growth.txt` says which structs grew, and when: all that may differ between two versions. `header.rs` makes
//! the lists; `xla_ffi.rs` does the same for XLA FFI, whose header of version 0.3 is in the `jaxlib` wheel.

mod header;
mod xla_ffi;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use header::{Abi, PJRT, XLA_FFI, list};
use pjrt_arena::sys;

/// The newest version whose header could be read. Of the one that we declare, a conformance test asks the engine for
/// the sizes of its structs (`t30_the_engine_wants_no_struct_longer_than_ours`).
const NEWEST_MINOR: u64 = 114;

static OURS: LazyLock<Abi> = LazyLock::new(|| {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pjrt_c_api/pjrt_c_api_extensions.h");
    Abi::of_header(&header, &PJRT, "ours")
});
static NEWEST: LazyLock<Abi> = LazyLock::new(|| Abi::parse(include_str!("../../data/abi_0.114.txt")));

/// A file of a package that is installed in `.venv`.
fn in_venv(file: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib")).ok()?;
    versions.flatten().map(|version| version.path().join("site-packages").join(file)).find(|file| file.is_file())
}

/// `abi_growth.txt`: for each struct that grew, (minor version, STRUCT_SIZE from then on), in the order of versions.
fn growth() -> BTreeMap<&'static str, Vec<(u64, u64)>> {
    let mut growth: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in include_str!("../../data/abi_growth.txt").lines().filter(|line| !line.starts_with('#')) {
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
fn the_header_of_0_81_is_a_prefix_of_ours() {
    let theirs = Abi::parse(include_str!("../../data/abi_0.81.txt"));
    assert_eq!(theirs.structs["PJRT_Api"].fields.len(), 3 + 118, "0.81 has 118 functions behind the table's head");
    assert_ours_extends(&theirs, 81);
}

#[test]
fn the_header_of_0_112_is_a_prefix_of_ours() {
    let theirs = Abi::parse(include_str!("../../data/abi_0.112.txt"));
    assert!(theirs.values.len() > 160, "{} sizes", theirs.values.len());
    assert_ours_extends(&theirs, 112);
}

#[test]
fn the_newest_header_is_ours_in_every_number() {
    assert_ours_extends(&NEWEST, NEWEST_MINOR);
    for (name, our) in &OURS.structs {
        assert_eq!(NEWEST.structs.get(name), Some(our), "{name}");
    }
    for (name, value) in OURS.enumerators().filter(|(name, _)| *name != "PJRT_API_MINOR") {
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
    let text = include_str!("../../../pjrt_c_api/pjrt_c_api.h");
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
    let structs: Vec<_> = sys::C_STRUCTS.iter().filter(|sizes| sizes.name.starts_with(PJRT.prefix)).collect();
    assert_eq!(structs.len(), OURS.values.keys().filter(|name| name.ends_with("_STRUCT_SIZE")).count());
    for sizes in structs {
        let name = sizes.name;
        assert_eq!(sizes.size_of as u64, OURS.structs[name].size, "{name}");
        assert_eq!(sizes.struct_size as u64, OURS.struct_size(name), "{name}");
        assert_eq!(sizes.min_size as u64, OURS.values[&format!("{name}_MIN_SIZE")], "{name}");
    }
    assert!(u64::from(sys::PJRT_API_MINOR) >= NEWEST_MINOR);
}

#[test]
#[ignore = "no check: prints the list of the header that PJRT_ARENA_ABI_HEADER names, for data/ when a version is added"]
fn print_a_headers_list() {
    let header = env::var_os("PJRT_ARENA_ABI_HEADER").expect("PJRT_ARENA_ABI_HEADER names a header");
    let header = Path::new(&header);
    let dialect = if header.ends_with("ffi/api/c_api.h") { &XLA_FFI } else { &PJRT };
    print!("{}", list(header, dialect, "printed"));
}
