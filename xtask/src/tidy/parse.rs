//! Rust files as syntax trees, and their comments.

use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::tree::Source;

/// A parsed Rust file.
pub struct File<'a> {
    pub source: &'a Source,
    pub syntax: syn::File,
}

/// Parses the Rust files among the sources.
pub fn all(sources: &[Source]) -> Result<Vec<File<'_>>> {
    let rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
    rust.map(|source| {
        let syntax = syn::parse_file(&source.text).with_context(|| source.path.clone())?;
        Ok(File { source, syntax })
    })
    .collect()
}

/// Lines of comments, from line 1: of every line the text that is in comments, doc comments
/// included, and the empty string where there is none.
///
/// What the lexer makes no token of is space or a comment; tokens of doc comments have spans that
/// begin with the comment's own signs.
pub fn comment_lines(text: &str) -> Result<Vec<String>> {
    let tokens: TokenStream =
        text.parse().map_err(|error| anyhow::anyhow!("cannot be split into tokens: {error}"))?;
    let mut code = vec![false; text.len()];
    // Spans of a text that was parsed alone count bytes or characters, by version: lines and
    // columns are certain.
    let starts = line_starts(text);
    mark(tokens, text, &starts, &mut code);
    let lines = text.lines().enumerate().map(|(line, content)| {
        let start = starts[line];
        let kept = content.char_indices().filter(|&(at, _)| !code[start + at]);
        kept.map(|(_, character)| character).collect::<String>().trim().to_string()
    });
    Ok(lines.collect())
}

/// Marks the bytes of tokens that are no comments.
fn mark(tokens: TokenStream, text: &str, starts: &[usize], code: &mut [bool]) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                for span in [group.span_open(), group.span_close()] {
                    mark_range(bytes(span, text, starts), text, code);
                }
                mark(group.stream(), text, starts, code);
            }
            other => mark_range(bytes(other.span(), text, starts), text, code),
        }
    }
}

fn mark_range(range: Range<usize>, text: &str, code: &mut [bool]) {
    let token = &text[range.clone()];
    if !token.starts_with("//") && !token.starts_with("/*") {
        code[range].fill(true);
    }
}

/// Bytes at which lines begin.
fn line_starts(text: &str) -> Vec<usize> {
    let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(after_breaks).collect()
}

/// The bytes of a span.
fn bytes(span: proc_macro2::Span, text: &str, starts: &[usize]) -> Range<usize> {
    let at = |place: proc_macro2::LineColumn| {
        let start = starts[place.line - 1];
        let mut characters = text[start..].char_indices();
        characters.nth(place.column).map_or(text.len(), |(offset, _)| start + offset)
    };
    at(span.start())..at(span.end())
}

/// Whether attributes say that an item is compiled for tests alone.
pub fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        attribute.path().is_ident("cfg") && requires_test(list.tokens.clone())
    })
}

/// Whether a `cfg` predicate holds in tests alone: `test`, or `all(..)` that has it.
fn requires_test(predicate: TokenStream) -> bool {
    let mut tokens = predicate.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(name) = token else { continue };
        if name == "test" {
            return true;
        }
        if let Some(TokenTree::Group(inner)) = tokens.peek() {
            if name == "all" && requires_test(inner.stream()) {
                return true;
            }
            tokens.next();
        }
    }
    false
}
