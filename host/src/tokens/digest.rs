//! Digests of token rows: whether two files or buffers hold the same tokens, and which tokens codes
//! were made of.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use twox_hash::XxHash3_128;

use super::Tokens;
use super::element::{Element, ElementType};
use super::format::{Format, Quantized, TokenFormat};
use super::layout::TokenLayout;
use super::scales::{ScaleType, Scales};
use crate::error::{Error, Result};

/// Bytes of a digest.
const LEN: usize = 16;

/// The digest of some tokens.
///
/// A [`TokenDigest`] is XXH3 with 128 bits (seed 0) of the bytes that follow each other here, whole
/// numbers as u64, everything little-endian:
///
/// ```text
/// "maxsim tokens 1 ELEMENT DIM\n"        ELEMENT f16, bf16 or f32; DIM in decimal
/// the valid rows of item 0, of item 1, …  as they are stored
/// tokens of item 0, of item 1, …          the number of valid rows of each
/// number of items
/// ```
///
/// A row is valid where an item has it and no mask switches it off: padding does not count, so the
/// padded and the packed form of the same tokens have one digest. That of codes says besides which
/// tokens they were made of:
///
/// ```text
/// "maxsim codes 1 FORMAT SCALES DIM\n"    int8, int8-affine or fp8; f16, f32 or tensor
/// the codes of valid rows, tokens of each item, number of items: as above
/// scales of the valid rows                or the one of all rows
/// minima of the valid rows                int8-affine alone
/// digest of the embeddings                16 bytes, the first two digits first
/// ```
///
/// It finds what happens by accident: files that changed or were mistaken for each other. It is no
/// signature; who can write a file can write its digest.
///
/// ```
/// use maxsim::Tokens;
/// use maxsim::digest::TokenDigest;
///
/// let padded = [1.0f32, 0.0, 9.0, 9.0, 0.0, 1.0, 0.6, 0.8];
/// let padded = Tokens::padded(&padded, 2, 2, 2)?.with_lengths(&[1i64, 2])?;
/// let packed = Tokens::packed(&[1.0f32, 0.0, 0.0, 1.0, 0.6, 0.8], 2, &[0i64, 1, 3])?;
/// assert_eq!(TokenDigest::of(&padded), TokenDigest::of(&packed));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct TokenDigest([u8; LEN]);

impl TokenDigest {
    /// The digest of embeddings.
    pub fn of<T: Element>(tokens: &Tokens<'_, T>) -> TokenDigest {
        let mut hasher = TokenHasher::of_elements(T::TYPE, tokens.layout().dim());
        hasher.tokens(tokens);
        hasher.finish()
    }

    /// The digest of codes and scales that were made of embeddings with the digest `source`.
    pub fn of_codes<F: Quantized>(codes: &Tokens<'_, F>, source: &TokenDigest) -> TokenDigest {
        let storage = codes.scales().storage();
        let mut hasher = TokenHasher::of_codes(F::FORMAT, storage, codes.layout().dim());
        hasher.tokens(codes);
        hasher.finish_codes(source)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

/// 32 hexadecimal digits, small letters.
impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenDigest({self})")
    }
}

impl FromStr for TokenDigest {
    type Err = Error;

    fn from_str(text: &str) -> Result<TokenDigest> {
        let is_own = |digest: &u128| format!("{digest:032x}") == text;
        match u128::from_str_radix(text, 16).ok().filter(is_own) {
            Some(digest) => Ok(TokenDigest(digest.to_be_bytes())),
            None => Err(Error::Shape {
                argument: "digest",
                expected: "32 hexadecimal digits, small letters".into(),
                found: format!("'{text}'"),
            }),
        }
    }
}

/// Makes a [`TokenDigest`] of tokens that come a part at a time.
#[derive(Clone)]
#[must_use]
pub struct TokenHasher {
    hasher: XxHash3_128,
    /// Valid rows of each item.
    counts: Vec<u64>,
    /// Scales and minima of the codes so far.
    scales: [Vec<u8>; 2],
}

/// Prints everything but the state.
impl fmt::Debug for TokenHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenHasher").field("n_items", &self.counts.len()).finish_non_exhaustive()
    }
}

impl TokenHasher {
    /// Starts a digest of embeddings.
    pub fn of_elements(element: ElementType, dim: usize) -> TokenHasher {
        TokenHasher::new(&format!("maxsim tokens 1 {} {dim}\n", element.name()))
    }

    /// Starts a digest of codes.
    pub fn of_codes(format: TokenFormat, scales: ScaleType, dim: usize) -> TokenHasher {
        let (format, scales) = (format.name(), scales.name());
        TokenHasher::new(&format!("maxsim codes 1 {format} {scales} {dim}\n"))
    }

