//! Files of token embeddings.
//!
//! A reader turns bytes into a [`Contents`]: where the matrix lies, its format and its layout,
//! everything checked. Embeddings are borrowed from the file, a range of items at a
//! time, so that a corpus need fit neither the device nor, mapped, host memory.

mod identity;
pub(crate) mod ids;
mod map;
pub(crate) mod npy;
mod safetensors;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use maxsim::{
    Element, ElementType, Quantized, ScaleType, Scales, TokenFormat, TokenLayout, Tokens,
};
use rayon::prelude::*;

use crate::ids::{Ids, Side};
pub(crate) use identity::{Change, settle};
pub(crate) use map::FileBytes;
pub use map::Reading;
pub(crate) use safetensors::Tensors;

/// Items of zero tokens cost a file nothing, but the program 9 bytes each: a padded array of
/// length 0 may have this many, so that a file of 100 bytes cannot ask for gigabytes.
const MAX_EMPTY_ITEMS: usize = 1 << 16;

/// Codes that a thread looks through at once.
const CODES_LEN: usize = 1 << 20;

/// File formats of token embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tensor `embeddings` with `offsets` or `lengths`.
    Safetensors,
    /// One padded array.
    Npy,
}

impl Format {
    /// The format that a file's name says it has.
    pub fn of(path: &Path) -> Result<Format> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Ok(Format::Safetensors),
            Some("npy") => Ok(Format::Npy),
            _ => bail!("the name must end in .safetensors or .npy"),
        }
    }
}

/// What a file of token embeddings holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// What the embeddings are stored as.
    pub format: TokenFormat,
    /// Where the matrix lies, in bytes from the start of the file: row-major, little-endian.
    pub data: Range<usize>,
    /// Where the scales of codes lie.
    pub scales: Option<ScalesPlace>,
    /// Rows, dim, and the rows of each item.
    pub layout: TokenLayout,
}

/// Where the scales of a compressed matrix lie, in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalesPlace {
    /// One per row, or one.
    pub scales: Range<usize>,
    /// What they are.
    pub storage: ScaleType,
    /// One f16 number per row, where rows are affine.
    pub mins: Option<Range<usize>>,
}

impl Contents {
    /// Reads the description of the embeddings out of a whole file's bytes.
    pub fn parse(bytes: &[u8], format: Format) -> Result<Contents> {
        match format {
            Format::Safetensors => safetensors::parse(bytes),
            Format::Npy => npy::parse(bytes),
        }
    }

    /// The embeddings of a range of items of `bytes`, the file that this was parsed from.
    /// Borrowed where the file has them on element boundaries, copied where it does not.
    pub fn tokens<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, T>> {
        let (rows, layout) = part(&self.layout, items)?;
        Ok(Tokens::from_layout(self.elements::<T>(bytes, rows)?, layout)?)
    }

    /// As [`Contents::tokens`], of compressed embeddings.
    pub fn codes<'a, F: Quantized>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, F>> {
        self.check_format(F::FORMAT)?;
        let (rows, layout) = part(&self.layout, items)?;
        let place = self.scales.as_ref().context("the codes have no scales")?;
        let part = |of: &Range<usize>, bytes_each: usize| {
            &bytes[of.clone()][rows.start * bytes_each..rows.end * bytes_each]
        };
        let scales = match (place.storage, &place.mins) {
            (ScaleType::F16, None) => Scales::F16(elements::<f16>(part(&place.scales, 2))?),
            (ScaleType::F16, Some(mins)) => Scales::Affine {
                scales: elements::<f16>(part(&place.scales, 2))?,
                mins: elements::<f16>(part(mins, 2))?,
            },
            (ScaleType::F32, _) => Scales::F32(elements::<f32>(part(&place.scales, 4))?),
            (ScaleType::Tensor, _) => {
                Scales::Tensor(bytemuck::pod_read_unaligned(&bytes[place.scales.clone()]))
            }
        };
        let codes = elements::<F::Stored>(&bytes[self.data.clone()][self.places(&rows)])?;
        Ok(Tokens::from_codes(codes, scales, layout)?)
    }

    /// A range of rows of `bytes`, the file that this was parsed from: `[n, dim]`.
    pub fn elements<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        rows: Range<usize>,
    ) -> Result<Cow<'a, [T]>> {
        self.check_format(T::TYPE.into())?;
        elements(&bytes[self.data.clone()][self.places(&rows)])
    }

    fn check_format(&self, format: TokenFormat) -> Result<()> {
        ensure!(format == self.format, "the embeddings are {}, not {format}", self.format);
        Ok(())
    }

    /// Where rows lie in the matrix, in bytes.
    fn places(&self, rows: &Range<usize>) -> Range<usize> {
        let row_bytes = self.layout.dim() * self.format.size_bytes();
        rows.start * row_bytes..rows.end * row_bytes
    }
}

