//! Loaded kernels, for reports.

use std::fmt;
use std::time::Duration;

/// A kernel on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedKernel {
    /// Name of the kernel, as in plans.
    pub name: &'static str,
    /// Form of the code that the kernel was loaded from.
    pub source: KernelSource,
    /// Time that loading took; `None` where the kernel was there already.
    pub time: Option<Duration>,
}

/// Form of the code that a kernel was loaded from.
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
