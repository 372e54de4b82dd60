//! Checks that the numbers of a file are finite, when rows are read and before they are scored or
//! compressed; errors name file, row and element.
//!
//! An infinity is the result of an overflow of f16, and a document with one would rank first for
//! many queries. A document that loses every maximum may have one all the same, so elements are
//! looked at and not scores. Rows that no item has may hold anything.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail};
use maxsim::Tokens;
use maxsim::format::{Element, Quantized, Scales};
use maxsim::residual::ResidualTokens;
use rayon::prelude::*;

use crate::input::{ReadItems, TokenFile};

/// Elements that a thread looks through at once.
const PIECE_LEN: usize = 1 << 16;

/// The message about a file whose numbers are not finite. It names the file itself.
#[derive(Clone, Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// A file whose numbers are checked when they are read.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    file: &'a TokenFile,
    /// Name of an item in messages.
    item: &'static str,
    /// Whether infinities are taken; NaN is not.
    allow_infinite: bool,
    /// Whether the command could take infinities.
    has_option: bool,
}

impl<'a> ReadItems<'a> for Checked<'a> {
    fn file(self) -> &'a TokenFile {
        self.file
    }

    /// Fails for the first token that does not stand for finite numbers.
    fn elements_of<T: Element>(self, items: Range<usize>) -> Result<Tokens<'a, T>> {
        self.tokens(items)
    }

    /// Fails for the first token that does not stand for finite numbers.
    fn codes_of<F: Quantized>(self, items: Range<usize>) -> Result<Tokens<'a, F>> {
        self.codes(items)
    }
}

/// A fault of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// The element of this number is NaN, or infinite.
    Element(usize, f32),
    /// A scale that is not allowed.
    Scale(f32),
    /// A minimum that is not allowed.
    Min(f32),
}

/// Threads that look through what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// This one, for callers that read from several.
    This,
    /// All of them.
    All,
}

impl Threads {
    /// Whether any piece of some numbers is of a kind.
    fn any<T: Sync>(self, numbers: &[T], is: impl Fn(&[T]) -> bool + Sync + Send) -> bool {
        match self {
            Threads::This => numbers.chunks(PIECE_LEN).any(is),
            Threads::All => numbers.par_chunks(PIECE_LEN).any(is),
        }
    }
}

/// The code of a format that stands for NaN, if there is one: none is above it without its sign.
#[derive(Clone, Copy)]
struct NanCode(Option<u8>);

impl NanCode {
    fn of<F: Quantized>() -> NanCode {
        NanCode(F::FORMAT.nan_code())
    }

    fn is(self, code: &u8) -> bool {
        self.0.is_some_and(|nan_code| code & 0x7F >= nan_code)
    }

    fn may_be_in(self, codes: &[u8], threads: Threads) -> bool {
        self.0.is_some() && threads.any(codes, |codes| codes.iter().any(|code| self.is(code)))
    }

    /// The first code of a row that stands for NaN.
    fn wrong_element(self, codes: &[u8]) -> Option<Wrong> {
        let element = codes.iter().position(|code| self.is(code))?;
        Some(Wrong::Element(element, f32::NAN))
    }
}

