//! Copies points as f16 rows that tensor cores multiply: 256 threads, 4 points for each warp, whose
//! lanes share the dims.
//!
//! ```text
//! extents    the largest coordinate of a pair's clouds
//! copies     scaled points with their terms, their norms, and how far they are from the points
//! ```
//!
//! Points in f32 are centred: the centre is the mean of eight of the first cloud, which every CTA
//! adds up for itself. What is found does not depend on it, only how much has to be compared.

use super::points::{Cloud, cloud_pair};
use crate::abi::element::ElementType;
use crate::abi::params::chamfer::select::{
    BLOCK, COPY_POINTS, CopyParams, CopyTask, MARKED, extent, scale,
};
use crate::abi::params::chamfer::{CloudPair, tag};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u32_if;
use crate::ptx::convert::{narrow_f16, widen_f16};
use crate::ptx::global::{load_u32x4, read_u32, store_u16, store_u32};
use crate::ptx::math::sqrt;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{lane_idx, max_lanes, shuffle_xor_by};

/// Numbers of a warp's points.
type Points = [f32; COPY_POINTS as usize];

/// What the terms of a document row are multiplied by, f16 in query rows: each of the first is as
/// many times the size of the next as f16 has values between powers of two.
const TERM_FACTORS: [f32; 3] = [1.0, 1.0 / 2048.0, 1.0 / 4_194_304.0];

/// A warp's points.
struct Warp {
    index: u32,
    side: u32,
    pair: CloudPair,
    cloud: Cloud,
    first: u32,
    /// Row of the copy of the first point.
    row: u32,
}

impl Warp {
    /// # Safety
    /// There must be a task for each CTA.
    #[inline(always)]
    unsafe fn new(params: &CopyParams) -> Warp {
        let task = params.tasks + u64::from(block_idx_x()) * size_of::<CopyTask>() as u64;
        let in_task = thread_idx_x() / 32 * COPY_POINTS;
        // SAFETY: the caller's promise.
        unsafe {
            let [pair_and_side, first, row, _] = load_u32x4(task);
            let (index, side) = (pair_and_side / 2, pair_and_side % 2);
            let pair = cloud_pair(params.clouds.pairs, index);
            let cloud = Cloud::of(&params.clouds, &pair, side);
            Warp { index, side, pair, cloud, first: first + in_task, row: row + in_task }
        }
    }

    /// The centre in a dim: 0 of points in 16 bits, which are copied as they are.
    ///
    /// # Safety
    /// There must be the dim.
    #[inline(always)]
    unsafe fn centre(&self, params: &CopyParams, k: u32) -> f32 {
        if params.clouds.element != tag(ElementType::F32) {
            return 0.0;
        }
        let x = Cloud::of(&params.clouds, &self.pair, 0);
        let mut sum = 0.0;
        unroll!(J in 0..8 => {
            let point = (u64::from(x.len) * J as u64 / 8) as u32;
            // SAFETY: clouds that are copied are not empty; a masked point counts as 0.
            sum += unsafe { x.coordinate_if(&params.clouds, point, k, x.is_valid(point)) };
        });
        let centre = sum * 0.125;
        if centre.abs() < f32::INFINITY { centre } else { 0.0 }
    }

    /// The distances of the points from the centre in a dim, and whether each point is valid.
    ///
    /// # Safety
    /// There must be the dim.
    #[inline(always)]
    unsafe fn centred(&self, params: &CopyParams, k: u32, is_valid: &[bool; 4]) -> Points {
        let mut values = [0.0; 4];
        // SAFETY: coordinates of points that are there.
        unsafe {
            unroll!(I in 0..4 => {
                let point = self.first + I as u32;
                values[I] = self.cloud.coordinate_if(&params.clouds, point, k, is_valid[I]);
            });
            let centre = self.centre(params, k);
            unroll!(I in 0..4 => {
                values[I] = if is_valid[I] { values[I] - centre } else { 0.0 };
            });
        }
        values
    }

    /// # Safety
    /// As the parameters say.
    #[inline(always)]
    unsafe fn valid(&self) -> [bool; 4] {
        let mut is_valid = [false; 4];
        unroll!(I in 0..4 => {
            // SAFETY: the caller's promise.
            is_valid[I] = unsafe { self.cloud.is_valid(self.first + I as u32) };
        });
        is_valid
    }

