//! The table of kernels, and which instruction sets a CPU has.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
use super::integers;
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use super::simd128;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Kernel, ONE_BY_ONE, Operand, Tile, floats};

/// Why a kernel that was chosen cannot fail to run.
pub(super) const ABSENT: &str = "kernels are chosen of what the CPU has";

/// What kernels need of a CPU, of those of one architecture each more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstructionSet {
    /// What every CPU of the target has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-VNNI: dot products of bytes in registers of AVX2.
    AvxVnni,
    /// AVX-512 F, BW, CD, DQ and VL.
    Avx512,
    /// AVX-512 VNNI: dot products of bytes.
    Vnni,
    /// AVX-512 BF16: dot products of bf16.
    Bf16,
    /// AMX: tiles of bytes and of bf16, as Linux gives them.
    Amx,
    /// ARM's dot products of bytes with a sign.
    DotProd,
    /// ARM's products of small matrices of bytes, with a sign or without.
    I8mm,
}

impl InstructionSet {
    const ALL: [InstructionSet; 9] = [
        InstructionSet::Portable,
        InstructionSet::Avx2,
        InstructionSet::AvxVnni,
        InstructionSet::Avx512,
        InstructionSet::Vnni,
        InstructionSet::Bf16,
        InstructionSet::Amx,
        InstructionSet::DotProd,
        InstructionSet::I8mm,
    ];

    /// The name in the environment.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::AvxVnni => "avxvnni",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Vnni => "vnni",
            InstructionSet::Bf16 => "bf16",
            InstructionSet::Amx => "amx",
            InstructionSet::DotProd => "dotprod",
            InstructionSet::I8mm => "i8mm",
        }
    }

    /// Whether this CPU, and what is below its programs, has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 = || pulp::x86::V3::try_new().is_some();
        let avx512 = || pulp::x86::V4::try_new().is_some();
        match self {
            InstructionSet::Portable => true,
            InstructionSet::Avx2 => avx2(),
            InstructionSet::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
            InstructionSet::Avx512 => avx512(),
            InstructionSet::Vnni => avx512() && is_x86_feature_detected!("avx512vnni"),
            InstructionSet::Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_os = "linux")]
            InstructionSet::Amx => avx512() && amx::is_available(),
            #[cfg(not(target_os = "linux"))]
            InstructionSet::Amx => false,
            InstructionSet::DotProd | InstructionSet::I8mm => false,
        }
    }

    /// Whether this CPU has it.
    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_aarch64_feature_detected;
        match self {
            InstructionSet::Portable => true,
            InstructionSet::DotProd => is_aarch64_feature_detected!("dotprod"),
            InstructionSet::I8mm => {
                InstructionSet::DotProd.is_available() && is_aarch64_feature_detected!("i8mm")
            }
            _ => false,
        }
    }

    /// Whether this CPU has it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == InstructionSet::Portable
    }

    /// What the compiler may use in loops of a call that is limited to this.
    #[cfg(target_arch = "x86_64")]
    pub fn arch(self) -> pulp::Arch {
        if self >= InstructionSet::Avx512
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            return pulp::Arch::V4(simd);
        }
        match pulp::x86::V3::try_new() {
            Some(simd) if self >= InstructionSet::Avx2 => pulp::Arch::V3(simd),
            _ => pulp::Arch::Scalar,
        }
    }

    /// What the compiler may use in loops of a call that is limited to this.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn arch(self) -> pulp::Arch {
        pulp::Arch::new()
    }

    /// Those of this CPU, the least first.
    pub fn available() -> impl Iterator<Item = InstructionSet> {
        InstructionSet::ALL.into_iter().filter(|set| set.is_available())
    }

    /// The best of this CPU.
    pub fn best() -> InstructionSet {
        InstructionSet::available().last().unwrap_or(InstructionSet::Portable)
    }

    /// The names of those of this CPU, for messages.
    pub fn available_names() -> String {
        InstructionSet::available().map(InstructionSet::name).collect::<Vec<_>>().join(", ")
    }
}

/// Every kernel. `<V, R>` is the tile that it keeps in registers: V registers of columns against R
/// rows. Rates are multiply-adds that a core does in a cycle where nothing else limits it, roughly:
/// they rank kernels of one operand; of the same rate, the later one is taken.
pub(super) static TABLE: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Portable, Operand::F32, 2, floats::portable::<16, 1>),
    // Which has 32 registers.
    #[cfg(target_arch = "aarch64")]
    row(InstructionSet::Portable, Operand::F32, 8, floats::portable::<4, 6>),
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    row(InstructionSet::Portable, Operand::F32, 8, floats::portable::<4, 4>),
    // What a build for these registers always has.
    #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
    row(InstructionSet::Portable, Operand::F32, 16, simd128::relaxed_floats::<2, 4>),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    row(InstructionSet::Portable, Operand::Words, 8, simd128::words::<2, 4>),
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    row(InstructionSet::Portable, Operand::Words, 4, integers::portable::<2, 4>),
    #[cfg(target_arch = "aarch64")]
    row(InstructionSet::DotProd, Operand::SignedBytes, 32, neon::dots::<4, 6>),
    #[cfg(target_arch = "aarch64")]
    row(InstructionSet::I8mm, Operand::SignedBytes, 64, neon::signed_squares),
    #[cfg(target_arch = "aarch64")]
    row(InstructionSet::I8mm, Operand::Bytes, 64, neon::mixed_squares),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Avx2, Operand::F32, 16, floats::avx2::<2, 6>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Avx2, Operand::Words, 24, x86::words_avx2::<2, 6>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::AvxVnni, Operand::Bytes, 48, x86::bytes_avx_vnni::<2, 6>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Avx512, Operand::F32, 32, floats::avx512::<2, 8>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Avx512, Operand::Words, 32, x86::words_avx512::<2, 8>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Vnni, Operand::Bytes, 64, x86::bytes_vnni::<2, 8>),
    #[cfg(target_arch = "x86_64")]
    row(InstructionSet::Bf16, Operand::Bf16, 32, x86::bf16::<2, 8>),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    of_tiles(Operand::Bytes, 1024, amx::bytes),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    of_tiles(Operand::SignedBytes, 1024, amx::signed_bytes),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    of_tiles(Operand::Bf16, 512, amx::bf16),
];

const fn row(set: InstructionSet, operand: Operand, rate: usize, run: fn(Tile<'_>)) -> Kernel {
    Kernel { set, operand, rate, at_once: ONE_BY_ONE, run }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const fn of_tiles(operand: Operand, rate: usize, run: fn(Tile<'_>)) -> Kernel {
    Kernel { set: InstructionSet::Amx, operand, rate, at_once: amx::GROUPS, run }
}
