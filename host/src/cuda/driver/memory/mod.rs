//! Device memory and pinned host memory. Dropping either never waits: see [`retired`].

mod blocks;
pub(in crate::cuda) mod pieces;
pub(in crate::cuda) mod retired;
mod sync;
mod timeline;

use std::ptr;
use std::sync::Arc;

use cust::sys::CUstream;

use self::blocks::class_of;
use self::timeline::Block;
use super::context::{CudaDevice, Entered};
use super::status;
use super::symbols::raw;
use crate::error::{Error, Result};

/// A stream's handle.
#[derive(Clone, Copy, Debug)]
struct Handle(pub CUstream);

// SAFETY: the driver takes a stream from any thread.
unsafe impl Send for Handle {}

/// Device memory. When it is dropped it is handed on as soon as no work uses it any more; see
/// [`retired`]. Addresses are aligned to 256 bytes.
#[derive(Debug)]
pub(in crate::cuda) struct Buffer {
    device: Arc<CudaDevice>,
    address: u64,
    len_bytes: u64,
}

impl Buffer {
    /// Allocates memory with anything in it. 0 bytes have the address 0 and no allocation.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>, len_bytes: u64) -> Result<Buffer> {
        let address = match len_bytes {
            0 => 0,
            len_bytes => match device.take_block(len_bytes) {
                Some(address) => address,
                None => device.allocate(&device.enter()?, len_bytes)?,
            },
        };
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
        let Buffer { address, len_bytes, .. } = *self;
        if address != 0 {
            self.device.retire(match class_of(len_bytes) {
                Some(class) => Block::Small { class, address },
                None => Block::Large { address, len_bytes },
            });
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
    stream: CUstream,
) -> Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    let (device, len) = (entered.device(), len_bytes as usize);
    // SAFETY: the caller's promise.
    let filled = unsafe { fill_on(device, address, byte, len, stream) };
    if stream.is_null() {
        device.retired.mark_default_stream();
    }
    filled
}

/// # Safety
/// As [`fill`].
unsafe fn fill_on(
    device: &CudaDevice,
    address: u64,
    byte: u8,
    len: usize,
    stream: CUstream,
) -> Result<()> {
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
pub(crate) struct Pinned {
    device: Arc<CudaDevice>,
    address: *mut u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to this value alone and is not bound to a thread.
unsafe impl Send for Pinned {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed memory of at least one byte.
    pub(crate) fn new(device: &Arc<CudaDevice>, len_bytes: usize) -> Result<Pinned> {
        let _entered = device.enter()?;
        let _relaxed = device.relaxed();
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

    pub(in crate::cuda) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes from `start` on. No copy from these may be in flight.
    pub(in crate::cuda) fn unused_mut(&mut self, start: usize) -> &mut [u8] {
        let len = self.len_bytes.saturating_sub(start);
        // SAFETY: allocated and initialised in `new`, within its length, and borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(self.len_bytes - len), len) }
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and initialised in `new`; devices read it, and no work writes it.
        unsafe { std::slice::from_raw_parts(self.address, self.len_bytes) }
    }

    /// The bytes. No copy from them may be in flight.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`, and borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len_bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.device.retire(Block::Pinned { address: self.address.expose_provenance() });
    }
}
