//! Collects the similarities of query tokens that are above a bound, in any order, beside maxima
//! and winners: one product for both.
//!
//! A thread has, of each of a fragment's two rows, 16 pairs of neighbouring columns. A pair whose
//! larger number is above the row's bound goes to the thread's queue in shared memory. What is
//! above the bound there is counted in its query token's list by one atomic addition, and goes to
//! the list when the next fragment is collected, by when the addition has been answered. So no
//! thread waits for another one, or for memory.

use crate::abi::params::Group;
use crate::abi::params::xtr::mapped::{
    BOUNDS_OFFSET, QUEUE_ROW_BYTES, QUEUE_STEP_BYTES, QUEUES_OFFSET, STAGES, TOKENS_OFFSET,
};
use crate::abi::params::xtr::{CollectParams, Collected};
use crate::primitives::accumulator::{Best, fold};
use crate::primitives::row_maxima::valid_rows;
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::ptx::atomic::fetch_add_if;
use crate::ptx::global::{load_u32, store_u32_if};
use crate::ptx::math::max_nan;
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32, load_shared_u32, load_shared_u32x2, load_shared_u32x4,
    push_shared_above, store_shared_u32_if,
};
use crate::ptx::thread::lane_here;
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wgmma;
use crate::ptx::wgmma::{Accumulators, WgmmaElement};
use crate::sm90::compute::{Columns, FRAGMENT_BYTES};
use crate::sm90::consumer::{Consumer, MASKED, Product};
use crate::sm90::kernel::{Kernel, Maps};
use crate::sm90::persistent::run;
use core::marker::PhantomData;

/// Geometry of the kernels: that of `sm90_*_d128_q256_winners`, with queues in place of some
/// stages.
pub struct Collecting<E>(PhantomData<E>);

impl<E: WgmmaElement> Kernel for Collecting<E> {
    type Element = E;
    const CONSUMERS: usize = 2;
    const FRAGMENTS: usize = 2;
    const STEPS: usize = 8;
    const STAGES: usize = STAGES;
    const TAIL_STEP: usize = 32;
    const WINNERS: bool = true;
    const NORMALIZES: bool = false;
    const ADDS: bool = false;
}

/// What a consumer thread collects with. Beside two fragments' sums there are no registers for
/// more: bounds and query tokens are in shared memory.
struct Collector<'a> {
    collected: &'a Collected,
    /// Pairs in the thread's queues, those of the second row in the upper half.
    n_queued: u32,
    /// Where they go in the lists of their query tokens.
    places: [u32; 2],
}

/// Window address of a thread's queue of the first row of a fragment.
#[inline(always)]
fn queue(warp: u32) -> u32 {
    dynamic_shared() + QUEUES_OFFSET as u32 + 8 * (32 * warp + lane_here())
}

/// Window address of the bounds of a warp's fragment: those of its first 8 rows, and of the others.
#[inline(always)]
fn bounds_of(warp: u32, fragment: usize) -> u32 {
    let fragment = 2 * warp + fragment as u32;
    dynamic_shared() + BOUNDS_OFFSET as u32 + 4 * Group::ROWS as u32 * fragment
}

/// Window address of the query token of the first row of a warp's fragment.
#[inline(always)]
fn token_of(warp: u32, fragment: usize) -> u32 {
    dynamic_shared() + TOKENS_OFFSET as u32 + 4 * (2 * warp + fragment as u32)
}

/// The number of a pair that is compared with the bound: the larger one, NaN where one is, or the
/// one beside NaN, −∞ where none is.
#[inline(always)]
fn larger<const BESIDE_NAN: bool>([a, b]: [f32; 2]) -> f32 {
    match (BESIDE_NAN, a.is_nan(), b.is_nan()) {
        (false, ..) => max_nan(a, b),
        (true, true, _) => b,
        (true, _, true) => a,
        _ => f32::NEG_INFINITY,
    }
}

/// Which numbers of a pair are above a bound, as 0 or 1, where there is a pair. NaN is above
/// nothing.
#[inline(always)]
fn above(pair: [u32; 2], bound: f32, is_there: bool) -> [u32; 2] {
    pair.map(|bits| u32::from(is_there & (f32::from_bits(bits) > bound)))
}

