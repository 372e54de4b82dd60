//! Maxima of similarities as whole numbers.
//!
//! The bits of positive floats rise with them, and NaN, which products give with a positive sign,
//! is above all. So a maximum of bits is right if it is positive; it takes three at a time, one
//! instruction for two of `max.NaN`. A document's first tokens usually give each row a positive
//! maximum. A tile that leaves one that is not is folded again, as floats.

use crate::reduce::{Best, unroll};

#[inline(always)]
fn bits(x: f32) -> i32 {
    x.to_bits() as i32
}

/// Whether the thread's maxima are right if they come from bits.
#[inline(always)]
pub(super) fn is_positive(best: &Best) -> bool {
    bits(best.value[0]).min(bits(best.value[1])) > 0
}

/// [`crate::reduce::fold`] without winners, by bits.
#[inline(always)]
pub(super) fn fold_bits<const N: usize>(best: &mut Best, c: &[f32; N]) {
    // Four independent chains: two rows × two columns.
    let mut most = [bits(best.value[0]), i32::MIN, bits(best.value[1]), i32::MIN];
    unroll!(I in 0..8 => {
        if 8 * I < N {
            unroll!(J in 0..4 => {
                most[J] = most[J].max(bits(c[8 * I + J])).max(bits(c[8 * I + 4 + J]));
            });
        }
    });
    let float = |bits: i32| f32::from_bits(bits as u32);
    best.value = [float(most[0].max(most[1])), float(most[2].max(most[3]))];
}