    /// The address of a word of the pair.
    #[inline(always)]
    fn word(&self, params: &CopyParams, word: u32) -> u64 {
        params.extents + (u64::from(self.index) * u64::from(extent::LEN) + u64::from(word)) * 4
    }
}

/// Finds the largest coordinate of this CTA's points.
///
/// # Safety
/// `params` must describe memory as [`CopyParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn extents(params: &CopyParams) {
    // SAFETY: the caller's promise; warps are whole.
    unsafe {
        let warp = Warp::new(params);
        let is_valid = warp.valid();
        let (mut most, mut k) = (0u32, lane_idx());
        while k < params.clouds.dim {
            let values = warp.centred(params, k, &is_valid);
            unroll!(I in 0..4 => {
                let bits = values[I].abs().to_bits();
                let is_larger = (bits > most) & (bits < f32::INFINITY.to_bits());
                most = if is_larger { bits } else { most };
            });
            k += 32;
        }
        let most = max_lanes(most);
        max_u32_if(warp.word(params, extent::MOST), most, u32::from(lane_idx() == 0));
    }
}

/// Copies this CTA's points.
///
/// # Safety
/// As [`extents`], behind it.
#[inline(always)]
pub unsafe fn copies(params: &CopyParams) {
    // SAFETY: the caller's promise; warps are whole.
    unsafe {
        let warp = Warp::new(params);
        let is_valid = warp.valid();
        let scale = scale(read_u32(warp.word(params, extent::MOST)));
        let (mut norms, mut errors) = ([0.0f32; 4], [0.0f32; 4]);
        let mut k = lane_idx();
        while k < params.clouds.dim {
            let values = warp.centred(params, k, &is_valid);
            unroll!(I in 0..4 => {
                let value = values[I] * scale;
                let copied = widen_f16(narrow_f16(value, 0.0))[0];
                norms[I] += copied * copied;
                // NaN stays, and infinities less themselves are NaN.
                errors[I] += (value - copied) * (value - copied);
            });
            k += 32;
        }
        let mut is_odd = [false; 4];
        unroll!(I in 0..4 => {
            (norms[I], errors[I]) = (sum_lanes(norms[I]), sum_lanes(errors[I]));
            let size = norms[I] + errors[I];
            is_odd[I] = size >= f32::INFINITY || size.is_nan();
            norms[I] = if is_odd[I] { 0.0 } else { norms[I] };
        });
        let is_copied = is_odd.map(|is_odd| !is_odd);
        k = lane_idx();
        while k < params.copied_dim {
            let mut values = [0.0; 4];
            if k < params.clouds.dim {
                values = warp.centred(params, k, &is_valid);
            }
            unroll!(I in 0..4 => {
                let value = if is_copied[I] { values[I] * scale } else { 0.0 };
                let halves = match k < params.clouds.dim {
                    true => [narrow_f16(value, 0.0); 2],
                    false => {
                        let term = half_norm(norms[I], is_valid[I], is_odd[I]);
                        terms(k - params.clouds.dim, term)
                    }
                };
                let row = u64::from(warp.row + I as u32);
                if params.is_halved != 0 {
                    let term = half_norm(norms[I], is_valid[I] & !is_odd[I], false).abs();
                    let element = match k < params.clouds.dim {
                        true => narrow_f16(if warp.side == 0 { value } else { -value }, 0.0),
                        false => both_terms(k - params.clouds.dim, term, warp.side),
                    };
                    store_element(params.queries, params, row, k, element);
                } else if warp.first + (I as u32) < warp.cloud.len {
                    store_element(params.queries, params, row, k, halves[0]);
                    store_element(params.documents, params, row, k, halves[1]);
                }
            });
            k += 32;
        }
        warp.store(params, &norms, &errors, &is_valid, &is_odd);
    }
}

impl Warp {
    #[inline(always)]
    fn place(&self, point: u32) -> u64 {
        u64::from(self.cloud.place) + u64::from(self.first + point)
    }

