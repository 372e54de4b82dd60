//! MaxSim of up to 32 query rows with documents that lie one behind the other.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: queries on M, documents on N of `mma.sync`. The documents of a unit are one run of rows,
//! dealt out to the warps in chunks of 16, whatever documents they belong to. A warp has all 32 query
//! rows in registers.
//!
//! Pipeline:
//!  1. Each warp asks for its own chunks, as many ahead as its ring has stages, by one copy each: rows
//!     of 256 bytes lie together, so that there is no tensor map, and nobody to wait for.
//!  2. It multiplies what a chunk has of a document with the query rows and keeps the maxima per lane.
//!     Which element is which k of a product is nobody's business as long as both sides agree: lane
//!     (g, t) takes the 16-byte chunks t, 4 + t, 8 + t and 12 + t of its rows, as they lie.
//!  3. At a document's end lanes exchange maxima, and each of the 32 leaves that of one query row to
//!     the storing warp, in a small ring.
//!  4. The storing warp takes the maxima of all warps, adds the rows, and stores the score. It loads
//!     the query tiles, too.
//!
//! Budget: 64 registers of queries, 16 of sums, 16 of documents; a few chunks a warp on their way.
//! More of them make the first of every block, and the code itself, wait longer behind those of others.
//!
//! Known loss: eight lanes that read 64 bytes of two rows at a time meet half of the banks; that is
//! a third of what the products leave. Between two units of a block nothing is on its way.

use super::Ring;
use crate::layout::runs::*;
use crate::params::{ForwardParams, Group, RunParams, RunUnit, Segment};
use crate::ptx::barrier::{
    barrier_arrive_if, barrier_expect, barrier_fence, barrier_init, barrier_wait,
};
use crate::ptx::copy::copy_run;
use crate::ptx::math::max_nan;
use crate::ptx::matrix::Half;
use crate::ptx::memory::{
    dynamic_shared, load_shared_f32, load_shared_u32x4, load_u32, load_u32x4, store_shared_f32,
    store_u32,
};
use crate::ptx::thread::*;
use crate::ptx::warp::{broadcast, shuffle_xor_f32, sync_warp};
use crate::ptx::wide::{load_u32x2_if, shuffle};
use crate::reduce::{exchange, unroll};
use crate::work::{self, TokenPlace, row_is_valid, store_token};

/// Groups of a query tile.
const GROUPS: u32 = (QUERY_ROWS / Group::ROWS) as u32;
/// Rows of a chunk.
const ROWS: u32 = CHUNK_ROWS as u32;
/// Bytes of a row.
const BYTES: u32 = ROW_BYTES as u32;

/// Window addresses of the block's shared memory.
#[derive(Clone, Copy)]
struct Shared<const WARPS: usize, const STAGES: usize> {
    base: u32,
    warp: u32,
}

impl<const WARPS: usize, const STAGES: usize> Shared<WARPS, STAGES> {
    /// A chunk of the warp's ring.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.base + (self.warp * STAGES as u32 + slot) * CHUNK_BYTES as u32
    }

    /// The query tile.
    #[inline(always)]
    fn queries(&self) -> u32 {
        self.base + queries_offset(WARPS, STAGES) as u32
    }

    /// What a warp has found of a document, in a slot.
    #[inline(always)]
    fn maxima(&self, slot: u32, warp: u32) -> u32 {
        let first = self.base + maxima_offset(WARPS, STAGES) as u32;
        first + (slot * WARPS as u32 + warp) * MAXIMA_BYTES as u32
    }

    #[inline(always)]
    fn barriers(&self) -> u32 {
        self.base + barriers_offset(WARPS, STAGES) as u32
    }

    /// Completes when a stage of the warp's holds a chunk.
    #[inline(always)]
    fn full(&self, slot: u32) -> u32 {
        self.barriers() + 8 * (self.warp * STAGES as u32 + slot)
    }

    /// Completes when the query tile is there.
    #[inline(always)]
    fn query_full(&self) -> u32 {
        self.barriers() + 8 * (WARPS * STAGES) as u32
    }

    /// Completes when every warp has the query tile in registers.
    #[inline(always)]
    fn query_empty(&self) -> u32 {
        self.query_full() + 8
    }

    /// Completes when every warp has left its maxima in a slot.
    #[inline(always)]
    fn maxima_full(&self, slot: u32) -> u32 {
        self.query_full() + 8 * (2 + slot)
    }

    /// Completes when the maxima of a slot are read.
    #[inline(always)]
    fn maxima_empty(&self, slot: u32) -> u32 {
        self.maxima_full(SLOTS as u32) + 8 * slot
    }
}

