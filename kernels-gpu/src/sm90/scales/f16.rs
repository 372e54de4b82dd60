//! Factors of scales that are f16 in memory: two bytes less of every token, where reading is all.
//!
//! A copy has whole words, and a document may begin with the upper half of one: each lane copies
//! the words that its columns' halves are in, to where their factors go. Two lanes request the same
//! word at once, which the memory reads once; and no lane needs another lane's copy.

use crate::primitives::row_scales::RowScales;
use crate::ptx::convert::widen_f16;
use crate::sm90::scales::StoredScales;

/// Scales that are f16. A word with the half of a document's row begins with that row or the one
/// before, and ends with that row or the one behind: there is padding.
pub(super) struct Halves {
    /// Whether the lane's halves are upper ones, a bit for each tile in flight; the last one's is
    /// the lowest.
    upper: u32,
}

impl Halves {
    /// Before the first tile.
    pub(super) const NONE: Halves = Halves { upper: 0 };
}

impl StoredScales for Halves {
    const STEP: u64 = 64;
    /// Either half is 1.
    const ONE: f32 = f32::from_bits(0x3C00_3C00);

    #[inline(always)]
    fn word_of(&mut self, row_scales: &RowScales, row: u32) -> u64 {
        let place = row_scales.of_document_f16(row);
        self.upper = self.upper << 1 | (place >> 1) as u32 & 1;
        place & !3
    }

    #[inline(always)]
    fn scale(&self, word: f32, n_later: u32) -> f32 {
        let upper = self.upper >> n_later & 1;
        widen_f16(word.to_bits() >> (16 * upper))[0]
    }
}
