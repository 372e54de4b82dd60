//! The warps of the first warpgroup: two load, one stores, one prepares masks.

use super::fold::{factor, is_factor};
use super::halves;
use super::turned::leave_rows;
use super::units::{Told, Units, for_each_tile};
use super::{Kernel, Maps, Ring, Shared, n_slabs};
use crate::layout::sm90::*;
use crate::norms::{Norms, shared_place};
use crate::params::{ForwardParams, Group};
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_wait};
use crate::ptx::copy::{copies_arrive, copy_async_4, copy_commit, copy_tile, copy_wait};
use crate::ptx::memory::{
    load_shared_f32, load_shared_f32x4, store_shared_f32, store_shared_u32x4,
};
use crate::ptx::thread::block_idx_x;
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wgmma::Element;
use crate::reduce::{TileGroups, unroll, valid_columns};
use crate::rows::sum_eight;
use crate::work::{self, Documents};

/// Loads document slabs, and query slabs where they stream, in the order in which consumers use
/// them. Each lane has one of the tile's groups.
///
/// # Safety
/// One whole warp per block; shared memory and barriers as [`super::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn load<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    lane: u32,
) {
    let mut ring = Ring::START;
    let mut queries = QueryTile::NONE;
    let mut units = Units::new(params);
    let mut is_first = true;
    // SAFETY: each wait is for arrivals that the consumers owe; stages are overwritten after it.
    unsafe {
        while let Some(work) = units.next::<K>(shared, lane) {
            if K::SLABS == 0 && work.tile != queries.tile {
                queries = QueryTile::new::<K>(params, work.tile, lane);
            }
            let mut documents = Documents::new(params, &work);
            let first = documents.first();
            // The first copies of a block go before everything else. (Streamed tiles may have
            // more slabs than the ring, and consumers must know of the unit to empty it.)
            let mut is_told = !is_first || first.len == 0 || K::SLABS == 0;
            is_first = false;
            if is_told {
                units.tell(shared, &work, first, lane);
            }
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                if K::CONSUMERS == 1 && K::SLABS == 2 {
                    load_rows::<K>(shared, maps, &mut ring, start, left, lane);
                } else {
                    load_slabs::<K>(params, shared, maps, &queries, &mut ring, start, left, lane);
                }
                if !is_told {
                    is_told = true;
                    units.tell(shared, &work, first, lane);
                }
            });
        }
    }
}

/// Starts the copies of a document tile of rows `start .. start + left`, or the first 128 of them:
/// both slabs of 16 rows before the next 16. The halves of a token's row then come out of the
/// memory together. Where one loading warp feeds a whole multiprocessor, so many small copies
/// would keep the memory waiting.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn load_rows<K: Kernel>(
    shared: &Shared,
    maps: Maps,
    ring: &mut Ring,
    start: u32,
    left: u32,
    lane: u32,
) {
    let n_boxes = left.min(DOCUMENT_TILE as u32).div_ceil(Group::ROWS as u32);
    let (slab, group) = (lane % 2, lane / 2);
    // SAFETY: stages are overwritten after the consumers' arrivals; the boxes are those of the
    // tile, and lie in the lane's stage.
    unsafe {
        let mut own = 0;
        let mut i = 0;
        while i < 2 {
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            if lane == 0 {
                barrier_expect(shared.full(ring.slot), n_boxes * GROUP_SLAB_BYTES as u32);
            }
            own = if i == slab { ring.slot } else { own };
            *ring = ring.next(shared.stages);
            i += 1;
        }
        if group < n_boxes {
            copy_tile(
                shared.stage(own) + group * GROUP_SLAB_BYTES as u32,
                maps.document_tails,
                slab * K::Element::SLAB_ELEMENTS,
                start + group * Group::ROWS as u32,
                shared.full(own),
            );
        }
    }
}

