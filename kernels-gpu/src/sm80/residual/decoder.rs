//! Decodes documents in registers: centroids and buckets of the next steps are loaded while those
//! of this one are multiplied.

use crate::abi::params::Residuals;
use crate::abi::residual_chunk::LANE_CHUNKS;
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u32, load_u32x2, load_u32x4};
use crate::ptx::warp::shuffle;
use crate::sm80::residual::kernel::{FRAGMENTS, STEP};
use crate::sm80::residual::query_rows::Queries;

/// Chunks of the centroid for each of the lane's two rows of a step.
pub(super) type Centroids = [[[u32; 4]; LANE_CHUNKS]; 2];

/// Buckets of up to 4 bits of the same, and r.
#[derive(Clone, Copy)]
pub(super) struct Small {
    pub(super) buckets: [[[u32; 2]; LANE_CHUNKS]; 2],
    pub(super) norms: [f32; 2],
}

/// Addresses that a lane reads from.
pub(super) struct Decoder<'a, const NBITS: u32> {
    tokens: &'a Residuals,
    pub(super) weights: Weights,
    lane: u32,
    /// Address of the lane's first chunk of centroid 0.
    first: u64,
    /// Address of the lane's buckets of row 0.
    residuals: u64,
}

impl<'a, const NBITS: u32> Decoder<'a, NBITS> {
    #[inline(always)]
    pub(super) unsafe fn new(tokens: &'a Residuals, lane: u32) -> Self {
        Decoder {
            tokens,
            // SAFETY: the caller's promise.
            weights: unsafe { Weights::new::<NBITS>(tokens).per_lane::<NBITS>(lane) },
            lane,
            first: tokens.centroids + u64::from(lane % 4) * 16,
            residuals: tokens.residuals + u64::from(lane % 4 * LANE_CHUNKS as u32 * NBITS),
        }
    }

    /// Starts to read the codes of the step from row `row` on: that of token `lane % 16`.
    ///
    /// # Safety
    /// The rows must be there, or padding.
    #[inline(always)]
    pub(super) unsafe fn codes(&self, row: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { load_u32(self.tokens.codes + u64::from(row + self.lane % STEP) * 4) }
    }

    /// Addresses of the lane's first chunks of its rows' centroids.
    ///
    /// # Safety
    /// The whole warp together, with [`Decoder::codes`].
    #[inline(always)]
    pub(super) unsafe fn addresses(&self, codes: u32) -> [u64; 2] {
        let address = |token: u32| {
            // SAFETY: the caller's promise.
            let code = unsafe { shuffle(codes, token) };
            self.first + u64::from(code) * u64::from(self.tokens.pitch_bytes)
        };
        [address(self.lane / 4), address(self.lane / 4 + 8)]
    }

    /// Starts to read a step's centroids.
    ///
    /// # Safety
    /// As [`Decoder::addresses`].
    #[inline(always)]
    pub(super) unsafe fn gather(&self, codes: u32) -> Centroids {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut centroids: Centroids = core::mem::zeroed();
            let addresses = self.addresses(codes);
            unroll!(I in 0..4 => {
                unroll!(R in 0..2 => {
                    centroids[R][I] = load_u32x4(addresses[R] + 64 * I as u64);
                });
            });
            centroids
        }
    }

    /// Starts to read a step's buckets of up to 4 bits, and r.
    ///
    /// # Safety
    /// The rows must be there, or padding.
    #[inline(always)]
    pub(super) unsafe fn read(&self, first: u32) -> Small {
        let row = u64::from(first + self.lane / 4);
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut small: Small = core::mem::zeroed();
            small.norms = [1.0; 2];
            if NBITS <= 4 {
                small.buckets = [self.buckets(row), self.buckets(row + 8)];
            }
            if self.tokens.norms != 0 {
                let address = self.tokens.norms + row * 4;
                small.norms = [load_u32(address), load_u32(address + 32)].map(f32::from_bits);
            }
            small
        }
    }

    /// The similarities of a step's tokens before they are normalised: element `2 r + j` of
    /// fragment `f` is that of the lane's row `r` and query row `8 f + 2 (lane % 4) + j`.
    /// Afterwards the centroids at `addresses` are in place of the step's.
    ///
    /// # Safety
    /// The whole warp together, with all loads of the step.
    #[inline(always)]
    pub(super) unsafe fn multiply<E: Decoded>(
        &self,
        queries: &Queries,
        first: u32,
        centroids: &mut Centroids,
        addresses: [u64; 2],
        small: &Small,
    ) -> [[f32; 4]; FRAGMENTS] {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut c: [[f32; 4]; FRAGMENTS] = core::mem::zeroed();
            unroll!(I in 0..4 => {
                let mut rows = [[0; 4]; 2];
                unroll!(R in 0..2 => {
                    let mut buckets = small.buckets[R][I];
                    if NBITS == 8 {
                        // No room for them ahead.
                        let row = u64::from(first + self.lane / 4 + 8 * R as u32);
                        buckets = load_u32x2(self.bucket_address(row) + 8 * I as u64);
                    }
                    rows[R] = self.weights.add::<E, NBITS>(centroids[R][I], buckets);
                    centroids[R][I] = load_u32x4(addresses[R] + 64 * I as u64);
                });
                let [a, b] = rows;
                unroll!(F in 0..4 => {
                    let [p, q, r, s] = queries.chunks[F][I];
                    c[F] = E::multiply_add(c[F], [a[0], b[0], a[1], b[1]], [p, q]);
                    c[F] = E::multiply_add(c[F], [a[2], b[2], a[3], b[3]], [r, s]);
                });
            });
            c
        }
    }

    /// Address of the buckets of the lane's chunks of a row.
    #[inline(always)]
    fn bucket_address(&self, row: u64) -> u64 {
        self.residuals + row * u64::from(self.tokens.row_bytes)
    }

    /// The buckets of up to 4 bits of the lane's chunks of a row, which lie together.
    ///
    /// # Safety
    /// The row must be there, or padding.
    #[inline(always)]
    unsafe fn buckets(&self, row: u64) -> [[u32; 2]; LANE_CHUNKS] {
        let address = self.bucket_address(row);
        let mut buckets = [[0; 2]; LANE_CHUNKS];
        // SAFETY: the caller's promise.
        unsafe {
            let words = match NBITS {
                1 => [load_u32(address), 0, 0, 0],
                2 => {
                    let [a, b] = load_u32x2(address);
                    [a, b, 0, 0]
                }
                _ => load_u32x4(address),
            };
            unroll!(I in 0..4 => {
                buckets[I] = match NBITS {
                    1 => [words[0] >> (8 * I) & 0xFF, 0],
                    2 => [words[I / 2] >> (16 * (I % 2)), 0],
                    _ => [words[I], 0],
                };
            });
        }
        buckets
    }
}
