//! The table of forward kernels: one line, one kernel.
//!
//! A line is in the file of its operands and instruction set (`sm80`, `sm90`, `sm90_codes`,
//! `residual`), below the kind of its tile:
//!
//! ```text
//! kind of the tile {
//! // Why the tile is as it is.
//! entry, operand, word [constants of the tile, rate]
//! }
//! ```
//!
//! The word stands for everything else (`words`). The kinds of tiles, with their constants, are
//! the macros of `lines`, which make a [`Variant`] of a line, and those of the same names in
//! `entry::forward`, which make its entry point.
//!
//! The *rate* is what is seen in practice of the most multiply-adds per clock and multiprocessor
//! that the instructions can do ([`Variant::peak`]), as a share. The fewer rows a tile has, the
//! more shared memory is read per product, and the sooner documents arrive too slowly; slabs of
//! queries that stream read it twice.

#[macro_use]
mod lines;
#[macro_use]
mod words;
mod residual;
mod sm80;
mod sm90;
mod sm90_codes;

use crate::abi::arch::Arch;
use crate::abi::element::{ElementType, Operand};
use crate::abi::layout;
use crate::abi::params::Group;
pub(crate) use crate::table::forward::residual::residual_kernels;
pub(crate) use crate::table::forward::sm80::sm80_kernels;
pub(crate) use crate::table::forward::sm90::sm90_kernels;
pub(crate) use crate::table::forward::sm90_codes::sm90_code_kernels;
pub use crate::table::forward::words::{ForwardEntry, ParamsKind};
#[cfg(target_arch = "nvptx64")]
pub(crate) use crate::table::forward::words::{facts, params_of};
use crate::table::{Resources, lines_of, n_lines};

/// Largest dim of any kernel.
pub const DIM_MAX: usize = 4096;

/// How a kernel divides its work among CTAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Persistent CTAs take whole documents, by a static or a dynamic tile scheduler.
    Persistent,
    /// Stream-K: each CTA has an equal share of the document tokens, and documents may span CTAs.
    /// For query tiles that all meet every document, fewer than CTAs, and documents without a mask;
    /// no token scores.
    StreamK,
    /// Persistent, with the operands swapped: documents on M, queries on N of the products
    /// (`sm90::swap_ab`).
    SwapAb,
    /// Swapped operands and Stream-K.
    SwapAbStreamK,
    /// Persistent, over documents that are contiguous rows ([`layout::contiguous`]): one behind the
    /// other, none of them empty, in rows of `dim_max` elements with no gaps, without a mask.
    Contiguous,
    /// Contiguous rows and Stream-K, for one query tile and documents of one length
    /// ([`crate::abi::stream_k`]).
    ContiguousStreamK,
    /// Persistent, over scores of the centroids of residual-compressed documents, which
    /// [`crate::table::auxiliary::CENTROID_SCORES`] compute before.
    ByCentroid,
}

impl Schedule {
    /// Whether documents have to be contiguous rows.
    pub const fn is_contiguous(self) -> bool {
        matches!(self, Schedule::Contiguous | Schedule::ContiguousStreamK)
    }

    /// Whether documents may span CTAs.
    pub const fn is_stream_k(self) -> bool {
        matches!(self, Schedule::StreamK | Schedule::SwapAbStreamK | Schedule::ContiguousStreamK)
    }

    /// Whether documents are on M of the products, queries on N.
    pub const fn is_swap_ab(self) -> bool {
        matches!(self, Schedule::SwapAb | Schedule::SwapAbStreamK)
    }

    /// Whether the kernel reads the scores of centroids.
    pub const fn is_by_centroid(self) -> bool {
        matches!(self, Schedule::ByCentroid)
    }
}

