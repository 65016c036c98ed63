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

/// Prints for each file of the library how many of its edges were reached; the lines of the others go to a file.
pub(crate) fn coverage(told: &[Told], folder: &Path) {
    let mut edges: BTreeMap<usize, bool> = BTreeMap::new();
    for &(address, reached) in told.iter().flat_map(|told| &told.edges) {
        *edges.entry(address).or_default() |= reached;
    }
    if edges.is_empty() {
        println!("built without counters, so that the corpus does not grow: `make fuzz` builds with them");
        return;
    }
    let Some(lines) = lines(edges.keys().copied()) else {
        println!("which edges of which files were reached is not told: there is no addr2line, which binutils has");
        return;
    };
    let (mut files, mut missed) = (BTreeMap::<String, (usize, usize)>::new(), Vec::new());
    for (reached, line) in edges.values().zip(&lines) {
        let Some((file, number)) = line else { continue };
        for name in [file.as_str(), "all"] {
            let (hit, all) = files.entry(name.to_owned()).or_default();
            (*hit, *all) = (*hit + usize::from(*reached), *all + 1);
        }
        if !reached {
            missed.push((file, number));
        }
    }
    println!("\n{:<44} {:>8} {:>8}", "edges of", "all", "reached");
    for (file, (hit, all)) in &files {
        println!("{file:<44} {all:>8} {hit:>8} {:>4} %", 100 * hit / all);
    }
    missed.sort_unstable();
    missed.dedup();
    let text: String = missed.iter().map(|(file, number)| format!("{file}:{number}\n")).collect();
    let path = folder.join("not_reached.txt");
    match fs::write(&path, text) {
        Ok(()) => println!("lines with edges that no input reached: {}", path.display()),
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