/// Starts the copies of a document tile, and of the query's slabs where they stream, stage by
/// stage.
///
/// # Safety
/// As [`load`].
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn load_slabs<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    queries: &QueryTile,
    ring: &mut Ring,
    start: u32,
    left: u32,
    lane: u32,
) {
    let n_slabs = n_slabs::<K>(params);
    let is_whole = left >= DOCUMENT_TILE as u32;
    let n_boxes = left.div_ceil(Group::ROWS as u32);
    let mut bytes = match is_whole {
        true => DOCUMENT_SLAB_BYTES as u32,
        false => n_boxes * GROUP_SLAB_BYTES as u32,
    };
    if K::SLABS == 0 {
        bytes += queries.slab_bytes;
    }
    // SAFETY: as for [`load_rows`].
    unsafe {
        let mut slab = 0;
        while slab < n_slabs {
            let stage = shared.stage(ring.slot);
            let full = match K::Element::SPLITS {
                true => shared.landed(ring.slot),
                false => shared.full(ring.slot),
            };
            let column = slab * K::Element::SLAB_ELEMENTS;
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            if lane == 0 {
                barrier_expect(full, bytes);
            }
            if is_whole {
                if lane == 0 {
                    copy_tile(stage, maps.documents, column, start, full);
                }
            } else if lane < n_boxes {
                let place = stage + lane * GROUP_SLAB_BYTES as u32;
                let row = start + lane * Group::ROWS as u32;
                copy_tile(place, maps.document_tails, column, row, full);
            }
            if K::SLABS == 0 {
                let place = shared.stage_queries(ring.slot);
                load_group(place, maps, column, queries.group, lane, full);
            }
            *ring = ring.next(shared.stages);
            slab += 1;
        }
    }
}

/// A query tile that is to be loaded: for each lane its group, and the bytes of one slab of all
/// groups with rows.
#[derive(Clone, Copy)]
pub(super) struct QueryTile {
    pub tile: u32,
    pub group: Group,
    slab_bytes: u32,
}

impl QueryTile {
    /// No tile.
    pub(super) const NONE: QueryTile =
        QueryTile { tile: u32::MAX, group: Group::NONE, slab_bytes: 0 };

    /// Looks up a tile's groups.
    ///
    /// # Safety
    /// One whole warp; the tile must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new<K: Kernel>(params: &ForwardParams, tile: u32, lane: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { QueryTile::of(tile, QueryTile::group::<K>(params, tile, lane)) }
    }

    /// A lane's group of a tile: asked for, not waited for.
    ///
    /// # Safety
    /// As [`QueryTile::new`].
    #[inline(always)]
    pub(super) unsafe fn group<K: Kernel>(params: &ForwardParams, tile: u32, lane: u32) -> Group {
        let mut group = Group::NONE;
        if lane < K::GROUPS {
            // SAFETY: a tile has this many groups.
            group = unsafe { work::group(params, tile * K::GROUPS + lane) };
        }
        group
    }

    /// The tile of the lanes' groups.
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    pub(super) unsafe fn of(tile: u32, group: Group) -> Self {
        // SAFETY: the whole warp is here.
        let n_groups = unsafe { ballot((group.n_rows() > 0) as u32) }.count_ones();
        QueryTile { tile, group, slab_bytes: n_groups * GROUP_SLAB_BYTES as u32 }
    }

    /// That of the block's first unit, which needs no telling. Looked up while barriers are set
    /// up: behind the copies of all blocks' first documents the query would be late.
    ///
    /// # Safety
    /// One whole warp; `params` must describe the launch.
    #[inline(always)]
    pub(super) unsafe fn first<K: Kernel>(params: &ForwardParams, lane: u32) -> Self {
        // SAFETY: there are no more blocks than units.
        unsafe { QueryTile::new::<K>(params, work::tile(params, block_idx_x()), lane) }
    }
}

/// Loads query tiles that stay, of which `next` is the first. A warp of its own, so that
/// documents need not wait until the tile's groups have been looked up.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn load_queries<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    mut next: QueryTile,
    lane: u32,
) {
    if K::SLABS == 0 {
        return;
    }
    let mut parity = 1;
    let mut units = Told::START;
    // SAFETY: as for the documents' slabs.
    unsafe {
        loop {
            barrier_wait(shared.query_empty(), parity);
            parity ^= 1;
            if K::IS_TURNED {
                leave_rows::<K>(params, shared, next.tile, lane);
            }
            if lane == 0 {
                barrier_expect(shared.query_full(), K::SLABS as u32 * next.slab_bytes);
            }
            let mut slab = 0;
            while slab < K::SLABS as u32 {
                let column = slab * K::Element::SLAB_ELEMENTS;
                let place = shared.query_slab(slab);
                load_group(place, maps, column, next.group, lane, shared.query_full());
                slab += 1;
            }
            let tile = next.tile;
            while next.tile == tile {
                let Some(work) = units.next(shared, lane) else { return };
                if work.tile != tile {
                    next = QueryTile::new::<K>(params, work.tile, lane);
                }
            }
        }
    }
}

