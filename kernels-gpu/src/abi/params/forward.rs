//! Parameters of the forward kernels, and of the sum of their partial scores.

use crate::abi::params::{Matrix, Segment, TensorMap};

/// A unit of work: one query tile against a run of entries, of which there is at least one.
///
/// In a cross product an *entry* is a document, which meets every query of the tile.
/// Otherwise an entry is one (query, document) pair, tiles hold groups of one query, and
/// entries are numbered so that those of one query are consecutive.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Index into the query tiles.
    pub tile: u32,
    /// First entry.
    pub entry_begin: u32,
    /// One past the last entry.
    pub entry_end: u32,
    /// Rows of the first entry's document: copies start without looking them up.
    pub first: Segment,
}

/// Counters at a workspace's start, all 0 between launches: the first is the dynamic scheduler's,
/// the others count partial sums.
pub const N_COUNTERS: u32 = 16 << 10;

/// Query rows, of all units together, for which units publish a word of eight bytes behind the
/// counters, 0 between launches: the partial maximum over a document that continues in another
/// unit. Other partial results follow.
pub const N_PARTIAL_ROWS: u32 = 36 << 10;

/// Start of a unit of a cross product, for documents of different lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitStart {
    /// First entry; the unit ends where the next one starts.
    pub entry: u32,
    /// Rows of the first entry's document; empty behind the last entry.
    pub first: Segment,
    /// Tokens of that document which the unit before has: a multiple of a tile's, 0 where documents
    /// are not cut.
    pub offset: u32,
}

/// Parameters of every forward entry.
///
/// The tensor maps come first: the PTX step aligns the parameter to 64 bytes, as
/// TMA requires of a map.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ForwardParams {
    /// Queries as a tensor map in boxes of a group's rows (sm_90a entries only).
    pub query_map: TensorMap,
    /// Documents as a tensor map in boxes of a tile's rows (sm_90a entries only).
    pub document_map: TensorMap,
    /// Documents as a tensor map in boxes of a group's rows (sm_90a entries only).
    pub document_tail_map: TensorMap,
    // The fields that the first copies of a CTA depend on stand together, so that they come with
    // two lines of the constant cache.
    /// Number of units of this launch.
    pub n_units: u32,
    /// Number of query tiles of this launch (computed units).
    pub n_tiles: u32,
    /// Dividing by `n_tiles`: see [`crate::abi::params::divide`].
    pub n_tiles_inverse: u32,
    /// First query tile of this launch (computed units).
    pub tile_base: u32,
    /// First entry of this launch.
    pub entry_base: u32,
    /// One past the last entry of this launch (computed units).
    pub entry_end: u32,
    /// Entries of every query (computed units).
    pub entries_per_query: u32,
    /// First entry of query `q` is `q * entry_stride`: 0 in a cross product.
    pub entry_stride: u32,
    /// Entries per unit (computed units without a list).
    pub entries_per_unit: u32,
    /// See `unit_starts`.
    pub n_longer_units: u32,
    /// See `unit_starts`.
    pub longer_by: u32,
    /// Tiles of every query, where entries are a query's own; 0 = look the query up.
    pub tiles_per_query: u32,
    /// Dividing by `tiles_per_query`: see [`crate::abi::params::divide`].
    pub tiles_per_query_inverse: u32,
    /// Elements per token.
    pub dim: u32,
    /// Bytes of a winner: 2 (u16, none = 0xFFFF) or 4 (i32, none = -1).
    pub winner_bytes: u32,
    /// Parts of every query, where partial sums are added.
    pub n_parts: u32,
    /// The document tokens.
    pub documents: Matrix,
    /// Address of explicit [`Unit`]s; 0 = units are computed.
    pub units: u64,
    /// Address of a [`UnitStart`] for each unit of a tile, and one behind the last (computed
    /// units); 0 = every unit has `entries_per_unit`, each of a tile's first `n_longer_units`
    /// `longer_by` more, and the last one those that are left.
    pub unit_starts: u64,
    /// Address of a u32 counter, the dynamic scheduler's, 0 before and after every launch: a CTA's
    /// first unit has its number, ticket `t` is unit `grid + t`. 0 = static scheduler: CTA `b`
    /// works on units `b`, `b + grid`, ... Under Stream-K each unit has a CTA, and here start the
    /// counters before the published partial maxima ([`N_PARTIAL_ROWS`]).
    pub tickets: u64,
    /// Address of an i32 document index per entry; 0 = the entry itself.
    pub entry_document: u64,
    /// Address of the [`crate::abi::params::Group`]s, tile by tile.
    pub groups: u64,
    /// The query tokens.
    pub queries: Matrix,
    /// Address of an i32 score index per entry; 0 = see `query_stride`.
    pub entry_score: u64,
    /// Address of an i64 per query: where the query tokens of its first entry go in
    /// the pair-major outputs; further entries follow at the query's length. 0 = use
    /// `score_token_base`.
    pub query_token_base: u64,
    /// Address of an i64 per score: where its query tokens go in the pair-major outputs.
    pub score_token_base: u64,
    /// Address of the f32 results: the scores, or partial sums.
    pub results: u64,
    /// Address of a u32 per `n_parts` units, 0 before and after every launch; 0 = partial sums are
    /// not added in the kernel. Units `n_parts * i` and following are those of a query's tiles with
    /// the same entries: the CTA that counts the last of them adds the partial sums.
    pub counters: u64,
    /// Address of the f32 scores, where partial sums are added.
    pub scores: u64,
    /// Address of the winners, or 0.
    pub winners: u64,
    /// Address of the f32 token scores, or 0.
    pub token_scores: u64,
    /// A result's index is `part * part_stride + query * query_stride + entry - origin`, or
    /// for scores with a list, the entry's score index.
    pub part_stride: u32,
    /// See `part_stride`. Results per query of a cross product, 0 for other pairings.
    pub query_stride: u32,
    /// See `part_stride`.
    pub origin: u32,
    /// Scores per query of a cross product, 0 for other pairings, where partial sums are added.
    pub score_stride: u32,
    /// 1 when results are partial sums, one per tile of a query.
    pub is_partial: u32,
    /// 1 when rows of both matrices start on 16-byte boundaries (sm_80 entries).
    pub aligned: u32,
    /// Address of an f32 per row of the queries' matrix, which its maxima are multiplied by before
    /// they are added; 0 = tokens have no weights. Winners and token scores do not depend on it,
    /// but kernels whose operands are swapped store no token scores where there are weights
    /// ([`crate::table::forward::Variant::stores_weighted_tokens`]).
    pub query_weights: u64,
}