    fn new(head: &str) -> TokenHasher {
        let mut hasher = XxHash3_128::new();
        hasher.write(head.as_bytes());
        TokenHasher { hasher, counts: Vec::new(), scales: [Vec::new(), Vec::new()] }
    }

    /// The next items, elements or codes.
    pub fn tokens<F: Format>(&mut self, tokens: &Tokens<'_, F>) {
        let (layout, mask) = (tokens.layout(), tokens.mask());
        let row_len = layout.dim();
        for rows in runs(layout, mask) {
            self.rows(bytemuck::cast_slice(
                &tokens.data()[rows.start * row_len..rows.end * row_len],
            ));
            if let Some(scales) = tokens.scales_of_codes() {
                self.scales_of_rows(scales, rows);
            }
        }
        if let Some(Scales::Tensor(scale)) = tokens.scales_of_codes() {
            self.scales[0] = scale.to_le_bytes().to_vec();
        }
        self.counts((0..layout.n_items()).map(|item| layout.n_valid(item, mask) as u64));
    }

    /// Adds the next rows, all of them valid, as they are stored. Their items are given to
    /// [`TokenHasher::counts`].
    pub fn rows(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }

    /// The scales of some rows, and their minima where there are any.
    pub fn scales_of_rows(&mut self, scales: &Scales<'_>, rows: Range<usize>) {
        let bytes = |part| bytemuck::cast_slice::<half::f16, u8>(part);
        match scales {
            Scales::F16(scales) => self.scales[0].extend_from_slice(bytes(&scales[rows])),
            Scales::F32(scales) => {
                self.scales[0].extend_from_slice(bytemuck::cast_slice(&scales[rows]));
            }
            Scales::Tensor(scale) => self.scales[0] = scale.to_le_bytes().to_vec(),
            Scales::Affine { scales, mins } => {
                self.scales[0].extend_from_slice(bytes(&scales[rows.clone()]));
                self.scales[1].extend_from_slice(bytes(&mins[rows]));
            }
        }
    }

    /// The next items' numbers of valid rows.
    pub fn counts(&mut self, counts: impl IntoIterator<Item = u64>) {
        self.counts.extend(counts);
    }

    /// The digest of all that came, of embeddings.
    pub fn finish(mut self) -> TokenDigest {
        self.end();
        TokenDigest(self.hasher.finish_128().to_be_bytes())
    }

    /// The digest of all that came, of codes that were made of embeddings with the digest `source`.
    pub fn finish_codes(mut self, source: &TokenDigest) -> TokenDigest {
        self.end();
        let [scales, mins] = &self.scales;
        for bytes in [&scales[..], mins, source.as_bytes()] {
            self.hasher.write(bytes);
        }
        TokenDigest(self.hasher.finish_128().to_be_bytes())
    }

    fn end(&mut self) {
        let counts = self.counts.iter().copied().chain([self.counts.len() as u64]);
        let bytes: Vec<u8> = counts.flat_map(u64::to_le_bytes).collect();
        self.hasher.write(&bytes);
    }
}

