//! The tables of compiled kernels. They alone drive the PTX entry points, the host's dispatch, the
//! PTX check, warm-up, tests and benchmarks.

pub mod auxiliary;
pub mod forward;

use core::marker::PhantomData;

use crate::abi::arch::Arch;

/// Resources of a device that a kernel takes, and how it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Name of the PTX entry, and of the file that holds it.
    pub name: &'static str,
    /// The instruction set it is compiled for.
    pub arch: Arch,
    /// Threads per CTA.
    pub threads: usize,
    /// CTAs that share a multiprocessor.
    pub blocks: usize,
    /// Dynamic shared memory of its largest launch in bytes.
    pub shared_bytes: usize,
    /// Whether its parameter starts with tensor maps, and is aligned for them.
    pub tensor_maps: bool,
    /// Whether its machine code lets other warps issue between arithmetic
    /// (`xtask/src/yields.rs`).
    pub yields: bool,
    /// Whether its CTAs may begin before the kernel before it in a stream has ended: it waits by
    /// itself before it touches what another kernel may write or read.
    pub begins_early: bool,
}

impl Resources {
    /// Registers per thread that it may use at entry: what the register file holds, in the steps
    /// of 8 that it is given out in, and at most 255.
    pub const fn registers(&self) -> usize {
        match 65536 / (self.threads * self.blocks) / 8 * 8 {
            256.. => 255,
            registers => registers,
        }
    }
}

/// A PTX entry point, which takes a `P`. The line of the table that names the kernel says so, for
/// the device, which declares the entry with that type, and for the host, whose launch takes an
/// `Entry<P>` with a `&P`: another struct does not compile.
///
/// ```
/// use maxsim_kernels::abi::params::SumPartialsParams;
/// use maxsim_kernels::table::auxiliary::SUM_PARTIALS;
///
/// fn launch(params: &SumPartialsParams) -> *const SumPartialsParams {
///     SUM_PARTIALS.argument(params)
/// }
/// ```
///
/// ```compile_fail,E0308
/// use maxsim_kernels::abi::params::loss::MeanParams;
/// use maxsim_kernels::table::auxiliary::SUM_PARTIALS;
///
/// fn launch(params: &MeanParams) -> *const MeanParams {
///     SUM_PARTIALS.argument(params)
/// }
/// ```
///
/// Kernels of the forward table take their own struct alone, too:
///
/// ```
/// use maxsim_kernels::abi::params::ResidualParams;
/// use maxsim_kernels::table::forward::{FORWARD, ForwardEntry};
///
/// fn launch(params: &ResidualParams) -> Option<*const ResidualParams> {
///     match FORWARD.first()?.entry() {
///         ForwardEntry::Residual(entry) => Some(entry.argument(params)),
///         _ => None,
///     }
/// }
/// ```
///
/// ```compile_fail,E0308
/// use maxsim_kernels::abi::params::ResidualParams;
/// use maxsim_kernels::table::forward::{FORWARD, ForwardEntry};
///
/// fn launch(params: &ResidualParams) -> Option<*const ResidualParams> {
///     match FORWARD.first()?.entry() {
///         ForwardEntry::Normalized(entry) => Some(entry.argument(params)),
///         _ => None,
///     }
/// }
/// ```
pub struct Entry<P> {
    resources: Resources,
    params: PhantomData<fn(&P)>,
}

impl<P> Clone for Entry<P> {
    fn clone(&self) -> Entry<P> {
        *self
    }
}

impl<P> Copy for Entry<P> {}

// Formatting is for the host.
#[cfg(not(target_arch = "nvptx64"))]
impl<P> core::fmt::Debug for Entry<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.resources.name)
    }
}

impl<P> Entry<P> {
    /// Only the tables make entries.
    const fn new(resources: Resources) -> Entry<P> {
        Entry { resources, params: PhantomData }
    }

    /// Resources of a device that the kernel takes.
    pub const fn resources(&self) -> &Resources {
        &self.resources
    }

    /// The argument of a launch: the address of the struct that the kernel takes.
    pub const fn argument(&self, params: &P) -> *const P {
        params
    }
}

/// How many lines there are in all parts of a table.
const fn n_lines<T>(parts: &[&[T]]) -> usize {
    let (mut n, mut part) = (0, 0);
    while part < parts.len() {
        n += parts[part].len();
        part += 1;
    }
    n
}

/// The lines of all parts of a table, [`n_lines`] of them, in order.
const fn lines_of<T: Copy, const N: usize>(parts: &[&[T]]) -> [T; N] {
    let mut all = [parts[0][0]; N];
    let (mut n, mut part) = (0, 0);
    while part < parts.len() {
        let mut line = 0;
        while line < parts[part].len() {
            all[n] = parts[part][line];
            (n, line) = (n + 1, line + 1);
        }
        part += 1;
    }
    assert!(n == N);
    all
}

/// Every kernel of both tables.
pub fn all() -> impl Iterator<Item = Resources> {
    let forward = forward::FORWARD.iter().map(|row| row.resources());
    forward.chain(auxiliary::AUXILIARY.iter().map(|row| row.resources))
}
