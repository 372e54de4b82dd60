//! Trains codecs for given tokens: centroids by k-means, buckets by quantiles of the residuals.
//!
//! After ColBERTv2's indexer (`colbert/indexing/collection_indexer.py`, ColBERT 0.2.22), whose
//! choices fast-plaid and next-plaid share: some tokens are held out of the k-means, and with their
//! residuals, of all elements together and q(p) their quantile with linear interpolation,
//!
//! ```text
//! cutoffs[i] = q((i + 1) / 2^nbits)        weights[i] = q((i + 1/2) / 2^nbits)
//! ```

use rayon::slice::ParallelSliceMut;

use super::codec::{Centroids, ResidualCodec, check_nbits};
use super::encode::{Arithmetic, EncodeOptions, check_finite};
use super::kmeans::{kmeans, normalize_rows};
use super::nearest::{Done, Panels};
use super::rng::Random;
use crate::error::{Error, Result};
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::element::{Element, ElementType};

/// Share of the tokens that buckets are fitted to, and the most of them.
const HELD_OUT_SHARE: usize = 20;
const MOST_HELD_OUT: usize = 50_000;

/// Fewest tokens that buckets are fitted to, where there are that many: 256 buckets of dim 128 take
/// their weights from 128 elements each, then.
const LEAST_HELD_OUT: usize = 256;

/// Most elements whose residuals are sorted, as many as torch's quantile takes.
const MOST_ELEMENTS: usize = 1 << 24;

/// Rows per centroid that k-means looks at, as faiss does.
const ROWS_PER_CENTROID: usize = 256;

/// Options of a codec's training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct TrainOptions {
    /// Bits of a bucket: 1, 2, 4 or 8.
    pub nbits: u32,
    /// Number of centroids; by default that of ColBERT's indexer: the power of two at or below
    /// 16 · √(number of tokens), and at most the number of tokens.
    pub n_centroids: Option<usize>,
    /// Iterations of k-means.
    pub n_iterations: usize,
    /// Normalise centroids after every iteration, rather than only at the end where `normalize`
    /// says so, as ColBERT does.
    pub spherical: bool,
    /// Element type that centroids are rounded to, before buckets are fitted.
    #[cfg_attr(feature = "serde", serde(with = "crate::runtime::by_name"))]
    pub centroid_element: ElementType,
    /// Normalise centroids, and tokens when they are decoded: for tokens of length 1.
    pub normalize: bool,
    /// How held-out tokens are encoded; give the same when the tokens are.
    pub encode: EncodeOptions,
    /// Decides which tokens are held out and which ones centroids start at. The same seed, tokens
    /// and machine give the same codec, with any number of threads.
    pub seed: u64,
}

impl Default for TrainOptions {
    /// 4 bits, 4 iterations, f16, normalised: what fast-plaid does by default.
    fn default() -> TrainOptions {
        TrainOptions {
            nbits: 4,
            n_centroids: None,
            n_iterations: 4,
            spherical: false,
            centroid_element: ElementType::F16,
            normalize: true,
            encode: EncodeOptions::default(),
            seed: 42,
        }
    }
}

/// The defaults with one thing changed after the other.
impl TrainOptions {
    /// Sets [`TrainOptions::nbits`](field@TrainOptions::nbits).
    pub fn nbits(self, nbits: u32) -> TrainOptions {
        TrainOptions { nbits, ..self }
    }

    /// Sets [`TrainOptions::n_centroids`](field@TrainOptions::n_centroids).
    pub fn n_centroids(self, n_centroids: impl Into<Option<usize>>) -> TrainOptions {
        TrainOptions { n_centroids: n_centroids.into(), ..self }
    }

    /// Sets [`TrainOptions::n_iterations`](field@TrainOptions::n_iterations).
    pub fn n_iterations(self, n_iterations: usize) -> TrainOptions {
        TrainOptions { n_iterations, ..self }
    }

