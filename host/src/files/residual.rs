//! Files of residual-compressed tokens, and files of either kind.

use std::path::{Path, PathBuf};

use half::f16;
use safetensors::Dtype;

use super::bytes::{Change, FileBytes, elements};
use super::error::{Advice, Context, FileError, Result, bail, ensure};
use super::format::FileFormat;
use super::ids;
use super::items::{Items, Matrix, items};
use super::options::FileOptions;
use super::safetensors::{RESIDUAL, Tensors, format_of, is_residual};
use super::token_file::{TokenFile, stated_files};
use crate::residual::{BitOrder, Centroids, Codes, ResidualCodec, ResidualTokens};
use crate::tokens::dispatch::with_element;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

/// Tensors that do not describe the items, whatever shape they have.
const KNOWN: &[&str] = &["residuals", "centroids", "bucket_weights", "bucket_cutoffs"];

/// An open file of residual-compressed tokens, as `maxsim quantize --format plaid` writes it.
///
/// It is a `.safetensors` file of
///
/// | tensor | element type | shape |
/// |---|---|---|
/// | `codes` | I32 or I64 | `[rows]`, or `[n, len]` where items are padded |
/// | `residuals` | U8 | `[rows, ceil(dim · nbits / 8)]`, or `[n, len, …]` |
/// | `centroids` | F16, BF16 or F32 | `[n_centroids, dim]` |
/// | `bucket_weights` | F32 or F16 | `[2^nbits]` |
/// | `bucket_cutoffs`, where tokens can be encoded | F32 or F16 | `[2^nbits - 1]` |
/// | `offsets`, with `codes` `[rows]` | I64 or I32 | `[n + 1]`: where items begin, and the end |
/// | `lengths`, optional with `codes` `[n, len]` | I64 or I32 | `[n]` |
///
/// and `__metadata__` with the strings
///
/// | key | value |
/// |---|---|
/// | `format` | `maxsim-residual` |
/// | `version` | `1` |
/// | `nbits` | `1`, `2`, `4` or `8` |
/// | `bit_order` | `colbert` or `little-endian` (see [`BitOrder`]) |
/// | `normalize` | `true` or `false`: whether decoded tokens are divided by their lengths |
///
/// Nothing is guessed: a file without one of these is refused. Other tensors and keys are ignored.
///
/// ```no_run
/// use maxsim::files::{Change, FileOptions, ResidualFile};
///
/// let file = ResidualFile::open("documents.plaid.safetensors", &FileOptions::default())?;
/// let tokens = file.tokens()?;
/// let names = file.ids(tokens.layout().n_items())?;
/// let decoded = tokens.decode::<f32>()?;
/// file.check_unchanged(Change::Content)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use maxsim::files::{FileOptions, ResidualFile};
///
/// let (format, version) = (ResidualFile::FORMAT, ResidualFile::VERSION);
/// let header = format!(r#"{{"__metadata__":{{"format":"{format}","version":"{version}"}}}}"#);
/// let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
/// let error = ResidualFile::from_bytes(file, &FileOptions::default()).tokens().unwrap_err();
/// assert_eq!(error.to_string(), "no `nbits` in the metadata");
/// ```
#[derive(Debug)]
pub struct ResidualFile {
    path: Option<PathBuf>,
    bytes: FileBytes,
    options: FileOptions,
}

impl ResidualFile {
    /// Value of the metadata's key `format`.
    pub const FORMAT: &'static str = RESIDUAL;
    /// Value of the metadata's key `version`.
    pub const VERSION: &'static str = "1";