impl Collector<'_> {
    /// Collects of a fragment's similarities the pairs whose larger number is above the bound, or
    /// those of which one is NaN and the other above it. What is in the queues is of fragment
    /// `before`.
    ///
    /// # Safety
    /// All lanes of the warp together.
    #[inline(always)]
    unsafe fn collect<const N: usize, const BESIDE_NAN: bool>(
        &mut self,
        warp: u32,
        (fragment, before): (usize, usize),
        c: &[f32; N],
    ) {
        const ROW: u32 = QUEUE_ROW_BYTES as u32;
        const STEP: u32 = QUEUE_STEP_BYTES as u32;
        // SAFETY: a queue has room for 16 pairs; tokens with a bound below ∞ have a count.
        unsafe {
            self.empty_queues(warp, before);
            let at = bounds_of(warp, fragment) + lane_here() / 4 * 4;
            let bounds = [load_shared_f32(at), load_shared_f32(at + 32)];
            let queue = queue(warp);
            let mut ends = [queue; 2];
            unroll!(I in 0..16 => {
                if 4 * I < N {
                    let pair = [c[4 * I], c[4 * I + 1]];
                    let most = larger::<BESIDE_NAN>(pair);
                    ends[0] = push_shared_above::<0, STEP>(ends[0], pair, most, bounds[0]);
                    let pair = [c[4 * I + 2], c[4 * I + 3]];
                    let most = larger::<BESIDE_NAN>(pair);
                    ends[1] = push_shared_above::<ROW, STEP>(ends[1], pair, most, bounds[1]);
                }
            });
            let token = load_shared_u32(token_of(warp, fragment)) + lane_here() / 4;
            let count = self.collected.counts + u64::from(token) * 4;
            let n_pairs = ends.map(|end| (end - queue) / STEP);
            self.n_queued = n_pairs[0] | n_pairs[1] << 16;
            let mut n_above = [0; 2];
            let mut i = 0;
            while ballot(u32::from(i < n_pairs[0].max(n_pairs[1]))) != 0 {
                unroll!(I in 0..2 => {
                    let pair = load_shared_u32x2(queue + I as u32 * ROW + i * STEP);
                    let [a, b] = above(pair, bounds[I], i < n_pairs[I]);
                    n_above[I] += a + b;
                });
                i += 1;
            }
            unroll!(I in 0..2 => {
                self.places[I] = fetch_add_if(count + 32 * I as u64, n_above[I], n_above[I]);
            });
        }
    }

    /// Collects of pairs of which one number is NaN, where the document has one: the maximum of
    /// both, which is above nothing then, is at hand for all pairs.
    ///
    /// # Safety
    /// As [`Collector::collect`].
    #[inline(always)]
    unsafe fn collect_beside_nan<const N: usize>(
        &mut self,
        warp: u32,
        fragment: usize,
        c: &[f32; N],
        best: &Best,
    ) {
        let [a, b] = best.value;
        // SAFETY: the caller's promise.
        unsafe {
            if ballot(u32::from(a.is_nan() | b.is_nan())) != 0 {
                self.collect::<N, true>(warp, (fragment, fragment), c);
            }
        }
    }

    /// Brings what is in the queues, of a fragment, to the lists.
    ///
    /// # Safety
    /// All lanes of the warp together.
    #[inline(always)]
    unsafe fn empty_queues(&mut self, warp: u32, fragment: usize) {
        let Collected { lists, capacity, .. } = *self.collected;
        // SAFETY: the thread has queued so many; the tokens have lists, in which the places of what
        // is above the bounds are this thread's.
        unsafe {
            if ballot(self.n_queued) == 0 {
                return;
            }
            let token = load_shared_u32(token_of(warp, fragment)) + lane_here() / 4;
            let queue = queue(warp);
            let at = bounds_of(warp, fragment) + lane_here() / 4 * 4;
            let bounds = [load_shared_f32(at), load_shared_f32(at + 32)];
            let n_pairs = [self.n_queued & 0xFFFF, self.n_queued >> 16];
            let mut i = 0;
            while ballot(u32::from(i < n_pairs[0].max(n_pairs[1]))) != 0 {
                unroll!(I in 0..2 => {
                    let from = queue + I as u32 * QUEUE_ROW_BYTES as u32;
                    let pair = load_shared_u32x2(from + i * QUEUE_STEP_BYTES as u32);
                    let list = lists + u64::from(token + 8 * I as u32) * u64::from(capacity) * 4;
                    let is_above = above(pair, bounds[I], i < n_pairs[I]);
                    unroll!(J in 0..2 => {
                        let place = self.places[I];
                        let is_there = is_above[J] & u32::from(place < capacity);
                        store_u32_if(list + u64::from(place) * 4, pair[J], is_there);
                        self.places[I] = place + is_above[J];
                    });
                });
                i += 1;
            }
        }
        self.n_queued = 0;
    }
}

