//! Token embeddings in a `.safetensors` file.
//!
//! Packed: `embeddings` `[rows, dim]` with `offsets` `[n + 1]` or `lengths` `[n]`. Padded:
//! `embeddings` `[n, len, dim]`, optionally with `lengths` `[n]` or a `mask` `[n, len]`. Offsets
//! and lengths are i64 or i32; other tensors are left alone where their shape could be none of
//! these.
//!
//! The type of `embeddings` says how they are stored. Codes come with `scales`, one per row: of the
//! shape of `embeddings` without its last dimension.
//!
//! | type | format | besides |
//! |---|---|---|
//! | F16, BF16, F32 | the elements | |
//! | I8 | INT8: code · scale | `scales` F16 or F32 |
//! | U8 | INT8 affine: code · scale + min | `scales` and `mins`, F16 |
//! | F8_E4M3 | FP8: code · scale | `scales` F16 or F32; or F32 `[1]` for all rows |

use std::borrow::Cow;
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::contents::{Contents, ScalesPlace};
use super::error::{Advice, Context, FileError, Result, bail, ensure};
use super::items::{Beside, Matrix, integers, items};
use super::options::FileOptions;
use super::tensors::{self, Listed};
use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;
use crate::tokens::scales::ScaleType;

/// Bytes of the header's length at the start of the file.
const LEN_BYTES: usize = 8;

/// Largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the contents of a file of embeddings; `files` describe the items, too.
pub(super) fn parse(bytes: &[u8], options: &FileOptions, files: &[Beside<'_>]) -> Result<Contents> {
    let tensors = Tensors::parse(bytes)?;
    if is_residual(&tensors) {
        let error = FileError::new("the tokens are residual-compressed");
        return Err(error.advise(Advice::Residual));
    }
    let listed = tensors.listed();
    let embeddings = tensors::embeddings(&listed, options)?;
    let name = &listed[embeddings].name;
    let (info, data) = tensors.needed(name)?;
    let Some(format) = format_of(info.dtype) else {
        bail!(
            "{name} are {:?}; expected F16, BF16 or F32, or I8, U8 or F8_E4M3 with scales",
            info.dtype
        )
    };
    let known: &[&str] = match format {
        TokenFormat::Element(_) => &[],
        _ => &["scales", "mins"],
    };
    let beside = tensors.beside(&listed, embeddings, known, options, files)?;
    let (&dim, tokens) = info.shape.split_last().unwrap_or((&0, &[]));
    let items = items(&Matrix { name, tokens, dim, last: ", dim" }, &beside)?;
    let scales = match format {
        TokenFormat::Element(_) => None,
        _ => Some(scales_place(&tensors, format, &info.shape)?),
    };
    Ok(Contents::new(format, data, scales, items))
}

/// Value of the key `format` of residual-compressed tokens.
pub(super) const RESIDUAL: &str = "maxsim-residual";

/// Whether a file claims to have residual-compressed tokens, broken or not.
pub(super) fn is_residual(tensors: &Tensors<'_>) -> bool {
    tensors.note("format") == Some(RESIDUAL)
}

/// Name of the element type that a `.safetensors` file has where rows are stored in a format;
/// `None` of formats that are not stored row by row.
///
/// ```
/// use maxsim::files::type_name;
/// use maxsim::format::{ElementType, TokenFormat};
///
/// assert_eq!(type_name(ElementType::Bf16.into()), Some("BF16"));
/// assert_eq!(type_name(TokenFormat::Fp8), Some("F8_E4M3"));
/// ```
pub fn type_name(format: TokenFormat) -> Option<&'static str> {
    Some(match format {
        TokenFormat::Element(ElementType::F16) => "F16",
        TokenFormat::Element(ElementType::Bf16) => "BF16",
        TokenFormat::Element(ElementType::F32) => "F32",
        TokenFormat::Int8 => "I8",
        TokenFormat::Int8Affine => "U8",
        TokenFormat::Fp8 => "F8_E4M3",
        _ => return None,
    })
}

/// The format that files store so.
pub(super) fn format_of(dtype: Dtype) -> Option<TokenFormat> {
    let elements = ElementType::ALL.map(TokenFormat::from);
    let mut formats = elements.into_iter().chain(TokenFormat::QUANTIZED);
    let name = format!("{dtype:?}");
    formats.find(|&format| type_name(format) == Some(name.as_str()))
}