/// The forward kernel of one row of the variant table.
///
/// # Safety
/// Launched with the row's threads and dynamic shared memory; `params` as [`RunParams`] says.
#[inline(always)]
pub unsafe fn forward<E: Half, const WARPS: usize, const STAGES: usize>(params: &RunParams) {
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole, and has one role; it sets up the barriers that it waits for first.
    // The broadcast tells the assembler that the number is the same in all lanes.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let shared = Shared::<WARPS, STAGES> { base: dynamic_shared(), warp };
        if warp == WARPS as u32 {
            return store(params, shared, lane);
        }
        multiply::<E, WARPS, STAGES>(params, shared, lane);
    }
}

/// The documents of a unit.
#[derive(Clone, Copy)]
struct Run {
    /// First entry.
    entry: u32,
    /// One past the last entry.
    entry_end: u32,
    /// First row.
    start: u32,
    /// One past the last row.
    end: u32,
}

impl Run {
    /// That of a unit. Few instructions: those before the first copy come out of memory, too.
    ///
    /// # Safety
    /// The unit must be of this launch; one whole warp.
    #[inline(always)]
    unsafe fn new(all: &RunParams, unit: u32) -> Run {
        if all.units != 0 {
            let address = all.units + u64::from(unit) * size_of::<RunUnit>() as u64;
            // SAFETY: the caller's promise.
            return unsafe {
                let [_, entry, entry_end, start] = load_u32x4(address);
                let end = load_u32(address + 16);
                Run { entry, entry_end, start: broadcast(start), end: broadcast(end) }
            };
        }
        let chunk = chunk(all, unit);
        let n_longer = chunk.min(all.n_longer_units);
        let is_longer = u32::from(chunk < all.n_longer_units);
        let tile = unit - chunk * all.n_tiles;
        let entry = tile * all.entry_stride + chunk * all.entries_per_unit + n_longer;
        let entry_end = entry + all.entries_per_unit + is_longer;
        let rows = all.item_len;
        Run { entry, entry_end, start: entry * rows, end: entry_end * rows }
    }
}

/// Query tile of a unit.
///
/// # Safety
/// The unit must be of this launch.
#[inline(always)]
unsafe fn tile_of(all: &RunParams, unit: u32) -> u32 {
    match (all.n_tiles, all.units) {
        (1, _) => all.first_tile,
        (n_tiles, 0) => unit - chunk(all, unit) * n_tiles,
        // SAFETY: the caller's promise.
        (_, units) => unsafe { load_u32(units + u64::from(unit) * size_of::<RunUnit>() as u64) },
    }
}

/// Which of its tile's units a computed unit is.
#[inline(always)]
fn chunk(all: &RunParams, unit: u32) -> u32 {
    match all.n_tiles {
        1 => unit,
        _ => ((u64::from(unit) * u64::from(all.n_tiles_inverse)) >> 32) as u32,
    }
}

/// Where documents end: of 32 entries, one in each lane.
struct Ends<'a> {
    params: &'a RunParams,
    entry_end: u32,
    first: u32,
    own: Segment,
    lane: u32,
}

