//! Rows that are normalised: r = 1 / √max(‖x‖², 10⁻¹²) of each, and similarities times r of both.
//!
//! The forward kernels read r of a tile's columns from memory before they wait for the tile, and
//! multiply before columns are masked: what lies behind a document's end, a NaN even, never shows.

#[cfg(maxsim_arch = "sm_80")]
mod norms;

#[cfg(maxsim_arch = "sm_80")]
use crate::abi::params::ForwardParams;
#[cfg(maxsim_arch = "sm_90a")]
use crate::abi::params::ScaledContiguousParams;
use crate::abi::params::{Group, NormalizedParams};
#[cfg(maxsim_arch = "sm_90a")]
use crate::abi::quantize::affine_similarity;
#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::row_maxima::{LaneRows, RowBest, angular_scores, normalized};
use crate::primitives::unroll::unroll;
#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::work_tile::group;
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::convert::widen_f16;
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::global::load_u16;
use crate::ptx::global::load_u32;
use crate::ptx::math::fma;
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::shared::load_shared_f32x4_at;
#[cfg(maxsim_arch = "sm_80")]
pub use norms::row_norms;

/// 2⁻¹⁰⁰: 4096 squares of the largest number times this are 10²¹ together; and what underflows
/// beside a sum that overflowed counts for nothing.
pub(crate) const SMALL: f32 = f32::from_bits((127 - 100) << 23);

/// Addresses of the scales of the rows of both matrices.
#[derive(Clone, Copy)]
pub struct RowScales {
    queries: u64,
    documents: u64,
    /// 1 where documents have f16 scales.
    f16: u32,
    /// 1 where maxima are cosines of angular scores.
    cosines: u32,
}

impl RowScales {
    /// Rows that are not normalised have no scales.
    pub const NONE: RowScales = RowScales { queries: 0, documents: 0, f16: 0, cosines: 0 };

    /// The row scales of a launch.
    #[inline(always)]
    pub fn of(params: &NormalizedParams) -> RowScales {
        RowScales {
            queries: params.query_scales,
            documents: params.document_scales,
            f16: params.document_scales_are_f16,
            cosines: params.maxima_are_cosines,
        }
    }

    /// The row scales of a launch of codes that reads contiguous rows.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn of_contiguous(params: &ScaledContiguousParams) -> RowScales {
        RowScales {
            queries: params.query_scales,
            documents: params.document_scales,
            f16: params.document_scales_are_f16,
            cosines: 0,
        }
    }

    /// None, in a launch whose kernel finds r itself; `cosines` is 1 where maxima are cosines of
    /// angular scores.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn of_cosines(cosines: u32) -> RowScales {
        RowScales { cosines, ..RowScales::NONE }
    }

    /// Whether maxima are cosines of angular scores.
    #[inline(always)]
    pub fn are_cosines(&self) -> bool {
        self.cosines != 0
    }

    /// Whether queries have any.
    #[cfg(maxsim_arch = "sm_80")]
    #[inline(always)]
    pub fn has_queries(&self) -> bool {
        self.queries != 0
    }

    /// r of row `row` of a group.
    ///
    /// # Safety
    /// The launch must normalise rows, and the group be one of it.
    #[inline(always)]
    pub unsafe fn query(&self, group: Group, row: u32) -> f32 {
        // Rows behind the group's last are another's, or padding.
        let address = self.queries + u64::from(group.start + row) * 4;
        // SAFETY: four bytes per row, and per group of padding.
        f32::from_bits(unsafe { load_u32(address) })
    }

    /// Address of the scales of the document rows from `row` on.
    #[inline(always)]
    pub fn of_documents(&self, row: u32) -> u64 {
        self.documents + u64::from(row) * 4
    }

    /// Address of the f16 scale of document row `row`, where documents have such.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn of_document_f16(&self, row: u32) -> u64 {
        self.documents + u64::from(row) * 2
    }

    /// Address of the scales of the document rows from `row` on, plus [`F16_MARK`] where they are
    /// f16: so that a thread has both in one register.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn of_marked_documents(&self, row: u32) -> u64 {
        marked_row(self.documents + u64::from(self.f16), row)
    }

    /// Whether documents have f16 scales.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn are_f16(&self) -> bool {
        self.f16 != 0
    }
}

/// Mark that is added to an address of f16 scales; addresses of scales are even.
#[cfg(maxsim_arch = "sm_90a")]
const F16_MARK: u64 = 1;

/// The address of the scale `row` rows on, marked as this one.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn marked_row(address: u64, row: u32) -> u64 {
    address + (u64::from(row) << (2 - (address & F16_MARK) as u32))
}

/// Whether scales from a marked address on are f16.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn are_f16(address: u64) -> bool {
    address & F16_MARK != 0
}

/// r of a thread's columns of a tile: two of every eight.
pub type ColumnScales = [f32; 32];

