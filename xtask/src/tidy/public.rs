//! The library's public items: few at the root, each by one path and in an example, and functions
//! of few arguments.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{FnArg, Item, Signature, UseTree, Visibility};

use super::parse::File;
use super::tree::Source;
use super::{Finding, Rule};

/// Most arguments of a public function, `self` aside.
const ARGUMENTS: usize = 5;
/// Most items of the root that are in no module.
const ROOT_ITEMS: usize = 20;
/// The library's root.
const LIB: &str = "host/src/lib.rs";
/// Folders with nothing that is public, whatever it says.
const INTERNAL: [&str; 4] =
    ["host/src/cpu/", "host/src/cuda/", "host/src/linalg/", "host/src/runtime/"];

/// A public item and where it is made public.
pub struct Public<'a> {
    pub name: String,
    path: &'a str,
    line: usize,
    is_root: bool,
}

/// Findings in the library's files; `documents` may have examples, too.
pub fn check(files: &[File], documents: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| may_be_public(&file.source.path)) {
        let path = &file.source.path;
        Functions { path, findings: &mut findings }.visit_file(&file.syntax);
    }
    let items = items(files);
    let n_root = items.iter().filter(|item| item.is_root).count();
    for item in items.iter().filter(|item| item.is_root).skip(ROOT_ITEMS) {
        let message =
            format!("{n_root} items at the root, more than {ROOT_ITEMS}; put some into a module");
        findings.push(item.finding(message));
    }
    let code = example_code(files, documents);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let examples: BTreeSet<&str> = code.split(|c| !is_word(c)).collect();
    let mut first: BTreeMap<&str, &Public> = BTreeMap::new();
    for item in &items {
        if let Some(other) = first.insert(&item.name, item) {
            let message =
                format!("`{}` is public in {}:{}, too", item.name, other.path, other.line);
            findings.push(item.finding(message));
        } else if !examples.contains(item.name.as_str()) {
            let message = format!("`{}` is in no example; use it in one", item.name);
            findings.push(item.finding(message));
        }
    }
    findings
}

/// Whether a file may have what is public in the library.
pub fn may_be_public(path: &str) -> bool {
    path.starts_with("host/src/") && !INTERNAL.iter().any(|folder| path.starts_with(folder))
}

impl Public<'_> {
    fn finding(&self, message: String) -> Finding {
        Finding { path: self.path.to_string(), line: self.line, rule: Rule::Public, message }
    }
}

/// The public items of the root and its modules.
pub fn items<'a>(files: &'a [File<'a>]) -> Vec<Public<'a>> {
    let mut found = Vec::new();
    let Some(lib) = files.iter().find(|file| file.source.path == LIB) else { return found };
    collect(&lib.syntax.items, LIB, true, &mut found);
    let modules = modules(&lib.syntax.items);
    let names = |path: &str| {
        let path = path.strip_prefix("host/src/")?.strip_suffix(".rs")?;
        Some(path.strip_suffix("/mod").unwrap_or(path).to_string())
    };
    let is_module = |path: &str| names(path).is_some_and(|names| modules.contains(&names));
    for file in files.iter().filter(|file| is_module(&file.source.path)) {
        collect(&file.syntax.items, &file.source.path, false, &mut found);
    }
    found
}

/// The public modules that have files of their own, by their paths from the root: declared there,
/// or made public under another path.
fn modules(items: &[Item]) -> BTreeSet<String> {
    fn ends(tree: &UseTree, before: &str, found: &mut BTreeSet<String>) {
        match tree {
            UseTree::Path(tree) => ends(&tree.tree, &format!("{before}{}/", tree.ident), found),
            UseTree::Group(group) => group.items.iter().for_each(|tree| ends(tree, before, found)),
            UseTree::Name(tree) => _ = found.insert(format!("{before}{}", tree.ident)),
            UseTree::Rename(tree) => _ = found.insert(format!("{before}{}", tree.ident)),
            UseTree::Glob(_) => {}
        }
    }
    let mut found = BTreeSet::new();
    for item in items {
        match item {
            Item::Mod(item) if is_public(&item.vis) => _ = found.insert(item.ident.to_string()),
            Item::Use(item) if is_public(&item.vis) => ends(&item.tree, "", &mut found),
            _ => {}
        }
    }
    found
}

/// Whether an item says `pub`, without a restriction.
pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Adds what a module's items make public, those of its inline modules included.
fn collect<'a>(items: &[Item], path: &'a str, is_root: bool, found: &mut Vec<Public<'a>>) {
    for item in items {
        let ident = match item {
            Item::Use(item) if is_public(&item.vis) => {
                leaves(&item.tree, path, is_root, found);
                continue;
            }
            Item::Mod(item) if is_public(&item.vis) => {
                if let Some((_, items)) = &item.content {
                    collect(items, path, false, found);
                }
                continue;
            }
            Item::Const(item) if is_public(&item.vis) => &item.ident,
            Item::Enum(item) if is_public(&item.vis) => &item.ident,
            Item::Fn(item) if is_public(&item.vis) => &item.sig.ident,
            Item::Struct(item) if is_public(&item.vis) => &item.ident,
            Item::Trait(item) if is_public(&item.vis) => &item.ident,
            Item::Type(item) if is_public(&item.vis) => &item.ident,
            _ => continue,
        };
        let (name, line) = (ident.to_string(), ident.span().start().line);
        found.push(Public { name, path, line, is_root });
    }
}

