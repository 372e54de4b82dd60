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

/// Geometry of the sm_80 kernels. `slabs` is the number of slabs of a document tile that lie in
/// a stage; 0 where stages hold one slab of the document tile and one of the query tile.
pub mod sm80 {
    use super::SLAB_BYTES;
    use crate::params::Group;

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

    /// Stages that a query tile takes on its way into registers: one holds as many rows of it
    /// as of a document tile. Where slabs stream, one that is empty announces the tile.
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
}

/// Geometry of the kernels that read documents as runs of rows: of some warps, each with a ring of
/// chunks, and one that stores.
pub mod runs {
    use crate::params::Group;

    /// The only dim: rows lie together.
    pub const DIM: usize = 128;
    /// Query rows of a tile, which every warp has in registers.
    pub const QUERY_ROWS: usize = 2 * Group::ROWS;
    /// Rows that a warp multiplies at a time.
    pub const PRODUCT_ROWS: usize = 16;
    /// Documents whose maxima may wait for the warp that stores.
    pub const SLOTS: usize = 4;
    /// Bytes of the maxima that a warp has found of a document, one per query row.
    pub const MAXIMA_BYTES: usize = QUERY_ROWS * 4;
    /// What one instruction copies is aligned to this, and a multiple of it.
    pub const COPY_ALIGN: usize = 16;

    /// Units that a block has drawn and not begun to copy, and whoever draws waits.
    pub const UNIT_SLOTS: usize = 2;
    /// Bytes of what is told of a unit.
    pub const UNIT_BYTES: usize = 16;

    /// Threads of a block: of warps that multiply, one that stores, and, where blocks may draw their units,
    /// one that draws.
    pub const fn threads(warps: usize, draws: bool) -> usize {
        32 * (warps + 1 + draws as usize)
    }

    /// Bytes of the scales that come with a chunk of so many rows, of `1 << shift` bytes each: whatever row it
    /// begins with, all that any [`COPY_ALIGN`] bytes have of them.
    pub const fn scales_bytes(chunk_rows: usize, shift: u32) -> usize {
        (chunk_rows << shift) + COPY_ALIGN
    }

    /// Bytes of other rows' scales that come before those of a chunk that begins with row `row`.
    pub const fn scales_before(row: u32, shift: u32) -> u32 {
        (row << shift) % COPY_ALIGN as u32
    }

    /// One kernel's.
    #[derive(Clone, Copy)]
    pub struct Geometry {
        /// Warps that multiply.
        pub warps: usize,
        /// Chunks of a warp's ring.
        pub stages: usize,
        /// Bytes of a row.
        pub row_bytes: usize,
        /// Rows of a chunk: what one instruction copies. A multiple of [`PRODUCT_ROWS`].
        pub chunk_rows: usize,
        /// Whether every row has a scale, which comes with its chunk.
        pub has_scales: bool,
        /// Whether blocks may draw their units.
        pub draws: bool,
    }

    impl Geometry {
        /// Bytes of a chunk.
        pub const fn chunk_bytes(&self) -> usize {
            self.chunk_rows * self.row_bytes
        }

        /// Room for a chunk's scales.
        pub const fn scales_bytes(&self) -> usize {
            if self.has_scales { scales_bytes(self.chunk_rows, 2) } else { 0 }
        }

        /// Offset of the query tile, behind the rings. Rows behind those of a chunk are read, not used.
        pub const fn queries_offset(&self) -> usize {
            self.warps * self.stages * self.chunk_bytes()
        }

        /// Offset of the chunks' scales, a set per chunk. Those behind a set are read, not used.
        pub const fn scales_offset(&self) -> usize {
            self.queries_offset() + QUERY_ROWS * self.row_bytes
        }

        /// Offset of the maxima, a set per slot.
        pub const fn maxima_offset(&self) -> usize {
            self.scales_offset() + self.warps * self.stages * self.scales_bytes()
        }

        /// Slots of units that are told of.
        const fn unit_slots(&self) -> usize {
            if self.draws { UNIT_SLOTS } else { 0 }
        }

        /// Offset of what is told of units, and behind it of the entry whose maxima a slot has.
        pub const fn units_offset(&self) -> usize {
            self.maxima_offset() + SLOTS * self.warps * MAXIMA_BYTES
        }

        /// Offset of the barriers: one per stage, two of the query tile, two per slot.
        pub const fn barriers_offset(&self) -> usize {
            let entries = if self.draws { 4 * SLOTS } else { 0 };
            self.units_offset() + self.unit_slots() * UNIT_BYTES + entries
        }

