//! Shared-memory geometry: every size, offset and swizzle, stated once.
//!
//! Token rows are cut into *slabs* of 128 bytes (64 half-precision or 32 single-
//! precision elements). A tile in shared memory is slab-major, `[slab][row][128 B]`,
//! and the 16-byte chunks of a row are permuted so that column accesses meet every
//! bank: chunk `c` of row `r` lies at chunk `c ^ (r % 8)`. TMA's and wgmma's
//! 128-byte swizzle is this same permutation of 1024-byte aligned tiles.

pub mod contiguous;
pub mod sm80;
pub mod sm90;

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
        use crate::abi::params::NORMS_PADDING;
        use contiguous::*;
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
                has_scheduler: true,
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
