//! Sums over sources: rows of a matrix, each times a factor.
//!
//! A row is read by as many lanes as it has pieces of 16 bytes, up to 32; where that leaves lanes
//! over, a warp reads as many rows at once as fit, and adds its sums in the end. Sources are in
//! the lanes' registers, 32 at a time, and travel by shuffles. Each lane keeps `LOADS` loads of
//! 16 bytes in flight, of codes 8 bytes.

use super::{LANE_CODES, NO_ROW, Rows};
use crate::ptx::math::{fma, permute};
#[cfg(maxsim_arch = "sm_80")]
use crate::ptx::memory::{load_u16, load_u32};
use crate::ptx::wide::{
    lane_idx, load_u8_if, load_u16_if, load_u32_if, load_u32x2_if, load_u32x4_if, shuffle,
    shuffle_xor_by, widen_f16,
};

/// `$body` for one `$i` after the other, straight on: what a loop indexes would get an address
/// before the loop is unrolled, and live in local memory.
macro_rules! unroll {
    ($i:ident in four => $body:expr) => {
        $crate::gradient::sources::unroll!($i in 0 1 2 3 => $body)
    };
    ($i:ident in eight => $body:expr) => {
        $crate::gradient::sources::unroll!($i in 0 1 2 3 4 5 6 7 => $body)
    };
    ($i:ident in $($k:literal)* => $body:expr) => {
        $({
            let $i: usize = $k;
            $body
        })*
    };
}
pub(super) use unroll;

/// Most loads in flight per lane: those of one `unroll!`.
const LOADS_MAX: usize = 4;

/// Elements that a lane reads at once, at most.
pub const LANE_ELEMENTS: usize = 8;

/// What the elements of a matrix are.
pub trait Element {
    /// Elements that a lane reads at once: those of 16 bytes, or codes of 8.
    const N: usize;
    /// Bytes of an element.
    const SIZE: usize = 16 / Self::N;
    /// Whether the sum of squares of some row is beyond f32.
    const SQUARES_OVERFLOW: bool = false;
    /// The elements that a lane reads at once, of which there are [`Element::N`].
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS];
}

/// IEEE 754 binary16.
#[derive(Clone, Copy)]
pub struct F16;
/// bfloat16.
#[derive(Clone, Copy)]
pub struct Bf16;
/// IEEE 754 binary32.
#[derive(Clone, Copy)]
pub struct F32;
/// Signed bytes.
#[derive(Clone, Copy)]
pub struct I8;

impl Element for F16 {
    const N: usize = 8;
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let [a, b] = widen_f16(words[0]);
        let [c, d] = widen_f16(words[1]);
        let [e, f] = widen_f16(words[2]);
        let [g, h] = widen_f16(words[3]);
        [a, b, c, d, e, f, g, h]
    }
}

impl Element for Bf16 {
    const N: usize = 8;
    const SQUARES_OVERFLOW: bool = true;
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let low = |word: u32| f32::from_bits(word << 16);
        let high = |word: u32| f32::from_bits(word & 0xFFFF_0000);
        let [a, b, c, d] = words;
        [low(a), high(a), low(b), high(b), low(c), high(c), low(d), high(d)]
    }
}

impl Element for F32 {
    const N: usize = 4;
    const SQUARES_OVERFLOW: bool = true;
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let [a, b, c, d] = words.map(f32::from_bits);
        [a, b, c, d, 0.0, 0.0, 0.0, 0.0]
    }
}

impl Element for I8 {
    const N: usize = LANE_CODES;
    const SIZE: usize = 1;
    /// A code above -128 as the last bits of 2²³, which is then subtracted: conversions of bytes are slow.
    #[inline(always)]
    fn widen([low, high, ..]: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        const BIAS: f32 = 8_388_608.0 + 128.0;
        let [low, high] = [low ^ 0x8080_8080, high ^ 0x8080_8080];
        let widen =
            |word: u32, selector: u32| f32::from_bits(permute(word, 0x4B00_0000, selector)) - BIAS;
        [
            widen(low, 0x7440),
            widen(low, 0x7441),
            widen(low, 0x7442),
            widen(low, 0x7443),
            widen(high, 0x7440),
            widen(high, 0x7441),
            widen(high, 0x7442),
            widen(high, 0x7443),
        ]
    }
}

/// An element of the row at an address.
///
/// # Safety
/// The row must have it.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn load_element<T: Element>(row: u64, element: u32) -> f32 {
    // SAFETY: two bytes or four per element.
    let word = unsafe {
        match T::N {
            4 => load_u32(row + u64::from(element) * 4),
            _ => load_u16(row + u64::from(element) * 2),
        }
    };
    T::widen([word, 0, 0, 0])[0]
}