/// Operation that a kernel applies to products before it finds their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOperation {
    /// No operation.
    Plain,
    /// Normalises both rows, by r that comes with the launch. Such kernels serve calls with and
    /// without winners.
    Normalized,
    /// Normalises both rows, by r that the kernel finds itself: r has the same bits, and rows are
    /// read once. Without winners.
    SelfNormalized,
    /// Multiplies by the scales of both rows.
    Scaled,
    /// Applies the scale and the minimum of the document's row.
    Affine,
    /// Documents were decoded from centroids and buckets; it multiplies by r, where tokens are
    /// normalised.
    Decoded,
    /// As [`RowOperation::Decoded`], of documents that
    /// [`crate::table::auxiliary::DECODED_ROWS`] decode before, some at a time.
    DecodedOnce,
}

/// How a kernel adds the products of two rows: kernels of one way give them the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// `wgmma`, over elements or codes as they are.
    Wgmma,
    /// `wgmma` over halves of f32 elements, in the passes that query tiles of so many rows take.
    Split(usize),
    /// `mma.sync`, queries on M.
    MmaSync,
    /// `mma.sync`, documents on M.
    MmaSyncSwapped,
    /// Without tensor cores.
    Ffma,
}

/// A line of the table: one forward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// Name of the PTX entry, and of the file that holds it.
    pub name: &'static str,
    /// Instruction set.
    pub arch: Arch,
    /// Operand: elements of queries and documents, or their codes.
    pub operand: Operand,
    /// Whether f32 elements are rounded to TF32 before they are multiplied.
    pub tf32: bool,
    /// Whether the kernel also finds the winners.
    pub winners: bool,
    /// How the work is divided among CTAs, and which operand is A of the products.
    pub schedule: Schedule,
    /// Operation on the products before the maximum.
    pub row_operation: RowOperation,
    /// The parameter struct that the kernel takes.
    pub params: ParamsKind,
    /// Largest dim.
    pub dim_max: usize,
    /// Query rows per tile.
    pub query_tile: usize,
    /// Document tokens per tile.
    pub document_tile: usize,
    /// Narrowest of the widths that a document's last tile may have, in tokens: any multiple of
    /// it for sm_80, [`layout::sm90::has_width`] for sm_90a.
    pub tail_step: usize,
    /// Whether query slabs stream through the ring with the documents' instead of staying in
    /// registers (sm_80) or shared memory (sm_90a).
    pub streams_queries: bool,
    /// Depth of the ring of document slabs in shared memory.
    pub stages: usize,
    /// Threads per block.
    pub threads: usize,
    /// Blocks that share a multiprocessor.
    pub blocks: usize,
    /// Share of [`Variant::peak`] that is seen in practice.
    pub rate: f64,
}

impl Variant {
    /// 128-byte slabs per token row that the kernel works on for this dim.
    pub const fn slabs(&self, dim: usize) -> usize {
        match self.streams_queries {
            // Unrolled for the row's largest dim.
            false => layout::slabs(self.dim_max, self.operand.size_bytes()),
            // The loop over slabs has a run-time bound.
            true => layout::slabs(dim, self.operand.size_bytes()),
        }
    }

    /// Whether the kernel takes a scale for every document row with its parameters.
    pub const fn has_row_scales(&self) -> bool {
        self.has_query_scales() || self.operand.has_mins()
    }

    /// Whether it takes one for every query row, too.
    pub const fn has_query_scales(&self) -> bool {
        self.reads_norms() || self.operand.is_code()
    }

    /// Whether it stores token scores where query tokens have weights: swapped operands have the
    /// weights multiplied to the scales of the rows.
    pub const fn stores_weighted_tokens(&self) -> bool {
        !self.schedule.is_swap_ab()
    }

    /// Whether f32 elements are split in two to be multiplied by tensor cores
    /// ([`crate::abi::tf32`]).
    pub const fn splits(&self) -> bool {
        let is_f32 = matches!(self.operand, Operand::Element(ElementType::F32));
        matches!(self.arch, Arch::Sm90a) && is_f32 && !self.tf32
    }

