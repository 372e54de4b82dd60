//! Which tiles a block works on: units, entries and documents (see [`crate::params`]).

use core::hint::assert_unchecked;

use crate::params::{ForwardParams, Matrix, Segment};
use crate::ptx::memory::{load_u8, load_u32, load_u32x2, load_u64, store_u16, store_u32};

/// One query tile against a run of entries of its query.
#[derive(Clone, Copy)]
pub struct Work {
    /// Index of the query.
    pub query: u32,
    /// The query's rows.
    pub rows: Segment,
    /// First row of the tile within the query.
    pub tile_row: u32,
    /// Index of the query tile among all.
    pub tile: u32,
    /// First entry.
    pub entry: u32,
    /// One past the last entry.
    pub entry_end: u32,
}

/// Unit `unit` of this launch.
///
/// # Safety
/// `params` must describe a launch as [`ForwardParams`] says, with `unit < n_units`.
#[inline(always)]
pub unsafe fn unit(params: &ForwardParams, unit: u32) -> Work {
    let explicit = params.units != 0;
    let (tile, mut range, chunk);
    if explicit {
        let address = params.units + u64::from(unit) * 12;
        // SAFETY: three words per explicit unit.
        unsafe {
            tile = load_u32(address);
            range = [load_u32(address + 4), load_u32(address + 8)];
        }
        chunk = 0;
    } else {
        // SAFETY: a launch with computed units has query tiles.
        unsafe { assert_unchecked(params.n_tiles != 0) };
        tile = params.tile_base + unit % params.n_tiles;
        chunk = unit / params.n_tiles;
        range = [0, 0];
    }
    // SAFETY: eight bytes per query tile and per segment.
    let ([query, tile_row], rows) = unsafe {
        let tile = load_u32x2(params.query_tiles + u64::from(tile) * 8);
        (tile, segment(&params.queries, tile[0]))
    };
    if !explicit {
        let first = query * params.entries_per_query;
        let begin = first.max(params.entry_base) + chunk * params.entries_per_unit;
        let end = (first + params.entries_per_query).min(params.entry_end);
        range = [begin.min(end), (begin + params.entries_per_unit).min(end)];
    }
    Work { query, rows, tile_row, tile, entry: range[0], entry_end: range[1] }
}

/// The rows of item `item` of a matrix.
///
/// # Safety
/// The matrix must have the item.
#[inline(always)]
pub unsafe fn segment(matrix: &Matrix, item: u32) -> Segment {
    // SAFETY: eight bytes per item.
    let [start, len] = unsafe { load_u32x2(matrix.segments + u64::from(item) * 8) };
    Segment { start, len }
}

/// The document rows of entry `entry` of query `query`.
///
/// # Safety
/// The entry must belong to the query.
#[inline(always)]
pub unsafe fn document(params: &ForwardParams, query: u32, entry: u32) -> Segment {
    let mut document = entry - query * params.document_stride;
    // SAFETY: four bytes per entry; document ids were checked on the host.
    unsafe {
        if params.entry_document != 0 {
            document = load_u32(params.entry_document + u64::from(entry) * 4);
        }
        segment(&params.documents, document)
    }
}

/// Whether the mask, where there is one, leaves row `row` of a matrix valid.
///
/// # Safety
/// The matrix must have the row.
#[inline(always)]
pub unsafe fn row_is_valid(matrix: &Matrix, row: u32) -> bool {
    // SAFETY: one byte per row.
    matrix.mask == 0 || unsafe { load_u8(matrix.mask + u64::from(row)) } != 0
}

/// Score index of an entry.
///
/// # Safety
/// The entry must exist.
#[inline(always)]
unsafe fn score_index(params: &ForwardParams, entry: u32) -> u32 {
    match params.entry_score {
        0 => entry,
        // SAFETY: four bytes per entry.
        scores => unsafe { load_u32(scores + u64::from(entry) * 4) },
    }
}

/// Stores the sum over a query tile's rows: a score, or a partial sum of one.
///
/// # Safety
/// The entry must belong to this launch, and only one thread may store it.
#[inline(always)]
pub unsafe fn store_sum(
    params: &ForwardParams,
    query_tile: u32,
    work: &Work,
    entry: u32,
    sum: f32,
) {
    // SAFETY: the host sized the results for every entry (and tile) of the launch.
    unsafe {
        let index = if params.partial_stride == 0 {
            u64::from(score_index(params, entry))
        } else {
            u64::from(work.tile_row / query_tile) * params.partial_stride
                + u64::from(entry - params.entry_base)
        };
        store_u32(params.results + index * 4, sum.to_bits());
    }
}

/// Index of an entry's first query token in the pair-major outputs.
///
/// # Safety
/// The entry must belong to the work, and pair-major outputs must be asked for.
#[inline(always)]
pub unsafe fn token_base(params: &ForwardParams, work: &Work, entry: u32) -> u64 {
    // SAFETY: eight bytes per query, or per score.
    unsafe {
        if params.query_token_base != 0 {
            let first = work.query * params.entries_per_query;
            load_u64(params.query_token_base + u64::from(work.query) * 8)
                + u64::from(entry - first) * u64::from(work.rows.len)
        } else {
            load_u64(params.score_token_base + u64::from(score_index(params, entry)) * 8)
        }
    }
}

/// Stores one query token's winner and token score, where they are asked for.
///
/// # Safety
/// `index` must be an index of the pair-major outputs that only this thread stores.
#[inline(always)]
pub unsafe fn store_token(params: &ForwardParams, index: u64, winner: i32, score: f32) {
    // SAFETY: the host sized the outputs for every query token of every entry.
    unsafe {
        if params.token_scores != 0 {
            store_u32(params.token_scores + index * 4, score.to_bits());
        }
        if params.winners != 0 {
            if params.winner_bytes == 2 {
                store_u16(params.winners + index * 2, winner as u32);
            } else {
                store_u32(params.winners + index * 4, winner as u32);
            }
        }
    }
}
