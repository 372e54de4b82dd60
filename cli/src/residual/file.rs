//! The tool's own format; see the module's head.

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim::files::{self, type_name};
use maxsim::residual::ResidualTokens;
use serde_json::{Map, Value, json};

use crate::input::{Change, InputOptions, Reading, said_of_residual};
use crate::output::NewFile;
use crate::provenance::Notes;

/// An open file of residual-compressed tokens.
#[derive(Debug)]
pub struct ResidualFile(files::ResidualFile);

impl ResidualFile {
    /// Opens a file. Codes and buckets are not read yet when it is mapped.
    pub fn open(path: &Path, reading: Reading) -> Result<ResidualFile> {
        let options = InputOptions::new(reading).of_library();
        files::ResidualFile::open(path, &options).map(ResidualFile).map_err(said_of_residual)
    }

    /// Wraps an open file.
    pub(crate) fn new(file: files::ResidualFile) -> ResidualFile {
        ResidualFile(file)
    }

    /// Checks that a mapped file is as it was when it was opened.
    pub(crate) fn check_unchanged(&self, by: Change) -> Result<()> {
        self.0.check_unchanged(by).map_err(said_of_residual)
    }

    /// Borrows or copies the tokens, all of them checked: borrowed where the file has them on
    /// element boundaries.
    pub fn tokens(&self) -> Result<ResidualTokens<'_>> {
        self.0.tokens().map_err(said_of_residual)
    }

    /// The ids that the file gives its `n_items` items, where it does.
    pub(crate) fn ids(&self, n_items: usize) -> Result<Option<Vec<String>>> {
        self.0.ids(n_items).map_err(said_of_residual)
    }
}

/// Writes tokens to a file, which appears whole or not at all. Items are written one after the
/// other, in any layout; rows that no item has are dropped.
///
/// # Errors
/// For masked tokens, which the format has no place for, and where the file cannot be written.
pub fn write(path: &Path, tokens: &ResidualTokens<'_>) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = NewFile::create(path)?;
        let mut out = BufWriter::new(file.file());
        write_into(&mut out, tokens, None)?;
        out.flush()?;
        drop(out);
        Ok(file.publish()?)
    };
    write().with_context(|| path.display().to_string())
}

/// Writes as [`write`], to `out`, with notes about the tokens' source.
pub(crate) fn write_into(
    out: &mut dyn Write,
    tokens: &ResidualTokens<'_>,
    made_of: Option<&Notes>,
) -> Result<()> {
    ensure!(tokens.mask().is_none(), "masked tokens cannot be written; leave their rows out");
    let packed = Packed::new(tokens);
    let codec = tokens.codec();
    let (rows, dim) = (packed.codes.len(), codec.dim());
    let element = codec.centroids().element();
    let Some(centroids) = type_name(element.into()) else {
        bail!("{element} centroids are not written")
    };
    // From wide elements to narrow ones, so that each tensor starts on a boundary of its elements.
    let mut tensors = vec![
        Tensor::new(
            "offsets",
            "I64",
            &[packed.offsets.len()],
            bytemuck::cast_slice(&packed.offsets),
        ),
        Tensor::new("codes", "I32", &[rows], bytemuck::cast_slice(&packed.codes)),
    ];
    let weights = codec.bucket_weights();
    tensors.push(Tensor::new(
        "bucket_weights",
        "F32",
        &[weights.len()],
        bytemuck::cast_slice(weights),
    ));
    if let Some(cutoffs) = codec.bucket_cutoffs() {
        let bytes = bytemuck::cast_slice(cutoffs);
        tensors.push(Tensor::new("bucket_cutoffs", "F32", &[cutoffs.len()], bytes));
    }
    let table = codec.centroids().bytes();
    tensors.push(Tensor::new("centroids", centroids, &[codec.n_centroids(), dim], table));
    let shape = [rows, codec.row_bytes()];
    tensors.push(Tensor::new("residuals", "U8", &shape, &packed.residuals));
    let mut notes = json!({
        "format": files::ResidualFile::FORMAT,
        "version": files::ResidualFile::VERSION,
        "nbits": codec.nbits().to_string(),
        "bit_order": tokens.order().name(),
        "normalize": codec.normalize().to_string(),
    });
    for (key, value) in made_of.map(Notes::entries).unwrap_or_default() {
        notes[key] = value.into();
    }
    out.write_all(&header(&tensors, notes)?)?;
    tensors.iter().try_for_each(|tensor| out.write_all(tensor.bytes))?;
    Ok(())
}

/// A tensor to be written.
struct Tensor<'a> {
    name: &'static str,
    dtype: &'a str,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    fn new(name: &'static str, dtype: &'a str, shape: &[usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor { name, dtype, shape: shape.to_vec(), bytes }
    }
}

/// Length and JSON of the header. (The crate's own writer puts metadata in any order, so that equal
/// tokens would be unequal files.)
fn header(tensors: &[Tensor<'_>], notes: Value) -> Result<Vec<u8>> {
    let mut entries = Map::from_iter([("__metadata__".to_owned(), notes)]);
    let mut end = 0;
    for Tensor { name, dtype, shape, bytes } in tensors {
        let start = end;
        end += bytes.len();
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
        entries.insert((*name).to_owned(), entry);
    }
    let mut json = serde_json::to_vec(&entries)?;
    // Data start on a boundary of 8 bytes.
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// Items one after the other.
struct Packed<'a> {
    offsets: Vec<i64>,
    codes: Cow<'a, [i32]>,
    residuals: Cow<'a, [u8]>,
}

impl<'a> Packed<'a> {
    fn new(tokens: &'a ResidualTokens<'_>) -> Packed<'a> {
        let layout = tokens.layout();
        let mut offsets = vec![0];
        let mut end = 0;
        for item in 0..layout.n_items() {
            end += layout.item_len(item) as i64;
            offsets.push(end);
        }
        let row_bytes = tokens.codec().row_bytes();
        let (codes, residuals) = (tokens.codes(), tokens.residuals());
        if tokens.is_packed() {
            return Packed { offsets, codes: codes.into(), residuals: residuals.into() };
        }
        let items = || (0..layout.n_items()).map(|item| layout.item_rows(item));
        let bytes = |rows: Range<usize>| &residuals[rows.start * row_bytes..rows.end * row_bytes];
        Packed {
            offsets,
            codes: items().flat_map(|rows| codes[rows].iter().copied()).collect(),
            residuals: items().flat_map(|rows| bytes(rows).iter().copied()).collect(),
        }
    }
}
