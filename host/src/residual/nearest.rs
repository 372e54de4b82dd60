//! Finds the nearest centroid of every row.

use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use crate::error::Result;
use crate::linalg::gemm::{LANES, PANEL_LEN, TILE_LEN, similarities};
use crate::linalg::kernels::{Kernel, Kernels};
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::tokens::scaled_rows::LARGEST;

/// Rows that a thread takes at once: a panel of centroids stays in the cache while they pass by.
const CHUNK_LEN: usize = 8 * TILE_LEN;

/// Meaning of the nearest centroid. The lowest code wins a tie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Nearest {
    /// The largest dot product: what ColBERT, fast-plaid and next-plaid take, whose rows and
    /// centroids all have length 1.
    #[default]
    Dot,
    /// The smallest distance, for rows and centroids of any length.
    Distance,
}

/// Progress of a training, for its caller.
pub(super) struct Done<'a> {
    n_done: AtomicU64,
    n_all: u64,
    report: &'a (dyn Fn(u64, u64) + Sync),
}

impl<'a> Done<'a> {
    /// Starts with none of `n_all` rows done.
    pub fn new(n_all: u64, report: &'a (dyn Fn(u64, u64) + Sync)) -> Done<'a> {
        Done { n_done: AtomicU64::new(0), n_all, report }
    }

    fn add(&self, n: usize) {
        let before = self.n_done.fetch_add(n as u64, Ordering::Relaxed);
        (self.report)(before + n as u64, self.n_all);
    }
}

/// Centroids, packed in the order in which they are multiplied.
#[derive(Debug)]
pub(super) struct Panels {
    kernel: &'static Kernel,
    dim: usize,
    n_centroids: usize,
    /// `[dim, width]` of up to [`PANEL_LEN`] centroids each; the last is filled up with zeros.
    panels: Vec<f32>,
    /// Number to subtract from each centroid's dot products.
    penalties: Vec<f32>,
    /// Whether dot products are rounded to f16 before they are compared.
    rounds: bool,
    /// Whether products with some centroid may be beyond f32 for some row.
    are_large: bool,
}

impl Panels {
    /// Packs `centroids` `[n_centroids, dim]`.
    pub fn new(centroids: &[f32], dim: usize, nearest: Nearest, rounds: bool) -> Result<Panels> {
        let n_centroids = centroids.len() / dim;
        let mut panels = filled(n_centroids.next_multiple_of(LANES) as u64 * dim as u64, 0.0)?;
        let chunks = centroids.par_chunks(PANEL_LEN * dim);
        let transpose = |(panel, rows): (&mut [f32], &[f32])| {
            let width = panel.len() / dim;
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                for (k, &x) in row.iter().enumerate() {
                    panel[k * width + i] = x;
                }
            }
        };
        let chunks = panels.par_chunks_mut(PANEL_LEN * dim).zip(chunks);
        Parallel::new().share(|min_len| chunks.with_min_len(min_len).for_each(transpose));
        // ‖x - c‖² is smallest where ⟨x, c⟩ - ‖c‖² / 2 is largest.
        let half_square = |row: &[f32]| {
            row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() as f32 / 2.0
        };
        let penalties = match nearest {
            Nearest::Dot => Vec::new(),
            Nearest::Distance => centroids.chunks_exact(dim).map(half_square).collect(),
        };
        let are_large = is_any_large(centroids);
        let kernel = Kernels::get()?.f32;
        Ok(Panels { kernel, dim, n_centroids, panels, penalties, rounds, are_large })
    }

    /// Finds the nearest centroid of every row of `rows` `[n, dim]`. Progress is counted in rows.
    pub fn assign(&self, rows: &[f32], done: &Done<'_>) -> Result<Vec<i32>> {
        let mut codes = filled((rows.len() / self.dim) as u64, 0)?;
        let chunks = rows.par_chunks(CHUNK_LEN * self.dim);
        let chunks = codes.par_chunks_mut(CHUNK_LEN).zip(chunks);
        Parallel::new().share(|min_len| {
            let chunks = chunks.with_min_len(min_len);
            chunks.for_each(|(codes, rows)| {
                self.assign_chunk(rows, codes);
                done.add(codes.len());
            });
        });
        Ok(codes)
    }

