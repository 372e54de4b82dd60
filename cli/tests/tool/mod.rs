//! The tool as a process.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ffi::OsStr;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The tool: MAXSIM_BIN where the tests run on another machine than they were built on. What it
/// remembers is not put among the user's.
pub fn command() -> Command {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_maxsim"));
    let mut command =
        Command::new(std::env::var_os("MAXSIM_BIN").map_or_else(built, PathBuf::from));
    command.env("MAXSIM_CACHE_DIR", std::env::temp_dir().join("maxsim-tests-cache"));
    command
}

/// How what is said of wrong usage ends.
const USAGE_END: &str = "\n\nFor more information, try '--help'.\n";

/// What a run left behind.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn of(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The standard output of a run that must have worked.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// The error of a run that must have failed as every failure does: exit code 2, one line
    /// on stderr, nothing on stdout. Of wrong usage, which keeps its lines, they are joined.
    pub fn error(self) -> String {
        if self.stderr.ends_with(USAGE_END) {
            let lines = self.usage();
            let words: Vec<&str> = lines["error: ".len()..].split_whitespace().collect();
            return words.join(" ");
        }
        assert_eq!(self.code, Some(2), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        let line = self.stderr.strip_suffix('\n').expect("a whole line");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        line.strip_prefix("error: ").unwrap_or_else(|| panic!("{line}")).to_string()
    }
}

impl Run {
    /// What is said of arguments that are wrong: in several lines, with exit code 2.
    pub fn usage(self) -> String {
        assert_eq!(self.code, Some(2), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert!(self.stderr.ends_with(USAGE_END), "{}", self.stderr);
        assert!(!self.stderr.chars().any(|c| c != '\n' && c.is_control()), "{:?}", self.stderr);
        self.stderr
    }
}

pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Run {
    Run::of(command().args(args).output().expect("the tool starts"))
}

/// A folder for the files of a test, removed after it. Modules of tests add methods that fill it
/// and run the tool in it, each to a folder of its own kind.
pub struct FolderOf<Kind>(pub TempDir, PhantomData<Kind>);

/// A folder without more methods.
pub type Folder = FolderOf<()>;

impl<Kind> FolderOf<Kind> {
    pub fn empty() -> Self {
        FolderOf(TempDir::new().unwrap(), PhantomData)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// What is in it, hidden names too.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

/// `maxsim rank` with queries and documents, on the CPU unless `more` names a device.
pub fn rank(queries: &Path, documents: &Path, more: &[&str]) -> Run {
    let mut command = command();
    command.arg("rank").arg("--queries").arg(queries).arg("--documents").arg(documents);
    if !more.contains(&"--device") {
        command.args(["--device", "cpu"]);
    }
    Run::of(command.args(more).output().expect("the tool starts"))
}

/// The sample in the repository. Test programs run in their package's folder.
pub fn sample(file: &str) -> PathBuf {
    Path::new("examples/debian-packages").join(file)
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The folder of the real set of 1000 documents and 250 queries, `data/debian-packages` of the
/// folder MAXSIM_SHARED, or else of the folder `shared` beside the repository; `None`, with a line
/// that cannot be overlooked, where it is not.
pub fn reference_set(skipped: &str) -> Option<PathBuf> {
    // The working folder of tests is their package's, `cli`.
    let shared = std::env::var_os("MAXSIM_SHARED").map_or("../../shared".into(), PathBuf::from);
    let set = shared.join("data/debian-packages");
    if !set.join("reference.json").is_file() {
        eprintln!("SKIPPED (no reference set in {}): {skipped}", set.display());
        return None;
    }
    Some(set)
}
