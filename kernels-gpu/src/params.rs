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

/// Up to 16 consecutive tokens of one query: what one warp multiplies at a time.
///
/// A *tile* is as many groups as a kernel's query tile holds, of one query or of several.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Index of the query; [`Group::NO_QUERY`] for a group without tokens.
    pub query: u32,
    /// First row of the group in the matrix.
    pub start: u32,
    /// First row of the group within its query; a multiple of 16.
    pub row: u32,
    /// Number of rows (0 to 16), and in the bits above [`Group::PART_SHIFT`] which of the
    /// query's tiles this is.
    pub rows_and_part: u32,
}

impl Group {
    /// Rows of a group.
    pub const ROWS: usize = 16;
    /// The query of a group without tokens.
    pub const NO_QUERY: u32 = u32::MAX;
    /// Where the part's number starts.
    pub const PART_SHIFT: u32 = 5;
    /// Tiles that a query may have.
    pub const PARTS_MAX: u32 = 1 << (32 - Self::PART_SHIFT);
    /// A group without tokens.
    pub const NONE: Group = Group { query: Self::NO_QUERY, start: 0, row: 0, rows_and_part: 0 };

    /// The group of rows `row .. row + n_rows` of a query that starts at `start - row`.
    pub const fn new(query: u32, start: u32, row: u32, n_rows: u32, part: u32) -> Group {
        Group { query, start, row, rows_and_part: n_rows | part << Self::PART_SHIFT }
    }

    /// Number of rows.
    #[inline(always)]
    pub const fn n_rows(self) -> u32 {
        self.rows_and_part & ((1 << Self::PART_SHIFT) - 1)
    }

    /// Which of its query's tiles the group is in.
    #[inline(always)]
    pub const fn part(self) -> u32 {
        self.rows_and_part >> Self::PART_SHIFT
    }
}

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

/// Counters at a workspace's start, all 0 between launches: the first is what units are drawn from, the others
/// count parts of sums.
pub const N_COUNTERS: u32 = 16 << 10;

/// Query rows, of all units together, for which units leave a word of eight bytes behind the counters, 0 between
/// launches: what they have found of a document that goes on in another. Other partial results follow.
pub const N_PIECE_ROWS: u32 = 36 << 10;

/// Where a unit of a cross product starts, for documents of different lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitStart {
    /// First entry; the unit ends where the next one starts.
    pub entry: u32,
    /// Rows of the first entry's document; empty behind the last entry.
    pub first: Segment,
    /// Tokens of that document which the unit before has: a multiple of a tile's, 0 where documents are
    /// not cut.
    pub offset: u32,
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
    /// Address of `n` [`Segment`]s, one per item; 0 = item `i` is `item_len` rows from row
    /// `i * item_len`. Without a list nothing has to be fetched before the first copy.
    pub segments: u64,
    /// Address of one byte per row, non-zero = valid; 0 = every row is valid.
    pub mask: u64,
    /// Rows of every item, where there is no list of segments.
    pub item_len: u32,
    /// High word of descriptors of the rows in shared memory ([`crate::layout::sm90::DESCRIPTOR_HIGH`]), for
    /// kernels that have no instructions to spare: the assembler moves a constant into place anew for every
    /// product, what comes with the launch once.
    pub descriptor_high: u32,
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
    // What the first copies of a block depend on stands together, so that it comes with two lines
    // of the constant cache.
    /// Number of units of this launch.
    pub n_units: u32,
    /// Number of query tiles of this launch (computed units).
    pub n_tiles: u32,
    /// Dividing by `n_tiles`: see [`divide`].
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
    /// Dividing by `tiles_per_query`: see [`divide`].
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
    /// Address of a u32 counter that blocks draw their units from, 0 before and after every
    /// launch: a block's first unit has its number, ticket `t` is unit `grid + t`. 0 = block `b`
    /// works on units `b`, `b + grid`, ... Where units end within documents, each has a block, and here
    /// start the counters before what units leave of documents ([`N_PIECE_ROWS`]).
    pub draws: u64,
    /// Address of an i32 document index per entry; 0 = the entry itself.
    pub entry_document: u64,
    /// Address of the [`Group`]s, tile by tile.
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
    /// Address of a u32 per `n_parts` units, 0 before and after every launch; 0 = nobody adds
    /// partial sums. Units `n_parts * i` and following are those of a query's parts with the
    /// same entries: who counts the last of them adds the parts.
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
}

