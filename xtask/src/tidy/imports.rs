//! Imports between rooms: down alone, and in no circle.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::cycles::Graph;
use super::layers::{Crate, Relation};
use super::modules::Modules;
use super::parse::File;
use super::{Finding, Rule};

/// File of the layer table.
const TABLE: &str = "xtask/src/tidy/layers.rs";

/// Findings of one crate.
pub fn check(table: &Crate, files: &[File]) -> Result<Vec<Finding>> {
    let modules = Modules::read(table.root, files);
    if modules.files.is_empty() {
        bail!("{}lib.rs is missing: no layers can be checked", table.root);
    }
    let mut findings = rooms(table, files, &modules);
    let mut graph = Graph::default();
    let mut seen = BTreeSet::new();
    for used in &modules.uses {
        let Some(target) = modules.defined_in(used) else { continue };
        let (from, to) = (&modules.modules[used.module].path, &modules.modules[target].path);
        if let Some((from, to)) = table.rooms(from, to) {
            graph.add(&from, &to, format!("{}:{}", used.file, used.line));
        }
        let Relation::Broken { from, to, is_sibling } = table.relation(from, to) else { continue };
        let names = used.names.join("::");
        let message = if is_sibling {
            format!(
                "`{from}` uses `{names}` of its sibling `{to}`; move what both need to a layer \
                 below them ({TABLE})"
            )
        } else {
            format!(
                "`{from}` uses `{names}` of `{to}`, which lies above it; move the definition \
                 down or the use up ({TABLE})"
            )
        };
        let (path, line) = (used.file.to_string(), used.line);
        if seen.insert((path.clone(), line, to)) {
            findings.push(Finding { path, line, rule: Rule::Layer, message });
        }
    }
    for circle in graph.circles() {
        for _ in 0..circle.n_rooms {
            let message = format!(
                "rooms import each other in a circle of {}: {}; break one of these imports",
                circle.n_rooms, circle.path
            );
            let path = format!("{}lib.rs", table.root);
            findings.push(Finding { path, line: 1, rule: Rule::Cycle, message });
        }
    }
    Ok(findings)
}

/// Files that are in no room.
fn rooms(table: &Crate, files: &[File], modules: &Modules) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let path = file.source.path.as_str();
        if !path.starts_with(table.root) || modules.is_test(path) {
            continue;
        }
        let module = modules.files.iter().find(|(known, _)| *known == path);
        let message = match module {
            None => "no module declares this file; declare or delete it".to_string(),
            Some(&(_, module)) if table.has_room(&modules.modules[module].path) => continue,
            Some(_) => format!("this file is in no room; move it into one, or add one to {TABLE}"),
        };
        findings.push(Finding { path: path.to_string(), line: 1, rule: Rule::Room, message });
    }
    findings
}
