//! The source files of the tree.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Beginnings of paths that `build-ptx` and `page` write, not people.
const GENERATED: [&str; 2] = ["host/ptx/", "docs/guide/method.html"];
/// Ends of names of source files.
const ENDINGS: [&str; 8] = [".rs", ".py", ".sh", ".toml", "/run", ".js", ".ts", ".html"];

/// A file of source text.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the root of the workspace, with `/`.
    pub path: String,
    pub text: String,
}

/// Source files that git knows or would add, and does not ignore.
pub fn read(root: &Path) -> Result<Vec<Source>> {
    read_ending(root, &ENDINGS)
}

/// Reads the files whose names end in one of these ways.
pub fn read_ending(root: &Path, endings: &[&str]) -> Result<Vec<Source>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("running git ls-files, which says what belongs to the tree")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listed = String::from_utf8(output.stdout).context("git ls-files: not UTF-8")?;
    let mut paths: Vec<&str> =
        listed.split('\0').filter(|path| is_written(path, endings)).collect();
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

/// Whether a path is that of a file with such an ending which people write.
fn is_written(path: &str, endings: &[&str]) -> bool {
    let is_generated = GENERATED.iter().any(|beginning| path.starts_with(beginning));
    !is_generated && endings.iter().any(|ending| path.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_pages_are_source_files() {
        let paths = ["wasm/tests/a.js", "wasm/tests/a.ts", "a.html", ".ci/run", "host/ptx/a.rs"];
        assert_eq!(paths.map(|path| is_written(path, &ENDINGS)), [true, true, true, true, false]);
    }
}
