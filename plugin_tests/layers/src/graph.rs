//! Files as a graph: which file names what another one defines.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};

use crate::{
    names::Target,
    order::points_up,
    tree::{Sources, Tree},
    visit::{self, Seen},
};

/// From one file to another, with the names that tie them.
pub type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// An inherent `impl` block that stands neither with its type nor in a child module of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The type.
    pub name: String,
    /// The file that defines it.
    pub defined: String,
    /// The file of the block.
    pub file: String,
    /// The line of the block.
    pub line: usize,
}

/// What is known about the sources.
pub struct Graph {
    /// What was seen in each file that is not only for tests.
    pub files: BTreeMap<String, Seen>,
    /// Which file names what of which.
    pub arrows: Arrows,
    /// Inherent `impl` blocks away from their type.
    pub strays: Vec<Stray>,
}

impl Graph {
    /// Reads the sources.
    ///
    /// # Errors
    /// Those of [`Tree::new`].
    pub fn new(sources: &Sources) -> Result<Self, String> {
        let mut tree = Tree::new(sources)?;
        let files: BTreeMap<String, Seen> = tree
            .files
            .iter()
            .map(|(file, (module, syntax))| (file.clone(), visit::walk(&tree, *module, syntax)))
            .collect();
        for (module, import) in files.values().flat_map(|seen| &seen.imports) {
            tree.add_import(*module, import);
        }
        let mut graph = Self { files: BTreeMap::new(), arrows: Arrows::new(), strays: Vec::new() };
        for (file, seen) in &files {
            for (module, path) in &seen.paths {
                for target in tree.resolve(*module, path) {
                    graph.add_arrow(&tree, file, target, path);
                }
            }
            for (module, name) in &seen.macros {
                if let Some(target) = tree.resolve_macro(*module, name) {
                    graph.add_arrow(&tree, file, target, &[format!("{name}!")]);
                }
            }
            graph.add_strays(&tree, file, seen);
        }
        graph.strays.sort();
        graph.files = files;
        Ok(graph)
    }

    fn add_arrow(&mut self, tree: &Tree, from: &str, target: Target, path: &[String]) {
        // The name of a module alone is no arrow: what is named through it is.
        if let Target::Item(module) = target {
            let to = &tree.modules[module].file;
            if to != from {
                self.arrows.entry((from.to_owned(), to.clone())).or_default().insert(item_name(path));
            }
        }
    }

    fn add_strays(&mut self, tree: &Tree, file: &str, seen: &Seen) {
        for (module, path, line) in &seen.inherent {
            for target in tree.resolve(*module, path) {
                if let Target::Item(defined) = target
                    && tree.modules[defined].file != file
                    && !tree.is_inside(*module, defined)
                {
                    self.strays.push(Stray {
                        name: path.join("::"),
                        defined: tree.modules[defined].file.clone(),
                        file: file.to_owned(),
                        line: *line,
                    });
                }
            }
        }
    }

    /// Groups of more than one file each of which leads to every other one, the largest first.
    #[must_use]
    pub fn circles(&self) -> Vec<BTreeSet<String>> {
        let graph: DiGraphMap<&str, ()> =
            self.arrows.keys().map(|(from, to)| (from.as_str(), to.as_str(), ())).collect();
        let mut circles: Vec<BTreeSet<String>> = tarjan_scc(&graph)
            .into_iter()
            .filter(|files| files.len() > 1)
            .map(|files| files.into_iter().map(str::to_owned).collect())
            .collect();
        circles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        circles
    }

    /// The arrows between the files of a circle.
    pub fn arrows_within(&self, circle: &BTreeSet<String>) -> impl Iterator<Item = (&str, &str, &BTreeSet<String>)> {
        self.arrows
            .iter()
            .filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
            .map(|((from, to), names)| (from.as_str(), to.as_str(), names))
    }

    /// The arrows from a lower layer to a higher one.
    pub fn upward(&self) -> impl Iterator<Item = (&str, &str, &BTreeSet<String>)> {
        self.arrows
            .iter()
            .filter(|((from, to), _)| points_up(from, to))
            .map(|((from, to), names)| (from.as_str(), to.as_str(), names))
    }
}

/// The item that a path names, without the modules before it and what comes behind it.
fn item_name(path: &[String]) -> String {
    let module = |part: &&String| part.starts_with(|first: char| first.is_lowercase() || first == '$');
    let modules = path.iter().take_while(module).count();
    path.get(modules).or(path.last()).cloned().unwrap_or_default()
}
