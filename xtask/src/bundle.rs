//! `bundle`: tests, benchmark and tool in one folder, for a GPU machine without Rust.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::fingerprint::{of_cubins, of_ptx};

/// A profile of its own: release, less the link-time optimisation of every test executable.
const PROFILE: [&str; 3] = [
    "profile.bundle.inherits=\"release\"",
    "profile.bundle.lto=false",
    "profile.bundle.strip=\"symbols\"",
];

/// What the folder may weigh, so that it travels easily: 33 MB are embeddings.
const SIZE_LIMIT_BYTES: u64 = 44 << 20;

/// Tests that never ask for a GPU, and stay here.
const CPU_TESTS: [&str; 7] = [
    "plaid_indexes",
    "readers",
    "residual",
    "residual_errors",
    "residual_fidelity",
    "residual_files",
    "residual_gradients",
];

/// The packages whose tests travel, with their folder: the working folder of their tests.
const PACKAGES: [(&str, &str); 4] = [
    ("maxsim", "host"),
    ("maxsim-tests", "tests"),
    ("maxsim-cli", "cli"),
    ("maxsim-bench", "bench"),
];

/// Data beside the programs, from and to; what is not there is left out.
const DATA: [(&str, &str); 3] = [
    ("cli/examples/debian-packages", "cli/examples/debian-packages"),
    ("cli/tests/plaid", "cli/tests/plaid"),
    ("../shared/data/debian-packages", "data/debian-packages"),
];

/// The folder of the benchmark's scripts, here and there.
const SCRIPTS: &str = "bench";

/// An executable, or a library for other languages, that cargo built.
struct Program {
    package: String,
    /// Name of the file in the bundle.
    target: String,
    is_test: bool,
    path: PathBuf,
}

/// Builds everything and writes the folder anew.
pub fn run(root: &Path, out: &Path) -> Result<()> {
    let programs = build(root)?;
    remove_earlier(out)?;
    let mut tests = Vec::new();
    for program in &programs {
        let Some((_, package_dir)) = PACKAGES.iter().find(|(name, _)| *name == program.package)
        else {
            continue;
        };
        if !program.is_test {
            copy(&program.path, &out.join("bin").join(&program.target))?;
        } else if !CPU_TESTS.contains(&&*program.target) && has_tests(&program.path)? {
            let name = format!("{}-{}", program.package, program.target);
            let file = format!("programs/{name}");
            copy(&program.path, &out.join(&file))?;
            tests.push(json!({
                "name": name,
                "file": file,
                "package_dir": package_dir,
                // The tool's tests start other processes, which a sanitizer does not follow; the
                // benchmark's run on the CPU.
                "uses_gpu": !matches!(&*program.package, "maxsim-cli" | "maxsim-bench"),
            }));
        }
    }
    pack(out)?;
    for (from, to) in DATA {
        let from = root.join(from);
        if from.is_dir() {
            copy_dir(&from, &out.join(to))?;
        } else {
            println!("left out, since it is not there: {}", from.display());
        }
    }
    copy_scripts(&root.join(SCRIPTS), &out.join(SCRIPTS))?;
    let manifest = json!({
        "rustc": first_line("rustc", &["--version"])?,
        "commit": first_line("git", &["describe", "--always", "--dirty"]).ok(),
        "programs": tests,
        "ptx": of_ptx(root)?,
        "cubins": of_cubins(root)?,
    });
    fs::write(out.join("manifest.json"), format!("{manifest:#}\n"))?;
    fs::write(out.join("run"), include_str!("../bundle/run"))?;
    fs::set_permissions(out.join("run"), fs::Permissions::from_mode(0o755))?;

    let bytes = size_bytes(out)?;
    println!("{}: {} test programs, {} MB", out.display(), tests.len(), bytes >> 20);
    ensure!(
        bytes <= SIZE_LIMIT_BYTES,
        "{} has {bytes} bytes, more than the {SIZE_LIMIT_BYTES} allowed",
        out.display()
    );
    Ok(())
}

/// Removes the bundle that is there, and never a folder that only happens to have the name.
fn remove_earlier(out: &Path) -> Result<()> {
    if out.exists() {
        ensure!(
            out.join("manifest.json").is_file(),
            "{} is there and is no bundle; remove it or name another with --out",
            out.display()
        );
        fs::remove_dir_all(out).with_context(|| format!("removing {}", out.display()))?;
    }
    Ok(())
}

/// Puts the programs into one archive: nearly every one holds all the kernels, which the archive
/// holds once.
fn pack(out: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.current_dir(out).env("XZ_OPT", "-9");
    let status = tar.args(["-cJf", "programs.tar.xz", "bin", "programs"]).status();
    ensure!(status.context("running tar")?.success(), "tar could not pack the programs");
    fs::remove_dir_all(out.join("bin"))?;
    fs::remove_dir_all(out.join("programs"))?;
    Ok(())
}

