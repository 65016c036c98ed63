//! What is an arrow and what is not, on small crates.

use std::collections::BTreeSet;

use layers::{
    graph::Graph,
    order::{layer, points_up},
    report,
    tree::Sources,
};

fn sources(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

fn graph(files: &[(&str, &str)]) -> Graph {
    Graph::new(&sources(files)).expect("sources that can be read")
}

/// The arrows as `from > to: names`.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let describe = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(" ");
    graph(files).arrows.iter().map(|((from, to), names)| format!("{from} > {to}: {}", describe(names))).collect()
}

#[test]
fn imports_and_paths_lead_to_the_file_that_defines_the_name() {
    let found = arrows(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::One; fn f(_: One) { crate::b::two(); super::b::inner::three() }"),
        ("b/mod.rs", "pub struct One; pub fn two() {} pub mod inner;"),
        ("b/inner.rs", "pub fn three() {}"),
    ]);
    assert_eq!(found, ["a.rs > b/inner.rs: three", "a.rs > b/mod.rs: One two"]);
}

#[test]
fn a_reexport_is_followed_and_ties_the_module_that_makes_it() {
    let found = arrows(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::{Name, other as another};"),
        ("b/mod.rs", "mod first; mod second; pub use first::Name; pub use self::second::*;"),
        ("b/first.rs", "use super::other; pub struct Name;"),
        ("b/second.rs", "pub fn other() {}"),
    ]);
    let expected = [
        "a.rs > b/first.rs: Name",
        "a.rs > b/second.rs: other",
        "b/first.rs > b/second.rs: other",
        "b/mod.rs > b/first.rs: Name",
    ];
    assert_eq!(found, expected);
}

#[test]
fn naming_a_module_is_no_arrow_and_what_is_named_through_it_is() {
    let files = [("lib.rs", "mod a; mod b;"), ("b.rs", "pub enum Kind { First }")];
    let with = |a| arrows(&[files[0], files[1], ("a.rs", a)]);
    assert!(with("use crate::b; pub(in crate::a) fn f() {}").is_empty());
    assert_eq!(with("use crate::{b as other}; fn f() { other::Kind::First; }"), ["a.rs > b.rs: Kind"]);
    assert_eq!(with("use crate::b::{self}; fn f() { let _ = <b::Kind as Clone>::clone; }"), ["a.rs > b.rs: Kind"]);
    assert_eq!(with("fn f() { use crate::b::Kind::*; }"), ["a.rs > b.rs: Kind"]);
}

