//! Scores residual tokens as [`super`] does, with the centroids' share of a similarity from a
//! table:
//!
//! ```text
//! ⟨q, c + w⟩ = ⟨q, c⟩ + ⟨q, w⟩    c a token's centroid, w its weights, both in the queries' type
//! ```
//!
//! Where documents have many more tokens than there are centroids, ⟨q, c⟩ is computed once for
//! every centroid (`centroid_scores`; PLAID's centroid interaction) and read 128 bytes at a time
//! instead of a centroid's 256. The sum c + w is then not rounded to the queries' type, so that
//! scores are closer to those of the tokens themselves than [`super`]'s.
//!
//! Infinite elements of queries would make NaN of ∞ - ∞. Tiles that have any are flagged behind the
//! table and left to [`infinite`], a kernel that decodes element by element.
//!
//! The table has for each query tile, centroid, and lane t of a quad the eight query rows of that
//! lane's sums: a token's are where its products begin.
//!
//! Budget: 64 registers of queries, 32 of sums, 16 of weights, 8 of maxima: twelve warps a
//! multiprocessor. Buckets of 4 bits and their weights' table take 12 more, and spill.

use crate::abi::params::{
    ByCentroidParams, CENTROID_SCORES_BYTES, CentroidScoresParams, ForwardParams, Residuals,
};
use crate::abi::residual_chunk::{CHUNK_LEN, place, slot};
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::row_is_valid;
use crate::ptx::global::{load_u8, load_u16, load_u32, load_u32x4, store_u32, store_u32x4};
use crate::ptx::math::{fma, max_nan};
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::ptx::warp::{ballot, broadcast, shuffle};
use crate::sm80::residual::decoder::{Centroids, Decoder, Small};
use crate::sm80::residual::kernel::{FRAGMENTS, GROUPS, STEP, WARPS, Walk, lane_row};
use crate::sm80::residual::query_rows::{Best, Queries};

/// Bytes of a centroid's scores in a query tile.
const ROW_BYTES: u64 = CENTROID_SCORES_BYTES as u64;
/// Bytes of the scores that a lane has.
const LANE_BYTES: u64 = ROW_BYTES / 4;

/// Sums of a step: see [`Decoder::multiply`].
type Sums = [[f32; 4]; FRAGMENTS];

/// Stores the scores of centroids, 16 per warp at a time.
///
/// # Safety
/// `params` as [`CentroidScoresParams`] says; blocks of `32 * WARPS` threads.
#[inline(always)]
pub unsafe fn centroid_scores<E: Decoded>(params: &CentroidScoresParams) {
    let lane = thread_idx_x() % 32;
    let n_steps = params.n_centroids.div_ceil(STEP);
    // SAFETY: every warp is whole here; there is a centroid, and a tile.
    unsafe {
        core::hint::assert_unchecked(n_steps != 0);
        let mut unit = block_idx_x() * WARPS + broadcast(thread_idx_x() / 32);
        let mut queries = Queries::none(lane);
        while unit < n_steps * params.n_tiles {
            let (tile, step) = (unit / n_steps, unit % n_steps);
            if tile != queries.tile {
                queries = Queries::load(&params.forward, tile, lane);
            }
            if step == 0 {
                let is_finite = are_finite::<E>(&queries);
                if lane == 0 {
                    let flags = flags(params.scores, params.n_tiles, params.n_centroids);
                    store_u32(flags + u64::from(tile) * 4, u32::from(!is_finite));
                }
            }
            let first = step * STEP + lane / 4;
            let mut rows: Centroids = core::mem::zeroed();
            unroll!(R in 0..2 => {
                // The last one again behind it.
                let row = (first + 8 * R as u32).min(params.n_centroids - 1);
                let address = params.centroids + u64::from(row) * u64::from(params.pitch_bytes);
                unroll!(I in 0..4 => {
                    rows[R][I] = load_u32x4(address + u64::from(lane % 4) * 16 + 64 * I as u64);
                });
            });
            let mut c: Sums = core::mem::zeroed();
            unroll!(I in 0..4 => {
                c = add_products::<E>(c, &queries, I, [rows[0][I], rows[1][I]]);
            });
            unroll!(R in 0..2 => {
                let row = first + 8 * R as u32;
                if row < params.n_centroids {
                    let to = place_of(table(params.scores, tile, params.n_centroids, lane), row);
                    let word = |f: usize, j: usize| c[f][2 * R + j].to_bits();
                    store_u32x4(to, [word(0, 0), word(0, 1), word(1, 0), word(1, 1)]);
                    store_u32x4(to + 16, [word(2, 0), word(2, 1), word(3, 0), word(3, 1)]);
                }
            });
            unit += grid_dim_x() * WARPS;
        }
    }
}

