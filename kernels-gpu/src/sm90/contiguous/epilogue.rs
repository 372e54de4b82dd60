//! The warp that loads query tiles and stores scores.

use crate::abi::angular::angular;
use crate::abi::layout::contiguous::*;
use crate::abi::params::{ContiguousParams, ForwardParams, Group};
use crate::primitives::documents::{TokenPlace, store_token};
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::row_is_valid;
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_wait};
use crate::ptx::copy::copy_run;
use crate::ptx::global::store_u32;
use crate::ptx::math::max_nan;
use crate::ptx::shared::{load_shared_f32, load_shared_u32};
use crate::ptx::thread::*;
use crate::ptx::warp::{ballot, broadcast, shuffle_xor_f32, sync_warp};
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::norms::query_norm;
use crate::sm90::contiguous::prologue::init_storing;
use crate::sm90::contiguous::units::{Run, tile_of};
use crate::sm90::contiguous::{END, GROUPS, Kernel, Shared, is_dynamic, lane_row};
use crate::sm90::smem::Ring;

/// The warp that loads query tiles and stores scores.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(
    all: &ContiguousParams,
    shared: Shared<K>,
    row_scales: RowScales,
    lane: u32,
) {
    let params = &all.forward;
    // SAFETY: a tile is overwritten when all warps have it in registers; the others store their
    // maxima of each entry of a unit in this order.
    unsafe {
        init_storing(all, &shared, lane);
        let mut unit = block_idx_x();
        let mut run = Run::new(all, unit);
        let mut tile = Tile::new(all, tile_of(all, unit));
        if all.query_len == 0 {
            tile.load(all, &shared, lane);
        }
        meet::<K>();
        let (mut slots, mut parity) = (Ring::START, 0);
        loop {
            let mut results = Results::new::<K>(params, &tile, row_scales, lane);
            let has_loaded = results.find_norm(&shared, parity, lane) & all.zero;
            // With the dynamic scheduler there is one tile, and slots state whose maxima they have.
            let n_units = if is_dynamic::<K>(all) { 0 } else { all.n_units };
            unit += grid_dim_x();
            let mut next = run;
            if unit < n_units {
                next = Run::new(all, unit);
                barrier_wait(shared.query_empty(), parity);
                parity ^= 1;
                tile = Tile::new(all, tile_of(all, unit));
                // Behind the loads of the tile that it overwrites: see `Queries::load`.
                tile.load(all, &shared, lane | has_loaded);
            }
            let mut entry = run.entry;
            let entry_end = if is_dynamic::<K>(all) { END } else { run.entry_end };
            while entry < entry_end {
                let most = load_maxima(&shared, slots, lane);
                if is_dynamic::<K>(all) {
                    entry = broadcast(load_shared_u32(shared.entry(slots.slot)));
                    if entry == END {
                        return;
                    }
                }
                release_maxima(&shared, &mut slots, lane);
                results.store::<K>(params, entry, most, lane);
                entry += 1;
            }
            if unit >= all.n_units {
                return;
            }
            run = next;
        }
    }
}

/// Meets the warps that multiply. The storing warp waits for them where it reads the query tile,
/// whose barrier is set up by another.
///
/// # Safety
/// One whole warp, once.
#[inline(always)]
pub(super) unsafe fn meet<K: Kernel>() {
    // SAFETY: the caller's promise.
    unsafe {
        match K::Element::NORMALIZES {
            true => wait_threads(K::THREADS),
            false => arrive_threads(K::THREADS),
        }
    }
}

/// The largest maximum that the warps have stored in a slot for the lane's query row.
///
/// # Safety
/// One whole warp; the warps fill the slots in this order.
#[inline(always)]
pub(super) unsafe fn load_maxima<K: Kernel>(shared: &Shared<K>, slots: Ring, lane: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        barrier_wait(shared.maxima_full(slots.slot), slots.parity);
        let mut most = load_shared_f32(shared.maxima(slots.slot, 0) + lane * 4);
        let mut warp = 1;
        while warp < K::WARPS as u32 {
            let other = load_shared_f32(shared.maxima(slots.slot, warp) + lane * 4);
            most = max_nan(most, other);
            warp += 1;
        }
        most
    }
}

/// Gives a slot back.
///
/// # Safety
/// One whole warp, behind [`load_maxima`].
#[inline(always)]
pub(super) unsafe fn release_maxima<K: Kernel>(shared: &Shared<K>, slots: &mut Ring, lane: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        sync_warp();
        barrier_arrive_if(shared.maxima_empty(slots.slot), (lane == 0) as u32);
    }
    *slots = slots.next(SLOTS as u32);
}

/// The groups of a query tile.
#[derive(Clone, Copy)]
pub(super) struct Tile([Group; GROUPS as usize]);

