//! Devices: one per ordinal and process, in the device's primary context.
//!
//! The primary context is the one that the CUDA runtime uses, so addresses are shared with
//! other CUDA libraries of the process. Every entry point makes it current for as long as
//! it runs ([`CudaDevice::enter`]) and restores the caller's current context.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use cust::context::Context;
use cust::context::legacy::CurrentContext;
use cust::device::{Device, DeviceAttribute};
use cust::error::CudaError;
use maxsim_kernels::abi::arch::Arch;

use super::event::RawEvent;
use super::memory::pieces::IdlePieces;
use super::memory::retired::Retired;
use super::memory::{Buffer, Pinned};
use super::module::Kernels;
use super::staging::Staging;
use super::status;
use super::stream::CudaStream;
use super::symbols::{library, raw};
use super::transfer::Uploader;
use crate::error::{Error, Result};
use crate::plan::limits::DeviceLimits;
use crate::runtime::numa::NearCpus;
use crate::runtime::swap::lock;

/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`, which `cust` does not name.
const SHARED_MEMORY_PER_BLOCK_OPT_IN: i32 = 97;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: i32 = 2;

/// The oldest compute capability that a kernel is compiled for.
const OLDEST: (u32, u32) = (8, 0);

/// The environment variable that limits the kernels that a device may run.
const INSTRUCTIONS: &str = "MAXSIM_INSTRUCTIONS";

/// A CUDA device and what this process keeps on it.
pub(crate) struct CudaDevice {
    ordinal: usize,
    name: String,
    /// The device's limits, with the compute capability that kernels are chosen by.
    limits: DeviceLimits,
    /// The device's own compute capability, which decides what machine code it runs.
    capability: (u32, u32),
    driver_version: u32,
    context: Context,
    /// The device's address on its bus, and the CPUs near that, once they were looked up.
    pci_address: Option<String>,
    near_cpus: OnceLock<Option<NearCpus>>,
    /// The call and code of the fault that ended the device's use, once there was one.
    lost: OnceLock<(&'static str, u32)>,
    pub(in crate::cuda) kernels: Kernels,
    /// The staging memory of uploads, while none of them uses it.
    pub(in crate::cuda) uploader: Mutex<Option<Uploader>>,
    /// Where results are copied to, while no read uses it.
    pub(in crate::cuda) landing: Mutex<Option<Pinned>>,
    /// The staging memory of searches, while none of them uses it.
    pub(in crate::cuda) idle_pieces: IdlePieces,
    /// The staging memory of lists.
    pub(in crate::cuda) staging: Staging,
    /// The stream of synchronous calls, while none of them uses it.
    pub(in crate::cuda) idle_streams: Mutex<Vec<CudaStream>>,
    /// Memory for a slice of projected tokens, while no call uses it.
    pub(in crate::cuda) idle_slice: Mutex<Option<Buffer>>,
    /// Memory for gradients through a projection, while no work has it.
    pub(in crate::cuda) idle_slots: Mutex<Option<Buffer>>,
    /// Held while the library captures a graph and while it waits for all of the context's work:
    /// the driver refuses to wait during a capture.
    pub(in crate::cuda) quiet: Mutex<()>,
    /// Memory whose owners are gone, and the streams that may still use it.
    pub(in crate::cuda) retired: Retired,
    /// Events that only order work, without owners.
    pub(in crate::cuda) idle_events: Mutex<Vec<RawEvent>>,
}

/// Proof that a device's context is current on this thread.
pub(in crate::cuda) struct Entered<'a> {
    device: &'a CudaDevice,
    /// A context is current per thread.
    _not_send: PhantomData<*const ()>,
}

/// Proof that this thread may do what a capture of some stream would forbid it.
pub(in crate::cuda) struct Relaxed {
    /// The mode to return to.
    before: Option<i32>,
    /// The mode is a thread's.
    _not_send: PhantomData<*const ()>,
}

/// Number of CUDA devices. Opens the driver at first use.
pub(crate) fn n_devices() -> Result<usize> {
    library()
        .map_err(|error| Error::NoDriver { why: error.to_string(), source: Some(error.clone()) })?;
    // SAFETY: may be called any number of times.
    match unsafe { raw::cuInit(0) } {
        0 => {}
        status::NO_DEVICE => return Ok(0),
        code => return Err(status::error("cuInit", code)),
    }
    let n = Device::num_devices().map_err(from_cust("cuDeviceGetCount"))?;
    Ok(n as usize)
}

/// Opens device number `ordinal`: every call gives the same device.
pub(crate) fn open(ordinal: usize) -> Result<Arc<CudaDevice>> {
    static DEVICES: Mutex<BTreeMap<usize, Arc<CudaDevice>>> = Mutex::new(BTreeMap::new());
    let n_devices = n_devices()?;
    if ordinal >= n_devices {
        return Err(Error::NoDevice { ordinal, n_devices });
    }
    let mut devices = lock(&DEVICES);
    if let Some(device) = devices.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = Arc::new(CudaDevice::new(ordinal)?);
    devices.insert(ordinal, device.clone());
    Ok(device)
}

/// Chooses the compute capability that kernels are selected by: that of the device, or of an older
/// one if the environment says so.
fn chosen_by(capability: (u32, u32)) -> Result<(u32, u32)> {
    match std::env::var_os(INSTRUCTIONS) {
        None => Ok(capability),
        Some(value) => instructions(&value.to_string_lossy(), capability),
    }
}

fn instructions(value: &str, capability: (u32, u32)) -> Result<(u32, u32)> {
    let sets = [Arch::Sm80, Arch::Sm90a];
    match sets.into_iter().find(|set| set.target() == value) {
        _ if value.is_empty() => Ok(capability),
        Some(Arch::Sm80) => Ok(OLDEST),
        Some(set) if set.runs_on(capability) => Ok(capability),
        Some(set) => Err(Error::Unsupported {
            what: format!("{INSTRUCTIONS}={value}"),
            why: format!(
                "{} code does not run on compute capability {}.{}; unset the variable",
                set.target(),
                capability.0,
                capability.1
            ),
        }),
        None => Err(Error::Unsupported {
            what: format!("{INSTRUCTIONS}={value}"),
            why: "it is sm_80 or sm_90a, or unset for all that the device runs".into(),
        }),
    }
}

fn from_cust(call: &'static str) -> impl Fn(CudaError) -> Error {
    move |error| status::error(call, error as u32)
}

impl CudaDevice {
    fn new(ordinal: usize) -> Result<CudaDevice> {
        let device = Device::get_device(ordinal as u32).map_err(from_cust("cuDeviceGet"))?;
        let attribute = |attribute: DeviceAttribute| {
            device.get_attribute(attribute).map_err(from_cust("cuDeviceGetAttribute"))
        };
        let name = device.name().map_err(from_cust("cuDeviceGetName"))?;
        let capability = (
            attribute(DeviceAttribute::ComputeCapabilityMajor)? as u32,
            attribute(DeviceAttribute::ComputeCapabilityMinor)? as u32,
        );
        if capability < OLDEST {
            return Err(Error::UnsupportedDevice { name, capability });
        }
        let pci =
            [DeviceAttribute::PciDomainId, DeviceAttribute::PciBusId, DeviceAttribute::PciDeviceId];
        let pci_address = match pci.map(attribute) {
            [Ok(domain), Ok(bus), Ok(slot)] => Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.0")),
            _ => None,
        };
        let n_multiprocessors = attribute(DeviceAttribute::MultiprocessorCount)? as usize;
        let mut shared_bytes = 0;
        let opt_in = SHARED_MEMORY_PER_BLOCK_OPT_IN;
        // SAFETY: `shared_bytes` outlives the call; the device exists.
        match unsafe { raw::cuDeviceGetAttribute(&mut shared_bytes, opt_in, device.as_raw()) } {
            0 => {}
            code => return Err(status::error("cuDeviceGetAttribute", code)),
        }
        let mut driver_version = 0;
        // SAFETY: `driver_version` outlives the call.
        match unsafe { raw::cuDriverGetVersion(&mut driver_version) } {
            0 => {}
            code => return Err(status::error("cuDriverGetVersion", code)),
        }
        // Retaining a context makes it current: the caller's is put back.
        let callers = CurrentContext::get_current().map_err(from_cust("cuCtxGetCurrent"))?;
        let context = Context::new(device);
        CurrentContext::set_current(&callers).map_err(from_cust("cuCtxSetCurrent"))?;
        Ok(CudaDevice {
            ordinal,
            name,
            capability,
            limits: DeviceLimits {
                capability: chosen_by(capability)?,
                n_multiprocessors,
                shared_bytes: shared_bytes as usize,
            },
            driver_version: driver_version as u32,
            context: context.map_err(from_cust("cuDevicePrimaryCtxRetain"))?,
            pci_address,
            near_cpus: OnceLock::new(),
            lost: OnceLock::new(),
            kernels: Kernels::default(),
            uploader: Mutex::new(None),
            landing: Mutex::new(None),
            idle_pieces: IdlePieces::default(),
            staging: Staging::default(),
            idle_streams: Mutex::new(Vec::new()),
            idle_slice: Mutex::new(None),
            idle_slots: Mutex::new(None),
            quiet: Mutex::new(()),
            retired: Retired::default(),
            idle_events: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Keeps this thread near the device, on the CPUs of its NUMA node, where there are several.
    pub(in crate::cuda) fn keep_thread_near(&self) {
        let address = self.pci_address.as_deref();
        let near = self.near_cpus.get_or_init(|| address.and_then(NearCpus::of_pci_device));
        if let Some(near) = near {
            near.keep_thread();
        }
    }

    /// The compute capability that machine code must be for.
    pub(in crate::cuda) fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// The primary context's handle, to compare with.
    pub(in crate::cuda) fn context_address(&self) -> usize {
        self.context.as_raw().addr()
    }

    /// CUDA version of the driver, as 1000 · major + 10 · minor.
    pub(crate) fn driver_version(&self) -> u32 {
        self.driver_version
    }

    /// (free, total) bytes of device memory. Waits for the device where large dropped memory is
    /// still in use, so that it counts as free.
    pub(crate) fn memory_bytes(&self) -> Result<(u64, u64)> {
        let entered = self.enter()?;
        self.reclaim_large(&entered)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call; the context is current.
        self.check("cuMemGetInfo", unsafe { raw::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Makes the device's context current until the result is dropped. Every use of the
    /// driver starts here, so that a lost device is not touched again.
    pub(in crate::cuda) fn enter(&self) -> Result<Entered<'_>> {
        if let Some(&(call, code)) = self.lost.get() {
            return Err(Error::DeviceLost { call, code });
        }
        // SAFETY: the context lives as long as the device.
        let code = unsafe { raw::cuCtxPushCurrent_v2(self.context.as_raw()) };
        self.check("cuCtxPushCurrent", code)?;
        Ok(Entered { device: self, _not_send: PhantomData })
    }

    /// Allows what the driver otherwise refuses this thread while any stream of the process is
    /// captured, until the result is dropped: allocating, and asking whether events have completed.
    pub(in crate::cuda) fn relaxed(&self) -> Relaxed {
        let mut mode = RELAXED;
        // SAFETY: `mode` outlives the call. Where the driver has no such function, nothing changes.
        let code = unsafe { raw::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed { before: (code == 0).then_some(mode), _not_send: PhantomData }
    }

    /// Turns a status code into a result, and remembers a fault that ends the device's use.
    pub(in crate::cuda) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        if status::is_sticky(code) {
            let &(call, code) = self.lost.get_or_init(|| (call, code));
            return Err(Error::DeviceLost { call, code });
        }
        Err(status::error(call, code))
    }

    /// Waits until all work of the context is done, so that its memory may be freed.
    pub(in crate::cuda) fn synchronize(&self, _entered: &Entered<'_>) -> Result<()> {
        let _quiet = lock(&self.quiet);
        // SAFETY: the context is current.
        self.check("cuCtxSynchronize", unsafe { raw::cuCtxSynchronize() })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

impl<'a> Entered<'a> {
    pub(in crate::cuda) fn device(&self) -> &'a CudaDevice {
        self.device
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: pops what `enter` pushed on this thread. It can fail only when the driver
        // is shutting down, when there is nothing left to restore.
        unsafe { raw::cuCtxPopCurrent_v2(&mut popped) };
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` outlives the call, and is what this thread had.
            unsafe { raw::cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a device number gives, whatever this machine has.
    #[test]
    fn a_missing_driver_and_a_missing_device_are_different_errors() {
        let Err(error) = open(usize::MAX) else { panic!("there is no such device") };
        match (library(), error) {
            (Err(why), error @ Error::NoDriver { .. }) => {
                let source = std::error::Error::source(&error).expect("what the linker said");
                assert_eq!(source.to_string(), why.to_string());
                assert!(error.to_string().contains(&why.to_string()), "{error}");
            }
            (Ok(_), Error::NoDevice { ordinal, n_devices }) => {
                assert_eq!(ordinal, usize::MAX);
                assert!(n_devices < ordinal);
            }
            // A driver that refuses to start, on a machine with the library but no GPU.
            (Ok(_), Error::Driver { call: "cuInit", .. }) => {}
            (library, error) => panic!("{error} with a driver: {}", library.is_ok()),
        }
    }

    #[test]
    fn kernels_are_chosen_by_the_device_unless_told() {
        let (ampere, hopper) = ((8, 6), (9, 0));
        for (value, device, chosen) in [
            ("", hopper, hopper),
            ("", ampere, ampere),
            ("sm_80", hopper, (8, 0)),
            ("sm_80", ampere, (8, 0)),
            ("sm_90a", hopper, hopper),
        ] {
            assert_eq!(instructions(value, device).unwrap(), chosen, "{value} on {device:?}");
        }
        for (value, said) in [("sm_90a", "compute capability 8.6"), ("sm_70", "sm_80 or sm_90a")] {
            let error = instructions(value, ampere).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(INSTRUCTIONS), "{error}");
        }
    }

    /// What `cust` itself sees without a driver: an error, not a crash.
    #[test]
    fn cust_gets_no_device_where_there_is_no_driver() {
        if library().is_err() {
            assert_eq!(cust::init(cust::CudaFlags::empty()), Err(CudaError::NoDevice));
            assert_eq!(Device::num_devices(), Err(CudaError::NoDevice));
        }
    }
}