/// Refuses the code -128, which no element is compressed to. The first of the rows is `first_row`
/// of the file.
fn check_int8(codes: &[u8], layout: &TokenLayout, first_row: usize) -> Result<()> {
    const WRONG: u8 = i8::MIN.cast_unsigned();
    if !codes.par_chunks(CODES_LEN).any(|codes| codes.contains(&WRONG)) {
        return Ok(());
    }
    // Rows of no item may hold anything.
    let mut rows = (0..layout.n_items()).flat_map(|item| layout.item_rows(item));
    let dim = layout.dim();
    let wrong = rows.find(|row| codes[row * dim..][..dim].contains(&WRONG));
    match wrong {
        Some(row) => {
            bail!("row {} has the code -128; int8 codes go from -127 to 127", first_row + row)
        }
        None => Ok(()),
    }
}

/// The rows of a range of items, and how the items lie in these.
pub(crate) fn part(
    layout: &TokenLayout,
    items: Range<usize>,
) -> Result<(Range<usize>, TokenLayout)> {
    let segments = &layout.segments()[items];
    let rows = rows(segments);
    // An empty item may start anywhere: it needs no row.
    let starts: Vec<i64> = segments
        .iter()
        .map(|&[start, len]| if len == 0 { 0 } else { i64::from(start) - rows.start as i64 })
        .collect();
    let lengths: Vec<i64> = segments.iter().map(|&[_, len]| i64::from(len)).collect();
    let layout = TokenLayout::scattered(rows.len(), layout.dim(), &starts, &lengths)?;
    Ok((rows, layout))
}

/// The rows from the first to the last token of some items.
fn rows(segments: &[[u32; 2]]) -> Range<usize> {
    let segments = segments.iter().filter(|segment| segment[1] > 0);
    let bounds = segments.fold(None, |bounds: Option<Range<usize>>, &[start, len]| {
        let (start, end) = (start as usize, start as usize + len as usize);
        Some(bounds.map_or(start..end, |b| b.start.min(start)..b.end.max(end)))
    });
    bounds.unwrap_or(0..0)
}

/// An open file of token embeddings.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    bytes: FileBytes,
    /// Where the file's own elements are not those to read.
    elements: Option<Vec<u8>>,
    contents: Contents,
}

impl TokenFile {
    /// Opens and checks a file; its embeddings are not read yet when it is mapped.
    pub fn open(path: &Path, reading: Reading) -> Result<TokenFile> {
        let open = || -> Result<TokenFile> {
            let format = Format::of(path)?;
            TokenFile::of(path, FileBytes::open(path, reading)?, format)
        };
        open().with_context(|| path.display().to_string())
    }

    /// Checks the bytes of a whole file.
    pub(crate) fn of(path: &Path, bytes: FileBytes, format: Format) -> Result<TokenFile> {
        let contents = Contents::parse(&bytes, format)?;
        Ok(TokenFile { path: path.into(), bytes, elements: None, contents })
    }

    /// The ids that the file gives its items.
    pub fn ids(&self, side: Side) -> Result<Ids> {
        let read = || match Format::of(&self.path)? {
            Format::Safetensors => ids::of(&Tensors::parse(&self.bytes)?, self.n_items()),
            Format::Npy => Ok(None),
        };
        let ids = read().with_context(|| self.path.display().to_string())?;
        Ids::stored(ids, &self.path, side, self.n_items())
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Format, layout, and place of the embeddings.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Rows, dim, and the rows of each item.
    pub fn layout(&self) -> &TokenLayout {
        &self.contents.layout
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.contents.layout.n_items()
    }

    /// The embeddings of a range of items.
    pub fn tokens<T: Element>(&self, items: Range<usize>) -> Result<Tokens<'_, T>> {
        self.contents.tokens(self.matrix(), items)
    }