impl<'a> Ends<'a> {
    /// Those of a run. They are asked for, not waited for.
    ///
    /// # Safety
    /// The run must be of this launch.
    #[inline(always)]
    unsafe fn new(params: &'a RunParams, run: Run, lane: u32) -> Self {
        let Run { entry: first, entry_end, .. } = run;
        let mut ends = Ends { params, entry_end, first, own: Segment { start: 0, len: 0 }, lane };
        // SAFETY: the caller's promise.
        unsafe { ends.load() };
        ends
    }

    #[inline(always)]
    unsafe fn load(&mut self) {
        let entry = self.first + self.lane;
        if self.params.segments == 0 {
            let len = self.params.item_len;
            self.own = Segment { start: entry * len, len };
            return;
        }
        let address = self.params.segments + u64::from(entry) * 8;
        // SAFETY: the launch has the entries of the run.
        let [start, len] = unsafe { load_u32x2_if(address, (entry < self.entry_end) as u32) };
        self.own = Segment { start, len };
    }

    /// The row behind the last of an entry, which follows the one asked for before, or is the run's
    /// first.
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    unsafe fn of(&mut self, entry: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            if entry - self.first == 32 {
                self.first = entry;
                self.load();
            }
            shuffle(self.own.start + self.own.len, entry - self.first)
        }
    }
}

/// A warp that multiplies.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn multiply<E: Half, const WARPS: usize, const STAGES: usize>(
    all: &RunParams,
    shared: Shared<WARPS, STAGES>,
    lane: u32,
) {
    // Rows from one chunk of the warp's to the next one.
    let stride = ROWS * WARPS as u32;
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for a
    // copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        let mut unit = block_idx_x();
        if shared.warp == 0 && all.query_len != 0 {
            // Before anything else: behind the documents of all blocks it would come late, and nothing is
            // multiplied until it is there.
            let n_bytes = all.query_len * BYTES;
            let address = all.queries + u64::from(tile_of(all, unit)) * u64::from(n_bytes);
            if lane == 0 {
                barrier_init(shared.query_full(), 1);
                barrier_fence();
                barrier_expect(shared.query_full(), n_bytes);
                copy_run(shared.queries(), address, n_bytes, shared.query_full());
            }
        }
        if lane == 0 {
            unroll!(I in 0..16 => {
                if I < STAGES {
                    barrier_init(shared.full(I as u32), 1);
                }
            });
            barrier_fence();
        }
        sync_warp();
        let (mut ring, mut slots) = (Ring::START, Ring::START);
        let mut parity = 0;
        // There are no more blocks than units.
        loop {
            let run = Run::new(all, unit);
            let mut ends = Ends::new(all, run, lane);
            let mut row = run.start + shared.warp * ROWS;
            let mut ahead = row;
            let mut slot = ring.slot;
            let mut i = 0;
            while i < STAGES as u32 && ahead < run.end {
                copy_chunk(all.documents, &shared, slot, ahead, run.end, lane);
                ahead += stride;
                slot = Ring { slot, parity: 0 }.next(STAGES as u32).slot;
                i += 1;
            }
            ahead = row + stride * STAGES as u32;
            if unit == block_idx_x() {
                // The storing warp has set up the other barriers.
                wait_threads(threads(WARPS) as u32);
            }
            let queries = Queries::load(&shared, parity, all.zero, lane);
            parity ^= 1;
            let mut chunk_end = (row + ROWS).min(run.end);
            let mut is_there = false;
            let mut entry = run.entry;
            while entry < run.entry_end {
                let document_end = ends.of(entry);
                let mut best = Best::NONE;
                while row < document_end {
                    let stop = document_end.min(chunk_end);
                    if !is_there {
                        barrier_wait(shared.full(ring.slot), ring.parity);
                        is_there = true;
                    }
                    let first = (row - run.start) % ROWS;
                    let c = queries.multiply::<E>(shared.stage(ring.slot) + first * BYTES, lane);
                    best.take(c, stop - row, lane);
                    row = stop;
                    if row == chunk_end {
                        sync_warp();
                        if ahead < run.end {
                            copy_chunk(all.documents, &shared, ring.slot, ahead, run.end, lane);
                            ahead += stride;
                        }
                        ring = ring.next(STAGES as u32);
                        is_there = false;
                        // Behind a short chunk, the run's last one, there is none.
                        row = if chunk_end == run.end { run.end } else { row + stride - ROWS };
                        chunk_end = (row + ROWS).min(run.end);
                    }
                }
                let most = best.exchange(lane);
                barrier_wait(shared.maxima_empty(slots.slot), slots.parity ^ 1);
                store_shared_f32(shared.maxima(slots.slot, shared.warp) + lane * 4, most);
                sync_warp();
                barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
                slots = slots.next(SLOTS as u32);
                entry += 1;
            }
            unit += grid_dim_x();
            if unit >= all.n_units {
                return;
            }
        }
    }
}