        /// Dynamic shared memory.
        pub const fn shared_bytes(&self) -> usize {
            let slots = SLOTS + self.unit_slots();
            self.barriers_offset() + (self.warps * self.stages + 2 + 2 * slots) * 8
        }
    }
}

/// Geometry of the sm_90a kernels. `query_tile` is the number of query rows per tile, `slabs` the
/// number of query slabs that stay in shared memory: 0 where they stream along with the
/// documents', `parts` the number of parts that elements are split into.
pub mod sm90 {
    use super::SLAB_BYTES;
    use crate::params::Group;

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
    /// Sums of a group that consumers leave to the warp that stores results to add: one for each
    /// two of its rows.
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
    /// High word of a wgmma descriptor: rows of 128 bytes, groups of 8 rows 1024 bytes apart (64 units of 16
    /// bytes in bits 32 to 45), swizzle mode 1 in bits 62 and 63.
    pub const DESCRIPTOR_HIGH: u32 = 0x4000_0040;

    /// Consumers of kernels whose documents are the rows of products.
    pub const TURNED_CONSUMERS: usize = 4;
    /// Teams of two of these consumers, with a half of the ring each.
    pub const TEAMS: usize = 2;
    /// Warps of a team.
    pub const TEAM_WARPS: usize = 4 * TURNED_CONSUMERS / TEAMS;
    /// Bytes of a team's stage: half a tile.
    pub const TEAM_STAGE_BYTES: usize = DOCUMENT_SLAB_BYTES / TEAMS;
    /// Bytes of the scales of its rows.
    pub const TEAM_SCALES_BYTES: usize = SCALES_BYTES / TEAMS;
    /// Bytes of what a team's loading warp says of a stage.
    pub const TEAM_WORDS_BYTES: usize = 16;
    /// Documents of a team whose maxima are in flight.
    pub const TEAM_SLOTS: usize = 2;
    /// Bytes of what one warp of a team leaves of a document: the maxima of 128 query rows.
    pub const MAXIMA_BYTES: usize = 4 * 128;
    /// Bytes of the sums of a document's groups, and of what else is said of it.
    pub const TEAM_SUMS_BYTES: usize = 128;

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

    /// One warpgroup that loads and stores, and the consumers.
    pub const fn threads(consumers: usize) -> usize {
        128 * (1 + consumers)
    }

    /// As [`threads`], and the decoders.
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

    /// Rows that one copy brings of a whole tile's slab where units end within documents: both halves of as many
    /// rows come out of the memory together.
    pub const CUT_BOX_ROWS: usize = 32;

    /// Documents whose sums are in flight: as many as fit beside the ring, up to four.
    pub const fn sum_slots(query_tile: usize) -> usize {
        if query_tile > 128 { 2 } else { 4 }
    }

    /// Offset of the ring behind the resident query slabs.
    pub const fn ring_offset(query_tile: usize, slabs: usize) -> usize {
        slabs * query_slab_bytes(query_tile)
    }

