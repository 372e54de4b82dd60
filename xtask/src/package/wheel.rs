//! Reads a wheel: a zip archive whose name says which interpreters and platforms it is for.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use zip::ZipArchive;

/// A wheel's name and files.
#[derive(Debug)]
pub struct Wheel {
    /// The name without its folder.
    pub name: String,
    pub version: String,
    /// `cp310-abi3`: the interpreters.
    pub interpreters: String,
    /// `manylinux_2_28_x86_64`: where it runs.
    pub platform: String,
    /// Bytes of the archive.
    pub n_bytes: u64,
    /// Paths in the archive, and what is there, in the order of the paths.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Wheel {
    pub fn read(path: &Path) -> Result<Wheel> {
        let failed = || format!("reading {}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).with_context(failed)?;
        let stem = name.strip_suffix(".whl").unwrap_or_default();
        let parts: Vec<&str> = stem.split('-').collect();
        let &[_, version, python, abi, platform] = &parts[..] else {
            anyhow::bail!("{name} is not named as wheels are: NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
        };
        let file = File::open(path).with_context(failed)?;
        let n_bytes = file.metadata().with_context(failed)?.len();
        let mut archive = ZipArchive::new(file).with_context(failed)?;
        let mut files = Vec::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).with_context(failed)?;
            if entry.is_dir() {
                continue;
            }
            let at = entry.name().with_context(failed)?.into_owned();
            ensure!(entry.enclosed_name().is_some(), "{name} holds {at}, outside of it");
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).with_context(failed)?;
            files.push((at, bytes));
        }
        files.sort();
        Ok(Wheel {
            name: name.to_string(),
            version: version.to_string(),
            interpreters: format!("{python}-{abi}"),
            platform: platform.to_string(),
            n_bytes,
            files,
        })
    }

    /// The file of this path.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(at, _)| at == path);
        found.map(|(_, bytes)| &bytes[..])
    }

    /// The newest C library that the platform `manylinux_X_Y_…` promises to need; `None` where the
    /// wheel is for no such platform.
    pub fn glibc(&self) -> Option<(u32, u32)> {
        let mut numbers = self.platform.strip_prefix("manylinux_")?.split('_');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// The processors that it is for: what the platform's name ends in.
    pub fn processor(&self) -> Option<&'static str> {
        ["x86_64", "aarch64"].into_iter().find(|name| self.platform.ends_with(&format!("_{name}")))
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// A wheel with all that one must have but its library.
    pub fn wheel(platform: &str) -> Wheel {
        let files = [
            "maxsim-0.1.0.dist-info/METADATA",
            "maxsim-0.1.0.dist-info/entry_points.txt",
            "maxsim-0.1.0.dist-info/licenses/LICENSE-APACHE",
            "maxsim-0.1.0.dist-info/licenses/LICENSE-MIT",
            "maxsim/__init__.py",
            "maxsim/__main__.py",
            "maxsim/_maxsim.abi3.so",
            "maxsim/_maxsim.pyi",
            "maxsim/py.typed",
        ];
        let of_path = |path: &str| (path.to_string(), path.as_bytes().to_vec());
        Wheel {
            name: format!("maxsim-0.1.0-cp310-abi3-{platform}.whl"),
            version: "0.1.0".into(),
            interpreters: "cp310-abi3".into(),
            platform: platform.into(),
            n_bytes: 1000,
            files: files.map(of_path).into(),
        }
    }

    #[test]
    fn a_wheel_is_read_as_it_was_written() {
        let wanted = wheel("manylinux_2_28_aarch64");
        let dir = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(&wanted.name);
        let mut archive = ZipWriter::new(File::create(&path).unwrap());
        for (path, bytes) in wanted.files.iter().rev() {
            archive.start_file(path, SimpleFileOptions::default()).unwrap();
            archive.write_all(bytes).unwrap();
        }
        archive.finish().unwrap();
        let found = Wheel::read(&path);
        let misnamed = dir.join("maxsim.whl");
        std::fs::rename(&path, &misnamed).unwrap();
        let refused = Wheel::read(&misnamed).expect_err("no name of a wheel").to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        let found = found.unwrap();
        assert_eq!(found.files, wanted.files);
        assert_eq!((&found.version, &found.platform), (&wanted.version, &wanted.platform));
        assert_eq!(found.interpreters, "cp310-abi3");
        assert!(refused.starts_with("maxsim.whl is not named as wheels are"), "{refused}");
    }

    #[test]
    fn a_platform_names_a_c_library_and_a_processor() {
        let of = |platform| {
            let wheel = wheel(platform);
            (wheel.glibc(), wheel.processor())
        };
        assert_eq!(of("manylinux_2_28_x86_64"), (Some((2, 28)), Some("x86_64")));
        assert_eq!(of("manylinux_2_36_aarch64"), (Some((2, 36)), Some("aarch64")));
        assert_eq!(of("linux_x86_64"), (None, Some("x86_64")));
        assert_eq!(of("win_amd64"), (None, None));
    }
}
