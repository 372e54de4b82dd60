//! MaxSim of residual-compressed documents for up to 32 query rows, decoded in registers.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], x̂[d, t]⟩ · r[d, t]`, x̂ as [`crate::decode`] says, r = 1 where
//! tokens are not normalised
//!
//! Tiling: documents on M, queries on N. A warp has a document, 16 tokens at a time, and all 32 query
//! rows in registers.
//!
//! Which element is which k of a product is nobody's business as long as both sides agree: lane
//! (g, t) of a product's fragment has of its rows the chunks t, 4 + t, 8 + t and 12 + t, as they are
//! loaded. What is read from memory is what `mma.sync` multiplies, once a weight is added.
//!
//! Pipeline, of a warp by itself:
//!  1. Of the next step buckets and r are on their way, of the one after it the codes.
//!  2. Weights are added to this step's centroids, chunk by chunk. Where one was, that of the next
//!     step follows: as many are on their way as there is room for.
//!  3. The sums are multiplied, and the maxima over the document kept per lane and query row.
//!  4. After the document lanes exchange maxima; each of the 32 lanes ends with one query row.
//!
//! Budget: 64 registers of queries, 32 of centroids, 32 of decoded tokens, 16 of sums, 8 of maxima:
//! eight warps a multiprocessor.
//!
//! Known loss: a document's tokens up to the next 16.

pub mod by_centroid;

pub use crate::chunks::{Bf16 as ResidualBf16, F16 as ResidualF16};
use crate::chunks::{Decoded, Weights};
use crate::decode::LANE_CHUNKS;
use crate::layout::sm80::RESIDUAL_ROWS;
use crate::params::{ForwardParams, Group, Residuals, Segment};
use crate::ptx::math::max_nan;
use crate::ptx::memory::{load_u16, load_u32, load_u32x2, load_u32x4};
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::ptx::warp::{ballot, broadcast, shuffle_xor_f32};
use crate::ptx::wide::shuffle;
use crate::reduce::{TileGroups, exchange, unroll};
use crate::work::{self, TokenPlace, row_is_valid, store_token};

/// Groups of a query tile.
const GROUPS: u32 = (RESIDUAL_ROWS / Group::ROWS) as u32;
/// Fragments of 8 query rows.
const FRAGMENTS: usize = RESIDUAL_ROWS / 8;
/// Tokens of a step.
const STEP: u32 = 16;
/// Warps per block.
const WARPS: u32 = 4;

/// The forward kernel of one row of the variant table.
///
/// # Safety
/// Launched with `32 * WARPS` threads; `params` as [`ForwardParams`] says, query rows on 16-byte
/// boundaries; `tokens` as [`Residuals`] says.
#[inline(always)]
pub unsafe fn forward<E: Decoded>(params: &ForwardParams, tokens: &Residuals) {
    // SAFETY: the caller's promise.
    unsafe {
        match tokens.nbits {
            1 => run::<E, 1>(params, tokens),
            2 => run::<E, 2>(params, tokens),
            4 => run::<E, 4>(params, tokens),
            _ => run::<E, 8>(params, tokens),
        }
    }
}

/// Works through the block's units, buckets of `NBITS`.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn run<E: Decoded, const NBITS: u32>(params: &ForwardParams, tokens: &Residuals) {
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole here. The broadcast tells the assembler that the number is the same
    // in all lanes.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let decoder = Decoder::<NBITS>::new(tokens, lane);
        let mut queries = Queries::none(lane);
        let mut unit = block_idx_x();
        while unit < params.n_units {
            let work = work::unit(params, unit, GROUPS);
            unit += grid_dim_x();
            if work.tile != queries.tile {
                queries = Queries::load(params, work.tile, lane);
            }
            let mut now = Walk::new(params, work.entry + warp, work.entry_end);
            let mut fetched = now;
            let mut centroids = decoder.gather(decoder.codes(fetched.row));
            let mut small = decoder.read(fetched.row);
            fetched.step(params);
            let mut codes = decoder.codes(fetched.row);
            let mut best = Best::NONE;
            while now.entry < now.entry_end {
                let addresses = decoder.addresses(codes);
                let ahead = decoder.read(fetched.row);
                fetched.step(params);
                codes = decoder.codes(fetched.row);
                let c = decoder.multiply::<E>(&queries, now.row, &mut centroids, addresses, &small);
                best.take(params, now, c, small.norms, lane / 4);
                if now.left <= STEP {
                    best.finish(params, &queries, now.entry, lane);
                    best = Best::NONE;
                }
                now.step(params);
                small = ahead;
            }
        }
    }
}

/// A warp's way through its documents, every [`WARPS`]-th entry, in steps of 16 tokens. An empty
/// document has one.
#[derive(Clone, Copy)]
struct Walk {
    entry: u32,
    entry_end: u32,
    /// Row of the step's first token; any row where there is no entry left.
    row: u32,
    /// The document's tokens from there on.
    left: u32,
    /// Rows of the next document.
    ahead: Segment,
}

