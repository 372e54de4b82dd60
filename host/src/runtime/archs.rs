//! The instruction sets of this CPU, which tests compare.

use pulp::Arch;

/// What this CPU has, from the plainest on.
pub(crate) fn archs() -> Vec<Arch> {
    let mut archs = vec![Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        archs.extend(pulp::x86::V3::try_new().map(Arch::V3));
        archs.extend(pulp::x86::V4::try_new().map(Arch::V4));
    }
    archs.push(Arch::new());
    archs
}
