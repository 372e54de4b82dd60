//! A consumer warp's query rows: initial maxima of a document, and its epilogue.

use crate::abi::layout::sm90::FRAGMENT_ROWS;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::{Best, NO_WINNER};
use crate::primitives::documents::TokenPlace;
use crate::primitives::row_maxima::{
    LaneRows, angular_scores, distribute, normalized, sum_halves, valid_rows,
};
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::ptx::warp::shuffle_xor_f32;
use crate::sm90::kernel::Kernel;

/// The rows of a warp's fragments, for one thread.
#[derive(Clone, Copy)]
pub(super) struct WarpRows {
    /// [`valid_rows`] of each fragment.
    valid: [u32; 2],
    /// Whether the rows that the thread has at a document's end are valid, and where they are
    /// stored.
    own_valid: u32,
    place: TokenPlace,
    /// Row scales of those rows.
    own_norms: [f32; 2],
    /// Weights of those rows.
    own_weights: [f32; 2],
}

impl WarpRows {
    /// No valid row.
    pub(super) const NONE: WarpRows = WarpRows {
        valid: [0; 2],
        own_valid: 0,
        place: TokenPlace::NONE,
        own_norms: [1.0; 2],
        own_weights: [1.0; 2],
    };

    /// The rows of the warp's groups, one per fragment.
    ///
    /// # Safety
    /// The groups must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new<K: Kernel>(
        params: &ForwardParams,
        row_scales: RowScales,
        groups: [Group; 2],
        lane: u32,
    ) -> Self {
        let mut rows = WarpRows::NONE;
        let own = LaneRows::new(K::FRAGMENTS, lane);
        unroll!(I in 0..2 => {
            if I < K::FRAGMENTS {
                // SAFETY: the caller's promise.
                rows.valid[I] = unsafe { valid_rows(params, groups[I], lane) };
                if own.fragment == I as u32 {
                    rows.own_valid = rows.valid[I];
                    if K::SCALES_QUERIES && !K::FINDS_NORMS {
                        // SAFETY: the caller's promise.
                        rows.own_norms = unsafe { own.scales(row_scales, groups[I], lane) };
                    }
                    if K::ADDS {
                        // SAFETY: the caller's promise.
                        rows.own_weights = unsafe { own.weights(params, groups[I], lane) };
                    }
                    if groups[I].n_rows() > 0 && params.winners | params.token_scores != 0 {
                        // SAFETY: the group has tokens, and there are pair-major outputs.
                        rows.place = unsafe { TokenPlace::new(params, groups[I]) };
                    }
                }
            }
        });
        rows
    }

    /// The row of the query tile that the thread has at a document's end, in warp `warp` of the
    /// consumers.
    #[inline(always)]
    pub(super) fn own_row<K: Kernel>(warp: u32, lane: u32) -> u32 {
        let own = LaneRows::new(K::FRAGMENTS, lane);
        let fragment = warp / 4 * K::FRAGMENTS as u32 + own.fragment;
        FRAGMENT_ROWS as u32 * fragment + 16 * (warp % 4) + own.first_row(lane)
    }

    /// Takes r of [`WarpRows::own_row`], where the kernel finds it itself.
    #[inline(always)]
    pub(super) fn take_norm(&mut self, norm: f32) {
        self.own_norms = [norm; 2];
    }

    /// Starts the maxima of valid rows; the others need no maximum, and have the largest, which
    /// never has to be found again ([`crate::sm90::bitwise_max::is_positive`]).
    #[inline(always)]
    pub(super) fn start(&self) -> [Best; 2] {
        let start = |bit: u32| if bit != 0 { f32::NEG_INFINITY } else { f32::INFINITY };
        self.valid.map(|valid| Best {
            value: [start(valid & 1), start(valid & 2)],
            winner: [NO_WINNER; 2],
        })
    }

    /// Row maxima of a part of a document in lane `f` of each four: those of its rows in either
    /// half of the warp's group of fragment `f`, 0 where they are no query tokens.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    pub(super) unsafe fn halves<K: Kernel>(&self, best: &[Best; 2], lane: u32) -> [f32; 2] {
        let own = LaneRows::new(K::FRAGMENTS, lane);
        // SAFETY: the caller's promise.
        unsafe {
            let rows = distribute(best, K::FRAGMENTS, lane, false);
            let [value, _] = own.values(&rows, [1.0; 2], self.own_valid);
            [value, other_half::<K>(value)]
        }
    }

    /// Weights of the rows of [`WarpRows::halves`].
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    pub(super) unsafe fn weights<K: Kernel>(&self) -> [f32; 2] {
        let [own, _] = self.own_weights;
        // SAFETY: the caller's promise.
        [own, unsafe { other_half::<K>(own) }]
    }

    /// Epilogue of a document that starts at row `start`: stores winners and token scores, if
    /// `store`, and gives [`sum_halves`] of valid rows, where they are added.
    ///
    /// # Safety
    /// The whole warp together; the entry must belong to the groups' queries, and have a valid
    /// document token to be stored.
    #[inline(always)]
    pub(super) unsafe fn finish<K: Kernel>(
        &self,
        params: &ForwardParams,
        row_scales: RowScales,
        (entry, start): (u32, u32),
        best: &[Best; 2],
        store: bool,
        lane: u32,
    ) -> f32 {
        let own = LaneRows::new(K::FRAGMENTS, lane);
        // SAFETY: the caller's promise.
        unsafe {
            let mut rows = distribute(best, K::FRAGMENTS, lane, K::WINNERS);
            if K::SCALES_QUERIES {
                rows = normalized(rows, self.own_norms);
            }
            if K::HAS_NORMS && row_scales.are_cosines() {
                rows = angular_scores(rows);
            }
            if store {
                own.store(params, self.place, (entry, start), &rows, self.own_valid, lane);
            }
            if !K::ADDS {
                return 0.0;
            }
            sum_halves(K::FRAGMENTS, own.values(&rows, self.own_weights, self.own_valid))
        }
    }
}

/// The value of the lane that has the same row of the other half of the fragment.
///
/// # Safety
/// The whole warp together.
#[inline(always)]
unsafe fn other_half<K: Kernel>(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match K::FRAGMENTS {
            1 => shuffle_xor_f32::<1>(value),
            _ => shuffle_xor_f32::<2>(value),
        }
    }
}
