//! Finds the nearest points of a cloud.

use pulp::{Arch, Simd, WithSimd};

use super::cloud::{Cloud, FAN_OUT, LANES, NO_POINT, add, is_l1};
use crate::cpu::tokens::Matrix;
use crate::linalg::kernels::dispatch;
use crate::problem::chamfer::Metric;
use crate::tokens::format::{Format, widen};
use crate::tokens::layout::TokenLayout;

/// The nearest point so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub distance: f32,
    pub index: u32,
}

impl Best {
    pub(super) const NONE: Best = Best { distance: f32::INFINITY, index: NO_POINT };

    /// Whether a point so far away, of this index or a higher one, would be nearer.
    #[inline(always)]
    fn yields_to(&self, distance: f32, index: u32) -> bool {
        distance < self.distance || distance == self.distance && index < self.index
    }
}

/// Points that go through all blocks of a cloud together, while these are in the cache.
const GROUP_LEN: usize = 8;

/// Dims after which a block is left where its points are farther than what was found.
const SLICE_DIM: usize = 32;

/// Boxes on the way: of each level fewer than [`FAN_OUT`] wait, and 2³¹ points have ten levels.
const STACK_LEN: usize = 12 * FAN_OUT;

/// Finds the neighbours in `other` of points of `own`, from a place on.
pub(super) fn find(own: &Cloud, other: &Cloud, metric: Metric, first: usize, found: &mut [Best]) {
    let arch = Arch::new();
    match is_l1(metric) {
        true => dispatch(arch, Find::<true> { own, other, first, found }),
        false => dispatch(arch, Find::<false> { own, other, first, found }),
    }
}

/// [`find`], compiled for the widest registers that the CPU has.
struct Find<'a, const L1: bool> {
    own: &'a Cloud,
    other: &'a Cloud,
    first: usize,
    found: &'a mut [Best],
}

impl<const L1: bool> WithSimd for Find<'_, L1> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Find { own, other, first, found } = self;
        let dim = own.dim();
        let mut rows = vec![0.0; GROUP_LEN * dim];
        let mut before = None;
        for (group, found) in found.chunks_mut(GROUP_LEN).enumerate() {
            let points = rows.chunks_exact_mut(dim);
            for (i, point) in points.take(found.len()).enumerate() {
                own.point(first + group * GROUP_LEN + i, point);
            }
            let points = || rows.chunks_exact(dim);
            if other.levels().is_empty() {
                for block in 0..other.n_blocks() {
                    for (best, point) in found.iter_mut().zip(points()) {
                        scan::<L1>(other, block, point, best);
                    }
                }
                continue;
            }
            for (best, point) in found.iter_mut().zip(points()) {
                // The block of the neighbour before is a good one to begin with.
                if let Some(block) = before {
                    scan::<L1>(other, block, point, best);
                }
                before = descend::<L1>(other, point, best).or(before);
            }
        }
    }
}

/// Looks into all boxes that may have a nearer point. The block where the nearest was found, if a
/// nearer one was.
#[inline(always)]
fn descend<const L1: bool>(cloud: &Cloud, point: &[f32], best: &mut Best) -> Option<usize> {
    let levels = cloud.levels();
    let mut waiting = [(0usize, 0usize); STACK_LEN];
    let top = levels.len() - 1;
    let mut n_waiting = 0;
    for node in (0..levels[top].n()).rev() {
        waiting[n_waiting] = (top, node);
        n_waiting += 1;
    }
    let mut found = None;
    while n_waiting > 0 {
        n_waiting -= 1;
        let (level, node) = waiting[n_waiting];
        let boxes = &levels[level];
        if !best.yields_to(boxes.bound::<L1>(node, point), boxes.least(node)) {
            continue;
        }
        if level == 0 {
            if scan::<L1>(cloud, node, point, best) {
                found = Some(node);
            }
            continue;
        }
        let end = ((node + 1) * FAN_OUT).min(levels[level - 1].n());
        for child in (node * FAN_OUT..end).rev() {
            waiting[n_waiting] = (level - 1, child);
            n_waiting += 1;
        }
    }
    found
}

/// Compares a point with those of a block; whether one of them is nearer than what was found.
#[inline(always)]
fn scan<const L1: bool>(cloud: &Cloud, block: usize, point: &[f32], best: &mut Best) -> bool {
    let mut sums = [0.0f32; LANES];
    let slices = cloud.block(block).chunks(SLICE_DIM * LANES).zip(point.chunks(SLICE_DIM));
    for (coordinates, point) in slices {
        for (others, &x) in coordinates.chunks_exact(LANES).zip(point) {
            for lane in 0..LANES {
                sums[lane] = add::<L1>(sums[lane], others[lane] - x);
            }
        }
        // Sums do not fall.
        if sums.iter().all(|&sum| sum > best.distance) {
            return false;
        }
    }
    let before = *best;
    for (lane, &distance) in sums.iter().enumerate() {
        let index = cloud.index(block, lane);
        if best.yields_to(distance, index) {
            *best = Best { distance, index };
        }
    }
    *best != before
}

/// The neighbour of a point by comparison with every point, whatever they are: the first at
/// distance NaN, else the first of the nearest ones.
pub(super) fn compare<F: Format>(
    [own, other]: [&TokenLayout; 2],
    [points, others]: [Matrix<'_, F>; 2],
    pair: usize,
    point: u32,
    metric: Metric,
) -> Best {
    let dim = own.dim();
    let row_of = |points: &Matrix<'_, F>, row: usize, values: &mut [f32]| {
        widen::<F>(&points.data[row * dim..][..dim], values);
    };
    let (mut own_row, mut row) = (vec![0.0; dim], vec![0.0; dim]);
    row_of(&points, own.item_rows(pair).start + point as usize, &mut own_row);
    let mut best = Best::NONE;
    for (at, index) in other.item_rows(pair).zip(0u32..) {
        if others.mask.is_some_and(|mask| mask[at] == 0) {
            continue;
        }
        row_of(&others, at, &mut row);
        let differences = own_row.iter().zip(&row).map(|(a, b)| b - a);
        let distance = differences.fold(0.0, |sum, difference| match is_l1(metric) {
            true => add::<true>(sum, difference),
            false => add::<false>(sum, difference),
        });
        if distance.is_nan() {
            return Best { distance, index };
        }
        if best.yields_to(distance, index) {
            best = Best { distance, index };
        }
    }
    best
}
