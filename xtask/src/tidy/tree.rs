//! The source files of the tree.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Written by `build-ptx`, not by hand.
const GENERATED: &str = "host/ptx/";
/// Ends of names of source files.
const ENDINGS: [&str; 5] = [".rs", ".py", ".sh", ".toml", "/run"];

/// A file of source text.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the root of the workspace, with `/`.
    pub path: String,
    pub text: String,
}

/// Source files that git knows or would add; what git ignores is left out.
pub fn read(root: &Path) -> Result<Vec<Source>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("running git ls-files, which says what belongs to the tree")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listed = String::from_utf8(output.stdout).context("git ls-files: not UTF-8")?;
    let mut paths: Vec<&str> = listed.split('\0').filter(|path| is_source(path)).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut sources = Vec::with_capacity(paths.len());
    for path in paths {
        // A file that is deleted and not yet committed so is listed still.
        let file = root.join(path);
        if !file.is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| path.to_string())?;
        sources.push(Source { path: path.to_string(), text });
    }
    Ok(sources)
}

/// Whether a path is that of a source file which people write.
fn is_source(path: &str) -> bool {
    !path.starts_with(GENERATED) && ENDINGS.iter().any(|ending| path.ends_with(ending))
}
