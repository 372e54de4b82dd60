//! Index folders as ColBERT, fast-plaid and next-plaid write them.
//!
//! All have `metadata.json`, a codec, and chunks of documents: `doclens.{i}.json` (lengths in
//! tokens) with codes and bucket bytes of the same tokens, in ColBERT's bit order; all decode to
//! normalised tokens.
//!
//! | | ColBERT | fast-plaid, next-plaid |
//! |---|---|---|
//! | nbits | `config.nbits` | `nbits` |
//! | centroids | `centroids.pt` | `centroids.npy` |
//! | buckets | `buckets.pt`: (cutoffs, weights) | `bucket_cutoffs.npy`, `bucket_weights.npy` |
//! | codes of chunk `i` | `{i}.codes.pt` (I32) | `{i}.codes.npy` (I64) |
//! | residuals of chunk `i` | `{i}.residuals.pt` | `{i}.residuals.npy` |
//!
//! From version 1.7 on fast-plaid moves chunks into `merged_codes.npy` and `merged_residuals.npy`,
//! whose `.manifest.json` lists how many rows each chunk has there; a chunk's own file, where it is
//! there, is newer. Inverted lists, average residuals and documents' own data are not read.
//!
//! After `colbert/indexing` of ColBERT 0.2.22, `rust/index/create.rs` and
//! `python/fast_plaid/search` (`load.py`, `storage.py`) of fast-plaid 1.7.0, and `src/index.rs` of
//! next-plaid 1.8.5.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use maxsim::TokenLayout;
use maxsim::residual::{BitOrder, Codes, ResidualCodec, ResidualTokens};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::array::Array;
use super::pt;

/// Program whose files an index folder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexFormat {
    /// ColBERT's: `.pt` files.
    Colbert,
    /// Files of fast-plaid and next-plaid: `.npy`.
    Npy,
}

impl IndexFormat {
    /// Finds out by the file of centroids whose files the folder has.
    pub fn of(folder: &Path) -> Result<IndexFormat> {
        match ["centroids.pt", "centroids.npy"].map(|name| folder.join(name).is_file()) {
            [true, false] => Ok(IndexFormat::Colbert),
            [false, true] => Ok(IndexFormat::Npy),
            [true, true] => bail!("both centroids.pt and centroids.npy are there; remove one"),
            [false, false] => bail!("neither centroids.pt nor centroids.npy is there"),
        }
    }
}

/// Reads a whole index: its documents are the items, in the order of their numbers.
///
/// # Errors
/// Where a file is missing, broken or disagrees with another. `.pt` files that hold anything but
/// tensors are refused, and nothing in them is ever run.
pub fn read_index(folder: &Path) -> Result<ResidualTokens<'static>> {
    read(folder).with_context(|| folder.display().to_string())
}

/// Fields of `metadata.json`.
#[derive(Debug, Deserialize)]
struct Metadata {
    num_chunks: u64,
    num_embeddings: Option<u64>,
    num_documents: Option<u64>,
    nbits: Option<u32>,
    config: Option<Config>,
    /// Signs of embeddings in place of residuals (next-plaid).
    #[serde(default)]
    binary: bool,
}

/// Fields of ColBERT's configuration.
#[derive(Debug, Deserialize)]
struct Config {
    nbits: u32,
}

impl Metadata {
    /// Checks that the chunks are all there is: no document may be lost in silence.
    fn check_totals(
        &self,
        folder: &Path,
        format: IndexFormat,
        n_tokens: usize,
        n_documents: usize,
    ) -> Result<()> {
        let n_chunks = self.num_chunks;
        // ColBERT's updater adds to num_embeddings what was in it before: its totals say little.
        let says_little = format == IndexFormat::Colbert || self.num_embeddings.is_none();
        if says_little {
            let next = format!("doclens.{n_chunks}.json");
            let is_last = !folder.join(&next).exists();
            ensure!(is_last, "metadata.json: `num_chunks` is {n_chunks}, but there is {next}");
        }
        if format == IndexFormat::Colbert {
            return Ok(());
        }
        for (key, said, found, what) in [
            ("num_embeddings", self.num_embeddings, n_tokens, "tokens"),
            ("num_documents", self.num_documents, n_documents, "documents"),
        ] {
            ensure!(
                said.is_none_or(|said| said == found as u64),
                "metadata.json: `{key}` is {}, but the {n_chunks} chunks have {found} {what}",
                said.unwrap_or_default()
            );
        }
        Ok(())
    }
}

fn read(folder: &Path) -> Result<ResidualTokens<'static>> {
    let metadata: Metadata = json(&folder.join("metadata.json"))?;
    ensure!(!metadata.binary, "the index holds signs, not residuals");
    let format = IndexFormat::of(folder)?;
    let nbits = match format {
        IndexFormat::Colbert => metadata.config.as_ref().map(|config| config.nbits),
        IndexFormat::Npy => metadata.nbits,
    };
    let nbits = nbits.context("metadata.json: no `nbits`")?;
    let codec = codec(folder, format, nbits)?;
    let mut codes = Parts::new(folder, format, "codes");
    let mut residuals = Parts::new(folder, format, "residuals");
    let (mut all_codes, mut all_residuals, mut offsets) = (Vec::new(), Vec::new(), vec![0i64]);
    for chunk in 0..metadata.num_chunks {
        let name = format!("doclens.{chunk}.json");
        let lengths: Vec<u32> = json(&folder.join(&name))?;
        let start = offsets.last().copied().unwrap_or(0);
        let ends = lengths.iter().scan(start, |end, &len| {
            *end += i64::from(len);
            Some(*end)
        });
        offsets.extend(ends);
        let n = usize::try_from(offsets.last().copied().unwrap_or(0) - start)?;
        match codes.next(chunk, n)?.codes().with_context(|| codes.name(chunk))? {
            Codes::I32(codes) => all_codes.extend(codes.iter().copied().map(i64::from)),
            Codes::I64(codes) => all_codes.extend_from_slice(&codes),
        }
        let bytes = residuals.next(chunk, n)?.into_residuals(codec.row_bytes());
        all_residuals.extend(bytes.with_context(|| residuals.name(chunk))?);
    }
    metadata.check_totals(folder, format, all_codes.len(), offsets.len() - 1)?;
    let layout = TokenLayout::packed(all_codes.len(), codec.dim(), &offsets)?;
    let codec = codec.into();
    Ok(ResidualTokens::new(codec, all_codes, all_residuals, BitOrder::Colbert, layout)?)
}

