//! The assembler: finds it, runs it, and reads what it says about resources. What it said of a text
//! is kept below `target`, so that `check-ptx` need not assemble what `build-ptx` did.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::package::below_target;

/// The package on PyPI whose assembler makes the committed cubins, pinned. CI reads it too.
const PACKAGE: &str = include_str!("../ptxas.txt");

/// Path of CI's assembler, below the package's folder.
const PROGRAM: &str = "nvidia/cu13/bin/ptxas";

/// An assembler that runs.
#[derive(Debug)]
pub struct Ptxas {
    program: PathBuf,
    /// Folder of what it said, by a digest of text, target and version.
    said: PathBuf,
    /// Version line of the assembler.
    pub version: String,
}

/// How to get the pinned assembler, as commands to be run in the repository's root.
pub fn how_to_get() -> String {
    let folder = folder();
    format!(
        "`python3 -m pip install --no-deps --target {folder} {}` and `chmod +x \
         {folder}/{PROGRAM}` get it",
        PACKAGE.trim()
    )
}

/// The pinned package's folder, relative to the repository's root.
fn folder() -> String {
    format!("target/{}", PACKAGE.trim().replace("==", "-"))
}

/// Resources that an assembled entry uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers per thread.
    pub registers: usize,
    /// Static shared memory in bytes.
    pub static_shared_bytes: usize,
    /// Local memory for the stack in bytes.
    pub stack_bytes: usize,
    /// Spilled bytes, stores and loads.
    pub spill_bytes: usize,
}

/// How an assembly ended.
#[derive(Debug)]
pub enum Assembled {
    /// The assembler does not know the target.
    UnknownTarget,
    /// The file does not assemble; the assembler's first words.
    Failed(String),
    /// The entry was assembled, with these resources; warnings are lines that should not be there.
    Done(Resources, Vec<String>),
}

impl Ptxas {
    /// The one that `PTXAS` names, or the pinned one below `target`, or the one on the path,
    /// if any.
    pub fn find(root: &Path) -> Result<Option<Ptxas>> {
        let named = std::env::var_os("PTXAS").map(PathBuf::from);
        let pinned = root.join(folder()).join(PROGRAM);
        let unnamed = || if pinned.is_file() { pinned } else { "ptxas".into() };
        let program = named.clone().unwrap_or_else(unnamed);
        match Command::new(&program).arg("--version").output() {
            Ok(output) => {
                ensure!(output.status.success(), "{} --version failed", program.display());
                let text = String::from_utf8_lossy(&output.stdout);
                let version = text.lines().find(|line| line.contains("release"));
                let version = version.unwrap_or("of unknown version").to_string();
                let said = below_target(root, "ptx/said");
                Ok(Some(Ptxas { program, said, version }))
            }
            Err(error) if named.is_some() => {
                Err(error).with_context(|| format!("PTXAS is {}", program.display()))
            }
            Err(_) => Ok(None),
        }
    }

    /// The assembler of the pinned version, whose output is the same everywhere.
    pub fn pinned(root: &Path) -> Result<Ptxas> {
        let wanted = PACKAGE.trim().rsplit("==").next().unwrap_or_default();
        match Ptxas::find(root)? {
            Some(ptxas) if ptxas.is_version(wanted) => Ok(ptxas),
            Some(ptxas) => bail!(
                "cubins are assembled with ptxas {wanted}, and {} is {}; {}",
                ptxas.program.display(),
                ptxas.version,
                how_to_get()
            ),
            None => bail!("there is no ptxas to assemble cubins with; {}", how_to_get()),
        }
    }

    fn is_version(&self, wanted: &str) -> bool {
        // "Cuda compilation tools, release 13.0, V13.0.88"
        self.version.rsplit(", V").next() == Some(wanted)
    }

    /// What comes of a file for a target, without the cubin: as it was said before of the same
    /// text, or else assembled.
    pub fn judge(&self, file: &Path, target: &str) -> Result<Assembled> {
        if let Ok(said) = fs::read(self.note(file, target)?)
            && let Ok((resources, warnings)) = serde_json::from_slice(&said)
        {
            return Ok(Assembled::Done(resources, warnings));
        }
        self.assemble(file, target, Path::new("/dev/null"))
    }

    /// The file that has what was said of a file.
    fn note(&self, file: &Path, target: &str) -> Result<PathBuf> {
        let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let digest = Sha256::new().chain_update(&self.version).chain_update([0]);
        let digest = digest.chain_update(target).chain_update([0]).chain_update(text).finalize();
        Ok(self.said.join(format!("{digest:x}.json")))
    }