/// Adds the names at the ends of a use tree; modules and crates aside.
fn leaves<'a>(tree: &UseTree, path: &'a str, is_root: bool, found: &mut Vec<Public<'a>>) {
    let ident = match tree {
        UseTree::Path(tree) => return leaves(&tree.tree, path, is_root, found),
        UseTree::Group(group) => {
            return group.items.iter().for_each(|tree| leaves(tree, path, is_root, found));
        }
        UseTree::Name(tree) => &tree.ident,
        UseTree::Rename(tree) => &tree.rename,
        UseTree::Glob(_) => return,
    };
    let name = ident.to_string();
    let is_item = name.contains(|c: char| c.is_uppercase() || c == '_');
    if is_item {
        found.push(Public { name, path, line: ident.span().start().line, is_root });
    }
}

/// The code of all examples: in the documentation, in documents, and example programs.
pub fn example_code(files: &[File], documents: &[Source]) -> String {
    let mut code = String::new();
    for file in files.iter().filter(|file| file.source.path.starts_with("host/src/")) {
        let comments = file.source.text.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
        });
        add_blocks(comments, &mut code);
    }
    let is_shown = |path: &str| path == "README.md" || path.starts_with("docs/guide/");
    for document in documents.iter().filter(|document| is_shown(&document.path)) {
        add_blocks(document.text.lines(), &mut code);
    }
    for file in files.iter().filter(|file| file.source.path.starts_with("host/examples/")) {
        code.push_str(&file.source.text);
    }
    code
}

/// Adds the lines of code blocks of Rust.
fn add_blocks<'a>(lines: impl Iterator<Item = &'a str>, code: &mut String) {
    let mut block: Option<bool> = None;
    for line in lines {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let is_rust = |language: &str| {
                let first = language.split(',').next().unwrap_or_default().trim();
                matches!(first, "" | "rust" | "no_run")
            };
            block = if block.is_some() { None } else { Some(is_rust(language)) };
        } else if block == Some(true) {
            code.push_str(line);
            code.push('\n');
        }
    }
}

/// Looks for public functions of many arguments.
struct Functions<'f> {
    path: &'f str,
    findings: &'f mut Vec<Finding>,
}

