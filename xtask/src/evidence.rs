//! `evidence`: compares the recorded GPU runs with the committed PTX and cubins: that hashes
//! agree, that some suite loaded each kernel from either, and that all programs ended well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::fingerprint::{of_cubins, of_ptx};

/// Names that a line lists before it says how many more there are.
const SHOWN: usize = 4;

/// Compares every `docs/measured/*/tests.json`. `strict` wants one record, of whichever device,
/// that is of the committed kernels and complete: a device that could not be had since a kernel
/// changed keeps the record of the kernels it ran, and the lines say that it is stale.
pub fn run(root: &Path, strict: bool) -> Result<()> {
    let committed = [("ptx", of_ptx(root)?), ("cubins", of_cubins(root)?)];
    let records = records(&root.join("docs/measured"))?;
    if records.is_empty() {
        println!("NO EVIDENCE: no docs/measured/*/tests.json");
    }
    let mut complete = 0;
    for path in records {
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        let text = fs::read_to_string(&path).with_context(|| format!("reading {shown}"))?;
        let record: Value = serde_json::from_str(&text).with_context(|| format!("in {shown}"))?;
        let findings = findings(&committed, &record);
        for finding in &findings {
            println!("{shown}: {finding}");
        }
        if findings.is_empty() {
            complete += 1;
            println!("{shown}: all committed PTX and cubins ran, and every program ended well");
        }
    }
    ensure!(!strict || complete > 0, "no record is of all of the committed kernels");
    Ok(())
}

/// Lists the reasons why a record is no evidence of the committed kernels.
fn findings(committed: &[(&str, BTreeMap<String, String>)], record: &Value) -> Vec<String> {
    let mut findings = Vec::new();
    for (kernels, committed) in committed {
        let stale = stale_files(kernels, committed, record);
        if record[kernels].is_null() {
            findings.push(format!("EVIDENCE STALE: {kernels}: none recorded"));
        } else if !stale.is_empty() {
            findings.push(format!("EVIDENCE STALE: {kernels}: {}", listed(&stale)));
        }
        let missing = not_loaded(kernels, committed, record);
        if !missing.is_empty() {
            findings.push(format!("EVIDENCE STALE: {kernels}: not loaded: {}", listed(&missing)));
        }
    }
    findings.extend(not_ok(record).iter().map(|program| format!("EVIDENCE INCOMPLETE: {program}")));
    findings
}

/// The first of these names, and how many there are.
fn listed(names: &[String]) -> String {
    match names.len() {
        0..=SHOWN => names.join(", "),
        all => format!("{}, … ({all} in all)", names[..SHOWN].join(", ")),
    }
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
    fn a_record_of_all_kernels_has_no_findings_and_every_other_has() {
        let files = |sum: &str| BTreeMap::from([("a.ptx".to_string(), sum.to_string())]);
        let log = json!(["# a on cuda:0 (NVIDIA H200)"]);
        let record = |result: &str| {
            json!({"ptx": {"a.ptx": "1"}, "kernels": {
                "ptx": {"jit_log": log, "programs": {"gpu": {"result": result}}},
            }})
        };
        assert!(findings(&[("ptx", files("1"))], &record("ok")).is_empty());
        assert_eq!(findings(&[("ptx", files("2"))], &record("ok")), ["EVIDENCE STALE: ptx: a.ptx"]);
        let failed = ["EVIDENCE INCOMPLETE: gpu (ptx): failed"];
        assert_eq!(findings(&[("ptx", files("1"))], &record("failed")), failed);
        let nothing = ["EVIDENCE STALE: ptx: none recorded", "EVIDENCE STALE: ptx: not loaded: a"];
        assert_eq!(findings(&[("ptx", files("1"))], &json!({})), nothing);
    }

    #[test]
    fn long_lists_end_in_their_number() {
        let names: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_string).into();
        assert_eq!(listed(&names[..4]), "a, b, c, d");
        assert_eq!(listed(&names), "a, b, c, d, … (5 in all)");
    }

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
