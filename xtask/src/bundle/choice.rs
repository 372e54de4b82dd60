//! Chooses the programs and data of a bundle (`--only`, `--without-embeddings`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{CPU_TESTS, PACKAGES};

/// Targets that were asked for.
#[derive(Debug, PartialEq)]
pub struct Choice {
    /// The folder.
    pub out: PathBuf,
    /// Names of programs, or how they begin; empty for all.
    only: Vec<String>,
    /// Whether token embeddings travel.
    pub embeddings: bool,
}

/// A target of a package that cargo can build, and its name.
pub struct Target {
    /// As in the manifest: a test program `PACKAGE-TARGET`, or a file of the folder `bin`.
    name: String,
    package: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// A file of the folder `bin`: the options of `cargo build` that make it.
    Binary(Vec<String>),
    /// A test program: the options of `cargo test` that make it.
    Test(Vec<String>),
}

impl Target {
    /// Whether this is the test program, or else the file of `bin`, of this name.
    pub fn is(&self, name: &str, is_test: bool) -> bool {
        self.name == name && matches!(self.kind, Kind::Test(_)) == is_test
    }
}

impl Choice {
    /// Reads the options of `cargo xtask bundle`; `root` has the folder where none is named.
    pub fn parse(root: &Path, words: &[&str]) -> Result<Choice> {
        let mut choice = Choice { out: root.join("bundle"), only: Vec::new(), embeddings: true };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word {
                "--out" => choice.out = PathBuf::from(value()?),
                "--only" => {
                    let names = value()?.split(',').map(str::trim);
                    choice.only.extend(names.filter(|name| !name.is_empty()).map(String::from));
                    ensure!(!choice.only.is_empty(), "--only names nothing");
                }
                "--without-embeddings" => choice.embeddings = false,
                _ => bail!("bundle {word}: expected --out, --only or --without-embeddings"),
            }
        }
        Ok(choice)
    }

    /// Whether a program of this name travels.
    fn takes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(&**only))
    }

    /// Divides targets into those that travel and the names of those that do not. Tests of the tool
    /// take the tool with them.
    ///
    /// # Errors
    /// A name that is none's.
    pub fn divide(&self, targets: Vec<Target>) -> Result<(Vec<Target>, Vec<String>)> {
        for only in &self.only {
            let names: Vec<&str> = targets.iter().map(|target| &target.name[..]).collect();
            ensure!(
                names.iter().any(|name| name.starts_with(&**only)),
                "--only {only}: no program's name begins so; there are: {}",
                names.join(", ")
            );
        }
        let is_test = |target: &Target| matches!(target.kind, Kind::Test(_));
        let runs_tool =
            targets.iter().any(|t| is_test(t) && t.package == TOOL.0 && self.takes(&t.name));
        let (taken, left): (Vec<Target>, Vec<Target>) = targets
            .into_iter()
            .partition(|target| self.takes(&target.name) || runs_tool && target.name == TOOL.1);
        Ok((taken, left.into_iter().map(|target| target.name).collect()))
    }
}

/// Package and name of the tool.
const TOOL: (&str, &str) = ("maxsim-cli", "maxsim");

/// Options of cargo that make the targets: of `cargo build`, and of `cargo test`.
pub fn cargo_options(targets: &[Target]) -> [Vec<String>; 2] {
    let mut options = [Vec::new(), Vec::new()];
    for target in targets {
        let (i, words) = match &target.kind {
            Kind::Binary(words) => (0, words),
            Kind::Test(words) => (1, words),
        };
        // An option without a value stands for several targets.
        if words.len() > 1 || !options[i].contains(&words[0]) {
            options[i].extend(words.iter().cloned());
        }
    }
    options
}

/// All that a bundle can take.
pub fn targets(root: &Path) -> Result<Vec<Target>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = cargo.output().context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo's metadata")?;
    Ok(targets_of(&metadata))
}

fn targets_of(metadata: &Value) -> Vec<Target> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if PACKAGES.iter().any(|(travels, _)| *travels == name) {
            let targets = package["targets"].as_array().into_iter().flatten();
            found.extend(targets.flat_map(|target| of_target(name, target)));
        }
    }
    found
}

