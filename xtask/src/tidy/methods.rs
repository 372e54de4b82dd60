//! The functions and constants of the library's public types and traits, each used in an example.
//!
//! Found from the text alone: an `impl` of a public type's name is taken for that type's. A name
//! that one type's example uses counts for all types; what macros make is not looked at.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, TraitItem, Type};

use super::parse::File;
use super::public::{self, is_public};
use super::tree::Source;
use super::{Finding, Rule};

/// Findings in the library's files; `documents` may have examples, too.
pub fn check(files: &[File], documents: &[Source]) -> Vec<Finding> {
    let types = public::items(files).into_iter().map(|item| item.name).collect();
    let code = public::example_code(files, documents);
    let (used, mut findings) = (used(&code), Vec::new());
    for file in files.iter().filter(|file| public::may_be_public(&file.source.path)) {
        let path = &file.source.path;
        Methods { path, types: &types, used: &used, findings: &mut findings }
            .visit_file(&file.syntax);
    }
    findings
}

/// Names that examples call as methods, or reach by a path: `x.name(`, `x.name::<`, `X::name`.
fn used(code: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let mut rest = code;
    while let Some(start) = rest.find(['.', ':']) {
        let is_path = rest[start..].starts_with("::");
        rest = &rest[start + if is_path { 2 } else { 1 }..];
        let (word, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
        if is_path || after.starts_with('(') || after.starts_with("::") {
            found.insert(word);
        }
    }
    found
}

/// Looks for functions and constants that examples do not use.
struct Methods<'f> {
    path: &'f str,
    /// Names of public types and traits.
    types: &'f BTreeSet<String>,
    used: &'f BTreeSet<&'f str>,
    findings: &'f mut Vec<Finding>,
}

impl Methods<'_> {
    fn item(&mut self, of: &Ident, name: &Ident, attributes: &[Attribute]) {
        if self.used.contains(name.to_string().as_str()) || is_hidden(attributes) {
            return;
        }
        let message = format!("`{of}::{name}` is used in no example; use it in one");
        let (path, line) = (self.path.to_string(), name.span().start().line);
        self.findings.push(Finding { path, line, rule: Rule::Public, message });
    }
}

/// Whether rustdoc does not show an item.
fn is_hidden(attributes: &[Attribute]) -> bool {
    let hides = |attribute: &Attribute| {
        let list = attribute.meta.require_list().ok();
        list.is_some_and(|list| list.path.is_ident("doc") && list.tokens.to_string() == "hidden")
    };
    attributes.iter().any(hides)
}

impl<'ast> Visit<'ast> for Methods<'_> {
    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let Type::Path(of) = &*node.self_ty else { return };
        let of = of.path.segments.last().map(|segment| &segment.ident);
        let Some(of) = of.filter(|of| self.types.contains(&of.to_string())) else { return };
        if node.trait_.is_some() {
            return;
        }
        for item in &node.items {
            match item {
                ImplItem::Fn(item) if is_public(&item.vis) => {
                    self.item(of, &item.sig.ident, &item.attrs);
                }
                ImplItem::Const(item) if is_public(&item.vis) => {
                    self.item(of, &item.ident, &item.attrs);
                }
                _ => {}
            }
        }
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        if self.types.contains(&node.ident.to_string()) && is_public(&node.vis) {
            for item in &node.items {
                match item {
                    TraitItem::Fn(item) => self.item(&node.ident, &item.sig.ident, &item.attrs),
                    TraitItem::Const(item) => self.item(&node.ident, &item.ident, &item.attrs),
                    _ => {}
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

    /// Messages of a library that shows `example` and makes `T` public.
    fn messages(example: &str, text: &str) -> Vec<String> {
        let lib = format!("//! ```\n//! {example}\n//! ```\npub use ops::T;\n");
        let tree = [("host/src/lib.rs", lib.as_str()), ("host/src/ops/mod.rs", text)];
        let sources = tree.map(|(path, text)| Source { path: path.into(), text: text.into() });
        let files = parse::all(&sources).unwrap();
        check(&files, &[]).into_iter().map(|x| format!("{}: {}", x.line, x.message)).collect()
    }

    #[test]
    fn methods_are_used_in_examples() {
        let text = "impl<'a> T<'a> {\n    pub fn name(&self) {}\n    pub const MOST: u8 = 1;\n}\n";
        let said = |line, name| format!("{line}: `T::{name}` is used in no example; use it in one");
        assert_eq!(messages("name; MOST; x.name;", text), [said(2, "name"), said(3, "MOST")]);
        assert_eq!(messages("x.name(T::MOSTLY);", text), [said(3, "MOST")]);
        for example in ["x.name(T::MOST)", "x.name::<u8>(T::MOST)", "x.map(T::name)(T::MOST)"] {
            assert!(messages(example, text).is_empty(), "{example}");
        }
        let text = "pub trait T {\n    fn provided(&self) {}\n}\n";
        assert_eq!(messages("", text), [said(2, "provided")]);
    }

    #[test]
    fn what_is_not_public_needs_no_example() {
        for text in [
            "impl T { pub(crate) fn own() {} fn private() {} }",
            "impl Other { pub fn own() {} }",
            "impl Clone for T { fn clone(&self) -> T { T } }",
            "impl T { #[doc(hidden)] pub fn hidden() {} }",
            "trait T { fn private() {} }",
        ] {
            assert!(messages("", &format!("{text}\n")).is_empty(), "{text}");
        }
    }
}
