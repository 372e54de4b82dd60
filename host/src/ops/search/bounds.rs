//! Bounds of how far scores of compressed tokens can be from those of the embeddings.

mod parts;

use std::fmt;
use std::ops::AddAssign;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use super::driven::There;
use super::scanned::BLOCK;
use crate::error::{Error, Result};
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, Quantized, TokenFormat, widen};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::{ScaleType, Scales};

/// Below this f16 numbers are equally far apart.
const F16_NORMAL_MIN: f64 = 1.0 / 16384.0;

/// Half of that distance, 2⁻²⁵.
const F16_HALF_STEP: f64 = 1.0 / (1u64 << 25) as f64;

/// Largest f16 number.
const F16_MAX: f64 = maxsim_kernels::abi::quantize::F16_MAX as f64;

/// Elements of a row whose sums are found side by side.
const LANES: usize = 4;

/// Largest norm or scale, 2⁹⁶: dot products of 4096 codes, times two of these, are finite in f32.
/// (448² · 4096 < 2³⁰.)
const LARGEST: f64 = (1u128 << 96) as f64;

/// Terms of the error bounds, of the rows of one side, per item: made once, used with any other
/// side.
///
/// With x a row as it was, x̂ what its codes stand for and e = x − x̂, the similarity of a query
/// and a document row is off by
///
/// ```text
/// ⟨q, d⟩ − ⟨q̂, d̂⟩ = ⟨q̂, e_d⟩ + ⟨e_q, d̂⟩ + ⟨e_q, e_d⟩
/// ```
///
/// What is known of e is a bound u_k ≥ |e_k| of each element: half a step of its code. By Hölder's
/// inequality, for p = 1 and for p = 2,
///
/// ```text
/// |⟨q̂, e_d⟩| ≤ min(‖q̂‖₁ · ‖u_d‖∞, ‖q̂‖₂ · ‖u_d‖₂)
/// ```
///
/// and the other two likewise. The first is the smaller where all elements have one step (INT8),
/// the second where steps grow with the elements (FP8). A maximum over t moves no further than its
/// candidates do, |max_t a_t − max_t b_t| ≤ max_t |a_t − b_t|, so with U and L the largest ‖u‖ and
/// ‖d̂‖ of a document's valid tokens the score is off by at most
///
/// ```text
/// bound = min(U∞ · Σ_s ‖q̂_s‖₁, U₂ · Σ_s ‖q̂_s‖₂) + min(L₁ · Σ_s ‖u_s‖∞, L₂ · Σ_s ‖u_s‖₂)
///       + U₂ · Σ_s ‖u_s‖₂ + ρ · M · Σ_s ‖q̂_s‖₂
/// ```
///
/// over the query's valid tokens s: four numbers of the query and five of the document, whatever
/// their lengths. The last term is what engines lose to rounding: M is the largest
/// ‖code‖₂ · scale + √dim · |min| of the document's tokens, by Cauchy and Schwarz's inequality
/// M · ‖q̂‖₂ is at least Σ_k of the products' magnitudes, and ρ is
///
/// | query, document | ρ |
/// |---|---|
/// | int8, int8 | (8 + Lq) · 2⁻²³: exact sums, three products, the sum over the query |
/// | f16, bf16 or int8, int8-affine | (8 + Lq + dim) · 2⁻²³: sums of dim rounded products |
/// | fp8, fp8 | (8 + Lq + dim) · 2⁻²³ + 132 · 2⁻¹³: the same, and addends that are cut off |
///
/// Tensor cores cut addends of e4m3 products off 13 bits below the largest: 128 products and 4 sums
/// before the sum continues in f32.
///
/// # What is known of a row
///
/// With s its scale and c its codes, as [`Tokens::quantize`] makes them: quotients are rounded to
/// the nearest code, so u is half a code's step times s. Rounding s to f16 moves the largest
/// element beyond the largest code by up to 2⁻¹¹ of it, or by 2⁻²⁵ times the code where s is
/// below 2⁻¹⁴; rounding the minimum m, beyond code 0 by half a unit h of m. That is what
/// elements that are clamped lose instead.
///
/// ```text
/// INT8         u = max(s / 2, s / 16 + [s < 2⁻¹⁴] · 127 · 2⁻²⁵)
/// INT8 affine  u = max(s / 2, s / 8 + [s < 2⁻¹⁴] · 255 · 2⁻²⁵ + h(m))
/// FP8          u_k = s · max(2⁻¹⁰, 2^(⌊log₂ |c_k|⌋ − 4)) + [s < 2⁻¹⁴, |c_k| = 448] · 448 · 2⁻²⁵
/// ```
///
/// (bracketed terms for f16 scales alone) and 2⁻¹⁰ of it more, for quotients that are rounded. The
/// bound is infinite where none can be given: a NaN or an infinity among the codes, scales or
/// elements, an f16 scale or minimum at the end of its range, where rows may have been clamped,
/// and numbers beyond 2⁹⁶, whose sums may overflow.
#[derive(Clone)]
#[must_use]
pub struct ErrorTerms {
    pub(super) format: TokenFormat,
    pub(super) layout: TokenLayout,
    pub(super) items: Vec<Item>,
    /// The largest of each term among all items, which no document exceeds.
    pub(super) maxima: Terms,
    /// What passes over all items read: see [`Columns`].
    pub(super) columns: Columns,
    /// Items without a valid token.
    pub(super) empty: Vec<u32>,
    /// What a device has of the columns.
    pub(super) there: There,
}