/// Builds binaries and test executables: optimised, stripped.
fn build(root: &Path) -> Result<Vec<Program>> {
    let mut programs = executables(root, &["build", "--lib", "--bins"])?;
    let tests = executables(root, &["test", "--no-run", "--lib", "--bins", "--tests"])?;
    programs.extend(tests.into_iter().filter(|program| program.is_test));
    Ok(programs)
}

/// Runs cargo for the packages; the executables that it speaks of.
fn executables(root: &Path, command: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(command).stderr(Stdio::inherit());
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    cargo.args(["--profile", "bundle", "--message-format=json-render-diagnostics"]);
    for (package, _) in PACKAGES {
        cargo.args(["--package", package]);
    }
    let output = cargo.output().context("running cargo")?;
    ensure!(output.status.success(), "cargo {} failed", command.join(" "));
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("reading cargo's messages")?;
        programs.extend(program(&message));
    }
    Ok(programs)
}

/// Whether there is anything to run: cargo makes a test executable of every target.
fn has_tests(program: &Path) -> Result<bool> {
    let list = Command::new(program).args(["--list", "--format", "terse"]).output();
    let list = list.with_context(|| format!("running {}", program.display()))?;
    ensure!(list.status.success(), "{} --list failed", program.display());
    Ok(!list.stdout.is_empty())
}

/// The executable or shared library that a message of cargo's speaks of, if any.
fn program(message: &Value) -> Option<Program> {
    let package = package_name(message.get("package_id")?.as_str()?).to_string();
    let is_test = message["profile"]["test"].as_bool()?;
    if let Some(path) = message.get("executable")?.as_str() {
        let target = message["target"]["name"].as_str()?.to_string();
        return Some(Program { package, target, is_test, path: PathBuf::from(path) });
    }
    // Procedural macros are shared libraries too, which nobody loads but the compiler.
    let kinds = message["target"]["kind"].as_array()?;
    let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    let path = files.map(PathBuf::from).find(|path| path.extension().is_some_and(|e| e == "so"))?;
    let target = path.file_name()?.to_string_lossy().into_owned();
    kinds.iter().any(|kind| kind == "cdylib").then_some(Program { package, target, is_test, path })
}

/// The name in a package id such as `path+file:///src/cli#maxsim-cli@0.1.0`; where name and
/// folder are the same, cargo leaves the name out: `path+file:///src/maxsim#0.1.0`.
fn package_name(id: &str) -> &str {
    let (folder, name_and_version) = id.rsplit_once('#').unwrap_or(("", id));
    match name_and_version.split_once('@') {
        Some((name, _)) => name,
        None => folder.rsplit('/').next().unwrap_or(folder),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies the Python files of a folder.
fn copy_scripts(from: &Path, to: &Path) -> Result<()> {
    for file in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            copy(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    for file in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let file = file?;
        let to = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            copy_dir(&file.path(), &to)?;
        } else {
            copy(&file.path(), &to)?;
        }
    }
    Ok(())
}

fn size_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for file in fs::read_dir(dir)? {
        let file = file?;
        let metadata = file.metadata()?;
        bytes += if metadata.is_dir() { size_bytes(&file.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

fn first_line(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_string())?;
    ensure!(output.status.success(), "{program} {} failed", args.join(" "));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let message = json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///src/cli#maxsim-cli@0.1.0",
            "target": {"name": "rank"},
            "profile": {"test": true},
            "executable": "/target/release/deps/rank-1",
        });
        let read = program(&message).unwrap();
        assert_eq!((read.package.as_str(), read.target.as_str()), ("maxsim-cli", "rank"));
        assert!(read.is_test);
        let mut library = json!({
            "package_id": "path+file:///src/bench#maxsim-bench@0.1.0",
            "target": {"name": "maxsim_bench", "kind": ["cdylib", "rlib"]},
            "profile": {"test": false},
            "executable": null,
            "filenames": ["/target/libmaxsim_bench.rlib", "/target/libmaxsim_bench.so"],
        });
        assert_eq!(program(&library).unwrap().target, "libmaxsim_bench.so");
        library["target"]["kind"] = json!(["proc-macro"]);
        assert!(program(&library).is_none());
        assert!(program(&json!({"reason": "compiler-artifact", "executable": null})).is_none());
        assert!(program(&json!({"reason": "build-finished"})).is_none());
    }

    #[test]
    fn package_names_are_read_from_both_kinds_of_id() {
        assert_eq!(package_name("path+file:///src/cli#maxsim-cli@0.1.0"), "maxsim-cli");
        assert_eq!(package_name("path+file:///src/maxsim#0.1.0"), "maxsim");
    }
}
