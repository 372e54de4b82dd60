//! Builds the library and the suites that need no GPU for other processors and for WebAssembly, and
//! runs them: under qemu, which shows that results are right and nothing of speed, and under node.
//! Those of this processor run under the address and the thread sanitizer, and the library's own
//! tests with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde_json::{Value, json};

use crate::bundle;
use crate::cross::{TARGETS, Target};

/// The folder of the suites' programs.
const SUITES: &str = "tests/tests";

/// Programs that do nothing without a GPU.
const WITHOUT_CPU: [&str; 2] = ["gpu", "gpu_memory"];

/// What `cargo xtask targets` is asked to do.
#[derive(Debug, Default, PartialEq)]
pub struct Asked {
    /// Where the record goes, if anywhere.
    record: Option<PathBuf>,
    /// The targets' names, if not all but the sanitizers'.
    targets: Option<Vec<String>>,
    /// The suites' programs, if not all.
    only: Option<Vec<String>>,
}

/// A program of a target.
struct Program<'a> {
    target: &'a Target,
    name: String,
    path: PathBuf,
}

/// What came of a program: tests by what became of them, and how long it took.
#[derive(Debug, PartialEq)]
struct Found {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Asked {
    /// Reads the options.
    pub fn parse(words: &[&str]) -> Result<Asked> {
        let mut asked = Asked::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let value = *words.next().with_context(|| format!("{word} needs a value"))?;
            match word {
                "--record" => asked.record = Some(value.into()),
                "--target" => asked.targets = Some(names(value)),
                "--only" => asked.only = Some(names(value)),
                _ => bail!("targets {word}: expected --record, --target or --only"),
            }
        }
        for target in asked.targets.iter().flatten() {
            let mut all = runnable().map(|target| target.name);
            ensure!(
                all.any(|name| name == target),
                "--target {target}: expected {}",
                runnable().map(|target| target.name).collect::<Vec<_>>().join(" or ")
            );
        }
        Ok(asked)
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::to_string).collect()
}

fn runnable() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().filter(|target| !target.runner.is_empty())
}

/// Builds all, then runs all; fails where any test failed.
pub fn run(root: &Path, asked: &Asked) -> Result<()> {
    let is_asked = |target: &&Target| match &asked.targets {
        Some(names) => names.iter().any(|name| name == target.name),
        None => !target.is_sanitizer(),
    };
    let suites = match &asked.only {
        Some(only) => only.clone(),
        None => suites(root)?,
    };
    let mut programs = Vec::new();
    for target in runnable().filter(is_asked) {
        let start = Instant::now();
        if !target.is_sanitizer() {
            build_library(root, target)?;
        }
        programs.extend(build_suites(root, target, &suites)?);
        if target.is_sanitizer() && asked.only.is_none() {
            programs.extend(build_own_tests(root, target)?);
        }
        println!("{}: built in {:.0} s", target.name, start.elapsed().as_secs_f64());
    }
    let run = |program: &Program| run_program(root, program);
    let rows: Vec<(Found, f64)> = programs.par_iter().map(run).collect::<Result<_>>()?;
    if let Some(path) = &asked.record {
        let text = serde_json::to_string_pretty(&record(root, &programs, &rows)?)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let failed: Vec<String> = programs
        .iter()
        .zip(&rows)
        .filter(|(_, (found, _))| found.failed > 0)
        .map(|(program, _)| format!("{} on {}", program.name, program.target.name))
        .collect();
    ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// Builds the library as dependents without a GPU do.
fn build_library(root: &Path, target: &Target) -> Result<()> {
    let mut library = target.cargo(root, "build")?;
    library.current_dir(root).args(["--locked", "-p", "maxsim", "--no-default-features"]);
    let status = library.status().context("running cargo")?;
    ensure!(status.success(), "the library does not build for {}", target.name);
    Ok(())
}

/// Builds the programs of the suites.
fn build_suites<'a>(
    root: &Path,
    target: &'a Target,
    suites: &[String],
) -> Result<Vec<Program<'a>>> {
    let suites = suites.iter().flat_map(|suite| ["--test", suite]);
    build_tests(
        root,
        target,
        ["-p", "maxsim-tests", "--no-default-features"].into_iter().chain(suites),
    )
}

/// Builds the program of the library's own tests.
fn build_own_tests<'a>(root: &Path, target: &'a Target) -> Result<Vec<Program<'a>>> {
    build_tests(root, target, ["-p", "maxsim", "--lib"].into_iter())
}

fn build_tests<'a, 'b>(
    root: &Path,
    target: &'a Target,
    options: impl Iterator<Item = &'b str>,
) -> Result<Vec<Program<'a>>> {
    let mut tests = target.cargo(root, "test")?;
    tests.current_dir(root).args(["--no-run", "--locked"]).args(options);
    let programs = bundle::built_by(&mut tests)?.into_iter().filter(|program| program.is_test);
    let of_target =
        |built: bundle::Program| Program { target, name: built.target, path: built.path };
    Ok(programs.map(of_target).collect())
}