/// Norms of a row, or their sums or maxima over the valid rows of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Terms {
    /// ‖x̂‖₁ and ‖x̂‖₂.
    pub l1: f64,
    pub l2: f64,
    /// ‖u‖∞ and ‖u‖₂.
    pub u_max: f64,
    pub u2: f64,
    /// ‖code‖₂ · scale + √dim · |min|.
    pub magnitude: f64,
}

/// The terms of an item, as a query and as a document.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    pub n_tokens: usize,
    pub sums: Terms,
    pub maxima: Terms,
}

/// Some of the terms of items as documents, rounded up, each beside those of other items. Those of
/// items without a valid token are NaN: no sum with them reaches anything.
#[derive(Clone, Default)]
pub(super) struct Columns {
    pub l2: Vec<[f32; BLOCK]>,
    pub u2: Vec<[f32; BLOCK]>,
    pub magnitude: Vec<[f32; BLOCK]>,
}

impl Columns {
    fn new(items: &[Item]) -> Columns {
        let column = |of: fn(&Terms) -> f64| {
            let up = |item: &Item| match item.n_tokens {
                0 => f32::NAN,
                _ => (of(&item.maxima) as f32).next_up(),
            };
            let block =
                |items: &[Item]| std::array::from_fn(|lane| items.get(lane).map_or(0.0, up));
            items.chunks(BLOCK).map(block).collect()
        };
        Columns {
            l2: column(|terms| terms.l2),
            u2: column(|terms| terms.u2),
            magnitude: column(|terms| terms.magnitude),
        }
    }
}

impl AddAssign for Terms {
    fn add_assign(&mut self, other: Terms) {
        self.l1 += other.l1;
        self.l2 += other.l2;
        self.u_max += other.u_max;
        self.u2 += other.u2;
        self.magnitude += other.magnitude;
    }
}

impl Terms {
    /// Terms of an item without a bound.
    const UNKNOWN: Terms = Terms {
        l1: f64::INFINITY,
        l2: f64::INFINITY,
        u_max: f64::INFINITY,
        u2: f64::INFINITY,
        magnitude: f64::INFINITY,
    };

    fn max(self, other: Terms) -> Terms {
        Terms {
            l1: self.l1.max(other.l1),
            l2: self.l2.max(other.l2),
            u_max: self.u_max.max(other.u_max),
            u2: self.u2.max(other.u2),
            magnitude: self.magnitude.max(other.magnitude),
        }
    }

    /// Terms of a row of numbers c · scale + min, with a bound of each one's error.
    fn of_row(codes: &[f32], scale: f64, min: f64, bound: impl Fn(f64) -> f64) -> Terms {
        // Several sums at a time do not wait for one another.
        let mut lanes = RowLanes::default();
        let ([some], [rest]) = in_lanes([codes]);
        some.iter().for_each(|codes| lanes.add(codes, scale, min, &bound));
        lanes.add(rest, scale, min, &bound);
        let sum = |lanes: [f64; LANES]| lanes.into_iter().sum::<f64>();
        let terms = Terms {
            l1: sum(lanes.l1),
            l2: sum(lanes.l2).sqrt(),
            u_max: lanes.u_max.into_iter().fold(0.0, f64::max),
            u2: sum(lanes.u2).sqrt(),
            magnitude: sum(lanes.codes).sqrt() * scale + (codes.len() as f64).sqrt() * min.abs(),
        };
        // A comparison with NaN is false.
        let is_known = terms.u_max < f64::INFINITY
            && terms.l1 < LARGEST
            && terms.magnitude < LARGEST
            && scale < LARGEST;
        if is_known { terms } else { Terms::UNKNOWN }
    }
}

