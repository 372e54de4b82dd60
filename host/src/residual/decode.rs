//! Decodes tokens from codes and buckets.

use maxsim_kernels::abi::residual::{BitOrder, element, per_byte};
use pulp::{Arch, Simd, WithSimd};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;

use super::codec::ResidualCodec;
use super::lanes::{ByByte, Look, Tables};
use super::tokens::ResidualTokens;
use super::vjp::ResidualGradients;
use crate::error::Result;
use crate::linalg::kernels::{Kernels, dispatch};
use crate::linalg::normalize::norm_of_row;
use crate::runtime::alloc::zeroed;
use crate::runtime::fetch::fetch;
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::dispatch::with_element;
use crate::tokens::element::{Element, LANES, Lanes, widen_lanes};

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
        let decoder = Decoder::new(self.codec(), self.order())?;
        let decode = |(chunk, rows): (usize, &mut [T])| {
            let mut x = vec![0.0; dim];
            for (row, to) in (chunk * CHUNK_LEN..).zip(rows.chunks_exact_mut(dim)) {
                decoder.rows(self, row, &mut x);
                to.iter_mut().zip(&x).for_each(|(to, &from)| *to = T::from_f32(from));
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
        let decoder = Decoder::new(tokens.codec(), tokens.order())?;
        Ok(HostResiduals { tokens, decoder })
    }

    /// As [`ResidualTokens::backward`].
    pub(crate) fn backward(&self, grad_tokens: &[f32]) -> Result<ResidualGradients> {
        self.tokens.backward(grad_tokens)
    }

    /// The rows from `first` on that there is room for, in f32.
    pub(crate) fn decode(&self, first: usize, values: &mut [f32]) {
        self.decoder.rows(&self.tokens, first, values);
    }
}

/// A codec's weights, and how to look them up.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The instructions that the engine may use, looked up once.
    arch: Arch,
    tables: Tables,
}

impl Decoder {
    /// # Errors
    /// As [`Kernels::get`].
    pub fn new(codec: &ResidualCodec<'_>, order: BitOrder) -> Result<Decoder> {
        Ok(Decoder { arch: Kernels::get()?.arch, tables: Tables::new(codec, order) })
    }

    /// Decodes the rows of `tokens` from `first` on that there is room for. Codec and order must be
    /// this one's.
    pub fn rows(&self, tokens: &ResidualTokens<'_>, first: usize, values: &mut [f32]) {
        self.decode(tokens, (first, tokens.codec().normalize()), values);
    }

    /// A row before it is normalised.
    pub fn sums(&self, tokens: &ResidualTokens<'_>, row: usize, values: &mut [f32]) {
        self.decode(tokens, (row, false), values);
    }

    fn decode(
        &self,
        tokens: &ResidualTokens<'_>,
        (first, normalize): (usize, bool),
        values: &mut [f32],
    ) {
        let rows = Rows { tables: &self.tables, tokens, first, normalize, values };
        match self.arch {
            #[cfg(target_arch = "x86_64")]
            Arch::V4(simd) => Simd::vectorize(simd, Decode { look: simd, rows }),
            #[cfg(target_arch = "x86_64")]
            Arch::V3(simd) => Simd::vectorize(simd, Decode { look: simd, rows }),
            arch => dispatch(arch, Decode { look: ByByte, rows }),
        }
    }
}

/// Rows to decode.
struct Rows<'a> {
    tables: &'a Tables,
    tokens: &'a ResidualTokens<'a>,
    first: usize,
    normalize: bool,
    values: &'a mut [f32],
}

/// The loop of [`Decoder::decode`], compiled for the registers that the CPU has.
struct Decode<'a, L> {
    look: L,
    rows: Rows<'a>,
}

impl<L: Look> WithSimd for Decode<'_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let codec = self.rows.tokens.codec();
        with_element!(codec.centroids().element(), T => {
            match per_byte(codec.nbits()) {
                1 => self.rows::<T, 1>(),
                2 => self.rows::<T, 2>(),
                4 => self.rows::<T, 4>(),
                8 => self.rows::<T, 8>(),
                // There are no other bits.
                _ => {}
            }
        });
    }
}

impl<L: Look> Decode<'_, L> {
    /// Decodes rows of centroids of type `T`, with `N` elements in a byte.
    #[inline(always)]
    fn rows<T: Element, const N: usize>(self) {
        let Decode { look, rows: Rows { tables, tokens, first, normalize, values } } = self;
        let codec = tokens.codec();
        let dim = codec.dim();
        let centroids: &[T] = bytemuck::cast_slice(codec.centroids().bytes());
        let residuals = tokens.residuals().chunks_exact(codec.row_bytes()).skip(first);
        let codes = &tokens.codes()[first..][..values.len() / dim];
        fetch(codes.iter().map(|&code| &centroids[code as usize * dim..][..dim]));
        for ((x, bytes), &code) in values.chunks_exact_mut(dim).zip(residuals).zip(codes) {
            let centroid = &centroids[code as usize * dim..][..dim];
            let sum = decode::<T, N>(look, tables, (centroid, bytes), x);
            if normalize {
                let r = norm_of_row(sum, x);
                x.iter_mut().for_each(|x| *x *= r);
            }
        }
    }
}