/// Asks for the warp's chunk of rows from `row` on, of a run up to `end`.
///
/// # Safety
/// One whole warp; the stage must be free to be overwritten.
#[inline(always)]
unsafe fn copy_chunk<const WARPS: usize, const STAGES: usize>(
    documents: u64,
    shared: &Shared<WARPS, STAGES>,
    slot: u32,
    row: u32,
    end: u32,
    lane: u32,
) {
    let n_bytes = (end - row).min(ROWS) * BYTES;
    let address = documents + u64::from(row) * u64::from(BYTES);
    // SAFETY: the caller's promise; the run has the rows.
    unsafe {
        if lane == 0 {
            barrier_expect(shared.full(slot), n_bytes);
            copy_run(shared.stage(slot), address, n_bytes, shared.full(slot));
        }
    }
}

/// A query tile, as a warp multiplies it: of each group and product of 16 elements the lane's
/// registers.
struct Queries([[[u32; 4]; 8]; GROUPS as usize]);

impl Queries {
    /// Waits for a unit's tile. What is loaded is not what is multiplied, but for a sum with `zero`: the
    /// assembler would else leave rows as they are loaded, and put a fragment's registers side by
    /// side anew for every product.
    ///
    /// # Safety
    /// One whole warp; the storing warp loads the tile of each unit.
    #[inline(always)]
    unsafe fn load<const WARPS: usize, const STAGES: usize>(
        shared: &Shared<WARPS, STAGES>,
        parity: u32,
        zero: u32,
        lane: u32,
    ) -> Queries {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut fragments: [[[u32; 4]; 8]; 2] = core::mem::zeroed();
            let mut seen = 0;
            barrier_wait(shared.query_full(), parity);
            let own = shared.queries() + lane / 4 * BYTES + lane % 4 * 16;
            unroll!(G in 0..2 => {
                unroll!(I in 0..4 => {
                    let upper = own + 16 * G as u32 * BYTES + 64 * I as u32;
                    let [a, b, c, d] = load_shared_u32x4(upper);
                    let [e, f, g, h] = load_shared_u32x4(upper + 8 * BYTES);
                    fragments[G][2 * I] = [a, e, b, f].map(|word| word + zero);
                    fragments[G][2 * I + 1] = [c, g, d, h].map(|word| word + zero);
                    seen |= a | e;
                });
            });
            sync_warp();
            // What overwrites the tile is a copy, which nothing keeps behind loads that are under way:
            // an arrival that does not depend on them let it overtake some of eight warps' (measured).
            let arrives = (lane == 0) as u32 | seen & zero;
            barrier_arrive_if(shared.query_empty(), arrives);
            Queries(fragments)
        }
    }

    /// The similarities of the 16 tokens whose rows start at `rows` in shared memory: of group `g`
    /// and tokens `8 n` and following, laid out as in [`crate::reduce`].
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    unsafe fn multiply<E: Half>(&self, rows: u32, lane: u32) -> Sums {
        let own = rows + lane / 4 * BYTES + lane % 4 * 16;
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut c: Sums = core::mem::zeroed();
            unroll!(I in 0..4 => {
                unroll!(N in 0..2 => {
                    let [x, y, z, w] =
                        load_shared_u32x4(own + 8 * N as u32 * BYTES + 64 * I as u32);
                    unroll!(G in 0..2 => {
                        let q = &self.0[G];
                        c[G][N] = E::multiply_add(c[G][N], q[2 * I], [x, y]);
                        c[G][N] = E::multiply_add(c[G][N], q[2 * I + 1], [z, w]);
                    });
                });
            });
            c
        }
    }
}

