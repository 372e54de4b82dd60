//! The one error type of the library.

use std::collections::TryReserveError;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Everything that can go wrong, with the values that were wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument's size or shape disagrees with another's.
    Shape {
        /// The argument at fault.
        argument: &'static str,
        /// The size or shape that would have been right.
        expected: String,
        /// The size or shape that was given.
        found: String,
    },
    /// An entry of an offsets, starts or lengths array is negative, falls, or points
    /// outside its matrix.
    Offset {
        /// The argument at fault.
        argument: &'static str,
        /// Index of the entry.
        index: usize,
        /// Values that would have been right.
        expected: String,
        /// The entry, of whichever integer type.
        found: i128,
    },
    /// A query or document id does not exist.
    Id {
        /// The argument at fault.
        argument: &'static str,
        /// Index of the id in its list.
        index: usize,
        /// The id.
        found: i64,
        /// Number of items there are: ids go from 0 to `n_items - 1`.
        n_items: usize,
    },
    /// A size is above what the operator takes.
    TooLarge {
        /// Name of the number that is too large.
        what: &'static str,
        /// The largest value possible.
        limit: u64,
        /// The value found.
        found: u64,
    },
    /// The request is well-formed, but nothing on this device can run it.
    Unsupported {
        /// Feature or combination that was asked for.
        what: String,
        /// Why it cannot run, and what would.
        why: String,
    },
    /// A handle, stream or buffer belongs to another device.
    WrongDevice {
        /// The argument at fault.
        argument: &'static str,
        /// The device that was to run the call.
        expected: String,
        /// The device that holds the argument.
        found: String,
    },
    /// A foreign device pointer is not what its constructor was given it as.
    ForeignPointer {
        /// The address.
        address: u64,
        /// Reason why the pointer is refused.
        why: String,
    },
    /// The host has no room for a result.
    HostMemory {
        /// Bytes that were asked for.
        requested_bytes: u64,
        /// Error of the allocator, where it was asked.
        source: Option<TryReserveError>,
    },
    /// The device has no room. The device and its handles stay usable.
    DeviceMemory {
        /// Bytes that were asked for; 0 where only the driver knows (contexts, kernels).
        requested_bytes: u64,
        /// Bytes that were free, where the driver could still say.
        free_bytes: Option<u64>,
    },
    /// A [source](crate::streaming::Source) did not give its rows. The device stays usable.
    Source {
        /// The first of the rows that were asked for.
        first_row: u64,
        /// Number of the rows that were asked for.
        n_rows: u64,
        /// The error of the source.
        source: io::Error,
    },
    /// A call was asked to end by its [`Interrupt`](crate::Interrupt).
    Interrupted,
    /// The library was built without the feature `cuda`.
    CudaNotBuilt,
    /// No NVIDIA driver: libcuda.so.1 could not be opened.
    NoDriver {
        /// Reason why it could not be opened.
        why: String,
        /// Error of the dynamic linker, where it was asked.
        source: Option<Arc<dyn StdError + Send + Sync>>,
    },
    /// There is a driver but no device of this number.
    NoDevice {
        /// The device number that was asked for.
        ordinal: usize,
        /// Number of devices there are.
        n_devices: usize,
    },
    /// The device is older than the oldest kernels (compute capability 8.0).
    UnsupportedDevice {
        /// The device's name.
        name: String,
        /// Compute capability of the device (major, minor).
        capability: (u32, u32),
    },
    /// The driver is older than the PTX of a kernel.
    PtxTooNew {
        /// The kernel.
        kernel: String,
        /// CUDA version of the driver, as 1000 · major + 10 · minor.
        driver_version: u32,
    },
    /// An earlier fault has made the device unusable for this process.
    DeviceLost {
        /// The driver call that reported it.
        call: &'static str,
        /// The driver's error code.
        code: u32,
    },
    /// Any other driver error.
    Driver {
        /// The driver call that failed.
        call: &'static str,
        /// The driver's error code.
        code: u32,
        /// The driver's name for it, and its log where there is one.
        message: String,
    },
}

