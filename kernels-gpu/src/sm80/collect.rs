//! Collects the similarities of query tokens that are above a bound, in any order: the forward
//! kernel, with appending to lists in place of the online max.
//!
//! Tiles, and the order in which products are added, are those of the forward kernels that find
//! winners, so that a similarity has the bits that it has there. What is in a list depends on the
//! order of CTAs where a list is full; how many there are never does.
//!
//! Bounds of a thread's rows stay in registers, as the running maxima do. A similarity above them
//! goes to its warp's queue in shared memory; what is there goes to the lists a warp's width at a
//! time, so that their atomic additions are under way together. The bounds are such that few
//! similarities are above them; those that find the queue full are appended one by one.

use super::kernel::{Kernel, SlabElement, forward};
use super::{Resident, Streamed};
use crate::abi::params::xtr::{CollectParams, Collected, QUEUE_BYTES, QUEUE_LEN, queues_offset};
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::row_maxima::{RowBest, valid_rows};
use crate::primitives::row_scales::{AsTheyAre, Normalized, Normalizer, RowScales};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::ptx::atomic::{fetch_add_if, fetch_add_shared_if};
use crate::ptx::global::{load_u32, store_u32_if};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, store_shared_u32, store_shared_u32x2_if,
};
use crate::ptx::thread::thread_idx_x;
use crate::ptx::warp::{lane_idx, sync_warp};
use crate::sm80::element::Stepped;
use core::marker::PhantomData;

/// A queue with as many similarities is emptied at the end of a tile.
const LONG_QUEUE: u32 = 32;

/// The row operation of such kernels: that of `N`, and then a comparison with the rows' bounds.
#[derive(Clone, Copy)]
pub struct Collector<N: Normalizer> {
    scales: N,
    collected: Collected,
    /// Bounds of the thread's two rows of each fragment; ∞ of rows that are no query tokens.
    bounds: [[f32; 2]; 4],
    /// The groups of the launch, and the first of them that the warp has: query tokens are looked
    /// up where they are appended to, since there are no registers for them.
    groups: u64,
    first_group: u32,
    /// Window address of the warp's queue: its length, and 16 bytes further what is in it, bits
    /// and row (of the fragments, one after the other).
    queue: u32,
}

impl<N: Normalizer> Collector<N> {
    /// Starts without query rows.
    ///
    /// # Safety
    /// All lanes of the warp; the CTA must have queues at this offset.
    #[inline(always)]
    unsafe fn new(scales: N, collected: Collected, offset: usize) -> Self {
        let warp = thread_idx_x() / 32;
        let queue = dynamic_shared() + offset as u32 + warp * QUEUE_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe { store_shared_u32(queue, 0) };
        // The lanes meet where the first query rows are taken.
        let bounds = [[f32::INFINITY; 2]; 4];
        Collector { scales, collected, bounds, groups: 0, first_group: 0, queue }
    }

    /// The query token of a row of the fragments.
    ///
    /// # Safety
    /// The row must be one of a query token.
    #[inline(always)]
    unsafe fn token(&self, row: u32) -> u32 {
        // SAFETY: the launch has the group, of a query that exists.
        unsafe {
            let index = self.first_group + row / Group::ROWS as u32;
            let group = work_tile::group_at(self.groups, index);
            self.token_of(group, row % Group::ROWS as u32)
        }
    }

    /// The query token of a row of a group.
    ///
    /// # Safety
    /// As [`Collector::token`].
    #[inline(always)]
    unsafe fn token_of(&self, group: Group, row: u32) -> u32 {
        // SAFETY: the query exists.
        let first = unsafe { load_u32(self.collected.first_tokens + u64::from(group.query) * 4) };
        first + group.row + row
    }

    /// Appends a similarity to its query token's list, where `condition` is not 0.
    ///
    /// # Safety
    /// As [`Collector::token`], where `condition` is not 0.
    #[inline(always)]
    unsafe fn append(&self, token: u32, bits: u32, condition: u32) {
        let Collected { counts, lists, capacity, .. } = self.collected;
        // SAFETY: the token has a count and a list.
        unsafe {
            let place = fetch_add_if(counts + u64::from(token) * 4, 1, condition);
            let list = u64::from(token) * u64::from(capacity);
            let has_room = condition & u32::from(place < capacity);
            store_u32_if(lists + (list + u64::from(place)) * 4, bits, has_room);
        }
    }

    /// Appends what is in the queue to the lists, where it has at least so many.
    ///
    /// # Safety
    /// All lanes of the warp together.
    #[inline(always)]
    unsafe fn empty_queue(&self, least: u32) {
        // SAFETY: the lanes write what others read on either side of a barrier alone; rows in the
        // queue are query tokens.
        unsafe {
            sync_warp();
            let n = load_shared_u32(self.queue);
            // Before a lane that returns adds to it.
            sync_warp();
            if n < least {
                return;
            }
            let n = if n < QUEUE_LEN as u32 { n } else { QUEUE_LEN as u32 };
            let mut i = lane_idx();
            while i < n {
                let at = self.queue + 16 + 8 * i;
                let token = self.token(load_shared_u32(at + 4));
                self.append(token, load_shared_u32(at), 1);
                i += 32;
            }
            sync_warp();
            store_shared_u32(self.queue, 0);
            sync_warp();
        }
    }
}

impl<N: Normalizer> Normalizer for Collector<N> {
    const HAS_SCALES: bool = N::HAS_SCALES;
    const COLLECTS: bool = true;
    type Column = N::Column;

