//! Checks the documents: links lead somewhere, the README is short, decisions are in their index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::tree::{self, Source};
use super::{Finding, Rule};

/// Most lines of the README.
const README_LINES: usize = 150;
/// Folder of the decisions and of their index.
const DECISIONS: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";

/// Findings in the Markdown files of the tree at `root`.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let documents = tree::read_ending(root, &[".md"])?;
    Ok(find(&documents, |path| root.join(path).exists()))
}

/// Findings in documents; `exists` knows of all files and folders.
fn find(documents: &[Source], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|document| (&*document.path, anchors(&document.text))).collect();
    let mut findings = Vec::new();
    for document in documents {
        for (line, link) in links(&document.text) {
            if let Some(wrong) = broken(&document.path, &link, &anchors, &exists) {
                findings.push(finding(document, line, wrong));
            }
        }
        if document.path == "README.md" && document.text.lines().count() > README_LINES {
            let wrong = format!("more than {README_LINES} lines; move some to docs/guide");
            findings.push(finding(document, README_LINES + 1, wrong));
        }
        if document.path.starts_with(DECISIONS) && document.path != INDEX {
            findings.extend(decisions(document, documents));
        }
    }
    findings
}

fn finding(document: &Source, line: usize, message: String) -> Finding {
    Finding { path: document.path.clone(), line, rule: Rule::Document, message }
}

/// Lines of text that are in no block of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of links that stay in the tree, with their lines. A link's text may go over the end
/// of a line, its target does not.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            if !target.contains("://") && !target.is_empty() {
                links.push((number, target.to_string()));
            }
        }
    }
    links
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    // The text of a link counts in a heading.
    let text: String = heading.split("](").enumerate().fold(String::new(), |text, (i, part)| {
        let shown = if i == 0 { part } else { part.split_once(')').map_or("", |x| x.1) };
        text + shown
    });
    let kept = text.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Finds what is wrong with a link of the document at `path`, if anything is.
fn broken(
    path: &str,
    link: &str,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    exists: impl Fn(&str) -> bool,
) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let mut parts: Vec<&str> = path.split('/').collect();
    if !file.is_empty() {
        parts.pop();
        for part in file.split('/') {
            match part {
                ".." => drop(parts.pop()),
                "." | "" => {}
                part => parts.push(part),
            }
        }
    }
    let target = parts.join("/");
    if !exists(&target) {
        return Some(format!("the link {link} leads nowhere; there is no {target}"));
    }
    let known = anchors.get(target.as_str())?;
    let is_missing = !anchor.is_empty() && !known.contains(anchor);
    is_missing.then(|| format!("the link {link} leads to no heading of {target}"))
}

/// Decisions without a line of date and status, and those that the index does not have.
fn decisions(document: &Source, documents: &[Source]) -> Vec<Finding> {
    let index = documents.iter().find(|document| document.path == INDEX);
    let indexed: BTreeSet<String> = index.map_or_else(BTreeSet::new, |index| {
        links(&index.text).into_iter().map(|(_, link)| link).collect()
    });
    let name = &document.path[DECISIONS.len()..];
    let lines: Vec<&str> = document.text.lines().collect();
    let mut findings = Vec::new();
    for (number, line) in prose(&document.text) {
        let Some(heading) = line.strip_prefix("## ") else { continue };
        let status = lines.get(number).copied().unwrap_or_default();
        let date = status.strip_prefix("> ").and_then(|status| status.split_once(" · "));
        if !date.is_some_and(|(date, _)| date.starts_with("20")) {
            let wrong = "a decision has a line `> DATE · STATUS. One sentence.` below its heading";
            findings.push(finding(document, number, wrong.into()));
        }
        let link = format!("{name}#{}", anchor(heading));
        if !indexed.contains(&link) {
            let wrong = format!("the decision is not in {INDEX}; add a line with {link}");
            findings.push(finding(document, number, wrong));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(documents: &[(&str, &str)]) -> Vec<(String, usize, String)> {
        let sources: Vec<Source> = documents
            .iter()
            .map(|&(path, text)| Source { path: path.into(), text: text.into() })
            .collect();
        let exists = |path: &str| path == "host" || documents.iter().any(|x| x.0 == path);
        let findings = find(&sources, exists);
        findings.into_iter().map(|x| (x.path, x.line, x.message)).collect()
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let guide = "# A `b` c: d\n\n[x](../../README.md#top) [y](#a-b-c-d)\n[z](http://e.f/g)\n";
        let readme = "# Top\n\n[guide](docs/guide/a.md) and [host](host)\n";
        assert_eq!(found(&[("docs/guide/a.md", guide), ("README.md", readme)]), []);

        let readme = "# Top\n```text\n[x](no)\n```\n[x](docs/no.md) [y](#bottom)\n";
        let expected = [
            ("README.md", 5, "the link docs/no.md leads nowhere; there is no docs/no.md"),
            ("README.md", 5, "the link #bottom leads to no heading of README.md"),
        ];
        let expected = expected.map(|(path, line, wrong)| (path.into(), line, wrong.into()));
        assert_eq!(found(&[("README.md", readme)]), expected);
    }

    #[test]
    fn the_readme_is_short() {
        assert_eq!(found(&[("README.md", &"a\n".repeat(README_LINES))]), []);
        let findings = found(&[("README.md", &"a\n".repeat(README_LINES + 1))]);
        assert_eq!(findings[0].1, README_LINES + 1);
    }

    #[test]
    fn decisions_have_a_status_and_are_in_the_index() {
        let decisions = "# A\n\n## One `x`\n> 2026-01-02 · stands. It is.\n\nText.\n";
        let index = "[One](a.md#one-x)\n";
        let documents = [("docs/decisions/a.md", decisions), (INDEX, index)];
        assert_eq!(found(&documents), []);

        let documents = [("docs/decisions/a.md", "## One\nText.\n"), (INDEX, "")];
        let lines: Vec<usize> = found(&documents).iter().map(|x| x.1).collect();
        assert_eq!(lines, [1, 1]);
    }
}
