//! The tool's own format; see the module's head.

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use maxsim::TokenLayout;
use maxsim::format::{TokenFormat, with_element};
use maxsim::residual::{BitOrder, Centroids, Codes, ResidualCodec, ResidualTokens};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::input::items::{Items, items};
use crate::input::{
    Change, FileBytes, InputOptions, Matrix, Reading, Tensors, dtype_of, elements, format_of, ids,
    stated_files,
};
use crate::output::NewFile;
use crate::provenance::Notes;

const FORMAT: &str = "maxsim-residual";
const VERSION: &str = "1";

/// Tensors that do not describe the items, whatever shape they have.
const KNOWN: &[&str] = &["residuals", "centroids", "bucket_weights", "bucket_cutoffs"];

/// An open file of residual-compressed tokens.
#[derive(Debug)]
pub struct ResidualFile {
    bytes: FileBytes,
    options: InputOptions,
}

impl ResidualFile {
    /// Opens a file. Codes and buckets are not read yet when it is mapped.
    pub fn open(path: &Path, reading: Reading) -> Result<ResidualFile> {
        let bytes = FileBytes::open(path, reading).with_context(|| path.display().to_string())?;
        Ok(ResidualFile::with(bytes, &InputOptions::new(reading)))
    }

    /// Reads a whole file's bytes, with options.
    pub(crate) fn with(bytes: FileBytes, options: &InputOptions) -> ResidualFile {
        ResidualFile { bytes, options: options.clone() }
    }

    /// Checks that a mapped file is as it was when it was opened.
    pub(crate) fn check_unchanged(&self, by: Change) -> Result<()> {
        self.bytes.check_unchanged(by)
    }

    /// Borrows or copies the tokens, all of them checked: borrowed where the file has them on
    /// element boundaries.
    pub fn tokens(&self) -> Result<ResidualTokens<'_>> {
        tokens(&self.bytes, &self.options)
    }

    /// The ids that the file gives its `n_items` items, where it does.
    pub(crate) fn ids(&self, n_items: usize) -> Result<Option<Vec<String>>> {
        ids::of(&Tensors::parse(&self.bytes)?, n_items)
    }
}

/// Whether a file claims to be of this format, broken or not.
pub(crate) fn is_residual(tensors: &Tensors<'_>) -> bool {
    tensors.note("format") == Some(FORMAT)
}

/// The tokens in the bytes of a whole file.
fn tokens<'a>(bytes: &'a [u8], options: &InputOptions) -> Result<ResidualTokens<'a>> {
    ensure!(
        options.tensor.is_none(),
        "the tokens are residual-compressed, by tensors of fixed names; leave --tensor out, or \
         name that of the queries alone (--queries-tensor)"
    );
    let file = File { tensors: Tensors::parse(bytes)?, bytes };
    let (format, version) = (file.note("format")?, file.note("version")?);
    ensure!(format == FORMAT, "`format` is '{format}'; expected '{FORMAT}'");
    ensure!(version == VERSION, "`version` is '{version}'; this program reads '{VERSION}'");
    let nbits = file.note("nbits")?;
    let nbits =
        nbits.parse().with_context(|| format!("`nbits` is '{nbits}'; expected a number"))?;
    let normalize = match file.note("normalize")? {
        "true" => true,
        "false" => false,
        other => bail!("`normalize` is '{other}'; expected 'true' or 'false'"),
    };
    let order = file.note("bit_order")?;
    let order =
        BitOrder::ALL.into_iter().find(|known| known.name() == order).with_context(|| {
            let [one, other] = BitOrder::ALL.map(BitOrder::name);
            format!("`bit_order` is '{order}'; expected '{one}' or '{other}'")
        })?;
    let (centroids, dim) = file.centroids()?;
    let weights = file.floats("bucket_weights")?.context("no tensor `bucket_weights`")?;
    let mut codec = ResidualCodec::new(nbits, dim, centroids, &weights, normalize)?;
    if let Some(cutoffs) = file.floats("bucket_cutoffs")? {
        codec = codec.with_cutoffs(&cutoffs)?;
    }
    file.needed("residuals")?;
    let (codes, items) = file.codes(dim, options)?;
    let row_bytes = codec.row_bytes();
    let residuals = file.residuals(&items.layout, row_bytes)?;
    let Some(valid) = &items.valid else {
        return Ok(ResidualTokens::new(codec.into(), codes, residuals, order, items.layout)?);
    };
    let rows = 0..items.layout.rows();
    let codes = match &codes {
        Codes::I32(codes) => Codes::I32(
            valid.gather(bytemuck::cast_slice(codes), rows.clone(), 4)?.into_owned().into(),
        ),
        Codes::I64(codes) => Codes::I64(
            valid.gather(bytemuck::cast_slice(codes), rows.clone(), 8)?.into_owned().into(),
        ),
    };
    let residuals = valid.gather::<u8>(residuals, rows, row_bytes)?;
    Ok(ResidualTokens::new(codec.into(), codes, residuals, order, items.layout)?)
}

