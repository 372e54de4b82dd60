//! Shared-memory geometry: every size, offset and swizzle, stated once.
//!
//! Token rows are cut into *slabs* of 128 bytes (64 half-precision or 32 single-
//! precision elements). A tile in shared memory is slab-major, `[slab][row][128 B]`,
//! and the 16-byte chunks of a row are permuted so that column accesses meet every
//! bank: chunk `c` of row `r` lies at chunk `c ^ (r % 8)`. TMA's and wgmma's
//! 128-byte swizzle is this same permutation of 1024-byte aligned tiles.

/// Bytes of a slab row.
pub const SLAB_BYTES: usize = 128;

/// Bytes of a chunk: what one `cp.async` or one `ldmatrix` row moves.
pub const CHUNK_BYTES: usize = 16;

/// Number of slabs that hold `dim` elements.
pub const fn slabs(dim: usize, element_bytes: usize) -> usize {
    (dim * element_bytes).div_ceil(SLAB_BYTES)
}

/// Byte offset of chunk `chunk` (0 to 7) of row `row` within a slab.
pub const fn chunk_offset(row: u32, chunk: u32) -> u32 {
    row * SLAB_BYTES as u32 + ((chunk ^ (row & 7)) * CHUNK_BYTES as u32)
}

/// Geometry of the sm_80 kernels.
pub mod sm80 {
    use super::SLAB_BYTES;

    /// Query rows per warp: one `m16n8k16` fragment.
    pub const QUERY_ROWS_PER_WARP: usize = 16;
    /// Document tokens per tile.
    pub const DOCUMENT_TILE: usize = 64;

    /// Bytes of one ring stage: one slab of a document tile.
    pub const fn stage_bytes(document_tile: usize) -> usize {
        document_tile * SLAB_BYTES
    }

    /// Dynamic shared memory: resident query tile, ring, one f32 per warp for row sums.
    pub const fn shared_bytes(
        query_tile: usize,
        document_tile: usize,
        slabs: usize,
        stages: usize,
    ) -> usize {
        query_tile * slabs * SLAB_BYTES + stages * stage_bytes(document_tile) + 32
    }
}

/// Geometry of the sm_90a kernels. `query_tile` is the number of query rows per tile.
pub mod sm90 {
    use super::SLAB_BYTES;

    /// Consumer warpgroups.
    pub const CONSUMERS: usize = 2;
    /// Rows of a wgmma fragment; a consumer warpgroup owns one or two.
    pub const FRAGMENT_ROWS: usize = 64;
    /// Document tokens per tile: N of the wgmma instruction.
    pub const DOCUMENT_TILE: usize = 128;
    /// Rows that one TMA instruction copies, of queries and of documents alike.
    pub const BOX_ROWS: usize = 128;
    /// Elements of a slab row, which is what one TMA instruction copies of a token.
    pub const BOX_ELEMENTS: usize = 64;
    /// One producer warpgroup and the consumers.
    pub const THREADS: usize = 128 * (1 + CONSUMERS);
    /// Bytes of one ring stage: one slab of a document tile.
    pub const STAGE_BYTES: usize = DOCUMENT_TILE * SLAB_BYTES;
    /// Row sums in flight between consumers and the warp that stores scores.
    pub const SUM_SLOTS: usize = 4;
    /// Consumer warps, each with one partial row sum per slot.
    pub const CONSUMER_WARPS: usize = 4 * CONSUMERS;
    /// The swizzle needs tiles aligned to this.
    pub const TILE_ALIGN: usize = 1024;

    /// Query rows per tile.
    pub const fn query_tile(fragments: usize) -> usize {
        CONSUMERS * FRAGMENT_ROWS * fragments
    }

    /// Bytes of one slab of the query tile.
    pub const fn query_slab_bytes(query_tile: usize) -> usize {
        query_tile * SLAB_BYTES
    }

    /// Offset of the ring behind the query tile.
    pub const fn ring_offset(query_tile: usize, slabs: usize) -> usize {
        slabs * query_slab_bytes(query_tile)
    }

    /// Offset of the mbarriers: full and empty per stage, full and empty for the query
    /// tile, full and empty per sum slot.
    pub const fn barriers_offset(query_tile: usize, slabs: usize, stages: usize) -> usize {
        ring_offset(query_tile, slabs) + stages * STAGE_BYTES
    }

    /// Offset of the partial row sums.
    pub const fn sums_offset(query_tile: usize, slabs: usize, stages: usize) -> usize {
        barriers_offset(query_tile, slabs, stages) + 8 * (2 * stages + 2 + 2 * SUM_SLOTS)
    }

    /// Dynamic shared memory, with room to align its start.
    pub const fn shared_bytes(query_tile: usize, slabs: usize, stages: usize) -> usize {
        sums_offset(query_tile, slabs, stages) + SUM_SLOTS * CONSUMER_WARPS * 4 + TILE_ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzle_is_a_permutation_and_meets_every_bank() {
        for row in 0..8 {
            let mut seen = [false; 8];
            for chunk in 0..8 {
                let offset = chunk_offset(row, chunk);
                assert_eq!(offset / 128, row);
                seen[(offset % 128 / 16) as usize] = true;
            }
            assert_eq!(seen, [true; 8]);
        }
        // The eight rows that one ldmatrix reads lie in eight different 16-byte columns.
        for chunk in 0..8 {
            let mut seen = [false; 8];
            for row in 0..8 {
                seen[(chunk_offset(row, chunk) % 128 / 16) as usize] = true;
            }
            assert_eq!(seen, [true; 8]);
        }
    }

    #[test]
    fn slabs_cover_the_row() {
        assert_eq!(slabs(1, 2), 1);
        assert_eq!(slabs(64, 2), 1);
        assert_eq!(slabs(65, 2), 2);
        assert_eq!(slabs(512, 4), 16);
    }
}
