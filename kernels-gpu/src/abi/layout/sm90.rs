//! Geometry of the sm_90a kernels. `query_tile` is the number of query rows per tile, `slabs` the
//! number of query slabs that stay in shared memory: 0 where they stream along with the
//! documents', `parts` the number of parts that elements are split into.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::params::Group;

/// Rows of a wgmma fragment; a consumer warpgroup owns one or two.
pub const FRAGMENT_ROWS: usize = 64;
/// Document tokens per tile: N of the wgmma instruction.
pub const DOCUMENT_TILE: usize = 128;
/// Bytes of a row that one wgmma instruction multiplies.
pub const STEP_BYTES: usize = 32;
/// Such products of a slab.
pub const SLAB_STEPS: usize = SLAB_BYTES / STEP_BYTES;
/// Bytes of one slab of a document tile.
pub const DOCUMENT_SLAB_BYTES: usize = DOCUMENT_TILE * SLAB_BYTES;
/// Bytes of one slab of a group's rows: what one TMA instruction copies of a query, and of
/// a document's end.
pub const GROUP_SLAB_BYTES: usize = Group::ROWS * SLAB_BYTES;
/// Sums of a group that consumers pass to the storing warp to add: one for each two of its rows.
pub const GROUP_SUMS: usize = Group::ROWS / 2;
/// Bytes of them.
pub const GROUP_SUMS_BYTES: usize = 4 * GROUP_SUMS;
/// Units in flight between the warp that loads documents and the others.
pub const UNIT_SLOTS: usize = 4;
/// Bytes of what a slot says of its unit.
pub const UNIT_BYTES: usize = 32;
/// Bytes of the scales of a tile's columns.
pub const SCALES_BYTES: usize = DOCUMENT_TILE * 4;
/// Bytes of a tile's column mask.
pub const MASK_BYTES: usize = DOCUMENT_TILE / 8;
/// The swizzle needs tiles aligned to this.
pub const TILE_ALIGN: usize = 1024;
/// High word of a wgmma descriptor: rows of 128 bytes, groups of 8 rows 1024 bytes apart (64 units
/// of 16 bytes in bits 32 to 45), swizzle mode 1 in bits 62 and 63.
pub const DESCRIPTOR_HIGH: u32 = 0x4000_0040;

/// Consumers of kernels whose documents are the rows of products.
pub const SWAP_AB_CONSUMERS: usize = 4;
/// Pairs of these consumers, each with a half of the ring.
pub const PAIRS: usize = 2;
/// Warps of a pair of consumers.
pub const PAIR_WARPS: usize = 4 * SWAP_AB_CONSUMERS / PAIRS;
/// Bytes of a pair's stage: half a tile.
pub const PAIR_STAGE_BYTES: usize = DOCUMENT_SLAB_BYTES / PAIRS;
/// Bytes of the scales of its rows.
pub const PAIR_SCALES_BYTES: usize = SCALES_BYTES / PAIRS;
/// Bytes of a stage's words: what a pair's producer publishes beside the tile.
pub const PAIR_WORDS_BYTES: usize = 16;
/// Documents of a pair whose maxima are in flight.
pub const PAIR_SLOTS: usize = 2;
/// Bytes that one warp of a pair of consumers stores of a document: the maxima of 128 query rows.
pub const MAXIMA_BYTES: usize = 4 * 128;
/// Bytes of the sums of a document's groups, and of the words beside them.
pub const PAIR_SUMS_BYTES: usize = 128;

/// Whether the last tile of a document may be this wide: any multiple of the step up to 64,
/// above it multiples of 32. Finding winners halves the columns again and again.
pub const fn has_width(tail_step: usize, winners: bool, width: usize) -> bool {
    width.is_multiple_of(tail_step)
        && (width <= 64 || width.is_multiple_of(32))
        && (!winners || width.is_power_of_two())
}

/// The width of a last tile of `len` tokens (1 to 128).
pub const fn tail_width(tail_step: usize, winners: bool, len: usize) -> usize {
    let mut width = 16;
    while width < len || !has_width(tail_step, winners, width) {
        width += 16;
    }
    width
}

/// Warpgroups that decode residual-compressed documents.
pub const DECODERS: usize = 2;

/// Threads of a CTA: one warpgroup that loads and stores, and the consumers.
pub const fn threads(consumers: usize) -> usize {
    128 * (1 + consumers)
}

/// Threads of a CTA that has decoders, too.
pub const fn decoding_threads(consumers: usize) -> usize {
    threads(consumers) + 128 * DECODERS
}

/// Query rows per tile.
pub const fn query_tile(consumers: usize, fragments: usize) -> usize {
    consumers * fragments * FRAGMENT_ROWS
}