/// Sums of a row, several side by side: they do not wait for one another.
#[derive(Default)]
struct RowLanes {
    l1: [f64; LANES],
    l2: [f64; LANES],
    u_max: [f64; LANES],
    u2: [f64; LANES],
    codes: [f64; LANES],
}

impl RowLanes {
    /// Adds an element to each of the first lanes.
    #[inline(always)]
    fn add(&mut self, codes: &[f32], scale: f64, min: f64, bound: impl Fn(f64) -> f64) {
        for (lane, &code) in codes.iter().enumerate().take(LANES) {
            let code = f64::from(code);
            let (value, u) = (code * scale + min, bound(code));
            self.l1[lane] += value.abs();
            self.l2[lane] += value * value;
            self.u_max[lane] = self.u_max[lane].max(u);
            self.u2[lane] += u * u;
            self.codes[lane] += code * code;
        }
    }
}

/// Rows of one length as elements for all lanes, and what is left of them.
fn in_lanes<const N: usize>(rows: [&[f32]; N]) -> ([&[[f32; LANES]]; N], [&[f32]; N]) {
    let split = rows.map(|row| row.as_chunks::<LANES>());
    (split.map(|(some, _)| some), split.map(|(_, rest)| rest))
}

/// Prints everything but the items' terms.
impl fmt::Debug for ErrorTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorTerms")
            .field("format", &self.format)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl ErrorTerms {
    /// Computes the terms of tokens as they are stored. Elements are the embeddings themselves:
    /// their errors are 0. Codes must be those that [`Tokens::quantize`] makes.
    pub fn new<F: Format>(tokens: &Tokens<'_, F>) -> ErrorTerms {
        ErrorTerms::of_rows(tokens, |row, codes, _| match tokens.scales_of_codes() {
            None => Terms::of_row(codes, 1.0, 0.0, |_| 0.0),
            Some(scales) => {
                let (scale, min) = (scales.scale(row).into(), scales.min(row).into());
                let step = Step::new(F::FORMAT, scales, scale, min);
                Terms::of_row(codes, scale, min, |code| step.bound(code))
            }
        })
    }

    /// Computes the terms of compressed tokens from their embeddings: u is each element's own
    /// error, so that bounds are smaller (on token embeddings of a text encoder, dim 128, by 1.3
    /// times with INT8 and 1.7 times with FP8). Any codes will do.
    ///
    /// # Errors
    /// [`Error::Shape`] where the embeddings are not as many.
    pub fn measured<F: Quantized, T: Element>(
        tokens: &Tokens<'_, F>,
        embeddings: &Tokens<'_, T>,
    ) -> Result<ErrorTerms> {
        ErrorTerms::check_rows(tokens, embeddings)?;
        Ok(ErrorTerms::of_same_rows(tokens, embeddings))
    }

    /// Refuses embeddings of other rows.
    pub(super) fn check_rows<F: Format, T: Element>(
        tokens: &Tokens<'_, F>,
        embeddings: &Tokens<'_, T>,
    ) -> Result<()> {
        let dim = tokens.layout().dim();
        let of = |layout: &TokenLayout| format!("{} rows of {}", layout.rows(), layout.dim());
        if (embeddings.layout().rows(), embeddings.layout().dim()) != (tokens.layout().rows(), dim)
        {
            return Err(Error::Shape {
                argument: "embeddings",
                expected: of(tokens.layout()),
                found: of(embeddings.layout()),
            });
        }
        Ok(())
    }

    /// As [`ErrorTerms::measured`], of rows that were checked to be those of the embeddings.
    pub(super) fn of_same_rows<F: Quantized, T: Element>(
        tokens: &Tokens<'_, F>,
        embeddings: &Tokens<'_, T>,
    ) -> ErrorTerms {
        let dim = tokens.layout().dim();
        let scales = tokens.scales();
        ErrorTerms::of_rows(tokens, |row, codes, elements| {
            let (scale, min) = (f64::from(scales.scale(row)), f64::from(scales.min(row)));
            let mut terms = Terms::of_row(codes, scale, min, |_| 0.0);
            widen::<T>(&embeddings.data()[row * dim..][..dim], elements);
            let (mut most, mut squares) = ([0.0f64; LANES], [0.0; LANES]);
            let mut add = |codes: &[f32], elements: &[f32]| {
                let lanes = most.iter_mut().zip(&mut squares);
                for ((&code, &x), (most, square)) in codes.iter().zip(elements).zip(lanes) {
                    let error = (f64::from(x) - (f64::from(code) * scale + min)).abs();
                    *most = most.max(error);
                    *square += error * error;
                }
            };
            let ([codes, elements], [codes_left, left]) = in_lanes([codes, elements]);
            codes.iter().zip(elements).for_each(|(codes, elements)| add(codes, elements));
            add(codes_left, left);
            terms.u_max = most.into_iter().fold(0.0, f64::max);
            terms.u2 = squares.iter().sum::<f64>().sqrt();
            if terms.u2 < LARGEST { terms } else { Terms::UNKNOWN }
        })
    }

    /// `of_row`: the terms of a row, from its number and its codes as numbers. Besides it is given
    /// room for a row.
    fn of_rows<F: Format>(
        tokens: &Tokens<'_, F>,
        of_row: impl Fn(usize, &[f32], &mut [f32]) -> Terms + Sync,
    ) -> ErrorTerms {
        let (layout, mask) = (tokens.layout(), tokens.mask());
        let of_item = |[codes, other]: &mut [Vec<f32>; 2], item: usize| {
            let valid = |row: &usize| mask.is_none_or(|mask| mask[*row] != 0);
            let mut terms = Item::default();
            for row in layout.item_rows(item).filter(valid) {
                widen::<F>(&tokens.data()[row * layout.dim()..][..layout.dim()], codes);
                let row = of_row(row, codes, other);
                terms.n_tokens += 1;
                terms.sums += row;
                terms.maxima = terms.maxima.max(row);
            }
            terms
        };
        let rows = || [(); 2].map(|()| vec![0.0; layout.dim()]);
        let items = of_each(layout.n_items(), &rows, &of_item);
        ErrorTerms::of_items(F::FORMAT, layout.clone(), items)
    }

    /// The terms of the items of a layout.
    fn of_items(format: TokenFormat, layout: TokenLayout, items: Vec<Item>) -> ErrorTerms {
        let maxima = items.iter().fold(Terms::default(), |most, item| most.max(item.maxima));
        let empty = (0u32..).zip(&items).filter(|(_, item)| item.n_tokens == 0);
        let empty = empty.map(|(id, _)| id).collect();
        let columns = Columns::new(&items);
        ErrorTerms { format, layout, items, maxima, columns, empty, there: There::default() }
    }

    /// Checks that the terms can be those of tokens.
    pub(crate) fn check(
        &self,
        argument: &'static str,
        layout: &TokenLayout,
        format: TokenFormat,
    ) -> Result<()> {
        if self.format == format && self.layout.same_tokens(layout) {
            return Ok(());
        }
        let of = |format, layout: &TokenLayout| {
            let (n_items, rows, dim) = (layout.n_items(), layout.rows(), layout.dim());
            format!("{n_items} items of {format} in {rows} rows of dim {dim}")
        };
        let (expected, found) = (of(format, layout), of(self.format, &self.layout));
        let other = if expected == found { ", laid out differently" } else { "" };
        Err(Error::Shape { argument, expected, found: format!("{found}{other}") })
    }

    /// Items that the terms are of.
    pub fn n_items(&self) -> usize {
        self.items.len()
    }
}