/// Loads the scales of a tile of `2 * N` columns.
///
/// # Safety
/// `address` must be [`RowScales::of_documents`] of the tile's first row.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_columns<const N: usize>(address: u64, lane: u32) -> ColumnScales {
    // SAFETY: all-zero bytes are floats. (A literal would become a loop in memory.)
    let mut scales: ColumnScales = unsafe { core::mem::zeroed() };
    unroll!(I in 0..16 => {
        if 4 * I < N {
            // SAFETY: the caller's promise; there is padding for a tile.
            [scales[2 * I], scales[2 * I + 1]] = unsafe { pair(address, I, lane) };
        }
    });
    scales
}

/// Loads the scales of a tile of `2 * N` columns, from f16.
///
/// # Safety
/// `address` must be [`RowScales::of_marked_documents`] of the tile's first row, and be marked.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_f16_columns<const N: usize>(address: u64, lane: u32) -> ColumnScales {
    // SAFETY: all-zero bytes are floats.
    let mut scales: ColumnScales = unsafe { core::mem::zeroed() };
    let address = address - F16_MARK + u64::from(2 * (lane % 4)) * 2;
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..2 => {
                // SAFETY: the caller's promise; there is padding for a tile. One by one: rows start
                // anywhere.
                let half = unsafe { load_u16(address + (16 * I + 2 * J) as u64) };
                scales[2 * I + J] = widen_f16(half)[0];
            });
        }
    });
    scales
}

/// Loads the scales of a tile of `2 * N` columns, which lie in shared memory from an address on as
/// [`shared_place`] orders them.
///
/// # Safety
/// They must be there, and `address` be aligned to 16.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_shared_columns<const N: usize>(address: u32, lane: u32) -> ColumnScales {
    // SAFETY: all-zero bytes are floats.
    let mut scales: ColumnScales = unsafe { core::mem::zeroed() };
    let address = address + 16 * (lane % 4);
    unroll!(I in 0..8 => {
        if 8 * I < N {
            // SAFETY: the caller's promise.
            [scales[4 * I], scales[4 * I + 1], scales[4 * I + 2], scales[4 * I + 3]] =
                unsafe { load_shared_f32x4_at::<{ 64 * I as u32 }>(address) };
        }
    });
    scales
}

/// Offset of the factor of column `lane` of 32, 128 bytes for each 32: of every 16 columns the four
/// of a thread are together, so that it takes them with one load.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn shared_place(lane: u32) -> u32 {
    64 * (lane / 16) + 16 * (lane / 2 % 4) + 8 * (lane / 8 % 2) + 4 * (lane % 2)
}

/// r of a thread's two columns of the `i`-th eight.
///
/// # Safety
/// As [`load_columns`].
#[inline(always)]
pub(crate) unsafe fn pair(address: u64, i: usize, lane: u32) -> [f32; 2] {
    let address = address + u64::from(8 * i as u32 + 2 * (lane % 4)) * 4;
    // SAFETY: the caller's promise. One by one: rows start anywhere.
    unsafe { [f32::from_bits(load_u32(address)), f32::from_bits(load_u32(address + 4))] }
}

/// Multiplies a thread's similarities by r of their columns.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn scale<const N: usize>(mut c: [f32; N], scales: &ColumnScales) -> [f32; N] {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..4 => { c[4 * I + J] = times(c[4 * I + J], scales[2 * I + J % 2]); });
        }
    });
    c
}

/// Similarities of a thread's codes and affine rows: the columns' factors are the halves of a word
/// each, the scale first, and `sums` are those of the two query rows' codes. Never -0, as
/// [`times`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn affine<const N: usize>(mut c: [f32; N], factors: &ColumnScales, sums: [f32; 2]) -> [f32; N] {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..2 => {
                let [scale, min] = widen_f16(factors[2 * I + J].to_bits());
                unroll!(ROW in 0..2 => {
                    let at = 4 * I + 2 * ROW + J;
                    c[at] = affine_similarity(c[at], scale, sums[ROW], min) + 0.0;
                });
            });
        }
    });
    c
}

/// A similarity times r. Never -0 where r is 0: the search for winners takes equal similarities to
/// have equal bits.
#[inline(always)]
pub fn times(similarity: f32, norm: f32) -> f32 {
    fma(similarity, norm, 0.0)
}

/// Row operation of the sm_80 kernels. A type, not a flag: kernels without it stay the same, to the
/// byte.
#[cfg(maxsim_arch = "sm_80")]
pub trait Normalizer: Copy {
    /// Whether rows have scales.
    const HAS_SCALES: bool = true;

    /// Whether similarities are collected in place of their maxima.
    const COLLECTS: bool = false;

    /// Factors of a column.
    type Column: Copy;

    /// Takes the rows of a new query tile, of which the warp has these groups.
    ///
    /// # Safety
    /// The launch must have the groups.
    unsafe fn take_rows(&mut self, params: &ForwardParams, fragments: usize, first: u32, lane: u32);

    /// Changes the lane's rows, at the end of a document.
    fn rows(&self, rows: &mut [RowBest; 2]);

    /// Addresses of the scales of rows.
    fn row_scales(&self) -> RowScales;