/// Bytes of one slab of the query tile.
pub const fn query_slab_bytes(query_tile: usize) -> usize {
    query_tile * SLAB_BYTES
}

/// Parts of elements that may be split.
pub const fn parts(splits: bool) -> usize {
    if splits { 2 } else { 1 }
}

/// Bytes of one ring stage: one slab of a document tile and, where queries stream, of the
/// query tile behind it, in each part.
pub const fn stage_bytes(query_tile: usize, slabs: usize, parts: usize) -> usize {
    parts
        * match slabs {
            0 => DOCUMENT_SLAB_BYTES + query_slab_bytes(query_tile),
            _ => DOCUMENT_SLAB_BYTES,
        }
}

/// Rows that one copy brings of a whole tile's slab where units end within documents: both halves
/// of as many rows come out of the memory together.
pub const STREAM_K_BOX_ROWS: usize = 32;

/// Documents whose sums are in flight: as many as fit beside the ring, up to four.
pub const fn sum_slots(query_tile: usize) -> usize {
    if query_tile > 128 { 2 } else { 4 }
}

/// Offset of the ring behind the resident query slabs.
pub const fn ring_offset(query_tile: usize, slabs: usize) -> usize {
    slabs * query_slab_bytes(query_tile)
}

/// Offset of the column masks, one per stage.
pub const fn masks_offset(query_tile: usize, slabs: usize, stages: usize, parts: usize) -> usize {
    ring_offset(query_tile, slabs) + stages * stage_bytes(query_tile, slabs, parts)
}

/// Offset of the mbarriers: full and empty per stage, for the query tile, per slot of sums
/// and of units; landed per stage where elements are split.
pub const fn barriers_offset(
    query_tile: usize,
    slabs: usize,
    stages: usize,
    parts: usize,
) -> usize {
    masks_offset(query_tile, slabs, stages, parts) + stages * MASK_BYTES
}

/// Room for mbarriers, an even number.
const fn n_barriers(query_tile: usize, stages: usize, parts: usize) -> usize {
    let rings = stages + 1 + sum_slots(query_tile) + UNIT_SLOTS;
    (2 * rings + (parts - 1) * stages).next_multiple_of(2)
}

/// Offset of the groups' sums, in slots.
pub const fn sums_offset(query_tile: usize, slabs: usize, stages: usize, parts: usize) -> usize {
    barriers_offset(query_tile, slabs, stages, parts) + 8 * n_barriers(query_tile, stages, parts)
}

/// Offset of the units, in slots.
pub const fn units_offset(query_tile: usize, slabs: usize, stages: usize, parts: usize) -> usize {
    let slot_bytes = query_tile / Group::ROWS * GROUP_SUMS_BYTES;
    sums_offset(query_tile, slabs, stages, parts) + sum_slots(query_tile) * slot_bytes
}

/// Offset of the scales of a tile's columns, one set per stage, where tokens are codes or decoded.
pub const fn scales_offset(query_tile: usize, slabs: usize, stages: usize, parts: usize) -> usize {
    units_offset(query_tile, slabs, stages, parts) + UNIT_SLOTS * UNIT_BYTES
}

/// Offset of documents' maxima, in slots, where documents are the rows of products.
pub const fn maxima_offset(query_tile: usize, slabs: usize, stages: usize, parts: usize) -> usize {
    scales_offset(query_tile, slabs, stages, parts) + stages * SCALES_BYTES
}

/// Bytes of the barriers of kernels that find what rows are normalised by, behind the scales.
pub const fn norm_barriers_bytes(stages: usize) -> usize {
    8 * stages
}

/// Dynamic shared memory. Its start is declared to be aligned to [`TILE_ALIGN`]: there is no room
/// to align it in, which would cost a stage where two blocks share a multiprocessor.
pub const fn shared_bytes(
    query_tile: usize,
    slabs: usize,
    stages: usize,
    parts: usize,
    has_scales: bool,
    is_turned: bool,
) -> usize {
    match (has_scales, is_turned) {
        (false, _) => scales_offset(query_tile, slabs, stages, parts),
        (true, false) => maxima_offset(query_tile, slabs, stages, parts),
        (true, true) => {
            // And, behind the slots, the query rows' scales and a word for each thread, which take
            // as much as six warps store, a bit for each row, and of slots and stages their words
            // and two barriers.
            let n_slots = PAIRS * PAIR_SLOTS;
            maxima_offset(query_tile, slabs, stages, parts)
                + (PAIR_WARPS * n_slots + 6) * MAXIMA_BYTES
                + query_tile / 8
                + n_slots * (PAIR_SUMS_BYTES + 16)
                + PAIRS * stages * (PAIR_WORDS_BYTES + 16)
        }
    }
}
