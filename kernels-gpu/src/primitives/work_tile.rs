//! The work of a CTA: units, entries and documents (see [`crate::abi::params`]).

#[cfg(maxsim_arch = "sm_90a")]
use crate::abi::params::UnitStart;
use crate::abi::params::{ForwardParams, Group, Matrix, Segment, Unit, divide};
#[cfg(maxsim_arch = "sm_90a")]
use crate::primitives::unroll::unroll;
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::atomic::{add_u32, add_u32_in_order, fence_device};
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::global::load_f32;
use crate::ptx::global::{load_u8, load_u32, load_u32x2, load_u32x4, store_u32};
#[cfg(maxsim_arch = "sm_80")]
use crate::ptx::thread::{block_idx_x, grid_dim_x};
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::warp::{broadcast, sync_warp};
#[cfg(maxsim_arch = "sm_90a")]
use core::hint::assert_unchecked;

/// One query tile against a run of entries.
#[derive(Clone, Copy)]
pub struct Work {
    /// Index of the unit.
    pub unit: u32,
    /// Index of the query tile.
    pub tile: u32,
    /// First entry.
    pub entry: u32,
    /// One past the last entry.
    pub entry_end: u32,
    /// Rows of the first document, where they are known.
    pub first: Option<Segment>,
}

/// The units of this block, one after the other.
#[cfg(maxsim_arch = "sm_80")]
pub struct Units<'a> {
    params: &'a ForwardParams,
    unit: u32,
}

#[cfg(maxsim_arch = "sm_80")]
impl<'a> Units<'a> {
    /// The block's units.
    #[inline(always)]
    pub fn new(params: &'a ForwardParams) -> Self {
        Units { params, unit: block_idx_x() }
    }

    /// The next unit. `n_groups` is the number of groups of a tile.
    ///
    /// # Safety
    /// `params` must describe a launch as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn next(&mut self, n_groups: u32) -> Option<Work> {
        if self.unit >= self.params.n_units {
            return None;
        }
        // SAFETY: the unit exists.
        let work = unsafe { unit(self.params, self.unit, n_groups) };
        self.unit += grid_dim_x();
        Some(work)
    }
}

/// Unit `unit` of this launch.
///
/// # Safety
/// `params` must describe a launch as [`ForwardParams`] says, with `unit < n_units`.
#[inline(always)]
pub unsafe fn unit(params: &ForwardParams, unit: u32, n_groups: u32) -> Work {
    // SAFETY: the caller's promise.
    let tile = unsafe { tile(params, unit) };
    if params.units != 0 {
        let address = params.units + u64::from(unit) * size_of::<Unit>() as u64;
        // SAFETY: five words per explicit unit.
        return unsafe {
            let first = Segment { start: load_u32(address + 12), len: load_u32(address + 16) };
            Work {
                unit,
                tile,
                entry: load_u32(address + 4),
                entry_end: load_u32(address + 8),
                first: Some(first),
            }
        };
    }
    let chunk = divide(unit, params.n_tiles, params.n_tiles_inverse);
    // SAFETY: two neighbours of the list of starts.
    unsafe {
        if params.unit_starts != 0 {
            let address = params.unit_starts + u64::from(chunk) * 16;
            let [entry, start, len, _] = load_u32x4(address);
            let first = Some(Segment { start, len });
            return Work { unit, tile, entry, entry_end: load_u32(address + 16), first };
        }
    }
    let first = match params.entry_stride {
        0 => 0,
        // SAFETY: the tile has a first group.
        stride => (unsafe { query(params, tile, n_groups) }) * stride,
    };
    let end = (first + params.entries_per_query).min(params.entry_end);
    let n_longer = chunk.min(params.n_longer_units);
    let entry = first.max(params.entry_base)
        + chunk * params.entries_per_unit
        + n_longer * params.longer_by;
    let is_longer = chunk < params.n_longer_units;
    let n_entries = params.entries_per_unit + if is_longer { params.longer_by } else { 0 };
    Work { unit, tile, entry, entry_end: (entry + n_entries).min(end), first: None }
}

/// Start of unit `unit` of each tile of a launch, which has starts of units; the unit behind the
/// last starts behind the last document.
///
/// # Safety
/// As [`unit`], or for the unit behind the last.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn unit_start(params: &ForwardParams, unit: u32) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe { load_u32x4(params.unit_starts + u64::from(unit) * size_of::<UnitStart>() as u64) }
}