#[test]
fn other_crates_and_names_of_ones_own_are_no_arrows() {
    let found = arrows(&[
        ("lib.rs", "mod a; mod std_like;"),
        ("a.rs", "use std::fmt; use ::std_like::X; struct T; fn f<K: fmt::Debug>(t: T) { self::f(t); K::x() }"),
        ("std_like.rs", "pub struct X;"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn what_macros_are_given_is_read() {
    let found = arrows(&[
        ("lib.rs", "#[macro_use] mod macros; mod a; mod b;"),
        ("macros.rs", "macro_rules! make { () => { $crate::b::made() }; }"),
        ("a.rs", "use crate::b; fn f(x: X) { format!(\"{}\", b::text(x.made, a::b::made)); make!() }"),
        ("b.rs", "pub fn text() {} pub fn made() {}"),
    ]);
    // A macro of the crate's own is found through the modules around, and `lib.rs` does not define it.
    assert_eq!(found, ["a.rs > b.rs: text", "macros.rs > b.rs: made"]);
    let found = arrows(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "macro_rules! make { () => {}; } mod inner;"),
        ("a/inner.rs", "fn f() { vec![make!()]; }"),
    ]);
    assert_eq!(found, ["a/inner.rs > a/mod.rs: make!"]);
}

#[test]
fn tests_are_left_out() {
    let lib = "#[cfg(test)] mod fake; mod a; mod b; mod c;";
    let a = "#[cfg(test)] use crate::b::X; #[cfg(test)] mod tests { use crate::b::X; } mod tests;
             #[cfg(all(test, unix))] fn f() { crate::b::X; } #[cfg(any(test, unix))] fn g() { crate::c::Y; }
             #[cfg(not(test))] fn h() { crate::c::Z; } struct S; impl S { #[cfg(test)] fn t() { crate::b::X; } }";
    let files = [
        ("lib.rs", lib),
        ("a.rs", a),
        ("a/tests.rs", "use crate::b::X;"),
        ("b.rs", "pub struct X;"),
        ("c.rs", "pub struct Y; pub struct Z;"),
    ];
    assert_eq!(arrows(&files), ["a.rs > c.rs: Y Z"]);
    assert!(!graph(&files).files.contains_key("a/tests.rs"));
}

#[test]
fn circles_are_files_that_lead_to_each_other() {
    let found = graph(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::a::A; pub struct B;"),
        ("c.rs", "use crate::a::A; mod inner { use super::super::c::C; } pub struct C;"),
    ]);
    assert_eq!(found.circles(), [BTreeSet::from(["a.rs".to_owned(), "b.rs".to_owned()])]);
    assert_eq!(found.arrows_within(&found.circles()[0]).count(), 2);
    assert!(report::allowance(&found).contains("        \"a.rs\",\n        \"b.rs\",\n"));
}

#[test]
fn layers_have_an_order() {
    assert_eq!((layer("api/buffer.rs"), layer("error.rs")), ("api", "error"));
    assert!(points_up("memory/arena/mod.rs", "api/state.rs"));
    assert!(!points_up("api/state.rs", "memory/arena/mod.rs"));
    assert!(!points_up("engine/ffi.rs", "device/mod.rs"));
    let files = [
        ("lib.rs", "mod units; mod memory;"),
        ("units.rs", "use crate::memory::Region;"),
        ("memory/mod.rs", "use crate::units::Bytes; pub struct Region;"),
    ];
    let upward: Vec<(String, String)> =
        graph(&files).upward().map(|(from, to, _)| (from.to_owned(), to.to_owned())).collect();
    assert_eq!(upward, [("units.rs".to_owned(), "memory/mod.rs".to_owned())]);
}

#[test]
fn inherent_blocks_away_from_their_type_are_strays() {
    let found = graph(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod inner; pub struct A; impl A {}"),
        ("a/inner.rs", "use super::A; impl A {} impl Clone for A {}"),
        ("b.rs", "use crate::a::A; impl Copy for A {}\nimpl A {} struct B; impl B {}"),
    ]);
    let strays: Vec<_> = found.strays.iter().map(|stray| (&*stray.name, &*stray.file, stray.line)).collect();
    assert_eq!(strays, [("A", "b.rs", 2)]);
}

#[test]
fn unsafe_places_public_items_and_lines_are_counted() {
    let text = "pub unsafe fn one() {\n\n}\nfn two() { unsafe { one() } }\nunsafe impl Send for X {}\npub struct X;
                impl X { pub fn f() { call!(unsafe { one() }, a as unsafe extern \"C\" fn(u8), pub unsafe fn g() {}) } }
                #[cfg(test)] mod tests { pub fn f() { unsafe {} } }";
    let found = graph(&[("lib.rs", text)]);
    let seen = &found.files["lib.rs"];
    assert_eq!((seen.unsafe_places, seen.public_items), (5, 3));
    assert_eq!(seen.functions.iter().max(), Some(&(3, "one".to_owned())));
    assert!(seen.functions.contains(&(1, "X::f".to_owned())));
}

#[test]
fn what_cannot_be_read_is_an_error() {
    assert!(Graph::new(&sources(&[("lib.rs", "mod a;")])).is_err_and(|error| error.contains("a.rs")));
    assert!(Graph::new(&sources(&[("lib.rs", "fn (")])).is_err_and(|error| error.contains("lib.rs")));
}