/// The forward kernel.
///
/// # Safety
/// As [`crate::sm80::residual::forward`], with buckets of up to
/// [`crate::abi::residual_chunk::BY_CENTROID_NBITS_MAX`] bits; the table must be that of the
/// launch's queries and the documents' centroids.
#[inline(always)]
pub unsafe fn forward<E: Decoded>(params: &ByCentroidParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.documents.nbits {
            1 => run::<E, 1>(params),
            _ => run::<E, 2>(params),
        }
    }
}

/// Works through the block's units, buckets of `NBITS`.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn run<E: Decoded, const NBITS: u32>(all: &ByCentroidParams) {
    let ByCentroidParams { forward: params, documents: tokens, .. } = all;
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole here.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let decoder = Decoder::<NBITS>::new(tokens, lane);
        let mut queries = Queries::none(lane);
        let mut scores = 0;
        let mut unit = block_idx_x();
        while unit < params.n_units {
            let work = work_tile::unit(params, unit, GROUPS);
            unit += grid_dim_x();
            if work.tile != queries.tile {
                queries = Queries::load(params, work.tile, lane);
                scores = table(all.scores, work.tile, all.n_centroids, lane);
            }
            if load_u32(flag(all, work.tile)) != 0 {
                continue;
            }
            let mut now = Walk::new(params, work.entry + warp, work.entry_end);
            let mut fetched = now;
            let mut sums = load(scores, decoder.codes(fetched.row), lane);
            let mut small = decoder.read(fetched.row);
            fetched.step(params);
            let mut codes = decoder.codes(fetched.row);
            let mut best = Best::NONE;
            while now.entry < now.entry_end {
                let next = load(scores, codes, lane);
                let ahead = decoder.read(fetched.row);
                fetched.step(params);
                codes = decoder.codes(fetched.row);
                sums = decoder.add_weights::<E>(sums, &queries, &small);
                best.take(params, now, sums, small.norms, lane / 4);
                if now.left <= STEP {
                    best.finish(params, &queries, now.entry, lane);
                    best = Best::NONE;
                }
                now.step(params);
                (sums, small) = (next, ahead);
            }
        }
    }
}

/// Whether all elements of a query tile are finite: nothing else times 0 is 0.
///
/// # Safety
/// The whole warp together.
#[inline(always)]
unsafe fn are_finite<E: Decoded>(queries: &Queries) -> bool {
    let mut is_finite = true;
    // SAFETY: all-zero bytes are numbers; the caller's promise.
    unsafe {
        let mut sums: Sums = core::mem::zeroed();
        unroll!(I in 0..4 => { sums = add_products::<E>(sums, queries, I, [[0; 4]; 2]); });
        unroll!(F in 0..4 => { is_finite &= sums[F][0] == 0.0 && sums[F][1] == 0.0; });
        ballot(u32::from(!is_finite)) == 0
    }
}

/// Scores the documents of query tiles that are not finite, which [`forward`] skips, element by
/// element: ∞ · c + ∞ · w may be NaN where ∞ · (c + w) is not. Each lane has the query row that it
/// ends with.
///
/// # Safety
/// As [`forward`], of the same launch.
#[inline(always)]
pub unsafe fn infinite<E: Decoded>(all: &ByCentroidParams) {
    let ByCentroidParams { forward: params, documents: tokens, .. } = all;
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole here; what is read belongs to rows that are there.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let mut unit = block_idx_x();
        while unit < params.n_units {
            let work = work_tile::unit(params, unit, GROUPS);
            unit += grid_dim_x();
            if load_u32(flag(all, work.tile)) == 0 {
                continue;
            }
            let queries = Queries::load(params, work.tile, lane);
            let (group, row) = lane_row(lane);
            let group = work_tile::group(params, work.tile * GROUPS + group);
            // Any row where there is none.
            let row = if row < group.n_rows() { group.start + row } else { 0 };
            let query = params.queries.base + u64::from(row) * params.queries.pitch_bytes;
            let mut entry = work.entry + warp;
            while entry < work.entry_end {
                let document = work_tile::document(params, entry);
                let mut best = Best::NONE;
                let mut own = f32::NEG_INFINITY;
                let mut token = 0;
                while token < document.len {
                    let row = document.start + token;
                    token += 1;
                    if row_is_valid(&params.documents, row) {
                        own = max_nan(own, similarity::<E>(params, tokens, query, row));
                        best.any = 1;
                    }
                }
                unroll!(F in 0..4 => {
                    unroll!(J in 0..2 => {
                        let of = (2 * (lane / 16) + lane / 8 % 2, lane / 4 % 2);
                        let is_own = of == (F as u32, J as u32);
                        best.value[F][J] = if is_own { own } else { f32::NEG_INFINITY };
                    });
                });
                best.finish(params, &queries, entry, lane);
                entry += WARPS;
            }
        }
    }
}