/// Query tile of unit `unit` of this launch.
///
/// # Safety
/// As [`unit`].
#[inline(always)]
pub unsafe fn tile(params: &ForwardParams, unit: u32) -> u32 {
    match params.units {
        0 => {
            let chunk = divide(unit, params.n_tiles, params.n_tiles_inverse);
            params.tile_base + unit - chunk * params.n_tiles
        }
        // SAFETY: five words per explicit unit, of which the tile is the first.
        units => unsafe { load_u32(units + u64::from(unit) * size_of::<Unit>() as u64) },
    }
}

/// The query that has the rows of a tile.
///
/// # Safety
/// The tile must hold rows of one query only.
#[inline(always)]
pub unsafe fn query(params: &ForwardParams, tile: u32, n_groups: u32) -> u32 {
    match params.tiles_per_query {
        // SAFETY: a tile has this many groups.
        0 => unsafe { group(params, tile * n_groups).query },
        tiles_per_query => divide(tile, tiles_per_query, params.tiles_per_query_inverse),
    }
}

/// Group `index` of the list.
///
/// # Safety
/// The list must have it.
#[inline(always)]
pub unsafe fn group(params: &ForwardParams, index: u32) -> Group {
    // SAFETY: the caller's promise.
    unsafe { group_at(params.groups, index) }
}

/// Group `index` of the list at an address.
///
/// # Safety
/// The list must have it.
#[inline(always)]
pub unsafe fn group_at(groups: u64, index: u32) -> Group {
    // SAFETY: 16 bytes per group.
    let [query, start, row, rows_and_part] = unsafe { load_u32x4(groups + u64::from(index) * 16) };
    Group { query, start, row, rows_and_part }
}

/// The rows of item `item` of a matrix.
///
/// # Safety
/// The matrix must have the item.
#[inline(always)]
pub unsafe fn segment(matrix: &Matrix, item: u32) -> Segment {
    if matrix.segments == 0 {
        return Segment { start: item * matrix.item_len, len: matrix.item_len };
    }
    // SAFETY: eight bytes per item.
    let [start, len] = unsafe { load_u32x2(matrix.segments + u64::from(item) * 8) };
    Segment { start, len }
}

/// The document rows of entry `entry`.
///
/// # Safety
/// The entry must exist.
#[inline(always)]
pub unsafe fn document(params: &ForwardParams, entry: u32) -> Segment {
    // SAFETY: four bytes per entry; document ids were checked on the host.
    unsafe {
        let document = match params.entry_document {
            0 => entry,
            list => load_u32(list + u64::from(entry) * 4),
        };
        segment(&params.documents, document)
    }
}

/// Whether row `row` of a matrix is valid by the mask, where there is one.
///
/// # Safety
/// The matrix must have the row.
#[inline(always)]
pub unsafe fn row_is_valid(matrix: &Matrix, row: u32) -> bool {
    // SAFETY: one byte per row.
    matrix.mask == 0 || unsafe { load_u8(matrix.mask + u64::from(row)) } != 0
}

/// The weight of row `row` of a group: 1 where query tokens have none, or the row is no query
/// token.
///
/// # Safety
/// The group must be of this launch.
#[inline(always)]
pub unsafe fn query_weight(params: &ForwardParams, group: Group, row: u32) -> f32 {
    if (params.query_weights == 0) | (row >= group.n_rows()) {
        return 1.0;
    }
    let row = group.start + row;
    // SAFETY: the group has the row, and there are four bytes for each.
    unsafe {
        match row_is_valid(&params.queries, row) {
            true => load_weight(params.query_weights, row),
            false => 1.0,
        }
    }
}

/// The weight of row `row` of the queries' matrix; 1 where query tokens have none.
///
/// # Safety
/// The matrix must have the row.
#[inline(always)]
pub unsafe fn load_weight(weights: u64, row: u32) -> f32 {
    match weights {
        0 => 1.0,
        // SAFETY: four bytes per row.
        weights => f32::from_bits(unsafe { load_u32(weights + u64::from(row) * 4) }),
    }
}

/// Score index of an entry of a query.
///
/// # Safety
/// The entry must exist.
#[inline(always)]
pub(super) unsafe fn score_index(params: &ForwardParams, entry: u32) -> u32 {
    match params.entry_score {
        0 => entry,
        // SAFETY: four bytes per entry.
        scores => unsafe { load_u32(scores + u64::from(entry) * 4) },
    }
}