/// Parameters of the forward entries that normalise rows. The tensor maps come first here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NormalizedParams {
    /// Those of every forward entry.
    pub forward: ForwardParams,
    /// Address of an f32 per row of the queries' matrix, which its similarities are multiplied by; 0 where
    /// they are elements of affine documents.
    pub query_norms: u64,
    /// The same of the documents' matrix, of affine ones a word with the f16 scale and minimum, and behind its last row as many as a tile has, whatever
    /// they are: [`NORMS_PADDING`]. For rows of the table that read half scales
    /// ([`crate::variants::Variant::reads_half_scales`]) it may be that of f16 numbers instead, aligned to 4
    /// all the same, plus [`HALVES`].
    pub document_norms: u64,
}

/// What an address of f16 scales is marked with: a field of its own would change the kernels that have none.
pub const HALVES: u64 = 1;

/// Parameters of the forward entries that read documents as runs of rows ([`crate::layout::runs`]).
///
/// What the first copies of a block depend on comes first, so that it comes with one line of the
/// constant cache, although some of it is among those of every entry, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RunParams {
    /// Address of the document tokens.
    pub documents: u64,
    /// Address of [`RunUnit`]s; 0 = units are computed: unit `u` is the `u / n_tiles`-th of tile
    /// `u % n_tiles`, whose first entry is that number times `entry_stride`. Each has
    /// `entries_per_unit`, a tile's first `n_longer_units` one more, and a document `item_len` rows. Where blocks
    /// draw them ([`ForwardParams::draws`]) there is one tile, these are the blocks' first units, and the others
    /// as [`ForwardParams`] says.
    pub units: u64,
    /// Address of the documents' [`Segment`]s; 0 = document `d` is `item_len` rows from row
    /// `d * item_len`.
    pub segments: u64,
    /// Address of the query tokens.
    pub queries: u64,
    /// Number of units of this launch.
    pub n_units: u32,
    /// Number of query tiles of this launch.
    pub n_tiles: u32,
    /// Dividing by `n_tiles`, where there are several: see [`inverse`]; not 0 (computed units).
    pub n_tiles_inverse: u32,
    /// First entry of tile `t` is `t * entry_stride` (computed units).
    pub entry_stride: u32,
    /// See `units`.
    pub entries_per_unit: u32,
    /// See `units`.
    pub n_longer_units: u32,
    /// See `units`.
    pub item_len: u32,
    /// Tokens of every query, where tile `t` holds query `t` and nothing else, whose first row is
    /// `t * query_len`; 0 = the groups have to be looked up.
    pub query_len: u32,
    /// 0, which the assembler does not know: see `sm90::runs`.
    pub zero: u32,
    /// The query tile, where `n_tiles` is 1.
    pub first_tile: u32,
    /// Those of every forward entry, without tensor maps, and without lists of units.
    pub forward: ForwardParams,
}

/// Parameters of such entries whose units end within documents ([`crate::shares`]): computed units of one query tile, one for
/// each block. What a block's first copies depend on comes first, again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CutRunParams {
    /// Of how many steps a document is, [`crate::layout::runs::PRODUCT_ROWS`] rows each, the last one with what is left; two at least.
    pub document_steps: u32,
    /// Dividing by it: see [`inverse`]; not 0.
    pub document_steps_inverse: u32,
    /// Units have `entries_per_unit` steps, not documents, the first `n_longer_units` one more. What they leave of documents
    /// goes behind the counters at [`ForwardParams::draws`] ([`N_PIECE_ROWS`]).
    pub runs: RunParams,
}