/// The similarity of a query's row and a document's.
///
/// # Safety
/// As [`infinite`]; the rows must be there.
#[inline(always)]
unsafe fn similarity<E: Decoded>(
    params: &ForwardParams,
    tokens: &Residuals,
    query: u64,
    row: u32,
) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let code = load_u32(tokens.codes + u64::from(row) * 4);
        let centroid = tokens.centroids + u64::from(code) * u64::from(tokens.pitch_bytes);
        let buckets = tokens.residuals + u64::from(row) * u64::from(tokens.row_bytes);
        let weights = tokens.weights + Residuals::PLANES_BYTES;
        let mut sum = 0.0;
        let mut k = 0;
        while k < params.dim {
            let weight = element::<E>(weights, bucket_of(tokens.nbits, buckets, k));
            let x = element::<E>(centroid, k) + weight;
            sum = fma(element::<E>(query, k), x, sum);
            k += 1;
        }
        match tokens.norms {
            0 => sum,
            norms => sum * f32::from_bits(load_u32(norms + u64::from(row) * 4)),
        }
    }
}

/// Element `k` of a row of two bytes each.
///
/// # Safety
/// The row must have it.
#[inline(always)]
unsafe fn element<E: Decoded>(row: u64, k: u32) -> f32 {
    // SAFETY: the caller's promise.
    let word = unsafe { load_u16(row + u64::from(k) * 2) };
    E::widen([word, 0, 0, 0])[0]
}

/// The bucket of element `k` of a row as [`crate::abi::residual_chunk`] arranges them.
///
/// # Safety
/// The row must have it.
#[inline(always)]
unsafe fn bucket_of(nbits: u32, row: u64, k: u32) -> u32 {
    let address = row + u64::from(slot(k as usize / CHUNK_LEN) as u32 * nbits);
    let place = place(nbits, k % CHUNK_LEN as u32);
    // SAFETY: the caller's promise.
    let byte = unsafe { load_u8(address + u64::from(place / 8)) };
    byte >> (place % 8) & ((1 << nbits) - 1)
}

/// Address of the flags of query tiles that are not finite, four bytes each, behind the scores.
#[inline(always)]
fn flags(scores: u64, n_tiles: u32, n_centroids: u32) -> u64 {
    scores + u64::from(n_tiles) * u64::from(n_centroids) * ROW_BYTES
}

/// Address of the flag of a query tile.
#[inline(always)]
fn flag(all: &ByCentroidParams, tile: u32) -> u64 {
    flags(all.scores, all.n_tiles, all.n_centroids) + u64::from(tile) * 4
}

/// Address of a lane's scores of a query tile.
#[inline(always)]
fn table(scores: u64, tile: u32, n_centroids: u32, lane: u32) -> u64 {
    let rows = u64::from(tile) * u64::from(n_centroids);
    scores + rows * ROW_BYTES + u64::from(lane % 4) * LANE_BYTES
}

/// Address of a centroid's scores.
#[inline(always)]
fn place_of(table: u64, centroid: u32) -> u64 {
    table + u64::from(centroid) * ROW_BYTES
}

/// Starts to read the scores of a step's centroids, of which lane `i` of 16 has the `i`-th code.
///
/// # Safety
/// The whole warp together; the table must have the codes.
#[inline(always)]
unsafe fn load(table: u64, codes: u32, lane: u32) -> Sums {
    // SAFETY: all-zero bytes are numbers; the caller's promise.
    unsafe {
        let mut sums: Sums = core::mem::zeroed();
        unroll!(R in 0..2 => {
            let from = place_of(table, shuffle(codes, lane / 4 + 8 * R as u32));
            let halves = [load_u32x4(from), load_u32x4(from + 16)];
            unroll!(F in 0..4 => {
                unroll!(J in 0..2 => {
                    sums[F][2 * R + J] = f32::from_bits(halves[F / 2][F % 2 * 2 + J]);
                });
            });
        });
        sums
    }
}

/// Adds the products of chunk `i` of the lane's two rows.
///
/// # Safety
/// The whole warp together.
#[inline(always)]
unsafe fn add_products<E: Decoded>(
    mut c: Sums,
    queries: &Queries,
    i: usize,
    [a, b]: [[u32; 4]; 2],
) -> Sums {
    unroll!(F in 0..4 => {
        let [p, q, r, s] = queries.chunks[F][i];
        // SAFETY: the caller's promise.
        unsafe {
            c[F] = E::multiply_add(c[F], [a[0], b[0], a[1], b[1]], [p, q]);
            c[F] = E::multiply_add(c[F], [a[2], b[2], a[3], b[3]], [r, s]);
        }
    });
    c
}

impl<const NBITS: u32> Decoder<'_, NBITS> {
    /// Adds the products with the weights alone to `c`, as [`Decoder::multiply`] does with rows.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn add_weights<E: Decoded>(
        &self,
        mut c: Sums,
        queries: &Queries,
        small: &Small,
    ) -> Sums {
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(I in 0..4 => {
                let mut rows = [[0; 4]; 2];
                unroll!(R in 0..2 => {
                    rows[R] = Weights::of::<NBITS>(&self.weights, small.buckets[R][I]);
                });
                c = add_products::<E>(c, queries, I, rows);
            });
            c
        }
    }
}
