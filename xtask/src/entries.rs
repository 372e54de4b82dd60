//! The PTX entries that the variant table promises.

use maxsim_kernels::variants::{Arch, FORWARD, SUM_PARTIALS, SUM_PARTIALS_THREADS};

/// The architectures that kernels are compiled for.
pub const ARCHS: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

/// One PTX entry with its budget.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name of the entry, and of its file.
    pub name: &'static str,
    /// The architecture it is compiled for.
    pub arch: Arch,
    /// Threads per block.
    pub threads: usize,
    /// Blocks that share a multiprocessor.
    pub blocks: usize,
    /// Registers per thread it may use at entry.
    pub registers: usize,
    /// Dynamic shared memory of its largest launch in bytes.
    pub dynamic_shared_bytes: usize,
}

/// Every entry, sorted by name.
pub fn all() -> Vec<Entry> {
    let mut entries: Vec<Entry> = FORWARD
        .iter()
        .map(|row| Entry {
            name: row.name,
            arch: row.arch,
            threads: row.threads,
            blocks: row.blocks,
            registers: row.registers,
            dynamic_shared_bytes: row.shared_bytes(row.dim_max),
        })
        .collect();
    entries.push(Entry {
        name: SUM_PARTIALS,
        arch: Arch::Sm80,
        threads: SUM_PARTIALS_THREADS,
        blocks: 1,
        // A block of this size may use what the register file holds.
        registers: (65536 / SUM_PARTIALS_THREADS).min(255),
        dynamic_shared_bytes: 0,
    });
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
