//! Factors of scales that are f16 in memory: two bytes less of every token, where reading is all.
//!
//! A copy has whole words, and a document may begin with the upper half of one: each lane copies
//! the words that its columns' halves are in, to where their factors go. Two lanes request the same
//! word at once, which the memory reads once; and no lane needs another lane's copy.

use crate::abi::params::ForwardParams;
use crate::primitives::documents::Documents;
use crate::primitives::row_scales::{Norms, shared_place};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::barrier_wait;
use crate::ptx::convert::widen_f16;
use crate::ptx::copy::{copy_async_4, copy_commit, copy_wait};
use crate::ptx::shared::{store_shared_f32, store_shared_u32x4};
use crate::sm90::kernel::Kernel;
use crate::sm90::scales::{SCALES_AHEAD, make_factors, mask_words};
use crate::sm90::scheduler::{Told, for_each_tile};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// A word of which either half is 1.
const ONES: f32 = f32::from_bits(0x3C00_3C00);

/// As [`crate::sm90::scales::load_factors`], of halves.
///
/// # Safety
/// As there; the launch must have halves.
#[inline(always)]
pub(super) unsafe fn load_factors<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    let is_masked = params.documents.mask != 0;
    let (mut ring, mut landed) = (Ring::START, Ring::START);
    let mut n_ahead = 0;
    // Whether the lane's halves are upper ones, a bit for each tile that is ahead; the last one's
    // is the lowest.
    let mut upper = 0;
    let mut units = Told::START;
    // SAFETY: as there. A word with the half of a document's row begins with that row or the one
    // before, and ends with that row or the one behind: there is padding.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = mask_words(params, start, left, lane);
                let place = norms.of_half(start + lane);
                let from = place & !3;
                upper = upper << 1 | (place >> 1) as u32 & 1;
                barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                let to = shared.scales(ring.slot) + shared_place(lane);
                unroll!(I in 0..4 => {
                    // What lies behind a document's end may be anything.
                    match left > lane + 32 * I as u32 {
                        true => copy_async_4(to + 128 * I as u32, from + 64 * I as u64),
                        false => store_shared_f32(to + 128 * I as u32, ONES),
                    }
                });
                copy_commit();
                if lane == 0 && is_masked {
                    store_shared_u32x4(shared.mask(ring.slot), words);
                }
                ring = ring.next(shared.stages);
                if n_ahead < SCALES_AHEAD {
                    n_ahead += 1;
                } else {
                    copy_wait::<SCALES_AHEAD>();
                    let upper = upper >> SCALES_AHEAD;
                    make_factors(params, shared, &mut landed, lane, |word| half(word, upper));
                }
            });
        }
        copy_wait::<0>();
        while n_ahead > 0 {
            n_ahead -= 1;
            let upper = upper >> n_ahead;
            make_factors(params, shared, &mut landed, lane, |word| half(word, upper));
        }
    }
}

/// The half of a word: the upper one where the lowest bit of `upper` is set.
#[inline(always)]
fn half(word: f32, upper: u32) -> f32 {
    widen_f16(word.to_bits() >> (16 * (upper & 1)))[0]
}
