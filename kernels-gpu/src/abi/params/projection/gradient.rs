//! Parameters of the kernels for gradients through a projection, and their geometry.

use crate::abi::params::backward::Output;

/// Threads of a CTA.
pub const THREADS: usize = 256;
/// Rows of the results of a CTA.
pub const TILE_M: usize = 128;
/// Columns of them.
pub const TILE_N: usize = 64;
/// Products that a stage has for each of them.
pub const TILE_K: usize = 16;
/// Numbers from one k of A to the next in a stage: so that a warp that stores sixteen k of two
/// rows, or loads every fourth of them of eight, meets no bank twice.
pub const A_PITCH: usize = TILE_M + 2;
/// Numbers from one k of B to the next in a stage.
pub const B_PITCH: usize = TILE_N + 2;
/// Bytes of a stage.
pub const STAGE_BYTES: usize = TILE_K * (A_PITCH + B_PITCH) * 4;
/// Dynamic shared memory: two stages.
pub const SHARED_BYTES: usize = 2 * STAGE_BYTES;

/// No row.
pub const NO_ROW: u32 = u32::MAX;

/// Parameters of `maxsim_projection_product_*`: C[m, n] = Σ_k A[m, k] · B[k, n], over all k or
/// parts of them. A CTA has a tile of a part: `⌈m / 128⌉ · ⌈n / 64⌉` of each, one part behind the
/// other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProductParams {
    /// Address of A, f32.
    pub a: u64,
    /// Address of B, whose row k has n elements.
    pub b: u64,
    /// Distance between rows of B in bytes; 0 = all rows are the same.
    pub b_pitch: u64,
    /// Address of the f32 results `[parts, m, n]`.
    pub out: u64,
    /// Numbers from one row of A to the next, and from one k to the next: one of them is 1.
    pub a_row: u32,
    /// See `a_row`.
    pub a_column: u32,
    /// Rows of A.
    pub m: u32,
    /// Elements of a row of B.
    pub n: u32,
    /// Rows of B.
    pub k: u32,
    /// Rows of B of each part, but of the last one. At most 2³¹.
    pub k_of_part: u32,
    /// 1 to add to what is there, 0 to overwrite it.
    pub adds: u32,
    /// 1 where results are elements of B's type, which [`ProductParams::adds`] is not for.
    pub narrows: u32,
    /// Address of a u32 for each row of A: the row of the results that its own become, or
    /// [`NO_ROW`], which are not stored. 0 = row i becomes row i.
    pub rows: u64,
}

/// Parameters of `maxsim_projection_gather`: row i is a copy of row `rows[i]`, or zeros where that
/// is [`NO_ROW`]. A thread has 16 bytes. Rows of both matrices are aligned to 16 bytes; behind each
/// there are zeros up to the next such boundary.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatherRowsParams {
    /// Address of the matrix that has the rows.
    pub from: u64,
    /// Distance between its rows in bytes.
    pub from_pitch: u64,
    /// Address of a u32 for each row: which one it is.
    pub rows: u64,
    /// Address of the copies.
    pub to: u64,
    /// Distance between them in bytes.
    pub to_pitch: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Bytes of a row, an even number.
    pub row_bytes: u32,
}

/// Shared memory for the words of [`words`] that a block of `maxsim_projection_choose` has at most.
pub const CHOOSE_SHARED_BYTES: usize = choose_shared_bytes(CHOOSE_ROWS_MAX);

/// Rows of a document whose chosen ones are listed, at most.
pub const CHOOSE_ROWS_MAX: u32 = 1 << 16;

/// Words of a bit for each row.
pub const fn words(n_rows: u32) -> u32 {
    n_rows.div_ceil(32)
}

/// Dynamic shared memory of `maxsim_projection_choose` where no document whose chosen rows are
/// listed has more rows: bits, the bits before each word, and a sum of each warp.
pub const fn choose_shared_bytes(n_rows: u32) -> usize {
    8 * words(n_rows) as usize + 4 * (THREADS / 32)
}

