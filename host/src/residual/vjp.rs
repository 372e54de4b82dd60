//! Gradients through decoding: from those of tokens to those of centroids and bucket weights.

use maxsim_kernels::abi::residual::{BitOrder, bucket, per_byte};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::by_code::ByCode;
use super::decode::Decoder;
use super::tokens::ResidualTokens;
use crate::error::{Error, Result};
use crate::linalg::normalize::add_projected;
use crate::linalg::normalize::row_norm;
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;

/// Centroids whose tokens a thread takes at once. The sums of bucket weights are divided here too,
/// so it must not depend on the number of threads.
const CHUNK_LEN: usize = 64;

/// Gradients with respect to a codec's tables.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct ResidualGradients {
    /// `[n_centroids, dim]`; zeros where no token has the centroid.
    pub centroids: Vec<f32>,
    /// `[2^nbits]`.
    pub bucket_weights: Vec<f32>,
}

impl ResidualTokens<'_> {
    /// From `grad_tokens` `[rows, dim]`, the gradient of something with respect to the tokens that
    /// [`ResidualTokens::decode`] gives (in f32), its gradients with respect to centroids and
    /// bucket weights. With x a token before it is normalised, r = 1 / √max(‖x‖², 10⁻¹²), y = r · x
    /// and g its row of `grad_tokens`,
    ///
    /// ```text
    /// ∂x = g, or r · (g - y · ⟨y, g⟩) where tokens are normalised, or r · g where r is constant
    /// ∂centroids[c][k] = Σ_{rows of code c} ∂x[k]
    /// ∂bucket_weights[b] = Σ_{elements of bucket b} ∂x[k]
    /// ```
    ///
    /// Rows whose gradient is 0 throughout add nothing, whatever they decode to: rows of padding,
    /// and masked ones, for which [`Device::backward`](crate::Device::backward) gives zeros. Sums
    /// are in f64 in an order that depends on the tokens alone, and rounded to f32 once.
    ///
    /// # Errors
    /// [`Error::Shape`] where `grad_tokens` has another length, [`Error::HostMemory`] where there
    /// is no room for the result.
    pub fn backward(&self, grad_tokens: &[f32]) -> Result<ResidualGradients> {
        let codec = self.codec();
        let (dim, n_weights) = (codec.dim(), codec.bucket_weights().len());
        let expected = self.codes().len() as u64 * dim as u64;
        if grad_tokens.len() as u64 != expected {
            return Err(Error::Shape {
                argument: "grad_tokens",
                expected: format!("{expected} elements ({} rows of {dim})", self.codes().len()),
                found: format!("{} elements", grad_tokens.len()),
            });
        }
        let by_code = ByCode::new(self.codes(), codec.n_centroids())?;
        let decoder = Decoder::new(codec, self.order())?;
        let mut centroids = filled(codec.n_centroids() as u64 * dim as u64, 0.0)?;
        let shares = centroids.par_chunks_mut(CHUNK_LEN * dim).enumerate().map(|(chunk, rows)| {
            let mut share = vec![0.0; n_weights];
            let mut x = Gradient::new(dim);
            for (i, centroid) in rows.chunks_exact_mut(dim).enumerate() {
                x.sums.fill(0.0);
                for &row in by_code.members(chunk * CHUNK_LEN + i) {
                    let grad = &grad_tokens[row as usize * dim..][..dim];
                    x.of_row(&decoder, self, row as usize, grad);
                    self.add_to_weights(row as usize, &x.grad, &mut share);
                }
                centroid.iter_mut().zip(&x.sums).for_each(|(to, &sum)| *to = sum as f32);
            }
            share
        });
        let mut bucket_weights = vec![0.0; n_weights];
        let shares: Vec<Vec<f64>> =
            Parallel::new().share(|min_len| shares.with_min_len(min_len).collect());
        for share in shares {
            bucket_weights.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
        }
        let bucket_weights = bucket_weights.into_iter().map(|sum| sum as f32).collect();
        Ok(ResidualGradients { centroids, bucket_weights })
    }

    fn add_to_weights(&self, row: usize, grad: &[f32], sums: &mut [f64]) {
        let (nbits, order): (u32, BitOrder) = (self.codec().nbits(), self.order());
        let row_bytes = self.codec().row_bytes();
        let bytes = &self.residuals()[row * row_bytes..][..row_bytes];
        for (grad, &byte) in grad.chunks(per_byte(nbits) as usize).zip(bytes) {
            for (i, &grad) in (0..).zip(grad) {
                sums[usize::from(bucket(byte, i, nbits, order))] += f64::from(grad);
            }
        }
    }
}

/// The gradient of one row before it is normalised, and the sum over a centroid's rows.
struct Gradient {
    row: Vec<f32>,
    grad: Vec<f32>,
    sums: Vec<f64>,
}

impl Gradient {
    fn new(dim: usize) -> Gradient {
        Gradient { row: vec![0.0; dim], grad: vec![0.0; dim], sums: vec![0.0; dim] }
    }

    /// Adds the gradient of a row to the sums.
    fn of_row(&mut self, decoder: &Decoder, tokens: &ResidualTokens<'_>, row: usize, grad: &[f32]) {
        if tokens.codec().normalize() {
            decoder.sums(tokens, row, &mut self.row);
            self.grad.fill(0.0);
            // This adds nothing where `grad` is 0 throughout.
            add_projected(&self.row, row_norm(&self.row), grad, &mut self.grad);
        } else {
            self.grad.copy_from_slice(grad);
        }
        self.sums.iter_mut().zip(&self.grad).for_each(|(sum, &grad)| *sum += f64::from(grad));
    }
}
