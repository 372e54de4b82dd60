//! The search among sorted points, for pairs of large clouds of up to 3 dims.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::chamfer::Clouds;
use maxsim_kernels::abi::params::chamfer_search::{
    BINS, BOX_BYTES, BOXES_SHARED_BYTES, CHUNK_LOG2, CODES_SHARED_BYTES, ENTRY_BYTES, GROUP_LEN,
    N_PASSES, POINT_BYTES, SEARCH_THREADS, SORT_SHARED_BYTES, SearchParams, THREADS, TILE_LEN,
    known,
};
use maxsim_kernels::table::auxiliary::{
    CHAMFER_BOUNDS, CHAMFER_BOXES, CHAMFER_CODES, CHAMFER_SEARCH, CHAMFER_SORT,
};

use super::places::lay_out;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{RESERVED_BYTES, start};
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;

/// Most dims of points that are sorted.
const SORTED_DIM: usize = 3;

/// Pairs of points that are compared in the time that nine launches take.
const LAUNCHED: u64 = 1 << 27;

/// Pairs of points that are compared in the time that it takes to sort a point and to search for
/// its neighbour.
const SORTED: u64 = 1 << 12;

/// Most chunks of codes: each CTA adds up the counts of all.
const MOST_CHUNKS: u32 = 256;

/// Most CTAs that look for the box of all points, and points that a thread of one has at least.
const BOUNDS_CTAS: u32 = 256;
const BOUNDS_LEN: u32 = 4;

/// Most points of both clouds: places among them, padding included, are numbers of 32 bits.
const MOST_POINTS: u64 = 1 << 31;

/// Whether neighbours of clouds of such lengths are searched for, not compared with all.
pub(super) fn is_searched(lens: [u32; 2], dim: usize) -> bool {
    let [x, y] = lens.map(u64::from);
    dim <= SORTED_DIM && x + y <= MOST_POINTS && x * y >= LAUNCHED + SORTED * (x + y)
}

/// The kernels of a search, and its pairs.
#[derive(Debug)]
pub(super) struct Search {
    bounds: Kernel<SearchParams>,
    codes: Kernel<SearchParams>,
    sort: Kernel<SearchParams>,
    boxes: Kernel<SearchParams>,
    search: Kernel<SearchParams>,
    /// Number and lengths of each pair.
    pairs: Vec<(u32, [u32; 2])>,
}

/// Where a pair's search has what: offsets in the workspace, and the end.
struct Places {
    padded: [u32; 2],
    chunk_log2: u32,
    n_chunks: u32,
    /// What must be 0 before, entries to sort and sorted ones, points, tiles and groups.
    offsets: [u64; 6],
    zeros_bytes: u64,
    end: u64,
}

impl Places {
    fn new(lens: [u32; 2]) -> Places {
        let padded = lens.map(|len| len.next_multiple_of(GROUP_LEN));
        let n = padded[0] + padded[1];
        let mut chunk_log2 = CHUNK_LOG2;
        while n.div_ceil(1 << chunk_log2) > MOST_CHUNKS {
            chunk_log2 += 1;
        }
        let n_chunks = n.div_ceil(1 << chunk_log2);
        let zeros_bytes = known::LEN as u64 * 4 + u64::from(N_PASSES * n_chunks * BINS) * 4;
        let n = u64::from(n);
        let lens = [
            zeros_bytes,
            n * ENTRY_BYTES,
            n * ENTRY_BYTES,
            n * POINT_BYTES,
            n / u64::from(TILE_LEN) * BOX_BYTES,
            n / u64::from(GROUP_LEN) * BOX_BYTES,
        ];
        let (offsets, end) = lay_out(RESERVED_BYTES, lens);
        Places { padded, chunk_log2, n_chunks, offsets, zeros_bytes, end }
    }
}