/// What a lane reads of every row.
#[derive(Clone, Copy)]
pub struct Columns {
    /// Address of the lane's first element in row 0.
    base: u64,
    pitch_bytes: u64,
    /// First element.
    pub element: u32,
    /// Number of elements, 0 behind the end of a row.
    pub n_elements: u32,
    /// Which of the rows that the warp reads at once.
    pub slot: u32,
    /// The binary logarithm of the lanes that share a row.
    pub lanes_log2: u32,
}

impl Columns {
    /// The lane's part of column `column` of a matrix.
    #[inline(always)]
    pub fn new<T: Element>(rows: &Rows, column: u32) -> Columns {
        let lane = lane_idx();
        let lanes = 1 << rows.lanes_log2;
        let element = (column * lanes + (lane & (lanes - 1))) * T::N as u32;
        let n_elements = rows.dim.saturating_sub(element).min(T::N as u32);
        Columns {
            base: rows.base + u64::from(element) * T::SIZE as u64,
            pitch_bytes: rows.pitch_bytes,
            element,
            n_elements,
            slot: lane >> rows.lanes_log2,
            lanes_log2: rows.lanes_log2,
        }
    }

    /// Whether the lane stores sums: one of those that have the same elements.
    #[inline(always)]
    pub fn stores(&self) -> bool {
        self.slot == 0 && self.n_elements > 0
    }

    /// The elements of a row, zeros where `condition` is 0, and anything behind its end.
    ///
    /// # Safety
    /// Where `condition` is not 0, the matrix must have the row; `ALIGNED` is [`Rows::aligned`].
    #[inline(always)]
    pub unsafe fn load<T: Element, const ALIGNED: bool>(
        &self,
        row: u32,
        condition: u32,
    ) -> [u32; 4] {
        let address = self.base + u64::from(row) * self.pitch_bytes;
        // SAFETY: the lane's elements of a row that exists.
        unsafe {
            if ALIGNED {
                return match T::SIZE {
                    1 => {
                        let [low, high] = load_u32x2_if(address, condition);
                        [low, high, 0, 0]
                    }
                    _ => load_u32x4_if(address, condition),
                };
            }
            let is_there = |e: usize| condition & u32::from((e as u32) < self.n_elements);
            let mut words = [0u32; 4];
            if T::SIZE == 1 {
                unroll!(e in eight => {
                    let code = load_u8_if(address + e as u64, is_there(e));
                    words[e / 4] |= code << (e % 4 * 8);
                });
                return words;
            }
            unroll!(k in four => {
                let (first, address) = (k * T::N / 4, address + k as u64 * 4);
                words[k] = match T::N {
                    4 => load_u32_if(address, is_there(first)),
                    _ => {
                        let low = load_u16_if(address, is_there(first));
                        low | load_u16_if(address + 2, is_there(first + 1)) << 16
                    }
                };
            });
            words
        }
    }
}

/// A lane's sums.
pub type Sums = [f32; LANE_ELEMENTS];

/// Adds sources `first .. first + count` of the 32 that the lanes hold.
///
/// # Safety
/// A whole warp, with the same `first` and `count`; rows other than [`NO_ROW`] must exist;
/// `ALIGNED` is [`Rows::aligned`].
#[inline(always)]
pub unsafe fn add<T: Element, const ALIGNED: bool, const LOADS: usize>(
    columns: &Columns,
    sources: [u32; 2],
    first: u32,
    count: u32,
    sums: &mut Sums,
) {
    // SAFETY: the caller's promise.
    unsafe { add_and::<T, ALIGNED, LOADS>(columns, sources, first, count, sums, |_, _| {}) }
}

/// As [`add`], and calls `visit` for all sources that the warp reads at once: with how many come
/// before them, and the factor of the one that this lane reads.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn add_and<T: Element, const ALIGNED: bool, const LOADS: usize>(
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
unsafe fn one<T: Element, const ALIGNED: bool>(
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
pub fn multiply<T: Element>(words: [u32; 4], factor: f32, sums: &mut Sums) {
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
pub unsafe fn add_slots<T: Element>(columns: &Columns, sums: &mut Sums) {
    let mut mask = 16;
    while mask >> columns.lanes_log2 != 0 {
        unroll!(e in eight => if e < T::N {
            // SAFETY: the whole warp is here, with the same mask.
            sums[e] += unsafe { shuffle_xor_by(sums[e], mask) };
        });
        mask /= 2;
    }
}