/// Stores the sum over the rows that a tile has of a query: a score, or a part of one.
///
/// # Safety
/// The entry must belong to this launch, and only one thread may store it.
#[inline(always)]
pub unsafe fn store_sum(params: &ForwardParams, group: Group, entry: u32, sum: f32) {
    // SAFETY: the host sized the results for every entry (and part) of the launch.
    unsafe {
        let index = if params.is_partial == 0 && params.entry_score != 0 {
            u64::from(score_index(params, entry))
        } else {
            result_index(params, group.part(), group.query, entry)
        };
        store_u32(params.results + index * 4, sum.to_bits());
    }
}

/// Index of the result of a group's query and entry 0, as for [`result_index`]: further entries
/// follow. Wraps where that is not of this launch.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn first_result(params: &ForwardParams, group: Group) -> u32 {
    result_index(params, group.part(), group.query, 0) as u32
}

/// Index of a result that is no score with a list. Results are fewer than 2³² (scores fewer than
/// 2³¹, partial sums what the workspace holds), so the sums may wrap on the way.
#[inline(always)]
fn result_index(params: &ForwardParams, part: u32, query: u32, entry: u32) -> u64 {
    let index = (part * params.part_stride + query * params.query_stride + entry)
        .wrapping_sub(params.origin);
    u64::from(index)
}

/// Counts a unit of partial sums; the warp that counts the last part of these entries adds the
/// parts in their order and stores the scores.
///
/// # Safety
/// One whole warp, which has stored the unit's partial sums; there must be counters.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn count_part(params: &ForwardParams, work: &Work, query: u32, lane: u32) {
    // SAFETY: the host has a counter per `n_parts` units; partial sums of other blocks were
    // stored and fenced before they were counted; the whole warp is here.
    unsafe {
        assert_unchecked(params.n_parts != 0);
        let counter = params.counters + u64::from(work.unit / params.n_parts) * 4;
        fence_device();
        sync_warp();
        let mut n_before = 0;
        if lane == 0 {
            n_before = add_u32(counter, 1);
        }
        if broadcast(n_before) + 1 < params.n_parts {
            return;
        }
        // Make the order that lane 0 has seen in the counter hold for all lanes, and for their next
        // loads.
        sync_warp();
        fence_device();
        let mut entry = work.entry + lane;
        while entry < work.entry_end {
            let mut sum = 0.0;
            let mut part = 0;
            while part < params.n_parts {
                let index = result_index(params, part, query, entry);
                sum += load_f32(params.results + index * 4);
                part += 1;
            }
            let score = match params.entry_score {
                0 => query * params.score_stride + entry,
                _ => score_index(params, entry),
            };
            store_u32(params.scores + u64::from(score) * 4, sum.to_bits());
            entry += 32;
        }
        if lane == 0 {
            store_u32(counter, 0);
        }
    }
}

/// Counts a part as [`count_part`] does, for a block's only unit. Unless `is_real` nothing is
/// counted and nothing stored: the code, which a block runs once, at its end, is then in the
/// instruction caches when it is needed.
///
/// # Safety
/// As [`count_part`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn count_unit(params: &ForwardParams, work: &Work, query: u32, is_real: u32, lane: u32) {
    // SAFETY: as there; what lane 0 has released and acquired by counting holds for all lanes that
    // it has met before, and meets next.
    unsafe {
        assert_unchecked(params.n_parts != 0);
        let counter = params.counters + u64::from(work.unit / params.n_parts) * 4;
        sync_warp();
        let mut n_before = 0;
        if lane == 0 {
            n_before = add_u32_in_order(counter, is_real);
        }
        if broadcast(n_before) + 1 < params.n_parts * is_real {
            return;
        }
        sync_warp();
        let mut entry = work.entry + lane;
        while entry < work.entry_end {
            let mut sum = 0.0;
            let mut part = 0;
            while part < params.n_parts {
                // Four at once: one after the other would take as many times as long as memory
                // answers.
                let mut parts = [0.0; 4];
                unroll!(I in 0..4 => {
                    if part + (I as u32) < params.n_parts {
                        let index = result_index(params, part + I as u32, query, entry);
                        parts[I] = load_f32(params.results + index * 4);
                    }
                });
                unroll!(I in 0..4 => {
                    if part + (I as u32) < params.n_parts {
                        sum += parts[I];
                    }
                });
                part += 4;
            }
            let score = match params.entry_score {
                0 => query * params.score_stride + entry,
                _ => score_index(params, entry),
            };
            if is_real != 0 {
                store_u32(params.scores + u64::from(score) * 4, sum.to_bits());
            }
            entry += 32;
        }
        if lane == 0 && is_real != 0 {
            store_u32(counter, 0);
        }
    }
}