    /// Sets [`TrainOptions::spherical`](field@TrainOptions::spherical).
    pub fn spherical(self, spherical: bool) -> TrainOptions {
        TrainOptions { spherical, ..self }
    }

    /// Sets [`TrainOptions::centroid_element`](field@TrainOptions::centroid_element).
    pub fn centroid_element(self, centroid_element: ElementType) -> TrainOptions {
        TrainOptions { centroid_element, ..self }
    }

    /// Sets [`TrainOptions::normalize`](field@TrainOptions::normalize).
    pub fn normalize(self, normalize: bool) -> TrainOptions {
        TrainOptions { normalize, ..self }
    }

    /// Sets [`TrainOptions::encode`](field@TrainOptions::encode).
    pub fn encode(self, encode: EncodeOptions) -> TrainOptions {
        TrainOptions { encode, ..self }
    }

    /// Sets [`TrainOptions::seed`](field@TrainOptions::seed).
    pub fn seed(self, seed: u64) -> TrainOptions {
        TrainOptions { seed, ..self }
    }
}

impl ResidualCodec<'static> {
    /// Trains a codec on tokens (a sample of a corpus, say): k-means, then [`ResidualCodec::fit`].
    /// Tokens that are masked or in no item count for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is no valid token, one is not finite, `nbits` is another
    /// number, or `n_centroids` is 0 or more than there are tokens to start from.
    pub fn train<T: Element>(tokens: &Tokens<'_, T>, options: &TrainOptions) -> Result<Self> {
        ResidualCodec::train_with_progress(tokens, options, &|_, _| {})
    }

    /// As [`ResidualCodec::train`], saying how far it is: `progress` gets how many rows were
    /// compared with all centroids so far, in all iterations, and how many that will be. It is
    /// called from the threads that train, in any order, some thousand rows apart.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use maxsim::Tokens;
    /// use maxsim::format::ElementType;
    /// use maxsim::residual::{ResidualCodec, TrainOptions};
    ///
    /// let rows = [0.8f32, 0.6, 0.6, 0.8, -1.0, 0.0, -0.96, 0.28];
    /// let tokens = Tokens::packed(&rows, 2, &[0i64, 4])?;
    /// let options = TrainOptions::default().n_centroids(2).n_iterations(8).spherical(true);
    /// let options = options.centroid_element(ElementType::F32).seed(7);
    /// let percent = AtomicU64::new(0);
    /// let codec = ResidualCodec::train_with_progress(&tokens, &options, &|done, all| {
    ///     percent.fetch_max(100 * done / all, Ordering::Relaxed); // for a progress bar
    /// })?;
    /// assert_eq!(percent.into_inner(), 100);
    /// assert_eq!(codec.centroids().element(), ElementType::F32);
    /// let again = ResidualCodec::train(&tokens, &options)?; // of the same seed
    /// assert_eq!(again.bucket_weights(), codec.bucket_weights());
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    /// # Errors
    /// As [`ResidualCodec::train`].
    pub fn train_with_progress<T: Element>(
        tokens: &Tokens<'_, T>,
        options: &TrainOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self> {
        check_nbits(options.nbits)?;
        check_finite(tokens, options.encode.arithmetic)?;
        let sample = Sample::new(tokens, options.seed)?;
        let n_tokens = sample.rows.len();
        let n_centroids = match options.n_centroids {
            Some(n) if (1..=n_tokens).contains(&n) => n,
            Some(n) => {
                return Err(Error::Shape {
                    argument: "n_centroids",
                    expected: format!("1 to {n_tokens}, the number of tokens"),
                    found: n.to_string(),
                });
            }
            None => usual_n_centroids(n_tokens),
        };
        let rows = sample.clustered(n_centroids);
        let rows = rows.get(..n_centroids.saturating_mul(ROWS_PER_CENTROID)).unwrap_or(rows);
        let dim = tokens.layout().dim();
        let n_clustered = (rows.len() as u64).saturating_mul(options.n_iterations as u64);
        let n_all = n_clustered.saturating_add(sample.held_out().len() as u64);
        let done = Done::new(n_all, progress);
        let rows = gather(tokens, rows, Arithmetic::F32)?;
        let mut centroids =
            kmeans(&rows, dim, n_centroids, options.n_iterations, options.spherical, &done)?;
        if options.normalize {
            normalize_rows(&mut centroids, dim);
        }
        let centroids = Centroids::rounded(centroids, options.centroid_element);
        ResidualCodec::fit_to(&sample, centroids, tokens, options, &done)
    }
}

