//! The table of compiled kernels: one row, one kernel.
//!
//! The table drives the device entries, the host's dispatch, the PTX check, the
//! tests and the benchmarks. A new tile is one new row.

use crate::element::ElementType;
use crate::layout;

/// Instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// `cp.async`, `ldmatrix`, `mma.sync`: compute capability 8.0 and everything later.
    Sm80,
    /// TMA, mbarrier, `wgmma`: compute capability 9.0 only ("a" features do not carry forward).
    Sm90a,
}

impl Arch {
    /// The compiler's name of the target.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
        }
    }

    /// Whether a device of this compute capability runs the instruction set.
    pub const fn runs_on(self, capability: (u32, u32)) -> bool {
        match self {
            Arch::Sm80 => capability.0 >= 8,
            Arch::Sm90a => capability.0 == 9 && capability.1 == 0,
        }
    }
}

/// A row of the table: one forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name of the PTX entry, and of the file that holds it.
    pub name: &'static str,
    /// Instruction set.
    pub arch: Arch,
    /// Element type of queries and documents.
    pub element: ElementType,
    /// Whether the kernel also finds the winners.
    pub winners: bool,
    /// Largest dim.
    pub dim_max: usize,
    /// Query rows per tile.
    pub query_tile: usize,
    /// Document tokens per tile.
    pub document_tile: usize,
    /// Depth of the ring of document slabs in shared memory.
    pub stages: usize,
    /// Threads per block.
    pub threads: usize,
    /// Registers per thread that the kernel may use at entry.
    pub registers: usize,
}

impl Variant {
    /// 128-byte slabs per token row that the kernel works on for this dim.
    pub const fn slabs(&self, dim: usize) -> usize {
        match self.arch {
            // The loop over slabs has a run-time bound.
            Arch::Sm80 => layout::slabs(dim, self.element.size_bytes()),
            // Unrolled for the row's largest dim.
            Arch::Sm90a => layout::slabs(self.dim_max, self.element.size_bytes()),
        }
    }

    /// Dynamic shared memory of a block in bytes.
    pub const fn shared_bytes(&self, dim: usize) -> usize {
        let slabs = self.slabs(dim);
        match self.arch {
            Arch::Sm80 => {
                layout::sm80::shared_bytes(self.query_tile, self.document_tile, slabs, self.stages)
            }
            Arch::Sm90a => layout::sm90::shared_bytes(self.query_tile, slabs, self.stages),
        }
    }
}

