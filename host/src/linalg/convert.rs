//! f16 as f32, exactly.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Converts elements. Where x86 has an instruction for it, a whole slice is converted by one
/// function: the crate `half`, which does it elsewhere, calls one for each 8.
pub(crate) fn widen_f16(elements: &[f16], values: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avx") {
        #[allow(unsafe_code)]
        // SAFETY: the CPU has the instructions, which was just asked.
        return unsafe { widen_f16c(elements, values) };
    }
    elements.convert_to_f32_slice(values);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn widen_f16c(elements: &[f16], values: &mut [f32]) {
    use core::arch::x86_64::{_mm_setr_epi16, _mm256_cvtph_ps};

    let (whole, rest) = elements.as_chunks::<8>();
    let (to, last) = values.as_chunks_mut::<8>();
    for (to, elements) in to.iter_mut().zip(whole) {
        let [a, b, c, d, e, f, g, h] = elements.map(|x| x.to_bits() as i16);
        let wide = _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h));
        *to = bytemuck::cast(wide);
    }
    last.iter_mut().zip(rest).for_each(|(to, x)| *to = x.to_f32());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_are_converted_exactly() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for len in [all.len(), 1, 7, 8, 9] {
            let mut found = vec![f32::NAN; len];
            widen_f16(&all[..len], &mut found);
            for (found, x) in found.into_iter().zip(&all) {
                let expected = x.to_f32();
                let is_same = found.to_bits() == expected.to_bits();
                assert!(is_same || found.is_nan() && expected.is_nan(), "{:#x}", x.to_bits());
            }
        }
    }
}