/// The names of the suites' programs.
fn suites(root: &Path) -> Result<Vec<String>> {
    let mut suites = Vec::new();
    for entry in fs::read_dir(root.join(SUITES)).context(SUITES)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.join("main.rs").is_file() || path.extension().is_some_and(|e| e == "rs") {
            suites.push(name);
        }
    }
    suites.retain(|name| !WITHOUT_CPU.contains(&name.as_str()));
    suites.sort();
    Ok(suites)
}

/// Runs a program and prints what it says when it has ended; what came of it, and the seconds.
fn run_program(root: &Path, program: &Program) -> Result<(Found, f64)> {
    let runner = program.target.runner(root);
    let mut command = Command::new(&runner[0]);
    command.args(&runner[1..]).arg(&program.path);
    // A panic ends a program of WebAssembly before the harness shows what it kept.
    command.arg("--nocapture").current_dir(root.join("tests"));
    let start = Instant::now();
    let output = command.output().with_context(|| format!("running {}", runner[0]))?;
    let seconds = start.elapsed().as_secs_f64();
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    println!(
        "\n{}: {} ({seconds:.0} s)\n{}",
        program.target.name,
        program.name,
        String::from_utf8_lossy(&text).trim_end()
    );
    Ok((found(&output), seconds))
}

/// Reads the harness's last line; a program that did not come to it has failed.
fn found(output: &Output) -> Found {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().rev().find(|line| line.starts_with("test result: "));
    let count = |what: &str| {
        let line = line.unwrap_or_default();
        let before = line.split(&format!(" {what}")).next().filter(|before| *before != line);
        before.and_then(|text| text.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let failed: u64 = count("failed");
    Found {
        passed: count("passed"),
        failed: if output.status.success() { failed } else { failed.max(1) },
        skipped: count("ignored"),
    }
}

fn record(root: &Path, programs: &[Program], rows: &[(Found, f64)]) -> Result<Value> {
    let mut targets: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
    for (program, (found, seconds)) in programs.iter().zip(rows) {
        let row = json!({
            "passed": found.passed,
            "failed": found.failed,
            "skipped": found.skipped,
            "seconds": (seconds * 10.0).round() / 10.0,
        });
        targets.entry(program.target.name).or_default().insert(&program.name, row);
    }
    let runners: BTreeMap<&str, &str> =
        programs.iter().map(|p| (p.target.name, p.target.runner[0])).collect();
    let said = |command: &mut Command| -> Result<String> {
        let output = command.output().with_context(|| format!("running {command:?}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    Ok(json!({
        "what": "suites of the CPU engine on targets that are emulated, and on this processor \
                 under sanitizers: seconds are no measure of their speed",
        "command": "cargo xtask targets --record FILE",
        "date": said(Command::new("date").args(["-u", "+%Y-%m-%d"]))?,
        "commit": said(Command::new("git").current_dir(root).args(["rev-parse", "HEAD"]))?,
        "suite": std::env::var("MAXSIM_SUITE").unwrap_or_else(|_| "full".to_string()),
        "runners": runners,
        "targets": targets,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, stdout: &str) -> Output {
        let status = ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.into(), stderr: Vec::new() }
    }

    #[test]
    fn the_harness_is_read() {
        let said = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(found(&output(0, said)), Found { passed: 12, failed: 0, skipped: 3 });
        let said = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured";
        assert_eq!(found(&output(101, said)), Found { passed: 1, failed: 2, skipped: 0 });
        // It ended in the middle.
        assert_eq!(found(&output(101, "test a ... ")), Found { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn options_are_read() {
        assert_eq!(Asked::parse(&[]).unwrap(), Asked::default());
        let asked = Asked::parse(&["--target", "wasm32-wasip1", "--record", "x.json"]).unwrap();
        assert_eq!(asked.targets, Some(vec!["wasm32-wasip1".to_string()]));
        assert_eq!(asked.record, Some("x.json".into()));
        let asked = Asked::parse(&["--only", "cpu,scores"]).unwrap();
        assert_eq!(asked.only, Some(vec!["cpu".to_string(), "scores".to_string()]));
        for (words, expected) in [
            (&["--record"][..], "--record needs a value"),
            (
                &["--target", "wasm32-unknown-unknown"],
                "--target wasm32-unknown-unknown: expected a",
            ),
            (&["--small", "x"], "targets --small: expected"),
        ] {
            let error = Asked::parse(words).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn suites_are_those_with_something_for_a_cpu() {
        let suites = suites(&crate::workspace_root()).unwrap();
        assert!(suites.iter().any(|name| name == "cpu"), "{suites:?}");
        assert!(!suites.iter().any(|name| name.starts_with("gpu")), "{suites:?}");
    }
}
