//! The table of compiled kernels: one row, one kernel.
//!
//! The table drives the device entries, the host's dispatch, the PTX check, the
//! tests and the benchmarks. A new tile is one new row.

use crate::abi::arch::Arch;
use crate::abi::element::{ElementType, Operand};
use crate::abi::layout;
use crate::abi::params::Group;
use crate::table::{Entry, Resources};

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

/// What a kernel does with products before it finds their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOperation {
    /// Nothing.
    Plain,
    /// It normalises both rows. Such kernels serve calls that ask for winners and calls that do not.
    Normalized,
    /// It multiplies by the scales of both rows.
    Scaled,
    /// It applies the scale and the minimum of the document's row.
    Affine,
    /// Documents were decoded from centroids and buckets; it multiplies by r, where tokens are
    /// normalised.
    Decoded,
}

/// What stands once for each parameter struct of forward kernels: the kind that a row names, the
/// struct's type for the entry point, and the entry that the host launches.
macro_rules! params_kinds {
    ($($kind:ident($struct:ident),)*) => {
        /// The parameter structs of forward kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ParamsKind {
            $(
                #[doc = concat!("[`crate::abi::params::", stringify!($struct), "`].")]
                $kind,
            )*
        }

        /// The parameter structs by their kinds.
        #[cfg(target_arch = "nvptx64")]
        pub(crate) mod params_of {
            $(pub type $kind = crate::abi::params::$struct;)*
        }

        /// The entry point of a forward kernel, of the struct that it takes.
        #[derive(Clone, Copy)]
        pub enum ForwardEntry {
            $(
                #[doc = concat!("Takes a [`crate::abi::params::", stringify!($struct), "`].")]
                $kind(Entry<crate::abi::params::$struct>),
            )*
        }

        impl Variant {
            /// Its entry point, with the struct that it takes.
            pub const fn entry(&self) -> ForwardEntry {
                match self.params {
                    $(ParamsKind::$kind => ForwardEntry::$kind(Entry::new(self.resources())),)*
                }
            }
        }
    };
}

params_kinds! {
    Forward(ForwardParams),
    Normalized(NormalizedParams),
    Contiguous(ContiguousParams),
    ScaledContiguous(ScaledContiguousParams),
    ContiguousStreamK(ContiguousStreamKParams),
    Residual(ResidualParams),
    ByCentroid(ByCentroidParams),
}

