//! MaxSim forward on Ampere and later: cp.async, ldmatrix and mma.sync.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: each warp has up to 64 rows of a query tile and multiplies them with every token of a
//! document, tile by tile; a row's maximum over a document stays in the warp. Up to dim 256 the
//! rows live in registers ([`Resident`]), above it they stream ([`Streamed`]).
//!
//! Pipeline:
//!  1. All threads copy stages of a ring, `STAGES - 1` ahead of the products: the query tile where
//!     it is new, then the document tiles, across documents and units without a break.
//!  2. One barrier per stage: the stage has landed for all threads, and the last one is free.
//!  3. Each warp multiplies its rows with the stage and updates the online max.
//!  4. Epilogue: after the document each warp adds its groups' maxima; behind the next stage's
//!     barrier warp 0 adds the groups by query, in order, and stores the results.
//!
//! Row scales, of normalised rows ([`crate::primitives::row_scales`]) or of codes: a tile's
//! similarities are multiplied by their columns' before the maximum, and the row maxima by the
//! rows' in the epilogue.
//!
//! Budget: 128 registers of query fragments and 32 accumulators, or 128 accumulators, of 255 per
//! thread; shared memory as `layout::sm80` states.
//!
//! Known loss: every thread addresses its copies, about 14 instructions per 16 bytes, and a warp's
//! maxima wait for its last product; a second CTA per multiprocessor fills in, where shared memory
//! has room for one.

mod affine;
pub mod collect;
pub(crate) mod element;
mod int8;
pub(super) mod kernel;
mod pipeline;
mod resident;
pub mod residual;
mod streamed;

pub use crate::sm80::affine::{Affine, AffineBf16, AffineF16};
pub use crate::sm80::element::{Bf16, F16, F32};
pub use crate::sm80::int8::{E4m3, I8, I8Affine};
pub use crate::sm80::kernel::{Kernel, forward};
pub use crate::sm80::resident::Resident;
pub use crate::sm80::streamed::Streamed;

use self::pipeline::Tile;
use crate::abi::params::ForwardParams;
use crate::primitives::accumulator::{Best, fold, valid_columns, valid_only};
use crate::primitives::row_scales::Normalizer;
use crate::primitives::unroll::unroll;

/// Which columns of a tile are document tokens: all of them, or those whose bits are set, bit
/// `c % 32` of word `c / 32`.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn columns<K: Kernel>(params: &ForwardParams, tile: &Tile, lane: u32) -> Option<[u32; 4]> {
    let n_columns = tile.n_columns;
    if params.documents.mask != 0 {
        let (documents, first) = (&params.documents, tile.matrix_row);
        // SAFETY: the document has these rows; the branch is uniform.
        return Some(unsafe { valid_columns(documents, first, n_columns, lane) });
    }
    let word = |i: u32| match n_columns.saturating_sub(32 * i) {
        32.. => u32::MAX,
        left => (1 << left) - 1,
    };
    (n_columns < K::TILE as u32).then(|| [word(0), word(1), word(2), word(3)])
}

/// Takes all columns of a product into account.
#[inline(always)]
fn fold_all<K: Kernel, const N: usize>(
    normalizer: &K::Normalizer,
    best: &mut [Best; 4],
    c: &[[f32; N]; 4],
    row: u32,
    lane: u32,
) {
    let column = (row + 2 * (lane % 4)) as i32;
    unroll!(F in 0..4 => {
        if F < K::FRAGMENTS {
            take::<K, N>(normalizer, best, F, &c[F], column);
        }
    });
}

/// Takes the columns of a fragment's products into account, of which the thread's first is document
/// token `column`.
#[inline(always)]
fn take<K: Kernel, const N: usize>(
    normalizer: &K::Normalizer,
    best: &mut [Best; 4],
    fragment: usize,
    c: &[f32; N],
    column: i32,
) {
    if K::Normalizer::COLLECTS {
        // SAFETY: the query tile's rows were taken before its products.
        unsafe { normalizer.collect(c, fragment) };
    } else {
        fold(&mut best[fragment], c, column, K::WINNERS);
    }
}

/// Takes the columns of a product whose bits are set into account.
#[inline(always)]
fn fold_valid<K: Kernel, const N: usize, const WORDS: usize>(
    normalizer: &K::Normalizer,
    best: &mut [Best; 4],
    c: &[[f32; N]; 4],
    words: [u32; WORDS],
    row: u32,
    lane: u32,
) {
    let column = (row + 2 * (lane % 4)) as i32;
    let valid = words.map(|word| word >> (2 * (lane % 4)));
    unroll!(F in 0..4 => {
        if F < K::FRAGMENTS {
            take::<K, N>(normalizer, best, F, &valid_only(c[F], &valid), column);
        }
    });
}
