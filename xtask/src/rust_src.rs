//! Finds the source of the standard library, from which `core` is built for the GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::fingerprint::sha256;

const VARIABLE: &str = "MAXSIM_RUST_SRC";

/// The folder `library/` of the pinned toolchain's source.
///
/// `MAXSIM_RUST_SRC` wins where it is set; otherwise the component rust-src is used, and added
/// when it is missing. Unpacked archives go below `cache`.
pub fn library(cache: &Path) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return from_variable(Path::new(&named), cache);
    }
    let component = component_dir()?;
    if !holds_core(&component) {
        eprintln!("the component rust-src is missing: adding it with rustup");
        let added = Command::new("rustup").args(["component", "add", "rust-src"]).status();
        if !added.is_ok_and(|status| status.success()) || !holds_core(&component) {
            bail!(
                "the source of the standard library is not at {}, and `rustup component add \
                 rust-src` did not put it there; run that command where rustup's server can be \
                 reached, or set {VARIABLE} to the `library` folder of this toolchain's rust-src \
                 (or to a .tar.xz of it)",
                component.display()
            );
        }
    }
    Ok(component)
}

fn component_dir() -> Result<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    ensure!(sysroot.status.success(), "`rustc --print sysroot` failed");
    let sysroot = String::from_utf8(sysroot.stdout).context("the sysroot's path is not UTF-8")?;
    Ok(Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust/library"))
}

fn from_variable(named: &Path, cache: &Path) -> Result<PathBuf> {
    let candidates = if named.is_dir() {
        [named.to_path_buf(), named.join("library")]
    } else {
        let unpacked = unpack(named, cache)?;
        [unpacked.join("library"), unpacked]
    };
    candidates.into_iter().find(|dir| holds_core(dir)).with_context(|| {
        format!(
            "{VARIABLE} is {}, which holds no core/src/lib.rs: it must name the standard \
             library's `library` folder or a .tar.xz of it",
            named.display()
        )
    })
}

fn holds_core(library: &Path) -> bool {
    library.join("core/src/lib.rs").is_file()
}

/// Unpacks an archive once; the folder is named by its content.
fn unpack(archive: &Path, cache: &Path) -> Result<PathBuf> {
    let bytes = fs::read(archive)
        .with_context(|| format!("{VARIABLE} names {}, which is unreadable", archive.display()))?;
    let unpacked = cache.join(format!("rust-src-{}", &sha256(&bytes)[..16]));
    if !unpacked.is_dir() {
        let partial = cache.join(format!("rust-src-{}.partial", std::process::id()));
        fs::create_dir_all(&partial)?;
        let status = Command::new("tar")
            .arg("xJf")
            .arg(archive)
            .arg("-C")
            .arg(&partial)
            .status()
            .context("running tar")?;
        ensure!(status.success(), "tar could not unpack {}", archive.display());
        fs::rename(&partial, &unpacked)?;
    }
    Ok(unpacked)
}
