//! Gradients of Chamfer distances, from the neighbours.
//!
//! A point p with neighbour q, whose distance has gradient g, adds g · ∂‖p − q‖ to the row of p
//! and takes it from the row of q: NaN in all coordinates, where the distance is not finite. Terms
//! are added in the order of directions, clouds and points,
//! each side by one thread, so that no bit depends on the number of threads.

use crate::cpu::tokens::Matrix;
use crate::error::Result;
use crate::problem::chamfer::{Chamfer, CloudPairs, Metric, each_cloud};
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::tokens::format::{Format, widen};

/// The gradients of both sides' rows, from those of the distances of points: `None` is no term.
pub(crate) fn gradients<F: Format>(
    pairs: &CloudPairs<'_>,
    points: [Matrix<'_, F>; 2],
    found: &Chamfer,
    grad: &(impl Fn(usize, usize, usize) -> Option<f32> + Sync),
) -> Result<[Vec<f32>; 2]> {
    let of = |side| side_gradients(pairs, points, found, grad, side);
    let parallel = Parallel::new();
    let (x, y) = parallel.share(|_| match parallel.is_alone() {
        true => (of(0), of(1)),
        false => rayon::join(|| of(0), || of(1)),
    });
    Ok([x?, y?])
}

/// The gradients of the rows of a side.
fn side_gradients<F: Format>(
    pairs: &CloudPairs<'_>,
    points: [Matrix<'_, F>; 2],
    found: &Chamfer,
    grad: &impl Fn(usize, usize, usize) -> Option<f32>,
    side: usize,
) -> Result<Vec<f32>> {
    let dim = pairs.dim();
    let n_elements = pairs.layouts[side].rows() as u64 * dim as u64;
    let mut gradients: Vec<f32> = filled(n_elements, 0.0)?;
    let (mut own_row, mut row) = (vec![0.0; dim], vec![0.0; dim]);
    let metric = found.options.metric;
    for (from, nearest) in found.directions() {
        let (layout, others) = (pairs.layouts[from], pairs.layouts[1 - from]);
        each_cloud(layout, |pair, first, len| {
            for point in 0..len {
                let Ok(neighbour) = usize::try_from(nearest.indices[first + point]) else {
                    continue;
                };
                let Some(mut factor) = grad(from, pair, first + point) else { continue };
                if !nearest.distances[first + point].is_finite() {
                    factor = f32::NAN;
                }
                let at = layout.item_rows(pair).start + point;
                let neighbour = others.item_rows(pair).start + neighbour;
                widen::<F>(&points[from].data[at * dim..][..dim], &mut own_row);
                widen::<F>(&points[1 - from].data[neighbour * dim..][..dim], &mut row);
                let (target, factor) =
                    if from == side { (at, factor) } else { (neighbour, -factor) };
                let sums = &mut gradients[target * dim..][..dim];
                for ((sum, &p), &q) in sums.iter_mut().zip(&own_row).zip(&row) {
                    *sum += factor * slope(metric, p - q);
                }
            }
        });
    }
    Ok(gradients)
}

/// The derivative of what a difference adds to a distance.
fn slope(metric: Metric, difference: f32) -> f32 {
    match metric {
        Metric::SquaredL2 => 2.0 * difference,
        // 0 at 0, and NaN of NaN.
        Metric::L1 if difference == 0.0 || difference.is_nan() => difference,
        Metric::L1 => difference.signum(),
    }
}