    /// Assigns a chunk on this thread alone, for callers that have rows of f32 a chunk at a time.
    pub fn assign_chunk(&self, rows: &[f32], codes: &mut [i32]) {
        let mut best = vec![f32::NEG_INFINITY; codes.len()];
        codes.fill(0);
        let mut products = vec![0.0; TILE_LEN * PANEL_LEN];
        for first in (0..self.n_centroids).step_by(PANEL_LEN) {
            let n = PANEL_LEN.min(self.n_centroids - first);
            let width = n.next_multiple_of(LANES);
            let panel = &self.panels[first * self.dim..][..width * self.dim];
            let tiles = rows.chunks(TILE_LEN * self.dim);
            let outputs = codes.chunks_mut(TILE_LEN).zip(best.chunks_mut(TILE_LEN));
            for (tile, (codes, best)) in tiles.zip(outputs) {
                let products = &mut products[..tile.len() / self.dim * width];
                similarities(self.kernel, panel, width, tile, self.dim, products);
                let penalties = self.penalties.get(first..first + n).unwrap_or(&[]);
                let rows = products.chunks_exact_mut(width).zip(codes).zip(best);
                rows.for_each(|((products, code), best)| {
                    products.iter_mut().zip(penalties).for_each(|(p, penalty)| *p -= penalty);
                    // Columns that fill up the panel are no centroids.
                    products[n..].fill(f32::NEG_INFINITY);
                    if is_any_above(products, *best) {
                        self.take(products, first, code, best);
                    }
                });
            }
        }
        if self.are_large || is_any_large(rows) {
            for (code, row) in codes.iter_mut().zip(rows.chunks_exact(self.dim)) {
                if self.are_large || is_any_large(row) {
                    *code = self.assign_large(row);
                }
            }
        }
    }

    /// Finds the nearest centroid of a row whose products are beyond f32: in f64, one centroid at a
    /// time.
    fn assign_large(&self, row: &[f32]) -> i32 {
        let mut nearest = (f64::NEG_INFINITY, 0);
        for (first, panel) in (0..).step_by(PANEL_LEN).zip(self.panels.chunks(PANEL_LEN * self.dim))
        {
            let width = panel.len() / self.dim;
            for i in 0..width.min(self.n_centroids - first) {
                let centroid = panel.iter().skip(i).step_by(width).map(|&c| f64::from(c));
                let (mut product, mut square) = (0.0, 0.0);
                for (c, &x) in centroid.zip(row) {
                    product += f64::from(x) * c;
                    square += c * c;
                }
                let score =
                    if self.penalties.is_empty() { product } else { product - square / 2.0 };
                if score > nearest.0 {
                    nearest = (score, (first + i) as i32);
                }
            }
        }
        nearest.1
    }

    /// Compares a row's best so far with centroids from `first` on.
    fn take(&self, scores: &[f32], first: usize, code: &mut i32, best: &mut f32) {
        for (i, &score) in scores.iter().enumerate() {
            // Rounding keeps order: what is not above the best is not when it is rounded either.
            if score > *best {
                let score = if self.rounds { f16::from_f32(score).to_f32() } else { score };
                if score > *best {
                    (*best, *code) = (score, (first + i) as i32);
                }
            }
        }
    }
}

/// Whether some element is so large that products with others as large may be beyond f32.
fn is_any_large(elements: &[f32]) -> bool {
    elements.iter().fold(false, |any, x| any | (x.abs() >= LARGEST))
}

