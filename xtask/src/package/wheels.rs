//! Builds the wheels of a release with zig's linker, which links for an old C library and for
//! other processors, and checks wheels.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::wheel::Wheel;
use super::{GLIBC, below_target, rules, shown};

/// What a release has wheels for.
const TARGETS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The linker and its version. The builder is that of the package's own checks.
const ZIG: &str = include_str!("../../zig.txt");
const REQUIREMENTS: &str = include_str!("../../../python/requirements.txt");
/// What the folder says of the wheels in it.
const RECORD: &str = "wheels.json";

/// What `cargo xtask wheels` is asked to do.
#[derive(Debug, PartialEq)]
pub enum Asked {
    /// To build them into a folder.
    Build { out: PathBuf, targets: Vec<String> },
    /// To look at some that are there.
    Check(Vec<PathBuf>),
}

impl Asked {
    /// Reads the options; `root` has the folder where none is named.
    pub fn parse(root: &Path, words: &[&str]) -> Result<Asked> {
        if let ["--check", files @ ..] = words {
            ensure!(!files.is_empty(), "wheels --check needs the wheels' names");
            return Ok(Asked::Check(files.iter().map(PathBuf::from).collect()));
        }
        let mut out = below_target(root, "release-wheels");
        let mut targets = Vec::new();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word {
                "--out" => out = PathBuf::from(value()?),
                "--target" => {
                    let target = *value()?;
                    ensure!(
                        TARGETS.contains(&target),
                        "--target {target}: expected {}",
                        TARGETS.join(" or ")
                    );
                    targets.push(target.to_string());
                }
                _ => bail!("wheels {word}: expected --out, --target or --check"),
            }
        }
        if targets.is_empty() {
            targets = TARGETS.iter().map(ToString::to_string).collect();
        }
        Ok(Asked::Build { out, targets })
    }
}

/// Builds or checks wheels.
pub fn run(root: &Path, asked: &Asked) -> Result<()> {
    match asked {
        Asked::Check(files) => files.iter().try_for_each(|file| {
            check(root, file, &[])?;
            Ok(())
        }),
        Asked::Build { out, targets } => {
            let tools = tools(root)?;
            // What an earlier version left would be taken for one of these.
            if out.is_dir() {
                fs::remove_dir_all(out).with_context(|| format!("removing {}", out.display()))?;
            }
            for target in targets {
                build(root, &tools, target, out)?;
            }
            let found = fs::read_dir(out).with_context(|| format!("reading {}", out.display()))?;
            let mut wheels: Vec<PathBuf> =
                found.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
            wheels.sort();
            ensure!(wheels.len() == targets.len(), "{} wheels were built", wheels.len());
            let strangers = rules::strangers(root);
            let platform = platform();
            let of_wheel = |path: &PathBuf| {
                let named = path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains(&format!("-{platform}_")));
                ensure!(named, "{} is not for {platform}", path.display());
                check(root, path, &strangers)
            };
            let rows: Vec<Value> = wheels.iter().map(of_wheel).collect::<Result<_>>()?;
            let record = json!({ "built_with": versions()?, "wheels": rows });
            let record = serde_json::to_string_pretty(&record)? + "\n";
            fs::write(out.join(RECORD), record).with_context(|| format!("writing {RECORD}"))
        }
    }
}

/// Reads a wheel, checks it and says what it is, to readers and as the row of a record.
fn check(root: &Path, path: &Path, strangers: &[String]) -> Result<Value> {
    let wheel = Wheel::read(path)?;
    let found = rules::check(&wheel, strangers)?;
    let (major, minor) = found.glibc;
    println!(
        "{}: {} bytes, its library {}; glibc {major}.{minor} or later",
        shown(path, root).display(),
        wheel.n_bytes,
        found.n_library_bytes
    );
    Ok(json!({
        "wheel": wheel.name,
        "bytes": wheel.n_bytes,
        "limit": rules::MAX_BYTES,
        "library_bytes": found.n_library_bytes,
        "glibc": format!("{major}.{minor}"),
        "needed": found.needed,
    }))
}

