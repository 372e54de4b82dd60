//! Host/device ABI of the products that serve both directions of a pair of clouds, and their
//! geometry.
//!
//! Points are copied as f16 rows, as [`super::select`] says, of one kind for each cloud: *rows* of
//! the first, *columns* of the second. Each has its half norm in three parts and what the other's
//! parts are multiplied by, so that their product is half a squared distance:
//!
//! ```text
//! t(p, q) = ‖p̂‖²/2 + ‖q̂‖²/2 − ⟨p̂, q̂⟩ = ‖p̂ − q̂‖²/2
//! ```
//!
//! One pass finds the least t of each row over blocks of 128 columns, and of each column over
//! blocks of 128 rows. Minima are f16 numbers, cut off, so never above what they stand for; one
//! below 0 is 0. Between floats from 0 on the order is that of their bits.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::{
    DOCUMENT_SLAB_BYTES, DOCUMENT_TILE, SLAB_STEPS, STEP_BYTES, query_tile, threads,
};
use crate::abi::params::TensorMap;
use crate::abi::params::chamfer::select::BLOCK;

/// Terms of a row beside its dims: the parts of its half norm, and the factors of the other's.
pub const TERMS: usize = 6;

/// Steps of 16 elements that a row has.
pub const STEPS: usize = 9;
/// Elements of a row.
pub const ROW_DIM: usize = STEPS * STEP_BYTES / 2;
/// Most dims of points, so that there is room for the terms.
pub const DIM_MAX: usize = ROW_DIM - TERMS;
/// Slabs of a row.
pub const SLABS: usize = STEPS.div_ceil(SLAB_STEPS);

/// Warpgroups that multiply.
pub const CONSUMERS: usize = 2;
/// 64-row fragments of each.
pub const FRAGMENTS: usize = 2;
/// Rows of a CTA's tile.
pub const ROWS: usize = query_tile(CONSUMERS, FRAGMENTS);
/// Rows that a consumer has: a block of the first cloud.
pub const CONSUMER_ROWS: usize = ROWS / CONSUMERS;
/// Columns of a tile: a block of the second cloud.
pub const COLUMNS: usize = DOCUMENT_TILE;
/// Depth of the ring of slabs of columns.
pub const STAGES: usize = 7;
/// Tiles whose minima of columns are in flight.
pub const SLOTS: usize = 4;
/// Threads of a CTA.
pub const THREADS: usize = threads(CONSUMERS);

/// Bytes of a slab of the tile of rows.
pub const ROWS_SLAB_BYTES: usize = ROWS * SLAB_BYTES;
/// Bytes of a stage.
pub const STAGE_BYTES: usize = DOCUMENT_SLAB_BYTES;
/// Bytes of the minima of a tile's columns by one warp, two columns to a word.
pub const WARP_MINIMA_BYTES: usize = COLUMNS * 2;
/// Bytes of a slot: those of all consumers' warps.
pub const SLOT_BYTES: usize = 4 * CONSUMERS * WARP_MINIMA_BYTES;
/// Offset of the ring, behind the rows.
pub const RING_OFFSET: usize = SLABS * ROWS_SLAB_BYTES;
/// Offset of the slots.
pub const SLOTS_OFFSET: usize = RING_OFFSET + STAGES * STAGE_BYTES;
/// Offset of the barriers: two for each stage, two of the rows, two for each slot.
pub const BARRIERS_OFFSET: usize = SLOTS_OFFSET + SLOTS * SLOT_BYTES;
/// Dynamic shared memory.
pub const SHARED_BYTES: usize = BARRIERS_OFFSET + 2 * 8 * (STAGES + 1 + SLOTS);

const _: () = assert!(CONSUMER_ROWS == BLOCK as usize && COLUMNS == BLOCK as usize);

/// Where the minima of a row are among those of its block of 128: a thread stores those of two
/// rows that are eight apart as a word.
#[inline(always)]
pub const fn row_place(row: u32) -> u32 {
    let (fragment, warp, half, group) = (row / 64 % 2, row / 16 % 4, row / 8 % 2, row % 8);
    row / 128 * 128 + 32 * warp + 16 * fragment + 2 * group + half
}

/// The row whose minima are at a place: the inverse of [`row_place`].
#[inline(always)]
pub const fn row_at(place: u32) -> u32 {
    let (warp, fragment, group, half) = (place / 32 % 4, place / 16 % 2, place / 2 % 8, place % 2);
    place / 128 * 128 + 64 * fragment + 16 * warp + 8 * half + group
}

/// Parameters of `maxsim_chamfer_sm90_products`. CTAs share all pairs of a tile of rows and one of
/// columns evenly.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProductParams {
    /// All rows as a tensor map in boxes of 128 rows.
    pub map: TensorMap,
    /// Address of the f16 least t of rows: for each tile of columns, for each row, in the order of
    /// [`row_place`].
    pub row_minima: u64,
    /// Address of the f16 least t of columns: for each block of 128 rows, for each column.
    pub column_minima: u64,
    /// The first row among all.
    pub first_row: u32,
    /// The first column among all.
    pub first_column: u32,
    /// Tiles of [`ROWS`] rows.
    pub n_row_tiles: u32,
    /// Tiles of [`COLUMNS`] columns.
    pub n_column_tiles: u32,
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_row_has_a_place_of_its_own_in_its_block() {
        for block in 0..3 {
            let mut places: Vec<u32> = (128 * block..128 * block + 128).map(row_place).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(128 * block..128 * block + 128));
        }
        assert!((0..600).all(|row| row_at(row_place(row)) == row));
        // A word has two rows that one thread multiplies.
        assert_eq!((row_place(3), row_place(11)), (6, 7));
    }

    #[test]
    fn rows_have_room_for_points_of_128_dims() {
        assert_eq!((ROW_DIM, DIM_MAX, SLABS), (144, 138, 3));
        assert_eq!(size_of::<ProductParams>(), size_of::<TensorMap>() + 2 * 8 + 4 * 4);
    }
}
