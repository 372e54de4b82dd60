//! Products with query slabs that stream along with the documents'.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::params::Group;
use crate::primitives::accumulator::Best;
use crate::sm80::element::{SlabElement, Slabs};
use crate::sm80::kernel::{Kernel, Pipeline, Product};
use crate::sm80::pipeline::Tile;
use crate::sm80::{columns, fold_all, fold_valid};

/// Sums of a tile whose slabs still come; `N` is half of the document tile.
pub struct Streamed<const N: usize> {
    c: [[f32; N]; 4],
}

impl<K: Kernel, const N: usize> Product<K> for Streamed<N> {
    #[inline(always)]
    fn new() -> Self {
        const { assert!(K::TILE == 2 * N && K::SLABS == 0) };
        // SAFETY: all-zero bytes are floats. (A literal would become a loop in memory.)
        Streamed { c: unsafe { core::mem::zeroed() } }
    }

    #[inline(always)]
    unsafe fn take_queries(&mut self, _: &Pipeline<'_, K>, _: u32, _: u32) {}

    #[inline(always)]
    unsafe fn take_documents(
        &mut self,
        pipeline: &Pipeline<'_, K>,
        best: &mut [Best; 4],
        tile: &Tile,
        stage: u32,
    ) -> u32 {
        let lane = pipeline.lane;
        let rows = pipeline.group(0) * (Group::ROWS * SLAB_BYTES) as u32;
        let queries = stage + (K::TILE * SLAB_BYTES) as u32 + rows;
        // SAFETY: the caller's promise; all-zero bytes are floats.
        unsafe {
            let c = &mut self.c;
            let n_columns = tile.n_columns;
            let slabs = Slabs { queries, documents: stage, n_columns, lane };
            K::Element::multiply_slab(c, K::FRAGMENTS, slabs);
            if !tile.ends_tile {
                return 0;
            }
            pipeline.similarities(c, tile.matrix_row);
            let any = match columns::<K>(pipeline.params, tile, lane) {
                None => {
                    fold_all::<K, N>(&pipeline.normalizer, best, c, tile.row, lane);
                    1
                }
                Some(words) => {
                    fold_valid::<K, N, 4>(&pipeline.normalizer, best, c, words, tile.row, lane);
                    words[0] | words[1] | words[2] | words[3]
                }
            };
            *c = core::mem::zeroed();
            any
        }
    }
}