/// Result with this library's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Shape { argument, expected, found } => {
                write!(f, "{argument}: expected {expected}, found {found}")
            }
            Error::Offset { argument, index, expected, found } => {
                write!(f, "{argument}[{index}]: expected {expected}, found {found}")
            }
            Error::Id { argument, index, found, n_items } => write!(
                f,
                "{argument}[{index}]: id {found} does not exist: there are {n_items} items, \
                 numbered from 0"
            ),
            Error::TooLarge { what, limit, found } => {
                write!(f, "{what}: {found} is above the limit of {limit}; split the call")
            }
            Error::Unsupported { what, why } => write!(f, "not supported: {what}: {why}"),
            Error::WrongDevice { argument, expected, found } => write!(
                f,
                "{argument} is on {found}, but this call runs on {expected}; upload it there"
            ),
            Error::ForeignPointer { address, why } => {
                write!(f, "device address {address:#x}: {why}")
            }
            Error::HostMemory { requested_bytes, .. } => write!(
                f,
                "out of host memory: {requested_bytes} bytes were needed; score fewer pairs at once"
            ),
            Error::DeviceMemory { requested_bytes, free_bytes } => {
                write_device_memory(f, *requested_bytes, *free_bytes)
            }
            Error::Source { first_row, n_rows, source } => write!(
                f,
                "documents could not be read, in their rows {first_row} to {}: {source}",
                first_row + n_rows.saturating_sub(1)
            ),
            Error::Interrupted => f.write_str("interrupted"),
            Error::CudaNotBuilt => f.write_str(
                "this build of maxsim has no GPU support; build it with the feature `cuda`",
            ),
            Error::NoDriver { why, .. } => write!(
                f,
                "no NVIDIA driver: {why}; install the driver (libcuda.so.1) or use Device::cpu()"
            ),
            Error::NoDevice { ordinal, n_devices: 0 } => write!(
                f,
                "no CUDA device {ordinal}: the driver sees no device at all; check nvidia-smi and \
                 CUDA_VISIBLE_DEVICES"
            ),
            Error::NoDevice { ordinal, n_devices } => {
                write!(f, "no CUDA device {ordinal}: the driver sees {n_devices}, numbered from 0")
            }
            Error::UnsupportedDevice { name, capability: (major, minor) } => write!(
                f,
                "{name} has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or \
                 later; use Device::cpu()"
            ),
            Error::PtxTooNew { kernel, driver_version } => write!(
                f,
                "kernel {kernel} needs a newer driver than the installed one (CUDA {}.{}); update \
                 the driver",
                driver_version / 1000,
                driver_version % 1000 / 10
            ),
            Error::DeviceLost { call, code } => write!(
                f,
                "the CUDA device is lost ({call} returned {code}) after an earlier fault; restart \
                 the process"
            ),
            Error::Driver { call, code, message } => {
                write!(f, "{call} failed with CUDA error {code}: {message}")
            }
        }
    }
}

/// Writes what a device has no room for.
fn write_device_memory(
    f: &mut fmt::Formatter<'_>,
    requested_bytes: u64,
    free_bytes: Option<u64>,
) -> fmt::Result {
    f.write_str("out of device memory")?;
    if requested_bytes > 0 {
        write!(f, ": {requested_bytes} bytes were needed")?;
    }
    if let Some(free) = free_bytes {
        write!(f, ", {free} were free")?;
    }
    f.write_str("; free some handles or upload fewer documents at once")
}

impl StdError for Error {
    /// The error that this one was made of: that of the dynamic linker, the allocator or a source
    /// of documents. Its text is in the error's own where that helps.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::HostMemory { source, .. } => source.as_ref().map(|error| error as _),
            Error::Source { source, .. } => Some(source),
            Error::NoDriver { source, .. } => source.as_ref().map(|error| &**error as _),
            _ => None,
        }
    }
}
