//! 3xTF32, exact f32: three TF32 products of numbers that two warps split between copy and product.
//!
//! A stage has room for both parts of its slabs, the upper half for lo. TMA fills the lower half;
//! the splitting warps store hi there, and lo in the upper half.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::abi::tf32::{is_finite, split};
use crate::primitives::accumulator::valid_columns;
use crate::primitives::documents::Documents;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::copy::fence_async;
use crate::ptx::shared::{load_shared_f32x4, store_shared_u32x4};
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wgmma;
use crate::ptx::wgmma::{Accumulators, WgmmaElement};
use crate::sm90::compute::{Columns, FRAGMENT_BYTES, multiply_steps};
use crate::sm90::consumer::Consumer;
use crate::sm90::kernel::{Kernel, SPLITTING_WARPS, n_slabs};
use crate::sm90::producers::QueryTile;
use crate::sm90::scheduler::{ReceivedUnits, for_each_tile};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Splits the slabs of each stage, and turns the documents' mask into bits, one word per 32
/// columns, for each tile. The warps take turns at the groups of rows.
///
/// # Safety
/// [`SPLITTING_WARPS`] whole warps per block, numbered from 0; shared memory and barriers as
/// [`crate::sm90::persistent::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn split_slabs<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    warp: u32,
    lane: u32,
) {
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    let mut queries = QueryTile::NONE;
    let mut n_query_groups = 0;
    let mut units = ReceivedUnits::START;
    // SAFETY: the loading warp fills these stages in this order, and the consumers read them
    // once all these warps have arrived; the whole warp is here.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            if work.tile != queries.tile {
                queries = QueryTile::new::<K>(params, work.tile, lane);
                // Groups without rows are the tile's last ones, or few.
                n_query_groups = 32 - ballot((queries.group.n_rows() > 0) as u32).leading_zeros();
            }
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let left = document.len - row;
                let n_rows = left.min(DOCUMENT_TILE as u32);
                let n_groups = n_rows.div_ceil(Group::ROWS as u32);
                let mut words = [0; 4];
                if params.documents.mask != 0 {
                    let start = document.start + row;
                    words = valid_columns::<4>(&params.documents, start, left, lane);
                }
                let mut slab = 0;
                while slab < n_slabs {
                    barrier_wait(shared.landed(ring.slot), ring.parity);
                    if params.documents.mask != 0 && slab == 0 && warp == 0 && lane == 0 {
                        store_shared_u32x4(shared.mask(ring.slot), words);
                    }
                    // Rows that were not copied are not split: whatever they hold shows in
                    // columns that a mask removes and in rows of no query.
                    let (stage, queries) =
                        (shared.stage(ring.slot), shared.stage_queries(ring.slot));
                    let place = |group: u32| {
                        let slab = match group < n_groups {
                            true => stage + group * GROUP_SLAB_BYTES as u32,
                            false => queries + (group - n_groups) * GROUP_SLAB_BYTES as u32,
                        };
                        slab + lane * 16
                    };
                    // A document and a query with rows: each warp has a group.
                    let end = n_groups + n_query_groups;
                    let mut group = warp;
                    let mut first = load_half(place(group));
                    while group < end {
                        // One warp alone hides the latency of its loads: each half of a group is in
                        // flight while the one before it is split.
                        let own = place(group);
                        let second = load_half(own + HALF_GROUP_BYTES);
                        split_half(own, shared.lower_bytes(), first);
                        group += SPLITTING_WARPS;
                        // Behind the last one its own again, unused: others may be writing.
                        first = load_half(if group < end { place(group) } else { own });
                        split_half(own + HALF_GROUP_BYTES, shared.lower_bytes(), second);
                    }
                    // Every lane for its own words, before one of them arrives for all.
                    fence_async();
                    sync_warp();
                    barrier_arrive_if(shared.full(ring.slot), (lane == 0) as u32);
                    ring = ring.next(shared.stages);
                    slab += 1;
                }
            });
        }
    }
}

/// Bytes of half a group's slab, of which each lane has 16 and, 512 further on, another 16.
const HALF_GROUP_BYTES: u32 = GROUP_SLAB_BYTES as u32 / 2;