impl Tile {
    /// Reads the groups of a tile.
    ///
    /// # Safety
    /// The tile must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new(params: &ContiguousParams, index: u32) -> Tile {
        Tile([0, 1].map(|i| match params.query_len {
            // SAFETY: a tile has two groups.
            0 => unsafe { work_tile::group(&params.forward, index * GROUPS + i) },
            len => {
                let row = i * Group::ROWS as u32;
                let n_rows = len.saturating_sub(row).min(Group::ROWS as u32);
                Group::new(index, index * len + row, row, n_rows, 0)
            }
        }))
    }

    /// Asks for the tile's rows.
    ///
    /// # Safety
    /// One whole warp; the tile's room in shared memory must be free.
    #[inline(always)]
    pub(super) unsafe fn load<K: Kernel>(
        &self,
        params: &ContiguousParams,
        shared: &Shared<K>,
        lane: u32,
    ) {
        // SAFETY: the caller's promise; groups have their rows.
        unsafe {
            if lane == 0 {
                let bytes = self.0.map(|group| group.n_rows() * K::BYTES);
                barrier_expect(shared.query_full(), bytes[0] + bytes[1]);
                unroll!(G in 0..2 => {
                    if bytes[G] > 0 {
                        let place = shared.queries() + (G * Group::ROWS) as u32 * K::BYTES;
                        let row = u64::from(self.0[G].start);
                        let address = params.queries + row * u64::from(K::BYTES);
                        copy_run(place, address, bytes[G], shared.query_full());
                    }
                });
            }
        }
    }
}

/// Addresses of the results of a query tile. They are computed before the first result is there,
/// since that takes longer than to store them.
pub(super) struct Results {
    /// Whether the query row that the lane has is a query token.
    is_valid: bool,
    /// Whether both groups are one query's.
    are_one: bool,
    /// Whether the lane stores a result.
    stores: bool,
    /// Index for entry 0, which may be below 0.
    first: u32,
    results: u64,
    place: TokenPlace,
    /// The scale of the query row, where rows have any, or r.
    scale: f32,
    /// Whether maxima are cosines of angular scores.
    are_cosines: bool,
    /// The weight of the query row.
    weight: f32,
}

impl Results {
    /// # Safety
    /// One whole warp; the tile must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new<K: Kernel>(
        params: &ForwardParams,
        tile: &Tile,
        row_scales: RowScales,
        lane: u32,
    ) -> Results {
        let [first, second] = tile.0;
        let are_one = first.query == second.query;
        let (group, row) = lane_row(lane);
        let own = if group == 0 { first } else { second };
        // Lanes 0 and 2 have the groups' sums, lane 0 that of both.
        let stores = lane == 0 || lane == 2 && !are_one && second.query != Group::NO_QUERY;
        // SAFETY: the caller's promise; a group has its rows.
        unsafe {
            let mut place = TokenPlace::NONE;
            if params.token_scores != 0 && own.n_rows() > 0 {
                place = TokenPlace::new(params, own);
            }
            let scale = K::Element::query_scale(row_scales, own, row);
            Results {
                is_valid: row < own.n_rows() && row_is_valid(&params.queries, own.start + row),
                are_one,
                stores,
                first: work_tile::first_result(params, own),
                results: params.results,
                place,
                scale,
                are_cosines: K::Element::NORMALIZES && row_scales.are_cosines(),
                weight: work_tile::query_weight(params, own, row),
            }
        }
    }

    /// Finds r of the lane's query row, where rows are normalised, when the tile is there. Returns
    /// a word that depends on all lanes' loads.
    ///
    /// # Safety
    /// One whole warp, behind [`meet`]; `parity` must be that of the tile.
    #[inline(always)]
    pub(super) unsafe fn find_norm<K: Kernel>(
        &mut self,
        shared: &Shared<K>,
        parity: u32,
        lane: u32,
    ) -> u32 {
        if !K::Element::NORMALIZES {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe {
            barrier_wait(shared.query_full(), parity);
            self.scale = query_norm::<K>(shared.queries(), lane);
            ballot((self.scale < 0.0) as u32)
        }
    }

    /// Stores the maximum of each query token, and their sums.
    ///
    /// # Safety
    /// One whole warp together; the entry must be of this launch, and of the groups' queries.
    #[inline(always)]
    pub(super) unsafe fn store<K: Kernel>(
        &self,
        params: &ForwardParams,
        entry: u32,
        mut most: f32,
        lane: u32,
    ) {
        if K::Element::HAS_SCALES || K::Element::NORMALIZES {
            most *= self.scale;
        }
        if K::Element::NORMALIZES && self.are_cosines {
            most = angular(most);
        }
        // SAFETY: the caller's promise; only one lane has a query row, and stores a result.
        unsafe {
            if params.token_scores != 0 && self.is_valid {
                let (_, row) = lane_row(lane);
                let index = self.place.index(params, entry) + u64::from(row);
                store_token(params, index, 0, most);
            }
            let mut sum = if self.is_valid { most * self.weight } else { 0.0 };
            sum += shuffle_xor_f32::<1>(sum);
            sum += shuffle_xor_f32::<4>(sum);
            sum += shuffle_xor_f32::<8>(sum);
            sum += shuffle_xor_f32::<16>(sum);
            let other = shuffle_xor_f32::<2>(sum);
            sum += if self.are_one { other } else { 0.0 };
            if self.stores {
                let index = u64::from(self.first.wrapping_add(entry));
                store_u32(self.results + index * 4, sum.to_bits());
            }
        }
    }
}
