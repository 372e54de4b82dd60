//! Parameters of the forward kernels of residual-compressed documents.

use crate::abi::params::ForwardParams;

/// Residual-compressed documents ([`crate::abi::residual_chunk`]): codes and buckets of every row,
/// and behind the last one of as many as a tile has, whatever they are, with codes of centroids.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Residuals {
    /// Address of a u32 per row: its centroid.
    pub codes: u64,
    /// Address of the rows' buckets, [`crate::abi::residual_chunk::row_bytes`] each.
    pub residuals: u64,
    /// Address of the centroids, on a 16-byte boundary. Rows are filled with zeros up to whole
    /// slabs.
    pub centroids: u64,
    /// Address of the weights' tables: [`crate::abi::residual_chunk::planes`], and behind them 256
    /// weights.
    pub weights: u64,
    /// Address of r, an f32 per row; 0 where tokens are not normalised.
    pub norms: u64,
    /// Distance between rows' buckets in bytes.
    pub row_bytes: u32,
    /// Distance between centroids in bytes.
    pub pitch_bytes: u32,
    /// Bits of a bucket.
    pub nbits: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

impl Residuals {
    /// Bytes of the tables before the weights themselves.
    pub const PLANES_BYTES: u64 = crate::abi::residual_chunk::PLANES as u64 * 4;
}

/// Parameters of the forward entries of residual-compressed documents. The tensor maps come first
/// here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ResidualParams {
    /// Parameters of every forward entry.
    pub forward: ForwardParams,
    /// The documents' tokens.
    pub documents: Residuals,
}

/// Parameters of the forward entries of residual-compressed documents that read centroids' scores.
/// The tensor maps come first here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByCentroidParams {
    /// Parameters of every forward entry.
    pub forward: ForwardParams,
    /// The documents' tokens.
    pub documents: Residuals,
    /// Address of the scores, [`CENTROID_SCORES_BYTES`] per query tile and centroid, and behind
    /// them of a u32 per query tile, which is not 0 where it has an infinity or a NaN.
    pub scores: u64,
    /// Number of centroids.
    pub n_centroids: u32,
    /// Number of query tiles.
    pub n_tiles: u32,
}

/// Parameters of the kernels that compute centroids' scores.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CentroidScoresParams {
    /// Parameters of a forward entry, of which queries, groups and dim count.
    pub forward: ForwardParams,
    /// Address of the centroids, as in [`Residuals`].
    pub centroids: u64,
    /// Address of the scores, as in [`ByCentroidParams`].
    pub scores: u64,
    /// Distance between centroids in bytes.
    pub pitch_bytes: u32,
    /// Number of centroids.
    pub n_centroids: u32,
    /// Number of query tiles.
    pub n_tiles: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Bytes of a centroid's scores, one per row of a query tile.
pub const CENTROID_SCORES_BYTES: usize = crate::abi::layout::sm80::RESIDUAL_ROWS * 4;

/// Parameters of the kernels that find what decoded rows are normalised by.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResidualNormsParams {
    /// The rows; r is written to `norms`.
    pub tokens: Residuals,
    /// Number of rows.
    pub n_rows: u32,
    /// Elements per row.
    pub dim: u32,
}

/// Parameters of the kernels that decode rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodedRowsParams {
    /// The rows to decode.
    pub tokens: Residuals,
    /// Address of the decoded rows, on a 16-byte boundary.
    pub rows: u64,
    /// Address of an f32 per row: r, or 1 where rows are not normalised.
    pub scales: u64,
    /// Distance between decoded rows in bytes: whole chunks.
    pub pitch_bytes: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// Elements per row.
    pub dim: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}
