//! Parameters of the kernels that project hidden states, and their geometry.

use crate::abi::layout::SLAB_BYTES;

/// Rows of hidden states that a CTA projects.
pub const ROWS: usize = 128;
/// Elements of tokens that it computes at a time.
pub const OUTPUTS: usize = 128;
/// Depth of the ring; a stage has a slab of the rows and one of W.
pub const STAGES: usize = 3;
/// Warps along the rows, and along the outputs.
pub const WARPS: [usize; 2] = [4, 2];
/// Threads of a CTA.
pub const THREADS: usize = 32 * WARPS[0] * WARPS[1];
/// Bytes of a stage.
pub const STAGE_BYTES: usize = (ROWS + OUTPUTS) * SLAB_BYTES;
/// Offset of the sums of squares behind the ring: one per row and warp along the outputs.
pub const SQUARES_OFFSET: usize = STAGES * STAGE_BYTES;
/// Dynamic shared memory.
pub const SHARED_BYTES: usize = SQUARES_OFFSET + ROWS * WARPS[1] * 4;

/// Parameters of the kernels that project hidden states. Rows are aligned to 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProjectionParams {
    /// Address of the first row of hidden states.
    pub hidden: u64,
    /// Distance between rows of hidden states in bytes.
    pub hidden_pitch: u64,
    /// Address of W, `[dim, n_hidden]`.
    pub weight: u64,
    /// Distance between rows of W in bytes.
    pub weight_pitch: u64,
    /// Address of the bias; 0 = none.
    pub bias: u64,
    /// Address of the tokens.
    pub tokens: u64,
    /// Distance between tokens in bytes; behind each there are zeros up to it.
    pub tokens_pitch: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Elements per row of hidden states.
    pub n_hidden: u32,
    /// Elements per token.
    pub dim: u32,
    /// Whether tokens are normalised: 0 or 1.
    pub normalize: u32,
}