/// Finds the targets of a target of cargo's: a file for `bin`, a test program, or both.
fn of_target(package: &str, target: &Value) -> Vec<Target> {
    let name = target["name"].as_str().unwrap_or_default();
    let kinds: Vec<&str> =
        target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    let make = |name: String, kind| Target { name, package: package.to_string(), kind };
    let test = |options: &[&str]| make(format!("{package}-{name}"), Kind::Test(words(options)));
    match kinds[..] {
        ["test"] if CPU_TESTS.contains(&name) => Vec::new(),
        ["test"] => vec![test(&["--test", name])],
        ["bin"] => {
            let binary = make(name.to_string(), Kind::Binary(words(&["--bin", name])));
            vec![binary, test(&["--bin", name])]
        }
        _ if kinds.contains(&"cdylib") => {
            let binary = make(format!("lib{name}.so"), Kind::Binary(words(&["--lib"])));
            vec![binary, test(&["--lib"])]
        }
        _ if kinds.contains(&"lib") => vec![test(&["--lib"])],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Vec<Target> {
        let target = |name: &str, kinds: &[&str]| json!({"name": name, "kind": kinds});
        targets_of(&json!({"packages": [
            {"name": "maxsim-cli", "targets": [
                target("maxsim_cli", &["lib"]), target("maxsim", &["bin"]),
                target("quantize", &["test"]), target("readers", &["test"]),
            ]},
            {"name": "maxsim-tests", "targets": [
                target("quantized", &["test"]), target("quantized_more", &["test"]),
                target("calls", &["test"]), target("build-script-build", &["custom-build"]),
            ]},
            {"name": "maxsim-bench", "targets": [target("maxsim_bench", &["cdylib", "rlib"])]},
            {"name": "xtask", "targets": [target("xtask", &["bin"])]},
        ]}))
    }

    fn taken(options: &[&str]) -> (Vec<String>, Vec<String>) {
        let choice = Choice::parse(Path::new("/r"), options).unwrap();
        let (taken, left) = choice.divide(sample()).unwrap();
        (taken.into_iter().map(|target| target.name).collect(), left)
    }

    #[test]
    fn options_are_read_and_others_refused() {
        let root = Path::new("/r");
        let all = Choice::parse(root, &[]).unwrap();
        assert_eq!((all.out, all.only.len(), all.embeddings), ("/r/bundle".into(), 0, true));
        let words = ["--only", "a, b", "--without-embeddings", "--out", "/o", "--only", "c"];
        let some = Choice::parse(root, &words).unwrap();
        assert_eq!((some.out, some.embeddings), ("/o".into(), false));
        assert_eq!(some.only, ["a", "b", "c"]);
        for (words, said) in [
            (&["--only"][..], "--only needs a value"),
            (&["--only", " ,"], "--only names nothing"),
            (&["--fast"], "bundle --fast"),
        ] {
            let error = Choice::parse(root, words).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn programs_are_taken_by_name_and_by_how_names_begin() {
        let (all, left) = taken(&[]);
        assert_eq!((all.len(), left.len()), (9, 0), "{all:?}");
        assert!(!all.iter().any(|name| name.contains("readers") || name.contains("xtask")));
        let (some, left) = taken(&["--only", "maxsim-tests-quantized,libmaxsim_bench"]);
        let expected =
            ["maxsim-tests-quantized", "maxsim-tests-quantized_more", "libmaxsim_bench.so"];
        assert_eq!(some, expected);
        assert_eq!(left.len(), 6);
        assert!(left.contains(&"maxsim-tests-calls".to_string()), "{left:?}");
        // Tests of the tool run it.
        let (some, _) = taken(&["--only", "maxsim-cli-quantize"]);
        assert_eq!(some, ["maxsim", "maxsim-cli-quantize"]);
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        let choice = Choice::parse(Path::new("/r"), &["--only", "maxsim-tests-x"]).unwrap();
        let error = choice.divide(sample()).err().unwrap().to_string();
        assert!(
            error.contains("maxsim-tests-x") && error.contains("maxsim-tests-calls"),
            "{error}"
        );
    }

    #[test]
    fn cargo_is_asked_for_what_is_taken() {
        let choice = Choice::parse(Path::new("/r"), &["--only", "maxsim-tests-calls,maxsim-bench"]);
        let (taken, _) = choice.unwrap().divide(sample()).unwrap();
        let expected = [vec![], vec!["--test", "calls", "--lib"]];
        assert_eq!(cargo_options(&taken), expected);
        let everything = cargo_options(&sample());
        assert_eq!(everything[0], ["--bin", "maxsim", "--lib"]);
        assert_eq!(everything[1].iter().filter(|word| *word == "--lib").count(), 1);
    }
}