/// Parameters of such entries of codes. What a block's first copies depend on comes first, again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScaledRunParams {
    /// As [`NormalizedParams::document_norms`], of rows that read half scales, aligned to 16 but for the mark.
    pub document_scales: u64,
    /// Those of elements.
    pub runs: RunParams,
    /// As [`NormalizedParams::query_norms`].
    pub query_scales: u64,
}

/// A unit of work whose documents are one run of rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunUnit {
    /// Index into the query tiles.
    pub tile: u32,
    /// First entry.
    pub entry: u32,
    /// One past the last entry.
    pub entry_end: u32,
    /// First row.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// Padding that makes it two loads.
    pub reserved: [u32; 3],
}

/// Residual-compressed documents ([`crate::decode`]): codes and buckets of every row, and behind
/// the last one of as many as a tile has, whatever they are, with codes of centroids.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Residuals {
    /// Address of a u32 per row: its centroid.
    pub codes: u64,
    /// Address of the rows' buckets, [`crate::decode::row_bytes`] each.
    pub residuals: u64,
    /// Address of the centroids, on a 16-byte boundary. Rows are filled with zeros up to whole slabs.
    pub centroids: u64,
    /// Address of the weights' tables: [`crate::decode::planes`], and behind them 256 weights.
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
    pub const PLANES_BYTES: u64 = crate::decode::PLANES as u64 * 4;
}

/// Parameters of the forward entries of residual-compressed documents. The tensor maps come first
/// here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ResidualParams {
    /// Those of every forward entry.
    pub forward: ForwardParams,
    /// The documents' tokens.
    pub documents: Residuals,
}

/// Parameters of the forward entries of residual-compressed documents that read centroids' scores. The
/// tensor maps come first here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByCentroidParams {
    /// Those of every forward entry.
    pub forward: ForwardParams,
    /// The documents' tokens.
    pub documents: Residuals,
    /// Address of the scores, [`CENTROID_SCORES_BYTES`] per query tile and centroid, and behind them of a
    /// u32 per query tile, which is not 0 where it has an infinity or a NaN.
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
    /// Those of a forward entry, of which queries, groups and dim count.
    pub forward: ForwardParams,
    /// Address of the centroids, as in [`Residuals`].
    pub centroids: u64,
    /// Where the scores are written, as in [`ByCentroidParams`].
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
pub const CENTROID_SCORES_BYTES: usize = crate::layout::sm80::RESIDUAL_ROWS * 4;

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

/// Numbers behind those of the rows that may be read, and are not used.
pub const NORMS_PADDING: usize = crate::layout::sm90::DOCUMENT_TILE;

/// Squared lengths of rows below this count as this where rows are normalised.
pub const SQUARE_MIN: f32 = 1e-12;

/// `n / d`, as a rule without a division, which would delay a block's first copy. `inverse` is
/// that of `d` ([`inverse`]); `d` is not 0.
#[inline(always)]
pub const fn divide(n: u32, d: u32, inverse: u32) -> u32 {
    match (d, inverse) {
        (1, _) => n,
        (_, 0) => match n.checked_div(d) {
            Some(quotient) => quotient,
            None => 0,
        },
        (_, inverse) => ((n as u64 * inverse as u64) >> 32) as u32,
    }
}

/// For [`divide`] of numbers up to `most`: `1 / d` in units of 2⁻³², rounded up, or 0 where the
/// quotient would not be exact (`most * d` is 2³² or more).
pub const fn inverse(d: u32, most: u32) -> u32 {
    match (d, d as u64 * most as u64) {
        (0 | 1, _) | (_, 0x1_0000_0000..) => 0,
        _ => u32::MAX / d + 1,
    }
}

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

