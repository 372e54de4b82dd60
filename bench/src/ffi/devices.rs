//! Searches on several devices as one.

use half::f16;
use maxsim::streaming::Shards;
use maxsim::{Device, Devices, ScoreOptions};

use super::handle::{get, layout, wrong};
use super::search::half_tokens;
use super::top_k::copy_ranked;
use super::{done, made};
use crate::object::{Object, Result, text};

/// Documents in shards, and the devices that have them.
pub struct Sharded {
    devices: Devices,
    shards: Shards<f16>,
}

/// Several devices that search as one, of which one may be there several times. Null for an error.
///
/// # Safety
/// `devices` must be `n` live handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_devices(
    devices: *const *const Object,
    n: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let devices = std::slice::from_raw_parts(devices, n as usize).iter();
        let devices: Result<Vec<Device>> = devices
            .map(|&device| match get(device)? {
                Object::Device(device, _) => Ok(device.clone()),
                _ => wrong("a device", device),
            })
            .collect();
        Ok(Object::Devices(Devices::new(devices?).map_err(text)?))
    })
}

/// Copies f16 documents `[n, len, dim]` at a host address to devices, a share to each. Null for an
/// error.
///
/// # Safety
/// `devices` must be a live handle; the memory must be readable during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_shards(
    devices: *const Object,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Devices(devices) = get(devices)? else { return wrong("devices", devices) };
        let documents = half_tokens(address, layout(dim, n, len, std::ptr::null())?)?;
        let shards = devices.upload(&documents).map_err(text)?;
        Ok(Object::Sharded(Sharded { devices: devices.clone(), shards }))
    })
}

/// Ranks f16 documents in shards as [`maxsim_bench_rank`](super::maxsim_bench_rank) ranks those of
/// one device; 0, or -1 for an error.
///
/// # Safety
/// The handle must live; the memory must be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_rank_shards(
    shards: *const Object,
    queries: u64,
    dim: u64,
    n: u64,
    len: u64,
    k: u64,
    ids: u64,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Sharded(sharded) = get(shards)? else { return wrong("shards", shards) };
        let queries = half_tokens(queries, layout(dim, n, len, std::ptr::null())?)?;
        let (k, options) = (k as usize, ScoreOptions::default());
        let found = sharded.devices.top_k(&queries, &sharded.shards, &options, k).map_err(text)?;
        copy_ranked(&found, k, ids, scores)
    })
}