    /// Writes norms and errors, and the largest of them.
    ///
    /// # Safety
    /// As [`copies`].
    #[inline(always)]
    unsafe fn store(
        &self,
        params: &CopyParams,
        norms: &Points,
        errors: &Points,
        is_valid: &[bool; 4],
        is_odd: &[bool; 4],
    ) {
        let is_centred = params.clouds.element == tag(ElementType::F32);
        let (mut most_norm, mut most_error) = (0.0f32, 0.0f32);
        unroll!(I in 0..4 => {
            // What the root and the sum round, and the difference from the centre.
            let mut error = sqrt(errors[I]) * (1.0 + 1.0 / 1024.0);
            if is_centred {
                error += (sqrt(norms[I]) + error) * (1.0 / 4_194_304.0);
            }
            error = if is_odd[I] { f32::INFINITY } else { error };
            if is_valid[I] & !is_odd[I] {
                most_norm = if norms[I] > most_norm { norms[I] } else { most_norm };
                most_error = if error > most_error { error } else { most_error };
            }
            let is_there = self.first + (I as u32) < self.cloud.len;
            if params.is_halved != 0 {
                let block = (self.row + I as u32) / BLOCK;
                let marks = is_valid[I] & is_odd[I] & (lane_idx() == 0);
                // SAFETY: a word for each block of rows.
                unsafe { max_u32_if(params.odd + u64::from(block) * 4, 1, u32::from(marks)) };
            }
            if is_there && lane_idx() == I as u32 {
                // SAFETY: a number per place.
                unsafe {
                    store_u32(params.norms + self.place(I as u32) * 4, norms[I].to_bits());
                    store_u32(params.errors + self.place(I as u32) * 4, error.to_bits());
                }
            }
        });
        let is_first = u32::from(lane_idx() == 0);
        // SAFETY: words of the pair.
        unsafe {
            let word = self.word(params, extent::NORMS + self.side);
            max_u32_if(word, most_norm.to_bits(), is_first);
            let word = self.word(params, extent::ERRORS + self.side);
            max_u32_if(word, most_error.to_bits(), is_first);
        }
    }
}

/// −‖q̂‖²/2 of a document row; marks of points that are none, and of ones that are not finite.
#[inline(always)]
fn half_norm(norm: f32, is_valid: bool, is_odd: bool) -> f32 {
    match (is_valid, is_odd) {
        (false, _) => -MARKED,
        (true, true) => MARKED,
        (true, false) => -0.5 * norm,
    }
}

/// Term `i` of a query row and a document row: parts of a number, the sum of whose products it is.
#[inline(always)]
#[allow(unused_assignments)] // behind the last term there is a rest, too
fn terms(i: u32, number: f32) -> [u32; 2] {
    let mut rest = number;
    let mut term = [0; 2];
    unroll!(I in 0..3 => {
        let part = narrow_f16(rest / TERM_FACTORS[I], 0.0);
        if i == I as u32 {
            term = [narrow_f16(TERM_FACTORS[I], 0.0), part];
        }
        rest -= widen_f16(part)[0] * TERM_FACTORS[I];
    });
    term
}

/// Term `i` of a row that is multiplied with one of the other side: parts of the number and what
/// the other's parts are multiplied by, rows of the first side the parts first.
#[inline(always)]
fn both_terms(i: u32, number: f32, side: u32) -> u32 {
    let [factor, part] = terms(if i < 3 { i } else { i - 3 }, number);
    let is_there = i < 6;
    let is_part = (i < 3) == (side == 0);
    if is_there { if is_part { part } else { factor } } else { 0 }
}

/// Writes an element of a row of copies.
///
/// # Safety
/// There must be the row.
#[inline(always)]
unsafe fn store_element(rows: u64, params: &CopyParams, row: u64, k: u32, element: u32) {
    let offset = (row * u64::from(params.copied_dim) + u64::from(k)) * 2;
    // SAFETY: the caller's promise.
    unsafe { store_u16(rows + offset, element) };
}

/// The sum of a number of all lanes.
///
/// # Safety
/// All lanes together.
#[inline(always)]
unsafe fn sum_lanes(mut sum: f32) -> f32 {
    let mut distance = 16;
    while distance > 0 {
        // SAFETY: the caller's promise.
        sum += unsafe { shuffle_xor_by(sum, distance) };
        distance /= 2;
    }
    sum
}
