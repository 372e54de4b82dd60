//! Describes a kernel: its element and its constants, a line of the variant table.

use crate::abi::layout::sm90::*;
use crate::abi::params::ForwardParams;
use crate::ptx::wgmma::{Operands, WgmmaElement};

/// A line of the variant table.
pub trait Kernel {
    /// Element of both operands.
    type Element: WgmmaElement;
    /// Consumer warpgroups.
    const CONSUMERS: usize;
    /// 64-row fragments of each.
    const FRAGMENTS: usize;
    /// Products of 32 bytes of each row; 0 where slabs of both sides stream.
    const STEPS: usize;
    /// Depth of the ring.
    const STAGES: usize;
    /// Narrowest of the widths of a document's last tile, in columns.
    const TAIL_STEP: usize;
    /// Whether winners are found.
    const WINNERS: bool;
    /// Whether rows are normalised.
    const NORMALIZES: bool;
    /// Whether maxima are added to scores.
    const ADDS: bool = true;
    /// Whether consumers load what columns are normalised by; scales of codes come with the tile.
    const LOADS_SCALES: bool = Self::NORMALIZES && !Self::Element::HAS_SCALES;
    /// Whether query rows have scales, too.
    const SCALES_QUERIES: bool = Self::NORMALIZES
        && (Self::Element::IS_CODE || Self::HAS_NORMS || !Self::Element::HAS_SCALES);
    /// Whether scales are what elements are normalised by, and maxima may be cosines.
    const HAS_NORMS: bool = Self::LOADS_SCALES || Self::FINDS_NORMS;
    /// Whether the kernel finds these itself ([`crate::sm90::scales::norms`]).
    const FINDS_NORMS: bool = Self::Element::IS_NORMALIZED;
    /// Whether INT32 accumulators skip the conversion to floats ([`crate::sm90::bitwise_max`]).
    const SKIPS_CONVERSION: bool =
        matches!(Self::Element::OPERANDS, Operands::I8) && !Self::WINNERS;
    /// Whether documents' scales may be f16, as
    /// [`crate::table::forward::Variant::reads_f16_scales`] says.
    const READS_F16_SCALES: bool = Self::SKIPS_CONVERSION && Self::CONSUMERS == 1;
    /// Whether the kernel is swap-AB: documents on M ([`crate::sm90::swap_ab`]).
    const IS_SWAP_AB: bool = Self::CONSUMERS == SWAP_AB_CONSUMERS;
    /// Query slabs that stay in shared memory.
    const SLABS: usize = Self::STEPS.div_ceil(SLAB_STEPS);
    /// Query rows per tile.
    const QUERY_TILE: usize = query_tile(Self::CONSUMERS, Self::FRAGMENTS);
    /// Registers of a thread of the first warpgroup, of an only consumer, and of one of two.
    const REGISTERS: [u32; 3] = match (Self::Element::SPLITS, Self::CONSUMERS) {
        (_, SWAP_AB_CONSUMERS) => [64, 104, 104],
        // Two warps of the first find r besides.
        _ if Self::FINDS_NORMS => [72, 184, 216],
        (false, _) => [56, 200, 224],
        (true, 1) => [80, 176, 216],
        (true, _) => [72, 176, 216],
    };
    /// Groups of 16 rows per tile.
    const GROUPS: u32 = (Self::QUERY_TILE / crate::abi::params::Group::ROWS) as u32;
}

/// Warps of a consumer warpgroup.
pub(crate) const CONSUMER_WARPS: u32 = 4;

/// Warps that split elements for 3xTF32: the producer warpgroup's last two.
pub(super) const SPLITTING_WARPS: u32 = 2;

/// The tensor maps' addresses.
#[derive(Clone, Copy)]
pub struct Maps {
    /// Queries in boxes of 16 rows.
    pub queries: u64,
    /// Documents in boxes of 128 rows.
    pub documents: u64,
    /// Documents in boxes of 16 rows.
    pub document_tails: u64,
}

/// Slabs of a token row.
#[inline(always)]
pub(crate) fn n_slabs<K: Kernel>(params: &ForwardParams) -> u32 {
    match K::SLABS {
        0 => params.dim.div_ceil(K::Element::SLAB_ELEMENTS),
        slabs => slabs as u32,
    }
}

/// Threads of a block.
pub(super) const fn n_threads<K: Kernel>() -> u32 {
    threads(K::CONSUMERS) as u32
}
