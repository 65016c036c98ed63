//! One walk over the syntax of a file: the paths in it, and what is counted.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Visibility,
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::tree::{Tree, attributes, for_tests, name_of};

/// What a walk collects.
#[derive(Default)]
pub struct Seen {
    /// Paths with the module that they stand in.
    pub paths: Vec<(usize, Vec<String>)>,
    /// The macros that are called by a name alone, with the module of the call.
    pub macros: Vec<(usize, String)>,
    /// Imports inside of functions, with the module around.
    pub imports: Vec<(usize, syn::ItemUse)>,
    /// The types of inherent `impl` blocks, with the module and the line of the block.
    pub inherent: Vec<(usize, Vec<String>, usize)>,
    /// Lines of each function, with its name.
    pub functions: Vec<(usize, String)>,
    /// Unsafe blocks, functions and `impl` blocks.
    pub unsafe_places: usize,
    /// Public functions, types, traits, constants and statics.
    pub public_items: usize,
}

/// Walks over the syntax of a file, which is the module `module`.
#[must_use]
pub fn walk(tree: &Tree, module: usize, syntax: &syn::File) -> Seen {
    let mut visitor = Visitor { tree, module, inside: Vec::new(), depth: 0, seen: Seen::default() };
    visitor.visit_file(syntax);
    visitor.seen
}

struct Visitor<'a> {
    tree: &'a Tree,
    module: usize,
    /// The types and traits around, for the names of functions.
    inside: Vec<String>,
    /// How many functions are around.
    depth: usize,
    seen: Seen,
}

impl Visitor<'_> {
    fn count_public(&mut self, visibility: &Visibility) {
        self.seen.public_items += usize::from(matches!(visibility, Visibility::Public(_)));
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.seen.unsafe_places += usize::from(signature.unsafety.is_some());
        let first = signature.span().start().line;
        let lines = block.span().end().line + 1 - first;
        let mut name = self.inside.clone();
        name.push(name_of(&signature.ident));
        self.seen.functions.push((lines, name.join("::")));
    }

    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.inside.push(name);
        walk(self);
        self.inside.pop();
    }

    fn in_function(&mut self, walk: impl FnOnce(&mut Self)) {
        self.depth += 1;
        walk(self);
        self.depth -= 1;
    }

    /// Paths and the word `unsafe` in what a macro is given, which is not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let punct = |at: usize, expected: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == expected);
        let double_colon = |at: usize| punct(at, ':') && punct(at + 1, ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    self.seen.unsafe_places += usize::from(opens_unsafe(&tokens[at + 1..]));
                }
                TokenTree::Ident(ident) => {
                    let continues = at > 0 && (punct(at - 1, '.') || at > 1 && double_colon(at - 2));
                    let mut path = vec![name_of(ident)];
                    if path[0] == "crate" && at > 0 && punct(at - 1, '$') {
                        path[0] = "$crate".to_owned();
                    }
                    while double_colon(at + 1)
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(name_of(next));
                        at += 3;
                    }
                    if !continues {
                        if path.len() == 1 && punct(at + 1, '!') {
                            self.seen.macros.push((self.module, path.remove(0)));
                        } else {
                            self.seen.paths.push((self.module, path));
                        }
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Whether the tokens behind the word `unsafe` make it a block, a function with a name or an `impl`: not the type of a
/// function.
fn opens_unsafe(tokens: &[TokenTree]) -> bool {
    let word = |at: usize, expected: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == expected);
    if matches!(tokens.first(), Some(TokenTree::Group(_))) || word(0, "impl") {
        return true;
    }
    let mut at = 0;
    if word(at, "extern") {
        at += 1;
        at += usize::from(matches!(tokens.get(at), Some(TokenTree::Literal(_))));
    }
    word(at, "fn") && !matches!(tokens.get(at + 1), Some(TokenTree::Group(_)))
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if for_tests(attributes(item)) {
            return;
        }
        match item {
            syn::Item::Const(item) => self.count_public(&item.vis),
            syn::Item::Enum(item) => self.count_public(&item.vis),
            syn::Item::Fn(item) => self.count_public(&item.vis),
            syn::Item::Static(item) => self.count_public(&item.vis),
            syn::Item::Struct(item) => self.count_public(&item.vis),
            syn::Item::Trait(item) => self.count_public(&item.vis),
            syn::Item::Type(item) => self.count_public(&item.vis),
            syn::Item::Union(item) => self.count_public(&item.vis),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let around = self.module;
        if let (Some((_, items)), Some(inner)) =
            (&item.content, self.tree.modules[around].children.get(&name_of(&item.ident)))
        {
            self.module = *inner;
            items.iter().for_each(|item| self.visit_item(item));
            self.module = around;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if self.depth > 0 {
            self.seen.imports.push((self.module, item.clone()));
        }
        if item.leading_colon.is_none() {
            for (path, ..) in crate::tree::leaves(&item.tree) {
                self.seen.paths.push((self.module, path));
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        self.in_function(|visitor| visit::visit_item_fn(visitor, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.seen.unsafe_places += usize::from(item.unsafety.is_some());
        let path = match &*item.self_ty {
            syn::Type::Path(path) if path.qself.is_none() => segments(&path.path),
            _ => Vec::new(),
        };
        if item.trait_.is_none() && !path.is_empty() {
            self.seen.inherent.push((self.module, path.clone(), item.impl_token.span().start().line));
        }
        let name = path.last().cloned().unwrap_or_else(|| "_".to_owned());
        self.within(name, |visitor| visit::visit_item_impl(visitor, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let (attributes, visibility) = match item {
            syn::ImplItem::Const(item) => (&item.attrs, Some(&item.vis)),
            syn::ImplItem::Fn(item) => (&item.attrs, Some(&item.vis)),
            syn::ImplItem::Type(item) => (&item.attrs, None),
            syn::ImplItem::Macro(item) => (&item.attrs, None),
            _ => return,
        };
        if !for_tests(attributes) {
            if let Some(visibility) = visibility {
                self.count_public(visibility);
            }
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        self.in_function(|visitor| visit::visit_impl_item_fn(visitor, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(name_of(&item.ident), |visitor| visit::visit_item_trait(visitor, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if for_tests(&item.attrs) {
            return;
        }
        match &item.default {
            Some(block) => self.function(&item.sig, block),
            None => self.seen.unsafe_places += usize::from(item.sig.unsafety.is_some()),
        }
        self.in_function(|visitor| visit::visit_trait_item_fn(visitor, item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !for_tests(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !for_tests(&block.attrs) {
            visit::visit_expr_block(self, block);
        }
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.seen.unsafe_places += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.seen.paths.push((self.module, segments(path)));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.get_ident() {
            self.seen.macros.push((self.module, name_of(name)));
        } else {
            self.visit_path(&call.path);
        }
        self.tokens(call.tokens.clone());
    }

    // What stands in an attribute is no dependency of the program.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| name_of(&segment.ident)).collect()
}
