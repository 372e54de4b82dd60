//! Parameters of the kernels that project hidden states, and their geometry.

pub mod gradient;

use crate::abi::layout::SLAB_BYTES;
use crate::abi::params::TensorMap;

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

/// Geometry of the kernels for sm_90a, which read rows and W by tensor maps in boxes of
/// [`DOCUMENT_TILE`](crate::abi::layout::sm90::DOCUMENT_TILE) rows.
pub mod sm90 {
    use super::{OUTPUTS, SLAB_BYTES};
    use crate::abi::layout::sm90::{DOCUMENT_TILE, query_tile, threads};

    /// Warpgroups that multiply.
    pub const CONSUMERS: usize = 2;
    /// 64-row fragments of each.
    pub const FRAGMENTS: usize = 2;
    /// Rows of hidden states that a CTA projects at a time.
    pub const ROWS: usize = query_tile(CONSUMERS, FRAGMENTS);
    /// Depth of the ring; a stage has a slab of the rows and one of W.
    pub const STAGES: usize = 4;
    /// Threads of a CTA.
    pub const THREADS: usize = threads(CONSUMERS);
    /// Bytes of the rows' slab of a stage.
    pub const ROWS_BYTES: usize = ROWS * SLAB_BYTES;
    /// Bytes of a stage.
    pub const STAGE_BYTES: usize = ROWS_BYTES + OUTPUTS * SLAB_BYTES;
    /// Offset of the barriers behind the ring: two for each stage.
    pub const BARRIERS_OFFSET: usize = STAGES * STAGE_BYTES;
    /// Dynamic shared memory.
    pub const SHARED_BYTES: usize = BARRIERS_OFFSET + 2 * 8 * STAGES;

    const _: () = assert!(ROWS.is_multiple_of(DOCUMENT_TILE) && OUTPUTS == DOCUMENT_TILE);
}

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
    /// 1 where tokens are f32, whatever the element type.
    pub tokens_are_f32: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of the kernels for sm_90a. The tensor maps come first, as in
/// [`ForwardParams`](crate::abi::params::ForwardParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedParams {
    /// All hidden states as a tensor map in boxes of a document tile's rows.
    pub hidden_map: TensorMap,
    /// W as such.
    pub weight_map: TensorMap,
    /// The rest. Addresses and pitches of hidden states and W are not used.
    pub projection: ProjectionParams,
    /// The first row among all hidden states.
    pub first_row: u32,
    /// 0.
    pub reserved: u32,
}