/// Element type, shape and bytes of a tensor.
type Found<'f, 'a> = (Dtype, &'f [usize], &'a [u8]);

/// The tensors of a file.
struct File<'a> {
    tensors: Tensors<'a>,
    bytes: &'a [u8],
}

impl<'a> File<'a> {
    fn note(&self, key: &str) -> Result<&str> {
        self.tensors.note(key).with_context(|| format!("no `{key}` in the metadata"))
    }

    fn tensor(&self, name: &str) -> Result<Option<Found<'_, 'a>>> {
        let found = self.tensors.get(name)?;
        Ok(found.map(|(info, range)| (info.dtype, info.shape.as_slice(), &self.bytes[range])))
    }

    fn needed(&self, name: &str) -> Result<Found<'_, 'a>> {
        self.tensor(name)?.with_context(|| format!("no tensor `{name}`"))
    }

    fn centroids(&self) -> Result<(Centroids<'a>, usize)> {
        let (dtype, shape, bytes) = self.needed("centroids")?;
        let &[_, dim] = shape else { bail!("`centroids` have shape {shape:?}; expected [n, dim]") };
        let Some(element) = format_of(dtype).and_then(TokenFormat::element) else {
            bail!("`centroids` are {dtype:?}; expected F16, BF16 or F32")
        };
        Ok((with_element!(element, T => elements::<T>(bytes)?.into()), dim))
    }

    /// A short vector of numbers.
    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some((dtype, shape, bytes)) = self.tensor(name)? else { return Ok(None) };
        ensure!(shape.len() == 1, "`{name}` has shape {shape:?}; expected one dimension");
        Ok(Some(match dtype {
            Dtype::F32 => elements::<f32>(bytes)?.into_owned(),
            Dtype::F16 => elements::<f16>(bytes)?.iter().map(|x| x.to_f32()).collect(),
            other => bail!("`{name}` are {other:?}; expected F32 or F16"),
        }))
    }

    /// Codes, and where the items are among them.
    fn codes(&self, dim: usize, options: &InputOptions) -> Result<(Codes<'a>, Items)> {
        let (dtype, shape, bytes) = self.needed("codes")?;
        let codes = match dtype {
            Dtype::I32 => Codes::I32(elements(bytes)?),
            Dtype::I64 => Codes::I64(elements(bytes)?),
            other => bail!("`codes` are {other:?}; expected I32 or I64"),
        };
        let listed = self.tensors.listed();
        let number = listed.iter().position(|tensor| tensor.name == "codes");
        let number = number.context("no tensor `codes`")?;
        let files = stated_files(options)?;
        let beside = self.tensors.beside(&listed, number, KNOWN, options, &files)?;
        let items = items(&Matrix { name: "`codes`", tokens: shape, dim, last: "" }, &beside)?;
        Ok((codes, items))
    }

    fn residuals(&self, layout: &TokenLayout, row_bytes: usize) -> Result<&'a [u8]> {
        let (dtype, shape, bytes) = self.needed("residuals")?;
        ensure!(dtype == Dtype::U8, "`residuals` are {dtype:?}; expected U8");
        let (_, codes, _) = self.needed("codes")?;
        let expected = [codes, &[row_bytes]].concat();
        ensure!(
            shape == expected,
            "`residuals` have shape {shape:?}; expected {expected:?}, for {} tokens of dim {}",
            layout.rows(),
            layout.dim()
        );
        Ok(bytes)
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
    let Some(centroids) = dtype_of(element.into()) else {
        bail!("{element} centroids are not written")
    };
    let centroids = format!("{centroids:?}");
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
    tensors.push(Tensor::new("centroids", &centroids, &[codec.n_centroids(), dim], table));
    let shape = [rows, codec.row_bytes()];
    tensors.push(Tensor::new("residuals", "U8", &shape, &packed.residuals));
    let mut notes = json!({
        "format": FORMAT,
        "version": VERSION,
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