impl<'a> ResidualCodec<'a> {
    /// Fits buckets to tokens around given centroids `[n, dim]`, which stay as they are: of
    /// `options`, those about k-means have no meaning here.
    ///
    /// ```
    /// use maxsim::Tokens;
    /// use maxsim::format::ElementType;
    /// use maxsim::residual::{Centroids, ResidualCodec, TrainOptions};
    ///
    /// let rows = [0.75f32, 0.0, 1.25, 0.0, 0.0, 0.75, 0.0, 1.25];
    /// let tokens = Tokens::packed(&rows, 2, &[0i64, 4])?;
    /// let centroids = Centroids::rounded(vec![1.0, 0.0, 0.0, 1.0], ElementType::F16);
    /// let options = TrainOptions::default().nbits(1).normalize(false);
    /// let codec = ResidualCodec::fit(centroids, &tokens, &options)?;
    /// assert_eq!(codec.centroids().to_f32()[..], [1.0, 0.0, 0.0, 1.0]);
    /// // Residuals are -0.25, 0 and 0.25: below the median, or above it.
    /// let weights = codec.bucket_weights();
    /// assert!(weights[0] < 0.0 && weights[1] > 0.0);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    /// # Errors
    /// As [`ResidualCodec::train`] and [`ResidualCodec::new`].
    pub fn fit<T: Element>(
        centroids: Centroids<'a>,
        tokens: &Tokens<'_, T>,
        options: &TrainOptions,
    ) -> Result<Self> {
        check_nbits(options.nbits)?;
        check_finite(tokens, options.encode.arithmetic)?;
        let sample = Sample::new(tokens, options.seed)?;
        let done = Done::new(sample.held_out().len() as u64, &|_, _| {});
        ResidualCodec::fit_to(&sample, centroids, tokens, options, &done)
    }

    fn fit_to<T: Element>(
        sample: &Sample,
        centroids: Centroids<'a>,
        tokens: &Tokens<'_, T>,
        options: &TrainOptions,
        done: &Done<'_>,
    ) -> Result<Self> {
        let dim = tokens.layout().dim();
        let weights = vec![0.0; 1 << options.nbits];
        // Checks the centroids, before anything is computed with them.
        let codec = ResidualCodec::new(options.nbits, dim, centroids, &weights, options.normalize)?;
        let EncodeOptions { nearest, arithmetic, .. } = options.encode;
        let table = arithmetic.rows(&codec.centroids().to_f32());
        if let Some(i) = table.iter().position(|x| !x.is_finite()) {
            return Err(Error::Shape {
                argument: "centroids",
                expected: "finite numbers once they are rounded; larger ones need \
                           TrainOptions::centroid_element F32 and Arithmetic::F32"
                    .into(),
                found: format!("{} in row {}", table[i], i / dim),
            });
        }
        let mut rows = gather(tokens, sample.held_out(), arithmetic)?;
        let rounds = arithmetic == Arithmetic::F16;
        let codes = Panels::new(&table, dim, nearest, rounds)?.assign(&rows, done)?;
        for (row, &code) in rows.chunks_exact_mut(dim).zip(&codes) {
            let centroid = &table[code as usize * dim..][..dim];
            row.iter_mut().zip(centroid).for_each(|(x, &c)| *x = arithmetic.round(*x - c));
        }
        let parallel = Parallel::new();
        parallel.share(|_| match parallel.is_alone() {
            true => rows.sort_unstable_by(f32::total_cmp),
            false => rows.par_sort_unstable_by(f32::total_cmp),
        });
        let n = 1 << options.nbits;
        let at = |i: usize, shift: f64| quantile(&rows, (i as f64 + shift) / n as f64);
        let cutoffs: Vec<f32> = (1..n).map(|i| at(i, 0.0)).collect();
        let weights: Vec<f32> = (0..n).map(|i| at(i, 0.5)).collect();
        let normalize = options.normalize;
        ResidualCodec::new(options.nbits, dim, codec.into_centroids(), &weights, normalize)?
            .with_cutoffs(&cutoffs)
    }
}