/// Loads the query tile where a block has only one.
///
/// # Safety
/// One whole warp; the barriers as [`super::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn load_query<K: Kernel>(
    shared: &Shared,
    maps: Maps,
    queries: QueryTile,
    lane: u32,
) {
    let mut slab = 0;
    // SAFETY: the caller's promise; all slabs complete on one barrier.
    unsafe {
        if lane == 0 {
            barrier_expect(shared.query_full(), K::SLABS as u32 * queries.slab_bytes);
        }
        sync_warp();
        while slab < K::SLABS as u32 {
            let column = slab * K::Element::SLAB_ELEMENTS;
            let place = shared.query_slab(slab);
            load_group(place, maps, column, queries.group, lane, shared.query_full());
            slab += 1;
        }
    }
}

/// Starts the copies of a slab of all of a tile's groups.
///
/// # Safety
/// One whole warp; `barrier` must count one arrival for it, and the slab be free to be overwritten.
#[inline(always)]
pub(super) unsafe fn load_groups(
    slab: u32,
    maps: Maps,
    column: u32,
    queries: &QueryTile,
    lane: u32,
    barrier: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if lane == 0 {
            barrier_expect(barrier, queries.slab_bytes);
        }
        sync_warp();
        load_group(slab, maps, column, queries.group, lane, barrier);
    }
}

/// Starts the copy of the lane's group into its place in a query slab.
///
/// # Safety
/// `barrier` must expect the bytes of every group with rows; the place must be free.
#[inline(always)]
unsafe fn load_group(slab: u32, maps: Maps, column: u32, group: Group, lane: u32, barrier: u32) {
    if group.n_rows() > 0 {
        let place = slab + lane * GROUP_SLAB_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe { copy_tile(place, maps.queries, column, group.start, barrier) };
    }
}

/// Adds the groups' sums by query and stores scores or partial sums.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn store_sums<K: Kernel>(params: &ForwardParams, shared: &Shared, lane: u32) {
    let mut ring = Ring::START;
    let mut tile = u32::MAX;
    let mut units = Told::START;
    // SAFETY: consumers fill one slot per entry, in this order; the whole warp is here.
    unsafe {
        let mut groups = TileGroups::new(Group::NONE, lane);
        while let Some(work) = units.next(shared, lane) {
            if work.tile != tile {
                tile = work.tile;
                let queries = QueryTile::new::<K>(params, tile, lane);
                groups = TileGroups::new(queries.group, lane);
            }
            let mut entry = work.entry;
            while entry < work.entry_end {
                barrier_wait(shared.sum_full(ring.slot), ring.parity);
                let mut sum = 0.0;
                if lane < K::GROUPS {
                    let sums = shared.sums(ring.slot, lane);
                    sum = sum_eight(load_shared_f32x4(sums), load_shared_f32x4(sums + 16));
                }
                sync_warp();
                barrier_arrive_if(shared.sum_empty(ring.slot), (lane == 0) as u32);
                groups.store(params, entry, sum);
                ring = ring.next(sum_slots(K::QUERY_TILE) as u32);
                entry += 1;
            }
            if params.counters != 0 {
                work::count_part(params, &work, groups.first_query(), lane);
            }
        }
    }
}

/// Turns the documents' mask into bits, one word per 32 columns, for each tile.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn load_masks<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    if K::HALF_SCALES && norms.has_halves() {
        // SAFETY: the caller's promise.
        return unsafe { halves::load_factors::<K>(params, shared, norms, lane) };
    }
    if K::FOLDS_SUMS {
        // SAFETY: the caller's promise.
        return unsafe { load_factors::<K>(params, shared, norms, lane) };
    }
    if K::Element::HAS_SCALES {
        // SAFETY: the caller's promise.
        return unsafe { load_scales::<K>(params, shared, norms, lane) };
    }
    if params.documents.mask == 0 {
        return;
    }
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = valid_columns::<4>(&params.documents, start, left, lane);
                let mut slab = 0;
                while slab < n_slabs {
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    if lane == 0 && slab == 0 {
                        store_shared_u32x4(shared.mask(ring.slot), words);
                    }
                    barrier_arrive_if(shared.full(ring.slot), (lane == 0) as u32);
                    ring = ring.next(shared.stages);
                    slab += 1;
                }
            });
        }
    }
}

/// The mask of the columns of a tile of rows `start .. start + left` as bits, where documents have one.
///
/// # Safety
/// One whole warp; the rows must be a document's.
#[inline(always)]
pub(super) unsafe fn mask_words(
    params: &ForwardParams,
    start: u32,
    left: u32,
    lane: u32,
) -> [u32; 4] {
    let mut words = [0; 4];
    if params.documents.mask != 0 {
        // SAFETY: the caller's promise.
        words = unsafe { valid_columns::<4>(&params.documents, start, left, lane) };
    }
    words
}

