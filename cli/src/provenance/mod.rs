//! Checks that compressed documents were made of the documents that are searched.
//!
//! The `__metadata__` of a compressed file has:
//!
//! - `maxsim.source`: `tokens-1 ELEMENT DIGEST`, the [`TokenDigest`] of the embeddings, and their
//!   element type;
//! - `maxsim.source_identity`: which file that was, where a change of it would show (see
//!   `bytes/identity.rs` of the library's `files`);
//! - `maxsim.codes`: `codes-1 DIGEST`, the [`TokenDigest`] of the codes, scales and minima, and of
//!   the first digest.
//!
//! Writing them states that codes and scales are those that [`maxsim::Tokens::quantize`] makes.
//! `maxsim rank --screen` compares both digests with the files that it is given. A file is read for
//! that once; the result is remembered by the file's identity until it changes. Without such
//! metadata every row is compared with its codes: if none is further off than the bounds assume,
//! the bounds hold, whatever program made the codes.

mod cache;
mod digest;

use std::fmt;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use maxsim::digest::{TokenDigest, TokenHasher};
use maxsim::format::Element;

use self::cache::Cache;
pub(crate) use self::digest::Digests;
use crate::args::Verify;
use crate::input::{Change, Reading, TokenFile, settle};
use crate::texts::{chain, printable};

/// Keys of the metadata.
const IDS: &str = "ids";
const SOURCE: &str = "maxsim.source";
const SOURCE_IDENTITY: &str = "maxsim.source_identity";
const CODES: &str = "maxsim.codes";

/// Versions of the digests.
const TOKENS_1: &str = "tokens-1";
const CODES_1: &str = "codes-1";

/// Notes of a compressed file about what it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The element type of the embeddings.
    pub element: String,
    /// Digest of the embeddings.
    pub source: TokenDigest,
    /// Identity of the file of the embeddings.
    pub identity: Option<String>,
    /// The digest of codes and scales. Residual codes have none.
    pub codes: Option<TokenDigest>,
    /// The ids of the items, as JSON, where they have names.
    pub ids: Option<String>,
}

impl Notes {
    /// Notes with placeholders of the digests, which are not known yet, as long as the final ones.
    pub fn empty<T: Element>(file: &TokenFile) -> Notes {
        let zero = TokenHasher::of_elements(T::TYPE, file.layout().dim()).finish();
        Notes {
            element: T::TYPE.name().to_owned(),
            source: zero,
            identity: file.identity(),
            codes: Some(zero),
            ids: None,
        }
    }

    /// The entries of the metadata.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let source = format!("{TOKENS_1} {} {}", self.element, self.source);
        let codes = self.codes.map(|codes| (CODES, format!("{CODES_1} {codes}")));
        let identity = self.identity.clone().map(|identity| (SOURCE_IDENTITY, identity));
        let ids = self.ids.clone().map(|ids| (IDS, ids));
        codes.into_iter().chain([(SOURCE, source)]).chain(identity).chain(ids).collect()
    }

    /// Reads the notes of a file; `None` where it has none that this program knows.
    fn of(file: &TokenFile) -> Option<Notes> {
        let source = file.note(SOURCE)?;
        let (element, digest) =
            source.strip_prefix(TOKENS_1)?.strip_prefix(' ')?.split_once(' ')?;
        let codes = file.note(CODES)?;
        let codes = codes.strip_prefix(CODES_1)?.strip_prefix(' ')?;
        Some(Notes {
            element: element.to_owned(),
            source: digest.parse().ok()?,
            identity: file.note(SOURCE_IDENTITY),
            codes: Some(codes.parse().ok()?),
            ids: None,
        })
    }
}

/// Why compressed documents are known to be those of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The codes have notes, and digests agree.
    Digests,
    /// Every row was compared with its codes, in this run or an earlier one.
    Rows {
        /// Whether it was an earlier one.
        is_remembered: bool,
    },
    /// There is no proof.
    None,
}

impl Proof {
    /// Whether places can be proven.
    pub fn holds(self) -> bool {
        self != Proof::None
    }
}

/// Prints a note for the user.
impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proof::Digests => Ok(()),
            Proof::Rows { is_remembered } => {
                let when = if *is_remembered { "an earlier run" } else { "this run" };
                write!(
                    f,
                    "note: --screen does not say what it was made of; {when} compared its codes \
                     with all rows of --documents, and proofs rest on that"
                )
            }
            Proof::None => write!(
                f,
                "note: with --verify never nothing is proven: that --screen was made of \
                 --documents rests on your word"
            ),
        }
    }
}

/// Finds out whether `screen` was made of `documents`.
///
/// # Errors
/// Where it was not, and where its codes are not those that were written.
pub(crate) fn check(screen: &TokenFile, documents: &TokenFile, verify: Verify) -> Result<Proof> {
    let files = Files { screen, documents, verify, cache: Cache::of_user() };
    let proof = match (verify, Notes::of(screen)) {
        (Verify::Never, _) => return Ok(Proof::None),
        (_, Some(notes)) => files.check_digests(&notes)?,
        (_, None) => files.check_rows()?,
    };
    // The digested files must be those that are scored, now and at the end of the run.
    check_unchanged(screen, documents)?;
    Ok(proof)
}