impl Functions<'_> {
    fn function(&mut self, signature: &Signature) {
        let n = signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).count();
        if n > ARGUMENTS {
            let name = &signature.ident;
            let message = format!(
                "`{name}` has {n} arguments, more than {ARGUMENTS}; make a type of some of them"
            );
            let (path, line) = (self.path.to_string(), name.span().start().line);
            self.findings.push(Finding { path, line, rule: Rule::Public, message });
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if is_public(&node.vis) {
            self.function(&node.sig);
        }
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if is_public(&node.vis) {
            self.function(&node.sig);
        }
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        if is_public(&node.vis) {
            for item in &node.items {
                if let syn::TraitItem::Fn(function) = item {
                    self.function(&function.sig);
                }
            }
        }
        visit::visit_item_trait(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// Messages of a tree of paths and texts.
    fn messages(tree: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = tree
            .iter()
            .map(|&(path, text)| Source { path: path.into(), text: text.into() })
            .collect();
        let files = parse::all(&sources).unwrap();
        check(&files, &sources).into_iter().map(|x| format!("{}: {}", x.line, x.message)).collect()
    }

    #[test]
    fn items_are_in_examples_of_rust() {
        let lib = "//! ```\n//! let x = Shown::new();\n//! ```\npub use a::{Shown, Hidden};\n";
        let text = "```text\nHidden\n```\n";
        let found = messages(&[(LIB, lib), ("README.md", text)]);
        assert_eq!(found, ["4: `Hidden` is in no example; use it in one"]);
        let text = "```rust\nuse maxsim::Hidden;\n```\n";
        assert!(messages(&[(LIB, lib), ("docs/guide/tour.md", text)]).is_empty());
        // Modules and crates are no items.
        assert!(messages(&[(LIB, "pub use half;\npub use ops::loss;\n")]).is_empty());
    }

    #[test]
    fn items_have_one_path_and_are_few_at_the_root() {
        let lib = "//! ```\n//! Twice\n//! ```\npub use a::Twice;\npub mod b {\n\
            pub use c::Twice;\n}\n";
        assert_eq!(messages(&[(LIB, lib)]), ["6: `Twice` is public in host/src/lib.rs:4, too"]);
        let names: Vec<String> = (0..=ROOT_ITEMS).map(|i| format!("T{i}")).collect();
        let list = names.join(", ");
        let lib = format!("//! ```\n//! {list}\n//! ```\npub use a::{{{list}}};\n");
        let found = messages(&[(LIB, &lib)]);
        assert_eq!(found, ["4: 21 items at the root, more than 20; put some into a module"]);
    }

    #[test]
    fn items_of_public_modules_are_the_librarys() {
        let item = "pub struct Hidden;\n";
        let found = |lib: &str, path: &str| messages(&[(LIB, lib), (path, item)]);
        let expected = ["1: `Hidden` is in no example; use it in one"];
        assert_eq!(found("pub mod plan;\n", "host/src/plan/mod.rs"), expected);
        assert_eq!(found("pub use ops::{loss, search};\n", "host/src/ops/loss.rs"), expected);
        assert!(found("mod plan;\n", "host/src/plan/mod.rs").is_empty());
        assert!(found("pub mod plan;\n", "host/src/plan/cost.rs").is_empty());
    }

    #[test]
    fn public_functions_have_few_arguments() {
        let six = "a: u8, b: u8, c: u8, d: u8, e: u8, f: u8";
        let method = format!("impl T {{ pub fn many(&self, {six}) {{}} }}\n");
        let expected = ["1: `many` has 6 arguments, more than 5; make a type of some of them"];
        assert_eq!(messages(&[("host/src/ops/mod.rs", &method)]), expected);
        assert!(messages(&[("host/src/cuda/mod.rs", &method)]).is_empty());
        let five = method.replace(", f: u8", "");
        assert!(messages(&[("host/src/ops/mod.rs", &five)]).is_empty());
        let provided = format!("pub trait T {{\n    fn many(&self, {six}) {{}}\n}}\n");
        assert_eq!(messages(&[("host/src/ops/mod.rs", &provided)]).len(), 1);
        let own = format!("impl T {{ pub(crate) fn many(&self, {six}) {{}} }}\n");
        assert!(messages(&[("host/src/ops/mod.rs", &own)]).is_empty());
    }
}