/// Finds the first valid row, by its item and its place among the item's valid rows, of which codes
/// are further off than [`ErrorTerms::new`] counts with: they are not codes of these embeddings, or
/// were not made as [`Tokens::quantize`] makes them. Where there is none, all bounds of such terms
/// hold.
///
/// # Errors
/// [`Error::Shape`] where items are not as many, or have other numbers of valid rows or elements.
pub fn first_row_beyond<F: Quantized, T: Element>(
    codes: &Tokens<'_, F>,
    embeddings: &Tokens<'_, T>,
) -> Result<Option<[usize; 2]>> {
    let (a, b) = (embeddings.layout(), codes.layout());
    let of = |layout: &TokenLayout| format!("{} items of dim {}", layout.n_items(), layout.dim());
    let differ = |expected, found| Error::Shape { argument: "codes", expected, found };
    if (a.n_items(), a.dim()) != (b.n_items(), b.dim()) {
        return Err(differ(of(a), of(b)));
    }
    let (dim, scales) = (a.dim(), codes.scales());
    let is_beyond = |values: &mut Vec<f32>, row: usize, code_row: usize| {
        let (scale, min) = (scales.scale(code_row).into(), scales.min(code_row).into());
        let step = Step::new(F::FORMAT, scales, scale, min);
        widen::<F>(&codes.data()[code_row * dim..][..dim], values);
        let elements = embeddings.data()[row * dim..][..dim].iter().map(|x| f64::from(x.to_f32()));
        elements.zip(values.iter()).any(|(x, &code)| {
            let (code, bound) = (f64::from(code), step.bound(code.into()));
            // A NaN is at no known distance from its code: it is not within a finite bound.
            let is_within = bound == f64::INFINITY || (x - (code * scale + min)).abs() <= bound;
            !is_within
        })
    };
    let find = |values: &mut Vec<f32>, item: usize| -> Result<Option<[usize; 2]>> {
        let [rows, code_rows] =
            [valid_rows(a, embeddings.mask(), item), valid_rows(b, codes.mask(), item)];
        if rows.len() != code_rows.len() {
            let of = |rows: &[usize]| format!("{} valid rows in item {item}", rows.len());
            return Err(differ(of(&rows), of(&code_rows)));
        }
        let mut pairs = rows.into_iter().zip(code_rows);
        let found = pairs.position(|(row, code_row)| is_beyond(values, row, code_row));
        Ok(found.map(|place| [item, place]))
    };
    let found = of_each(a.n_items(), &|| vec![0.0; dim], &find);
    Ok(found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().next())
}

