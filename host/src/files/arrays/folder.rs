//! Token embeddings in a folder of `.npy` files: tensors by the files' names, or an item each.

use std::path::{Path, PathBuf};

use super::MAX_HEADER_BYTES;
use crate::files::bytes::FileBytes;
use crate::files::error::{Context, Message, Result, ensure};
use crate::files::items::Beside;
use crate::files::npy;
use crate::files::options::FileOptions;
use crate::files::tensors::Listed;
use crate::files::token_file::Opened;

/// Opens the files of a folder. Those of items are read into memory one after the other; embeddings
/// of one file are mapped like any other.
pub(in crate::files) fn open(
    folder: &Path,
    options: &FileOptions,
    files: &[Beside<'_>],
) -> Result<Opened> {
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
    let read = |i: usize| FileBytes::open(&paths[i], options.is_mapped);
    let opened = super::open(&arrays, options, files, read)?;
    let warnings = others.first().map(|first| {
        let n = others.len();
        let files = if n == 1 { "file that is" } else { "files that are" };
        let text = format!("{n} {files} not .npy, the first `{}`: not read", named(first));
        Message::new(text, None)
    });
    Ok(Opened { sources: paths, warnings: warnings.into_iter().collect(), ..opened })
}

fn listed(path: &Path) -> Result<Listed> {
    let listed = || -> Result<Listed> {
        let head = FileBytes::head(path, MAX_HEADER_BYTES)?;
        let (header, _) = npy::array(&head)?;
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
