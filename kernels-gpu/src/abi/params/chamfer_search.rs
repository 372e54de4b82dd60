//! Host/device ABI of the search for neighbours among sorted points of up to 3 dims.
//!
//! Both clouds of a pair are sorted together along a Morton curve: a code has the side in bit 31,
//! and bit 30 where a point is none that is looked for. Places of a side are padded to whole
//! groups; those of the second cloud begin behind those of the first. The points of a group are
//! sorted along a finer curve in its own box.

use crate::abi::params::chamfer::Clouds;

/// Threads per CTA of the kernels that sort: one for each digit.
pub const THREADS: usize = BINS as usize;

/// Values of a digit of a code.
pub const BINS: u32 = 256;

/// Passes of a sort, a digit each.
pub const N_PASSES: u32 = 4;

/// Codes of a chunk, which a CTA sorts, are 2 to this power at least.
pub const CHUNK_LOG2: u32 = 11;

/// Dynamic shared memory of `maxsim_chamfer_codes`: counts.
pub const CODES_SHARED_BYTES: usize = BINS as usize * 4;

/// Dynamic shared memory of `maxsim_chamfer_sort`: places of each warp, and sums of warps.
pub const SORT_SHARED_BYTES: usize = (THREADS / 32 * BINS as usize + THREADS / 32) * 4;

/// Points of a tile: those of a warp.
pub const TILE_LEN: u32 = 32;

/// Tiles of a group.
pub const GROUP_TILES: u32 = 32;

/// Points of a group.
pub const GROUP_LEN: u32 = TILE_LEN * GROUP_TILES;

/// Threads of a CTA of `maxsim_chamfer_boxes`, which has a group.
pub const BOXES_THREADS: usize = GROUP_LEN as usize;

/// Cells of a dim of the box of both clouds.
pub const CELLS: u32 = 1 << 10;

/// Cells of a dim of a group's box.
pub const GROUP_CELLS: u32 = 1 << 7;

/// Bytes of a box: the least coordinates, the lowest index, the greatest coordinates.
pub const BOX_BYTES: u64 = 32;

/// Bytes of a sorted point: coordinates and index.
pub const POINT_BYTES: u64 = 16;

/// Bytes of a code with the index of its point.
pub const ENTRY_BYTES: u64 = 8;

/// Offset of points in the shared memory of `maxsim_chamfer_boxes`, behind keys.
pub const BOXES_POINTS: u32 = GROUP_LEN * 4;

/// Offset of the boxes of warps, behind points.
pub const BOXES_BOXES: u32 = BOXES_POINTS + GROUP_LEN * POINT_BYTES as u32;

/// Dynamic shared memory of `maxsim_chamfer_boxes`.
pub const BOXES_SHARED_BYTES: usize = BOXES_BOXES as usize + BOXES_THREADS / 32 * 32;

/// Threads per CTA of `maxsim_chamfer_search`.
pub const SEARCH_THREADS: usize = 128;

/// Index of no point.
pub const NO_POINT: u32 = u32::MAX;

/// Set in codes of the second cloud.
pub const SIDE_BIT: u32 = 1 << 31;

/// Set in codes of points that are not looked for.
pub const NONE_BIT: u32 = 1 << 30;

/// What is known of both clouds, as words of which larger ones replace others: 0 is nothing.
pub mod known {
    /// The [ordered](super::ordered) greatest coordinates of both clouds, and behind them the
    /// greatest of their opposites.
    pub const BOX: usize = 0;

    /// Words of a cloud behind these: complements of the first index of what they name.
    pub const SIDES: usize = 6;

    /// The first point with NaN.
    pub const NAN: usize = 0;

    /// The first point.
    pub const VALID: usize = 1;

    /// The first points with +∞ in each dim, and those with −∞.
    pub const INFINITE: usize = 2;

    /// Words of a cloud.
    pub const PER_SIDE: usize = 8;

    /// All words, which counts lie behind.
    pub const LEN: usize = 32;
}