/// Similarities of a chunk: see [`Queries::multiply`].
type Sums = [[[f32; 4]; 2]; GROUPS as usize];

/// The maxima over a document so far: of the lane's two rows of each group.
struct Best([[f32; 2]; GROUPS as usize]);

impl Best {
    const NONE: Best = Best([[f32::NEG_INFINITY; 2]; GROUPS as usize]);

    /// Takes the first `n` of a chunk's tokens into account.
    #[inline(always)]
    fn take(&mut self, mut c: Sums, n: u32, lane: u32) {
        if n < ROWS {
            unroll!(N in 0..2 => {
                unroll!(J in 0..2 => {
                    let token = 2 * (lane % 4) + (8 * N + J) as u32;
                    unroll!(G in 0..2 => {
                        unroll!(R in 0..2 => {
                            let x = c[G][N][2 * R + J];
                            c[G][N][2 * R + J] = if token < n { x } else { f32::NEG_INFINITY };
                        });
                    });
                });
            });
        }
        unroll!(G in 0..2 => {
            unroll!(R in 0..2 => {
                let [a, b] = [0, 1].map(|n| max_nan(c[G][n][2 * R], c[G][n][2 * R + 1]));
                self.0[G][R] = max_nan(self.0[G][R], max_nan(a, b));
            });
        });
    }

    /// Exchanges maxima between the lanes that have the same rows, so that each lane ends with one:
    /// [`own_row`].
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    unsafe fn exchange(&self, lane: u32) -> f32 {
        let [[a, b], [c, d]] = self.0;
        // SAFETY: the caller's promise.
        unsafe { exchange::<2>(exchange::<1>(a, b, lane), exchange::<1>(c, d, lane), lane) }
    }
}

/// The group, and the row of it, that a lane ends with.
#[inline(always)]
fn own_row(lane: u32) -> (u32, u32) {
    (lane / 2 % 2, lane % 2 * 8 + lane / 4)
}

/// The warp that loads query tiles and stores scores.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn store<const WARPS: usize, const STAGES: usize>(
    all: &RunParams,
    shared: Shared<WARPS, STAGES>,
    lane: u32,
) {
    let params = &all.forward;
    // SAFETY: a tile is overwritten when all warps have it in registers; the others leave their
    // maxima of each entry of a unit in this order.
    unsafe {
        if lane == 0 {
            if all.query_len == 0 {
                barrier_init(shared.query_full(), 1);
            }
            barrier_init(shared.query_empty(), WARPS as u32);
            unroll!(I in 0..4 => {
                barrier_init(shared.maxima_full(I as u32), WARPS as u32);
                barrier_init(shared.maxima_empty(I as u32), 1);
            });
            barrier_fence();
        }
        sync_warp();
        let mut unit = block_idx_x();
        let mut run = Run::new(all, unit);
        let mut tile = Tile::new(all, tile_of(all, unit));
        if all.query_len == 0 {
            tile.load(all, &shared, lane);
        }
        arrive_threads(threads(WARPS) as u32);
        let (mut slots, mut parity) = (Ring::START, 0);
        loop {
            let results = Results::new(params, &tile, lane);
            unit += grid_dim_x();
            let mut next = run;
            if unit < all.n_units {
                next = Run::new(all, unit);
                barrier_wait(shared.query_empty(), parity);
                parity ^= 1;
                tile = Tile::new(all, tile_of(all, unit));
                tile.load(all, &shared, lane);
            }
            let mut entry = run.entry;
            while entry < run.entry_end {
                barrier_wait(shared.maxima_full(slots.slot), slots.parity);
                let mut most = load_shared_f32(shared.maxima(slots.slot, 0) + lane * 4);
                let mut warp = 1;
                while warp < WARPS as u32 {
                    let other = load_shared_f32(shared.maxima(slots.slot, warp) + lane * 4);
                    most = max_nan(most, other);
                    warp += 1;
                }
                sync_warp();
                barrier_arrive_if(shared.maxima_empty(slots.slot), (lane == 0) as u32);
                slots = slots.next(SLOTS as u32);
                results.store(params, entry, most, lane);
                entry += 1;
            }
            if unit >= all.n_units {
                return;
            }
            run = next;
        }
    }
}

