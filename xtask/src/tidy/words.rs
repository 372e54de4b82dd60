//! Words that comments do not use, and what they say instead.

use super::parse::{self, File};
use super::{Finding, Rule};

/// Words and phrases that say nothing certain, and what to write. The glossary has the field's
/// words.
const BANNED: &[(&str, &str)] = &[
    ("told", "say what is published, received or known"),
    ("tell", "`publish`, `report` or `distinguish`"),
    ("tells", "`publishes`, `reports` or `distinguishes`"),
    ("leave", "`store`, `write` or `keep`"),
    ("leaves", "`stores`, `writes` or `keeps`"),
    ("draw", "`fetch` (tiles, by the scheduler) or `generate` (at random)"),
    ("draws", "`fetches` (tiles, by the scheduler) or `generates` (at random)"),
    ("drawn", "`fetched` (tiles, by the scheduler) or `generated` (at random)"),
    ("on its way", "`in flight`"),
    ("on their way", "`in flight`"),
    ("go on", "`continue`"),
    ("goes on", "`continues`"),
    ("going on", "`in progress`"),
    ("takes in", "`accumulates` or `reads`"),
    ("take in", "`accumulate` or `read`"),
    ("nobody", "name what does not: `no thread`, `no call`"),
    ("nobody's business", "say which side may choose"),
    ("anybody", "name who: `any thread`, `any call`"),
    ("somebody", "name who: `another thread`, `a caller`"),
    ("whoever", "name who: the thread, the caller"),
    ("dealt out", "`distributed`"),
    ("deals out", "`distributes`"),
    ("goes along", "say what continues, and until when"),
    ("so-manieth", "`k-th`, or the index's name"),
    ("say to each other", "`host/device ABI`"),
    ("what is found of", "name the result"),
];

/// Findings in the comments of a file.
pub fn check(file: &File) -> Vec<Finding> {
    // This file lists the words.
    if file.source.path.ends_with("src/tidy/words.rs") {
        return Vec::new();
    }
    let lines = match parse::comment_lines(&file.source.text) {
        Ok(lines) => lines,
        Err(error) => {
            let message = format!("comments cannot be read: {error}");
            let path = file.source.path.clone();
            return vec![Finding { path, line: 1, rule: Rule::Word, message }];
        }
    };
    let mut findings = Vec::new();
    for (line, word) in words(&lines) {
        let instead = BANNED.iter().find(|(banned, _)| *banned == word).map_or("", |x| x.1);
        let message = format!("\"{word}\" in a comment; write instead: {instead}");
        findings.push(Finding { path: file.source.path.clone(), line, rule: Rule::Word, message });
    }
    findings
}

/// Banned words and phrases in lines of comments, also where a phrase goes over the end of a
/// line, and the lines where they begin. Where several begin with one word the longest counts.
fn words(lines: &[String]) -> Vec<(usize, &'static str)> {
    // Words of all comments one after the other; an empty line of no comment parts them.
    let mut all: Vec<(usize, String)> = Vec::new();
    for (line, content) in (1..).zip(lines) {
        if content.is_empty() {
            all.push((line, String::new()));
        }
        let is_inside = |c: char| c.is_alphanumeric() || c == '\'' || c == '-' || c == '_';
        let words = content.split(|c: char| !is_inside(c)).filter(|word| !word.is_empty());
        all.extend(words.map(|word| (line, word.to_lowercase())));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let begins = |phrase: &str| {
            let mut words = phrase.split(' ').zip(&all[at..]);
            words.all(|(word, (_, found))| word == found)
                && all.len() - at >= phrase.split(' ').count()
        };
        let longest = BANNED.iter().map(|x| x.0).filter(|x| begins(x)).max_by_key(|x| x.len());
        match longest {
            Some(phrase) => {
                found.push((all[at].0, phrase));
                at += phrase.split(' ').count();
            }
            None => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, &'static str)> {
        words(&parse::comment_lines(text).unwrap())
    }

    #[test]
    fn words_of_comments_alone_count() {
        assert_eq!(found("/// Nobody is told.\nfn told() {}\n"), [(1, "nobody"), (1, "told")]);
        assert_eq!(
            found("let told = \"nobody\"; // draw\nx/* leaves */;\n"),
            [(1, "draw"), (2, "leaves")]
        );
        assert_eq!(found("//! Units draws_early and redraw are names.\n"), []);
        assert_eq!(found("fn f() { let s = r#\"// told\"#; }\n"), []);
    }

    #[test]
    fn phrases_go_over_ends_of_lines() {
        assert_eq!(found("fn f() {}\n// A copy is on\n// its way.\n"), [(2, "on its way")]);
        assert_eq!(found("// Nobody's business.\n"), [(1, "nobody's business")]);
        // Not over code.
        assert_eq!(found("// It is on\n\nstruct A;\n// its way.\n"), []);
    }
}
