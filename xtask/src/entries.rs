//! The PTX entries that the tables promise.

use std::ops::Deref;

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::table::{self, Resources};

/// The architectures that kernels are compiled for.
pub const ARCHS: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

/// The targets that an entry's cubins are assembled for. A cubin runs on devices of its major
/// capability, so the entries that Hopper shares with Ampere get one for each: the sum of
/// partial results alone would otherwise have to wait for the driver's compiler there.
pub fn cubin_targets(arch: Arch) -> &'static [Target] {
    const SM80: Target = Target { name: "sm_80" };
    const SM90: Target = Target { name: "sm_90" };
    const SM90A: Target = Target { name: "sm_90a" };
    match arch {
        Arch::Sm80 => &[SM80, SM90],
        Arch::Sm90a => &[SM90A],
    }
}

/// Architecture that a cubin is assembled for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The assembler's name of it.
    pub name: &'static str,
}

/// One PTX entry with its budget.
#[derive(Clone, Copy, Debug)]
pub struct Entry(pub Resources);

impl Deref for Entry {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.0
    }
}

impl Entry {
    /// Name of the file with the entry's PTX.
    pub fn ptx_file(&self) -> String {
        format!("{}.ptx", self.name)
    }

    /// Name of the file with the entry's cubin for a target.
    pub fn cubin_file(&self, target: &Target) -> String {
        format!("{}.{}.cubin", self.name, target.name)
    }
}

/// Every entry, sorted by name.
pub fn all() -> Vec<Entry> {
    let mut entries: Vec<Entry> = table::all().map(Entry).collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

/// The entries compiled for `arch`, sorted by name.
pub fn of(arch: Arch) -> Vec<Entry> {
    all().into_iter().filter(|entry| entry.arch == arch).collect()
}

/// Shared memory that a block may have on the smallest device that runs `arch`, in bytes.
pub fn shared_limit_bytes(arch: Arch) -> usize {
    match arch {
        // Compute capability 8.6, 8.9 and 12.x.
        Arch::Sm80 => 99 * 1024,
        Arch::Sm90a => 227 * 1024,
    }
}