/// Where the query tokens of a score are, for `maxsim_combine_pieces`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTokens {
    /// First row of the query in its matrix.
    pub query_start: u32,
    /// Rows of the query.
    pub query_len: u32,
    /// Where they go in the pair-major outputs. (What pieces leave in the workspace is fewer
    /// than 2³² values.)
    pub first: u32,
    /// Index of its first [`Group`] within the tile of that group.
    pub first_group: u32,
}

/// Parameters of `maxsim_combine_pieces`: documents were cut into `n_pieces` pieces of
/// `piece_len` tokens, and score `p` became the scores `p * n_pieces + i` of its pieces `i`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CombinePiecesParams {
    /// The query tokens.
    pub queries: Matrix,
    /// Address of [`ScoreTokens`] for each score.
    pub score_tokens: u64,
    /// Address of the pieces' f32 token scores, pair-major: those of piece `i` of a score are at
    /// `first * n_pieces + i * query_len`. Pieces without a valid document token have
    /// [`NO_TOKEN_SCORE`] there.
    pub piece_token_scores: u64,
    /// Address of the pieces' i32 winners, counted within the piece, where winners are asked for.
    pub piece_winners: u64,
    /// Address of the f32 scores.
    pub scores: u64,
    /// Address of the winners, or 0.
    pub winners: u64,
    /// Address of the f32 token scores, or 0.
    pub token_scores: u64,
    /// Pieces of every document, some of them empty.
    pub n_pieces: u32,
    /// Tokens of a piece.
    pub piece_len: u32,
    /// Bytes of a winner, as [`ForwardParams::winner_bytes`].
    pub winner_bytes: u32,
    /// Groups of the forward kernel's tiles: 16, or a number that it is a multiple of.
    pub groups_per_tile: u32,
}

/// Bits of a token score that no kernel has stored: a NaN, but not the one that `max.NaN` gives,
/// which is 0x7FFFFFFF.
pub const NO_TOKEN_SCORE: u32 = u32::MAX;

/// Parameters of `maxsim_read`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadParams {
    /// Address of what is read, aligned to 16.
    pub base: u64,
    /// How much is read, in pieces of 16 bytes.
    pub n_pieces: u64,
    /// Address of four bytes that nobody needs.
    pub sink: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_its_rows_and_its_part() {
        for (n_rows, part) in [(0, 0), (1, 5), (16, 0), (16, Group::PARTS_MAX - 1)] {
            let group = Group::new(7, 100, 32, n_rows, part);
            assert_eq!((group.n_rows(), group.part()), (n_rows, part));
        }
        assert_eq!(Group::NONE.n_rows(), 0);
    }

    #[test]
    fn quotients_are_exact() {
        for d in [1, 2, 3, 5, 7, 33, 64, 1000, 65_535, 65_537, 1 << 20, u32::MAX] {
            for most in [0, 1, 2, 1000, 65_535, 65_536, 4_000_000_000 / d, i32::MAX as u32] {
                for n in [0, 1, most / 2, most.saturating_sub(1), most, most / d * d] {
                    assert_eq!(divide(n, d, inverse(d, most)), n / d, "{n} / {d}, up to {most}");
                }
            }
        }
    }

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<Unit>(), 20);
        assert_eq!(size_of::<UnitStart>(), 16);
        assert_eq!(size_of::<Group>(), 16);
        assert_eq!(size_of::<Matrix>(), 40);
        assert_eq!(size_of::<ScoreTokens>(), 16);
        assert_eq!(size_of::<CombinePiecesParams>(), 40 + 6 * 8 + 4 * 4);
        // Three maps, two matrices, 13 addresses, 22 words.
        assert_eq!(size_of::<ForwardParams>(), 3 * 128 + 2 * 40 + 13 * 8 + 22 * 4);
        assert_eq!(size_of::<NormalizedParams>(), size_of::<ForwardParams>() + 2 * 8);
    }
}
