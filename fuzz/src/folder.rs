//! A folder whose files an input fills.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder in memory where there is one, removed at the end.
pub struct Folder(TempDir);

impl Folder {
    /// An empty folder.
    pub fn new() -> Folder {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        Folder(folder.expect("a folder for the files of inputs"))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, in place of what it was.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, bytes).expect("a file of an input");
        path
    }

    /// Writes these files: parts of the input, which it divides by two bytes of lengths before each
    /// part. Files that it has no bytes for are removed.
    pub fn fill(&self, names: &[&str], mut input: &[u8]) {
        for name in names {
            let Some((&[low, high], rest)) = input.split_first_chunk() else {
                input = &[];
                let _ = fs::remove_file(self.path().join(name));
                continue;
            };
            let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
            let (part, rest) = rest.split_at(len);
            self.write(name, part);
            input = rest;
        }
    }
}

impl Default for Folder {
    fn default() -> Folder {
        Folder::new()
    }
}