/// Parameters of all kernels of a search.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SearchParams {
    /// The clouds.
    pub clouds: Clouds,
    /// Address of [`known::LEN`] words, 0 before the first kernel.
    pub known: u64,
    /// Address of u32 counts `[N_PASSES, n_chunks, BINS]`: digits of what a pass sorts. 0 before
    /// the first kernel.
    pub counts: u64,
    /// Addresses of codes with indices that are sorted, and where to: by place.
    pub entries: [u64; 2],
    /// Address of the sorted points.
    pub points: u64,
    /// Address of the boxes of tiles.
    pub tiles: u64,
    /// Address of the boxes of groups.
    pub groups: u64,
    /// Address of the keys of neighbours, by place of all pairs.
    pub keys: u64,
    /// The pair.
    pub pair: u32,
    /// Places of each side.
    pub padded: [u32; 2],
    /// A chunk has 2 to this power of codes.
    pub chunk_log2: u32,
    /// Chunks of both sides.
    pub n_chunks: u32,
    /// The pass, of a sort.
    pub pass: u32,
}

/// A number in the order of floats; 0 is none.
#[inline(always)]
pub const fn ordered(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    bits ^ ((bits as i32 >> 31) as u32 | 0x8000_0000)
}

/// The float of [`ordered`]; −∞ of none.
#[inline(always)]
pub const fn float(ordered: u32) -> f32 {
    match ordered {
        0 => f32::NEG_INFINITY,
        0x8000_0000.. => f32::from_bits(ordered & 0x7FFF_FFFF),
        _ => f32::from_bits(!ordered),
    }
}

/// Half of what lies between two coordinates, which is finite.
#[inline(always)]
pub const fn half_width(low: f32, high: f32) -> f32 {
    high * 0.5 - low * 0.5
}

/// The cell of a coordinate from the least one on, of `n` cells.
#[inline(always)]
pub const fn cell(x: f32, low: f32, half_width: f32, n: u32) -> u32 {
    let part = if half_width > 0.0 { (x * 0.5 - low * 0.5) / half_width } else { 0.0 };
    let cell = (part * n as f32) as u32;
    if cell < n { cell } else { n - 1 }
}

/// The bits of a cell, three apart.
#[inline(always)]
pub const fn spread(cell: u32) -> u32 {
    let x = (cell | cell << 16) & 0x0300_00FF;
    let x = (x | x << 8) & 0x0300_F00F;
    let x = (x | x << 4) & 0x030C_30C3;
    (x | x << 2) & 0x0924_9249
}

const _: () = assert!(known::SIDES + 2 * known::PER_SIDE <= known::LEN);
const _: () = assert!(known::INFINITE + 6 <= known::PER_SIDE);
const _: () = assert!(3 * GROUP_CELLS.ilog2() + GROUP_LEN.ilog2() == 31);
const _: () = assert!(BINS.ilog2() * N_PASSES == u32::BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_order() {
        let floats = [f32::NEG_INFINITY, -3e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3e38];
        for pair in floats.windows(2) {
            assert!(ordered(pair[0]) < ordered(pair[1]) && ordered(pair[0]) > 0);
        }
        for x in floats {
            assert_eq!(float(ordered(x)), x);
        }
        assert_eq!(ordered(-0.0), ordered(0.0));
    }

    #[test]
    fn codes_have_the_bits_of_cells() {
        for cell in 0..1024u32 {
            let expected: u32 = (0..10).map(|bit| (cell >> bit & 1) << (3 * bit)).sum();
            assert_eq!(spread(cell), expected);
        }
        let of = |x, low, high| cell(x, low, half_width(low, high), CELLS);
        assert_eq!([of(-1.0, -1.0, 1.0), of(0.0, -1.0, 1.0), of(1.0, -1.0, 1.0)], [0, 512, 1023]);
        assert_eq!([of(5.0, 5.0, 5.0), of(3e38, -3e38, 3e38)], [0, 1023]);
    }
}
