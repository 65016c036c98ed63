//! What `make layers` prints.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crate::{
    graph::Graph,
    order::{LONG_FILE, LONGEST_FUNCTIONS, layer, row},
    tree::Sources,
};

#[derive(Default)]
struct Layer {
    files: usize,
    lines: usize,
    test_lines: usize,
    unsafe_places: usize,
    public_items: usize,
}

/// The report as text.
#[must_use]
pub fn text(sources: &Sources, graph: &Graph) -> String {
    let mut out = String::new();
    layers(&mut out, sources, graph);
    long_files(&mut out, sources);
    circles(&mut out, graph);
    let upward: Vec<String> = graph.upward().map(arrow).collect();
    section(&mut out, "Arrows that point up, from a lower layer to a higher one", &upward);
    let strays: Vec<String> = graph
        .strays
        .iter()
        .map(|stray| format!("{}:{}: impl {}, defined in {}", stray.file, stray.line, stray.name, stray.defined))
        .collect();
    section(&mut out, "Inherent impl blocks outside of the file of their type and its child modules", &strays);
    functions(&mut out, graph);
    out
}

/// The constants of `tests/layers.rs` that allow what there is now.
#[must_use]
pub fn allowance(graph: &Graph) -> String {
    let mut out = String::from("const ALLOWED_CIRCLES: &[&[&str]] = &[\n");
    for circle in graph.circles() {
        out.push_str("    &[\n");
        circle.iter().for_each(|file| writeln!(out, "        {file:?},").expect("text"));
        out.push_str("    ],\n");
    }
    out.push_str("];\n\nconst ALLOWED_UPWARD: &[(&str, &str)] = &[\n");
    graph.upward().for_each(|(from, to, _)| writeln!(out, "    ({from:?}, {to:?}),").expect("text"));
    out.push_str("];\n");
    out
}

/// An arrow with the names that tie its files.
#[must_use]
pub fn arrow((from, to, names): (&str, &str, &BTreeSet<String>)) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    format!("{from} -> {to}: {}", names.join(", "))
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    writeln!(out, "\n{title}: {}", lines.len()).expect("text");
    lines.iter().for_each(|line| writeln!(out, "  {line}").expect("text"));
}

fn layers(out: &mut String, sources: &Sources, graph: &Graph) {
    let mut layers: BTreeMap<&str, Layer> = BTreeMap::new();
    for (file, text) in sources {
        let layer = layers.entry(layer(file)).or_default();
        if let Some(seen) = graph.files.get(file) {
            layer.files += 1;
            layer.lines += text.lines().count();
            layer.unsafe_places += seen.unsafe_places;
            layer.public_items += seen.public_items;
        } else {
            layer.test_lines += text.lines().count();
        }
    }
    let mut layers: Vec<_> = layers.into_iter().collect();
    layers.sort_by_key(|(name, _)| row(name));
    let mut total = Layer::default();
    writeln!(out, "Layers, from the top down; the files of tests are counted apart, tests within a file are not")
        .expect("text");
    writeln!(out, "  {:<10} {:>5} {:>7} {:>7} {:>7} {:>7}", "layer", "files", "lines", "unsafe", "public", "tests")
        .expect("text");
    for (name, layer) in &layers {
        write_layer(out, name, layer);
        total.files += layer.files;
        total.lines += layer.lines;
        total.unsafe_places += layer.unsafe_places;
        total.public_items += layer.public_items;
        total.test_lines += layer.test_lines;
    }
    write_layer(out, "all", &total);
    let unknown: Vec<&str> = layers.iter().map(|(name, _)| *name).filter(|name| row(name).is_none()).collect();
    if !unknown.is_empty() {
        writeln!(out, "  not in the order of the layers: {}", unknown.join(", ")).expect("text");
    }
}

fn write_layer(out: &mut String, name: &str, layer: &Layer) {
    let Layer { files, lines, test_lines, unsafe_places, public_items } = layer;
    writeln!(out, "  {name:<10} {files:>5} {lines:>7} {unsafe_places:>7} {public_items:>7} {test_lines:>7}")
        .expect("text");
}

fn long_files(out: &mut String, sources: &Sources) {
    let mut files: Vec<(usize, &str)> =
        sources.iter().map(|(file, text)| (text.lines().count(), file.as_str())).collect();
    files.retain(|(lines, _)| *lines > LONG_FILE);
    files.sort_unstable_by(|a, b| b.cmp(a));
    let lines: Vec<String> = files.iter().map(|(lines, file)| format!("{lines} {file}")).collect();
    section(out, &format!("Files over {LONG_FILE} lines"), &lines);
}

fn circles(out: &mut String, graph: &Graph) {
    let circles = graph.circles();
    writeln!(out, "\nCircles of files: {}", circles.len()).expect("text");
    for circle in &circles {
        let arrows: Vec<String> = graph.arrows_within(circle).map(arrow).collect();
        writeln!(out, "  {} files, {} arrows", circle.len(), arrows.len()).expect("text");
        arrows.iter().for_each(|arrow| writeln!(out, "    {arrow}").expect("text"));
    }
}

fn functions(out: &mut String, graph: &Graph) {
    let mut functions: Vec<(usize, &str, &str)> = graph
        .files
        .iter()
        .flat_map(|(file, seen)| seen.functions.iter().map(|(lines, name)| (*lines, file.as_str(), name.as_str())))
        .collect();
    functions.sort_unstable_by(|a, b| b.cmp(a));
    functions.truncate(LONGEST_FUNCTIONS);
    writeln!(out, "\nLongest functions").expect("text");
    for (lines, file, name) in functions {
        writeln!(out, "  {lines} {file} {name}").expect("text");
    }
}