/// Finds the scales of codes of a shape, and minima where the format has them.
fn scales_place(
    tensors: &Tensors<'_>,
    format: TokenFormat,
    codes: &[usize],
) -> Result<ScalesPlace> {
    let rows = &codes[..codes.len() - 1];
    let of_rows = |name: &str| {
        let found = tensors.get(name)?;
        found.with_context(|| format!("{format} embeddings need a tensor `{name}` {rows:?}"))
    };
    let (info, scales) = of_rows("scales")?;
    let storage = match (info.dtype, format) {
        (Dtype::F16, _) => ScaleType::F16,
        (Dtype::F32, TokenFormat::Fp8) if info.shape == [1] => ScaleType::Tensor,
        (Dtype::F32, format) if !format.has_mins() => ScaleType::F32,
        (other, _) => bail!("`scales` of {format} embeddings are {other:?}"),
    };
    if storage != ScaleType::Tensor {
        ensure!(info.shape == rows, "`scales` have shape {:?}; expected {rows:?}", info.shape);
    }
    let mins = if format.has_mins() {
        let (info, mins) = of_rows("mins")?;
        ensure!(info.dtype == Dtype::F16, "`mins` are {:?}; expected F16", info.dtype);
        ensure!(info.shape == rows, "`mins` have shape {:?}; expected {rows:?}", info.shape);
        Some(mins)
    } else {
        None
    };
    Ok(ScalesPlace { scales, storage, mins })
}

/// The file's header, and the bytes that it describes.
pub(super) struct Tensors<'a> {
    metadata: Metadata,
    bytes: &'a [u8],
    data_start: usize,
}

impl<'a> Tensors<'a> {
    /// The crate's own entry point adds sizes from the header without a check, so only its
    /// header type is used: it checks shapes, element types and data offsets of each tensor
    /// against each other. Against the file they are checked here.
    pub fn parse(bytes: &'a [u8]) -> Result<Tensors<'a>> {
        let (len_bytes, rest) =
            bytes.split_first_chunk::<LEN_BYTES>().context("too short for a safetensors file")?;
        let header_bytes = u64::from_le_bytes(*len_bytes);
        ensure!(
            header_bytes <= MAX_HEADER_BYTES,
            "not a safetensors file: a header of {header_bytes} bytes"
        );
        let header = rest
            .get(..header_bytes as usize)
            .with_context(|| format!("cut off within the header of {header_bytes} bytes"))?;
        let metadata: Metadata = serde_json::from_slice(header)
            .map_err(FileError::of)
            .context("the safetensors header is broken")?;
        let (expected, found) = (metadata.data_len(), rest.len() - header.len());
        ensure!(
            expected == found,
            "the header describes {expected} bytes of tensors, the file has {found}"
        );
        Ok(Tensors { metadata, bytes, data_start: LEN_BYTES + header.len() })
    }

    /// A string of the header's `__metadata__`.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// A tensor's description and its bytes' place in the file.
    pub fn get(&self, name: &str) -> Result<Option<(&TensorInfo, Range<usize>)>> {
        let Some(info) = self.metadata.info(name) else { return Ok(None) };
        let place = |offset: usize| {
            self.data_start.checked_add(offset).filter(|&place| place <= self.bytes.len())
        };
        let (start, end) = info.data_offsets;
        match (place(start), place(end)) {
            (Some(start), Some(end)) if start <= end => Ok(Some((info, start..end))),
            _ => bail!("tensor `{name}` lies outside the file"),
        }
    }

    /// As [`Tensors::get`], of a tensor that must be there.
    pub fn needed(&self, name: &str) -> Result<(&TensorInfo, Range<usize>)> {
        self.get(name)?.with_context(|| format!("no tensor `{name}`"))
    }

    /// Reads a vector of i64 or i32, at any alignment.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some((info, range)) = self.get(name)? else { return Ok(None) };
        let bytes = Cow::Borrowed(&self.bytes[range]);
        let (dtype, shape) = (info.dtype, info.shape.clone());
        integers(&Beside { name: name.into(), role: None, dtype, shape, bytes }).map(Some)
    }

    /// All tensors, by name.
    pub fn listed(&self) -> Vec<Listed> {
        let tensors = self.metadata.tensors().into_iter().map(|(name, info)| Listed {
            name,
            dtype: Some(info.dtype),
            shape: info.shape.clone(),
        });
        let mut tensors: Vec<Listed> = tensors.collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    /// Lists the tensors that say where items are, or could: those beside tensor number
    /// `embeddings`, but not those of names in `known`; and `files`.
    pub fn beside<'b>(
        &self,
        listed: &[Listed],
        embeddings: usize,
        known: &[&str],
        options: &FileOptions,
        files: &'b [Beside<'_>],
    ) -> Result<Vec<Beside<'b>>>
    where
        'a: 'b,
    {
        let of_file = tensors::beside(listed, embeddings, known, options);
        let of_file = of_file.into_iter().map(|(i, role)| {
            let (info, range) = self.needed(&listed[i].name)?;
            let bytes = if role.is_some() { &self.bytes[range] } else { &[] };
            Ok(Beside {
                name: listed[i].name.clone(),
                role,
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: Cow::Borrowed(bytes),
            })
        });
        let files = files
            .iter()
            .map(|file| Ok(Beside { bytes: Cow::Borrowed(&*file.bytes), ..file.clone() }));
        of_file.chain(files).collect()
    }
}
