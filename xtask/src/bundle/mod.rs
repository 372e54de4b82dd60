//! `bundle`: tests, benchmark and tool in one folder, for a GPU machine without Rust.

mod choice;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

pub use choice::Choice;
use choice::Target;

use crate::fingerprint::{of_archive, of_cubins, of_ptx};

/// A profile of its own: release, less the link-time optimisation of every test executable.
const PROFILE: [&str; 3] = [
    "profile.bundle.inherits=\"release\"",
    "profile.bundle.lto=false",
    "profile.bundle.strip=\"symbols\"",
];

/// Largest size of the folder, so that it travels easily: 33 MB are embeddings.
const SIZE_LIMIT_BYTES: u64 = 56 << 20;

/// Tests that never ask for a GPU, and stay here.
const CPU_TESTS: [&str; 2] = ["readers", "exports"];

/// The packages whose tests travel, with their folder: the working folder of their tests.
const PACKAGES: [(&str, &str); 4] = [
    ("maxsim", "host"),
    ("maxsim-tests", "tests"),
    ("maxsim-cli", "cli"),
    ("maxsim-bench", "bench"),
];

/// Data beside the programs.
struct Data {
    /// In the checkout; what is not there is left out.
    from: &'static str,
    /// In the bundle.
    to: &'static str,
    is_embeddings: bool,
    /// Test programs that have nothing to run without it, or would fail.
    readers: &'static [&'static str],
}

const DATA: [Data; 3] = [
    Data {
        from: "cli/examples/debian-packages",
        to: "cli/examples/debian-packages",
        is_embeddings: true,
        readers: &["maxsim-cli-maxsim_cli", "maxsim-cli-sample", "maxsim-tests-training"],
    },
    Data {
        from: "cli/tests/plaid",
        to: "cli/tests/plaid",
        is_embeddings: false,
        readers: &["maxsim-cli-sample", "maxsim-cli-synthetic"],
    },
    Data {
        from: "../shared/data/debian-packages",
        to: "data/debian-packages",
        is_embeddings: true,
        // Tests that read it are skipped one by one.
        readers: &[],
    },
];

/// The folder of the benchmark's scripts, here and there.
const SCRIPTS: &str = "bench";

/// An executable, or a library for other languages, that cargo built.
pub struct Program {
    package: String,
    /// Name of the file in the bundle.
    pub target: String,
    pub is_test: bool,
    pub path: PathBuf,
}

impl Program {
    /// As in the manifest: `PACKAGE-TARGET` of tests, and the file's name of others.
    fn name(&self) -> String {
        match self.is_test {
            true => format!("{}-{}", self.package, self.target),
            false => self.target.clone(),
        }
    }
}

/// Builds what was chosen and writes the folder anew.
pub fn run(root: &Path, choice: &Choice) -> Result<()> {
    let out = &choice.out;
    let (targets, mut left_out) = choice.divide(choice::targets(root)?)?;
    let programs = build(root, &targets)?;
    remove_earlier(out)?;
    for folder in ["bin", "programs"] {
        fs::create_dir_all(out.join(folder))?;
    }
    let mut tests = Vec::new();
    for program in programs.iter().filter(|program| is_chosen(program, &targets)) {
        let Some((_, package_dir)) = PACKAGES.iter().find(|(name, _)| *name == program.package)
        else {
            continue;
        };
        if !program.is_test {
            copy(&program.path, &out.join("bin").join(&program.target))?;
        } else if has_tests(&program.path)? {
            let name = program.name();
            let file = format!("programs/{name}");
            copy(&program.path, &out.join(&file))?;
            let reads = |data: &&Data| data.readers.contains(&&*name);
            let needs: Vec<&str> = DATA.iter().filter(reads).map(|data| data.to).collect();
            tests.push(json!({
                "name": name,
                "file": file,
                "package_dir": package_dir,
                // The tool's tests start other processes, which a sanitizer does not follow; the
                // benchmark's run on the CPU.
                "uses_gpu": !matches!(&*program.package, "maxsim-cli" | "maxsim-bench"),
                "needs": needs,
            }));
        }
    }
    pack(out)?;
    for data in &DATA {
        let from = root.join(data.from);
        if (choice.embeddings || !data.is_embeddings) && from.is_dir() {
            copy_dir(&from, &out.join(data.to))?;
        } else {
            left_out.push(data.to.to_string());
        }
    }
    copy_scripts(&root.join(SCRIPTS), &out.join(SCRIPTS))?;
    let manifest = json!({
        "rustc": first_line("rustc", &["--version"])?,
        "commit": first_line("git", &["describe", "--always", "--dirty"]).ok(),
        "programs": tests,
        "left_out": left_out,
        "ptx": of_ptx(root)?,
        "cubins": of_cubins(root)?,
        "archive": of_archive(root)?,
    });
    fs::write(out.join("manifest.json"), format!("{manifest:#}\n"))?;
    fs::write(out.join("run"), include_str!("../../bundle/run"))?;
    fs::set_permissions(out.join("run"), fs::Permissions::from_mode(0o755))?;

    let bytes = size_bytes(out)?;
    if !left_out.is_empty() {
        println!("left out: {}", left_out.join(", "));
    }
    println!("{}: {} test programs, {} MB", out.display(), tests.len(), bytes >> 20);
    ensure!(
        bytes <= SIZE_LIMIT_BYTES,
        "{} has {bytes} bytes, more than the {SIZE_LIMIT_BYTES} allowed",
        out.display()
    );
    Ok(())
}

