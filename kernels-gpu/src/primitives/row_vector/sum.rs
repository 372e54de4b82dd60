//! Sums of rows, each times a factor.

use crate::abi::params::backward::NO_ROW;
use crate::primitives::row_vector::{Columns, LOADS_MAX, Sums, VectorElement, unroll};
use crate::ptx::math::fma;
use crate::ptx::warp::{shuffle, shuffle_xor_by};

/// Adds sources `first .. first + count` of the 32 that the lanes hold.
///
/// # Safety
/// A whole warp, with the same `first` and `count`; rows other than [`NO_ROW`] must exist;
/// `ALIGNED` is `Rows::aligned`.
#[inline(always)]
pub unsafe fn add<T: VectorElement, const ALIGNED: bool, const LOADS: usize>(
    columns: &Columns,
    sources: [u32; 2],
    first: u32,
    count: u32,
    sums: &mut Sums,
) {
    // SAFETY: the caller's promise.
    unsafe { add_and::<T, ALIGNED, LOADS>(columns, sources, first, count, sums, |_, _| {}) }
}

/// Adds sources as [`add`] does, and calls `visit` for all that the warp reads at once: with how
/// many come before them, and the factor of the one that this lane reads.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn add_and<T: VectorElement, const ALIGNED: bool, const LOADS: usize>(
    columns: &Columns,
    [row, factor]: [u32; 2],
    first: u32,
    count: u32,
    sums: &mut Sums,
    mut visit: impl FnMut(u32, f32),
) {
    const { assert!(LOADS <= LOADS_MAX) };
    let slots = 32 >> columns.lanes_log2;
    let mut done = 0;
    while done < count {
        // Rows that are not aligned are read element by element, which is enough in flight.
        if !ALIGNED {
            // SAFETY: the caller's promise.
            let (words, factor) =
                unsafe { one::<T, ALIGNED>(columns, [row, factor], first, done, count) };
            visit(done, factor);
            multiply::<T>(words, factor, sums);
            done += slots;
            continue;
        }
        let mut words = [[0u32; 4]; LOADS_MAX];
        let mut factors = [0.0f32; LOADS_MAX];
        unroll!(u in four => if u < LOADS {
            // SAFETY: the caller's promise.
            (words[u], factors[u]) = unsafe {
                let done = done + u as u32 * slots;
                one::<T, ALIGNED>(columns, [row, factor], first, done, count)
            };
        });
        // Before the sums, which wait for what is loaded.
        unroll!(u in four => if u < LOADS {
            visit(done + u as u32 * slots, factors[u]);
        });
        unroll!(u in four => if u < LOADS {
            multiply::<T>(words[u], factors[u], sums);
        });
        done += LOADS as u32 * slots;
    }
}

/// The lane's elements of one source, of those from `first + done` on, and its factor.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub(super) unsafe fn one<T: VectorElement, const ALIGNED: bool>(
    columns: &Columns,
    [row, factor]: [u32; 2],
    first: u32,
    done: u32,
    count: u32,
) -> ([u32; 4], f32) {
    let i = done + columns.slot;
    // SAFETY: the whole warp is here; the caller's promise for the rows.
    unsafe {
        let row = shuffle(row, first + i);
        let factor = f32::from_bits(shuffle(factor, first + i));
        let is_there = (i < count) & (row != NO_ROW) & (columns.n_elements > 0);
        let words = columns.load::<T, ALIGNED>(row, u32::from(is_there));
        (words, if is_there { factor } else { 0.0 })
    }
}

/// Adds elements times a factor.
#[inline(always)]
pub fn multiply<T: VectorElement>(words: [u32; 4], factor: f32, sums: &mut Sums) {
    let values = T::widen(words);
    unroll!(e in eight => if e < T::N {
        sums[e] = fma(factor, values[e], sums[e]);
    });
}

/// The sums of the lanes that have the same elements, added: every one of them gets the result.
///
/// # Safety
/// A whole warp.
#[inline(always)]
pub unsafe fn add_slots<T: VectorElement>(columns: &Columns, sums: &mut Sums) {
    let mut mask = 16;
    while mask >> columns.lanes_log2 != 0 {
        unroll!(e in eight => if e < T::N {
            // SAFETY: the whole warp is here, with the same mask.
            sums[e] += unsafe { shuffle_xor_by(sums[e], mask) };
        });
        mask /= 2;
    }
}
