//! Sums over sources: rows of a matrix, each times a factor.
//!
//! A row is read by as many lanes as it has chunks of 16 bytes, up to 32; with fewer than 32 a warp
//! reads as many rows at once as fit, and adds its sums in the end. Sources are in the lanes'
//! registers, 32 at a time, and travel by shuffles. Each lane keeps `LOADS` loads of 16 bytes in
//! flight, of codes 8 bytes.

pub(crate) mod sum;

use crate::abi::params::backward::{LANE_CODES, Rows};
use crate::ptx::convert::widen_f16;
pub use crate::ptx::element::{Bf16, Element, F16, F32, I8};
use crate::ptx::global::{
    load_u8_if, load_u16, load_u16_if, load_u32, load_u32_if, load_u32x2_if, load_u32x4_if,
};
use crate::ptx::math::permute;
use crate::ptx::warp::lane_idx;

/// `$body` for one `$i` after the other, straight on: what a loop indexes would get an address
/// before the loop is unrolled, and live in local memory.
macro_rules! unroll {
    ($i:ident in four => $body:expr) => {
        $crate::primitives::row_vector::unroll!($i in 0 1 2 3 => $body)
    };
    ($i:ident in eight => $body:expr) => {
        $crate::primitives::row_vector::unroll!($i in 0 1 2 3 4 5 6 7 => $body)
    };
    ($i:ident in $($k:literal)* => $body:expr) => {
        $({
            let $i: usize = $k;
            $body
        })*
    };
}
pub(crate) use unroll;

/// Most loads in flight per lane: those of one `unroll!`.
const LOADS_MAX: usize = 4;

/// Elements that a lane reads at once, at most.
pub const LANE_ELEMENTS: usize = 8;

/// Element of a matrix whose rows are read as vectors.
pub trait VectorElement: Element {
    /// Elements that a lane reads at once: those of 16 bytes, or codes of 8.
    const N: usize = 16 / Self::BYTES;
    /// Whether the sum of squares of some row is beyond f32.
    const SQUARES_OVERFLOW: bool = false;
    /// The elements that a lane reads at once, of which there are [`VectorElement::N`].
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS];
}

impl VectorElement for F16 {
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let [a, b] = widen_f16(words[0]);
        let [c, d] = widen_f16(words[1]);
        let [e, f] = widen_f16(words[2]);
        let [g, h] = widen_f16(words[3]);
        [a, b, c, d, e, f, g, h]
    }
}

impl VectorElement for Bf16 {
    const SQUARES_OVERFLOW: bool = true;
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let low = |word: u32| f32::from_bits(word << 16);
        let high = |word: u32| f32::from_bits(word & 0xFFFF_0000);
        let [a, b, c, d] = words;
        [low(a), high(a), low(b), high(b), low(c), high(c), low(d), high(d)]
    }
}

impl VectorElement for F32 {
    const SQUARES_OVERFLOW: bool = true;
    #[inline(always)]
    fn widen(words: [u32; 4]) -> [f32; LANE_ELEMENTS] {
        let [a, b, c, d] = words.map(f32::from_bits);
        [a, b, c, d, 0.0, 0.0, 0.0, 0.0]
    }
}

impl VectorElement for I8 {
    const N: usize = LANE_CODES;
    /// A code above -128 as the last bits of 2²³, which is then subtracted: conversions of bytes
    /// are slow.
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
#[inline(always)]
pub unsafe fn load_element<T: VectorElement>(row: u64, element: u32) -> f32 {
    // SAFETY: two bytes or four per element.
    let word = unsafe {
        match T::N {
            4 => load_u32(row + u64::from(element) * 4),
            _ => load_u16(row + u64::from(element) * 2),
        }
    };
    T::widen([word, 0, 0, 0])[0]
}

/// Columns that a lane reads of every row.
#[derive(Clone, Copy)]
pub struct Columns {
    /// Address of the lane's first element in row 0.
    base: u64,
    pitch_bytes: u64,
    /// First element.
    pub element: u32,
    /// Number of elements, 0 behind the end of a row.
    pub n_elements: u32,
    /// Index of the lane's row among those that the warp reads at once.
    pub slot: u32,
    /// The binary logarithm of the lanes that share a row.
    pub lanes_log2: u32,
}

impl Columns {
    /// The lane's part of column `column` of a matrix.
    #[inline(always)]
    pub fn new<T: VectorElement>(rows: &Rows, column: u32) -> Columns {
        let lane = lane_idx();
        let lanes = 1 << rows.lanes_log2;
        let element = (column * lanes + (lane & (lanes - 1))) * T::N as u32;
        let n_elements = rows.dim.saturating_sub(element).min(T::N as u32);
        Columns {
            base: rows.base + u64::from(element) * T::BYTES as u64,
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
    pub unsafe fn load<T: VectorElement, const ALIGNED: bool>(
        &self,
        row: u32,
        condition: u32,
    ) -> [u32; 4] {
        let address = self.base + u64::from(row) * self.pitch_bytes;
        // SAFETY: the lane's elements of a row that exists.
        unsafe {
            if ALIGNED {
                return match T::BYTES {
                    1 => {
                        let [low, high] = load_u32x2_if(address, condition);
                        [low, high, 0, 0]
                    }
                    _ => load_u32x4_if(address, condition),
                };
            }
            let is_there = |e: usize| condition & u32::from((e as u32) < self.n_elements);
            let mut words = [0u32; 4];
            if T::BYTES == 1 {
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
