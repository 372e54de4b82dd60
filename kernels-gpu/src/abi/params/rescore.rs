//! Host/device ABI of rescoring: winners that another kernel found are scored in full precision.
//!
//! INT8 screening finds which document token each query token chooses; `maxsim_rescore_*` looks
//! those rows up in the matrix that the codes were made of:
//!
//! ```text
//! scores[q, d] = Σ_s ⟨Q[q, s], D[d, winner(q, d, s)]⟩
//! ```

use crate::abi::params::Matrix;
use crate::abi::params::backward::{Rows, columns};

/// Threads per block.
pub const THREADS: usize = 256;

/// The binary logarithm of the warps per block.
pub const WARPS_LOG2: u32 = (THREADS / 32).ilog2();

/// Query tokens that a warp takes at a time: a chunk.
pub const CHUNK_LEN: u32 = 32;

/// Sums that the chunks of a query are added to, by their number: the order of a score's sum is
/// that of the query's tokens, however many warps share them.
pub const SUMS: u32 = 1 << WARPS_LOG2;

/// Dynamic shared memory of a block: the sums of as many pairs as it has warps.
pub const SHARED_BYTES: usize = (SUMS << WARPS_LOG2) as usize * 4;

/// Fewest lanes that share a row, as a binary logarithm: after the sums over them each has the
/// similarity of one of four rows.
const LANES_LOG2_MIN: u32 = 2;

/// Parameters of `maxsim_rescore_*`: `1 << warps_log2` warps per pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RescoreParams {
    /// The query tokens: where queries are.
    pub queries: Matrix,
    /// The document tokens: where documents are.
    pub documents: Matrix,
    /// The queries' rows, with lanes as [`lanes`] has them.
    pub query_rows: Rows,
    /// The documents' rows, with lanes as [`lanes`] has them.
    pub document_rows: Rows,
    /// Address of a [`PairSlot`] per score; 0 = score `p` is that of query `p / row_len`.
    ///
    /// [`PairSlot`]: crate::abi::params::backward::PairSlot
    pub slots: u64,
    /// Address of an i64 per query: where the winners of its first score are, further ones
    /// following at the query's length (computed pairs). 0 = queries are of one length.
    pub query_token_base: u64,
    /// Address of the winners, pair-major.
    pub winners: u64,
    /// Address of the f32 scores.
    pub scores: u64,
    /// Address of the f32 token scores, or 0.
    pub token_scores: u64,
    /// Number of scores.
    pub n_pairs: u32,
    /// Scores per query (computed pairs).
    pub row_len: u32,
    /// 1 when document `p` is that of score `p` (computed pairs); otherwise it is `p % row_len`.
    pub own_documents: u32,
    /// Bytes of a winner: 2 (none = 0xFFFF) or 4 (none = -1).
    pub winner_bytes: u32,
    /// The binary logarithm of the warps that share a pair.
    pub warps_log2: u32,
    /// 1 when all rows start and end on 16-byte boundaries.
    pub whole: u32,
}

/// Lanes that share a row of so many bytes (as a binary logarithm), and how often they must be
/// taken for it.
pub const fn lanes(row_bytes: usize) -> (u32, u32) {
    let (lanes_log2, n_columns) = columns(row_bytes);
    (if lanes_log2 < LANES_LOG2_MIN { LANES_LOG2_MIN } else { lanes_log2 }, n_columns)
}

/// Warps per pair where the longest query has so many tokens (as a binary logarithm): a chunk each,
/// as far as a block goes.
pub const fn warps_log2(query_len: usize) -> u32 {
    let n_chunks = query_len.div_ceil(CHUNK_LEN as usize);
    let wanted = match n_chunks {
        0 => 0,
        n_chunks => n_chunks.next_power_of_two().ilog2(),
    };
    if wanted < WARPS_LOG2 { wanted } else { WARPS_LOG2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_by_4_lanes_at_least() {
        let found = [2, 64, 128, 130, 256, 257, 512, 513, 8192].map(lanes);
        let four = (2, 1);
        assert_eq!(found, [four, four, (3, 1), (4, 1), (4, 1), (5, 1), (5, 1), (5, 2), (5, 16)]);
    }

    #[test]
    fn a_pair_has_a_warp_per_chunk_up_to_a_block() {
        let found = [0, 1, 32, 33, 64, 65, 129, 256, 257, 1024].map(warps_log2);
        assert_eq!(found, [0, 0, 0, 1, 1, 2, 3, 3, 3, 3]);
        assert_eq!((SUMS, SHARED_BYTES), (8, 256));
    }
}