    /// Reads a column's word: its scale, and its minimum where there is one.
    fn column(word: f32) -> Self::Column;

    /// Makes a similarity of the thread's sum for row `row` of its two of a fragment, and a column.
    fn similarity(&self, sum: f32, fragment: usize, row: usize, column: Self::Column) -> f32;

    /// Collects similarities of a fragment's rows, where they are collected.
    ///
    /// # Safety
    /// [`Normalizer::take_rows`] must have taken the rows.
    #[inline(always)]
    unsafe fn collect<const N: usize>(&self, _: &[f32; N], _: usize) {}

    /// Ends a tile of documents, where similarities are collected.
    ///
    /// # Safety
    /// All lanes of the warp together; rows must have been taken.
    #[inline(always)]
    unsafe fn end_tile(&self) {}

    /// Ends the work of a warp, where similarities are collected.
    ///
    /// # Safety
    /// As [`Normalizer::end_tile`].
    #[inline(always)]
    unsafe fn end(&self) {}

    /// Makes similarities of the sums of a tile whose first row in the matrix is `row`. Two columns
    /// at a time: there is no room for all columns' words beside several fragments' sums.
    ///
    /// # Safety
    /// The documents' matrix must have the row.
    #[inline(always)]
    unsafe fn columns<const N: usize>(
        &self,
        c: &mut [[f32; N]; 4],
        fragments: usize,
        row: u32,
        lane: u32,
    ) {
        if !Self::HAS_SCALES {
            return;
        }
        let address = self.row_scales().of_documents(row);
        unroll!(I in 0..16 => {
            if 4 * I < N {
                // SAFETY: the caller's promise.
                let words = unsafe { pair(address, I, lane) };
                unroll!(J in 0..2 => {
                    let column = Self::column(words[J]);
                    unroll!(F in 0..4 => {
                        if F < fragments {
                            unroll!(ROW in 0..2 => {
                                let at = (4 * I + 2 * ROW + J) % N;
                                c[F][at] = self.similarity(c[F][at], F, ROW, column);
                            });
                        }
                    });
                });
            }
        });
    }
}

/// Rows as they are.
#[cfg(maxsim_arch = "sm_80")]
#[derive(Clone, Copy)]
pub struct AsTheyAre;

#[cfg(maxsim_arch = "sm_80")]
impl AsTheyAre {
    /// Ignores row scales.
    #[inline(always)]
    pub fn new(_: RowScales) -> AsTheyAre {
        AsTheyAre
    }
}

#[cfg(maxsim_arch = "sm_80")]
impl Normalizer for AsTheyAre {
    const HAS_SCALES: bool = false;
    type Column = ();

    #[inline(always)]
    unsafe fn take_rows(&mut self, _: &ForwardParams, _: usize, _: u32, _: u32) {}

    #[inline(always)]
    fn rows(&self, _: &mut [RowBest; 2]) {}

    #[inline(always)]
    fn row_scales(&self) -> RowScales {
        RowScales::NONE
    }

    #[inline(always)]
    fn column(_: f32) {}

    #[inline(always)]
    fn similarity(&self, sum: f32, _: usize, _: usize, (): ()) -> f32 {
        sum
    }
}

/// Rows that are normalised, or have scales. `COSINES` says whether maxima may be cosines of
/// angular scores.
#[cfg(maxsim_arch = "sm_80")]
#[derive(Clone, Copy)]
pub struct Normalized<const COSINES: bool> {
    row_scales: RowScales,
    /// Scales of the thread's [`LaneRows`].
    own: [f32; 2],
}

#[cfg(maxsim_arch = "sm_80")]
impl<const COSINES: bool> Normalized<COSINES> {
    /// Starts without query rows.
    #[inline(always)]
    pub fn new(row_scales: RowScales) -> Self {
        Normalized { row_scales, own: [1.0; 2] }
    }
}

#[cfg(maxsim_arch = "sm_80")]
impl<const COSINES: bool> Normalizer for Normalized<COSINES> {
    type Column = f32;

    #[inline(always)]
    unsafe fn take_rows(
        &mut self,
        params: &ForwardParams,
        fragments: usize,
        first: u32,
        lane: u32,
    ) {
        let own = LaneRows::new(fragments, lane);
        // SAFETY: the caller's promise.
        self.own =
            unsafe { own.scales(self.row_scales, group(params, first + own.fragment), lane) };
    }

    #[inline(always)]
    fn rows(&self, rows: &mut [RowBest; 2]) {
        *rows = normalized(*rows, self.own);
        if COSINES && self.row_scales.are_cosines() {
            *rows = angular_scores(*rows);
        }
    }

    #[inline(always)]
    fn row_scales(&self) -> RowScales {
        self.row_scales
    }

    #[inline(always)]
    fn column(scale: f32) -> f32 {
        scale
    }

    #[inline(always)]
    fn similarity(&self, sum: f32, _: usize, _: usize, scale: f32) -> f32 {
        times(sum, scale)
    }
}