impl Walk {
    #[inline(always)]
    unsafe fn new(params: &ForwardParams, entry: u32, entry_end: u32) -> Self {
        let none = Segment { start: 0, len: 0 };
        let mut walk = Walk { entry, entry_end, row: 0, left: 0, ahead: none };
        // SAFETY: entries before the end exist.
        unsafe {
            if entry < entry_end {
                let document = work::document(params, entry);
                (walk.row, walk.left) = (document.start, document.len);
            }
            walk.look_ahead(params);
        }
        walk
    }

    #[inline(always)]
    unsafe fn look_ahead(&mut self, params: &ForwardParams) {
        if self.entry + WARPS < self.entry_end {
            // SAFETY: the entry exists.
            self.ahead = unsafe { work::document(params, self.entry + WARPS) };
        }
    }

    /// Goes on to the next step.
    ///
    /// # Safety
    /// `params` must be those that it began with.
    #[inline(always)]
    unsafe fn step(&mut self, params: &ForwardParams) {
        if self.left > STEP {
            self.row += STEP;
            self.left -= STEP;
            return;
        }
        self.entry += WARPS;
        (self.row, self.left) = (self.ahead.start, self.ahead.len);
        // SAFETY: the caller's promise.
        unsafe { self.look_ahead(params) };
    }
}

/// Of each of the lane's two rows of a step its chunks of the centroid.
type Centroids = [[[u32; 4]; LANE_CHUNKS]; 2];

/// Buckets of up to 4 bits of the same, and r.
#[derive(Clone, Copy)]
struct Small {
    buckets: [[[u32; 2]; LANE_CHUNKS]; 2],
    norms: [f32; 2],
}

/// Where a lane reads.
struct Decoder<'a, const NBITS: u32> {
    tokens: &'a Residuals,
    weights: Weights,
    lane: u32,
    /// Address of the lane's first chunk of centroid 0.
    first: u64,
    /// Address of the lane's buckets of row 0.
    residuals: u64,
}

