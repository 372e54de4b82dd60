//! The PTX entries that the variant table promises.

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::params::backward::residual;
use maxsim_kernels::abi::params::{backward, loss, quantize, rescore};
use maxsim_kernels::abi::residual_chunk;
use maxsim_kernels::table::forward::{
    COMBINE_PIECES, COMBINE_PIECES_SHARED_BYTES, COMBINE_PIECES_THREADS, FORWARD, READ,
    READ_THREADS, SUM_PARTIALS, SUM_PARTIALS_THREADS,
};

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

/// What a cubin is assembled for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The assembler's name of it.
    pub name: &'static str,
}

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
    /// Whether its first parameter starts with tensor maps.
    pub tensor_maps: bool,
    /// Whether its machine code lets other warps issue between arithmetic ([`crate::yields`]).
    pub yields: bool,
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
    let mut entries: Vec<Entry> = FORWARD
        .iter()
        .map(|row| Entry {
            name: row.name,
            arch: row.arch,
            threads: row.threads,
            blocks: row.blocks,
            registers: row.registers,
            dynamic_shared_bytes: row.shared_bytes(row.dim_max),
            tensor_maps: row.arch == Arch::Sm90a && !row.schedule.is_contiguous(),
            yields: row.yields(),
        })
        .collect();
    let summing =
        |names: [&'static str; 3], blocks| names.map(|name| (name, backward::THREADS, blocks, 0));
    let gather = summing(backward::GATHER, backward::GATHER_BLOCKS);
    let norms = summing(backward::ROW_NORMS, backward::GATHER_BLOCKS);
    let project = summing(backward::PROJECT, backward::GATHER_BLOCKS);
    let quantize = [
        quantize::QUANTIZE,
        quantize::QUANTIZE_AFFINE,
        quantize::QUANTIZE_LARGEST,
        quantize::QUANTIZE_TENSOR,
    ];
    let quantize = quantize.into_iter().flat_map(|names| summing(names, backward::GATHER_BLOCKS));
    // Those that there are for each instruction set.
    let by_arch = |arch| {
        let of = |entries: backward::ByArch| match arch {
            Arch::Sm80 => entries.sm80,
            Arch::Sm90a => entries.sm90,
        };
        let blocks = backward::owner_blocks(arch);
        let few = of(backward::FEW)
            .map(|name| (name, backward::THREADS, blocks, backward::FEW_SHARED_BYTES));
        let atomic = summing(of(backward::ATOMIC), backward::ATOMIC_BLOCKS);
        few.into_iter().chain(summing(of(backward::OWNER), blocks)).chain(atomic)
    };
    let sort_shared_bytes = backward::shared_bytes(backward::WINDOW_ROWS);
    let count_shared_bytes = backward::count_shared_bytes(backward::WINDOW_ROWS);
    let alone = [
        (SUM_PARTIALS, SUM_PARTIALS_THREADS, 1, 0),
        (COMBINE_PIECES, COMBINE_PIECES_THREADS, 1, COMBINE_PIECES_SHARED_BYTES),
        (READ, READ_THREADS, 1, 0),
        (backward::GATHER_CODES, backward::THREADS, backward::GATHER_BLOCKS, 0),
        (backward::COUNT, backward::THREADS, 1, count_shared_bytes),
        (backward::INVERT, backward::THREADS, 1, sort_shared_bytes),
        (backward::JOIN, backward::THREADS, 1, backward::JOIN_SHARED_BYTES),
        (backward::SUM, backward::THREADS, 1, 0),
        (loss::CONTRASTIVE, loss::THREADS, loss::BLOCKS, loss::SHARED_BYTES),
        (loss::DISTILLATION, loss::THREADS, loss::BLOCKS, loss::SHARED_BYTES),
        (loss::MEAN, loss::THREADS, 1, loss::SHARED_BYTES),
    ];
    let rescore = rescore::RESCORE
        .map(|name| (name, rescore::THREADS, rescore::BLOCKS, rescore::SHARED_BYTES));
    let of = |arch| move |entry| (arch, entry);
    let decoded_norms =
        residual_chunk::NORMS.map(|name| (name, backward::THREADS, backward::GATHER_BLOCKS, 0));
    let sm80 = alone.into_iter().chain(gather).chain(by_arch(Arch::Sm80)).chain(norms);
    let sm80 = sm80.chain(decoded_norms).chain(project).chain(quantize);
    let centroids = residual_chunk::CENTROID_KERNELS.concat().into_iter().map(|name| {
        (name, residual_chunk::CENTROID_SCORES_THREADS, residual_chunk::CENTROID_SCORES_BLOCKS, 0)
    });
    let sm80 = sm80.chain(centroids).chain(rescore).chain(residual_gradients()).map(of(Arch::Sm80));
    let sm90 = by_arch(Arch::Sm90a).map(of(Arch::Sm90a));
    for (arch, (name, threads, blocks, dynamic_shared_bytes)) in sm80.chain(sm90) {
        // Blocks of this size may use what the register file holds.
        let registers = (65536 / threads / blocks).min(255);
        entries.push(Entry {
            name,
            arch,
            threads,
            blocks,
            registers,
            dynamic_shared_bytes,
            tensor_maps: false,
            yields: false,
        });
    }
    entries.sort_by_key(|entry| entry.name);
    entries
}

/// Those of gradients of residual-compressed documents: name, threads, blocks, shared memory.
fn residual_gradients() -> Vec<(&'static str, usize, usize, usize)> {
    use residual::{GATHER, GATHER_BLOCKS, PROJECT, SUM, TABLES, TABLES_BLOCKS, TABLES_THREADS};
    let threads = backward::THREADS;
    let gather = GATHER.map(|name| (name, threads, GATHER_BLOCKS, 0));
    let project = PROJECT.map(|name| (name, threads, backward::GATHER_BLOCKS, 0));
    let tables_shared_bytes = residual::tables_shared_bytes(8);
    let tables = [
        (TABLES, TABLES_THREADS, TABLES_BLOCKS, tables_shared_bytes),
        (SUM, threads, backward::GATHER_BLOCKS, 0),
    ];
    gather.into_iter().chain(project).chain(tables).collect()
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
