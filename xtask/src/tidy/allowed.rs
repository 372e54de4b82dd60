//! The table of exceptions: how often a file may still break a rule.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{ALLOWED, Finding, Rule};

const HEADER: &str = "\
# How many findings of a rule a file may still have. Counts may only go down: mend the findings,
# then run `cargo xtask tidy --lower`. Lines: rule, path, count.
";

/// Counts by rule and path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    counts: BTreeMap<(Rule, String), usize>,
}

impl Allowed {
    /// Reads the table.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| ALLOWED.to_string())?;
        Self::parse(&text)
    }

    /// Writes the table.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.text()).with_context(|| ALLOWED.to_string())
    }

    /// Reads the text of a table.
    pub fn parse(text: &str) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = Self::entry(line);
            let (key, count) = entry.with_context(|| {
                format!("{ALLOWED}:{number}: not a rule, a path and a count: {line}")
            })?;
            if counts.insert(key, count).is_some() {
                bail!("{ALLOWED}:{number}: the second line of this rule and path");
            }
        }
        Ok(Self { counts })
    }

    fn entry(line: &str) -> Option<((Rule, String), usize)> {
        let mut words = line.split_whitespace();
        let (rule, path, count) = (words.next()?, words.next()?, words.next()?);
        let rule = Rule::ALL.into_iter().find(|known| known.name() == rule)?;
        let count = count.parse().ok().filter(|&count| count > 0)?;
        words.next().is_none().then(|| ((rule, path.to_string()), count))
    }

    /// The text of the table.
    pub fn text(&self) -> String {
        let mut text = HEADER.to_string();
        for ((rule, path), count) in &self.counts {
            writeln!(text, "{} {path} {count}", rule.name()).expect("strings take all text");
        }
        text
    }

    /// How many findings are allowed in all.
    pub fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// Lists what is wrong: findings beyond what is allowed, and entries that are too high.
    pub fn compare(&self, findings: &[Finding]) -> Vec<String> {
        let found = Self::of(findings);
        let mut wrong = Vec::new();
        for ((rule, path), &count) in &found.counts {
            let allowed = self.count(*rule, path);
            if count <= allowed {
                continue;
            }
            if allowed > 0 {
                wrong.push(format!(
                    "{path}: {count} findings of the rule `{}`, where {ALLOWED} has {allowed}; \
                     mend the new ones among these",
                    rule.name()
                ));
            }
            let of_rule = findings.iter().filter(|x| x.rule == *rule && x.path == *path);
            let mut lines: Vec<String> = of_rule.map(Finding::to_string).collect();
            lines.dedup();
            wrong.extend(lines);
        }
        for ((rule, path), &allowed) in &self.counts {
            let count = found.count(*rule, path);
            if count < allowed {
                wrong.push(format!(
                    "{path}: {count} findings of the rule `{}`, where {ALLOWED} still has \
                     {allowed}; run `cargo xtask tidy --lower`",
                    rule.name()
                ));
            }
        }
        wrong
    }

    /// The table of what is there, where that is no more than this one allows: a file that is not
    /// in the table may have findings that others had, since files are moved and split.
    pub fn lowered(&self, findings: &[Finding]) -> Result<Self> {
        let found = Self::of(findings);
        for rule in Rule::ALL {
            let total = |table: &Self| {
                let of_rule = table.counts.iter().filter(|((known, _), _)| *known == rule);
                of_rule.map(|(_, count)| count).sum::<usize>()
            };
            let (before, now) = (total(self), total(&found));
            if now > before {
                bail!(
                    "{now} findings of the rule `{}`, where {ALLOWED} has {before} in all; mend \
                     them first (`cargo xtask tidy` lists them)",
                    rule.name()
                );
            }
        }
        for ((rule, path), &count) in &found.counts {
            let allowed = self.count(*rule, path);
            if allowed > 0 && count > allowed {
                bail!(
                    "{path}: {count} findings of the rule `{}`, where {ALLOWED} has {allowed}; \
                     mend the new ones first (`cargo xtask tidy` lists them)",
                    rule.name()
                );
            }
        }
        Ok(found)
    }

    fn of(findings: &[Finding]) -> Self {
        let mut counts = BTreeMap::new();
        for finding in findings {
            *counts.entry((finding.rule, finding.path.clone())).or_default() += 1;
        }
        Self { counts }
    }

    fn count(&self, rule: Rule, path: &str) -> usize {
        self.counts.get(&(rule, path.to_string())).copied().unwrap_or(0)
    }
}