/// The valid rows of a layout in item order, as long runs of consecutive rows.
fn runs<'a>(layout: &'a TokenLayout, mask: Option<&'a [u8]>) -> impl Iterator<Item = Range<usize>> {
    let is_valid = move |row: usize| mask.is_none_or(|mask| mask[row] != 0);
    let (mut item, mut row) = (0, None);
    // Finds the next row of an item, masked or not.
    let mut next_row = move || loop {
        let rows = (item < layout.n_items()).then(|| layout.item_rows(item))?;
        let at: usize = row.unwrap_or(rows.start);
        if at < rows.end {
            // Without a mask, an item's rows are one run.
            let end = if mask.is_some() { at + 1 } else { rows.end };
            row = Some(end);
            return Some(at..end);
        }
        (item, row) = (item + 1, None);
    };
    let mut pending: Option<Range<usize>> = None;
    std::iter::from_fn(move || {
        loop {
            let Some(rows) = next_row() else { return pending.take() };
            if !is_valid(rows.start) {
                match pending.take() {
                    Some(run) => return Some(run),
                    None => continue,
                }
            }
            match &mut pending {
                Some(run) if run.end == rows.start => run.end = rows.end,
                pending => {
                    if let Some(run) = pending.replace(rows) {
                        return Some(run);
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::format::{Int8, Int8Affine};

    #[test]
    fn runs_are_the_valid_rows() {
        let layout = TokenLayout::packed(10, 4, &[1i64, 3, 3, 8]).unwrap();
        assert!(runs(&layout, None).eq(std::iter::once(1..8)));
        let mask = [1u8, 1, 0, 0, 1, 1, 0, 1, 1, 1];
        let found: Vec<_> = runs(&layout, Some(&mask)).collect();
        assert_eq!(found, [1..2, 4..6, 7..8]);
        let padded = TokenLayout::padded(3, 4, 4).unwrap().with_lengths(&[4i64, 1, 2]).unwrap();
        assert_eq!(runs(&padded, None).collect::<Vec<_>>(), [0..5, 8..10]);
        let scattered = TokenLayout::scattered(9, 4, &[4i64, 0, 2], &[3i64, 3, 2]).unwrap();
        assert_eq!(runs(&scattered, None).collect::<Vec<_>>(), [4..7, 0..3, 2..4]);
    }

    /// The format, written out, so that other programs can be compared with it.
    #[test]
    fn the_format_is_the_documented_one() {
        let tokens = Tokens::packed(&[1.0f32, 2.0, 3.0, 4.0], 2, &[0i64, 2, 2]).unwrap();
        let mut bytes = b"maxsim tokens 1 f32 2\n".to_vec();
        bytes.extend([1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
        bytes.extend([2u64, 0, 2].iter().flat_map(|n| n.to_le_bytes()));
        let source = TokenDigest::of(&tokens);
        assert_eq!(source.to_string(), format!("{:032x}", XxHash3_128::oneshot(&bytes)));
        assert_eq!(source.to_string().parse::<TokenDigest>().unwrap(), source);
        assert!("12".parse::<TokenDigest>().is_err());
        assert!(source.to_string().to_uppercase().parse::<TokenDigest>().is_err());

        let codes = tokens.quantize::<Int8Affine>(ScaleType::F16).unwrap();
        let mut bytes = b"maxsim codes 1 int8-affine f16 2\n".to_vec();
        bytes.extend(codes.data());
        bytes.extend([2u64, 0, 2].iter().flat_map(|n| n.to_le_bytes()));
        let Scales::Affine { scales, mins } = codes.scales() else { panic!("affine") };
        scales.iter().chain(mins.iter()).for_each(|x| bytes.extend(x.to_le_bytes()));
        bytes.extend(source.as_bytes());
        let found = TokenDigest::of_codes(&codes, &source);
        assert_eq!(found.to_string(), format!("{:032x}", XxHash3_128::oneshot(&bytes)));
    }

    /// Parts, gathered or not, and masks change nothing; every part of the tokens counts.
    #[test]
    fn digests_are_of_valid_tokens_alone() {
        let values: Vec<f32> = (0..6000 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
        let whole = Tokens::packed(&values, 64, &[0i64, 5000, 5001, 6000]).unwrap();
        let digest = TokenDigest::of(&whole);
        let mut hasher = TokenHasher::of_elements(ElementType::F32, 64);
        for rows in [0..100, 100..5900, 5900..6000] {
            hasher.rows(bytemuck::cast_slice(&values[rows.start * 64..rows.end * 64]));
        }
        hasher.counts([5000, 1, 999]);
        assert_eq!(hasher.finish(), digest);
        // A row switched off is a row less.
        let mut mask = vec![1u8; 6000];
        mask[5000] = 0;
        let masked = TokenDigest::of(&whole.clone().with_mask(&mask[..]).unwrap());
        let rest = [&values[..5000 * 64], &values[5001 * 64..]].concat();
        let rest = Tokens::packed(&rest, 64, &[0i64, 5000, 5000, 5999]).unwrap();
        assert_eq!(masked, TokenDigest::of(&rest));
        // Neither cut otherwise nor changed in one element.
        let cut = Tokens::packed(&values, 64, &[0i64, 4999, 5001, 6000]).unwrap();
        assert_ne!(TokenDigest::of(&cut), digest);
        let mut changed = values.clone();
        changed[5999 * 64] = 0.5;
        let changed = Tokens::packed(&changed, 64, &[0i64, 5000, 5001, 6000]).unwrap();
        assert_ne!(TokenDigest::of(&changed), digest);
        // Codes with the scales of others.
        let codes = whole.quantize::<Int8>(ScaleType::F16).unwrap();
        let Scales::F16(scales) = codes.scales() else { panic!("f16") };
        let mut scales = scales.to_vec();
        scales.swap(0, 1);
        let swapped = Tokens::<Int8>::from_codes(
            codes.data(),
            Scales::F16(scales.into()),
            whole.layout().clone(),
        );
        let of = |codes: &Tokens<'_, Int8>| TokenDigest::of_codes(codes, &digest);
        assert_ne!(of(&swapped.unwrap()), of(&codes));
    }
}
