//! Checks foreign device addresses before they are used.

use std::ptr;
use std::sync::Arc;

use super::context::CudaDevice;
use super::memory::download;
use super::status;
use super::symbols::raw;
use crate::error::{Error, Result};
use crate::problem::outputs::Trust;
use crate::runtime::alloc::filled;

const CONTEXT: i32 = 1;

const MEMORY_TYPE: i32 = 2;

const DEVICE_ORDINAL: i32 = 9;

/// `CU_MEMORYTYPE_HOST`
const HOST_MEMORY: u32 = 1;

/// `CU_MEMORYTYPE_DEVICE`
const DEVICE_MEMORY: u32 = 2;

/// Checks foreign memory: its alignment, and as [`check_range`] unless it is trusted.
pub(in crate::cuda) fn check_foreign(
    device: &CudaDevice,
    address: u64,
    len_bytes: u64,
    align_bytes: u64,
    trust: Trust,
) -> Result<()> {
    match trust {
        Trust::Checked => check_range(device, address, len_bytes, align_bytes),
        Trust::Unchecked if len_bytes > 0 => check_align(address, align_bytes),
        Trust::Unchecked => Ok(()),
    }
}

fn check_align(address: u64, align_bytes: u64) -> Result<()> {
    if address.is_multiple_of(align_bytes) {
        return Ok(());
    }
    let why = format!("it must be a multiple of the element size of {align_bytes} bytes");
    Err(Error::ForeignPointer { address, why })
}

/// Checks that `len_bytes` bytes from `address` are one allocation's device memory of this
/// device and context, aligned to `align_bytes`.
pub(crate) fn check_range(
    device: &CudaDevice,
    address: u64,
    len_bytes: u64,
    align_bytes: u64,
) -> Result<()> {
    let refuse = |why: String| Err(Error::ForeignPointer { address, why });
    if len_bytes == 0 {
        return Ok(());
    }
    check_align(address, align_bytes)?;
    let entered = device.enter()?;
    let memory_type = match attribute(device, MEMORY_TYPE, address, 0u32)? {
        Some(memory_type) => memory_type,
        None => return refuse("the driver knows of no memory at this address".into()),
    };
    if memory_type != DEVICE_MEMORY {
        return refuse("it is host memory; device memory was expected".into());
    }
    let ordinal = attribute(device, DEVICE_ORDINAL, address, -1i32)?;
    if ordinal != Some(device.ordinal() as i32) {
        let found = ordinal.map_or("no device".into(), |ordinal| format!("cuda:{ordinal}"));
        return refuse(format!("it is on {found}, not on cuda:{}", device.ordinal()));
    }
    // Memory that was mapped or came from a pool belongs to no context.
    let context = attribute(device, CONTEXT, address, 0usize)?.unwrap_or(0);
    if context != 0 && context != device.context_address() {
        return refuse("it belongs to another CUDA context than the device's primary one".into());
    }
    let (mut base, mut size) = (0, 0);
    // SAFETY: both outlive the call; the context is current.
    match unsafe { raw::cuMemGetAddressRange_v2(&mut base, &mut size, address) } {
        0 => {}
        code if status::is_sticky(code) => device.check("cuMemGetAddressRange", code)?,
        code => return refuse(format!("its allocation is unknown: {}", status::describe(code))),
    }
    drop(entered);
    let left = (base + size as u64).saturating_sub(address);
    if address < base || left < len_bytes {
        return refuse(format!(
            "{len_bytes} bytes are needed, its allocation has {left} from this address on"
        ));
    }
    Ok(())
}

/// Whether the driver knows host memory as page-locked, by its two ends. Copies are right either
/// way: from other memory they are slower, and wait for the host.
pub(in crate::cuda) fn is_page_locked(device: &CudaDevice, memory: &[u8]) -> Result<bool> {
    let (Some(first), Some(last)) = (memory.first(), memory.last()) else { return Ok(false) };
    let _entered = device.enter()?;
    for end in [first, last] {
        let address = ptr::from_ref(end).addr() as u64;
        if attribute(device, MEMORY_TYPE, address, 0u32)? != Some(HOST_MEMORY) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An attribute of an address; `None` where the driver does not know the address. `unset`
/// must be of the attribute's type.
fn attribute<V: bytemuck::Pod>(
    device: &CudaDevice,
    attribute: i32,
    address: u64,
    unset: V,
) -> Result<Option<V>> {
    let mut value = unset;
    // SAFETY: `value` has the attribute's type and outlives the call.
    match unsafe { raw::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) } {
        status::INVALID_VALUE => Ok(None),
        code => device.check("cuPointerGetAttribute", code).map(|()| Some(value)),
    }
}

/// One value per row from an address, checked.
pub(crate) fn read_rows<V: bytemuck::Pod>(
    device: &Arc<CudaDevice>,
    address: u64,
    rows: usize,
) -> Result<Vec<V>> {
    check_range(device, address, (rows * size_of::<V>()) as u64, size_of::<V>() as u64)?;
    let mut values = filled(rows as u64, V::zeroed())?;
    let entered = device.enter()?;
    // Any stream may have written the bytes.
    device.synchronize(&entered)?;
    // SAFETY: the range was just checked.
    unsafe { download(&entered, address, bytemuck::cast_slice_mut(&mut values))? };
    Ok(values)
}
