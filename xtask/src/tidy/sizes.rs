//! Sizes of files, functions, lines and folders.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::parse::File;
use super::tree::Source;
use super::{Finding, Rule};

/// Most lines of a file.
pub const FILE: usize = 500;
/// Most lines of a function, from its `fn` to its last brace.
pub const FUNCTION: usize = 80;
/// Most columns of a line.
pub const COLUMNS: usize = 100;
/// Most source files of a folder.
pub const FOLDER: usize = 15;

/// Findings of all sources.
pub fn check(sources: &[Source], files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        lines(source, &mut findings);
        if !source.path.ends_with(".toml") {
            let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            *folders.entry(folder).or_default() += 1;
        }
    }
    for (folder, n_files) in folders {
        // One finding for each file too many, so that a folder in the exceptions cannot grow.
        for _ in FOLDER..n_files {
            let message = format!(
                "{n_files} source files in one folder, more than {FOLDER}; group them in folders"
            );
            let path = format!("{folder}/");
            findings.push(Finding { path, line: 1, rule: Rule::Folder, message });
        }
    }
    for file in files {
        let mut functions = Functions { path: &file.source.path, findings: &mut findings };
        functions.visit_file(&file.syntax);
    }
    findings
}

/// The lines of a file: how long each is, and how many there are.
fn lines(source: &Source, findings: &mut Vec<Finding>) {
    let n_lines = source.text.lines().count();
    if n_lines > FILE {
        let message = format!("{n_lines} lines, more than {FILE}; split the file by topic");
        findings.push(Finding { path: source.path.clone(), line: 1, rule: Rule::File, message });
    }
    for (line, content) in (1..).zip(source.text.lines()) {
        let columns = content.chars().count();
        if columns > COLUMNS {
            let message = format!("{columns} columns, more than {COLUMNS}; wrap the line");
            findings.push(Finding { path: source.path.clone(), line, rule: Rule::Width, message });
        }
    }
}

/// Looks for long functions.
struct Functions<'f> {
    path: &'f str,
    findings: &'f mut Vec<Finding>,
}

impl Functions<'_> {
    fn function(&mut self, name: &str, start: Span, end: Span) {
        let (line, last) = (start.start().line, end.end().line);
        let n_lines = last + 1 - line;
        if n_lines > FUNCTION {
            let message = format!(
                "`{name}` has {n_lines} lines, more than {FUNCTION}; split it into steps with names"
            );
            let path = self.path.to_string();
            self.findings.push(Finding { path, line, rule: Rule::Function, message });
        }
    }

    /// Functions in what is given to a macro, or in what one is defined to become.
    fn scan(&mut self, tokens: TokenStream) {
        // The function whose body comes next.
        let mut open = None;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "fn" => {
                    // `fn name` or `fn $name`; a type `fn(..)` has none.
                    let name = match tokens.peek() {
                        Some(TokenTree::Ident(name)) => Some(name.to_string()),
                        Some(TokenTree::Punct(x)) if x.as_char() == '$' => Some("$".to_string()),
                        _ => None,
                    };
                    open = name.map(|name| (name, word.span()));
                }
                TokenTree::Punct(end) if end.as_char() == ';' => open = None,
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Brace
                        && let Some((name, start)) = open.take()
                    {
                        self.function(&name, start, group.span_close());
                    }
                    self.scan(group.stream());
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        let end = node.block.brace_token.span.close();
        self.function(&node.sig.ident.to_string(), node.sig.fn_token.span, end);
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        let end = node.block.brace_token.span.close();
        self.function(&node.sig.ident.to_string(), node.sig.fn_token.span, end);
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = &node.default {
            let end = block.brace_token.span.close();
            self.function(&node.sig.ident.to_string(), node.sig.fn_token.span, end);
        }
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.scan(node.tokens.clone());
    }
}
