//! `evidence`: do the recorded GPU runs speak of the PTX that is committed?

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::fingerprint::of_ptx;

/// Compares every `docs/measured/*/tests.json`; `strict` turns stale or missing into an error.
pub fn run(root: &Path, strict: bool) -> Result<()> {
    let committed = of_ptx(root)?;
    let records = records(&root.join("docs/measured"))?;
    if records.is_empty() {
        println!("NO EVIDENCE: no docs/measured/*/tests.json");
    }
    let mut stale = records.is_empty();
    for path in records {
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        let text = fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
        let record: Value = serde_json::from_str(&text).with_context(|| format!("in {shown}"))?;
        let files = stale_files(&committed, &record).with_context(|| format!("in {shown}"))?;
        if files.is_empty() {
            println!("{shown}: {} PTX files ran as they are committed", committed.len());
        } else {
            stale = true;
            println!("EVIDENCE STALE: {shown}: {}", files.join(", "));
        }
    }
    ensure!(!(strict && stale), "the committed PTX is not what the recorded runs tested");
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
fn stale_files(committed: &BTreeMap<String, String>, record: &Value) -> Result<Vec<String>> {
    let ran = record.get("ptx").and_then(Value::as_object).context("no object `ptx`")?;
    let differs = |name: &String| {
        committed.get(name).map(String::as_str) != ran.get(name).and_then(Value::as_str)
    };
    let mut names: Vec<String> = committed.keys().chain(ran.keys()).cloned().collect();
    names.sort();
    names.dedup();
    Ok(names.into_iter().filter(differs).collect())
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
        assert_eq!(stale_files(&committed, &record).unwrap(), ["b.ptx", "c.ptx", "d.ptx"]);
    }

    #[test]
    fn a_record_without_sums_is_an_error() {
        assert!(stale_files(&BTreeMap::new(), &json!({})).is_err());
    }
}