/// The lane's 8 numbers of half a group's slab.
///
/// # Safety
/// `place` must be the lane's first 16 bytes of a slab that is there.
#[inline(always)]
unsafe fn load_half(place: u32) -> [[f32; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe { [load_shared_f32x4(place), load_shared_f32x4(place + 512)] }
}

/// Stores hi of the lane's 8 numbers where they were, and lo `lower` bytes further on.
///
/// # Safety
/// As [`load_half`]; no other thread may read or write these places.
#[inline(always)]
unsafe fn split_half(place: u32, lower: u32, x: [[f32; 4]; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        unroll!(I in 0..2 => {
            let (hi, lo) = split(x[I]);
            store_shared_u32x4(place + 512 * I as u32, hi.map(f32::to_bits));
            store_shared_u32x4(place + 512 * I as u32 + lower, lo.map(f32::to_bits));
        });
    }
}

impl Consumer<'_> {
    /// Products of a tile whose slabs come in two parts, one stage at a time.
    ///
    /// The large products of a slab are added to those of others with rounding to nearest: the
    /// tensor cores truncate each sum that they add to, which would show at large dims. Of the
    /// small ones, 2⁻¹¹ of that is left.
    ///
    /// # Safety
    /// As [`crate::sm90::consumer::Product::tile`].
    #[inline(always)]
    pub(super) unsafe fn split_products<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        columns: &mut Columns,
    ) -> [f32; N]
    where
        [f32; N]: Accumulators,
    {
        const { assert!(!K::Element::SPLITS || K::SLABS == 0 && K::FRAGMENTS == 1) };
        let offset = self.warp / 4 * FRAGMENT_BYTES;
        let lower = wgmma::descriptor_step(self.shared.lower_bytes());
        // SAFETY: all-zero bytes are floats (a literal would become a loop in memory); the
        // splitting warps fill one stage per slab.
        unsafe {
            let mut sum: [f32; N] = core::mem::zeroed();
            let mut small: [f32; N] = core::mem::zeroed();
            self.wait_for_mask::<KIND>(columns);
            let mut slab = 0;
            while slab < self.n_slabs {
                let (a, b) = self.wait_for_slabs(offset);
                wgmma::fence();
                let large = <[f32; N]>::start::<K::Element>(a, b);
                let large = multiply_steps::<K::Element, N, 1>(large, a, b, SLAB_STEPS);
                if K::CONSUMERS == 1 {
                    // No registers for a third set of sums: one after the other.
                    wgmma::commit();
                    sum = add(sum, large.wait::<0>());
                    wgmma::fence();
                    let small = <[f32; N]>::start::<K::Element>(a, b + lower);
                    let small = multiply_steps::<K::Element, N, 1>(small, a, b + lower, SLAB_STEPS);
                    let small = multiply_steps::<K::Element, N, 0>(small, a + lower, b, SLAB_STEPS);
                    wgmma::commit();
                    let small = small.wait::<0>();
                    self.release(1);
                    sum = add_finite(sum, small);
                    slab += 1;
                    continue;
                }
                small = multiply_steps::<K::Element, N, 0>(small, a, b + lower, SLAB_STEPS);
                small = multiply_steps::<K::Element, N, 0>(small, a + lower, b, SLAB_STEPS);
                wgmma::commit();
                let large = large.wait::<0>();
                small = small.wait::<0>();
                self.release(1);
                sum = add(sum, large);
                slab += 1;
            }
            add_finite(sum, small)
        }
    }
}

/// `a + b`.
#[inline(always)]
fn add<const N: usize>(mut a: [f32; N], b: [f32; N]) -> [f32; N] {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..4 => {
                a[4 * I + J] += b[4 * I + J];
            });
        }
    });
    a
}

/// `a + b` where `b` is finite, `a` elsewhere (see [`crate::abi::tf32`]).
#[inline(always)]
fn add_finite<const N: usize>(a: [f32; N], mut b: [f32; N]) -> [f32; N] {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..4 => {
                let x = b[4 * I + J];
                b[4 * I + J] = if is_finite(x) { x } else { 0.0 };
            });
        }
    });
    add(a, b)
}
