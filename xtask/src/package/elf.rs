//! Reads what a shared library asks of the system, and what it offers.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, Sym};

/// The dynamic half of a shared library.
#[derive(Debug, Default, PartialEq)]
pub struct Library {
    /// `x86_64`, `aarch64`, or a number.
    pub machine: String,
    /// Names of the libraries that are loaded with it.
    pub needed: BTreeSet<String>,
    /// Names of the versions that its undefined symbols have: `GLIBC_2.17`.
    pub versions: BTreeSet<String>,
    /// Undefined symbols of no version that must be there: not weak ones.
    pub unversioned: BTreeSet<String>,
    /// Symbols that other libraries can link to.
    pub exported: BTreeSet<String>,
}

impl Library {
    pub fn read(bytes: &[u8]) -> Result<Library> {
        let header = FileHeader64::<Endianness>::parse(bytes).context("it is no ELF file")?;
        let endian = header.endian()?;
        let mut library = Library {
            machine: match header.e_machine(endian) {
                elf::EM_X86_64 => "x86_64".to_string(),
                elf::EM_AARCH64 => "aarch64".to_string(),
                other => format!("machine {other:?}"),
            },
            ..Library::default()
        };
        let sections = header.sections(endian, bytes)?;
        if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            for entry in entries {
                if entry.tag(endian) == elf::DT_NEEDED {
                    library.needed.insert(text(entry.string(endian, strings)?));
                }
            }
        }
        let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, bytes)?;
        for (index, symbol) in symbols.enumerate() {
            let name = text(symbols.symbol_name(endian, symbol)?);
            if symbol.is_undefined(endian) {
                let version = match &versions {
                    Some(all) => all.version(all.version_index(endian, index).index())?,
                    None => None,
                };
                match version {
                    Some(version) => _ = library.versions.insert(text(version.name())),
                    None if symbol.is_weak() || name.is_empty() => {}
                    None => _ = library.unversioned.insert(name),
                }
            } else if !symbol.is_local() {
                library.exported.insert(name);
            }
        }
        Ok(library)
    }

    /// The newest version `PREFIX_X.Y` that is asked for.
    pub fn newest(&self, prefix: &str) -> Option<(u32, u32)> {
        let numbers = self.versions.iter().filter_map(|name| {
            let mut numbers = name.strip_prefix(prefix)?.strip_prefix('_')?.split('.');
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        });
        numbers.max()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_is_read() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let library = Library::read(&program).unwrap();
        assert_eq!(library.machine, std::env::consts::ARCH);
        assert!(library.needed.contains("libc.so.6"), "{:?}", library.needed);
        let (major, minor) = library.newest("GLIBC").expect("it is linked with glibc");
        assert!(library.versions.contains(&format!("GLIBC_{major}.{minor}")));
        assert_eq!(library.newest("GLIBD"), None);
    }

    #[test]
    fn the_newest_version_is_so_by_numbers() {
        let versions = ["GLIBC_2.9", "GLIBC_2.28", "GLIBC_PRIVATE", "GCC_4.2.0"];
        let versions = versions.map(String::from).into();
        let library = Library { versions, ..Library::default() };
        assert_eq!(library.newest("GLIBC"), Some((2, 28)));
        assert_eq!(library.newest("GCC"), Some((4, 2)));
    }

    #[test]
    fn other_files_are_refused() {
        let error = Library::read(b"PK\x03\x04").expect_err("a zip archive");
        assert_eq!(error.to_string(), "it is no ELF file");
    }
}