impl<'a> Checked<'a> {
    /// A file of queries or documents, for a command that can take infinities: `item` is the word
    /// for one of them.
    pub fn new(file: &'a TokenFile, item: &'static str, allow_infinite: bool) -> Checked<'a> {
        Checked { file, item, allow_infinite, has_option: true }
    }

    /// For a command that takes finite numbers alone.
    pub fn finite(file: &'a TokenFile, item: &'static str) -> Checked<'a> {
        Checked { file, item, allow_infinite: false, has_option: false }
    }

    /// As [`TokenFile::tokens`], checked.
    ///
    /// # Errors
    /// For the first token that is not finite.
    pub fn tokens<T: Element>(self, items: Range<usize>) -> Result<Tokens<'a, T>> {
        let tokens = self.file.tokens::<T>(items.clone())?;
        if is_any_wrong(tokens.data(), self.allow_infinite) {
            let (data, dim) = (tokens.data(), tokens.layout().dim());
            self.check_rows(&tokens, items, |row| {
                wrong_element(&data[row * dim..][..dim], self.allow_infinite)
            })?;
        }
        Ok(tokens)
    }

    /// As [`TokenFile::codes`], checked: codes, scales and minima.
    ///
    /// # Errors
    /// For the first token that does not stand for finite numbers.
    pub fn codes<F: Quantized>(self, items: Range<usize>) -> Result<Tokens<'a, F>> {
        let codes = self.file.codes::<F>(items.clone())?;
        let dim = codes.layout().dim();
        let bytes: &[u8] = bytemuck::cast_slice(codes.data());
        let nan = NanCode::of::<F>();
        let may_be_nan = nan.may_be_in(bytes, Threads::All);
        self.check_rows(&codes, items, |row| {
            self.wrong_scale(codes.scales(), row).or_else(|| {
                nan.wrong_element(if may_be_nan { &bytes[row * dim..][..dim] } else { &[] })
            })
        })?;
        Ok(codes)
    }

    /// As [`TokenFile::elements`], checked but for rows that are not used: `is_used` has as many
    /// entries as there are rows.
    ///
    /// # Errors
    /// For the first row that is used and not finite.
    pub fn rows<T: Element>(self, rows: Range<usize>, is_used: &[bool]) -> Result<Cow<'a, [T]>> {
        let elements = self.file.elements::<T>(rows.clone())?;
        if is_any_wrong(&elements, self.allow_infinite) {
            let of_rows = elements.chunks_exact(self.file.layout().dim());
            for ((row, of_row), _) in rows.zip(of_rows).zip(is_used).filter(|(_, used)| **used) {
                if let Some(wrong) = wrong_element(of_row, self.allow_infinite) {
                    let layout = self.file.layout();
                    let mut items = 0..layout.n_items();
                    let item = items.find(|&item| layout.item_rows(item).contains(&row));
                    return Err(self.error(row, item.unwrap_or_default(), wrong));
                }
            }
        }
        Ok(elements)
    }

    /// Reads rows of any items, checked but for those that no item has.
    ///
    /// # Errors
    /// For the first row of an item that is not finite.
    pub fn element_rows<T: Element>(
        self,
        rows: Range<usize>,
        threads: Threads,
    ) -> Result<Cow<'a, [T]>> {
        let (dim, elements) = (self.file.layout().dim(), self.file.elements::<T>(rows.clone())?);
        if threads.any(&elements, |piece| is_piece_wrong(piece, self.allow_infinite)) {
            self.first_wrong(rows.clone(), |row| {
                wrong_element(&elements[(row - rows.start) * dim..][..dim], self.allow_infinite)
            })?;
        }
        Ok(elements)
    }

    /// As [`Checked::element_rows`], of codes, whose scales are those of the file.
    ///
    /// # Errors
    /// For the first row of an item that does not stand for finite numbers.
    pub fn code_rows<F: Quantized>(
        self,
        rows: Range<usize>,
        scales: &Scales<'_>,
        threads: Threads,
    ) -> Result<Cow<'a, [F::Stored]>> {
        let (dim, codes) = (self.file.layout().dim(), self.file.code_rows::<F>(rows.clone())?);
        let bytes: &[u8] = bytemuck::cast_slice(&codes);
        let nan = NanCode::of::<F>();
        let may_be_nan = nan.may_be_in(bytes, threads);
        let wrong = |row: usize| {
            self.wrong_scale(scales, row).or_else(|| {
                let codes = &bytes[(row - rows.start) * dim..][..dim];
                let codes = if may_be_nan { codes } else { &[] };
                nan.wrong_element(codes)
            })
        };
        if may_be_nan || rows.clone().any(|row| self.wrong_scale(scales, row).is_some()) {
            self.first_wrong(rows.clone(), wrong)?;
        }
        Ok(codes)
    }

    /// Checks all items.
    ///
    /// # Errors
    /// For the first token that is not finite.
    pub fn check(self) -> Result<()> {
        self.any_tokens(0..self.file.n_items()).map(drop)
    }

    /// Finds the first valid row of some items that is wrong; `wrong` gets rows of `part`, which
    /// has these items.
    fn check_rows<F: maxsim::format::Format>(
        self,
        part: &Tokens<'_, F>,
        items: Range<usize>,
        wrong: impl Fn(usize) -> Option<Wrong> + Sync,
    ) -> Result<()> {
        let is_valid = |row: &usize| part.mask().is_none_or(|mask| mask[*row] != 0);
        let found = (0..items.len()).into_par_iter().find_map_first(|i| {
            let mut rows = part.layout().item_rows(i).filter(is_valid);
            rows.find_map(|row| Some((i, row, wrong(row)?)))
        });
        let Some((i, row, wrong)) = found else { return Ok(()) };
        let item = items.start + i;
        let first = part.layout().item_rows(i).start;
        Err(self.error(self.file.layout().item_rows(item).start + row - first, item, wrong))
    }

    /// Fails for the first of some rows that an item has and that is wrong.
    fn first_wrong(self, rows: Range<usize>, wrong: impl Fn(usize) -> Option<Wrong>) -> Result<()> {
        let layout = self.file.layout();
        for item in 0..layout.n_items() {
            let of_item = layout.item_rows(item);
            for row in of_item.start.max(rows.start)..of_item.end.min(rows.end) {
                if let Some(wrong) = wrong(row) {
                    return Err(self.error(row, item, wrong));
                }
            }
        }
        Ok(())
    }

    /// What is wrong with the scale of a row, or with its minimum.
    fn wrong_scale(self, scales: &Scales<'_>, row: usize) -> Option<Wrong> {
        let (scale, min) = (scales.scale(row), scales.min(row));
        if !(scale >= 0.0 && scale.is_finite()) {
            return Some(Wrong::Scale(scale));
        }
        let is_wrong = min.is_nan() || min.is_infinite() && !self.allow_infinite;
        is_wrong.then_some(Wrong::Min(min))
    }

    fn error(self, row: usize, item: usize, wrong: Wrong) -> anyhow::Error {
        let (path, kind) = (self.file.path().display(), self.item);
        let row = self.file.stored_row(row);
        let needs = "needs a finite number of 0 or more";
        let said = match wrong {
            Wrong::Element(element, x) => {
                let (what, advice) = match (x.is_nan(), self.has_option) {
                    (true, _) => ("a NaN", ""),
                    (false, true) => ("an infinity", "; use --allow-infinite if that is meant"),
                    (false, false) => ("an infinity", ""),
                };
                format!(
                    "row {row} of {path} ({kind} {item}) has {what} in element {element}{advice}"
                )
            }
            Wrong::Scale(scale) => {
                format!("{path}: the scale of row {row} is {scale}; {kind} {item} {needs}")
            }
            Wrong::Min(min) => {
                format!(
                    "{path}: the minimum of row {row} is {min}; {kind} {item} needs a finite one"
                )
            }
        };
        Refused(said).into()
    }
}