/// What `of` makes of each of `n` items, with a value of each thread's; once for each result type.
fn of_each<S, R: Send>(
    n: usize,
    make: &(dyn Fn() -> S + Sync),
    of: &(dyn Fn(&mut S, usize) -> R + Sync),
) -> Vec<R> {
    let each = |min_len| (0..n).into_par_iter().with_min_len(min_len).map_init(make, of).collect();
    Parallel::new().share(each)
}

/// The rows of an item that its mask does not switch off.
fn valid_rows(layout: &TokenLayout, mask: Option<&[u8]>, item: usize) -> Vec<usize> {
    let is_valid = |row: &usize| mask.is_none_or(|mask| mask[*row] != 0);
    layout.item_rows(item).filter(is_valid).collect()
}

/// The error that an element of a row may have, by its code.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// One bound for all codes.
    Equal(f64),
    /// Half the distance of e4m3 numbers, times the scale; more at the end of the range.
    E4m3 { scale: f64, clamped: f64 },
}

impl Step {
    fn new(format: TokenFormat, scales: &Scales<'_>, scale: f64, min: f64) -> Step {
        let is_f16 = scales.storage() == ScaleType::F16;
        // NaN is not below either.
        let is_in_range = !is_f16 || scale < F16_MAX;
        if !is_in_range || scale.is_nan() {
            return Step::Equal(f64::INFINITY);
        }
        let subnormal = if is_f16 && scale < F16_NORMAL_MIN { F16_HALF_STEP } else { 0.0 };
        let more = 1.0 + 1.0 / 1024.0;
        match format {
            TokenFormat::Fp8 => Step::E4m3 { scale: scale * more, clamped: 448.0 * subnormal },
            TokenFormat::Int8Affine if min.abs() >= F16_MAX => Step::Equal(f64::INFINITY),
            TokenFormat::Int8Affine => {
                let clamped = scale / 8.0 + 255.0 * subnormal + half_unit_of_f16(min);
                Step::Equal((scale / 2.0).max(clamped) * more)
            }
            _ => Step::Equal((scale / 2.0).max(scale / 16.0 + 127.0 * subnormal) * more),
        }
    }

    fn bound(self, code: f64) -> f64 {
        match self {
            Step::Equal(bound) => bound,
            Step::E4m3 { scale, clamped } => {
                let half_step = (power_of_two(code) / 16.0).max(1.0 / 1024.0);
                half_step * scale + if code.abs() == 448.0 { clamped } else { 0.0 }
            }
        }
    }
}

/// How far what was rounded to the f16 number `x` may be from it.
fn half_unit_of_f16(x: f64) -> f64 {
    // 10 fraction bits, and half of the last.
    (power_of_two(x) / 2048.0).max(F16_HALF_STEP)
}

/// The largest power of two up to |x|; 0 of zeros and of the smallest numbers.
fn power_of_two(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & f64::INFINITY.to_bits())
}
