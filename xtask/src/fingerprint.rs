//! SHA-256 of the committed PTX and cubins: what ties a recorded GPU run to the files that ran.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::archive;

/// The folder of the generated PTX, for readers.
pub fn ptx_dir(root: &Path) -> PathBuf {
    root.join("host/ptx")
}

/// SHA-256 of some bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of every PTX file that programs are linked with, by file name.
pub fn of_ptx(root: &Path) -> Result<BTreeMap<String, String>> {
    of_files(root, ".ptx")
}

/// SHA-256 of every cubin that programs are linked with, by file name.
pub fn of_cubins(root: &Path) -> Result<BTreeMap<String, String>> {
    of_files(root, ".cubin")
}

/// SHA-256 of the archive that programs are linked with, by its path. What it holds is compared by
/// the sums of its files: this one says which archive a recorded run had.
pub fn of_archive(root: &Path) -> Result<BTreeMap<String, String>> {
    let bytes = fs::read(archive::path(root))?;
    Ok(BTreeMap::from([(archive::PLACE.into(), sha256(&bytes))]))
}

/// The sums are those of the unpacked files: how they are compressed does not make a run stale.
fn of_files(root: &Path, ending: &str) -> Result<BTreeMap<String, String>> {
    let files = archive::committed(root)?.into_iter();
    Ok(files
        .filter(|(name, _)| name.ends_with(ending))
        .map(|(name, bytes)| (name, sha256(&bytes)))
        .collect())
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
