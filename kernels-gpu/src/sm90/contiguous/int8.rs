//! Codes of one byte, and the scales of their tokens.
//!
//! A chunk's scales come with it, f32 or f16 as the launch has them. Copies begin and end on
//! 16-byte boundaries, and a run begins with any row: a copy begins with the scales of up to seven
//! rows before the chunk's first.
//!
//! A sum becomes a number and then a similarity in two instructions. That the sums of other kernels
//! of INT8 are folded as they are ([`crate::sm90::bitwise_max`]) saves instructions where they are
//! what there is too much of; here they take a fifth of the time that the memory does.

use crate::abi::layout::contiguous::{COPY_ALIGN, scales_before, scales_bytes};
use crate::abi::params::Group;
use crate::primitives::row_scales::{RowScales, times};
use crate::primitives::unroll::unroll;
use crate::ptx::convert::widen_f16;
use crate::ptx::copy::copy_run;
use crate::ptx::element::I8;
use crate::ptx::mma::mma_i8;
use crate::ptx::shared::load_shared_half_or_word;
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::products::Sums;

impl ChunkElement for I8 {
    const HAS_SCALES: bool = true;

    #[inline(always)]
    unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { mma_i8(c, a, b) }
    }

    /// Sums are far below 2²⁴: their numbers are exact.
    #[inline(always)]
    fn similarities(mut sums: Sums, scales: &Scales) -> Sums {
        let scales = scales.widen();
        unroll!(G in 0..2 => {
            unroll!(N in 0..2 => {
                unroll!(R in 0..2 => {
                    unroll!(J in 0..2 => {
                        let sum = sums[G][N][2 * R + J].to_bits() as i32;
                        sums[G][N][2 * R + J] = times(sum as f32, scales[N][J]);
                    });
                });
            });
        });
        sums
    }

    #[inline(always)]
    unsafe fn query_scale(row_scales: RowScales, group: Group, row: u32) -> f32 {
        match row < group.n_rows() {
            // SAFETY: the caller's promise.
            true => unsafe { row_scales.query(group, row) },
            false => 1.0,
        }
    }
}

/// The scales of a lane's tokens of 16, of token `8 n + 2 (lane % 4) + j`, as they are stored.
pub struct Scales {
    /// The bits of f32, or of f16 in the low half.
    stored: [[f32; 2]; 2],
    are_f16: bool,
}

impl Scales {
    pub(super) const NONE: Scales = Scales { stored: [[1.0; 2]; 2], are_f16: false };

    /// Scales that are numbers.
    #[inline(always)]
    pub(super) fn of(stored: [[f32; 2]; 2]) -> Scales {
        Scales { stored, are_f16: false }
    }

    /// Converts the stored values to numbers.
    #[inline(always)]
    pub(super) fn widen(&self) -> [[f32; 2]; 2] {
        let number = |stored: f32| match self.are_f16 {
            true => widen_f16(stored.to_bits())[0],
            false => stored,
        };
        self.stored.map(|scales| scales.map(number))
    }
}

/// Addresses of the scales of a launch's documents.
#[derive(Clone, Copy)]
pub struct ScaleRows {
    /// Address of the first row's, aligned to [`COPY_ALIGN`].
    first: u64,
    /// Whether they are f16 rather than f32.
    are_f16: bool,
}

impl ScaleRows {
    #[inline(always)]
    pub(super) fn new(row_scales: RowScales) -> ScaleRows {
        let are_f16 = row_scales.are_f16();
        let first =
            if are_f16 { row_scales.of_document_f16(0) } else { row_scales.of_documents(0) };
        ScaleRows { first, are_f16 }
    }

    /// Two to the power of this is the bytes of one.
    #[inline(always)]
    fn shift(self) -> u32 {
        if self.are_f16 { 1 } else { 2 }
    }

    /// Bytes of a chunk's copy.
    #[inline(always)]
    pub(super) fn n_bytes(self, chunk_rows: usize) -> u32 {
        scales_bytes(chunk_rows, self.shift()) as u32
    }

    /// Asks for those of a chunk from `row` on.
    ///
    /// # Safety
    /// One lane; the matrix must have the row, and `shared` be a chunk's room for scales, free to
    /// be overwritten; `barrier` must expect [`ScaleRows::n_bytes`].
    #[inline(always)]
    pub(super) unsafe fn copy(self, shared: u32, row: u32, chunk_rows: usize, barrier: u32) {
        let address = self.first + (u64::from(row) << self.shift());
        let address = address & !(COPY_ALIGN as u64 - 1);
        // SAFETY: the caller's promise; there is padding behind the last row's, and the first row's
        // is aligned.
        unsafe { copy_run(shared, address, self.n_bytes(chunk_rows), barrier) };
    }

    /// Loads the scales of 16 tokens, as they are stored, from the chunk's row `first` on, of a
    /// chunk that begins with row `chunk`.
    ///
    /// # Safety
    /// `shared` must be the room that they were copied to; what lies behind them there may be read.
    #[inline(always)]
    pub(super) unsafe fn load(self, shared: u32, chunk: u32, first: u32, lane: u32) -> Scales {
        let before = scales_before(chunk, self.shift());
        let own = shared + before + ((first + 2 * (lane % 4)) << self.shift());
        let mut stored = [[1.0; 2]; 2];
        unroll!(N in 0..2 => {
            unroll!(J in 0..2 => {
                const AT: u32 = (8 * N + J) as u32;
                // SAFETY: the caller's promise.
                let bits = unsafe {
                    load_shared_half_or_word::<{ 2 * AT }, { 4 * AT }>(own, self.are_f16 as u32)
                };
                stored[N][J] = f32::from_bits(bits);
            });
        });
        Scales { stored, are_f16: self.are_f16 }
    }
}