/// The folder of the tools, which are installed into it where they are not there.
fn tools(root: &Path) -> Result<PathBuf> {
    let dir = below_target(root, "wheel-tools");
    let marker = dir.join("versions.txt");
    let versions = versions()?;
    let wanted = versions.join("\n");
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(dir);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(&dir);
    run_command(pip.args(versions), "installing maturin and zig with pip")?;
    fs::write(&marker, wanted).with_context(|| format!("writing {}", marker.display()))?;
    Ok(dir)
}

/// The tools as pip names them, with their versions.
fn versions() -> Result<[&'static str; 2]> {
    let maturin = REQUIREMENTS.lines().find(|line| line.starts_with("maturin=="));
    Ok([maturin.context("python/requirements.txt names no maturin")?, ZIG.trim()])
}

/// What wheels of a release run on, but for the processor.
fn platform() -> String {
    let (major, minor) = GLIBC;
    format!("manylinux_{major}_{minor}")
}

fn build(root: &Path, tools: &Path, target: &str, out: &Path) -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup.current_dir(root).args(["target", "add", target]);
    run_command(&mut rustup, &format!("adding the standard library for {target}"))?;
    let mut maturin = Command::new(tools.join("bin/maturin"));
    maturin.current_dir(root.join("python"));
    maturin.args(["build", "--locked", "--release", "--zig", "--target", target]);
    maturin.arg("--compatibility").arg(platform());
    maturin.arg("--out").arg(root.join(out));
    // Where `python3 -m ziglang` is found.
    maturin.env("PYTHONPATH", tools);
    // Panics name source files: by their place in the checkout, and in the registry.
    maturin.env("CARGO_ENCODED_RUSTFLAGS", remapped(root).join("\u{1f}".as_ref()));
    run_command(&mut maturin, &format!("building the wheel for {target}"))
}

/// Flags of rustc that name no folder of this machine in what is compiled.
fn remapped(root: &Path) -> Vec<OsString> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // Of two that fit, rustc takes the later.
    let folders = [(home.as_path(), "~"), (cargo.as_path(), "cargo"), (root, "maxsim")];
    let remap = |(from, to): (&Path, &str)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push(format!("={to}"));
        flag
    };
    folders.into_iter().filter(|(from, _)| from.is_absolute()).map(remap).collect()
}

fn run_command(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| what.to_string())?;
    ensure!(status.success(), "{what}: {} failed", command.get_program().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parse = |words: &[&str]| Asked::parse(Path::new("checkout"), words);
        let Asked::Build { targets, .. } = parse(&[]).unwrap() else { panic!("it is a build") };
        assert_eq!(targets, TARGETS);
        let asked = parse(&["--target", TARGETS[1], "--out", "x"]).unwrap();
        let targets = vec![TARGETS[1].to_string()];
        assert_eq!(asked, Asked::Build { out: "x".into(), targets });
        assert_eq!(parse(&["--check", "a"]).unwrap(), Asked::Check(vec!["a".into()]));
        for (words, expected) in [
            (&["--check"][..], "wheels --check needs"),
            (&["--target", "riscv"], "--target riscv: expected x86_64"),
            (&["--out"], "--out needs a value"),
            (&["a.whl"], "wheels a.whl: expected"),
        ] {
            let error = parse(words).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn the_tools_have_versions() {
        let [maturin, zig] = versions().unwrap();
        assert!(maturin.starts_with("maturin==") && zig.starts_with("ziglang=="), "{zig}");
    }

    #[test]
    fn no_folder_of_this_machine_is_named() {
        let flags = remapped(Path::new("/somebody/checkout"));
        let last = flags.last().unwrap();
        assert_eq!(last, "--remap-path-prefix=/somebody/checkout=maxsim");
    }
}