    #[inline(always)]
    unsafe fn take_rows(
        &mut self,
        params: &ForwardParams,
        fragments: usize,
        first: u32,
        lane: u32,
    ) {
        // SAFETY: all lanes take rows together; what is queued is of the rows before.
        unsafe { self.empty_queue(1) };
        (self.groups, self.first_group) = (params.groups, first);
        unroll!(F in 0..4 => {
            if F < fragments {
                // SAFETY: the launch has the group, and bounds of its query's tokens.
                unsafe {
                    let group = work_tile::group(params, first + F as u32);
                    let valid = valid_rows(params, group, lane);
                    let mut token = 0;
                    if group.query != Group::NO_QUERY {
                        token = self.token_of(group, lane / 4);
                    }
                    let bounds = self.collected.bounds + u64::from(token) * 4;
                    unroll!(ROW in 0..2 => {
                        self.bounds[F][ROW] = match valid >> ROW & 1 {
                            0 => f32::INFINITY,
                            _ => f32::from_bits(load_u32(bounds + 32 * ROW as u64)),
                        };
                    });
                }
            }
        });
    }

    #[inline(always)]
    fn rows(&self, _: &mut [RowBest; 2]) {}

    #[inline(always)]
    fn row_scales(&self) -> RowScales {
        self.scales.row_scales()
    }

    #[inline(always)]
    fn column(word: f32) -> Self::Column {
        N::column(word)
    }

    #[inline(always)]
    fn similarity(&self, sum: f32, fragment: usize, row: usize, column: Self::Column) -> f32 {
        self.scales.similarity(sum, fragment, row, column)
    }

    #[inline(always)]
    unsafe fn collect<const M: usize>(&self, c: &[f32; M], fragment: usize) {
        let bounds = self.bounds[fragment];
        unroll!(I in 0..16 => {
            if 4 * I < M {
                let mut above = [0u32; 4];
                unroll!(J in 0..4 => {
                    // NaN is above nothing.
                    above[J] = u32::from(c[4 * I + J] > bounds[J / 2]);
                });
                if above[0] | above[1] | above[2] | above[3] != 0 {
                    let row = (fragment * Group::ROWS) as u32 + lane_idx() / 4;
                    let mut is_left = 0;
                    // SAFETY: a row with a bound below ∞ is a query token, which has a count and a
                    // list; the queue has room for so many.
                    unsafe {
                        unroll!(J in 0..4 => {
                            let place = fetch_add_shared_if(self.queue, 1, above[J]);
                            let has_room = u32::from(place < QUEUE_LEN as u32);
                            let entry = [c[4 * I + J].to_bits(), row + 8 * (J as u32 / 2)];
                            let at = self.queue + 16 + 8 * place;
                            store_shared_u32x2_if(at, entry, above[J] & has_room);
                            above[J] &= 1 - has_room;
                            is_left |= above[J];
                        });
                        if is_left != 0 {
                            let first = self.token(row);
                            unroll!(J in 0..4 => {
                                let token = first + 8 * (J as u32 / 2);
                                self.append(token, c[4 * I + J].to_bits(), above[J]);
                            });
                        }
                    }
                }
            }
        });
    }

    #[inline(always)]
    unsafe fn end_tile(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.empty_queue(LONG_QUEUE) };
    }

    #[inline(always)]
    unsafe fn end(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.empty_queue(1) };
    }
}

/// Geometry of the kernels for up to 128 dims of two bytes: the query tile of
/// `sm80_*_d128_q256_winners`, of twice as many warps, and a stage less.
pub struct Tall<E>(PhantomData<E>);

impl<E: SlabElement + Stepped> Kernel for Tall<E> {
    type Element = E;
    type Product = Resident;
    const WARPS: usize = 8;
    const FRAGMENTS: usize = 2;
    const SLABS: usize = 2;
    const TILE: usize = 64;
    const STAGES: usize = 4;
    const WINNERS: bool = true;
    type Normalizer = Collector<AsTheyAre>;
}

/// Geometry of the kernels for any dim, of tiles of twice `HALF_TILE` document tokens: that of
/// `sm80_*_wide_q128_winners`, `sm80_f32_q128_winners` and, with shorter tiles, for which there are
/// registers, `sm80_*_q128_normalized`.
pub struct Wide<E, N, const HALF_TILE: usize>(PhantomData<(E, N)>);

impl<E: SlabElement, N: Normalizer, const HALF_TILE: usize> Kernel for Wide<E, N, HALF_TILE> {
    type Element = E;
    type Product = Streamed<HALF_TILE>;
    const WARPS: usize = 4;
    const FRAGMENTS: usize = 2;
    const SLABS: usize = 0;
    const TILE: usize = 2 * HALF_TILE;
    const STAGES: usize = 3;
    const WINNERS: bool = true;
    type Normalizer = Collector<N>;
}

/// Collects rows as they are.
///
/// # Safety
/// As [`forward`]; `params` as [`CollectParams`] says.
#[inline(always)]
pub unsafe fn collect<K: Kernel<Normalizer = Collector<AsTheyAre>>>(params: &CollectParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let collector = Collector::new(AsTheyAre, params.collected, offset::<K>());
        forward::<K>(&params.normalized.forward, collector)
    }
}

/// Collects normalised rows.
///
/// # Safety
/// As [`collect`].
#[inline(always)]
pub unsafe fn collect_normalized<K: Kernel<Normalizer = Collector<Normalized<false>>>>(
    params: &CollectParams,
) {
    let scales = Normalized::<false>::new(RowScales::of(&params.normalized));
    // SAFETY: the caller's promise.
    unsafe {
        let collector = Collector::new(scales, params.collected, offset::<K>());
        forward::<K>(&params.normalized.forward, collector)
    }
}

/// Where a kernel's queues lie in shared memory.
const fn offset<K: Kernel>() -> usize {
    queues_offset(K::QUERY_TILE, K::TILE, K::SLABS, K::STAGES)
}
