//! `report`: the benchmarks' records as `docs/benchmarks.md` and plots.

mod compressed;
mod fidelity;
mod figures;
mod literature;
mod markdown;
pub mod page;
mod plots;
mod record;
mod search;
mod training;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use fidelity::Fidelity;
use literature::Literature;
use record::Record;
use search::Search;

/// The title of scores.
const FORWARD: &str = "Forward";

/// The title of training steps, which have tables of their own.
const TRAINING: &str = "Training";

/// The title of compressed documents, which have tables of their own, too.
const COMPRESSED: &str = "Compressed documents";

/// The records of a GPU's folder, in this order.
const RECORDS: [(&str, &str); 3] =
    [("forward", FORWARD), ("training", TRAINING), ("compressed", COMPRESSED)];

/// The records whose rows have goals in words, in the order of their sections.
const WITH_GOALS: [(&str, &str); 3] = [
    ("operations", "Operations beside the sum of maxima"),
    ("search", "Search"),
    ("cpu", "CPU engine"),
];

/// Path below the root to content.
type Files = BTreeMap<PathBuf, String>;

/// One GPU's records.
struct Gpu {
    /// Name of its folder.
    folder: String,
    /// Title and record.
    records: Vec<(&'static str, Record)>,
    /// Title and record, of rows that have goals in words.
    with_goals: Vec<(&'static str, Search)>,
    /// Rankings of compressed tokens.
    fidelity: Option<Fidelity>,
    /// Tables of the literature.
    literature: Option<Literature>,
}

/// Writes the report.
pub fn write(root: &Path) -> Result<()> {
    let files = generate(root)?;
    for (path, content) in &files {
        let path = root.join(path);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Fails when the report is not what the records say.
pub fn check(root: &Path) -> Result<()> {
    let files = generate(root)?;
    let is_stale =
        |path: &&PathBuf| fs::read_to_string(root.join(path)).ok().as_ref() != files.get(*path);
    let stale: Vec<String> =
        files.keys().filter(is_stale).map(|path| path.display().to_string()).collect();
    ensure!(stale.is_empty(), "run `cargo xtask report` and commit: {}", stale.join(", "));
    println!("the benchmark report is up to date ({} files)", files.len());
    Ok(())
}

fn generate(root: &Path) -> Result<Files> {
    let gpus = read(&root.join("docs/measured"))?;
    let mut files = Files::new();
    if gpus.is_empty() {
        println!("nothing to report: no record in docs/measured/*");
        return Ok(files);
    }
    for gpu in &gpus {
        for (name, plot) in plots::all(gpu)? {
            files.insert(format!("docs/measured/{}/{name}", gpu.folder).into(), plot);
        }
    }
    files.insert("docs/benchmarks.md".into(), markdown::page(&gpus));
    Ok(files)
}

/// The folders of `measured` that hold a record, by name.
fn read(measured: &Path) -> Result<Vec<Gpu>> {
    let mut gpus = Vec::new();
    if !measured.is_dir() {
        return Ok(gpus);
    }
    for folder in fs::read_dir(measured)? {
        let folder = folder?;
        let mut records = Vec::new();
        for (name, title) in RECORDS {
            if let Some(record) = record_at(&folder.path().join(format!("{name}.json")))? {
                records.push((title, record));
            }
        }
        let mut with_goals = Vec::new();
        for (name, title) in WITH_GOALS {
            if let Some(record) = record_at(&folder.path().join(format!("{name}.json")))? {
                with_goals.push((title, record));
            }
        }
        let fidelity = record_at(&folder.path().join("fidelity.json"))?;
        let literature: Option<Literature> = record_at(&folder.path().join("literature.json"))?;
        let are_rows = !records.is_empty() || !with_goals.is_empty();
        if are_rows || fidelity.is_some() || literature.is_some() {
            let folder = folder.file_name().to_string_lossy().into_owned();
            gpus.push(Gpu { folder, records, with_goals, fidelity, literature });
        }
    }
    gpus.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(gpus)
}

/// The record in a file, if it is there.
fn record_at<R: DeserializeOwned>(path: &Path) -> Result<Option<R>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).map(Some).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests;
