//! What the workers told, put together and printed.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use crate::{
    targets::TARGETS,
    worker::{Tally, Told},
};

/// Prints a line for each target; how many findings there are.
pub(crate) fn targets(told: &[Told]) -> u64 {
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>11} {:>11} {:>7} {:>9}",
        "target", "inputs", "accepted", "refused", "longest", "memory", "corpus", "findings"
    );
    let mut all = Tally::default();
    for (at, target) in TARGETS.iter().enumerate() {
        let mut sum = Tally::default();
        told.iter().for_each(|told| add(&mut sum, &told.tallies[at]));
        print(target.name, &sum);
        add(&mut all, &sum);
    }
    print("all", &all);
    all.findings
}

fn add(sum: &mut Tally, one: &Tally) {
    sum.inputs += one.inputs;
    sum.accepted += one.accepted;
    sum.findings += one.findings;
    sum.corpus += one.corpus;
    sum.longest = sum.longest.max(one.longest);
    sum.memory = sum.memory.max(one.memory);
}

fn print(name: &str, tally: &Tally) {
    let Tally { inputs, accepted, longest, memory, corpus, findings } = tally;
    println!(
        "{name:<12} {inputs:>12} {accepted:>12} {:>12} {:>8} us {:>7} KiB {corpus:>7} {findings:>9}",
        inputs - accepted,
        longest.as_micros(),
        memory.div_ceil(1024),
    );
}

#[derive(Default)]
struct Sums {
    edges: usize,
    edges_reached: usize,
    lines: usize,
    lines_reached: usize,
}

/// Prints for each file of the library how many of its edges and lines were reached; the other lines go to a file.
pub(crate) fn coverage(told: &[Told], folder: &Path) {
    let mut edges: BTreeMap<usize, bool> = BTreeMap::new();
    for &(address, reached) in told.iter().flat_map(|told| &told.edges) {
        *edges.entry(address).or_default() |= reached;
    }
    if told.is_empty() {
        return;
    }
    if edges.is_empty() {
        println!("built without counters, so that the corpus does not grow: `make fuzz` builds with them");
        return;
    }
    let Some(lines) = lines(edges.keys().copied()) else {
        println!("which edges of which files were reached is not told: there is no addr2line, which binutils has");
        return;
    };
    // A line has several edges; those to the panics of checks, such as that of an overflow, are never reached.
    let (mut sums, mut by_line) = (BTreeMap::<&str, Sums>::new(), BTreeMap::<(&str, u32), bool>::new());
    for (&reached, line) in edges.values().zip(&lines) {
        let Some((file, line)) = line else { continue };
        *by_line.entry((file, *line)).or_default() |= reached;
        for name in [file, "all"] {
            let sums = sums.entry(name).or_default();
            (sums.edges, sums.edges_reached) = (sums.edges + 1, sums.edges_reached + usize::from(reached));
        }
    }
    for ((file, _), &reached) in &by_line {
        for name in [file, "all"] {
            let sums = sums.entry(name).or_default();
            (sums.lines, sums.lines_reached) = (sums.lines + 1, sums.lines_reached + usize::from(reached));
        }
    }
    println!("\n{:<40} {:>8} {:>8} {:>8} {:>8}", "coverage of", "edges", "reached", "lines", "reached");
    for (name, Sums { edges, edges_reached, lines, lines_reached }) in &sums {
        let percent = 100 * lines_reached / lines;
        println!("{name:<40} {edges:>8} {edges_reached:>8} {lines:>8} {lines_reached:>8} {percent:>4} %");
    }
    let missed = by_line.iter().filter(|(_, reached)| !**reached).map(|(line, _)| line);
    let text: String = missed.map(|(file, number)| format!("{file}:{number}\n")).collect();
    let path = folder.join("not_reached.txt");
    match fs::write(&path, text) {
        Ok(()) => println!("lines that no input reached: {}", path.display()),
        Err(error) => eprintln!("{} cannot be written: {error}", path.display()),
    }
}

/// For each address the file of `src` that it lies in, or that it was inlined from, and the line.
fn lines(addresses: impl Iterator<Item = usize>) -> Option<Vec<Option<(String, u32)>>> {
    let program = std::env::current_exe().ok()?;
    let mut tool = Command::new("addr2line")
        .args(["--addresses", "--inlines", "--exe"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = tool.stdin.take()?;
    let asked: String = addresses.map(|address| format!("{address:x}\n")).collect();
    let asking = thread::spawn(move || stdin.write_all(asked.as_bytes()));
    let said = tool.wait_with_output().ok()?;
    asking.join().ok()?.ok()?;
    let mut lines = Vec::new();
    for text in String::from_utf8_lossy(&said.stdout).lines() {
        if text.starts_with("0x") {
            lines.push(None);
        } else if let Some(line @ None) = lines.last_mut() {
            *line = of_the_library(text);
        }
    }
    Some(lines)
}

/// `.../src/program/wire.rs:12 (discriminator 3)` as the file's path in the project and the line.
fn of_the_library(text: &str) -> Option<(String, u32)> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let root = root.strip_suffix("plugin_tests/")?;
    let path = text.strip_prefix(root).unwrap_or(text);
    let (file, line) = path.split_once(':')?;
    let line = line.split(' ').next()?.parse().ok()?;
    file.starts_with("src/").then(|| (file.to_owned(), line))
}