    /// Assembles a file for a target into `out`; `/dev/null` throws the cubin away.
    pub fn assemble(&self, file: &Path, target: &str, out: &Path) -> Result<Assembled> {
        let output = Command::new(&self.program)
            .arg(format!("--gpu-name={target}"))
            .args(["--verbose", "--output-file"])
            .arg(out)
            .arg(file)
            .output()
            .with_context(|| format!("running {}", self.program.display()))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if output.status.success() {
            let (resources, warnings) = read(&said)?;
            let (folder, note) = (&self.said, self.note(file, target)?);
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
            fs::write(&note, serde_json::to_vec(&(&resources, &warnings))?)
                .with_context(|| format!("writing {}", note.display()))?;
            Ok(Assembled::Done(resources, warnings))
        } else if said.contains("is not defined for option 'gpu-name'") {
            Ok(Assembled::UnknownTarget)
        } else {
            let first_lines: Vec<&str> = said.lines().take(3).collect();
            Ok(Assembled::Failed(first_lines.join("\n    ")))
        }
    }
}

/// Reads `ptxas --verbose` of a file with one entry.
fn read(said: &str) -> Result<(Resources, Vec<String>)> {
    let used = said.lines().find(|line| line.contains("Used "));
    let used = used.with_context(|| format!("ptxas reports no registers: {said}"))?;
    let stack = said.lines().find(|line| line.contains("bytes stack frame"));
    let stack = stack.with_context(|| format!("ptxas reports no stack frame: {said}"))?;
    let resources = Resources {
        registers: number_before(used, "registers").context("ptxas reports no registers")?,
        static_shared_bytes: number_before(used, "bytes smem").unwrap_or(0),
        stack_bytes: number_before(stack, "bytes stack frame").unwrap_or(0),
        spill_bytes: number_before(stack, "bytes spill stores").unwrap_or(0)
            + number_before(stack, "bytes spill loads").unwrap_or(0),
    };
    // (C75xx) is how ptxas reports serialised wgmma and an ignored setmaxnreg, as mere info.
    let warnings = said
        .lines()
        .filter(|line| line.contains("(C75") || line.to_lowercase().contains("warning"))
        .map(str::to_string)
        .collect();
    Ok((resources, warnings))
}

/// The number in front of `unit`, such as 168 in "Used 168 registers".
fn number_before(line: &str, unit: &str) -> Option<usize> {
    let before = line[..line.find(unit)?].trim_end();
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_the_verbose_output() {
        let said = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'e' for 'sm_90a'
ptxas info    : Function properties for e
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 8 bytes cumulative stack size, \
1024 bytes smem, 528 bytes cmem[0]
ptxas info    : Compile time = 1.2 ms
";
        let expected = Resources {
            registers: 168,
            static_shared_bytes: 1024,
            stack_bytes: 8,
            spill_bytes: 16,
        };
        assert_eq!(read(said).unwrap(), (expected, vec![]));
    }

    #[test]
    fn performance_notes_count_as_warnings() {
        let said = "\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 90 registers
";
        let (resources, warnings) = read(said).unwrap();
        assert_eq!((resources.registers, resources.static_shared_bytes), (90, 0));
        assert_eq!(warnings.len(), 1);
    }

    #[test]
    fn the_version_is_the_last_word_of_its_line() {
        let version = "Cuda compilation tools, release 13.0, V13.0.88".to_string();
        let ptxas = Ptxas { program: PathBuf::new(), said: PathBuf::new(), version };
        assert!(ptxas.is_version("13.0.88"));
        assert!(!ptxas.is_version("13.0.8") && !ptxas.is_version("3.0.88"));
    }

    #[test]
    fn what_was_said_is_of_one_text_target_and_version() {
        let folder = below_target(Path::new(env!("CARGO_MANIFEST_DIR")), "../target/tmp/ptxas");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a.ptx");
        fs::write(&file, "text").unwrap();
        let version = "13".to_string();
        // No program: what is not known cannot be assembled either.
        let ptxas = Ptxas { program: folder.join("none"), said: folder.clone(), version };
        let known = (Resources { registers: 7, ..Default::default() }, ["w".to_string()]);
        let note = ptxas.note(&file, "sm_80").unwrap();
        fs::write(&note, serde_json::to_vec(&known).unwrap()).unwrap();
        let judged = ptxas.judge(&file, "sm_80").unwrap();
        let Assembled::Done(used, said) = judged else { panic!("it is known") };
        assert_eq!((used.registers, said.len()), (7, 1));
        assert!(ptxas.judge(&file, "sm_90").is_err());
        let newer = Ptxas { version: "14".into(), ..ptxas };
        assert!(newer.judge(&file, "sm_80").is_err());
        fs::write(&file, "other text").unwrap();
        let older = Ptxas { version: "13".into(), ..newer };
        assert!(older.judge(&file, "sm_80").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn silence_is_an_error() {
        assert!(read("").is_err());
    }
}