/// Whether any element is NaN, or infinite unless that is allowed, of rows used or not.
fn is_any_wrong<T: Element>(elements: &[T], allow_infinite: bool) -> bool {
    Threads::All.any(elements, |piece| is_piece_wrong(piece, allow_infinite))
}

/// As [`is_any_wrong`], on this thread.
///
/// The bits of a magnitude are increased so far that those of what is wrong, and no others, reach
/// the bit of the sign: an addition for each element, many at a time, and no branch.
fn is_piece_wrong<T: Element>(piece: &[T], allow_infinite: bool) -> bool {
    // NaN is above infinity, in bits.
    let infinity = T::from_f32(f32::INFINITY);
    if size_of::<T>() == 2 {
        let first_wrong = bytemuck::cast::<_, i16>(infinity) + i16::from(allow_infinite);
        let add = i16::MIN.wrapping_sub(first_wrong);
        let bits = bytemuck::cast_slice::<_, i16>(piece).iter();
        bits.fold(0, |all: i16, x| all | (x & i16::MAX).wrapping_add(add)) < 0
    } else {
        let first_wrong = bytemuck::cast::<_, i32>(infinity) + i32::from(allow_infinite);
        let add = i32::MIN.wrapping_sub(first_wrong);
        let bits = bytemuck::cast_slice::<_, i32>(piece).iter();
        bits.fold(0, |all: i32, x| all | (x & i32::MAX).wrapping_add(add)) < 0
    }
}

/// The largest magnitude of elements that are finite.
pub(crate) fn largest<T: Element>(elements: &[T]) -> f32 {
    elements.par_chunks(PIECE_LEN).map(T::largest_magnitude).reduce(|| 0.0, f32::max)
}

/// The first element of a row that is wrong.
fn wrong_element<T: Element>(row: &[T], allow_infinite: bool) -> Option<Wrong> {
    let mut values = row.iter().map(|x| x.to_f32()).enumerate();
    let found = values.find(|(_, x)| x.is_nan() || x.is_infinite() && !allow_infinite);
    found.map(|(element, x)| Wrong::Element(element, x))
}

/// Checks the tables of residual-compressed tokens: bucket weights, and the centroids that tokens
/// have.
///
/// # Errors
/// For the first weight, or the first token with a centroid, that is not finite.
pub fn check_residual(
    tokens: &ResidualTokens<'_>,
    path: &Path,
    allow_infinite: bool,
) -> Result<()> {
    let is_wrong = |x: f32| x.is_nan() || x.is_infinite() && !allow_infinite;
    let (codec, path) = (tokens.codec(), path.display());
    if let Some(i) = codec.bucket_weights().iter().position(|&x| is_wrong(x)) {
        bail!(
            "{path}: bucket weight {i} is {}; expected finite numbers",
            codec.bucket_weights()[i]
        );
    }
    let centroids = codec.centroids().to_f32();
    if !centroids.iter().any(|&x| is_wrong(x)) {
        return Ok(());
    }
    // One that no token has may be anything.
    let wrong = |centroid: usize| {
        let row = &centroids[centroid * codec.dim()..][..codec.dim()];
        row.iter().position(|&x| is_wrong(x)).map(|element| (centroid, element))
    };
    let layout = tokens.layout();
    let is_valid = |row: &usize| tokens.mask().is_none_or(|mask| mask[*row] != 0);
    let found = (0..layout.n_items()).into_par_iter().find_map_first(|item| {
        let mut rows = layout.item_rows(item).filter(is_valid);
        rows.find_map(|row| Some((item, row, wrong(tokens.codes()[row] as usize)?)))
    });
    let Some((item, row, (centroid, element))) = found else { return Ok(()) };
    let what =
        if centroids[centroid * codec.dim() + element].is_nan() { "a NaN" } else { "an infinity" };
    bail!(
        "row {row} of {path} (document {item}) has centroid {centroid}, which has {what} in \
         element {element}"
    )
}