/// Calls `$emit!` with the rows of the table. A row is
/// `arch entry_name { element, winners, <tile constants> }`; the constants are what
/// `sm80::forward` and `sm90::forward` take.
macro_rules! forward_variants {
    ($emit:ident) => {
        $emit! {
            // 64 query rows stay resident (64 KB at dim 512), slabs of 64 document tokens
            // (8 KB) stream through 4 stages: 96 KB, within the 99 KB of compute
            // capability 8.6, 8.9 and 12.x.
            sm80 maxsim_forward_sm80_f16 { F16, scores, dim_max 512, warps 4, stages 4, registers 168 }
            sm80 maxsim_forward_sm80_f16_winners { F16, winners, dim_max 512, warps 4, stages 4, registers 168 }
            sm80 maxsim_forward_sm80_bf16 { Bf16, scores, dim_max 512, warps 4, stages 4, registers 168 }
            sm80 maxsim_forward_sm80_bf16_winners { Bf16, winners, dim_max 512, warps 4, stages 4, registers 168 }
            // A slab holds 32 f32, so 32 query rows take the same 64 KB.
            sm80 maxsim_forward_sm80_f32 { F32, scores, dim_max 512, warps 2, stages 4, registers 168 }
            sm80 maxsim_forward_sm80_f32_winners { F32, winners, dim_max 512, warps 2, stages 4, registers 168 }
            // Two fragments per consumer: 256 resident query rows take 32 KB per slab, and the
            // ring of 16 KB slabs what is left of 227 KB. 232 registers for consumers.
            sm90 maxsim_forward_sm90_f16_d64_q256 { F16, scores, fragments 2, slabs 1, stages 12 }
            sm90 maxsim_forward_sm90_f16_d128_q256 { F16, scores, fragments 2, slabs 2, stages 10 }
            sm90 maxsim_forward_sm90_f16_d192_q256 { F16, scores, fragments 2, slabs 3, stages 8 }
            sm90 maxsim_forward_sm90_f16_d256_q256 { F16, scores, fragments 2, slabs 4, stages 6 }
            sm90 maxsim_forward_sm90_bf16_d64_q256 { Bf16, scores, fragments 2, slabs 1, stages 12 }
            sm90 maxsim_forward_sm90_bf16_d128_q256 { Bf16, scores, fragments 2, slabs 2, stages 10 }
            sm90 maxsim_forward_sm90_bf16_d192_q256 { Bf16, scores, fragments 2, slabs 3, stages 8 }
            sm90 maxsim_forward_sm90_bf16_d256_q256 { Bf16, scores, fragments 2, slabs 4, stages 6 }
            sm90 maxsim_forward_sm90_f16_d64_q256_winners { F16, winners, fragments 2, slabs 1, stages 12 }
            sm90 maxsim_forward_sm90_f16_d128_q256_winners { F16, winners, fragments 2, slabs 2, stages 10 }
            sm90 maxsim_forward_sm90_f16_d192_q256_winners { F16, winners, fragments 2, slabs 3, stages 8 }
            sm90 maxsim_forward_sm90_f16_d256_q256_winners { F16, winners, fragments 2, slabs 4, stages 6 }
            sm90 maxsim_forward_sm90_bf16_d64_q256_winners { Bf16, winners, fragments 2, slabs 1, stages 12 }
            sm90 maxsim_forward_sm90_bf16_d128_q256_winners { Bf16, winners, fragments 2, slabs 2, stages 10 }
            sm90 maxsim_forward_sm90_bf16_d192_q256_winners { Bf16, winners, fragments 2, slabs 3, stages 8 }
            sm90 maxsim_forward_sm90_bf16_d256_q256_winners { Bf16, winners, fragments 2, slabs 4, stages 6 }
            // One fragment per consumer for queries of up to 128 tokens: half the rows to
            // multiply, and the ring gets the query tile's room.
            sm90 maxsim_forward_sm90_f16_d64_q128 { F16, scores, fragments 1, slabs 1, stages 13 }
            sm90 maxsim_forward_sm90_f16_d128_q128 { F16, scores, fragments 1, slabs 2, stages 12 }
            sm90 maxsim_forward_sm90_f16_d192_q128 { F16, scores, fragments 1, slabs 3, stages 11 }
            sm90 maxsim_forward_sm90_f16_d256_q128 { F16, scores, fragments 1, slabs 4, stages 10 }
            sm90 maxsim_forward_sm90_bf16_d64_q128 { Bf16, scores, fragments 1, slabs 1, stages 13 }
            sm90 maxsim_forward_sm90_bf16_d128_q128 { Bf16, scores, fragments 1, slabs 2, stages 12 }
            sm90 maxsim_forward_sm90_bf16_d192_q128 { Bf16, scores, fragments 1, slabs 3, stages 11 }
            sm90 maxsim_forward_sm90_bf16_d256_q128 { Bf16, scores, fragments 1, slabs 4, stages 10 }
            sm90 maxsim_forward_sm90_f16_d64_q128_winners { F16, winners, fragments 1, slabs 1, stages 13 }
            sm90 maxsim_forward_sm90_f16_d128_q128_winners { F16, winners, fragments 1, slabs 2, stages 12 }
            sm90 maxsim_forward_sm90_f16_d192_q128_winners { F16, winners, fragments 1, slabs 3, stages 11 }
            sm90 maxsim_forward_sm90_f16_d256_q128_winners { F16, winners, fragments 1, slabs 4, stages 10 }
            sm90 maxsim_forward_sm90_bf16_d64_q128_winners { Bf16, winners, fragments 1, slabs 1, stages 13 }
            sm90 maxsim_forward_sm90_bf16_d128_q128_winners { Bf16, winners, fragments 1, slabs 2, stages 12 }
            sm90 maxsim_forward_sm90_bf16_d192_q128_winners { Bf16, winners, fragments 1, slabs 3, stages 11 }
            sm90 maxsim_forward_sm90_bf16_d256_q128_winners { Bf16, winners, fragments 1, slabs 4, stages 10 }
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use forward_variants;

macro_rules! row {
    (sm80 $name:ident $element:ident $outputs:ident dim_max $dim:literal, warps $warps:literal, stages $stages:literal, registers $registers:literal) => {
        Variant {
            name: stringify!($name),
            arch: Arch::Sm80,
            element: ElementType::$element,
            winners: row!($outputs),
            dim_max: $dim,
            query_tile: layout::sm80::QUERY_ROWS_PER_WARP * $warps,
            document_tile: layout::sm80::DOCUMENT_TILE,
            stages: $stages,
            threads: 32 * $warps,
            registers: $registers,
        }
    };
    (sm90 $name:ident $element:ident $outputs:ident fragments $fragments:literal, slabs $slabs:literal, stages $stages:literal) => {
        Variant {
            name: stringify!($name),
            arch: Arch::Sm90a,
            element: ElementType::$element,
            winners: row!($outputs),
            dim_max: 64 * $slabs,
            query_tile: layout::sm90::query_tile($fragments),
            document_tile: layout::sm90::DOCUMENT_TILE,
            stages: $stages,
            threads: layout::sm90::THREADS,
            registers: 168,
        }
    };
    (scores) => {
        false
    };
    (winners) => {
        true
    };
}

macro_rules! table {
    ($($arch:ident $name:ident { $element:ident, $outputs:ident, $($tile:tt)* })*) => {
        /// Every forward kernel, in order of preference where costs are equal.
        pub const FORWARD: &[Variant] = &[$(row!($arch $name $element $outputs $($tile)*)),*];
    };
}
forward_variants!(table);

/// The entry that adds partial sums (compiled for [`Arch::Sm80`], runs everywhere).
pub const SUM_PARTIALS: &str = "maxsim_sum_partials";

/// Threads per block of [`SUM_PARTIALS`]; each adds the partial sums of one entry.
pub const SUM_PARTIALS_THREADS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_the_row_is() {
        for (i, row) in FORWARD.iter().enumerate() {
            assert!(row.name.contains(row.element.name()), "{}", row.name);
            assert_eq!(row.name.ends_with("_winners"), row.winners, "{}", row.name);
            assert!(FORWARD[..i].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }

    #[test]
    fn shared_memory_fits_the_smallest_device_of_the_arch() {
        for row in FORWARD {
            let limit = match row.arch {
                Arch::Sm80 => 99 * 1024,
                Arch::Sm90a => 227 * 1024,
            };
            assert!(row.shared_bytes(row.dim_max) <= limit, "{}", row.name);
        }
    }
}
