//! Remembers facts about files from run to run, as small files in a folder of the user's.
//!
//! The folder is `MAXSIM_CACHE_DIR`, or `maxsim` in `XDG_CACHE_HOME` or in `.cache` of the home
//! folder. It may be removed at any time: what it holds is found out again.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use twox_hash::XxHash3_128;

use crate::output::NewFile;

/// The first line of an entry.
const HEAD: &str = "maxsim remembers 1";

/// Most entries that are kept; beyond, the older half is removed.
const MAX_ENTRIES: usize = 4096;

/// Hexadecimal digits of an entry's name.
const NAME_LEN: usize = 32;

/// Folder of remembered results, if there is one.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's.
    pub fn of_user() -> Cache {
        let folder = |name: &str| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let own = folder("MAXSIM_CACHE_DIR");
        // A path that depends on the working folder is none, as XDG has it.
        let common = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let home = || folder("HOME").filter(|path| path.is_absolute());
        let common = || common.or_else(|| Some(home()?.join(".cache")));
        Cache { folder: own.or_else(|| Some(common()?.join("maxsim"))) }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.as_ref()?.join(name(key))).ok()?;
        let value = text.strip_prefix(&head(key))?.strip_suffix('\n')?;
        Some(value.to_owned())
    }

    /// Remembers the value of a key, in words of one line.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        let folder = self.folder.as_ref().context("neither MAXSIM_CACHE_DIR nor HOME is set")?;
        let write = || -> Result<()> {
            fs::create_dir_all(folder)?;
            thin_out(folder)?;
            let mut file = NewFile::create(&folder.join(name(key)))?;
            file.file().write_all(format!("{}{value}\n", head(key)).as_bytes())?;
            Ok(file.publish()?)
        };
        write().with_context(|| folder.display().to_string())
    }
}

/// The lines before a value.
fn head(key: &str) -> String {
    format!("{HEAD}\n{key}\n")
}

/// The name of a key's file.
fn name(key: &str) -> String {
    format!("{:0NAME_LEN$x}", XxHash3_128::oneshot(key.as_bytes()))
}

/// Removes the older half of too many entries.
fn thin_out(folder: &Path) -> io::Result<()> {
    // Keep other files: the user may have named the folder.
    let is_own = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let digits = name.to_str().filter(|name| name.len() == NAME_LEN);
        digits.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let entries: Vec<_> = fs::read_dir(folder)?.flatten().filter(is_own).collect();
    if entries.len() < MAX_ENTRIES {
        return Ok(());
    }
    let modified = |entry: &fs::DirEntry| entry.metadata().and_then(|found| found.modified()).ok();
    let mut by_age: Vec<_> = entries.iter().map(|entry| (modified(entry), entry.path())).collect();
    by_age.sort();
    for (_, path) in &by_age[..MAX_ENTRIES / 2] {
        // Another run may do the same.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_whole_and_of_its_key() {
        let folder = tempfile::TempDir::new().unwrap();
        let cache = Cache { folder: Some(folder.path().join("deep/cache")) };
        assert_eq!(cache.get("a"), None);
        cache.put("a", "1").unwrap();
        cache.put("b", "2").unwrap();
        cache.put("a", "3").unwrap();
        assert_eq!((cache.get("a").as_deref(), cache.get("b").as_deref()), (Some("3"), Some("2")));
        // An entry under another key, or cut off, counts as absent.
        let path = |key| folder.path().join("deep/cache").join(name(key));
        fs::copy(path("a"), path("c")).unwrap();
        assert_eq!(cache.get("c"), None);
        let text = fs::read_to_string(path("a")).unwrap();
        fs::write(path("a"), &text[..text.len() - 1]).unwrap();
        assert_eq!(cache.get("a"), None);
        assert!(Cache { folder: None }.put("a", "1").is_err());
        fs::write(folder.path().join("file"), "").unwrap();
        let wrong = Cache { folder: Some(folder.path().join("file/cache")) };
        assert!(wrong.put("a", "1").unwrap_err().to_string().contains("file/cache"));
    }
}