    /// How it adds products.
    pub const fn products(&self) -> Products {
        match (self.arch, self.operand) {
            _ if self.splits() => Products::Split(self.query_tile),
            (Arch::Sm80, Operand::Element(ElementType::F32)) => Products::Ffma,
            (Arch::Sm80, _) => Products::MmaSync,
            (Arch::Sm90a, _) if self.schedule.is_contiguous() => Products::MmaSyncSwapped,
            (Arch::Sm90a, _) => Products::Wgmma,
        }
    }

    /// Whether documents' scales may also be f16
    /// ([`crate::abi::params::NormalizedParams::document_scales`]): the rows of short queries alone
    /// are bound by what they read (`sm90::Kernel::READS_F16_SCALES`).
    pub const fn reads_f16_scales(&self) -> bool {
        let is_for_short_queries =
            self.schedule.is_contiguous() || self.threads == layout::sm90::threads(1);
        let is_int8 = matches!(self.operand, Operand::I8);
        matches!(self.arch, Arch::Sm90a) && is_int8 && !self.winners && is_for_short_queries
    }

    /// Most multiply-adds per clock and multiprocessor: of the tensor cores of compute capability
    /// 9.0 or 8.0, or of f32 without them.
    pub const fn peak(&self) -> f64 {
        match (self.arch, self.operand) {
            // Three products of half the rate.
            (Arch::Sm90a, _) if self.splits() => 1024.0 / 3.0,
            (Arch::Sm90a, operand) => 4096.0 / operand.size_bytes() as f64,
            (Arch::Sm80, Operand::Element(ElementType::F32)) => 64.0,
            (Arch::Sm80, Operand::I8 | Operand::I8Affine) => 2048.0,
            // Codes of e4m3, and those that meet elements, are widened before they are multiplied.
            (Arch::Sm80, _) => 1024.0,
        }
    }

    /// Multiply-adds per clock and multiprocessor.
    pub const fn multiply_adds(&self) -> f64 {
        self.peak() * self.rate
    }

    /// Whether the kernel normalises rows.
    pub const fn normalizes(&self) -> bool {
        self.reads_norms() || self.finds_norms()
    }

    /// Whether it reads what rows are normalised by.
    pub const fn reads_norms(&self) -> bool {
        matches!(self.row_operation, RowOperation::Normalized)
    }

    /// Whether it finds that itself.
    const fn finds_norms(&self) -> bool {
        matches!(self.row_operation, RowOperation::SelfNormalized)
    }

    /// Whether documents are decoded before the kernel runs.
    pub const fn decodes_once(&self) -> bool {
        matches!(self.row_operation, RowOperation::DecodedOnce)
    }

    /// Resources of a device that the kernel takes.
    pub const fn resources(&self) -> Resources {
        Resources {
            name: self.name,
            arch: self.arch,
            threads: self.threads,
            blocks: self.blocks,
            shared_bytes: self.shared_bytes(self.dim_max),
            tensor_maps: matches!(self.arch, Arch::Sm90a) && !self.schedule.is_contiguous(),
            // Four consumers' warps share a scheduler, and all multiply what they fold.
            yields: self.schedule.is_swap_ab(),
            begins_early: false,
        }
    }

    /// The dim that the kernel multiplies for this one.
    pub const fn dim_multiplied(&self, dim: usize) -> usize {
        let slabs = layout::slabs(dim, self.operand.size_bytes());
        let slabs = match self.arch {
            // Empty slabs are left out: the second of two, the fourth of four.
            Arch::Sm80 if !self.streams_queries && self.slabs(dim) == 4 && slabs < 3 => 3,
            Arch::Sm90a if !self.streams_queries => return self.dim_max,
            _ => slabs,
        };
        slabs * layout::SLAB_BYTES / self.operand.size_bytes()
    }

