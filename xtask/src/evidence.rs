//! `evidence`: do the recorded GPU runs speak of the PTX and the cubins that are committed?

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::fingerprint::{of_cubins, of_ptx};

/// Compares every `docs/measured/*/tests.json`; `strict` turns stale or missing into an error.
pub fn run(root: &Path, strict: bool) -> Result<()> {
    let committed = [("ptx", of_ptx(root)?), ("cubins", of_cubins(root)?)];
    let records = records(&root.join("docs/measured"))?;
    if records.is_empty() {
        println!("NO EVIDENCE: no docs/measured/*/tests.json");
    }
    let mut stale = records.is_empty();
    for path in records {
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        let text = fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
        let record: Value = serde_json::from_str(&text).with_context(|| format!("in {shown}"))?;
        for (kernels, committed) in &committed {
            let files = stale_files(kernels, committed, &record);
            let why = match files.is_empty() {
                false if record[kernels].is_null() => "none recorded".to_string(),
                false => files.join(", "),
                true if has_run(kernels, &record) => {
                    println!("{shown}: {} {kernels} ran as they are committed", committed.len());
                    continue;
                }
                true => format!("no suite ran with the {kernels}"),
            };
            stale = true;
            println!("EVIDENCE STALE: {shown}: {kernels}: {why}");
        }
    }
    ensure!(!(strict && stale), "the committed kernels are not what the recorded runs tested");
    Ok(())
}

fn records(measured: &Path) -> Result<Vec<PathBuf>> {
    let mut records = Vec::new();
    if measured.is_dir() {
        for gpu in fs::read_dir(measured)? {
            let record = gpu?.path().join("tests.json");
            if record.is_file() {
                records.push(record);
            }
        }
    }
    records.sort();
    Ok(records)
}

/// Files that the record lacks, has with other content, or has although they are gone.
fn stale_files(kernels: &str, committed: &BTreeMap<String, String>, record: &Value) -> Vec<String> {
    let none = serde_json::Map::new();
    let recorded = record[kernels].as_object().unwrap_or(&none);
    let differs = |name: &String| {
        committed.get(name).map(String::as_str) != recorded.get(name).and_then(Value::as_str)
    };
    let mut names: Vec<String> = committed.keys().chain(recorded.keys()).cloned().collect();
    names.sort();
    names.dedup();
    names.into_iter().filter(differs).collect()
}

/// Whether some suite ran with these kernels forced, and not with what the device preferred.
fn has_run(kernels: &str, record: &Value) -> bool {
    let forced = kernels.trim_end_matches('s');
    let suites = record["kernels"][forced]["suites"].as_object();
    suites.is_some_and(|suites| !suites.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stale_names_changed_new_and_removed_files() {
        let committed = [("a.ptx", "1"), ("b.ptx", "2"), ("c.ptx", "3")]
            .map(|(name, sum)| (name.to_string(), sum.to_string()))
            .into();
        let record = json!({"ptx": {"a.ptx": "1", "b.ptx": "9", "d.ptx": "4"}});
        assert_eq!(stale_files("ptx", &committed, &record), ["b.ptx", "c.ptx", "d.ptx"]);
        assert_eq!(stale_files("cubins", &committed, &record), ["a.ptx", "b.ptx", "c.ptx"]);
    }

    #[test]
    fn each_kind_of_kernel_must_have_run() {
        let record = json!({"kernels": {
            "cubin": {"suites": {"gpu": {}}}, "ptx": {"suites": {}}, "auto": {"suites": {"a": {}}},
        }});
        assert!(has_run("cubins", &record));
        assert!(!has_run("ptx", &record));
        assert!(!has_run("ptx", &json!({})));
    }
}