impl Search {
    /// Loads the kernels.
    pub(super) fn new(device: &Arc<CudaDevice>, pairs: Vec<(u32, [u32; 2])>) -> Result<Search> {
        Ok(Search {
            bounds: device.kernel(CHAMFER_BOUNDS)?,
            codes: device.kernel(CHAMFER_CODES)?,
            sort: device.kernel(CHAMFER_SORT)?,
            boxes: device.kernel(CHAMFER_BOXES)?,
            search: device.kernel(CHAMFER_SEARCH)?,
            pairs,
        })
    }

    /// Bytes of workspace, of which pairs use the same one after the other.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.pairs.iter().map(|&(_, lens)| Places::new(lens).end).max().unwrap_or(0)
    }

    /// Enqueues the launches of all pairs.
    ///
    /// # Safety
    /// As [`super::CudaChamferWork::run`]; the workspace must be as large as the search says, and
    /// nothing else may use it until the launches have run.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        clouds: &Clouds,
        keys: u64,
        workspace: u64,
    ) -> Result<()> {
        for &(pair, lens) in &self.pairs {
            let places = Places::new(lens);
            let Places { padded, chunk_log2, n_chunks, offsets, .. } = places;
            let [known, a, b, points, tiles, groups] = offsets.map(|offset| workspace + offset);
            let mut params = SearchParams {
                clouds: *clouds,
                known,
                counts: known + known::LEN as u64 * 4,
                entries: [a, b],
                points,
                tiles,
                groups,
                keys,
                pair,
                padded,
                chunk_log2,
                n_chunks,
                pass: 0,
            };
            let n = padded[0] + padded[1];
            let n_bounds = lens[0].max(lens[1]).div_ceil(THREADS as u32 * BOUNDS_LEN);
            // SAFETY: all lists are of so many places; the caller's promise.
            unsafe {
                let start = |kernel, grid, shared: usize, params: &SearchParams| {
                    start(entered, stream, kernel, grid, shared as u32, params)
                };
                fill(entered, known, 0, places.zeros_bytes, stream)?;
                start(&self.bounds, n_bounds.min(BOUNDS_CTAS), 0, &params)?;
                start(&self.codes, n_chunks, CODES_SHARED_BYTES, &params)?;
                for pass in 0..N_PASSES {
                    params.pass = pass;
                    start(&self.sort, n_chunks, SORT_SHARED_BYTES, &params)?;
                    params.entries.reverse();
                }
                start(&self.boxes, n / GROUP_LEN, BOXES_SHARED_BYTES, &params)?;
                let grid = (n / TILE_LEN).div_ceil(SEARCH_THREADS as u32 / 32);
                start(&self.search, grid, 0, &params)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_clouds_of_few_dims_are_searched() {
        assert!(is_searched([1 << 14, 1 << 14], 3) && is_searched([1 << 13, 1 << 16], 1));
        assert!(!is_searched([1 << 14, (1 << 14) - 1], 3) && !is_searched([1 << 20; 2], 4));
        // As many places as numbers count, and more.
        assert!(is_searched([1 << 30; 2], 3) && !is_searched([i32::MAX as u32; 2], 3));
        // Sorting many points for few is no gain.
        assert!(!is_searched([1 << 28, 1 << 12], 3) && !is_searched([0, 1 << 30], 3));
    }

    #[test]
    fn places_of_a_side_are_whole_groups() {
        let places = Places::new([20_000, 16_385]);
        assert_eq!(places.padded, [20_480, 17_408]);
        assert_eq!((places.chunk_log2, places.n_chunks), (11, 19));
        assert!(places.offsets.is_sorted() && places.offsets[0] >= RESERVED_BYTES);
        assert!(places.offsets.iter().all(|offset| offset.is_multiple_of(256)));
        assert!(places.end > places.offsets[5]);
        let places = Places::new([1_000_000; 2]);
        assert_eq!((places.chunk_log2, places.n_chunks), (13, 245));
    }
}
