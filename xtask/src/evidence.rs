//! `evidence`: compares the recorded GPU runs with the committed PTX and cubins: that hashes
//! agree, that some suite loaded each kernel from either, and that all programs ended well.

use std::collections::{BTreeMap, BTreeSet};
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
                true => match not_loaded(kernels, committed, &record) {
                    missing if missing.is_empty() => {
                        println!(
                            "{shown}: {} {kernels} ran as they are committed",
                            committed.len()
                        );
                        continue;
                    }
                    missing => format!("no suite loaded {}", missing.join(", ")),
                },
            };
            stale = true;
            println!("EVIDENCE STALE: {shown}: {kernels}: {why}");
        }
        for program in not_ok(&record) {
            stale = true;
            println!("EVIDENCE INCOMPLETE: {shown}: {program}");
        }
    }
    ensure!(!(strict && stale), "the recorded runs did not test all of the committed kernels");
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

/// Kernels that no suite loaded from these files: with them forced, and not what the device
/// preferred.
fn not_loaded(kernels: &str, committed: &BTreeMap<String, String>, record: &Value) -> Vec<String> {
    let forced = kernels.trim_end_matches('s');
    let none = serde_json::Map::new();
    let runs = record["kernels"].as_object().unwrap_or(&none);
    // A run may have forced the instruction set, too.
    let runs = runs.iter().filter(|(name, _)| name.split(' ').next() == Some(forced));
    let lines = runs.flat_map(|(_, run)| run["jit_log"].as_array().into_iter().flatten());
    let loaded: BTreeSet<&str> =
        lines.filter_map(|line| line.as_str()?.strip_prefix("# ")?.split(' ').next()).collect();
    let names = committed.keys().filter_map(|file| file.split('.').next());
    let names: BTreeSet<&str> = names.collect();
    names.difference(&loaded).map(|name| name.to_string()).collect()
}

/// Programs that did not end well, with the kernels that they ran on, and how they ended.
fn not_ok(record: &Value) -> Vec<String> {
    let none = serde_json::Map::new();
    let runs = record["kernels"].as_object().unwrap_or(&none).iter();
    let programs = runs.flat_map(|(kernels, run)| {
        let programs = run["programs"].as_object().unwrap_or(&none).iter();
        programs.map(move |(name, program)| (kernels, name, program["result"].as_str()))
    });
    programs
        .filter(|(.., result)| *result != Some("ok"))
        .map(|(kernels, name, result)| {
            format!("{name} ({kernels}): {}", result.unwrap_or("no result"))
        })
        .collect()
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
    fn each_kernel_must_have_been_loaded_from_either_kind_of_file() {
        let files = |names: &[&str]| -> BTreeMap<String, String> {
            names.iter().map(|name| (name.to_string(), "1".to_string())).collect()
        };
        let log = |names: &[&str]| -> Value {
            let lines = names.iter().map(|name| format!("# {name} on cuda:0 (NVIDIA H200)"));
            json!({"jit_log": lines.chain(["ptxas info : # b".into()]).collect::<Vec<_>>()})
        };
        let record = json!({"kernels": {
            "cubin": log(&["a"]), "cubin sm_80": log(&["b"]),
            "ptx": log(&["b"]), "auto": log(&["a"]),
        }});
        let cubins = files(&["a.sm_80.cubin", "a.sm_90.cubin", "b.sm_80.cubin"]);
        assert!(not_loaded("cubins", &cubins, &record).is_empty());
        assert_eq!(not_loaded("ptx", &files(&["a.ptx", "b.ptx"]), &record), ["a"]);
        assert_eq!(not_loaded("ptx", &files(&["a.ptx"]), &json!({})), ["a"]);
    }

    #[test]
    fn programs_that_did_not_end_well_are_named() {
        let programs = json!({"a": {"result": "ok"}, "b": {"result": "timed out"}, "c": {}});
        let record = json!({"kernels": {"cubin": {"programs": programs}, "ptx": {}}});
        assert_eq!(not_ok(&record), ["b (cubin): timed out", "c (cubin): no result"]);
        assert!(not_ok(&json!({})).is_empty());
    }
}
