//! Products with query rows that stay in registers.

use crate::abi::layout::{SLAB_BYTES, chunk_offset};
use crate::abi::params::Group;
use crate::primitives::accumulator::Best;
use crate::primitives::unroll::unroll;
use crate::ptx::mma::load_matrix_x4;
use crate::sm80::element::Stepped;
use crate::sm80::kernel::{Kernel, Pipeline, Product};
use crate::sm80::pipeline::Tile;
use crate::sm80::{columns, fold_all, fold_valid};

/// Columns that are multiplied at a time: two `n8` products per fragment and step.
const COLUMNS: usize = 16;
/// Accumulators of a fragment for so many columns, per thread.
const N: usize = COLUMNS / 2;
/// Steps of 32 bytes in a slab.
const STEPS: usize = 4;

/// A warp's query fragments: fragment `f` and step `k` at `f * STEPS * SLABS + k`.
pub struct Resident {
    a: [[u32; 4]; 32],
}

impl<K: Kernel> Product<K> for Resident
where
    K::Element: Stepped,
{
    #[inline(always)]
    fn new() -> Self {
        const { assert!(K::FRAGMENTS * K::SLABS * STEPS <= 32 && K::TILE <= 64) };
        // SAFETY: all-zero bytes are words. (A literal would become a loop in memory.)
        Resident { a: unsafe { core::mem::zeroed() } }
    }

    #[inline(always)]
    unsafe fn take_queries(&mut self, pipeline: &Pipeline<'_, K>, part: u32, stage: u32) {
        let first = pipeline.warp * (K::FRAGMENTS * Group::ROWS) as u32;
        let lane = pipeline.lane;
        // The warp's rows lie in one stage.
        if first / K::TILE as u32 == part {
            let row = first % K::TILE as u32 + lane % 16;
            // As A: rows 0-7 and 8-15 of k 0-7, then of k 8-15.
            let address = stage + chunk_offset(row, lane / 16);
            // SAFETY: the caller's promise; the branch is uniform over the warp.
            unsafe { self.load(K::FRAGMENTS, K::SLABS, K::TILE, address) };
        }
    }

    #[inline(always)]
    unsafe fn take_documents(
        &mut self,
        pipeline: &Pipeline<'_, K>,
        best: &mut [Best; 4],
        tile: &Tile,
        stage: u32,
    ) -> u32 {
        let (lane, n_slabs) = (pipeline.lane, pipeline.n_slabs);
        // SAFETY: the caller's promise; branches are uniform over the warp.
        unsafe {
            // As B: 8 tokens of k 0-7 and of k 8-15, then the next 8 tokens.
            let mut address = stage + chunk_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
            let mut row = tile.row;
            let end = row + tile.n_columns;
            let Some([low, high, ..]) = columns::<K>(pipeline.params, tile, lane) else {
                // Up to dim 64 the second of two slabs is empty. A loop of its own: a branch
                // between slabs would keep loads from overlapping products. (It knows of no
                // scales: where there are any, zeros are multiplied.)
                let is_half = K::SLABS == 2 && n_slabs == 1 && !K::HAS_SCALES;
                while is_half && row < end {
                    let c = self.multiply::<K, 1>(n_slabs, address);
                    fold_all::<K, N>(&pipeline.normalizer, best, &c, row, lane);
                    address += (COLUMNS * SLAB_BYTES) as u32;
                    row += COLUMNS as u32;
                }
                while row < end {
                    let mut c = self.multiply::<K, 4>(n_slabs, address);
                    // A constant: kernels without scales stay as they are, to the byte.
                    if K::HAS_SCALES {
                        pipeline.similarities(&mut c, tile.matrix_row + (row - tile.row));
                    }
                    fold_all::<K, N>(&pipeline.normalizer, best, &c, row, lane);
                    address += (COLUMNS * SLAB_BYTES) as u32;
                    row += COLUMNS as u32;
                }
                return 1;
            };
            let mut words = u64::from(low) | u64::from(high) << 32;
            while words != 0 {
                let valid = words as u32 & ((1 << COLUMNS) - 1);
                if valid != 0 {
                    let mut c = self.multiply::<K, 4>(n_slabs, address);
                    if K::HAS_SCALES {
                        pipeline.similarities(&mut c, tile.matrix_row + (row - tile.row));
                    }
                    fold_valid::<K, N, 1>(&pipeline.normalizer, best, &c, [valid], row, lane);
                }
                address += (COLUMNS * SLAB_BYTES) as u32;
                row += COLUMNS as u32;
                words >>= COLUMNS;
            }
            low | high
        }
    }
}

impl Resident {
    /// Loads the fragments of the warp's rows, of which a lane's is at `address`.
    #[inline(always)]
    unsafe fn load(&mut self, fragments: usize, slabs: usize, tile: usize, address: u32) {
        unroll!(F in 0..4 => {
            unroll!(I in 0..16 => {
                if F < fragments && I < slabs * STEPS {
                    let offset = F * Group::ROWS * SLAB_BYTES + I / STEPS * tile * SLAB_BYTES;
                    let step = address ^ (32 * (I % STEPS)) as u32;
                    // SAFETY: the whole warp is here; the stage holds these rows.
                    self.a[(F * slabs * STEPS + I) % 32] =
                        unsafe { load_matrix_x4(step + offset as u32) };
                }
            });
        });
    }

    /// The products of the warp's rows with 16 tokens, of which a lane's is at `address`, over at
    /// most `SLABS` slabs.
    #[inline(always)]
    unsafe fn multiply<K: Kernel, const SLABS: usize>(
        &self,
        n_slabs: u32,
        address: u32,
    ) -> [[f32; N]; 4]
    where
        K::Element: Stepped,
    {
        // SAFETY: all-zero bytes are floats; the whole warp is here, and the stage holds these
        // tokens.
        unsafe {
            let mut c: [[f32; N]; 4] = core::mem::zeroed();
            let steps = [address, address ^ 32, address ^ 64, address ^ 96];
            macro_rules! steps {
                ($last:literal) => {
                    unroll!(I in 0..16 => {
                        if I < K::SLABS.min(SLABS) * STEPS && (I >= 3 * STEPS) == $last {
                            let offset = I / STEPS * K::TILE * SLAB_BYTES;
                            let b = load_matrix_x4(steps[I % STEPS] + offset as u32);
                            unroll!(F in 0..4 => {
                                if F < K::FRAGMENTS {
                                    let a = self.a[(F * K::SLABS * STEPS + I) % 32];
                                    c[F] = K::Element::multiply_add_step(c[F], a, b);
                                }
                            });
                        }
                    });
                };
            }
            steps!(false);
            // Up to dim 192 the last of four slabs is empty. The branch also keeps the assembler
            // from loading all of them first, for which there are no registers.
            if n_slabs > 3 {
                steps!(true);
            }
            c
        }
    }
}