/// The valid rows of tokens, shuffled: first those that are held out.
struct Sample {
    rows: Vec<u32>,
    n_held_out: usize,
}

impl Sample {
    fn new<T: Element>(tokens: &Tokens<'_, T>, seed: u64) -> Result<Sample> {
        let mut rows = tokens.valid_rows()?;
        if rows.is_empty() {
            return Err(Error::Shape {
                argument: "tokens",
                expected: "one or more valid tokens".into(),
                found: "none".into(),
            });
        }
        Random::new(seed).shuffle(&mut rows);
        let most = MOST_HELD_OUT.min(MOST_ELEMENTS / tokens.layout().dim());
        let share = (rows.len() / HELD_OUT_SHARE).clamp(LEAST_HELD_OUT, most);
        let n_held_out = share.min(rows.len());
        Ok(Sample { rows, n_held_out })
    }

    fn held_out(&self) -> &[u32] {
        &self.rows[..self.n_held_out]
    }

    /// The others, or all where the others are fewer than centroids.
    fn clustered(&self, n_centroids: usize) -> &[u32] {
        let others = &self.rows[self.n_held_out..];
        if others.len() < n_centroids { &self.rows } else { others }
    }
}

/// 2^floor(log2(16 · √n_tokens)), at most `n_tokens`.
fn usual_n_centroids(n_tokens: usize) -> usize {
    let most = 16.0 * (n_tokens as f64).sqrt();
    (1 << most.log2() as u32).min(n_tokens)
}

/// Copies some rows as f32, rounded.
fn gather<T: Element>(
    tokens: &Tokens<'_, T>,
    rows: &[u32],
    arithmetic: Arithmetic,
) -> Result<Vec<f32>> {
    let dim = tokens.layout().dim();
    let mut matrix = filled(rows.len() as u64 * dim as u64, 0.0)?;
    for (to, &row) in matrix.chunks_exact_mut(dim).zip(rows) {
        let from = &tokens.data()[row as usize * dim..][..dim];
        to.iter_mut().zip(from).for_each(|(to, from)| *to = arithmetic.round(from.to_f32()));
    }
    Ok(matrix)
}

/// The quantile `p` of sorted values, between two of them by linear interpolation, in f64.
fn quantile(sorted: &[f32], p: f64) -> f32 {
    let rank = p * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    let (below, above) = (f64::from(below), f64::from(above));
    (below + (above - below) * rank.fract()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let sorted = [1.0, 2.0, 4.0, 8.0, 16.0];
        let found = [0.0, 0.125, 0.25, 0.5, 0.9, 1.0].map(|p| quantile(&sorted, p));
        assert_eq!(found, [1.0, 1.5, 2.0, 4.0, 12.8, 16.0]);
        assert_eq!(quantile(&[3.0], 0.7), 3.0);
        assert_eq!(quantile(&[f32::MIN, f32::MAX], 0.5), 0.0);
    }

    #[test]
    fn the_usual_number_of_centroids_is_that_of_colbert() {
        let found = [1, 2, 16, 100, 270, 104_000, 9_000_000].map(usual_n_centroids);
        assert_eq!(found, [1, 2, 16, 100, 256, 4096, 32_768]);
    }
}
