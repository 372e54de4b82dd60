//! Kernels as they are loaded.

use std::fmt;
use std::time::Duration;

/// A kernel on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedKernel {
    /// Its name, as plans have it.
    pub name: &'static str,
    /// What it was loaded from.
    pub source: KernelSource,
    /// Time that loading took; `None` where the kernel was there already.
    pub time: Option<Duration>,
}

/// What a kernel was loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelSource {
    /// Code for this kind of device, assembled when the library was built.
    Cubin,
    /// PTX, compiled by the driver (unless its own cache had the result).
    Ptx,
}

impl fmt::Display for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelSource::Cubin => "cubin",
            KernelSource::Ptx => "ptx",
        })
    }
}
