//! The instruction sets that kernels are compiled for.

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