impl Product for Collector<'_> {
    #[inline(always)]
    unsafe fn take_rows<K: Kernel>(&mut self, consumer: &Consumer<'_>, tile: u32) {
        let Consumer { params, warp, lane, .. } = *consumer;
        let Collected { bounds, first_tokens, .. } = *self.collected;
        // SAFETY: the whole warp is here, which alone has these bounds and tokens; the launch has
        // the groups, and bounds of their queries' tokens.
        unsafe {
            // A tile's last products are those of its second fragment.
            self.empty_queues(warp, 1);
            sync_warp();
            unroll!(I in 0..2 => {
                let group = work_tile::group(params, tile * K::GROUPS + consumer.group::<K>(I));
                let valid = valid_rows(params, group, lane);
                let mut first = 0;
                if group.query != Group::NO_QUERY {
                    first = load_u32(first_tokens + u64::from(group.query) * 4) + group.row;
                }
                unroll!(ROW in 0..2 => {
                    let token = first + lane / 4 + 8 * ROW as u32;
                    let bound = match valid >> ROW & 1 {
                        0 => f32::INFINITY.to_bits(),
                        _ => load_u32(bounds + u64::from(token) * 4),
                    };
                    let at = bounds_of(warp, I) + 32 * ROW as u32 + lane / 4 * 4;
                    store_shared_u32_if(at, bound, u32::from(lane % 4 == 0));
                });
                store_shared_u32_if(token_of(warp, I), first, u32::from(lane == 0));
            });
            sync_warp();
        }
    }

    #[inline(always)]
    unsafe fn end(&mut self, warp: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.empty_queues(warp, 1) };
    }

    #[inline(always)]
    unsafe fn tile<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        consumer: &mut Consumer<'_>,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) -> u32
    where
        [f32; N]: Accumulators,
    {
        let mut columns = Columns::new(row, left, consumer.lane);
        let offset = consumer.warp / 4 * K::FRAGMENTS as u32 * FRAGMENT_BYTES;
        // SAFETY: the producer fills the ring's next stages with this tile; the fence orders
        // the last reads of the accumulators before they are written again.
        unsafe {
            consumer.wait_for_tile::<K>();
            if KIND == MASKED {
                columns.valid = load_shared_u32x4(consumer.shared.mask(consumer.ring.slot));
            }
            wgmma::fence();
            let c0 = consumer.multiply::<K, N>(offset);
            wgmma::commit();
            let c1 = consumer.multiply::<K, N>(offset + FRAGMENT_BYTES);
            wgmma::commit();
            let c0 = columns.valid_only::<K, N, KIND>(&c0.wait::<1>());
            self.collect::<N, false>(consumer.warp, (0, 1), &c0);
            fold(&mut best[0], &c0, columns.column, true);
            self.collect_beside_nan(consumer.warp, 0, &c0, &best[0]);
            consumer.finish_search::<K>(&best[0]);
            let c1 = c1.wait::<0>();
            consumer.release(K::SLABS as u32);
            let c1 = columns.valid_only::<K, N, KIND>(&c1);
            self.collect::<N, false>(consumer.warp, (1, 0), &c1);
            fold(&mut best[1], &c1, columns.column, true);
            self.collect_beside_nan(consumer.warp, 1, &c1, &best[1]);
        }
        columns.any()
    }
}

/// Finds maxima and winners as the forward kernel with the same tile, and collects.
///
/// # Safety
/// As [`crate::sm90::persistent::forward`]; `params` as [`CollectParams`] says.
#[inline(always)]
pub unsafe fn collect<E: WgmmaElement>(params: &CollectParams, maps: Maps) {
    const PRODUCER: u32 = 40;
    const CONSUMER: u32 = 232;
    let collector = Collector { collected: &params.collected, n_queued: 0, places: [0; 2] };
    let forward = &params.normalized.forward;
    // SAFETY: the caller's promise.
    unsafe {
        run::<Collecting<E>, _, PRODUCER, CONSUMER, CONSUMER>(
            forward,
            maps,
            RowScales::NONE,
            collector,
        );
    }
}