    /// The compressed embeddings of a range of items. The code -128 of INT8 is refused.
    pub fn codes<F: Quantized>(&self, items: Range<usize>) -> Result<Tokens<'_, F>> {
        let read = || -> Result<Tokens<'_, F>> {
            let first_row = rows(&self.layout().segments()[items.clone()]).start;
            let codes = self.contents.codes::<F>(self.matrix(), items)?;
            if F::FORMAT == TokenFormat::Int8 {
                check_int8(bytemuck::cast_slice(codes.data()), codes.layout(), first_row)?;
            }
            Ok(codes)
        };
        read().with_context(|| self.path.display().to_string())
    }

    /// A range of rows `[n, dim]`, whatever items they belong to.
    pub fn elements<T: Element>(&self, rows: Range<usize>) -> Result<Cow<'_, [T]>> {
        self.contents.elements(self.matrix(), rows)
    }

    /// The same file with other elements in place of its own, as many as there are, in memory. Rows stay
    /// those of the file.
    pub(crate) fn with_elements(self, element: ElementType, elements: Vec<u8>) -> TokenFile {
        let contents = Contents {
            format: element.into(),
            data: 0..elements.len(),
            scales: None,
            ..self.contents
        };
        TokenFile { contents, elements: Some(elements), ..self }
    }

    /// What [`TokenFile::contents`] says the places of.
    fn matrix(&self) -> &[u8] {
        self.elements.as_deref().unwrap_or(&self.bytes)
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Layout of `[n, len, dim]`, of which an item may use fewer than `len` tokens.
pub(crate) fn padded_layout(
    [n, len, dim]: [usize; 3],
    lengths: Option<&[i64]>,
) -> Result<TokenLayout> {
    ensure!(
        len > 0 || n <= MAX_EMPTY_ITEMS,
        "embeddings: {n} items of 0 tokens each; at most {MAX_EMPTY_ITEMS} empty items are taken"
    );
    let layout = TokenLayout::padded(n, len, dim)?;
    Ok(match lengths {
        Some(lengths) => layout.with_lengths(lengths)?,
        None => layout,
    })
}

/// Bytes as elements: the same memory where it is aligned, a copy where it is not.
pub(crate) fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>> {
    if let Ok(elements) = bytemuck::try_cast_slice(bytes) {
        return Ok(Cow::Borrowed(elements));
    }
    let size = size_of::<T>();
    let mut elements = reserved(bytes.len() / size)?;
    elements.extend(bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T>));
    Ok(Cow::Owned(elements))
}

/// An empty vector with room for `n` elements, or an error where there is none.
pub(crate) fn reserved<T>(n: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    let bytes = n as u128 * size_of::<T>() as u128;
    elements.try_reserve_exact(n).map_err(|_| anyhow::anyhow!("no memory for {bytes} bytes"))?;
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_off_their_boundary_are_copied() {
        let floats = [1.5f32, -2.0, 3.25];
        let mut bytes = [0u8; 4 * 4];
        for shift in 0..4 {
            bytes[shift..shift + 12].copy_from_slice(bytemuck::bytes_of(&floats));
            let slice = &bytes[shift..shift + 12];
            let read = elements::<f32>(slice).unwrap();
            assert_eq!(&read[..], floats);
            let aligned = slice.as_ptr().addr().is_multiple_of(4);
            assert_eq!(matches!(read, Cow::Borrowed(_)), aligned);
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert!(reserved::<u64>(usize::MAX / 16).is_err());
        assert!(reserved::<u64>(usize::MAX).is_err());
    }

    #[test]
    fn empty_items_are_bounded() {
        assert!(padded_layout([MAX_EMPTY_ITEMS, 0, 4], None).is_ok());
        assert!(padded_layout([MAX_EMPTY_ITEMS + 1, 0, 4], None).is_err());
    }
}
