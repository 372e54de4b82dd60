//! The modules of a crate, what they import, and where an imported item is defined.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::parse::{self, File};

/// A module, of a file or within one.
#[derive(Default)]
pub struct Module {
    /// Names from the crate's root, which has none.
    pub path: Vec<String>,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Imported names and what they stand for.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules that are imported whole.
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
}

/// A path that leads to a definition elsewhere: in a `use` or wherever a path may stand.
pub struct Use<'a> {
    /// Number of the module it stands in.
    pub module: usize,
    pub names: Vec<String>,
    pub file: &'a str,
    pub line: usize,
}

/// Target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item of the module.
    Item(usize),
}

impl Target {
    fn module(self) -> usize {
        match self {
            Self::Module(module) | Self::Item(module) => module,
        }
    }
}

/// A module that a file declares and another file has.
struct Declared {
    module: usize,
    /// Paths that the file may have.
    candidates: Vec<String>,
}

/// All modules of a crate but those for tests.
#[derive(Default)]
pub struct Modules<'a> {
    pub modules: Vec<Module>,
    pub uses: Vec<Use<'a>>,
    /// Files and the modules that they have.
    pub files: Vec<(&'a str, usize)>,
    /// Files of modules for tests, and the folders of what is below them.
    tests: Vec<String>,
    /// Macros for other crates, which are named as items of the root, by name: their modules.
    exported: BTreeMap<String, usize>,
}

/// Paths that go through more re-exports than this are given up.
const DEPTH: usize = 16;

impl<'a> Modules<'a> {
    /// Follows the modules of the crate whose `lib.rs` is in the folder `root`.
    pub fn read(root: &str, files: &'a [File<'a>]) -> Self {
        let mut modules = Self { modules: vec![Module::default()], ..Self::default() };
        let mut open = vec![Declared { module: 0, candidates: vec![format!("{root}lib.rs")] }];
        while let Some(Declared { module, candidates }) = open.pop() {
            // A file of several candidates exists; where the tree lacks it, the compiler says so.
            let is_candidate = |file: &&File| candidates.contains(&file.source.path);
            for file in files.iter().filter(is_candidate) {
                let path = file.source.path.as_str();
                modules.files.push((path, module));
                let folder = folder_of_children(path);
                let mut reader =
                    Reader { modules: &mut modules, module, file: path, folder, open: &mut open };
                reader.visit_file(&file.syntax);
            }
        }
        modules
    }

    /// Whether a file belongs to modules for tests.
    pub fn is_test(&self, path: &str) -> bool {
        self.tests.iter().any(|test| path == test || test.ends_with('/') && path.starts_with(test))
    }

    /// The module that defines what a use leads to; `None` for other crates, and where the name
    /// was imported by another use that counts already.
    pub fn defined_in(&self, used: &Use) -> Option<usize> {
        let first = used.names.first()?;
        let target = self.resolve(used.module, &used.names, 0)?.module();
        let is_rooted = matches!(first.as_str(), "crate" | "self" | "super");
        let here = &self.modules[used.module];
        if !is_rooted && !here.children.contains_key(first) {
            let imported = self.member(used.module, first, 0)?;
            if imported.module() == target {
                return None;
            }
        }
        Some(target)
    }

    fn resolve(&self, from: usize, names: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = names.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent),
            name => self.member(from, name, depth)?,
        };
        for name in rest {
            let Target::Module(module) = found else { break };
            found = match name.as_str() {
                "super" => Target::Module(self.modules[module].parent),
                "self" => found,
                // Items that a macro defines are not items of the file.
                name => self.member(module, name, depth).unwrap_or(Target::Item(module)),
            };
        }
        Some(found)
    }

    /// Resolves a name in a module: its child, item or import.
    fn member(&self, module: usize, name: &str, depth: usize) -> Option<Target> {
        if let (0, Some(&defined)) = (module, self.exported.get(name)) {
            return Some(Target::Item(defined));
        }
        let here = &self.modules[module];
        if let Some(&child) = here.children.get(name) {
            return Some(Target::Module(child));
        }
        if here.items.contains(name) {
            return Some(Target::Item(module));
        }
        if depth == DEPTH {
            return None;
        }
        if let Some(imported) = here.imports.get(name) {
            return self.resolve(module, imported, depth + 1);
        }
        here.globs.iter().find_map(|glob| match self.resolve(module, glob, depth + 1)? {
            Target::Module(whole) if whole != module => self.member(whole, name, depth + 1),
            _ => None,
        })
    }
}

