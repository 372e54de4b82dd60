//! Devices: where scores are computed.

pub(crate) mod any;
pub(crate) mod command;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod page_locked;
#[allow(unsafe_code)]
pub(crate) mod raw;
#[allow(unsafe_code)]
pub(crate) mod raw_codes;
#[allow(unsafe_code)]
pub(crate) mod raw_items;
#[allow(unsafe_code)]
pub(crate) mod raw_residuals;
#[allow(unsafe_code)]
pub(crate) mod raw_stream;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod tokens;
pub(crate) mod warm_up;

use std::fmt;
use std::sync::Arc;

use crate::cuda;
use crate::cuda::CudaDevice;
use crate::error::{Error, Result};
use crate::plan::limits::DeviceLimits;
use crate::runtime::on::On;

/// A device that computes scores: the CPU, or one CUDA GPU.
///
/// Cheap to clone; clones are the same device. The same calls work on every device, from any
/// number of threads.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) On<(), Arc<CudaDevice>>);

/// Device memory in bytes.
///
/// ```
/// use maxsim::{Device, Memory};
///
/// for device in Device::all() {
///     if let Some(Memory { free_bytes, total_bytes }) = device.memory()? {
///         println!("{device}: {free_bytes} of {total_bytes} bytes are free");
///     }
/// }
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Free for everyone who uses the device.
    pub free_bytes: u64,
    /// All there is.
    pub total_bytes: u64,
}

impl Device {
    /// The CPU engine.
    pub fn cpu() -> Device {
        Device(On::Cpu(()))
    }

    /// CUDA device number `ordinal`, in its primary context. Opens the driver at first use.
    /// A device stays open until the process ends.
    ///
    /// # Errors
    /// [`Error::CudaNotBuilt`], [`Error::NoDriver`], [`Error::NoDevice`],
    /// [`Error::UnsupportedDevice`], [`Error::DeviceMemory`] where the context has no room,
    /// and [`Error::Driver`] for what else the driver may say.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Ok(Device(On::Cuda(cuda::open(ordinal)?)))
    }

    /// Number of CUDA devices that the driver sees, able to run the kernels or not.
    ///
    /// # Errors
    /// [`Error::CudaNotBuilt`], [`Error::NoDriver`], or [`Error::Driver`] where the driver
    /// cannot be initialised.
    pub fn n_cuda() -> Result<usize> {
        cuda::n_devices()
    }

    /// Every device that can score: the CUDA devices that can run the kernels, then the CPU.
    ///
    /// ```
    /// use maxsim::Device;
    ///
    /// for device in Device::all() {
    ///     match (device.ordinal(), device.driver_version()) {
    ///         (Some(ordinal), Some(version)) => {
    ///             let (major, minor) = (version / 1000, version % 1000 / 10);
    ///             println!("{ordinal}: {}, driver of CUDA {major}.{minor}", device.name());
    ///         }
    ///         _ => println!("{}", device.name()),
    ///     }
    /// }
    /// match Device::n_cuda() {
    ///     Ok(n) => println!("the driver sees {n} GPUs, of whatever age"),
    ///     Err(why) => println!("no GPU: {why}"),
    /// }
    /// let gpus = Device::all().iter().filter(|device| device.ordinal().is_some()).count();
    /// assert!(gpus <= Device::n_cuda().unwrap_or(0));
    /// ```
    pub fn all() -> Vec<Device> {
        let n_cuda = Device::n_cuda().unwrap_or(0);
        let cuda = (0..n_cuda).filter_map(|ordinal| Device::cuda(ordinal).ok());
        cuda.chain([Device::cpu()]).collect()
    }

    /// The first CUDA device that can run the kernels, or else the CPU. [`Device::cuda`] says why a
    /// device cannot, a value of an environment variable that there is not included.
    pub fn best() -> Device {
        let n_cuda = Device::n_cuda().unwrap_or(0);
        (0..n_cuda).find_map(|ordinal| Device::cuda(ordinal).ok()).unwrap_or_else(Device::cpu)
    }

    /// The number that [`Device::cuda`] takes; `None` for the CPU.
    pub fn ordinal(&self) -> Option<usize> {
        match &self.0 {
            On::Cpu(()) => None,
            On::Cuda(device) => Some(device.ordinal()),
        }
    }

    /// The product's name, as the driver gives it; `CPU` for the CPU.
    pub fn name(&self) -> &str {
        match &self.0 {
            On::Cpu(()) => "CPU",
            On::Cuda(device) => device.name(),
        }
    }

    /// Limits that decide which kernels can run; `None` for the CPU.
    pub fn limits(&self) -> Option<&DeviceLimits> {
        match &self.0 {
            On::Cpu(()) => None,
            On::Cuda(device) => Some(device.limits()),
        }
    }

    /// CUDA version of the driver as 1000 · major + 10 · minor; `None` for the CPU.
    pub fn driver_version(&self) -> Option<u32> {
        match &self.0 {
            On::Cpu(()) => None,
            On::Cuda(device) => Some(device.driver_version()),
        }
    }

    /// Device memory; `None` for the CPU. What was dropped counts as free: where calls still use it
    /// the device is waited for.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] after a fault.
    pub fn memory(&self) -> Result<Option<Memory>> {
        match &self.0 {
            On::Cpu(()) => Ok(None),
            On::Cuda(device) => {
                let (free_bytes, total_bytes) = device.memory_bytes()?;
                Ok(Some(Memory { free_bytes, total_bytes }))
            }
        }
    }

    /// Checks that something of device `found` can be used here.
    pub(crate) fn check_same(&self, argument: &'static str, found: &Device) -> Result<()> {
        let is_same = match (&self.0, &found.0) {
            (On::Cpu(()), On::Cpu(())) => true,
            (On::Cuda(a), On::Cuda(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let (expected, found) = (self.to_string(), found.to_string());
        Err(Error::WrongDevice { argument, expected, found })
    }

    /// The error for a command of another kind of device. Earlier checks refuse such commands, so
    /// it is never seen.
    pub(crate) fn wrong_queue(&self) -> Error {
        let (expected, found) = (self.to_string(), "another device".into());
        Error::WrongDevice { argument: "work", expected, found }
    }

    /// The CUDA device, if it is one.
    pub(crate) fn as_cuda(&self) -> Option<&Arc<CudaDevice>> {
        match &self.0 {
            On::Cuda(device) => Some(device),
            On::Cpu(()) => None,
        }
    }

    /// The CUDA device, for `what` only a CUDA device has.
    pub(crate) fn cuda_device(&self, what: &str) -> Result<&Arc<CudaDevice>> {
        match &self.0 {
            On::Cuda(device) => Ok(device),
            On::Cpu(()) => Err(Error::Unsupported {
                what: format!("{what} on the CPU"),
                why: "it needs a device from Device::cuda".into(),
            }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal() {
            None => f.write_str("cpu"),
            Some(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
