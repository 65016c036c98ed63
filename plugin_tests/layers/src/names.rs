//! Which module a path leads to.

use std::collections::BTreeSet;

use crate::tree::Tree;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A module.
    Module(usize),
    /// Something that this module defines.
    Item(usize),
}

impl Tree {
    /// What `path`, written in `module`, stands for. Nothing for a path into another crate and for a local name. A name
    /// can stand for two things, a module and a function, so that there can be more than one answer.
    ///
    /// A re-export is followed to the module that defines the name. A path that goes on behind an item,
    /// `Enum::Variant`, stands for that item.
    #[must_use]
    pub fn resolve(&self, module: usize, path: &[String]) -> Vec<Target> {
        self.walk(module, path, &mut BTreeSet::new())
    }

    fn walk(&self, module: usize, path: &[String], asked: &mut BTreeSet<(usize, String)>) -> Vec<Target> {
        let mut at = module;
        let mut rest = path;
        let mut anchored = false;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" | "$crate" => at = 0,
                "self" => {}
                "super" => match self.modules[at].parent {
                    Some(parent) => at = parent,
                    None => return Vec::new(),
                },
                _ => break,
            }
            anchored = true;
            rest = others;
        }
        let Some((first, mut rest)) = rest.split_first() else {
            return if anchored { vec![Target::Module(at)] } else { Vec::new() };
        };
        let mut targets = match self.lookup(at, first, asked) {
            Some(targets) => targets,
            // Macros make names that are not seen here; they stand where the path leads.
            None if anchored => return vec![Target::Item(at)],
            None => return Vec::new(),
        };
        while let Some((next, others)) = rest.split_first() {
            let modules: Vec<usize> = targets
                .iter()
                .filter_map(|target| match target {
                    Target::Module(module) => Some(*module),
                    Target::Item(_) => None,
                })
                .collect();
            if modules.is_empty() {
                return targets;
            }
            targets = modules
                .iter()
                .flat_map(|module| self.lookup(*module, next, asked).unwrap_or(vec![Target::Item(*module)]))
                .collect();
            rest = others;
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// What `name` stands for in `module`; none if nothing there is called that, and empty for a name of another crate.
    fn lookup(&self, module: usize, name: &str, asked: &mut BTreeSet<(usize, String)>) -> Option<Vec<Target>> {
        if !asked.insert((module, name.to_owned())) {
            return Some(Vec::new());
        }
        let answer = self.lookup_anew(module, name, asked);
        asked.remove(&(module, name.to_owned()));
        answer
    }

    fn lookup_anew(&self, at: usize, name: &str, asked: &mut BTreeSet<(usize, String)>) -> Option<Vec<Target>> {
        let module = &self.modules[at];
        let mut found: Vec<Target> =
            module.children.get(name).map(|child| Target::Module(*child)).into_iter().collect();
        if module.items.contains(name) {
            found.push(Target::Item(at));
        }
        let imports = module.imports.get(name);
        for import in imports.into_iter().flatten() {
            let targets = self.walk(at, &import.path, asked);
            found.extend(
                targets.into_iter().filter(|target| !import.only_module || matches!(target, Target::Module(_))),
            );
        }
        if !found.is_empty() || imports.is_some() {
            return Some(found);
        }
        for glob in &module.globs {
            for target in self.walk(at, glob, asked) {
                if let Target::Module(other) = target
                    && let Some(targets) = self.lookup(other, name, asked)
                {
                    found.extend(targets);
                }
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// The module that defines the macro `name`, seen from `module`: a macro that is called by its name alone is
    /// defined there or in a module around, or else it is imported, which is an arrow already.
    #[must_use]
    pub fn resolve_macro(&self, module: usize, name: &str) -> Option<Target> {
        let mut at = Some(module);
        while let Some(module) = at {
            if self.modules[module].macros.contains(name) {
                return Some(Target::Item(module));
            }
            at = self.modules[module].parent;
        }
        None
    }
}
