//! SHA-256 of the committed PTX and cubins: what ties a recorded GPU run to the files that ran.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The folder of the generated PTX and cubins.
pub fn ptx_dir(root: &Path) -> PathBuf {
    root.join("host/ptx")
}

/// SHA-256 of some bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of every `host/ptx/*.ptx` by file name.
pub fn of_ptx(root: &Path) -> Result<BTreeMap<String, String>> {
    of_files(root, "ptx")
}

/// SHA-256 of every `host/ptx/*.cubin` by file name.
pub fn of_cubins(root: &Path) -> Result<BTreeMap<String, String>> {
    of_files(root, "cubin")
}

fn of_files(root: &Path, wanted: &str) -> Result<BTreeMap<String, String>> {
    let dir = ptx_dir(root);
    let mut sums = BTreeMap::new();
    for file in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == wanted) {
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sums.insert(name, sha256(&bytes));
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sha256_of_the_empty_string() {
        assert_eq!(
            super::sha256(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
