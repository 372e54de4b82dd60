//! `build-ptx`: the kernel crate compiled into `host/ptx`, a PTX file and its cubins per entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use maxsim_kernels::variants::Arch;

use crate::cubins;
use crate::device_rustc::DeviceRustc;
use crate::entries::{self, Entry};
use crate::fingerprint::ptx_dir;
use crate::ptx_text::{LaunchBounds, Module, offences};
use crate::ptxas::Ptxas;

/// The Rust file that lists the entries.
const INDEX: &str = "index.rs";

/// What the PTX and the cubins may weigh together: every program with the library carries them. The
/// forward kernels take 21.7 MB, of which those of codes 5.7 and those of residuals 3.3, and those
/// of gradients 3.9. So a row in the table is a decision.
const SIZE_LIMIT_BYTES: usize = 28 << 20;

/// File name to content.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What to generate besides the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cubins {
    /// Nothing: the cubins that are there are removed, since they may be of other PTX.
    Without,
    /// A cubin for every target of every entry.
    With,
}

/// Writes `host/ptx`, and removes what is no longer generated.
pub fn write(root: &Path, cubins: Cubins) -> Result<()> {
    let files = generate(root, cubins)?;
    let dir = ptx_dir(root);
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let changed = differences(&files, &committed(&dir)?);
    for name in &changed {
        let path = dir.join(name);
        match files.get(name) {
            Some(content) => fs::write(&path, content),
            None => fs::remove_file(&path),
        }
        .with_context(|| format!("updating {}", path.display()))?;
    }
    println!("host/ptx: {} files, {} changed", files.len(), changed.len());
    Ok(())
}

/// Fails when `host/ptx` is not what the sources compile to.
pub fn check(root: &Path) -> Result<()> {
    let files = generate(root, Cubins::With)?;
    let changed = differences(&files, &committed(&ptx_dir(root))?);
    ensure!(
        changed.is_empty(),
        "host/ptx is stale; run `cargo xtask build-ptx` and commit: {}",
        changed.into_iter().collect::<Vec<_>>().join(", ")
    );
    println!("host/ptx: {} files, all as compiled", files.len());
    Ok(())
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
    check_size(&files)?;
    let index = index(root, &entries, &files)?;
    files.insert(INDEX.to_string(), index.into_bytes());
    Ok(files)
}

fn check_size(files: &Files) -> Result<()> {
    let bytes: usize = files.values().map(Vec::len).sum();
    ensure!(
        bytes <= SIZE_LIMIT_BYTES,
        "PTX and cubins have {bytes} bytes, more than the {SIZE_LIMIT_BYTES} allowed: \
         take rows out of the variant table"
    );
    Ok(())
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
        let Entry { threads, blocks, tensor_maps, .. } = *row;
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

/// The list of entries as Rust source.
fn index(root: &Path, entries: &[Entry], files: &Files) -> Result<String> {
    let mut source = String::from(
        "// Generated by `cargo xtask build-ptx` from kernels-gpu: every entry with its modules.\n\
         \n\
         pub(super) static IMAGES: &[Image] = &[\n",
    );
    for entry in entries {
        let (name, ptx) = (entry.name, entry.ptx_file());
        source += &format!("Image {{ name: \"{name}\", ptx: include_str!(\"{ptx}\"), cubins: &[");
        for target in entries::cubin_targets(entry.arch) {
            let file = entry.cubin_file(target);
            if files.contains_key(&file) {
                let capability = target.capability;
                source += &format!(
                    "Cubin {{ capability: {capability:?}, bytes: include_bytes!(\"{file}\") }},"
                );
            }
        }
        source += "] },\n";
    }
    source += "];\n";
    formatted(root, &source)
}

fn formatted(root: &Path, source: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--config-path"])
        .arg(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running rustfmt")?;
    rustfmt.stdin.take().context("rustfmt takes no input")?.write_all(source.as_bytes())?;
    let output = rustfmt.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt failed on the generated {INDEX}");
    String::from_utf8(output.stdout).context("rustfmt's output is not UTF-8")
}

fn committed(dir: &Path) -> Result<Files> {
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

    #[test]
    fn what_weighs_too_much_is_refused() {
        let files = |bytes| [("a".to_string(), vec![0; bytes]), ("b".to_string(), vec![0])].into();
        assert!(check_size(&files(SIZE_LIMIT_BYTES - 1)).is_ok());
        assert!(check_size(&files(SIZE_LIMIT_BYTES)).is_err());
    }
}
