//! Decodes tokens from codes and buckets.

use maxsim_kernels::abi::residual::{BitOrder, bucket, element, per_byte};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;

use super::codec::ResidualCodec;
use super::tokens::ResidualTokens;
use super::vjp::ResidualGradients;
use crate::error::Result;
use crate::linalg::normalize::row_norm;
use crate::runtime::alloc::zeroed;
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::element::Element;

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 256;

impl ResidualTokens<'_> {
    /// The tokens in the same layout, rounded to `T` once, to nearest:
    ///
    /// ```text
    /// x[k]  = centroids[code][k] + bucket_weights[bucket[k]]        in f32, one addition
    /// token = x, or x · r with r = 1 / √max(‖x‖², 10⁻¹²)            as the codec says
    /// ```
    ///
    /// ‖x‖² is summed in f64 in the order of the elements and rounded to f32; √, 1/ and each
    /// product are rounded to f32. (ColBERT and fast-plaid divide by max(‖x‖, 10⁻¹²) instead: the
    /// same but for the last bits, and for rows shorter than 10⁻⁶.) Rows that no item has are
    /// decoded as well.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory) where there is no room for the result.
    pub fn decode<T: Element>(&self) -> Result<Tokens<'static, T>> {
        let dim = self.codec().dim();
        let n = self.codes().len() as u64 * dim as u64;
        let mut data = zeroed::<T>(n)?;
        let decoder = Decoder::new(self.codec(), self.order());
        let decode = |(chunk, rows): (usize, &mut [T])| {
            let mut x = vec![0.0; dim];
            for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
                decoder.row(self, chunk * CHUNK_LEN + i, &mut x);
                row.iter_mut().zip(&x).for_each(|(to, &from)| *to = T::from_f32(from));
            }
        };
        let chunks = data.par_chunks_mut(CHUNK_LEN * dim).enumerate();
        Parallel::new().over(n as usize).for_each(chunks, decode);
        let tokens = Tokens::from_layout(data, self.unmasked().clone())?;
        match self.mask() {
            Some(mask) => tokens.with_mask(mask.to_vec()),
            None => Ok(tokens),
        }
    }
}

/// Tokens of the CPU engine, whose rows are decoded whenever they are read.
#[derive(Debug)]
pub(crate) struct HostResiduals {
    tokens: ResidualTokens<'static>,
    decoder: Decoder,
}

impl HostResiduals {
    /// Copies tokens, without their mask, and their codec.
    pub(crate) fn new(tokens: &ResidualTokens<'_>) -> Result<HostResiduals> {
        let tokens = tokens.copied()?;
        let decoder = Decoder::new(tokens.codec(), tokens.order());
        Ok(HostResiduals { tokens, decoder })
    }

    /// As [`ResidualTokens::backward`].
    pub(crate) fn backward(&self, grad_tokens: &[f32]) -> Result<ResidualGradients> {
        self.tokens.backward(grad_tokens)
    }

    /// Row `row`, in f32.
    pub(crate) fn decode(&self, row: usize, values: &mut [f32]) {
        self.decoder.row(&self.tokens, row, values);
    }
}

/// A codec's weights, looked up for every byte.
#[derive(Debug)]
pub(super) struct Decoder {
    per_byte: usize,
    /// `[256, per_byte]`.
    weights: Vec<f32>,
}

impl Decoder {
    pub fn new(codec: &ResidualCodec<'_>, order: BitOrder) -> Decoder {
        let per_byte = per_byte(codec.nbits());
        let weight =
            |byte, i| codec.bucket_weights()[usize::from(bucket(byte, i, codec.nbits(), order))];
        let weights = (0..=u8::MAX).flat_map(|byte| (0..per_byte).map(move |i| weight(byte, i)));
        Decoder { per_byte: per_byte as usize, weights: weights.collect() }
    }

    /// Decodes row `row` of `tokens`, whose codec and order must be this one's.
    pub fn row(&self, tokens: &ResidualTokens<'_>, row: usize, x: &mut [f32]) {
        self.sums(tokens, row, x);
        if tokens.codec().normalize() {
            let r = row_norm(x);
            x.iter_mut().for_each(|x| *x *= r);
        }
    }

    /// The row before it is normalised.
    pub fn sums(&self, tokens: &ResidualTokens<'_>, row: usize, x: &mut [f32]) {
        let codec = tokens.codec();
        codec.centroids().load(tokens.codes()[row] as usize, x);
        let bytes = codec.row_bytes();
        let bytes = &tokens.residuals()[row * bytes..(row + 1) * bytes];
        // The last byte may have more buckets than the row has elements.
        for (x, &byte) in x.chunks_mut(self.per_byte).zip(bytes) {
            let weights = &self.weights[usize::from(byte) * self.per_byte..];
            x.iter_mut().zip(weights).for_each(|(x, &weight)| *x = element(*x, weight));
        }
    }
}
