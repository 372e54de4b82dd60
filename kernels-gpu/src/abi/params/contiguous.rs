//! Parameters of the forward kernels that read documents as contiguous rows
//! ([`crate::abi::layout::contiguous`]).

use crate::abi::params::ForwardParams;

/// Parameters of the forward entries that read documents as runs of rows
/// ([`crate::abi::layout::contiguous`]).
///
/// The fields that a block's first copies depend on come first, in one line of the constant cache,
/// although some of them are among those of every entry, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContiguousParams {
    /// Address of the document tokens.
    pub documents: u64,
    /// Address of [`ContiguousUnit`]s; 0 = units are computed: unit `u` is the `u / n_tiles`-th of
    /// tile `u % n_tiles`, whose first entry is that number times `entry_stride`. Each has
    /// `entries_per_unit`, a tile's first `n_longer_units` one more, and a document `item_len`
    /// rows. With the dynamic scheduler ([`ForwardParams::tickets`]) there is one tile, these are
    /// the CTAs' first units, and the others are as [`ForwardParams`] states.
    pub units: u64,
    /// Address of the documents' [`crate::abi::params::Segment`]s; 0 = document `d` is `item_len`
    /// rows from row `d * item_len`.
    pub segments: u64,
    /// Address of the query tokens.
    pub queries: u64,
    /// Number of units of this launch.
    pub n_units: u32,
    /// Number of query tiles of this launch.
    pub n_tiles: u32,
    /// Dividing by `n_tiles`, where there are several: see [`crate::abi::params::inverse`]; not 0
    /// (computed units).
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
    /// 0, which the assembler does not know: see `sm90::contiguous`.
    pub zero: u32,
    /// The query tile, where `n_tiles` is 1.
    pub first_tile: u32,
    /// Parameters of every forward entry, without tensor maps, and without lists of units.
    pub forward: ForwardParams,
}

/// Parameters of such entries whose units end within documents ([`crate::abi::stream_k`]): computed
/// units of one query tile, one for each block. What a block's first copies depend on comes first,
/// again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContiguousStreamKParams {
    /// Steps of a document, two at least, of [`crate::abi::layout::contiguous::PRODUCT_ROWS`] rows
    /// each; the last one has the rest.
    pub document_steps: u32,
    /// Dividing by it: see [`crate::abi::params::inverse`]; not 0.
    pub document_steps_inverse: u32,
    /// Units have `entries_per_unit` steps, not documents, the first `n_longer_units` one more.
    /// Their partial maxima are published behind the counters at [`ForwardParams::tickets`]
    /// ([`crate::abi::params::N_PARTIAL_ROWS`]).
    pub runs: ContiguousParams,
}

/// Parameters of such entries of codes. The fields of a block's first copies come first here, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScaledContiguousParams {
    /// Address of the scales of document rows, as
    /// [`crate::abi::params::NormalizedParams::document_scales`]; of kernels that read f16 scales,
    /// aligned to 16.
    pub document_scales: u64,
    /// 1 where these are f16 ([`crate::abi::params::NormalizedParams::document_scales_are_f16`]).
    pub document_scales_are_f16: u32,
    /// Padding.
    pub reserved: u32,
    /// Parameters of the entries for elements.
    pub runs: ContiguousParams,
    /// Address of the scales of query rows
    /// ([`crate::abi::params::NormalizedParams::query_scales`]).
    pub query_scales: u64,
}

/// Parameters of such entries that normalise rows, by r that they find themselves.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NormalizedContiguousParams {
    /// Parameters of the entries for elements as they are.
    pub runs: ContiguousParams,
    /// 1 where maxima are cosines of angular scores
    /// ([`crate::abi::params::NormalizedParams::maxima_are_cosines`]).
    pub maxima_are_cosines: u32,
    /// Padding.
    pub reserved: u32,
}

/// The same of units that end within documents.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NormalizedContiguousStreamKParams {
    /// Parameters of the entries for elements as they are.
    pub shares: ContiguousStreamKParams,
    /// 1 where maxima are cosines of angular scores
    /// ([`crate::abi::params::NormalizedParams::maxima_are_cosines`]).
    pub maxima_are_cosines: u32,
    /// Padding.
    pub reserved: u32,
}

/// A unit of work whose documents are one run of rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousUnit {
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