/// The groups of a query tile.
#[derive(Clone, Copy)]
struct Tile([Group; GROUPS as usize]);

impl Tile {
    /// Those of a tile.
    ///
    /// # Safety
    /// The tile must be of this launch.
    #[inline(always)]
    unsafe fn new(params: &RunParams, index: u32) -> Tile {
        Tile([0, 1].map(|i| match params.query_len {
            // SAFETY: a tile has two groups.
            0 => unsafe { work::group(&params.forward, index * GROUPS + i) },
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
    unsafe fn load<const WARPS: usize, const STAGES: usize>(
        &self,
        params: &RunParams,
        shared: &Shared<WARPS, STAGES>,
        lane: u32,
    ) {
        // SAFETY: the caller's promise; groups have their rows.
        unsafe {
            if lane == 0 {
                let bytes = self.0.map(|group| group.n_rows() * BYTES);
                barrier_expect(shared.query_full(), bytes[0] + bytes[1]);
                unroll!(G in 0..2 => {
                    if bytes[G] > 0 {
                        let place = shared.queries() + G as u32 * CHUNK_BYTES as u32;
                        let row = u64::from(self.0[G].start);
                        let address = params.queries + row * u64::from(BYTES);
                        copy_run(place, address, bytes[G], shared.query_full());
                    }
                });
            }
        }
    }
}

/// Where the results of a query tile go. Found before the first one is there, since that takes longer
/// than to store them.
struct Results {
    /// Whether the query row that the lane has is a query token.
    is_valid: bool,
    /// Whether both groups are one query's.
    are_one: bool,
    /// Whether the lane stores a result.
    stores: bool,
    /// Its index for entry 0, which may be below 0.
    first: u32,
    results: u64,
    place: TokenPlace,
}

impl Results {
    /// # Safety
    /// One whole warp; the tile must be of this launch.
    #[inline(always)]
    unsafe fn new(params: &ForwardParams, tile: &Tile, lane: u32) -> Results {
        let [first, second] = tile.0;
        let are_one = first.query == second.query;
        let (group, row) = own_row(lane);
        let own = if group == 0 { first } else { second };
        // Lanes 0 and 2 have the groups' sums, lane 0 that of both.
        let stores = lane == 0 || lane == 2 && !are_one && second.query != Group::NO_QUERY;
        // SAFETY: the caller's promise; a group has its rows.
        unsafe {
            let mut place = TokenPlace::NONE;
            if params.token_scores != 0 && own.n_rows() > 0 {
                place = TokenPlace::new(params, own);
            }
            Results {
                is_valid: row < own.n_rows() && row_is_valid(&params.queries, own.start + row),
                are_one,
                stores,
                first: work::first_result(params, own),
                results: params.results,
                place,
            }
        }
    }

    /// Stores the maximum of each query token, and their sums.
    ///
    /// # Safety
    /// One whole warp together; the entry must be of this launch, and of the groups' queries.
    #[inline(always)]
    unsafe fn store(&self, params: &ForwardParams, entry: u32, most: f32, lane: u32) {
        // SAFETY: the caller's promise; only one lane has a query row, and stores a result.
        unsafe {
            if params.token_scores != 0 && self.is_valid {
                let (_, row) = own_row(lane);
                let index = self.place.index(params, entry) + u64::from(row);
                store_token(params, index, 0, most);
            }
            let mut sum = if self.is_valid { most } else { 0.0 };
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
