//! Token embeddings in a `.safetensors` file.
//!
//! Packed: `embeddings` `[rows, dim]` with `offsets` `[n + 1]`. Padded: `embeddings`
//! `[n, len, dim]`, optionally with `lengths` `[n]`. Offsets and lengths are i64 or i32;
//! other tensors are left alone.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use maxsim::{ElementType, TokenLayout};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{Contents, padded_layout, reserved};

/// Bytes of the header's length at the start of the file.
const LEN_BYTES: usize = 8;

/// Largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads what the file says of its embeddings.
pub(super) fn parse(bytes: &[u8]) -> Result<Contents> {
    let tensors = Tensors::parse(bytes)?;
    let (info, data) = tensors.get("embeddings")?.context("there is no tensor `embeddings`")?;
    let element = match info.dtype {
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        Dtype::F32 => ElementType::F32,
        other => bail!("embeddings are {other:?}; f16, bf16 and f32 are taken"),
    };
    let (offsets, lengths) = (tensors.integers("offsets")?, tensors.integers("lengths")?);
    let layout = match (info.shape.as_slice(), offsets, lengths) {
        (&[rows, dim], Some(offsets), None) => TokenLayout::packed(rows, dim, &offsets)?,
        (&[n, len, dim], None, lengths) => padded_layout([n, len, dim], lengths.as_deref())?,
        (&[_, _], None, _) => bail!("embeddings [rows, dim] need a tensor `offsets` [n + 1]"),
        (&[_, _], Some(_), Some(_)) => {
            bail!("embeddings [rows, dim] take `offsets`, not `lengths` too")
        }
        (&[_, _, _], Some(_), _) => {
            bail!("embeddings [n, len, dim] take `lengths`, not `offsets`")
        }
        (shape, ..) => {
            bail!("embeddings have shape {shape:?}; expected [rows, dim] or [n, len, dim]")
        }
    };
    Ok(Contents { element, data, layout })
}

/// The file's header, and the bytes that it describes.
pub(crate) struct Tensors<'a> {
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
        let metadata: Metadata =
            serde_json::from_slice(header).context("the safetensors header is broken")?;
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

    /// A vector of i64 or i32, wherever it lies.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some((info, range)) = self.get(name)? else { return Ok(None) };
        let &[n] = info.shape.as_slice() else {
            bail!("`{name}` has shape {:?}; expected one dimension", info.shape)
        };
        let bytes = &self.bytes[range];
        let mut values = reserved(n)?;
        match info.dtype {
            Dtype::I64 => {
                values.extend(bytes.as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b)));
            }
            Dtype::I32 => {
                let decode = |&b: &[u8; 4]| i64::from(i32::from_le_bytes(b));
                values.extend(bytes.as_chunks::<4>().0.iter().map(decode));
            }
            other => bail!("`{name}` is {other:?}; i64 and i32 are taken"),
        }
        Ok(Some(values))
    }
}
