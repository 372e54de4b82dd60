//! Checks that the CPU and CUDA halves meet in few places: conditions on the feature `cuda`.
//!
//! Without the feature the CUDA half is a module of types without values, so that every arm is
//! type-checked in both builds; a condition elsewhere is code that one of them does not check.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::parse::File;
use super::{Finding, Rule};

/// Most conditions on the feature `cuda` in all Rust files of the workspace.
pub const PLACES: usize = 15;

/// The conditions that are too many, in the order of files and lines.
pub fn check(files: &[File]) -> Result<Vec<Finding>> {
    let mut places = Vec::new();
    for file in files {
        let path = &file.source.path;
        let tokens: TokenStream = file.source.text.parse().ok().with_context(|| path.clone())?;
        let mut lines = Vec::new();
        conditions(tokens, &mut lines);
        places.extend(lines.into_iter().map(|line| (path.clone(), line)));
    }
    places.sort();
    let n = places.len();
    let message = format!(
        "one of {n} conditions on the feature `cuda`, more than {PLACES}; give the types without \
         values in host/src/cuda/absent.rs what the CUDA half has"
    );
    let beyond = places.into_iter().skip(PLACES);
    Ok(beyond
        .map(|(path, line)| Finding { path, line, rule: Rule::Seam, message: message.clone() })
        .collect())
}

/// The lines of `feature = "cuda"`, within groups too. Comments and strings have none.
fn conditions(tokens: TokenStream, lines: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for token in &tokens {
        if let TokenTree::Group(group) = token {
            conditions(group.stream(), lines);
        }
    }
    for three in tokens.windows(3) {
        if let [TokenTree::Ident(name), TokenTree::Punct(equals), TokenTree::Literal(value)] = three
            && name == "feature"
            && equals.as_char() == '='
            && value.to_string() == "\"cuda\""
        {
            lines.push(name.span().start().line);
        }
    }
}