/// Parameters of the forward entries that normalise rows. The tensor maps come first here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NormalizedParams {
    /// Parameters of every forward entry.
    pub forward: ForwardParams,
    /// Address of an f32 per row of the queries' matrix, which its similarities are multiplied by;
    /// 0 where they are elements of affine or decoded documents.
    pub query_scales: u64,
    /// Address of the scales of the documents' rows: of affine ones a word with the f16 scale and
    /// minimum. Behind the last row there are as many words as a tile has, of any value:
    /// [`crate::abi::params::NORMS_PADDING`]. For kernels that read f16 scales
    /// ([`crate::table::forward::Variant::reads_f16_scales`]) it may be the address of f16 numbers
    /// instead, aligned to 4 all the same: see `document_scales_are_f16`.
    pub document_scales: u64,
    /// 1 where the documents' scales are f16 rather than f32 (such kernels only).
    pub document_scales_are_f16: u32,
    /// 1 where maxima are cosines of angular scores, and [`crate::abi::angular::angular`] of them
    /// is stored and added (kernels that normalise elements only).
    pub maxima_are_cosines: u32,
}

/// Threads per CTA of `maxsim_sum_partials`; each adds the partial sums of one result.
pub const SUM_PARTIALS_THREADS: usize = 256;

/// Parameters of `maxsim_sum_partials`: `scores[i] = Σ_p partials[p][i]`, in the order of the
/// parts `p`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumPartialsParams {
    /// Address of the f32 partial sums `[n_parts, n_results]`.
    pub partials: u64,
    /// Address of the f32 scores.
    pub scores: u64,
    /// Address of an i32 score index per entry; 0 = see `row_len`.
    pub entry_score: u64,
    /// Result `i` belongs to score `score_base + i / row_len * score_stride + i % row_len`.
    pub row_len: u32,
    /// See `row_len`.
    pub score_stride: u32,
    /// See `row_len`.
    pub score_base: u64,
    /// First entry of this launch, for the list of scores.
    pub entry_base: u32,
    /// Number of results of this launch.
    pub n_results: u32,
    /// Parts to add.
    pub n_parts: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}