/// Whether a program that cargo built is one of the targets: it builds a package's binaries for
/// its tests, too.
fn is_chosen(program: &Program, targets: &[Target]) -> bool {
    let name = program.name();
    targets.iter().any(|target| target.is(&name, program.is_test))
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
fn build(root: &Path, targets: &[Target]) -> Result<Vec<Program>> {
    let [binaries, tests] = choice::cargo_options(targets);
    let mut programs = Vec::new();
    if !binaries.is_empty() {
        programs = executables(root, &["build"], &binaries)?;
    }
    if !tests.is_empty() {
        let tests = executables(root, &["test", "--no-run"], &tests)?;
        programs.extend(tests.into_iter().filter(|program| program.is_test));
    }
    Ok(programs)
}

/// Runs cargo for the packages; the executables that it speaks of.
fn executables(root: &Path, command: &[&str], targets: &[String]) -> Result<Vec<Program>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(command).args(targets);
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    cargo.args(["--profile", "bundle"]);
    for (package, _) in PACKAGES {
        cargo.args(["--package", package]);
    }
    built_by(&mut cargo)
}

/// Runs a command of cargo's that builds; the executables that it speaks of.
pub fn built_by(cargo: &mut Command) -> Result<Vec<Program>> {
    cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = cargo.output().context("running cargo")?;
    ensure!(output.status.success(), "{} failed: {cargo:?}", cargo.get_program().display());
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
    // Procedural macros are shared libraries too, which only the compiler loads.
    let kinds = message["target"]["kind"].as_array()?;
    let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    let path = files.map(PathBuf::from).find(|path| path.extension().is_some_and(|e| e == "so"))?;
    let target = path.file_name()?.to_string_lossy().into_owned();
    kinds.iter().any(|kind| kind == "cdylib").then_some(Program { package, target, is_test, path })
}

/// The name in a package id such as `path+file:///src/cli#maxsim-cli@0.1.0`; where name and
/// folder are the same, cargo omits the name: `path+file:///src/maxsim#0.1.0`.
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
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_scripts(&path, &to)?;
        } else if path.extension().is_some_and(|extension| extension == "py") {
            copy(&path, &to)?;
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

    /// Tests whose source reads the sample or the indexes are known to need them.
    #[test]
    fn readers_of_data_are_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = 0;
        for (package, folder) in [("maxsim-cli", "cli/tests"), ("maxsim-tests", "tests/tests")] {
            for (target, source) in programs(&root.join(folder)) {
                if CPU_TESTS.contains(&&*target) {
                    continue;
                }
                let name = format!("{package}-{target}");
                for (data, marks) in DATA
                    .iter()
                    .zip([&["sample(", "examples/debian-packages"][..], &["tests/plaid"]])
                {
                    if marks.iter().any(|mark| source.contains(mark)) {
                        assert!(data.readers.contains(&&*name), "{name} reads {}", data.to);
                        found += 1;
                    }
                }
            }
        }
        assert_eq!(found, 4);
    }

    /// Test programs of a folder and their source: files, and folders that have a `main.rs`.
    fn programs(folder: &Path) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let target = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut files = Vec::new();
            if path.join("main.rs").is_file() {
                rust_files(&path, &mut files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
            let source: String =
                files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
            if !source.is_empty() {
                found.push((target, source));
            }
        }
        found
    }

    fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                rust_files(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }

    #[test]
    fn package_names_are_read_from_both_kinds_of_id() {
        assert_eq!(package_name("path+file:///src/cli#maxsim-cli@0.1.0"), "maxsim-cli");
        assert_eq!(package_name("path+file:///src/maxsim#0.1.0"), "maxsim");
    }
}
