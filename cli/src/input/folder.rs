//! Token embeddings in a folder of `.npy` files: tensors by the files' names, or an item each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::tensors::Listed;
use super::{Beside, FileBytes, InputOptions, Opened, Reading, arrays, npy};
use crate::texts::counted;

/// Opens the files of a folder. Those of items are read into memory one after the other; embeddings
/// of one file are mapped like any other.
pub(super) fn open(folder: &Path, options: &InputOptions, files: &[Beside<'_>]) -> Result<Opened> {
    let has = |name: &str| folder.join(name).exists();
    ensure!(
        !(has("metadata.json") && (has("centroids.npy") || has("centroids.pt"))),
        "the folder is an index; `maxsim quantize --format plaid --index` brings it into one file"
    );
    let (mut paths, mut others) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_npy = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy"));
        if !name.starts_with('.') {
            if is_npy { paths.push(path) } else { others.push(path) }
        }
    }
    // Folders list their files in any order.
    paths.sort();
    others.sort();
    let arrays: Vec<Listed> = paths.iter().map(|path| listed(path)).collect::<Result<_>>()?;
    let read = |i: usize| FileBytes::open(&paths[i], options.reading);
    let opened = arrays::open(&arrays, options, files, read)?;
    let warnings = others.first().map(|first| {
        let n = counted(others.len() as u64, "file that is", "files that are");
        format!("{n} not .npy, the first `{}`: not read", named(first))
    });
    Ok(Opened { sources: paths, warnings: warnings.into_iter().collect(), ..opened })
}

fn listed(path: &Path) -> Result<Listed> {
    let listed = || -> Result<Listed> {
        // Mapped: only the header's pages come in.
        let bytes = FileBytes::open(path, Reading::Map)?;
        let (header, _) = npy::array(&bytes)?;
        let dtype = header.dtype();
        Ok(Listed { name: stem(path), dtype, shape: header.shape })
    };
    listed().with_context(|| named(path))
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn named(path: &Path) -> String {
    PathBuf::from(path.file_name().unwrap_or_default()).display().to_string()
}
