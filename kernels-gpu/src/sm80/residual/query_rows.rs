//! The query rows of a tile as `mma.sync` fragments in registers, and their running maxima over a
//! document.

use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::{TileGroups, exchange};
use crate::primitives::documents::{TokenPlace, store_token};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::row_is_valid;
use crate::ptx::global::{load_u16, load_u32x4};
use crate::ptx::math::max_nan;
use crate::ptx::warp::{ballot, shuffle, shuffle_xor_f32};
use crate::sm80::residual::kernel::{FRAGMENTS, GROUPS, STEP, Walk, lane_row};

/// The maxima over a document so far: of the lane's two query rows of each fragment.
pub(super) struct Best {
    pub(super) value: [[f32; 2]; FRAGMENTS],
    /// Non-zero when the document has a valid token.
    pub(super) any: u32,
}

impl Best {
    pub(super) const NONE: Best = Best { value: [[f32::NEG_INFINITY; 2]; FRAGMENTS], any: 0 };

    /// Takes the similarities of a step's tokens into account, of which `token` is the lane's
    /// first.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    pub(super) unsafe fn take(
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

    /// Exchanges maxima between the lanes that have the same query rows, so that each lane ends
    /// with one of them; adds and stores them.
    ///
    /// # Safety
    /// The whole warp together, at a document's end.
    #[inline(always)]
    pub(super) unsafe fn finish(
        &self,
        params: &ForwardParams,
        queries: &Queries,
        entry: u32,
        lane: u32,
    ) {
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
            let mut weight = 1.0;
            if params.query_weights != 0 {
                let (group, row) = lane_row(lane);
                let group = work_tile::group(params, queries.tile * GROUPS + group);
                weight = work_tile::query_weight(params, group, row);
            }
            let mut sum = if counts { best * weight } else { 0.0 };
            if params.token_scores != 0 && counts {
                let (_, row) = lane_row(lane);
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

/// A query tile: each lane's part of its fragments, and what is stored.
pub(super) struct Queries {
    pub(super) tile: u32,
    /// The lane's chunks of row `lane / 4` of each fragment of 8 rows.
    pub(super) chunks: [[[u32; 4]; 4]; FRAGMENTS],
    pub(super) groups: TileGroups,
    /// Whether the query row that the lane ends with is valid.
    pub(super) is_valid: bool,
    pub(super) place: TokenPlace,
}

impl Queries {
    #[inline(always)]
    pub(super) unsafe fn none(lane: u32) -> Queries {
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
    pub(super) unsafe fn load(params: &ForwardParams, tile: u32, lane: u32) -> Queries {
        // SAFETY: a tile has two groups; rows are read where a group has them.
        unsafe {
            let groups = [0, 1].map(|i| work_tile::group(params, tile * GROUPS + i));
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
            let (group, row) = lane_row(lane);
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