/// Adds a row's weights to its centroid, and returns ‖x‖², added up in any order.
#[inline(always)]
fn decode<T: Element, const N: usize>(
    look: impl Look,
    tables: &Tables,
    (centroid, bytes): (&[T], &[u8]),
    x: &mut [f32],
) -> f64 {
    let mut squares = look.no_squares();
    let (centroids, last_centroid) = centroid.as_chunks::<LANES>();
    let (whole, last) = x.as_chunks_mut::<LANES>();
    let mut bytes = bytes.chunks(LANES / N);
    for ((x, centroid), bytes) in whole.iter_mut().zip(centroids).zip(&mut bytes) {
        *x = lanes::<T, N>(look, tables, centroid, bytes);
        look.add_squares(&mut squares, x);
    }
    let mut sum = look.total(squares);
    if let Some(bytes) = bytes.next() {
        // The row ends within these elements.
        let (mut centroid, mut padded) = ([T::from_f32(0.0); LANES], [0; LANES]);
        centroid[..last.len()].copy_from_slice(last_centroid);
        padded[..bytes.len()].copy_from_slice(bytes);
        let lanes = lanes::<T, N>(look, tables, &centroid, &padded[..LANES / N]);
        last.copy_from_slice(&lanes[..last.len()]);
        sum += last.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    }
    sum
}

/// The elements that weights add to those of a centroid.
#[inline(always)]
fn lanes<T: Element, const N: usize>(
    look: impl Look,
    tables: &Tables,
    centroid: &[T; LANES],
    bytes: &[u8],
) -> Lanes {
    let mut lanes = widen_lanes(centroid);
    let weights = look.weights::<N>(tables, bytes);
    lanes.iter_mut().zip(weights).for_each(|(x, weight)| *x = element(*x, weight));
    lanes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use maxsim_kernels::abi::residual::bucket;

    use super::*;
    use crate::linalg::kernels::InstructionSet;
    use crate::linalg::normalize::row_norm;
    use crate::residual::{Centroids, Codes};
    use crate::tokens::element::ElementType;
    use crate::tokens::layout::TokenLayout;

    const N_CENTROIDS: usize = 5;
    const N_ROWS: usize = 40;

    /// Numbers from -0.5 to 0.5, and bytes.
    fn random() -> impl FnMut() -> f32 {
        let mut state = 0x9E37_79B9u32;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        }
    }

    fn tokens(
        (nbits, dim, normalize): (u32, usize, bool),
        element: ElementType,
        order: BitOrder,
    ) -> ResidualTokens<'static> {
        let mut random = random();
        let centroids = (0..N_CENTROIDS * dim).map(|_| random()).collect();
        let weights: Vec<f32> = (0..1 << nbits).map(|_| random()).collect();
        let centroids = Centroids::rounded(centroids, element);
        let codec = ResidualCodec::new(nbits, dim, centroids, &weights, normalize).unwrap();
        let codes: Vec<i32> = (0..N_ROWS).map(|row| (row * 3 % N_CENTROIDS) as i32).collect();
        let bytes = N_ROWS * codec.row_bytes();
        let residuals: Vec<u8> = (0..bytes).map(|_| ((random() + 0.5) * 256.0) as u8).collect();
        let layout = TokenLayout::packed(N_ROWS, dim, &[0i64, N_ROWS as i64]).unwrap();
        let codes = Codes::I32(codes.into());
        ResidualTokens::new(Arc::new(codec), codes, residuals, order, layout).unwrap()
    }

    /// A row as its definition has it, element by element.
    fn expected(tokens: &ResidualTokens<'_>, row: usize) -> Vec<f32> {
        let codec = tokens.codec();
        let (dim, nbits) = (codec.dim(), codec.nbits());
        let centroid = &codec.centroids().to_f32()[tokens.codes()[row] as usize * dim..][..dim];
        let bytes = &tokens.residuals()[row * codec.row_bytes()..][..codec.row_bytes()];
        let of = |k: usize| {
            let per_byte = per_byte(nbits) as usize;
            let bucket = bucket(bytes[k / per_byte], (k % per_byte) as u32, nbits, tokens.order());
            centroid[k] + codec.bucket_weights()[usize::from(bucket)]
        };
        let x: Vec<f32> = (0..dim).map(of).collect();
        let r = if codec.normalize() { row_norm(&x) } else { 1.0 };
        x.iter().map(|x| x * r).collect()
    }

    #[test]
    fn every_instruction_set_decodes_the_bits_of_the_definition() {
        for (nbits, element) in
            [1, 2, 4, 8].into_iter().flat_map(|nbits| ElementType::ALL.map(|e| (nbits, e)))
        {
            for dim in [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100, 128, 129] {
                for (order, normalize) in
                    BitOrder::ALL.into_iter().flat_map(|o| [false, true].map(|n| (o, n)))
                {
                    let tokens = tokens((nbits, dim, normalize), element, order);
                    let expected = (0..N_ROWS).flat_map(|row| expected(&tokens, row));
                    let expected: Vec<u32> = expected.map(f32::to_bits).collect();
                    for arch in InstructionSet::available().map(InstructionSet::arch) {
                        let decoder =
                            Decoder { arch, ..Decoder::new(tokens.codec(), order).unwrap() };
                        let mut found = vec![f32::NAN; N_ROWS * dim];
                        let (first, others) = found.split_at_mut(dim);
                        decoder.rows(&tokens, 0, first);
                        decoder.rows(&tokens, 1, others);
                        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
                        let case = (nbits, dim, element, order, normalize);
                        assert_eq!(found, expected, "{arch:?}, {case:?}");
                    }
                }
            }
        }
    }
}
