//! A warp's products of 16 document tokens with a query tile, and the online max of them.

use crate::abi::layout::contiguous::PRODUCT_ROWS;
use crate::primitives::accumulator::exchange;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::math::max_nan;
use crate::ptx::shared::load_shared_u32x4;
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::norms::Squares;
use crate::sm90::contiguous::{GROUPS, Kernel, Shared};

/// Rows that are multiplied at a time.
pub(super) const COLUMNS: u32 = PRODUCT_ROWS as u32;

/// A query tile, as a warp multiplies it: of each group and product of 32 bytes of a row the lane's
/// registers.
pub(super) struct Queries([[[u32; 4]; 8]; GROUPS as usize]);

impl Queries {
    /// Waits for a unit's tile. The loaded registers and the multiplied ones differ by a sum with
    /// `zero`: otherwise the assembler would keep rows as they are loaded, and put a fragment's
    /// registers side by side anew for every product.
    ///
    /// # Safety
    /// One whole warp; the storing warp loads the tile of each unit.
    #[inline(always)]
    pub(super) unsafe fn load<K: Kernel>(
        shared: &Shared<K>,
        parity: u32,
        zero: u32,
        lane: u32,
    ) -> Queries {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut fragments: [[[u32; 4]; 8]; 2] = core::mem::zeroed();
            let mut seen = 0;
            barrier_wait(shared.query_full(), parity);
            let own = shared.queries() + lane / 4 * K::BYTES + lane % 4 * 16;
            unroll!(G in 0..2 => {
                unroll!(I in 0..4 => {
                    if 64 * (I as u32) < K::BYTES {
                        let upper = own + 16 * G as u32 * K::BYTES + 64 * I as u32;
                        let [a, b, c, d] = load_shared_u32x4(upper);
                        let [e, f, g, h] = load_shared_u32x4(upper + 8 * K::BYTES);
                        fragments[G][2 * I] = [a, e, b, f].map(|word| word + zero);
                        fragments[G][2 * I + 1] = [c, g, d, h].map(|word| word + zero);
                        seen |= a | e;
                    }
                });
            });
            sync_warp();
            // What overwrites the tile is a copy, which nothing keeps behind loads that are under
            // way: an arrival that does not depend on them let it overtake some of eight warps'
            // (measured).
            let arrives = (lane == 0) as u32 | seen & zero;
            barrier_arrive_if(shared.query_empty(), arrives);
            Queries(fragments)
        }
    }

    /// Sums of products with the 16 tokens whose rows start at `rows` in shared memory: of group
    /// `g` and tokens `8 n` and following, laid out as in [`crate::primitives::accumulator`]; and
    /// the tokens' squares, where rows are normalised.
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    pub(super) unsafe fn multiply<K: Kernel>(&self, rows: u32, lane: u32) -> (Sums, Squares) {
        let own = rows + lane / 4 * K::BYTES + lane % 4 * 16;
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut c: Sums = core::mem::zeroed();
            let mut squares = Squares::NONE;
            unroll!(I in 0..4 => {
                if 64 * (I as u32) < K::BYTES {
                    unroll!(N in 0..2 => {
                        let [x, y, z, w] =
                            load_shared_u32x4(own + 8 * N as u32 * K::BYTES + 64 * I as u32);
                        if K::Element::NORMALIZES {
                            squares.add::<K::Element>(N, I, [x, y, z, w]);
                        }
                        unroll!(G in 0..2 => {
                            let q = &self.0[G];
                            c[G][N] = K::Element::multiply_add(c[G][N], q[2 * I], [x, y]);
                            c[G][N] = K::Element::multiply_add(c[G][N], q[2 * I + 1], [z, w]);
                        });
                    });
                }
            });
            (c, squares)
        }
    }
}

/// Accumulators of the products of 16 tokens: see [`Queries::multiply`].
pub(super) type Sums = [[[f32; 4]; 2]; GROUPS as usize];

/// The maxima over a document so far: of the lane's two rows of each group.
pub(super) struct Best([[f32; 2]; GROUPS as usize]);

impl Best {
    pub(super) const NONE: Best = Best([[f32::NEG_INFINITY; 2]; GROUPS as usize]);

    /// Takes the first `n` of 16 tokens into account.
    #[inline(always)]
    pub(super) fn update(&mut self, mut c: Sums, n: u32, lane: u32) {
        if n < COLUMNS {
            unroll!(N in 0..2 => {
                unroll!(J in 0..2 => {
                    let token = 2 * (lane % 4) + (8 * N + J) as u32;
                    unroll!(G in 0..2 => {
                        unroll!(R in 0..2 => {
                            let x = c[G][N][2 * R + J];
                            c[G][N][2 * R + J] = if token < n { x } else { f32::NEG_INFINITY };
                        });
                    });
                });
            });
        }
        unroll!(G in 0..2 => {
            unroll!(R in 0..2 => {
                let [a, b] = [0, 1].map(|n| max_nan(c[G][n][2 * R], c[G][n][2 * R + 1]));
                self.0[G][R] = max_nan(self.0[G][R], max_nan(a, b));
            });
        });
    }

    /// Exchanges maxima between the lanes that have the same rows, so that each lane ends with one:
    /// [`crate::sm90::contiguous::lane_row`].
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    pub(super) unsafe fn exchange(&self, lane: u32) -> f32 {
        let [[a, b], [c, d]] = self.0;
        // SAFETY: the caller's promise.
        unsafe { exchange::<2>(exchange::<1>(a, b, lane), exchange::<1>(c, d, lane), lane) }
    }
}