/// Copies the scales of each tile's columns, and turns the documents' mask, where there is one, into
/// bits.
///
/// # Safety
/// As [`load`]; there is a scale for every row, and behind the last one for as many as a tile has.
#[inline(always)]
unsafe fn load_scales<K: Kernel>(params: &ForwardParams, shared: &Shared, norms: Norms, lane: u32) {
    let n_slabs = n_slabs::<K>(params);
    let is_masked = params.documents.mask != 0;
    let mut ring = Ring::START;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = mask_words(params, start, left, lane);
                let from = norms.of_documents(start + lane);
                let mut slab = 0;
                while slab < n_slabs {
                    let full = shared.full(ring.slot);
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    if slab == 0 {
                        let to = shared.scales(ring.slot) + shared_place(lane);
                        unroll!(I in 0..4 => {
                            copy_async_4(to + 128 * I as u32, from + 128 * I as u64);
                        });
                        if lane == 0 && is_masked {
                            store_shared_u32x4(shared.mask(ring.slot), words);
                        }
                        copies_arrive(full);
                    } else {
                        barrier_arrive_if(full, 1);
                    }
                    if is_masked {
                        barrier_arrive_if(full, (lane == 0) as u32);
                    }
                    ring = ring.next(shared.stages);
                    slab += 1;
                }
            });
        }
    }
}

/// Tiles whose scales are on their way while those before are made factors. Memory that is kept busy
/// answers late: as many have to be asked for as slabs are, and a stage is left to the consumers.
pub(super) const SCALES_AHEAD: u32 = 4;

/// As [`load_scales`], but makes of them what [`factor`] says, in place: of all columns of a tile, or
/// NaN where that is one's.
///
/// # Safety
/// As there; a tile has one slab.
#[inline(always)]
unsafe fn load_factors<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    const { assert!(!K::FOLDS_SUMS || K::STAGES as u32 > SCALES_AHEAD + 1) };
    let is_masked = params.documents.mask != 0;
    let (mut ring, mut landed) = (Ring::START, Ring::START);
    let mut n_ahead = 0;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here. Tiles that are ahead are fewer than stages, and
    // units are told without them, so that waiting for a stage or a unit ends.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = mask_words(params, start, left, lane);
                let from = norms.of_documents(start + lane);
                barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                let to = shared.scales(ring.slot) + shared_place(lane);
                unroll!(I in 0..4 => {
                    // What lies behind a document's end may be anything.
                    match left > lane + 32 * I as u32 {
                        true => copy_async_4(to + 128 * I as u32, from + 128 * I as u64),
                        false => store_shared_f32(to + 128 * I as u32, 1.0),
                    }
                });
                copy_commit();
                if lane == 0 && is_masked {
                    store_shared_u32x4(shared.mask(ring.slot), words);
                }
                ring = ring.next(shared.stages);
                if n_ahead < SCALES_AHEAD {
                    n_ahead += 1;
                } else {
                    copy_wait::<SCALES_AHEAD>();
                    make_factors(params, shared, &mut landed, lane, |scale| scale);
                }
            });
        }
        copy_wait::<0>();
        while n_ahead > 0 {
            make_factors(params, shared, &mut landed, lane, |scale| scale);
            n_ahead -= 1;
        }
    }
}

/// Makes factors of the lane's scales in a stage, which are `scale` of the words there, and says that they
/// are there.
///
/// # Safety
/// One whole warp, of which each lane's scales have arrived.
#[inline(always)]
pub(super) unsafe fn make_factors(
    params: &ForwardParams,
    shared: &Shared,
    ring: &mut Ring,
    lane: u32,
    scale: impl Fn(f32) -> f32,
) {
    let place = shared.scales(ring.slot) + shared_place(lane);
    let full = shared.full(ring.slot);
    let mut factors = [0.0; 4];
    let mut has_all = true;
    // SAFETY: the caller's promise; each lane reads and writes what it has copied.
    unsafe {
        unroll!(I in 0..4 => {
            factors[I] = factor(scale(load_shared_f32(place + 128 * I as u32)));
            has_all &= is_factor(factors[I]);
        });
        has_all = ballot(!has_all as u32) == 0;
        unroll!(I in 0..4 => {
            store_shared_f32(place + 128 * I as u32, if has_all { factors[I] } else { f32::NAN });
        });
        if params.documents.mask != 0 {
            barrier_arrive_if(full, (lane == 0) as u32);
        }
        barrier_arrive_if(full, 1);
    }
    *ring = ring.next(shared.stages);
}