/// A document's rows, and the slots that those which some query token chose are put in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChosenDocument {
    /// The document's first row among all hidden states.
    pub first_row: u32,
    /// Number of its rows.
    pub n_rows: u32,
    /// Its first slot.
    pub slot: u32,
    /// Number of its slots: as many as rows, of which each has its own; or fewer, but as many as
    /// winners, and chosen rows have them one after the other.
    pub n_slots: u32,
    /// Its first pair among all.
    pub first_pair: u32,
    /// Number of its pairs.
    pub n_pairs: u32,
}

/// A score's winners and gradient, and where they go.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChosenPair {
    /// Address of the winners, rows of the document; others are none.
    pub winners: u64,
    /// The first of them among all that are written.
    pub to: u64,
    /// The number of the score among the gradients that are read.
    pub score: u32,
    /// Its number among those that are written.
    pub to_score: u32,
    /// Number of winners.
    pub n_tokens: u32,
    /// Bytes of a winner: 2 or 4.
    pub winner_bytes: u32,
}

/// Parameters of `maxsim_projection_choose`: a block for each document.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChooseParams {
    /// Address of a [`ChosenDocument`] for each block.
    pub documents: u64,
    /// Address of their pairs.
    pub pairs: u64,
    /// Address of a gradient of each score, f32.
    pub grad_scores: u64,
    /// Address of what is written: gradients of scores, f32.
    pub to_grad_scores: u64,
    /// Address of what is written: winners, as rows of the document among its slots.
    pub to_winners: u64,
    /// Address of what is written: the row of each slot, or [`NO_ROW`].
    pub rows: u64,
    /// Bytes of a winner that is written: 2 or 4.
    pub winner_bytes: u32,
    /// Words of shared memory for bits: those of the longest document whose rows are listed.
    pub n_words: u32,
}

/// Parameters of `maxsim_projection_active`: slots whose token has a gradient of zeros lose their
/// row, and their hidden states become zeros. A warp has a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActiveParams {
    /// Address of the gradients of tokens, f32 `[slots, dim]`.
    pub gradients: u64,
    /// Address of the row of each slot.
    pub rows: u64,
    /// Address of the hidden states of slots, aligned to 16 bytes.
    pub states: u64,
    /// Distance between them in bytes, a multiple of 16.
    pub states_pitch: u64,
    /// Number of slots.
    pub n_slots: u32,
    /// Elements per token.
    pub dim: u32,
}

/// Parameters of `maxsim_projection_sum`: each result is the sum of a number of each part, in their
/// order. A thread has one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumPartsParams {
    /// The results, one row of elements.
    pub out: Output,
    /// Address of the parts, f32, one behind the other.
    pub parts: u64,
    /// Numbers of a part.
    pub n: u64,
    /// Number of parts.
    pub n_parts: u32,
    /// 0.
    pub reserved: u32,
}

/// Parameters of `maxsim_projection_zeros`: zeros, 16 bytes a thread at a time, by as many blocks
/// as may stay beside other kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ZerosParams {
    /// Address of what is written, aligned to 16 bytes.
    pub to: u64,
    /// Number of 16 bytes.
    pub n_chunks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_no_padding() {
        assert_eq!(size_of::<ProductParams>(), 5 * 8 + 8 * 4);
        assert_eq!(size_of::<ChosenDocument>(), 6 * 4);
        assert_eq!(size_of::<ChosenPair>(), 2 * 8 + 4 * 4);
        assert_eq!(size_of::<ChooseParams>(), 6 * 8 + 2 * 4);
        assert_eq!(size_of::<ActiveParams>(), 4 * 8 + 2 * 4);
        assert_eq!(size_of::<SumPartsParams>(), size_of::<Output>() + 2 * 8 + 2 * 4);
        assert_eq!(size_of::<GatherRowsParams>(), 5 * 8 + 2 * 4);
    }
}