/// What the word of a row stands for, stated once: whether winners are found, the schedule, the row
/// operation and the kind of parameters. `$pick!` takes from these what is asked for: the table its
/// fields, an entry point the type of its parameter.
macro_rules! facts {
    ($pick:ident scores) => { $pick!(false Persistent Plain Forward) };
    ($pick:ident winners) => { $pick!(true Persistent Plain Forward) };
    ($pick:ident stream_k) => { $pick!(false StreamK Plain Forward) };
    ($pick:ident normalized) => { $pick!(true Persistent Normalized Normalized) };
    ($pick:ident scaled) => { $pick!(false Persistent Scaled Normalized) };
    ($pick:ident scaled_winners) => { $pick!(true Persistent Scaled Normalized) };
    ($pick:ident affine_winners) => { $pick!(true Persistent Affine Normalized) };
    ($pick:ident swap_ab) => { $pick!(false SwapAb Scaled Normalized) };
    ($pick:ident swap_ab_stream_k) => { $pick!(false SwapAbStreamK Scaled Normalized) };
    ($pick:ident contiguous) => { $pick!(false Contiguous Plain Contiguous) };
    ($pick:ident scaled_contiguous) => { $pick!(false Contiguous Scaled ScaledContiguous) };
    ($pick:ident contiguous_stream_k) => {
        $pick!(false ContiguousStreamK Plain ContiguousStreamK)
    };
    ($pick:ident decoded) => { $pick!(false Persistent Decoded Residual) };
    ($pick:ident decoded_winners) => { $pick!(true Persistent Decoded Residual) };
    ($pick:ident by_centroid) => { $pick!(false ByCentroid Decoded ByCentroid) };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use facts;

/// A row of the table: one forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name of the PTX entry, and of the file that holds it.
    pub name: &'static str,
    /// Instruction set.
    pub arch: Arch,
    /// What is multiplied: elements of queries and documents, or their codes.
    pub operand: Operand,
    /// Whether f32 elements are rounded to TF32 before they are multiplied.
    pub tf32: bool,
    /// Whether the kernel also finds the winners.
    pub winners: bool,
    /// How the work is divided among CTAs, and which operand is A of the products.
    pub schedule: Schedule,
    /// What becomes of the products before the maximum.
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

    /// Whether the kernel takes a factor for every document row with its parameters.
    pub const fn has_factors(&self) -> bool {
        self.has_query_factors() || self.operand.has_mins()
    }

    /// Whether it takes one for every query row, too.
    pub const fn has_query_factors(&self) -> bool {
        self.normalizes() || self.operand.is_code()
    }

    /// Whether f32 elements are split in two to be multiplied by tensor cores
    /// ([`crate::abi::tf32`]).
    pub const fn splits(&self) -> bool {
        let is_f32 = matches!(self.operand, Operand::Element(ElementType::F32));
        matches!(self.arch, Arch::Sm90a) && is_f32 && !self.tf32
    }

    /// Whether documents' scales may also be f16
    /// ([`crate::abi::params::NormalizedParams::document_scales`]): the rows of short queries alone
    /// are bound by what they read (`sm90::Kernel::HALF_SCALES`).
    pub const fn reads_f16_scales(&self) -> bool {
        let is_for_short_queries =
            self.schedule.is_contiguous() || self.threads == layout::sm90::threads(1);
        let is_int8 = matches!(self.operand, Operand::I8);
        matches!(self.arch, Arch::Sm90a) && is_int8 && !self.winners && is_for_short_queries
    }

    /// Whether the kernel normalises rows.
    pub const fn normalizes(&self) -> bool {
        matches!(self.row_operation, RowOperation::Normalized)
    }

    /// What the kernel takes of a device.
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
            has_scales: self.has_factors(),
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
            Arch::Sm90a => layout::sm90::shared_bytes(
                self.query_tile,
                resident,
                self.stages,
                layout::sm90::parts(self.splits()),
                self.operand.is_code() || self.operand.is_decoded(),
                self.schedule.is_swap_ab(),
            ),
        }
    }
}