impl<'a, const NBITS: u32> Decoder<'a, NBITS> {
    #[inline(always)]
    unsafe fn new(tokens: &'a Residuals, lane: u32) -> Self {
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
    unsafe fn codes(&self, row: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { load_u32(self.tokens.codes + u64::from(row + self.lane % STEP) * 4) }
    }

    /// Where the lane's first chunks of its rows' centroids are.
    ///
    /// # Safety
    /// The whole warp together, with [`Decoder::codes`].
    #[inline(always)]
    unsafe fn addresses(&self, codes: u32) -> [u64; 2] {
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
    unsafe fn gather(&self, codes: u32) -> Centroids {
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
    unsafe fn read(&self, first: u32) -> Small {
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

    /// The similarities of a step's tokens before they are normalised: element `2 r + j` of fragment
    /// `f` is that of the lane's row `r` and query row `8 f + 2 (lane % 4) + j`. Leaves the centroids
    /// at `addresses` in place of the step's.
    ///
    /// # Safety
    /// The whole warp together, with what is read of the step.
    #[inline(always)]
    unsafe fn multiply<E: Decoded>(
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

    /// Where the buckets of the lane's chunks of a row are.
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

/// A query tile: each lane's part of its fragments, and what is stored.
struct Queries {
    tile: u32,
    /// Of each fragment of 8 rows, the lane's chunks of row `lane / 4`.
    chunks: [[[u32; 4]; 4]; FRAGMENTS],
    groups: TileGroups,
    /// Of the query row that the lane ends with.
    is_valid: bool,
    place: TokenPlace,
}

impl Queries {
    #[inline(always)]
    unsafe fn none(lane: u32) -> Queries {
        Queries {
            tile: u32::MAX,
            // SAFETY: all-zero bytes are numbers.
            chunks: unsafe { core::mem::zeroed() },
            // SAFETY: the whole warp is here.
            groups: unsafe { TileGroups::new(Group::NONE, lane) },
            is_valid: false,
            place: TokenPlace::NONE,
        }
    }

    /// # Safety
    /// One whole warp; the tile must be of this launch.
    #[inline(always)]
    unsafe fn load(params: &ForwardParams, tile: u32, lane: u32) -> Queries {
        // SAFETY: a tile has two groups; rows are read where a group has them.
        unsafe {
            let groups = [0, 1].map(|i| work::group(params, tile * GROUPS + i));
            let mut queries = Queries::none(lane);
            queries.tile = tile;
            unroll!(F in 0..4 => {
                let (group, row) = (groups[F / 2], 8 * (F as u32 % 2) + lane / 4);
                if row < group.n_rows() {
                    let row = u64::from(group.start + row);
                    let address = params.queries.base + row * params.queries.pitch_bytes;
                    unroll!(I in 0..4 => {
                        let first = (4 * I as u32 + lane % 4) * 8;
                        queries.chunks[F][I] = query_chunk(address, first, params.dim);
                    });
                }
            });
            let own = match lane {
                0 => groups[0],
                1 => groups[1],
                _ => Group::NONE,
            };
            queries.groups = TileGroups::new(own, lane);
            let (group, row) = own_row(lane);
            let group = if group == 0 { groups[0] } else { groups[1] };
            queries.is_valid =
                row < group.n_rows() && row_is_valid(&params.queries, group.start + row);
            if params.token_scores != 0 && group.n_rows() > 0 {
                queries.place = TokenPlace::new(params, group);
            }
            queries
        }
    }
}

/// The group, and the row of it, that a lane ends with: see [`Best::finish`].
#[inline(always)]
fn own_row(lane: u32) -> (u32, u32) {
    (lane / 16, 8 * (lane / 8 % 2) + 2 * (lane % 4) + lane / 4 % 2)
}

/// Eight elements of a query row, with zeros from `dim` on: whatever a decoded row has there.
///
/// # Safety
/// The row must have the elements up to `dim`, on 16-byte boundaries.
#[inline(always)]
unsafe fn query_chunk(address: u64, first: u32, dim: u32) -> [u32; 4] {
    let address = address + u64::from(first) * 2;
    // SAFETY: the caller's promise.
    unsafe {
        if first + 8 <= dim {
            return load_u32x4(address);
        }
        let mut words = [0; 4];
        unroll!(W in 0..4 => {
            let element = first + 2 * W as u32;
            if element < dim {
                words[W] = load_u16(address + 4 * W as u64);
            }
            if element + 1 < dim {
                words[W] |= load_u16(address + 4 * W as u64 + 2) << 16;
            }
        });
        words
    }
}

/// The maxima over a document so far: of the lane's two query rows of each fragment.
struct Best {
    value: [[f32; 2]; FRAGMENTS],
    /// Non-zero when the document has a valid token.
    any: u32,
}

impl Best {
    const NONE: Best = Best { value: [[f32::NEG_INFINITY; 2]; FRAGMENTS], any: 0 };

    /// Takes the similarities of a step's tokens into account, of which `token` is the lane's first.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    unsafe fn take(
        &mut self,
        params: &ForwardParams,
        here: Walk,
        mut c: [[f32; 4]; FRAGMENTS],
        mut norms: [f32; 2],
        token: u32,
    ) {
        if here.left >= STEP && params.documents.mask == 0 {
            self.any = 1;
        } else {
            let is_valid = [0, 8].map(|first| {
                let row = here.row + token + first;
                // SAFETY: the document has the row.
                token + first < here.left && unsafe { row_is_valid(&params.documents, row) }
            });
            // SAFETY: the whole warp is here.
            self.any |= unsafe { ballot((is_valid[0] || is_valid[1]) as u32) };
            unroll!(R in 0..2 => {
                // r of a row that does not count may be anything.
                norms[R] = if is_valid[R] { norms[R] } else { 1.0 };
                unroll!(F in 0..4 => {
                    unroll!(J in 0..2 => {
                        let x = c[F][2 * R + J];
                        c[F][2 * R + J] = if is_valid[R] { x } else { f32::NEG_INFINITY };
                    });
                });
            });
        }
        self.fold(&c, norms);
    }

    /// The larger ones, similarities times r of their rows.
    #[inline(always)]
    fn fold(&mut self, c: &[[f32; 4]; FRAGMENTS], norms: [f32; 2]) {
        unroll!(F in 0..4 => {
            unroll!(J in 0..2 => {
                let most = max_nan(c[F][J] * norms[0], c[F][2 + J] * norms[1]);
                self.value[F][J] = max_nan(self.value[F][J], most);
            });
        });
    }

    /// Exchanges maxima between the lanes that have the same query rows, so that each lane ends with
    /// one of them; adds and stores them.
    ///
    /// # Safety
    /// The whole warp together, at a document's end.
    #[inline(always)]
    unsafe fn finish(&self, params: &ForwardParams, queries: &Queries, entry: u32, lane: u32) {
        // SAFETY: the whole warp is here; only one lane has a query row.
        unsafe {
            let mut four = [[0.0; 2]; 2];
            unroll!(F in 0..2 => {
                unroll!(J in 0..2 => {
                    four[F][J] = exchange::<16>(self.value[F][J], self.value[F + 2][J], lane);
                });
            });
            let mut two = [0.0; 2];
            unroll!(J in 0..2 => { two[J] = exchange::<8>(four[0][J], four[1][J], lane); });
            let best = exchange::<4>(two[0], two[1], lane);
            let counts = queries.is_valid && self.any != 0;
            let mut sum = if counts { best } else { 0.0 };
            if params.token_scores != 0 && counts {
                let (_, row) = own_row(lane);
                let index = queries.place.index(params, entry) + u64::from(row);
                store_token(params, index, 0, best);
            }
            sum += shuffle_xor_f32::<1>(sum);
            sum += shuffle_xor_f32::<2>(sum);
            sum += shuffle_xor_f32::<4>(sum);
            sum += shuffle_xor_f32::<8>(sum);
            let sum = f32::from_bits(shuffle(sum.to_bits(), lane % 2 * 16));
            queries.groups.store(params, entry, sum);
        }
    }
}
