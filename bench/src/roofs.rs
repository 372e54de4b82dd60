//! What one core can do at most: fused multiply-adds of f32, and bytes that it reads.

use std::hint::black_box;

use crate::object::Result;

/// Sums that grow at once, more than a core has multiply-adds under way.
const SUMS: usize = 12;

/// Turns between two looks at the counter.
const TURNS: usize = 1000;

/// Sums of a read that grow at once, and words of a block that they are over.
const LANES: usize = 64;

/// Makes at least `n` fused multiply-adds that depend on none but those of their sum, by the
/// instruction set of a name, `portable`, `avx2` or `avx512`; how many they were.
pub(crate) fn multiply_adds(instructions: &str, n: u64) -> Result<f64> {
    let per_round = |lanes: usize| (SUMS * lanes * TURNS) as u64;
    let rounds = |lanes: usize| n.div_ceil(per_round(lanes)).max(1);
    let lanes = match instructions {
        #[cfg(target_arch = "x86_64")]
        "avx2" if is_x86_feature("avx2") => {
            // SAFETY: the CPU has these instructions.
            (0..rounds(8)).for_each(|_| unsafe { x86::of_avx2() });
            8
        }
        #[cfg(target_arch = "x86_64")]
        "avx512" if is_x86_feature("avx512f") => {
            // SAFETY: the CPU has these instructions.
            (0..rounds(16)).for_each(|_| unsafe { x86::of_avx512() });
            16
        }
        "portable" => {
            (0..rounds(4)).for_each(|_| portable());
            4
        }
        _ => return Err(format!("no multiply-adds by {instructions} here")),
    };
    Ok((rounds(lanes) * per_round(lanes)) as f64)
}

#[cfg(target_arch = "x86_64")]
fn is_x86_feature(name: &str) -> bool {
    match name {
        "avx512f" => std::arch::is_x86_feature_detected!("avx512f"),
        _ => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
    }
}

/// By whatever the compiler makes of it; the multiplication and the addition may be two.
fn portable() {
    let (x, y) = (black_box([0.5f32; 4]), black_box([0.25f32; 4]));
    let mut sums = [[1.0f32; 4]; SUMS];
    for _ in 0..TURNS {
        for sum in &mut sums {
            for i in 0..4 {
                sum[i] = sum[i] * x[i] + y[i];
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
    use std::hint::black_box;

    use super::{SUMS, TURNS};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn of_avx2() {
        let (x, y) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
        let mut sums = [y; SUMS];
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn of_avx512() {
        let (x, y) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut sums = [y; SUMS];
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }
}

/// Reads words once, one after the other, and gives what depends on all of them.
pub(crate) fn read(words: &[u64]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature("avx2") {
        // SAFETY: the CPU has these instructions.
        return unsafe { read_avx2(words) };
    }
    read_words(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn read_avx2(words: &[u64]) -> f64 {
    read_words(words)
}

#[inline(always)]
fn read_words(words: &[u64]) -> f64 {
    let mut sums = [0u64; LANES];
    for block in words.chunks_exact(LANES) {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0u64, |all, &sum| all.wrapping_add(sum)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_so_many_are_made_and_unknown_instructions_are_refused() {
        assert!(multiply_adds("portable", 1_000_000).unwrap() >= 1e6);
        assert!(multiply_adds("avx", 1).unwrap_err().contains("avx"));
    }

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..1024).collect();
        assert_eq!(read(&words), (1023 * 512) as f64);
        assert_eq!(read(&words), read_words(&words));
    }
}
