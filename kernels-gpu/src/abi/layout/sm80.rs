//! Geometry of the sm_80 kernels. `slabs` is the number of slabs of a document tile that lie in
//! a stage; 0 where stages hold one slab of the document tile and one of the query tile.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::params::Group;

/// Columns of a product that the last tile of a document skips or takes as a whole.
pub const TAIL_STEP: usize = 16;
/// Bytes of what a stage's loader says about it.
pub const WORDS_BYTES: usize = 16;

/// Query rows of a tile that every warp has.
pub const RESIDUAL_ROWS: usize = 2 * Group::ROWS;

/// Query rows per tile: each warp has `fragments` groups.
pub const fn query_tile(warps: usize, fragments: usize) -> usize {
    warps * fragments * Group::ROWS
}

/// Stages that a query tile passes through into registers: one holds as many rows of it as of a
/// document tile. Where slabs stream, one that is empty announces the tile.
pub const fn query_stages(query_tile: usize, document_tile: usize, slabs: usize) -> usize {
    match slabs {
        0 => 1,
        _ => query_tile.div_ceil(document_tile),
    }
}

/// Bytes of one ring stage.
pub const fn stage_bytes(query_tile: usize, document_tile: usize, slabs: usize) -> usize {
    match slabs {
        0 => (document_tile + query_tile) * SLAB_BYTES,
        slabs => document_tile * slabs * SLAB_BYTES,
    }
}

/// Offset of the groups' sums, one set per stage, behind the ring.
pub const fn sums_offset(
    query_tile: usize,
    document_tile: usize,
    slabs: usize,
    stages: usize,
) -> usize {
    stages * stage_bytes(query_tile, document_tile, slabs)
}

/// Offset of what the stages hold, four words each.
pub const fn words_offset(
    query_tile: usize,
    document_tile: usize,
    slabs: usize,
    stages: usize,
) -> usize {
    sums_offset(query_tile, document_tile, slabs, stages)
        + (stages * (query_tile / Group::ROWS) * 4).next_multiple_of(WORDS_BYTES)
}

/// Dynamic shared memory.
pub const fn shared_bytes(
    query_tile: usize,
    document_tile: usize,
    slabs: usize,
    stages: usize,
) -> usize {
    words_offset(query_tile, document_tile, slabs, stages) + stages * WORDS_BYTES
}