    /// Whether launches may use the dynamic scheduler. Contiguous kernels of 2-byte elements have
    /// no registers for a scheduler warp, and for the prefetch of the next unit.
    pub const fn has_scheduler(&self) -> bool {
        matches!(self.arch, Arch::Sm90a)
            && (!self.schedule.is_contiguous() || self.operand.is_code())
    }

    /// Shared memory of a row that reads documents as runs of rows.
    const fn run_geometry(&self) -> layout::contiguous::Geometry {
        layout::contiguous::Geometry {
            warps: (self.threads - layout::contiguous::threads(0, self.has_scheduler())) / 32,
            stages: self.stages,
            row_bytes: self.dim_max * self.operand.size_bytes(),
            chunk_rows: self.document_tile,
            has_scales: self.has_row_scales(),
            has_scheduler: self.has_scheduler(),
        }
    }

    /// Dynamic shared memory of a block in bytes.
    pub const fn shared_bytes(&self, dim: usize) -> usize {
        let resident = if self.streams_queries { 0 } else { self.slabs(dim) };
        match self.arch {
            Arch::Sm80 if self.operand.is_decoded() => 0,
            Arch::Sm80 => layout::sm80::shared_bytes(
                self.query_tile,
                self.document_tile,
                resident,
                self.stages,
            ),
            Arch::Sm90a if self.schedule.is_contiguous() => self.run_geometry().shared_bytes(),
            Arch::Sm90a => {
                layout::sm90::shared_bytes(
                    self.query_tile,
                    resident,
                    self.stages,
                    layout::sm90::parts(self.splits()),
                    self.operand.is_code() || self.operand.is_decoded() || self.finds_norms(),
                    self.schedule.is_swap_ab(),
                ) + match self.finds_norms() {
                    true => layout::sm90::norm_barriers_bytes(self.stages),
                    false => 0,
                }
            }
        }
    }
}

/// Every forward kernel, in order of preference where costs are equal.
pub const FORWARD: &[Variant] = &lines_of::<Variant, { n_lines(&PARTS) }>(&PARTS);

const PARTS: [&[Variant]; 4] = [
    sm80_kernels!(variants),
    sm90_kernels!(variants),
    sm90_code_kernels!(variants),
    residual_kernels!(variants),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_the_row_is() {
        for (i, row) in FORWARD.iter().enumerate() {
            assert!(row.name.contains(row.operand.name()), "{}", row.name);
            let is_normalized = row.name.ends_with("_normalized");
            let finds_winners = row.name.ends_with("_winners") || is_normalized;
            assert_eq!(finds_winners, row.winners, "{}", row.name);
            let normalizes = is_normalized || row.name.ends_with("_normalized_scores");
            assert_eq!(normalizes, row.normalizes(), "{}", row.name);
            assert_eq!(is_normalized, row.reads_norms(), "{}", row.name);
            assert!(FORWARD[..i].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }

    #[test]
    fn int8_of_short_queries_reads_f16_scales() {
        for row in FORWARD {
            let names = ["maxsim_forward_sm90_i8_d128_q32", "maxsim_forward_sm90_i8_d128_q64"];
            assert_eq!(row.reads_f16_scales(), names.contains(&row.name), "{}", row.name);
        }
    }

    #[test]
    fn hopper_splits_f32_unless_it_is_rounded() {
        for row in FORWARD {
            let expected = row.name.contains("sm90_f32");
            assert_eq!(row.splits(), expected, "{}", row.name);
            assert!(!expected || row.streams_queries && !row.tf32, "{}", row.name);
        }
    }

    #[test]
    fn shared_memory_fits_the_smallest_device_of_the_arch() {
        for row in FORWARD {
            let limit = match row.arch {
                Arch::Sm80 => 99 * 1024,
                // A multiprocessor has 228 KB, of which each block costs 1 KB.
                Arch::Sm90a => 228 * 1024 / row.blocks - 1024,
            };
            assert!(row.shared_bytes(row.dim_max) <= limit, "{}", row.name);
        }
    }
}
