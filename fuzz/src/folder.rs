//! A folder whose files an input fills.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder in memory where there is one, removed at the end.
pub struct Folder {
    folder: TempDir,
    /// What its files have in them: inputs come that differ in one from the last.
    files: RefCell<HashMap<String, Vec<u8>>>,
}

impl Folder {
    /// An empty folder.
    pub fn new() -> Folder {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        Folder {
            folder: folder.expect("a folder for the files of inputs"),
            files: RefCell::default(),
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file, in place of what it was.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        let mut files = self.files.borrow_mut();
        if files.get(name).is_none_or(|found| found != bytes) {
            fs::write(&path, bytes).expect("a file of an input");
            files.insert(name.to_owned(), bytes.to_owned());
        }
        path
    }

    /// Writes these files: parts of the input, which it divides by two bytes of lengths before each
    /// part. Files that it has no bytes for are removed.
    pub fn fill(&self, names: &[&str], mut input: &[u8]) {
        for name in names {
            let Some((&[low, high], rest)) = input.split_first_chunk() else {
                input = &[];
                if self.files.borrow_mut().remove(*name).is_some() {
                    fs::remove_file(self.path().join(name)).expect("a file of the last input");
                }
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
