//! Trains centroids by k-means.
//!
//! As in ColBERTv2's indexer (faiss's `Kmeans`, then normalised): centroids start as random
//! rows; each iteration gives every row to its nearest centroid and moves each centroid to the
//! mean of its rows. A centroid that is left without rows starts anew at the row that its own
//! centroid serves worst, where faiss splits a large cluster.
//!
//! Sums are in f64 and in the order of the rows, so that no bit depends on the number of threads.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::by_code::ByCode;
use super::nearest::{Done, Nearest, Panels};
use crate::error::Result;
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;

/// Moves `n_centroids` centroids, at first the first rows of `rows` `[n, dim]`. With `spherical`
/// they are normalised whenever they have moved. Every iteration counts the rows.
pub(super) fn kmeans(
    rows: &[f32],
    dim: usize,
    n_centroids: usize,
    n_iterations: usize,
    spherical: bool,
    done: &Done<'_>,
) -> Result<Vec<f32>> {
    let mut centroids = filled(n_centroids as u64 * dim as u64, 0.0)?;
    centroids.copy_from_slice(&rows[..n_centroids * dim]);
    if spherical {
        normalize_rows(&mut centroids, dim);
    }
    // Between normalised centroids the two agree, and the dot product has no penalties to read.
    let nearest = if spherical { Nearest::Dot } else { Nearest::Distance };
    for _ in 0..n_iterations {
        let codes = Panels::new(&centroids, dim, nearest, false)?.assign(rows, done)?;
        let by_code = ByCode::new(&codes, n_centroids)?;
        reseed_empty(rows, dim, &codes, &by_code, &mut centroids);
        Parallel::new().share(|min_len| {
            let centroids = centroids.par_chunks_exact_mut(dim).with_min_len(min_len);
            centroids.enumerate().for_each(|(code, centroid)| {
                move_to_mean(rows, by_code.members(code), centroid);
            });
        });
        if spherical {
            normalize_rows(&mut centroids, dim);
        }
    }
    Ok(centroids)
}

/// Divides rows by their lengths; rows of zeros stay.
pub(super) fn normalize_rows(rows: &mut [f32], dim: usize) {
    let normalize = |row: &mut [f32]| {
        let length = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if length > 0.0 {
            row.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    };
    let rows = rows.par_chunks_exact_mut(dim);
    Parallel::new().share(|min_len| rows.with_min_len(min_len).for_each(normalize));
}

fn move_to_mean(rows: &[f32], members: &[u32], centroid: &mut [f32]) {
    if members.is_empty() {
        return;
    }
    let dim = centroid.len();
    let mut sums = vec![0.0; dim];
    for &row in members {
        let row = &rows[row as usize * dim..][..dim];
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let n = members.len() as f64;
    centroid.iter_mut().zip(sums).for_each(|(to, sum)| *to = (sum / n) as f32);
}

/// Puts centroids without rows where rows are farthest from their centroids.
fn reseed_empty(rows: &[f32], dim: usize, codes: &[i32], by_code: &ByCode, centroids: &mut [f32]) {
    let n_centroids = centroids.len() / dim;
    let empty: Vec<usize> = (0..n_centroids).filter(|&i| by_code.members(i).is_empty()).collect();
    if empty.is_empty() {
        return;
    }
    let distance = |(row, &code): (&[f32], &i32)| {
        let centroid = &centroids[code as usize * dim..][..dim];
        row.iter().zip(centroid).map(|(&x, &c)| (f64::from(x) - f64::from(c)).powi(2)).sum::<f64>()
    };
    let tokens = rows.par_chunks_exact(dim).zip(codes);
    let distances: Vec<f64> =
        Parallel::new().share(|min_len| tokens.with_min_len(min_len).map(distance).collect());
    let mut order: Vec<u32> = (0..distances.len() as u32).collect();
    // Stable: the first of equally far rows comes first.
    order.sort_by(|&a, &b| distances[b as usize].total_cmp(&distances[a as usize]));
    for (&centroid, &row) in empty.iter().zip(&order) {
        let row = &rows[row as usize * dim..][..dim];
        centroids[centroid * dim..][..dim].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Done<'static> {
        Done::new(0, &|_, _| {})
    }

    /// Rows around three centres, in turns.
    fn clusters() -> Vec<f32> {
        let jitter = |i: usize| ((i * 7919) % 101) as f32 / 5000.0;
        let centre = |i: usize| [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]][i % 3];
        (0..100)
            .flat_map(|i| {
                let [x, y] = centre(i);
                [x + jitter(2 * i), y + jitter(2 * i + 1)]
            })
            .collect()
    }

    #[test]
    fn centroids_go_to_the_centres() {
        let rows = clusters();
        for spherical in [false, true] {
            let found = kmeans(&rows, 2, 3, 10, spherical, &nobody()).unwrap();
            for [x, y] in [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0f32]] {
                let near = |c: &[f32]| (c[0] - x).abs() < 0.03 && (c[1] - y).abs() < 0.03;
                assert!(found.chunks(2).any(near), "spherical {spherical}: {found:?}");
            }
        }
    }

    #[test]
    fn more_centroids_than_different_rows_are_no_trouble() {
        let rows = [1.0, 0.0].repeat(5);
        let found = kmeans(&rows, 2, 4, 3, true, &nobody()).unwrap();
        assert_eq!(found, [1.0, 0.0].repeat(4));
        let zeros = kmeans(&[0.0; 6], 2, 2, 2, true, &nobody()).unwrap();
        assert_eq!(zeros, [0.0; 4]);
    }

    #[test]
    fn a_centroid_without_rows_starts_at_the_worst_served_row() {
        // Both centroids start at the first cluster; the far row takes over the empty one.
        let rows = [1.0f32, 0.0, 1.0, 0.0, 1.0, 0.1, 5.0, 5.0];
        let found = kmeans(&rows, 2, 2, 1, false, &nobody()).unwrap();
        assert_eq!(found[2..], [5.0, 5.0], "{found:?}");
    }

    #[test]
    fn spherical_centroids_have_length_1() {
        let rows = [3.0f32, 0.0, 0.0, 4.0, 3.0, 0.3, 0.4, 4.0];
        for n_iterations in 0..3 {
            let found = kmeans(&rows, 2, 2, n_iterations, true, &nobody()).unwrap();
            for c in found.chunks(2) {
                assert!((c[0].hypot(c[1]) - 1.0).abs() < 1e-6, "{n_iterations}: {c:?}");
            }
        }
    }

    #[test]
    fn rows_of_any_size_are_normalised() {
        let mut rows = [3e38f32, 3e38, 1e-38, -1e-38, 0.0, 0.0];
        normalize_rows(&mut rows, 2);
        let r = std::f32::consts::FRAC_1_SQRT_2;
        assert_eq!(rows, [r, r, r, -r, 0.0, 0.0]);
    }
}
