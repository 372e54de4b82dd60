//! The producer warps: they load document slabs and query tiles by TMA.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::documents::Documents;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::row_is_valid;
use crate::ptx::barrier::{barrier_expect, barrier_wait};
use crate::ptx::copy::copy_tile;
use crate::ptx::shared::store_shared_u32x4;
use crate::ptx::thread::block_idx_x;
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{Kernel, Maps, n_slabs};
use crate::sm90::scheduler::{ReceivedUnits, Units, for_each_tile};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Loads document slabs, and query slabs where they stream, in the order in which consumers use
/// them. Each lane has one of the tile's groups.
///
/// # Safety
/// One whole warp per block; shared memory and barriers as
/// [`crate::sm90::persistent::forward`] sets them up.
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
            let mut is_published = !is_first || first.len == 0 || K::SLABS == 0;
            is_first = false;
            if is_published {
                units.publish(shared, &work, first, lane);
            }
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                if K::CONSUMERS == 1 && K::SLABS == 2 {
                    load_rows::<K>(shared, maps, &mut ring, start, left, lane);
                } else {
                    load_slabs::<K>(params, shared, maps, &queries, &mut ring, start, left, lane);
                }
                if !is_published {
                    is_published = true;
                    units.publish(shared, &work, first, lane);
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
    pub(super) slab_bytes: u32,
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

    /// A lane's group of a tile: requested, not waited for.
    ///
    /// # Safety
    /// As [`QueryTile::new`].
    #[inline(always)]
    pub(super) unsafe fn group<K: Kernel>(params: &ForwardParams, tile: u32, lane: u32) -> Group {
        let mut group = Group::NONE;
        if lane < K::GROUPS {
            // SAFETY: a tile has this many groups.
            group = unsafe { work_tile::group(params, tile * K::GROUPS + lane) };
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

    /// Looks up the query tile of the CTA's first unit, which is not published. This runs while
    /// barriers are set up: behind the copies of all CTAs' first documents the query would be late.
    ///
    /// # Safety
    /// One whole warp; `params` must describe the launch.
    #[inline(always)]
    pub(super) unsafe fn first<K: Kernel>(params: &ForwardParams, lane: u32) -> Self {
        // SAFETY: there are no more blocks than units.
        unsafe { QueryTile::new::<K>(params, work_tile::tile(params, block_idx_x()), lane) }
    }
}

/// Loads query tiles that stay, of which `next` is the first. A warp of its own, so that
/// documents need not wait until the tile's groups have been looked up.
///
/// # Safety
/// As [`crate::sm90::producers::load`].
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
    let mut units = ReceivedUnits::START;
    // SAFETY: as for the documents' slabs.
    unsafe {
        loop {
            barrier_wait(shared.query_empty(), parity);
            parity ^= 1;
            if K::IS_SWAP_AB {
                publish_rows::<K>(params, shared, next.tile, lane);
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

/// Publishes to the consumers which rows of a query tile are query tokens.
///
/// # Safety
/// One whole warp, before it announces the tile's copies; consumers must have given back the last
/// one.
#[inline(always)]
pub(super) unsafe fn publish_rows<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    tile: u32,
    lane: u32,
) {
    let mut words = [0; 8];
    unroll!(I in 0..8 => {
        // SAFETY: the tile has the group; only rows of it are looked up; the whole warp is here.
        words[I] = unsafe {
            let first = tile * K::GROUPS + 2 * I as u32;
            let group = work_tile::group(params, first + lane / Group::ROWS as u32);
            let row = lane % Group::ROWS as u32;
            let is_there = row < group.n_rows();
            ballot((is_there && row_is_valid(&params.queries, group.start + row)) as u32)
        };
    });
    if lane == 0 {
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: the caller's promise.
        unsafe {
            store_shared_u32x4(shared.valid_rows(), [a, b, c, d]);
            store_shared_u32x4(shared.valid_rows() + 16, [e, f, g, h]);
        }
    }
}

/// Loads the query tile where a block has only one.
///
/// # Safety
/// One whole warp; the barriers as [`crate::sm90::persistent::forward`] sets them up.
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
pub(super) unsafe fn load_group(
    slab: u32,
    maps: Maps,
    column: u32,
    group: Group,
    lane: u32,
    barrier: u32,
) {
    if group.n_rows() > 0 {
        let place = slab + lane * GROUP_SLAB_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe { copy_tile(place, maps.queries, column, group.start, barrier) };
    }
}
