//! Neighbours neighbours between clouds of points, exactly, by differences in f32.
//!
//! Points of up to [`cloud::SORTED_DIM`] dims are sorted along a space-filling curve and lie in
//! blocks of 16 with a box each, and boxes of eight boxes above them. A point looks into a box only
//! where the box is no farther than what it has found; it begins with the neighbour of the point
//! before it on the curve. Points of more dims meet all blocks, of which no more is looked at once
//! the sums of all its points are larger than what was found.
//!
//! The distance to a box is computed by the operations that give the distance to a point, in their
//! order. Rounding keeps order, so it is no larger than that of any point inside, and what is found
//! is what a comparison with every point finds, bit for bit.

mod cloud;
mod gradients;
mod search;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use self::cloud::Cloud;
use self::search::{Best, find};
use crate::cpu::tokens::Matrix;
use crate::error::Result;
use crate::problem::chamfer::{CloudPairs, Metric, Neighbours, each_cloud};
use crate::runtime::alloc::{filled, reserve};
use crate::runtime::interrupt::{Heeded, Interrupt};
use crate::runtime::pool::Parallel;
use crate::tokens::format::Format;
pub(crate) use gradients::gradients;

/// Points that a thread takes at once.
const CHUNK_LEN: usize = 256;

/// Points of a cloud whose neighbours a thread finds.
struct Task<'a> {
    side: usize,
    pair: usize,
    /// Place of the first one in the order of its cloud.
    first: usize,
    found: &'a mut [Best],
}

/// The neighbours of the points of both sides, or of the first one alone.
pub(crate) fn nearest<F: Format>(
    pairs: &CloudPairs<'_>,
    points: [Matrix<'_, F>; 2],
    metric: Metric,
    single_direction: bool,
) -> Result<(Neighbours, Option<Neighbours>)> {
    let (parallel, interrupt) = (Parallel::new(), Interrupt::current());
    let n_pairs = pairs.n_pairs();
    let of = |i: usize| {
        interrupt.check()?;
        let (side, pair) = (i / n_pairs, i % n_pairs);
        Cloud::new(pairs.layouts[side], points[side], pair)
    };
    let clouds: Vec<Cloud> = parallel.share(|min_len| {
        (0..2 * n_pairs).into_par_iter().with_min_len(min_len).map(of).collect::<Result<_>>()
    })?;
    let mut found: Vec<Vec<Best>> = Vec::new();
    let n_directions = if single_direction { 1 } else { 2 };
    reserve(&mut found, n_directions * n_pairs)?;
    for cloud in &clouds[..n_directions * n_pairs] {
        found.push(filled(cloud.n_points() as u64, Best::NONE)?);
    }
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (i, found) in found.iter_mut().enumerate() {
        reserve(&mut tasks, found.len().div_ceil(CHUNK_LEN))?;
        let chunks = found.chunks_mut(CHUNK_LEN).enumerate();
        tasks.extend(chunks.map(|(chunk, found)| {
            let (side, pair) = (i / n_pairs, i % n_pairs);
            Task { side, pair, first: chunk * CHUNK_LEN, found }
        }));
    }
    let run = |task: Task<'_>| {
        interrupt.check()?;
        let Task { side, pair, first, found } = task;
        let (own, other) = (&clouds[side * n_pairs + pair], &clouds[(1 - side) * n_pairs + pair]);
        find(own, other, metric, first, found);
        Ok(())
    };
    parallel.share(|min_len| tasks.into_par_iter().with_min_len(min_len).try_for_each(run))?;
    let side = |side: usize| {
        let (clouds, found) = (&clouds, &found[side * n_pairs..]);
        in_order(pairs, points, metric, side, clouds, found, &interrupt)
    };
    let x = side(0)?;
    let y = if single_direction { None } else { Some(side(1)?) };
    Ok((x, y))
}

/// What was found for a side's points, in the order of the points; and for those that are in no
/// order, or farther from all than f32 goes, from a comparison with every point.
fn in_order<F: Format>(
    pairs: &CloudPairs<'_>,
    points: [Matrix<'_, F>; 2],
    metric: Metric,
    side: usize,
    clouds: &[Cloud],
    found: &[Vec<Best>],
    interrupt: &Heeded,
) -> Result<Neighbours> {
    let layouts = [pairs.layouts[side], pairs.layouts[1 - side]];
    let points = [points[side], points[1 - side]];
    let n_pairs = pairs.n_pairs();
    let mut nearest = Neighbours::none(layouts[0])?;
    let mut result = Ok(());
    each_cloud(layouts[0], |pair, first, _| {
        let (own, other) = (&clouds[side * n_pairs + pair], &clouds[(1 - side) * n_pairs + pair]);
        if other.is_empty() || result.is_err() {
            return;
        }
        let mut set = |point: u32, best: Best| {
            nearest.distances[first + point as usize] = best.distance;
            nearest.indices[first + point as usize] = best.index as i32;
        };
        let compare = |point: u32| {
            interrupt.check()?;
            Ok(search::compare(layouts, points, pair, point, metric))
        };
        let nan = other.first_nan().map(|index| Best { distance: f32::NAN, index });
        let ordered = own.order().iter().zip(&found[pair]);
        let ordered = ordered.map(|(&point, &best)| (point, nan.unwrap_or(best)));
        let odd = own.odd().iter().map(|&point| (point, Best::NONE));
        for (point, mut best) in ordered.chain(odd) {
            if best.distance == f32::INFINITY {
                best = match compare(point) {
                    Ok(best) => best,
                    Err(error) => {
                        result = Err(error);
                        return;
                    }
                };
            }
            set(point, best);
        }
    });
    result.map(|()| nearest)
}
