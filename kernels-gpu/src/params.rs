//! What host and device say to each other: one parameter struct per entry.
//!
//! Addresses are plain `u64` device addresses (0 = absent), so that the same
//! bytes mean the same thing on both sides. Nothing here is a Rust pointer.

/// A run of consecutive rows of a token matrix: one query or one document.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub start: u32,
    /// Number of rows; 0 for an empty item.
    pub len: u32,
}

/// A tile of consecutive rows of one query.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// Index of the query.
    pub query: u32,
    /// First row of the tile within the query; a multiple of the tile height.
    pub row: u32,
}

/// A unit of work: one query tile against a run of entries of that query.
///
/// An *entry* is one (query, document) pair. Entries are numbered so that those
/// of one query are consecutive.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Index into the query tiles.
    pub tile: u32,
    /// First entry.
    pub entry_begin: u32,
    /// One past the last entry.
    pub entry_end: u32,
}

/// An encoded tensor map (`CUtensorMap`): opaque to everyone but the driver and TMA.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// The map handed to kernels that use none.
    pub const NONE: TensorMap = TensorMap([0; 16]);
}

/// A token matrix in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Address of element (0, 0).
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Address of `n` [`Segment`]s, one per item.
    pub segments: u64,
    /// Address of one byte per row, non-zero = valid; 0 = every row is valid.
    pub mask: u64,
}

/// Parameters of every forward entry.
///
/// The tensor maps come first: the PTX step aligns the parameter to 64 bytes, as
/// TMA requires of a map.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ForwardParams {
    /// Queries as a tensor map (sm_90a entries only).
    pub query_map: TensorMap,
    /// Documents as a tensor map (sm_90a entries only).
    pub document_map: TensorMap,
    /// The query tokens.
    pub queries: Matrix,
    /// The document tokens.
    pub documents: Matrix,
    /// Address of the [`QueryTile`]s.
    pub query_tiles: u64,
    /// Address of explicit [`Unit`]s; 0 = units are computed from the fields below.
    pub units: u64,
    /// Address of an i32 document index per entry; 0 = `entry - query * document_stride`.
    pub entry_document: u64,
    /// Address of an i32 score index per entry; 0 = the entry itself.
    pub entry_score: u64,
    /// Address of an i64 per query: where the query tokens of its first entry go in
    /// the pair-major outputs; further entries follow at the query's length. 0 = use
    /// `score_token_base`.
    pub query_token_base: u64,
    /// Address of an i64 per score: where its query tokens go in the pair-major outputs.
    pub score_token_base: u64,
    /// Address of the f32 results: the scores, or partial sums (see `partial_stride`).
    pub results: u64,
    /// Address of the winners, or 0.
    pub winners: u64,
    /// Address of the f32 token scores, or 0.
    pub token_scores: u64,
    /// 0: results are scores, at the entry's score index. Otherwise partial sums, at
    /// `tile_of_query * partial_stride + entry - entry_base`.
    pub partial_stride: u64,
    /// First entry of this launch.
    pub entry_base: u32,
    /// One past the last entry of this launch (computed units).
    pub entry_end: u32,
    /// First query tile of this launch (computed units).
    pub tile_base: u32,
    /// Number of query tiles of this launch (computed units).
    pub n_tiles: u32,
    /// Number of units of this launch.
    pub n_units: u32,
    /// Entries of every query (computed units).
    pub entries_per_query: u32,
    /// Entries per unit (computed units).
    pub entries_per_unit: u32,
    /// See `entry_document`.
    pub document_stride: u32,
    /// Elements per token.
    pub dim: u32,
    /// Bytes of a winner: 2 (u16, none = 0xFFFF) or 4 (i32, none = -1).
    pub winner_bytes: u32,
    /// 1 when rows of both matrices start on 16-byte boundaries (sm_80 entries).
    pub aligned: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of `maxsim_sum_partials`: `scores[i] = Σ_t partials[t][i]`, in the order of `t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumPartialsParams {
    /// Address of the f32 partial sums `[n_tiles, stride]`.
    pub partials: u64,
    /// Address of the f32 scores.
    pub scores: u64,
    /// Address of an i32 score index per entry; 0 = the entry itself.
    pub entry_score: u64,
    /// Distance between tiles in elements.
    pub stride: u64,
    /// First entry of this launch.
    pub entry_base: u32,
    /// Number of entries of this launch.
    pub n_entries: u32,
    /// Tiles to add.
    pub n_tiles: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}
