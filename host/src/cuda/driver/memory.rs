//! Device memory and pinned host memory.

use std::ptr;
use std::sync::Arc;

use super::context::{CudaDevice, Entered};
use super::status;
use super::symbols::raw;
use crate::error::{Error, Result};
use crate::runtime::swap::lock;

/// Device memory, freed on drop. Addresses are aligned to 256 bytes.
#[derive(Debug)]
pub(in crate::cuda) struct Buffer {
    device: Arc<CudaDevice>,
    address: u64,
    len_bytes: u64,
}

impl Buffer {
    /// Allocates uninitialised memory. 0 bytes have the address 0 and no allocation.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>, len_bytes: u64) -> Result<Buffer> {
        let entered = device.enter()?;
        let mut address = 0;
        if len_bytes > 0 {
            // SAFETY: `address` outlives the call; the context is current.
            match unsafe { raw::cuMemAlloc_v2(&mut address, len_bytes as usize) } {
                status::OUT_OF_MEMORY => {
                    drop(entered);
                    let free_bytes = device.memory_bytes().ok().map(|(free, _)| free);
                    return Err(Error::DeviceMemory { requested_bytes: len_bytes, free_bytes });
                }
                code => device.check("cuMemAlloc", code)?,
            }
        }
        Ok(Buffer { device: device.clone(), address, len_bytes })
    }

    /// Memory of zeros, which are there when this returns.
    pub(in crate::cuda) fn zeroed(device: &Arc<CudaDevice>, len_bytes: u64) -> Result<Buffer> {
        let buffer = Buffer::new(device, len_bytes)?;
        let entered = device.enter()?;
        // SAFETY: the buffer was just made, with this length; null is the default stream.
        unsafe { fill(&entered, buffer.address, 0, len_bytes, ptr::null_mut())? };
        device.synchronize(&entered)?;
        drop(entered);
        Ok(buffer)
    }

    pub(in crate::cuda) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(in crate::cuda) fn address(&self) -> u64 {
        self.address
    }

    pub(in crate::cuda) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // The memory of a lost device is gone with its context.
        let Ok(entered) = self.device.enter() else { return };
        let mut unfreed = lock(&self.device.unfreed);
        unfreed.push(self.address);
        // Work that still uses the memory may be in flight on any stream. While a stream
        // is captured the driver refuses to wait for all of them: the next drop frees.
        if self.device.synchronize(&entered).is_err() {
            return;
        }
        for address in unfreed.drain(..) {
            // SAFETY: each address had one owner, which is gone; no work uses it any more.
            let code = unsafe { raw::cuMemFree_v2(address) };
            // There is no caller to return to, but a fault is remembered.
            let _ = self.device.check("cuMemFree", code);
        }
    }
}

/// Copies device memory to the host, once all earlier work of the legacy default stream and
/// of the streams that wait for it is done.
///
/// # Safety
/// `address` must be device memory of the context, at least as long as `destination`.
pub(in crate::cuda) unsafe fn download(
    entered: &Entered<'_>,
    address: u64,
    destination: &mut [u8],
) -> Result<()> {
    if destination.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller's promise; the call returns when the bytes are there.
    let code = unsafe {
        raw::cuMemcpyDtoH_v2(destination.as_mut_ptr().cast(), address, destination.len())
    };
    entered.device().check("cuMemcpyDtoH", code)
}

/// Replaces device memory by what the host has, once all earlier work of the legacy default
/// stream and of the streams that wait for it is done. The bytes have arrived when this returns.
///
/// # Safety
/// `address` must be device memory of the context, at least as long as `source`, that no work uses.
pub(in crate::cuda) unsafe fn overwrite(
    entered: &Entered<'_>,
    address: u64,
    source: &[u8],
) -> Result<()> {
    if source.is_empty() {
        return Ok(());
    }
    let device = entered.device();
    // SAFETY: the caller's promise; null is the legacy default stream. From memory that is not
    // page-locked a copy may be under way when the driver returns, and a stream that does not wait
    // for the default one would not wait for it.
    unsafe {
        let code = raw::cuMemcpyHtoD_v2(address, source.as_ptr().cast(), source.len());
        device.check("cuMemcpyHtoD", code)?;
        device.check("cuStreamSynchronize", raw::cuStreamSynchronize(ptr::null_mut()))
    }
}

/// Fills device memory with a byte, in stream order.
///
/// # Safety
/// `address` must be device memory of the context, at least `len_bytes` long and writable by
/// this stream's work; `stream` must be a stream of the context, or null for the legacy
/// default stream.
pub(in crate::cuda) unsafe fn fill(
    entered: &Entered<'_>,
    address: u64,
    byte: u8,
    len_bytes: u64,
    stream: cust::sys::CUstream,
) -> Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    let (device, len) = (entered.device(), len_bytes as usize);
    if address.is_multiple_of(4) && len.is_multiple_of(4) {
        let word = u32::from_ne_bytes([byte; 4]);
        // SAFETY: the caller's promise.
        let code = unsafe { raw::cuMemsetD32Async(address, word, len / 4, stream) };
        return device.check("cuMemsetD32Async", code);
    }
    // SAFETY: the caller's promise.
    let code = unsafe { raw::cuMemsetD8Async(address, byte, len, stream) };
    device.check("cuMemsetD8Async", code)
}

/// Page-locked host memory, which the device reads at full speed.
#[derive(Debug)]
pub(in crate::cuda) struct Pinned {
    device: Arc<CudaDevice>,
    address: *mut u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to this value alone and is not bound to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zeroed memory of at least one byte.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>, len_bytes: usize) -> Result<Pinned> {
        let _entered = device.enter()?;
        let mut address = ptr::null_mut();
        // SAFETY: `address` outlives the call; the context is current.
        match unsafe { raw::cuMemHostAlloc(&mut address, len_bytes, 0) } {
            status::OUT_OF_MEMORY => {
                return Err(Error::HostMemory { requested_bytes: len_bytes as u64, source: None });
            }
            code => device.check("cuMemHostAlloc", code)?,
        }
        let address = address.cast::<u8>();
        // SAFETY: the driver just gave `len_bytes` bytes.
        unsafe { ptr::write_bytes(address, 0, len_bytes) };
        Ok(Pinned { device: device.clone(), address, len_bytes })
    }

    pub(in crate::cuda) fn as_ptr(&self) -> *const u8 {
        self.address
    }

    /// The bytes. No copy from them may be in flight.
    pub(in crate::cuda) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`, and borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(entered) = self.device.enter() else { return };
        if self.device.synchronize(&entered).is_ok() {
            // SAFETY: this is the only owner, and no copy uses the memory any more.
            let code = unsafe { raw::cuMemFreeHost(self.address.cast()) };
            let _ = self.device.check("cuMemFreeHost", code);
        }
    }
}
