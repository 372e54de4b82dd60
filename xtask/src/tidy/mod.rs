//! Checks the floor plan: layers of both crates, sizes of files, functions and lines, words of
//! comments, links of documents, and where the CPU and CUDA halves meet.
//!
//! Every finding has a rule, a file and a line. `allowed.txt` lists how many findings of a rule a
//! file may have until it is mended; a count there may only go down. A file that has fewer must
//! have its count lowered, which `cargo xtask tidy --lower` does.

mod allowed;
mod cycles;
mod documents;
mod imports;
mod layers;
mod methods;
mod modules;
mod parse;
mod public;
mod seam;
mod sizes;
#[cfg(test)]
mod tests;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use self::allowed::Allowed;
use self::tree::Source;

/// The table of exceptions, from the root of the workspace.
const ALLOWED: &str = "xtask/src/tidy/allowed.txt";

/// Rules that are checked. Names are those of the exceptions' table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// A file belongs to a room of its crate's layer table.
    Room,
    /// Imports go to lower layers alone.
    Layer,
    /// Rooms do not import each other in a circle.
    Cycle,
    /// A file has at most [`sizes::FILE`] lines.
    File,
    /// A function has at most [`sizes::FUNCTION`] lines.
    Function,
    /// A line has at most [`sizes::COLUMNS`] columns.
    Width,
    /// A folder has at most [`sizes::FOLDER`] source files.
    Folder,
    /// Comments use the words of the glossary.
    Word,
    /// At most [`seam::PLACES`] conditions on the feature `cuda`.
    Seam,
    /// Links of documents lead somewhere, and decisions are in their index.
    Document,
    /// Public items have one path, they and their functions an example, and functions few
    /// arguments.
    Public,
}

impl Rule {
    const ALL: [Self; 11] = [
        Self::Room,
        Self::Layer,
        Self::Cycle,
        Self::File,
        Self::Function,
        Self::Width,
        Self::Folder,
        Self::Word,
        Self::Seam,
        Self::Document,
        Self::Public,
    ];

    /// The rule's name in the exceptions' table.
    fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Layer => "layer",
            Self::Cycle => "cycle",
            Self::File => "file",
            Self::Function => "function",
            Self::Width => "width",
            Self::Folder => "folder",
            Self::Word => "word",
            Self::Seam => "seam",
            Self::Document => "document",
            Self::Public => "public",
        }
    }
}

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: Rule,
    /// Description of the fault, and how to mend it.
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Fails when the tree has more findings than are allowed, or fewer.
pub fn check(root: &Path) -> Result<()> {
    let (findings, n_files) = read_and_find(root)?;
    let allowed = Allowed::read(&root.join(ALLOWED))?;
    let wrong = allowed.compare(&findings);
    for line in &wrong {
        println!("{line}");
    }
    if !wrong.is_empty() {
        bail!("the tree is not tidy ({} lines above)", wrong.len());
    }
    println!("{n_files} files are tidy, but for {} findings in {ALLOWED}", findings.len());
    Ok(())
}

/// Lowers the counts of exceptions to what the tree has; fails where that would raise one.
pub fn lower(root: &Path) -> Result<()> {
    let (findings, _) = read_and_find(root)?;
    let path = root.join(ALLOWED);
    let lowered = Allowed::read(&path)?.lowered(&findings)?;
    lowered.write(&path)?;
    println!("{ALLOWED} has {} findings", lowered.total());
    Ok(())
}

/// The findings of the tree at `root`, and how many source files it has.
fn read_and_find(root: &Path) -> Result<(Vec<Finding>, usize)> {
    let sources = tree::read(root)?;
    let mut findings = find(&sources)?;
    findings.extend(documents::check(root)?);
    let documents = tree::read_ending(root, &[".md"])?;
    let files = parse::all(&sources)?;
    findings.extend(public::check(&files, &documents));
    findings.extend(methods::check(&files, &documents));
    findings.sort();
    Ok((findings, sources.len()))
}

/// All findings, in the order of files and lines.
fn find(sources: &[Source]) -> Result<Vec<Finding>> {
    let files = parse::all(sources)?;
    let mut findings = Vec::new();
    for table in layers::CRATES {
        if sources.iter().any(|source| source.path.starts_with(table.root)) {
            findings.extend(imports::check(table, &files)?);
        }
    }
    findings.extend(sizes::check(sources, &files));
    findings.extend(files.iter().flat_map(words::check));
    findings.extend(seam::check(&files)?);
    findings.sort();
    Ok(findings)
}