/// Checks that both files are as they were when they were opened.
pub(crate) fn check_unchanged(screen: &TokenFile, documents: &TokenFile) -> Result<()> {
    screen.check_unchanged(Change::Any)?;
    documents.check_unchanged(Change::Any)
}

struct Files<'a> {
    screen: &'a TokenFile,
    documents: &'a TokenFile,
    verify: Verify,
    cache: Cache,
}

impl Files<'_> {
    fn check_digests(&self, notes: &Notes) -> Result<Proof> {
        let element = self.documents.contents().format;
        if element.name() != notes.element {
            bail!(
                self.other(&format!(
                    "that was made of {} tokens, these are {element}",
                    notes.element
                ))
            );
        }
        let identity = self.documents.identity();
        let is_recorded =
            self.verify == Verify::Identity && identity.is_some() && identity == notes.identity;
        if !is_recorded {
            let found = self.known("tokens", identity, || digest::of_elements(self.documents))?;
            if found != notes.source {
                let what = match digest::first_other_row(self.screen, self.documents)? {
                    Some([item, token]) => {
                        format!(
                            "token {token} of document {item} is not the one that was compressed"
                        )
                    }
                    None => "some tokens differ, by less than codes show".into(),
                };
                bail!(self.other(&what));
            }
        }
        let of_codes = || digest::of_codes(self.screen, &notes.source);
        if Some(self.known("codes", self.screen.identity(), of_codes)?) != notes.codes {
            bail!(
                "--screen {}: its codes, scales or offsets are not those that it was written with; \
                 the file is damaged or was put together from others: {}",
                self.screen.path().display(),
                self.advice()
            );
        }
        Ok(Proof::Digests)
    }

    /// Returns the digest of a file: the remembered one, or else what `find` computes, which is
    /// then remembered.
    fn known(
        &self,
        what: &str,
        identity: Option<String>,
        find: impl FnOnce() -> Result<TokenDigest>,
    ) -> Result<TokenDigest> {
        let key = identity.map(|identity| format!("{what} {identity}"));
        if let (Some(key), Verify::Identity) = (&key, self.verify)
            && let Some(known) = self.cache.get(key).and_then(|known| known.parse().ok())
        {
            return Ok(known);
        }
        let found = find()?;
        if let Some(key) = key {
            // A result about a file that changed meanwhile is void.
            check_unchanged(self.screen, self.documents)?;
            self.remember(&key, &found.to_string());
        }
        Ok(found)
    }

    /// Remembers a result. A failure costs only the time of the next run.
    fn remember(&self, key: &str, value: &str) {
        if let Err(why) = self.cache.put(key, value) {
            let why = printable(&chain(&why));
            let _ = writeln!(
                std::io::stderr(),
                "warning: cannot remember which files were verified, so every run reads them \
                 again: {why}; MAXSIM_CACHE_DIR names another folder"
            );
        }
    }

    fn check_rows(&self) -> Result<Proof> {
        let both = self.screen.identity().zip(self.documents.identity());
        let key = both.map(|(screen, documents)| format!("rows {screen} of {documents}"));
        if let (Some(key), Verify::Identity) = (&key, self.verify)
            && self.cache.get(key).is_some()
        {
            return Ok(Proof::Rows { is_remembered: true });
        }
        if let Some([item, token]) = digest::first_other_row(self.screen, self.documents)? {
            bail!(
                "{}; with --verify never it is used all the same, and nothing is proven",
                self.other(&format!(
                    "token {token} of document {item} is further from its codes than errors of \
                     {} reach",
                    self.screen.contents().format
                ))
            );
        }
        if let Some(key) = key {
            check_unchanged(self.screen, self.documents)?;
            self.remember(&key, "within");
        }
        Ok(Proof::Rows { is_remembered: false })
    }

    /// The error for a screen that was not made of the documents.
    fn other(&self, what: &str) -> anyhow::Error {
        anyhow!(
            "--screen {} was not made of --documents {}: {what}; {}",
            self.screen.path().display(),
            self.documents.path().display(),
            self.advice()
        )
    }

    fn advice(&self) -> String {
        let format = self.screen.contents().format;
        let documents = self.documents.path().display();
        format!(
            "compress the documents again with `maxsim quantize --format {format} --input \
             {documents}`"
        )
    }
}

/// Files of fewer bytes are not waited for: the first run that searches them digests them in no
/// time.
const WAITED_FOR_BYTES: u64 = 64 << 20;

/// Remembers the digest of codes that were just written to a file, so that the first run that
/// searches them need not read them for it. Where that does not work, the run does it.
pub(crate) fn remember_written(path: &Path, codes: &TokenDigest) {
    if std::fs::metadata(path).is_ok_and(|found| found.len() >= WAITED_FOR_BYTES) {
        settle(path);
    }
    let file = TokenFile::open(path, Reading::Map).ok();
    if let Some(identity) = file.and_then(|file| file.identity()) {
        let _ = Cache::of_user().put(&format!("codes {identity}"), &codes.to_string());
    }
}

/// The digest of a file's embeddings, with the bar of a run that waits for it.
pub(crate) fn source_of(file: &TokenFile) -> Result<TokenDigest> {
    digest::of_elements(file).with_context(|| file.path().display().to_string())
}
