//! `build-ptx`: compiles the kernel crate into a PTX file per entry, which `host/ptx` has for
//! readers, and assembles them; the archive that programs are linked with has both, compressed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::table::Resources;

use crate::archive;
use crate::cubins;
use crate::device_rustc::DeviceRustc;
use crate::entries;
use crate::fingerprint::ptx_dir;
use crate::ptx_text::{LaunchBounds, Module, offences};
use crate::ptxas::Ptxas;

/// File name to content.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Cubins to generate besides the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cubins {
    /// None: existing cubins are removed, since they may be of other PTX.
    Without,
    /// A cubin for every target of every entry.
    With,
}

/// Writes the archive and `host/ptx`, and removes what is no longer generated.
pub fn write(root: &Path, cubins: Cubins) -> Result<()> {
    let files = generate(root, cubins)?;
    let packed = archive::pack(&files)?;
    let dir = ptx_dir(root);
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let text: Files = files.iter().filter(|(name, _)| is_ptx(name)).map(copy_of).collect();
    for name in differences(&text, &committed_text(&dir)?) {
        let path = dir.join(&name);
        match text.get(&name) {
            Some(content) => fs::write(&path, content),
            None => fs::remove_file(&path),
        }
        .with_context(|| format!("updating {}", path.display()))?;
    }
    // If there is no archive, or one of another form, all files are new.
    let changed = differences(&files, &archive::committed(root).unwrap_or_default());
    let path = archive::path(root);
    let folder = path.parent().unwrap_or(root);
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    if fs::read(&path).ok().as_ref() != Some(&packed) {
        fs::write(&path, &packed).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{} kernel files, {} changed; {}", files.len(), changed.len(), sizes(&files, &packed));
    Ok(())
}

/// Fails when the archive or `host/ptx` is not what the sources compile to.
pub fn check(root: &Path) -> Result<()> {
    let files = generate(root, Cubins::With)?;
    let mut changed = differences(&files, &archive::committed(root)?);
    changed.extend(texts_that_differ(root)?);
    ensure!(
        changed.is_empty(),
        "kernels are stale; run `cargo xtask build-ptx` and commit: {}",
        changed.into_iter().collect::<Vec<_>>().join(", ")
    );
    let packed = archive::pack(&files)?;
    ensure!(
        fs::read(archive::path(root))? == packed,
        "{} has the right kernels in other bytes; run `cargo xtask build-ptx` and commit",
        archive::path(root).display()
    );
    println!("{} kernel files, all as compiled; {}", files.len(), sizes(&files, &packed));
    Ok(())
}

fn sizes(files: &Files, packed: &[u8]) -> String {
    let n_bytes: usize = files.values().map(Vec::len).sum();
    format!("{n_bytes} bytes, compressed to {}", packed.len())
}

fn is_ptx(name: &str) -> bool {
    name.ends_with(".ptx")
}

fn copy_of((name, content): (&String, &Vec<u8>)) -> (String, Vec<u8>) {
    (name.clone(), content.clone())
}

/// Files of `host/ptx` that are not the texts of the archive, and texts that are not there.
pub fn texts_that_differ(root: &Path) -> Result<BTreeSet<String>> {
    let mut linked = archive::committed(root)?;
    linked.retain(|name, _| is_ptx(name));
    Ok(differences(&linked, &committed_text(&ptx_dir(root))?))
}

/// Runs clippy over the code that `cargo clippy` does not see: it compiles for the GPU alone.
pub fn lint(root: &Path) -> Result<()> {
    let rustc = DeviceRustc::new(root)?;
    entries::ARCHS.into_iter().try_for_each(|arch| rustc.lint(arch))?;
    println!("kernels-gpu: no lints for the GPU");
    Ok(())
}

fn generate(root: &Path, cubins: Cubins) -> Result<Files> {
    // Before the compilation, which takes longer than to find that there is no assembler.
    let ptxas = match cubins {
        Cubins::Without => None,
        Cubins::With => {
            Some(Ptxas::pinned(root).context("no cubins (`--ptx-only` builds the PTX alone)")?)
        }
    };
    let rustc = &DeviceRustc::new(root)?;
    // The two compilations are independent and take about as long.
    let compiled = std::thread::scope(|scope| {
        let running = entries::ARCHS.map(|arch| scope.spawn(move || files_of(rustc, arch)));
        running.map(|thread| thread.join())
    });
    let mut files = Files::new();
    for result in compiled {
        match result {
            Ok(compiled) => files.extend(compiled?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let entries = entries::all();
    if let Some(ptxas) = ptxas {
        let cubins = cubins::assemble(root, &ptxas, &entries, &files)?;
        files.extend(cubins);
    }
    Ok(files)
}

fn files_of(rustc: &DeviceRustc, arch: Arch) -> Result<Files> {
    let target = arch.target();
    let module = Module::parse(&rustc.ptx(arch)?).with_context(|| format!("PTX for {target}"))?;
    let wanted = entries::of(arch);
    let names = |missing_from: &[&str], of: Vec<&str>| {
        of.into_iter().filter(|name| !missing_from.contains(name)).collect::<Vec<_>>().join(", ")
    };
    let in_table: Vec<&str> = wanted.iter().map(|entry| entry.name).collect();
    let in_module: Vec<&str> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
    let missing = names(&in_module, in_table.clone());
    let extra = names(&in_table, in_module);
    ensure!(missing.is_empty(), "{target}: the table's entries are not in the PTX: {missing}");
    ensure!(extra.is_empty(), "{target}: the PTX has entries that the table lacks: {extra}");

    let mut files = Files::new();
    for compiled in &module.entries {
        let row = wanted.iter().find(|row| row.name == compiled.name);
        let row = row.context("an entry left the table")?;
        let Resources { threads, blocks, tensor_maps, .. } = **row;
        let bounds = LaunchBounds { threads, blocks, tensor_maps };
        let text = module.file_of(compiled, bounds)?;
        if let [first, rest @ ..] = &offences(&text)[..] {
            bail!("{}: {first} (and {} more such lines)", row.name, rest.len());
        }
        files.insert(row.ptx_file(), format!("{PTX_NOTICE}{text}").into_bytes());
    }
    Ok(files)
}

const PTX_NOTICE: &str = "// Generated by `cargo xtask build-ptx` from kernels-gpu.\n";

/// The files of `host/ptx`.
fn committed_text(dir: &Path) -> Result<Files> {
    let mut files = Files::new();
    if dir.is_dir() {
        for file in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let file = file?;
            let bytes = fs::read(file.path())
                .with_context(|| format!("reading {}", file.path().display()))?;
            let name = file.file_name().to_string_lossy().into_owned();
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

/// Names of the files that only one side has, or that differ.
fn differences(generated: &Files, committed: &Files) -> BTreeSet<String> {
    let names = generated.keys().chain(committed.keys());
    names.filter(|name| generated.get(*name) != committed.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_changed_missing_and_extra_files() {
        let files = |pairs: &[(&str, &str)]| {
            let file = |(name, text): &(&str, &str)| (name.to_string(), text.as_bytes().to_vec());
            pairs.iter().map(file).collect::<Files>()
        };
        let generated = files(&[("same", "1"), ("changed", "1"), ("missing", "1")]);
        let committed = files(&[("same", "1"), ("changed", "2"), ("extra", "1")]);
        let named: Vec<String> = differences(&generated, &committed).into_iter().collect();
        assert_eq!(named, ["changed", "extra", "missing"]);
    }

    /// The committed text, which readers see, is the one that programs are linked with.
    #[test]
    fn the_committed_text_is_that_of_the_archive() {
        let differ = texts_that_differ(&crate::workspace_root()).unwrap();
        assert!(differ.is_empty(), "{differ:?}");
    }
}