    /// Opens a file. Codes and buckets are neither read nor checked yet.
    ///
    /// # Errors
    /// Where the file cannot be opened.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<ResidualFile, FileError> {
        let path = path.as_ref();
        let bytes = FileBytes::open(path, options.is_mapped).with_context(|| path.display())?;
        Ok(ResidualFile { path: Some(path.into()), bytes, options: options.clone() })
    }

    /// Takes the bytes of a whole file, as [`ResidualFile::open`].
    pub fn from_bytes(bytes: Vec<u8>, options: &FileOptions) -> ResidualFile {
        let bytes = FileBytes::in_memory(bytes);
        ResidualFile { path: None, bytes, options: options.clone() }
    }

    /// Borrows or copies the tokens, all of them checked: borrowed where the file has them on
    /// element boundaries.
    ///
    /// # Errors
    /// Where the file is broken, lacks something, or disagrees with itself.
    pub fn tokens(&self) -> Result<ResidualTokens<'_>, FileError> {
        self.with_path(tokens(&self.bytes, &self.options))
    }

    /// The ids that the file gives its `n_items` items: a tensor `ids` of whole numbers, or a JSON
    /// array under the key `ids` of the metadata.
    ///
    /// # Errors
    /// Where these are not one per item, or disagree.
    pub fn ids(&self, n_items: usize) -> Result<Option<Vec<String>>, FileError> {
        self.with_path(Tensors::parse(&self.bytes).and_then(|tensors| ids::of(&tensors, n_items)))
    }

    /// Checks that a mapped file is as it was when it was opened, as far as its size and times
    /// show. A file that was read cannot change.
    ///
    /// # Errors
    /// Where it is not.
    pub fn check_unchanged(&self, by: Change) -> Result<(), FileError> {
        self.with_path(self.bytes.check_unchanged(by))
    }

    /// Puts the file's name before an error.
    fn with_path<T>(&self, found: Result<T>) -> Result<T> {
        match &self.path {
            Some(path) => found.with_context(|| path.display()),
            None => found,
        }
    }
}

/// An open file of tokens of either kind.
#[derive(Debug)]
pub enum AnyFile {
    /// Embeddings, or codes with scales.
    Tokens(Box<TokenFile>),
    /// Residual-compressed tokens.
    Residual(Box<ResidualFile>),
}

impl AnyFile {
    /// Opens a file of either kind; the file itself says which one it is.
    ///
    /// # Errors
    /// Those of [`TokenFile::open`] and [`ResidualFile::open`].
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<AnyFile, FileError> {
        let path = path.as_ref();
        if FileFormat::of(path).ok() != Some(FileFormat::Safetensors) {
            return Ok(AnyFile::Tokens(Box::new(TokenFile::open(path, options)?)));
        }
        let open = || -> Result<AnyFile> {
            let bytes = FileBytes::open(path, options.is_mapped)?;
            if is_residual(&Tensors::parse(&bytes)?) {
                let (path, options) = (Some(path.into()), options.clone());
                return Ok(AnyFile::Residual(Box::new(ResidualFile { path, bytes, options })));
            }
            let file = TokenFile::of(bytes, FileFormat::Safetensors, options)?;
            Ok(AnyFile::Tokens(Box::new(file.named(path))))
        };
        open().with_context(|| path.display())
    }
}

/// The tokens in the bytes of a whole file.
fn tokens<'a>(bytes: &'a [u8], options: &FileOptions) -> Result<ResidualTokens<'a>> {
    if options.tensor.is_some() {
        let text = "the tokens are residual-compressed, by tensors of fixed names";
        return Err(FileError::new(text).advise(Advice::NoTensor));
    }
    let file = File { tensors: Tensors::parse(bytes)?, bytes };
    let (format, version) = (file.note("format")?, file.note("version")?);
    ensure!(format == RESIDUAL, "`format` is '{format}'; expected '{RESIDUAL}'");
    ensure!(
        version == ResidualFile::VERSION,
        "`version` is '{version}'; this program reads '{}'",
        ResidualFile::VERSION
    );
    let nbits = file.note("nbits")?;
    let nbits =
        nbits.parse().ok().with_context(|| format!("`nbits` is '{nbits}'; expected a number"))?;
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
    fn codes(&self, dim: usize, options: &FileOptions) -> Result<(Codes<'a>, Items)> {
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
