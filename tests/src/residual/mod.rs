//! Residual-compressed tokens of any shape, a naive decoder for them, and their scores and
//! gradients on every engine.

pub mod gradients;
pub mod in_place;
pub mod scored_cases;
pub mod scores;

use maxsim::TokenLayout;
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Any valid tokens of some shape.
#[derive(Clone, Debug)]
pub struct Case {
    /// Bits of a bucket.
    pub nbits: u32,
    /// Elements per token.
    pub dim: usize,
    /// Number of tokens.
    pub rows: usize,
    /// Number of centroids.
    pub n_centroids: usize,
    /// Whether decoded tokens are normalised.
    pub normalize: bool,
    /// How bits lie.
    pub order: BitOrder,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Cases of every nbits and order, at the edges of bytes.
pub fn cases() -> impl Strategy<Value = Case> {
    (
        select(&[1u32, 2, 4, 8]),
        select(&[1usize, 2, 3, 7, 8, 9, 31, 64, 128, 130]),
        0..40usize,
        1..20usize,
        any::<bool>(),
        select(&BitOrder::ALL),
        any::<u64>().no_shrink(),
    )
        .prop_map(|(nbits, dim, rows, n_centroids, normalize, order, seed)| Case {
            nbits,
            dim,
            rows,
            n_centroids,
            normalize,
            order,
            seed,
        })
}

/// Parts that a case is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// `[n_centroids, dim]`.
    pub centroids: Vec<f32>,
    /// `[2^nbits]`.
    pub weights: Vec<f32>,
    /// `[rows]`.
    pub codes: Vec<i32>,
    /// `[rows, ceil(dim · nbits / 8)]`.
    pub residuals: Vec<u8>,
}

/// Uniform in [-1, 1).
pub fn numbers(n: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
    (0..n).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

impl Case {
    /// Generates the numbers.
    pub fn parts(&self) -> Parts {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let row_bytes = (self.dim * self.nbits as usize).div_ceil(8);
        Parts {
            centroids: numbers(self.n_centroids * self.dim, rng),
            weights: numbers(1 << self.nbits, rng),
            codes: (0..self.rows).map(|_| rng.random_range(0..self.n_centroids as i32)).collect(),
            residuals: (0..self.rows * row_bytes).map(|_| rng.random()).collect(),
        }
    }

    /// The tokens, in one packed item.
    pub fn tokens<'a>(&self, parts: &'a Parts) -> ResidualTokens<'a> {
        let centroids = Centroids::F32((&parts.centroids).into());
        let codec =
            ResidualCodec::new(self.nbits, self.dim, centroids, &parts.weights, self.normalize)
                .unwrap();
        let layout = TokenLayout::packed(self.rows, self.dim, &[0, self.rows as i64]).unwrap();
        let codes = &parts.codes[..];
        ResidualTokens::new(codec.into(), codes, &parts.residuals, self.order, layout).unwrap()
    }

    /// The bucket of an element, a bit at a time.
    pub fn bucket(&self, parts: &Parts, row: usize, k: usize) -> usize {
        let nbits = self.nbits as usize;
        let row_bytes = (self.dim * nbits).div_ceil(8);
        let bit = |b: usize| {
            let at = k * nbits + b;
            let byte = parts.residuals[row * row_bytes + at / 8];
            let place = match self.order {
                BitOrder::Colbert => 7 - at % 8,
                BitOrder::LittleEndian => at % 8,
            };
            usize::from(byte >> place & 1)
        };
        (0..nbits).map(|b| bit(b) << b).sum()
    }

    /// Every element of every token in f64, from tables in f64.
    pub fn decoded(&self, parts: &Parts, centroids: &[f64], weights: &[f64]) -> Vec<f64> {
        let row = |row: usize| {
            let centroid = parts.codes[row] as usize * self.dim;
            let x: Vec<f64> = (0..self.dim)
                .map(|k| centroids[centroid + k] + weights[self.bucket(parts, row, k)])
                .collect();
            let square: f64 = x.iter().map(|x| x * x).sum();
            let r = if self.normalize { 1.0 / square.max(1e-12).sqrt() } else { 1.0 };
            x.into_iter().map(move |x| x * r).collect::<Vec<f64>>()
        };
        (0..self.rows).flat_map(row).collect()
    }
}

/// As f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
