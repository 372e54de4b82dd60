//! Stores sums.

use crate::abi::params::backward::Output;
use crate::primitives::row_vector::{Columns, Sums, VectorElement, unroll};
use crate::ptx::convert::{narrow_bf16, narrow_f16, widen_f16};
use crate::ptx::global::{load_f32, read_u16, read_u32x4, store_u16, store_u32, store_u32x4};

/// Stores a lane's sums as its elements of a row, or adds them to what is there.
///
/// # Safety
/// The output must have the row, and only this warp may write the column of it.
#[inline(always)]
pub unsafe fn store<T: VectorElement>(output: &Output, columns: &Columns, row: u64, sums: &Sums) {
    if columns.stores() {
        // SAFETY: the caller's promise.
        unsafe { store_lane::<T>(output, columns, row, sums) };
    }
}

/// Stores the elements of every lane that has any: lanes that read different rows at once store
/// different ones.
///
/// # Safety
/// The output must have the row, and only this lane may write its elements of it.
#[inline(always)]
pub unsafe fn store_lane<T: VectorElement>(
    output: &Output,
    columns: &Columns,
    row: u64,
    sums: &Sums,
) {
    let first = row * u64::from(output.dim) + u64::from(columns.element);
    // SAFETY: the caller's promise; whole lanes are aligned where the output says so.
    unsafe {
        if output.aligned != 0 && columns.n_elements == T::N as u32 {
            return store_whole::<T>(output, first, sums);
        }
        unroll!(e in eight => if (e as u32) < columns.n_elements {
            store_element(output, first + e as u64, sums[e]);
        });
    }
}

/// # Safety
/// As [`store`], for a whole lane of an aligned output.
#[inline(always)]
unsafe fn store_whole<T: VectorElement>(output: &Output, first: u64, sums: &Sums) {
    let mut sums = *sums;
    // SAFETY: the caller's promise.
    unsafe {
        if output.element == Output::F32 {
            let address = output.base + first * 4;
            unroll!(k in 0 1 => if k < T::N / 4 {
                let mut four = [sums[4 * k], sums[4 * k + 1], sums[4 * k + 2], sums[4 * k + 3]];
                if output.adds != 0 {
                    let there = read_u32x4(address + k as u64 * 16).map(f32::from_bits);
                    unroll!(e in four => four[e] += there[e]);
                }
                store_u32x4(address + k as u64 * 16, four.map(f32::to_bits));
            });
            return;
        }
        // Outputs of two bytes are of inputs of two bytes, or of codes: eight elements.
        let address = output.base + first * 2;
        let is_f16 = output.element == Output::F16;
        if output.adds != 0 {
            let there = read_u32x4(address);
            unroll!(k in four => {
                let [low, high] = widen(is_f16, there[k]);
                sums[2 * k] += low;
                sums[2 * k + 1] += high;
            });
        }
        let mut words = [0u32; 4];
        unroll!(k in four => words[k] = narrow(is_f16, sums[2 * k], sums[2 * k + 1]));
        store_u32x4(address, words);
    }
}

/// Stores one element, or adds to it.
///
/// # Safety
/// The output must have the element, for this thread to write.
#[inline(always)]
pub unsafe fn store_element(output: &Output, index: u64, mut sum: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        if output.element == Output::F32 {
            let address = output.base + index * 4;
            if output.adds != 0 {
                sum += load_f32(address);
            }
            return store_u32(address, sum.to_bits());
        }
        let address = output.base + index * 2;
        let is_f16 = output.element == Output::F16;
        if output.adds != 0 {
            sum += widen(is_f16, read_u16(address))[0];
        }
        store_u16(address, narrow(is_f16, sum, 0.0));
    }
}

#[inline(always)]
fn widen(is_f16: bool, pair: u32) -> [f32; 2] {
    match is_f16 {
        true => widen_f16(pair),
        false => [f32::from_bits(pair << 16), f32::from_bits(pair & 0xFFFF_0000)],
    }
}

#[inline(always)]
fn narrow(is_f16: bool, low: f32, high: f32) -> u32 {
    match is_f16 {
        true => narrow_f16(low, high),
        false => narrow_bf16(low, high),
    }
}