/// The folder of the files of a file's modules, with `/` at its end.
fn folder_of_children(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        name => format!("{folder}/{}/", name.trim_end_matches(".rs")),
    }
}

/// Reads one file into the modules.
struct Reader<'m, 'a> {
    modules: &'m mut Modules<'a>,
    module: usize,
    file: &'a str,
    /// Folder of modules that are declared here.
    folder: String,
    open: &'m mut Vec<Declared>,
}

impl Reader<'_, '_> {
    fn here(&mut self) -> &mut Module {
        &mut self.modules.modules[self.module]
    }

    fn add_use(&mut self, names: Vec<String>, span: Span) {
        let (module, file, line) = (self.module, self.file, span.start().line);
        self.modules.uses.push(Use { module, names, file, line });
    }

    /// The imports of a use tree below a prefix.
    fn add_tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                let prefix = with(prefix, &path.ident);
                self.add_tree(&prefix, &path.tree);
            }
            syn::UseTree::Name(name) => self.add_import(prefix, &name.ident, &name.ident),
            syn::UseTree::Rename(rename) => self.add_import(prefix, &rename.ident, &rename.rename),
            syn::UseTree::Glob(glob) => {
                self.here().globs.push(prefix.to_vec());
                self.add_use(prefix.to_vec(), glob.star_token.spans[0]);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(prefix, tree);
                }
            }
        }
    }

    fn add_import(&mut self, prefix: &[String], ident: &syn::Ident, alias: &syn::Ident) {
        let is_self = ident == "self";
        let names = if is_self { prefix.to_vec() } else { with(prefix, ident) };
        let alias = match prefix.last() {
            Some(last) if alias == "self" => last.clone(),
            _ => alias.to_string(),
        };
        self.add_use(names.clone(), ident.span());
        if names == [alias.clone()] {
            // A macro that becomes an item by `use`.
            self.here().items.insert(alias);
        } else {
            self.here().imports.entry(alias).or_insert(names);
        }
    }

    /// Paths in what is given to a macro, or in what one is defined to become.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = match &tokens[at] {
                TokenTree::Group(group) => {
                    self.scan(group.stream());
                    at + 1
                }
                TokenTree::Ident(_) if !is_colons(&tokens, at.wrapping_sub(2)) => {
                    self.scan_path(&[], &tokens, at)
                }
                _ => at + 1,
            };
        }
    }

    /// The path that begins at a name, below a prefix. Returns the position after it.
    fn scan_path(&mut self, prefix: &[String], tokens: &[TokenTree], mut at: usize) -> usize {
        let mut names = prefix.to_vec();
        let span = tokens[at].span();
        let mut continues = true;
        while continues && let Some(TokenTree::Ident(name)) = tokens.get(at) {
            names.push(name.to_string());
            continues = is_colons(tokens, at + 1);
            at += if continues { 3 } else { 1 };
        }
        if continues
            && let Some(TokenTree::Group(group)) = tokens.get(at)
            && group.delimiter() == Delimiter::Brace
        {
            self.scan_group(&names, group.stream());
            return at + 1;
        }
        if names.len() > 1 {
            self.add_use(names, span);
        }
        at
    }

    /// The paths of `prefix::{..}` in a macro.
    fn scan_group(&mut self, prefix: &[String], tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = match tokens[at] {
                TokenTree::Ident(_) => self.scan_path(prefix, &tokens, at),
                _ => at + 1,
            };
        }
    }

    /// A module of this file, or one that has another.
    fn add_module(&mut self, node: &syn::ItemMod) {
        let name = node.ident.to_string();
        let mut candidates =
            vec![format!("{}{name}.rs", self.folder), format!("{}{name}/mod.rs", self.folder)];
        if let Some(path) = path_attribute(&node.attrs) {
            let folder = self.file.rsplit_once('/').map_or("", |(folder, _)| folder);
            candidates = vec![format!("{folder}/{path}")];
        }
        if parse::is_test_only(&node.attrs) {
            self.modules.tests.extend(candidates);
            self.modules.tests.push(format!("{}{name}/", self.folder));
            return;
        }
        let known = self.here().children.get(&name).copied();
        let module = known.unwrap_or_else(|| {
            let path = with(&self.here().path, &node.ident);
            let number = self.modules.modules.len();
            let parent = self.module;
            self.modules.modules.push(Module { path, parent, ..Module::default() });
            self.here().children.insert(name.clone(), number);
            number
        });
        let Some((_, items)) = &node.content else {
            self.open.push(Declared { module, candidates });
            return;
        };
        let outer = (self.module, self.folder.clone());
        self.module = module;
        self.folder = format!("{}{name}/", self.folder);
        items.iter().for_each(|item| self.visit_item(item));
        (self.module, self.folder) = outer;
    }
}