    /// Offset of the column masks, one per stage.
    pub const fn masks_offset(
        query_tile: usize,
        slabs: usize,
        stages: usize,
        parts: usize,
    ) -> usize {
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
    pub const fn sums_offset(
        query_tile: usize,
        slabs: usize,
        stages: usize,
        parts: usize,
    ) -> usize {
        barriers_offset(query_tile, slabs, stages, parts)
            + 8 * n_barriers(query_tile, stages, parts)
    }

    /// Offset of the units, in slots.
    pub const fn units_offset(
        query_tile: usize,
        slabs: usize,
        stages: usize,
        parts: usize,
    ) -> usize {
        let slot_bytes = query_tile / Group::ROWS * GROUP_SUMS_BYTES;
        sums_offset(query_tile, slabs, stages, parts) + sum_slots(query_tile) * slot_bytes
    }

    /// Offset of the scales of a tile's columns, one set per stage, where tokens are codes.
    pub const fn scales_offset(
        query_tile: usize,
        slabs: usize,
        stages: usize,
        parts: usize,
    ) -> usize {
        units_offset(query_tile, slabs, stages, parts) + UNIT_SLOTS * UNIT_BYTES
    }

    /// Offset of documents' maxima, in slots, where documents are the rows of products.
    pub const fn maxima_offset(
        query_tile: usize,
        slabs: usize,
        stages: usize,
        parts: usize,
    ) -> usize {
        scales_offset(query_tile, slabs, stages, parts) + stages * SCALES_BYTES
    }

    /// Dynamic shared memory. Its start is declared to be aligned to [`TILE_ALIGN`]: there is no room to align it
    /// in, which would cost a stage where two blocks share a multiprocessor.
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
                // And, behind the slots, the query rows' scales and a word for each thread, which take as
                // much as six warps leave, a bit for each row, and of slots and stages what is said of them and
                // two barriers.
                let n_slots = TEAMS * TEAM_SLOTS;
                maxima_offset(query_tile, slabs, stages, parts)
                    + (TEAM_WARPS * n_slots + 6) * MAXIMA_BYTES
                    + query_tile / 8
                    + n_slots * (TEAM_SUMS_BYTES + 16)
                    + TEAMS * stages * (TEAM_WORDS_BYTES + 16)
            }
        }
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
    fn one_exclusive_or_moves_a_swizzled_address_to_another_step() {
        // What the sm_80 kernels rely on for the four 32-byte steps of a slab.
        for row in 0..64 {
            for half in 0..2 {
                let first = chunk_offset(row, half);
                for step in 0..4 {
                    assert_eq!(chunk_offset(row, 2 * step + half), first ^ (32 * step));
                }
            }
        }
    }

    #[test]
    fn two_blocks_of_128_dims_share_an_ampere_multiprocessor() {
        // 164 KB, of which each block costs 1 KB.
        assert_eq!(sm80::stage_bytes(256, 64, 2), 16 * 1024);
        assert_eq!(sm80::query_stages(256, 64, 2), 4);
        assert!(2 * (sm80::shared_bytes(256, 64, 2, 5) + 1024) <= 164 * 1024);
        assert_eq!(sm80::stage_bytes(128, 128, 0), 32 * 1024);
    }

    #[test]
    fn scales_of_runs_are_where_copies_bring_them() {
        use crate::params::NORMS_PADDING;
        use runs::*;
        for (chunk_rows, shift, row) in [16, 32, 64]
            .into_iter()
            .flat_map(|rows| [1, 2].map(|shift| (rows, shift)))
            .flat_map(|(rows, shift)| (0..50u32).map(move |row| (rows, shift, row)))
        {
            let geometry = Geometry {
                warps: 4,
                stages: 3,
                row_bytes: 128,
                chunk_rows,
                has_scales: true,
                draws: true,
            };
            let n_bytes = scales_bytes(chunk_rows, shift);
            let before = scales_before(row, shift) as usize;
            let first = ((row as usize) << shift) - before;
            assert!(first.is_multiple_of(COPY_ALIGN) && n_bytes.is_multiple_of(COPY_ALIGN));
            assert!(
                before + (chunk_rows << shift) <= n_bytes && n_bytes <= geometry.scales_bytes()
            );
            // Behind the last row's there is padding, whatever row that is.
            assert!(first + n_bytes <= (row as usize + 1 + NORMS_PADDING) << shift);
            // A product that begins with a chunk's last row reads on, within the block's memory.
            let last = before + ((chunk_rows - 1 + PRODUCT_ROWS) << shift);
            let rooms = geometry.scales_offset() + 11 * geometry.scales_bytes();
            assert!(rooms + last <= geometry.shared_bytes());
            let rows = geometry.queries_offset() + (PRODUCT_ROWS - 1) * geometry.row_bytes;
            assert!(rows <= geometry.scales_offset());
            for offset in [geometry.scales_offset(), geometry.scales_bytes()] {
                assert!(offset.is_multiple_of(COPY_ALIGN));
            }
            assert!(geometry.barriers_offset().is_multiple_of(8));
        }
    }

    #[test]
    fn last_tiles_are_the_narrowest_that_hold_the_tokens() {
        for (tail_step, winners) in [(16, false), (32, false), (32, true)] {
            let mut widths = [0; 8];
            for len in 1..=sm90::DOCUMENT_TILE {
                let width = sm90::tail_width(tail_step, winners, len);
                assert!(width >= len && sm90::has_width(tail_step, winners, width));
                let mut narrower = (16..width).step_by(16);
                assert!(
                    narrower.all(|w| w < len || !sm90::has_width(tail_step, winners, w)),
                    "{len} tokens in {width} columns"
                );
                widths[width / 16 - 1] += 1;
            }
            assert_eq!(widths.iter().sum::<usize>(), sm90::DOCUMENT_TILE);
        }
        assert_eq!(sm90::tail_width(16, false, 44), 48);
        assert_eq!(sm90::tail_width(32, true, 65), 128);
    }

    #[test]
    fn slabs_cover_the_row() {
        assert_eq!(slabs(1, 2), 1);
        assert_eq!(slabs(64, 2), 1);
        assert_eq!(slabs(65, 2), 2);
        assert_eq!(slabs(512, 4), 16);
    }
}
