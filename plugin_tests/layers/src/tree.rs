//! The modules of a crate: which file each stands in, what it defines and what it imports.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use syn::{Attribute, Item, UseTree, punctuated::Punctuated};

/// The text of each file, by its path relative to `src`, with `/` between folders.
pub type Sources = BTreeMap<String, String>;

/// Reads every `.rs` file below `folder`.
///
/// # Errors
/// What the file system says.
pub fn read(folder: &Path) -> io::Result<Sources> {
    fn walk(folder: &Path, prefix: &str, sources: &mut Sources) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &format!("{prefix}{name}/"), sources)?;
            } else if name.ends_with(".rs") {
                sources.insert(format!("{prefix}{name}"), fs::read_to_string(entry.path())?);
            }
        }
        Ok(())
    }
    let mut sources = Sources::new();
    walk(folder, "", &mut sources)?;
    Ok(sources)
}

/// An import: `path` is brought into the module under some name, or everything in it is.
#[derive(Clone, Debug)]
pub struct Import {
    /// The path as it is written, segment by segment.
    pub path: Vec<String>,
    /// Whether only a module can be meant, as in `use a::{self}`.
    pub only_module: bool,
}

/// A module of the crate.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that it stands in, relative to `src`.
    pub file: String,
    /// The module around it; none for the crate.
    pub parent: Option<usize>,
    /// The modules declared in it.
    pub children: BTreeMap<String, usize>,
    /// The names of its functions, types, constants and macros.
    pub items: BTreeSet<String>,
    /// The names of its macros.
    pub macros: BTreeSet<String>,
    /// The names that it imports, those inside of its functions included.
    pub imports: BTreeMap<String, Vec<Import>>,
    /// The paths that it imports everything of.
    pub globs: Vec<Vec<String>>,
}

/// The crate: its modules, the crate itself first, and the syntax of the files that are not only for tests.
#[derive(Default)]
pub struct Tree {
    /// The modules.
    pub modules: Vec<Module>,
    /// The syntax of each file and the module that the file is.
    pub files: BTreeMap<String, (usize, syn::File)>,
}

impl Tree {
    /// Follows the declarations of modules from `lib.rs` on. Modules for tests are left out, and so are the files that
    /// only they lead to.
    ///
    /// # Errors
    /// A file that is not Rust, or that a declaration names and that is not there.
    pub fn new(sources: &Sources) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.add_file(sources, "lib.rs", "", None)?;
        Ok(tree)
    }

    /// Adds the file `file`, whose child modules lie in `folder` (empty, or ending in `/`).
    fn add_file(
        &mut self,
        sources: &Sources,
        file: &str,
        folder: &str,
        parent: Option<usize>,
    ) -> Result<usize, String> {
        let text = sources.get(file).ok_or_else(|| format!("{file} is declared, but there is no such file"))?;
        let syntax = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
        let module = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        self.add_items(sources, module, folder, &syntax.items)?;
        self.files.insert(file.to_owned(), (module, syntax));
        Ok(module)
    }

    fn add_items(&mut self, sources: &Sources, module: usize, folder: &str, items: &[Item]) -> Result<(), String> {
        for item in items.iter().filter(|item| !for_tests(attributes(item))) {
            match item {
                Item::Mod(declared) => {
                    let name = name_of(&declared.ident);
                    let inner = format!("{folder}{name}/");
                    let child = if let Some((_, items)) = &declared.content {
                        let child = self.modules.len();
                        let file = self.modules[module].file.clone();
                        self.modules.push(Module { file, parent: Some(module), ..Module::default() });
                        self.add_items(sources, child, &inner, items)?;
                        child
                    } else {
                        let own_folder = format!("{inner}mod.rs");
                        let beside = format!("{folder}{name}.rs");
                        let file = if sources.contains_key(&own_folder) { own_folder } else { beside };
                        if is_test_file(&file) {
                            continue;
                        }
                        self.add_file(sources, &file, &inner, Some(module))?
                    };
                    self.modules[module].children.insert(name, child);
                }
                Item::Use(import) => self.add_import(module, import),
                item => {
                    if let Item::Macro(item) = item
                        && let Some(ident) = &item.ident
                    {
                        self.modules[module].macros.insert(name_of(ident));
                    }
                    if let Some(name) = defined_name(item) {
                        self.modules[module].items.insert(name);
                    }
                }
            }
        }
        Ok(())
    }

    /// Records what `import` brings into `module`.
    pub fn add_import(&mut self, module: usize, import: &syn::ItemUse) {
        if import.leading_colon.is_none() {
            for (path, name, only_module) in leaves(&import.tree) {
                let module = &mut self.modules[module];
                match name {
                    Some(name) => module.imports.entry(name).or_default().push(Import { path, only_module }),
                    None => module.globs.push(path),
                }
            }
        }
    }

    /// Whether `module` is `ancestor` or stands somewhere inside of it.
    #[must_use]
    pub fn is_inside(&self, mut module: usize, ancestor: usize) -> bool {
        loop {
            if module == ancestor {
                return true;
            }
            match self.modules[module].parent {
                Some(parent) => module = parent,
                None => return false,
            }
        }
    }
}

/// Each path that `tree` names, with the name that it goes by afterwards (none for `*`) and whether it is a `self`.
#[must_use]
pub fn leaves(tree: &UseTree) -> Vec<(Vec<String>, Option<String>, bool)> {
    fn walk(tree: &UseTree, prefix: &[String], found: &mut Vec<(Vec<String>, Option<String>, bool)>) {
        let mut add = |ident: &syn::Ident, name: &syn::Ident| {
            let only_module = ident == "self" && !prefix.is_empty();
            let mut path = prefix.to_vec();
            if !only_module {
                path.push(name_of(ident));
            }
            let name = if only_module && name == "self" { path.last().cloned() } else { Some(name_of(name)) };
            found.push((path, name, only_module));
        };
        match tree {
            UseTree::Path(path) => {
                let mut longer = prefix.to_vec();
                longer.push(name_of(&path.ident));
                walk(&path.tree, &longer, found);
            }
            UseTree::Name(name) => add(&name.ident, &name.ident),
            UseTree::Rename(rename) => add(&rename.ident, &rename.rename),
            UseTree::Glob(_) => found.push((prefix.to_vec(), None, false)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, prefix, found)),
        }
    }
    let mut found = Vec::new();
    walk(tree, &[], &mut found);
    found
}

/// The text of an identifier, without the `r#` of a raw one.
#[must_use]
pub fn name_of(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

/// Whether a file holds tests by its name: `tests.rs`, or anything in a folder `tests`.
#[must_use]
pub fn is_test_file(file: &str) -> bool {
    file.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Whether `attributes` keep an item out of a build without tests.
#[must_use]
pub fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Meta>().is_ok_and(|condition| !may_hold(&condition))
    })
}

/// Whether a condition may hold where `test` does not; of anything else it is assumed.
fn may_hold(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::List(list) => {
            let parser = Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
            let parts = list.parse_args_with(parser).unwrap_or_default();
            if list.path.is_ident("all") {
                parts.iter().all(may_hold)
            } else if list.path.is_ident("any") {
                parts.iter().any(may_hold)
            } else {
                true
            }
        }
        condition => !condition.path().is_ident("test"),
    }
}

/// The attributes of an item.
#[must_use]
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name_of(ident))
}