impl<'ast> Visit<'ast> for Reader<'_, '_> {
    fn visit_item(&mut self, node: &'ast syn::Item) {
        if let syn::Item::Mod(module) = node {
            return self.add_module(module);
        }
        let (attributes, name) = attributes_and_name(node);
        if parse::is_test_only(attributes) {
            return;
        }
        if let Some(name) = name {
            self.here().items.insert(name.to_string());
        }
        if let syn::Item::Macro(item) = node
            && attributes.iter().any(|attribute| attribute.path().is_ident("macro_export"))
            && let Some(name) = &item.ident
        {
            // Where it stands for something, it is code of another crate.
            self.modules.exported.insert(name.to_string(), self.module);
            return;
        }
        visit::visit_item(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if !parse::is_test_only(&node.attrs) {
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if node.leading_colon.is_none() {
            self.add_tree(&[], &node.tree);
        }
    }

    fn visit_path(&mut self, node: &'ast syn::Path) {
        let names: Vec<String> = node.segments.iter().map(|x| x.ident.to_string()).collect();
        if node.leading_colon.is_none() && names.len() > 1 {
            self.add_use(names, node.segments[0].ident.span());
        }
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.visit_path(&node.path);
        self.scan(node.tokens.clone());
    }

    // Neither says what is used: attributes are no code, and visibility is who may use this.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}

fn with(prefix: &[String], name: &syn::Ident) -> Vec<String> {
    prefix.iter().cloned().chain([name.to_string()]).collect()
}

/// Whether `::` begins at a token.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon =
        |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(x)) if x.as_char() == ':');
    at < tokens.len() && is_colon(at) && is_colon(at + 1)
}

/// The file that `#[path = ".."]` names.
fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(value) = &pair.value else { return None };
        let syn::Lit::Str(path) = &value.lit else { return None };
        pair.path.is_ident("path").then(|| path.value())
    })
}

/// The attributes of an item, and the name by which others can import it.
fn attributes_and_name(item: &syn::Item) -> (&[syn::Attribute], Option<&syn::Ident>) {
    use syn::Item;
    match item {
        Item::Const(x) => (&x.attrs, Some(&x.ident)),
        Item::Enum(x) => (&x.attrs, Some(&x.ident)),
        Item::ExternCrate(x) => (&x.attrs, Some(&x.ident)),
        Item::Fn(x) => (&x.attrs, Some(&x.sig.ident)),
        Item::ForeignMod(x) => (&x.attrs, None),
        Item::Impl(x) => (&x.attrs, None),
        Item::Macro(x) => (&x.attrs, x.ident.as_ref()),
        Item::Static(x) => (&x.attrs, Some(&x.ident)),
        Item::Struct(x) => (&x.attrs, Some(&x.ident)),
        Item::Trait(x) => (&x.attrs, Some(&x.ident)),
        Item::TraitAlias(x) => (&x.attrs, Some(&x.ident)),
        Item::Type(x) => (&x.attrs, Some(&x.ident)),
        Item::Union(x) => (&x.attrs, Some(&x.ident)),
        Item::Use(x) => (&x.attrs, None),
        _ => (&[], None),
    }
}