/// Calls `$emit!` with the rows of the table. A row is
/// `arch entry_name { element, winners, <tile constants> }`; the constants are what
/// `sm80::forward` and `sm90::forward` take.
macro_rules! forward_variants {
    ($emit:ident) => {
        $emit! {
            // Query fragments stay in registers: 64 rows × 128 dims per warp take 128 of them. A
            // ring of 5 stages of 16 KB (64 tokens × 128 dims): two blocks fit the 164 KB of
            // compute capability 8.0, one the 100 KB of 8.6, 8.9 and 12.x.
            sm80 maxsim_forward_sm80_f16_d128_q256 { F16, scores, resident 2, warps 4, fragments 4, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_f16_d128_q256_winners { F16, winners, resident 2, warps 4, fragments 4, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_d128_q256 { Bf16, scores, resident 2, warps 4, fragments 4, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_d128_q256_winners { Bf16, winners, resident 2, warps 4, fragments 4, tile 64, stages 5, blocks 2 }
            // 16 rows per warp for short queries.
            sm80 maxsim_forward_sm80_f16_d128_q64 { F16, scores, resident 2, warps 4, fragments 1, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_f16_d128_q64_winners { F16, winners, resident 2, warps 4, fragments 1, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_d128_q64 { Bf16, scores, resident 2, warps 4, fragments 1, tile 64, stages 5, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_d128_q64_winners { Bf16, winners, resident 2, warps 4, fragments 1, tile 64, stages 5, blocks 2 }
            // Any dim: slabs of both sides stream, and the sums of a whole tile are in registers.
            // 32 KB a stage.
            sm80 maxsim_forward_sm80_f16_wide_q128 { F16, scores, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_f16_wide_q128_winners { F16, winners, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_wide_q128 { Bf16, scores, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_wide_q128_winners { Bf16, winners, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            // Exact f32: 8 rows × 16 tokens per thread with the tallest tile; 40, 24 and 16 KB a
            // stage. The winners' search has no registers left for it.
            sm80 maxsim_forward_sm80_f32_q256 { F32, scores, streamed 0, warps 4, fragments 4, tile 64, stages 2, blocks 2 }
            sm80 maxsim_forward_sm80_f32_q128_winners { F32, winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_f32_q64 { F32, scores, streamed 0, warps 2, fragments 2, tile 64, stages 3, blocks 4 }
            sm80 maxsim_forward_sm80_f32_q64_winners { F32, winners, streamed 0, warps 2, fragments 2, tile 64, stages 3, blocks 4 }
            // Normalised: one kernel for any dim, and winners whether they are asked for or not, so
            // that few files do. The shorter tile of f32 has registers for the row scales.
            sm80 maxsim_forward_sm80_f16_wide_q128_normalized { F16, normalized, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_bf16_wide_q128_normalized { Bf16, normalized, streamed 0, warps 4, fragments 2, tile 128, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_f32_q128_normalized { F32, normalized, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            // Codes of one byte, 128 to a slab, with winners for the same reason. What follows INT8
            // products takes as long as they do at dim 128, however tall the tile, so the shortest
            // serves all queries there; a third block fills in. For any dim 24 KB a stage: with
            // tiles of 128 tokens e4m3 spills, and INT8 has a third more code.
            sm80 maxsim_forward_sm80_i8_d128_q64_winners { I8, scaled_winners, resident 1, warps 4, fragments 1, tile 64, stages 5, blocks 3 }
            sm80 maxsim_forward_sm80_i8_wide_q128_winners { I8, scaled_winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_e4m3_wide_q128_winners { E4m3, scaled_winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            // Codes with a minimum, which are widened between memory and shared memory where
            // queries are elements. A stage is read while no other is requested, so that the third
            // CTA counts.
            sm80 maxsim_forward_sm80_i8_affine_wide_q128_winners { I8Affine, affine_winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_affine_f16_d128_q64_winners { AffineF16, affine_winners, resident 2, warps 4, fragments 1, tile 64, stages 3, blocks 3 }
            sm80 maxsim_forward_sm80_affine_f16_wide_q128_winners { AffineF16, affine_winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            sm80 maxsim_forward_sm80_affine_bf16_d128_q64_winners { AffineBf16, affine_winners, resident 2, warps 4, fragments 1, tile 64, stages 3, blocks 3 }
            sm80 maxsim_forward_sm80_affine_bf16_wide_q128_winners { AffineBf16, affine_winners, streamed 0, warps 4, fragments 2, tile 64, stages 3, blocks 2 }
            // Two fragments per consumer: 256 resident query rows take 32 KB per slab, and the
            // ring of 16 KB slabs what is left of 227 KB. 224 registers for consumers. The last
            // tile's widths start at 16 columns for dim 128, where most models are.
            sm90 maxsim_forward_sm90_f16_d64_q256 { F16, scores, consumers 2, fragments 2, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_f16_d96_q256 { F16, scores, consumers 2, fragments 2, steps 6, stages 10, tail 32 }
            sm90 maxsim_forward_sm90_f16_d128_q256 { F16, scores, consumers 2, fragments 2, steps 8, stages 10, tail 16 }
            sm90 maxsim_forward_sm90_f16_d256_q256 { F16, scores, consumers 2, fragments 2, steps 16, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d64_q256 { Bf16, scores, consumers 2, fragments 2, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d96_q256 { Bf16, scores, consumers 2, fragments 2, steps 6, stages 10, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d128_q256 { Bf16, scores, consumers 2, fragments 2, steps 8, stages 10, tail 16 }
            sm90 maxsim_forward_sm90_bf16_d256_q256 { Bf16, scores, consumers 2, fragments 2, steps 16, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_f16_d64_q256_winners { F16, winners, consumers 2, fragments 2, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_f16_d128_q256_winners { F16, winners, consumers 2, fragments 2, steps 8, stages 10, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d64_q256_winners { Bf16, winners, consumers 2, fragments 2, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d128_q256_winners { Bf16, winners, consumers 2, fragments 2, steps 8, stages 10, tail 32 }
            // One fragment per consumer for up to 128 query rows: half the rows to multiply, and
            // the ring gets the query tile's room.
            sm90 maxsim_forward_sm90_f16_d128_q128 { F16, scores, consumers 2, fragments 1, steps 8, stages 12, tail 16 }
            sm90 maxsim_forward_sm90_bf16_d128_q128 { Bf16, scores, consumers 2, fragments 1, steps 8, stages 12, tail 16 }
            // The same for units that end within a document, where blocks have few long ones.
            sm90 maxsim_forward_sm90_f16_d128_q128_stream_k { F16, stream_k, consumers 2, fragments 1, steps 8, stages 12, tail 16 }
            sm90 maxsim_forward_sm90_bf16_d128_q128_stream_k { Bf16, stream_k, consumers 2, fragments 1, steps 8, stages 12, tail 16 }
            sm90 maxsim_forward_sm90_f16_d128_q256_stream_k { F16, stream_k, consumers 2, fragments 2, steps 8, stages 10, tail 16 }
            sm90 maxsim_forward_sm90_bf16_d128_q256_stream_k { Bf16, stream_k, consumers 2, fragments 2, steps 8, stages 10, tail 16 }
            // One consumer of one fragment for up to 64 query rows, where reading the documents
            // takes longest: two such blocks share a multiprocessor (113 KB each), so that one
            // loads while the other finishes a document.
            sm90 maxsim_forward_sm90_f16_d64_q64 { F16, scores, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_f16_d128_q64 { F16, scores, consumers 1, fragments 1, steps 8, stages 6, tail 16 }
            sm90 maxsim_forward_sm90_f16_d256_q64 { F16, scores, consumers 1, fragments 1, steps 16, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d64_q64 { Bf16, scores, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d128_q64 { Bf16, scores, consumers 1, fragments 1, steps 8, stages 6, tail 16 }
            sm90 maxsim_forward_sm90_bf16_d256_q64 { Bf16, scores, consumers 1, fragments 1, steps 16, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_f16_d64_q64_winners { F16, winners, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_f16_d128_q64_winners { F16, winners, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_f16_d256_q64_winners { F16, winners, consumers 1, fragments 1, steps 16, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d64_q64_winners { Bf16, winners, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d128_q64_winners { Bf16, winners, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_bf16_d256_q64_winners { Bf16, winners, consumers 1, fragments 1, steps 16, stages 4, tail 32 }
            // Up to 32 query rows in the registers of every warp, where documents lie one behind
            // the other: nothing but products stands between a row and its maximum, so that calls
            // that read little start and end sooner. Chunks of 4 KB.
            sm90 maxsim_forward_sm90_f16_d128_q32 { F16, contiguous, rows 16, warps 4, stages 3, blocks 3 }
            sm90 maxsim_forward_sm90_bf16_d128_q32 { Bf16, contiguous, rows 16, warps 4, stages 3, blocks 3 }
            // The same in equal shares, for one query tile and documents of one length.
            sm90 maxsim_forward_sm90_f16_d128_q32_stream_k { F16, contiguous_stream_k, rows 16, warps 4, stages 3, blocks 3 }
            sm90 maxsim_forward_sm90_bf16_d128_q32_stream_k { Bf16, contiguous_stream_k, rows 16, warps 4, stages 3, blocks 3 }
            // Above dim 256 query slabs stream along: a stage holds a slab of both sides (48 KB
            // and 32 KB).
            sm90 maxsim_forward_sm90_f16_wide_q256 { F16, scores, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_f16_wide_q128 { F16, scores, consumers 2, fragments 1, steps 0, stages 7, tail 32 }
            sm90 maxsim_forward_sm90_bf16_wide_q256 { Bf16, scores, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_bf16_wide_q128 { Bf16, scores, consumers 2, fragments 1, steps 0, stages 7, tail 32 }
            sm90 maxsim_forward_sm90_f16_wide_q256_winners { F16, winners, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_bf16_wide_q256_winners { Bf16, winners, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            // Rows that are normalised: short queries of dim 128, where most models are, and all
            // others. One fragment, beside which there is room for the factors of a tile's columns.
            sm90 maxsim_forward_sm90_f16_d128_q64_normalized { F16, normalized, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_f16_wide_q128_normalized { F16, normalized, consumers 2, fragments 1, steps 0, stages 7, tail 64 }
            sm90 maxsim_forward_sm90_bf16_d128_q64_normalized { Bf16, normalized, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_bf16_wide_q128_normalized { Bf16, normalized, consumers 2, fragments 1, steps 0, stages 7, tail 64 }
            // TF32 where the caller allows it: slabs of 32 elements, which TMA rounds.
            sm90 maxsim_forward_sm90_tf32_d128_q256 { Tf32, scores, consumers 2, fragments 2, steps 16, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_tf32_wide_q256 { Tf32, scores, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_tf32_d128_q64 { Tf32, scores, consumers 1, fragments 1, steps 16, stages 4, tail 32 }
            sm90 maxsim_forward_sm90_tf32_wide_q256_winners { Tf32, winners, consumers 2, fragments 2, steps 0, stages 4, tail 32 }
            // 3xTF32: a stage holds both parts of a slab of both sides (64 KB and 48 KB), and a
            // consumer the small products' sums besides the large ones', beside which there is no
            // room for a second fragment.
            sm90 maxsim_forward_sm90_f32_wide_q128 { F32, scores, consumers 2, fragments 1, steps 0, stages 3, tail 64 }
            sm90 maxsim_forward_sm90_f32_wide_q128_winners { F32, winners, consumers 2, fragments 1, steps 0, stages 3, tail 64 }
            sm90 maxsim_forward_sm90_f32_wide_q64 { F32, scores, consumers 1, fragments 1, steps 0, stages 2, tail 64 }
            // Codes of one byte, twice as fast; dim 128 in one slab. Rows that find winners serve
            // calls that do not ask for them, too, where there is no other. Four consumers
            // (`sm90::turned`) hide what follows the products of long queries.
            sm90 maxsim_forward_sm90_e4m3_d128_q256 { E4m3, swap_ab, consumers 4, fragments 1, steps 4, stages 10, tail 64 }
            sm90 maxsim_forward_sm90_e4m3_d128_q256_stream_k { E4m3, swap_ab_stream_k, consumers 4, fragments 1, steps 4, stages 10, tail 64 }
            sm90 maxsim_forward_sm90_e4m3_d128_q256_winners { E4m3, scaled_winners, consumers 2, fragments 2, steps 4, stages 11, tail 32 }
            sm90 maxsim_forward_sm90_e4m3_d128_q128 { E4m3, scaled, consumers 2, fragments 1, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_e4m3_d128_q64 { E4m3, scaled, consumers 1, fragments 1, steps 4, stages 6, tail 16 }
            sm90 maxsim_forward_sm90_e4m3_d128_q64_winners { E4m3, scaled_winners, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_e4m3_wide_q128_winners { E4m3, scaled_winners, consumers 2, fragments 1, steps 0, stages 6, tail 64 }
            sm90 maxsim_forward_sm90_i8_d128_q256 { I8, swap_ab, consumers 4, fragments 1, steps 4, stages 10, tail 64 }
            sm90 maxsim_forward_sm90_i8_d128_q256_stream_k { I8, swap_ab_stream_k, consumers 4, fragments 1, steps 4, stages 10, tail 64 }
            sm90 maxsim_forward_sm90_i8_d128_q256_winners { I8, scaled_winners, consumers 2, fragments 2, steps 4, stages 11, tail 32 }
            sm90 maxsim_forward_sm90_i8_d128_q128 { I8, scaled, consumers 2, fragments 1, steps 4, stages 12, tail 32 }
            sm90 maxsim_forward_sm90_i8_d128_q64 { I8, scaled, consumers 1, fragments 1, steps 4, stages 6, tail 16 }
            // The only consumer of 64 rows multiplies, folds and ends documents one after the
            // other, and of 32 query rows half are padding. Here eight warps of a multiprocessor
            // share that, and the memory waits for none.
            sm90 maxsim_forward_sm90_i8_d128_q32 { I8, scaled_contiguous, rows 32, warps 4, stages 3, blocks 3 }
            sm90 maxsim_forward_sm90_i8_d128_q64_winners { I8, scaled_winners, consumers 1, fragments 1, steps 4, stages 6, tail 32 }
            sm90 maxsim_forward_sm90_i8_wide_q128_winners { I8, scaled_winners, consumers 2, fragments 1, steps 0, stages 6, tail 64 }
            sm90 maxsim_forward_sm90_i8_affine_d128_q128_winners { I8Affine, affine_winners, consumers 2, fragments 1, steps 4, stages 12, tail 64 }
            sm90 maxsim_forward_sm90_i8_affine_d128_q64_winners { I8Affine, affine_winners, consumers 1, fragments 1, steps 4, stages 6, tail 64 }
            sm90 maxsim_forward_sm90_i8_affine_wide_q128_winners { I8Affine, affine_winners, consumers 2, fragments 1, steps 0, stages 6, tail 64 }
            // Documents decoded in registers, for up to 32 query rows: a centroid goes straight to
            // where `mma.sync` reads it. What counts is how many are in flight.
            sm80 maxsim_forward_sm80_residual_f16_d128_q32 { ResidualF16, decoded, warps 4, blocks 2 }
            sm80 maxsim_forward_sm80_residual_bf16_d128_q32 { ResidualBf16, decoded, warps 4, blocks 2 }
            // The same with the centroids' share out of a table, for documents of many more tokens
            // than there are centroids. What a lane need not hold of centroids makes room for a
            // third block.
            sm80 maxsim_forward_sm80_residual_f16_d128_q32_by_centroid { ResidualF16, by_centroid, warps 4, blocks 3 }
            sm80 maxsim_forward_sm80_residual_bf16_d128_q32_by_centroid { ResidualBf16, by_centroid, warps 4, blocks 3 }
            // Documents decoded into shared memory: what counts is how many centroids are in
            // flight, so two warpgroups decode, and the consumer has one fragment.
            sm90 maxsim_forward_sm90_residual_f16_d128_q64 { ResidualF16, decoded, consumers 1, fragments 1, steps 8, stages 5, tail 16 }
            sm90 maxsim_forward_sm90_residual_f16_d128_q64_winners { ResidualF16, decoded_winners, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_residual_f16_wide_q64_winners { ResidualF16, decoded_winners, consumers 1, fragments 1, steps 0, stages 4, tail 64 }
            sm90 maxsim_forward_sm90_residual_bf16_d128_q64 { ResidualBf16, decoded, consumers 1, fragments 1, steps 8, stages 5, tail 16 }
            sm90 maxsim_forward_sm90_residual_bf16_d128_q64_winners { ResidualBf16, decoded_winners, consumers 1, fragments 1, steps 8, stages 5, tail 32 }
            sm90 maxsim_forward_sm90_residual_bf16_wide_q64_winners { ResidualBf16, decoded_winners, consumers 1, fragments 1, steps 0, stages 4, tail 64 }
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use forward_variants;

macro_rules! row_facts {
    ($winners:literal $schedule:ident $operation:ident $params:ident) => {
        ($winners, Schedule::$schedule, RowOperation::$operation, ParamsKind::$params)
    };
}

macro_rules! row {
    (sm80 $name:ident $element:ident by_centroid $($tile:tt)*) => {
        row!(decoded_in_registers $name $element by_centroid $($tile)*)
    };
    (sm80 $name:ident $element:ident decoded $($tile:tt)*) => {
        row!(decoded_in_registers $name $element decoded $($tile)*)
    };
    (decoded_in_registers $name:ident $element:ident $word:ident
        warps $warps:literal, blocks $blocks:literal) => {
        Variant {
            name: stringify!($name),
            arch: Arch::Sm80,
            operand: row!(operand $element),
            tf32: false,
            winners: facts!(row_facts $word).0,
            schedule: facts!(row_facts $word).1,
            row_operation: facts!(row_facts $word).2,
            params: facts!(row_facts $word).3,
            dim_max: 128,
            query_tile: layout::sm80::RESIDUAL_ROWS,
            document_tile: Group::ROWS,
            tail_step: Group::ROWS,
            streams_queries: false,
            stages: 0,
            threads: 32 * $warps,
            blocks: $blocks,
        }
    };
    (sm80 $name:ident $element:ident $word:ident $product:ident $slabs:literal,
        warps $warps:literal, fragments $fragments:literal, tile $tile:literal,
        stages $stages:literal, blocks $blocks:literal) => {
        Variant {
            name: stringify!($name),
            arch: Arch::Sm80,
            operand: row!(operand $element),
            tf32: false,
            winners: facts!(row_facts $word).0,
            schedule: facts!(row_facts $word).1,
            row_operation: facts!(row_facts $word).2,
            params: facts!(row_facts $word).3,
            dim_max: match $slabs {
                0 => DIM_MAX,
                slabs => layout::SLAB_BYTES / row!(operand $element).size_bytes() * slabs,
            },
            query_tile: layout::sm80::query_tile($warps, $fragments),
            document_tile: $tile,
            tail_step: layout::sm80::TAIL_STEP,
            streams_queries: $slabs == 0,
            stages: $stages,
            threads: 32 * $warps,
            blocks: $blocks,
        }
    };
    (sm90 $name:ident $element:ident $word:ident rows $rows:literal, warps $warps:literal,
        stages $stages:literal, blocks $blocks:literal) => {
        Variant {
            name: stringify!($name),
            arch: Arch::Sm90a,
            operand: row!(operand $element),
            tf32: false,
            winners: facts!(row_facts $word).0,
            schedule: facts!(row_facts $word).1,
            row_operation: facts!(row_facts $word).2,
            params: facts!(row_facts $word).3,
            dim_max: layout::contiguous::DIM,
            query_tile: layout::contiguous::QUERY_ROWS,
            document_tile: $rows,
            tail_step: layout::contiguous::PRODUCT_ROWS,
            streams_queries: false,
            stages: $stages,
            threads: layout::contiguous::threads($warps, row!(operand $element).is_code()),
            blocks: $blocks,
        }
    };
    (sm90 $name:ident $element:ident $word:ident consumers $consumers:literal,
        fragments $fragments:literal, steps $steps:literal, stages $stages:literal,
        tail $tail:literal) => {{
        let threads = match row!(operand $element).is_decoded() {
            true => layout::sm90::decoding_threads($consumers),
            false => layout::sm90::threads($consumers),
        };
        // A single consumer has room for a second CTA on the multiprocessor.
        let blocks = if $consumers == 1 { 2 } else { 1 };
        Variant {
            name: stringify!($name),
            arch: Arch::Sm90a,
            operand: row!(operand $element),
            tf32: row!(tf32 $element),
            winners: facts!(row_facts $word).0,
            schedule: facts!(row_facts $word).1,
            row_operation: facts!(row_facts $word).2,
            params: facts!(row_facts $word).3,
            dim_max: match $steps {
                0 => DIM_MAX,
                steps => layout::sm90::STEP_BYTES / row!(operand $element).size_bytes() * steps,
            },
            query_tile: layout::sm90::query_tile($consumers, $fragments),
            document_tile: layout::sm90::DOCUMENT_TILE,
            tail_step: $tail,
            streams_queries: $steps == 0,
            stages: $stages,
            threads,
            blocks,
        }
    }};
    (operand Tf32) => {
        Operand::Element(ElementType::F32)
    };
    (operand I8) => {
        Operand::I8
    };
    (operand I8Affine) => {
        Operand::I8Affine
    };
    (operand AffineF16) => {
        Operand::Affine(ElementType::F16)
    };
    (operand AffineBf16) => {
        Operand::Affine(ElementType::Bf16)
    };
    (operand E4m3) => {
        Operand::E4m3
    };
    (operand ResidualF16) => {
        Operand::Residual(ElementType::F16)
    };
    (operand ResidualBf16) => {
        Operand::Residual(ElementType::Bf16)
    };
    (operand $element:ident) => {
        Operand::Element(ElementType::$element)
    };
    (tf32 Tf32) => {
        true
    };
    (tf32 $element:ident) => {
        false
    };
}

macro_rules! table {
    ($($arch:ident $name:ident { $element:ident, $outputs:ident, $($tile:tt)* })*) => {
        /// Every forward kernel, in order of preference where costs are equal.
        pub const FORWARD: &[Variant] = &[$(row!($arch $name $element $outputs $($tile)*)),*];
    };
}
forward_variants!(table);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_the_row_is() {
        for (i, row) in FORWARD.iter().enumerate() {
            assert!(row.name.contains(row.operand.name()), "{}", row.name);
            let finds_winners = row.name.ends_with("_winners") || row.normalizes();
            assert_eq!(finds_winners, row.winners, "{}", row.name);
            assert_eq!(row.name.ends_with("_normalized"), row.normalizes(), "{}", row.name);
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