/// Whether one of the values, a multiple of [`LANES`], is above `best`: seldom, once a few hundred
/// have been seen, so this is what the time goes into.
fn is_any_above(values: &[f32], best: f32) -> bool {
    let mut above = [false; LANES];
    for values in values.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            above[i] |= values[i] > best;
        }
    }
    above.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(i: usize) -> f32 {
        ((i * 2_654_435_761) % 1009) as f32 / 761.0 - 0.6
    }

    /// Larger is nearer.
    fn score(row: &[f32], centroid: &[f32], nearest: Nearest) -> f64 {
        let pairs = row.iter().zip(centroid).map(|(&x, &c)| (f64::from(x), f64::from(c)));
        let terms = pairs.map(|(x, c)| match nearest {
            Nearest::Dot => x * c,
            Nearest::Distance => -(x - c).powi(2),
        });
        terms.sum()
    }

    /// Products of these are beyond f32, and the differences of such are NaN.
    #[test]
    fn rows_and_centroids_of_any_size_find_their_nearest() {
        for nearest in [Nearest::Dot, Nearest::Distance] {
            for (rows_by, centroids_by) in [(1e30f32, 1.0), (1.0, 1e30), (1e30, 1e30)] {
                let dim = 5;
                let centroids: Vec<f32> = (0..70 * dim).map(|i| value(i) * centroids_by).collect();
                let rows: Vec<f32> = (0..9 * dim).map(|i| value(i + 999) * rows_by).collect();
                let panels = Panels::new(&centroids, dim, nearest, false).unwrap();
                let found = panels.assign(&rows, &Done::new(9, &|_, _| {})).unwrap();
                for (row, code) in rows.chunks(dim).zip(found) {
                    let score = |i: usize| score(row, &centroids[i * dim..][..dim], nearest);
                    let best = (0..70).map(score).fold(f64::NEG_INFINITY, f64::max);
                    let near = (score(code as usize) - best).abs() <= 1e-6 * best.abs();
                    assert!(near, "{nearest:?} {rows_by:e} {centroids_by:e}: {code}");
                }
            }
        }
    }

    #[test]
    fn every_row_finds_its_nearest_at_the_edges_of_panels_and_tiles() {
        for nearest in [Nearest::Dot, Nearest::Distance] {
            for n_centroids in [1, 15, 16, 17, 63, 64, 65, 130] {
                for n_rows in [0, 1, 2, 47, 48, 49, 97, 385] {
                    let dim = 9;
                    let centroids: Vec<f32> = (0..n_centroids * dim).map(value).collect();
                    let rows: Vec<f32> = (0..n_rows * dim).map(|i| value(i + 4321)).collect();
                    let panels = Panels::new(&centroids, dim, nearest, false).unwrap();
                    let codes = panels.assign(&rows, &Done::new(0, &|_, _| {})).unwrap();
                    assert_eq!(codes.len(), n_rows);
                    for (row, code) in rows.chunks(dim).zip(codes) {
                        let scores = centroids.chunks(dim).map(|c| score(row, c, nearest));
                        let scores: Vec<f64> = scores.collect();
                        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        // Nearly as near is near enough: products are rounded.
                        assert!(
                            scores[code as usize] >= best - 1e-5,
                            "{nearest:?}, {n_centroids} centroids, {n_rows} rows: {code}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_lowest_of_equal_centroids_wins_and_rounding_makes_equal() {
        // Two rows differ in f32 and are equal in f16.
        let centroids = [0.5, 1.0, 1.0 + 1.0 / 8192.0, 1.0];
        let panels = |rounds| Panels::new(&centroids, 1, Nearest::Dot, rounds).unwrap();
        let done = Done::new(6, &|_, _| ());
        assert_eq!(panels(false).assign(&[1.0, -1.0], &done).unwrap(), [2, 0]);
        assert_eq!(panels(true).assign(&[1.0, -1.0], &done).unwrap(), [1, 0]);
        let zeros = Panels::new(&centroids, 1, Nearest::Dot, true).unwrap();
        assert_eq!(zeros.assign(&[0.0, f32::NAN], &done).unwrap(), [0, 0]);
    }
}