fn codec(folder: &Path, format: IndexFormat, nbits: u32) -> Result<ResidualCodec<'static>> {
    let (centroids, cutoffs, weights) = match format {
        IndexFormat::Colbert => {
            let [cutoffs, weights] = of_pt(folder, "buckets.pt", pt::pair)?;
            (of_pt(folder, "centroids.pt", pt::tensor)?, cutoffs, weights)
        }
        IndexFormat::Npy => {
            let array = |name: &str| of_npy(&folder.join(name));
            let weights = array("bucket_weights.npy")?;
            (array("centroids.npy")?, array("bucket_cutoffs.npy")?, weights)
        }
    };
    let (centroids, dim) = centroids.centroids().context("centroids")?;
    let cutoffs = cutoffs.floats().context("bucket cutoffs")?;
    let weights = weights.floats().context("bucket weights")?;
    let codec = ResidualCodec::new(nbits, dim, centroids, &weights, true)?;
    Ok(codec.with_cutoffs(&cutoffs)?)
}

/// Codes or residuals, a chunk at a time.
struct Parts<'a> {
    folder: &'a Path,
    format: IndexFormat,
    what: &'static str,
    /// Tokens of the chunks so far.
    lens: Vec<usize>,
    /// Read when a chunk has no file of its own.
    merged: Option<Merged>,
}

/// Array that fast-plaid merged from chunks.
struct Merged {
    array: Array,
    /// Number of rows by the names of the chunks' files; `None` where the chunks' own lengths have
    /// to do.
    rows: Option<HashMap<String, MergedRows>>,
}

#[derive(Debug, Deserialize)]
struct MergedRows {
    rows: usize,
}

impl<'a> Parts<'a> {
    fn new(folder: &'a Path, format: IndexFormat, what: &'static str) -> Parts<'a> {
        Parts { folder, format, what, lens: Vec::new(), merged: None }
    }

    fn name(&self, chunk: u64) -> String {
        let ending = match self.format {
            IndexFormat::Colbert => "pt",
            IndexFormat::Npy => "npy",
        };
        format!("{chunk}.{}.{ending}", self.what)
    }

    /// Reads the array of a chunk, which has `n` tokens.
    fn next(&mut self, chunk: u64, n: usize) -> Result<Array> {
        self.lens.push(n);
        let name = self.name(chunk);
        let array = match self.format {
            IndexFormat::Colbert => of_pt(self.folder, &name, pt::tensor)?,
            IndexFormat::Npy if self.folder.join(&name).is_file() => {
                of_npy(&self.folder.join(&name))?
            }
            IndexFormat::Npy => self.of_merged(chunk, n)?,
        };
        let found = array.n_rows();
        ensure!(found == n, "{name}: {found} rows; doclens.{chunk}.json has {n} tokens");
        Ok(array)
    }

    fn of_merged(&mut self, chunk: u64, n: usize) -> Result<Array> {
        let name = self.name(chunk);
        let file = format!("merged_{}.npy", self.what);
        if self.merged.is_none() {
            let path = self.folder.join(&file);
            ensure!(path.is_file(), "neither {name} nor {file} is there");
            let manifest = self.folder.join(format!("merged_{}.manifest.json", self.what));
            let rows = if manifest.is_file() { Some(json(&manifest)?) } else { None };
            self.merged = Some(Merged { array: of_npy(&path)?, rows });
        }
        let merged = self.merged.as_ref().context("was just read")?;
        let start = (0..chunk).try_fold(0, |start: usize, earlier| {
            start.checked_add(self.merged_rows(merged, earlier)).context("too many rows")
        })?;
        let rows = self.merged_rows(merged, chunk);
        ensure!(rows == n, "{file}: {rows} rows of chunk {chunk}; its doclens have {n} tokens");
        let end = start.checked_add(n).filter(|&end| end <= merged.array.n_rows());
        let end = end.with_context(|| {
            format!("{file}: {} rows; chunk {chunk} is beyond them", merged.array.n_rows())
        })?;
        Ok(merged.array.rows(start..end))
    }

    /// How many rows of a chunk up to this one are merged.
    fn merged_rows(&self, merged: &Merged, chunk: u64) -> usize {
        match &merged.rows {
            Some(rows) => rows.get(&self.name(chunk)).map_or(0, |chunk| chunk.rows),
            None => self.lens[chunk as usize],
        }
    }
}

/// The name of a file, for messages.
fn named(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a regular file: opening a pipe without a writer would block.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    ensure!(fs::metadata(path)?.is_file(), "not a regular file");
    Ok(fs::read(path)?)
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let read = || -> Result<T> { Ok(serde_json::from_slice(&bytes(path)?)?) };
    read().with_context(|| named(path))
}

fn of_npy(path: &Path) -> Result<Array> {
    let read = || Array::of_npy(&bytes(path)?);
    read().with_context(|| named(path))
}

fn of_pt<T>(folder: &Path, name: &str, read: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let path: PathBuf = folder.join(name);
    read(&path).with_context(|| name.to_owned())
}
