//! Searches over documents that stay in host memory.

use std::ffi::c_char;

use half::f16;
use maxsim::format::{Int8, ScaleType, Scales};
use maxsim::residual::{ArrangedTokens, ResidualTokens};
use maxsim::streaming::{StreamFound, StreamOptions, TokenReader};
use maxsim::{Device, Devices, TokenLayout, Tokens};

use super::handle::{get, layout, string, wrong};
use super::search::half_tokens;
use super::top_k::copy_ranked;
use super::{done, made};
use crate::codes::Residual;
use crate::object::{Object, Result, host_slice, text};

/// Page-locked host memory of so many bytes, for the rows of [`maxsim_bench_search_stream`]. Null
/// for an error.
///
/// # Safety
/// `device` must be a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_page_locked(
    device: *const Object,
    n_bytes: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let memory = device.page_locked::<f16>(n_bytes.div_ceil(2) as usize);
        Ok(Object::PageLocked(memory.map_err(text)?))
    })
}

/// Writes the host address of page-locked memory, which is valid until the memory is freed; 0, or
/// -1 for an error.
///
/// # Safety
/// The handle must live and be in use nowhere else; `to` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_address(memory: *mut Object, to: *mut u64) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        match memory.as_mut() {
            Some(Object::PageLocked(memory)) => {
                to.write(memory.as_mut_ptr().expose_provenance() as u64);
                Ok(())
            }
            _ => wrong("page-locked memory", memory),
        }
    })
}

/// Ranks documents `[n, len, dim]` of host memory for f16 queries `[n_queries, query_len, dim]` at
/// a host address, reading each document once, on a device or on several. Documents of `format` f16
/// are elements at `rows`; those of `int8` are codes there, with an f16 scale per row at `scales`.
/// `buffer_bytes` and `n_threads` are the library's for 0. Writes to host addresses as
/// [`maxsim_bench_best`](super::maxsim_bench_best) does; 0, or -1 for an error.
///
/// # Safety
/// `device` must be a live handle, of a device or of devices, `format` a C string; the memory must
/// be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_search_stream(
    device: *const Object,
    format: *const c_char,
    rows: u64,
    scales: u64,
    dim: u64,
    n: u64,
    len: u64,
    queries: u64,
    n_queries: u64,
    query_len: u64,
    k: u64,
    buffer_bytes: u64,
    n_threads: u64,
    ids: u64,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let devices = devices_of(device)?;
        let queries = half_tokens(queries, layout(dim, n_queries, query_len, std::ptr::null())?)?;
        let layout = layout(dim, n, len, std::ptr::null())?;
        let options = options(buffer_bytes, n_threads);
        let k = k as usize;
        let found = match string(format)? {
            "f16" => {
                let documents = half_tokens(rows, layout)?;
                devices.search_stream(&queries, &documents, k, &options).map_err(text)?
            }
            "int8" => {
                let documents = codes_at(rows, scales, layout)?;
                search_codes(&devices, &queries, &documents, k, &options)?
            }
            other => return Err(format!("format {other}: expected f16 or int8")),
        };
        copy_ranked(&found.rankings, k, ids, scores)
    })
}

/// Ranks f16 documents `[n, len, dim]` of a file, whose rows begin at its first byte, as
/// [`maxsim_bench_search_stream`] ranks those of host memory; `is_direct` (0 or 1): past the page
/// cache. 0, or -1 for an error.
///
/// # Safety
/// `device` must be a live handle, `path` a C string; the memory must be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_search_file(
    device: *const Object,
    path: *const c_char,
    is_direct: u64,
    dim: u64,
    n: u64,
    len: u64,
    queries: u64,
    n_queries: u64,
    query_len: u64,
    k: u64,
    n_threads: u64,
    ids: u64,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let queries = half_tokens(queries, layout(dim, n_queries, query_len, std::ptr::null())?)?;
        let (path, layout) = (string(path)?, layout(dim, n, len, std::ptr::null())?);
        let documents = match is_direct {
            0 => TokenReader::<f16>::open(path, 0, layout),
            _ => TokenReader::<f16>::open_direct(path, 0, layout),
        };
        let documents = documents.map_err(|error| format!("{path}: {error}"))?;
        let (k, options) = (k as usize, options(0, n_threads));
        let found = device.search_stream(&queries, &documents, k, &options).map_err(text)?;
        copy_ranked(&found.rankings, k, ids, scores)
    })
}

/// Options of a search; the library's for 0.
fn options(buffer_bytes: u64, n_threads: u64) -> StreamOptions {
    let given = |value: u64| (value != 0).then_some(value);
    let n_threads = given(n_threads).map(|n| n as usize);
    StreamOptions::default().buffer_bytes(given(buffer_bytes)).threads(n_threads)
}

/// One device or several.
///
/// # Safety
/// The handle must be null or live.
unsafe fn devices_of(device: *const Object) -> Result<Devices> {
    // SAFETY: the caller's promise.
    match unsafe { get(device)? } {
        Object::Device(device, _) => Devices::new([device.clone()]).map_err(text),
        Object::Devices(devices) => Ok(devices.clone()),
        other => Err(format!("expected a device or devices, found {}", other.kind())),
    }
}

/// Codes and f16 scales at host addresses.
///
/// # Safety
/// The memory must be readable as long as the tokens live.
unsafe fn codes_at<'a>(rows: u64, scales: u64, layout: TokenLayout) -> Result<Tokens<'a, Int8>> {
    // SAFETY: the caller's promise: this many codes and scales.
    let (codes, scales) = unsafe {
        let codes = host_slice::<i8>(rows, layout.rows() * layout.dim())?;
        (codes, host_slice::<f16>(scales, layout.rows())?)
    };
    Tokens::from_codes(codes, Scales::F16(scales.into()), layout).map_err(text)
}

fn search_codes(
    devices: &Devices,
    queries: &Tokens<'_, f16>,
    documents: &Tokens<'_, Int8>,
    k: usize,
    options: &StreamOptions,
) -> Result<StreamFound> {
    let queries = queries.quantize::<Int8>(ScaleType::F32).map_err(text)?;
    devices.search_stream(&queries, documents, k, options).map_err(text)
}

/// Residual-compressed tokens of foreign host memory, arranged for GPUs where they are to be.
pub struct HostResiduals {
    /// Dropped before what it borrows.
    arranged: Option<ArrangedTokens<'static>>,
    tokens: *mut ResidualTokens<'static>,
}

impl HostResiduals {
    fn new(tokens: ResidualTokens<'static>, for_device: Option<&Device>) -> Result<HostResiduals> {
        let tokens = Box::into_raw(Box::new(tokens));
        let mut residuals = HostResiduals { arranged: None, tokens };
        if let Some(device) = for_device {
            // SAFETY: the box stays where it is, and as it is, until this value is dropped.
            let tokens: &'static ResidualTokens<'static> = unsafe { &*tokens };
            residuals.arranged = Some(device.page_locked_residual(tokens).map_err(text)?);
        }
        Ok(residuals)
    }
}

impl Drop for HostResiduals {
    fn drop(&mut self) {
        self.arranged = None;
        // SAFETY: a box that `new` made, which nothing borrows any more.
        unsafe { drop(Box::from_raw(self.tokens)) };
    }
}

/// Residual-compressed tokens `[n, len, dim]` that stay at host addresses, as
/// [`maxsim_bench_residual`](super::maxsim_bench_residual) has them, in little-endian order, with
/// rows that are divided by their lengths; `device`: that which codes and buckets are copied for,
/// to page-locked memory, where GPUs read them fast, or null. Null for an error.
///
/// # Safety
/// `device` must be null or a live handle; the memory must stay as it is until the tokens are
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_host_residual(
    device: *const Object,
    nbits: u64,
    centroids: u64,
    n_centroids: u64,
    dim: u64,
    bucket_weights: u64,
    codes: u64,
    residuals: u64,
    n: u64,
    len: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let device = match device.as_ref() {
            None => None,
            Some(Object::Device(device, _)) => Some(device),
            Some(_) => return wrong("a device", device),
        };
        let residual = Residual {
            nbits: nbits as u32,
            centroids,
            n_centroids: n_centroids as usize,
            bucket_weights,
            normalize: true,
            codes,
            residuals,
            order: "little-endian",
        };
        let tokens = residual.tokens(layout(dim, n, len, std::ptr::null())?)?;
        Ok(Object::HostResiduals(HostResiduals::new(tokens, device)?))
    })
}

/// Ranks residual-compressed documents of host memory for f16 queries, as
/// [`maxsim_bench_search_stream`] ranks others; 0, or -1 for an error.
///
/// # Safety
/// The handles must live; the memory must be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_search_residual_stream(
    device: *const Object,
    documents: *const Object,
    queries: u64,
    dim: u64,
    n_queries: u64,
    query_len: u64,
    k: u64,
    n_threads: u64,
    ids: u64,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises; the box lives as long as the handle.
    done(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let Object::HostResiduals(documents) = get(documents)? else {
            return wrong("residual tokens of host memory", documents);
        };
        let queries = half_tokens(queries, layout(dim, n_queries, query_len, std::ptr::null())?)?;
        let (k, options) = (k as usize, options(0, n_threads));
        let found = match &documents.arranged {
            Some(arranged) => device.search_residual_stream(&queries, arranged, k, &options),
            None => device.search_residual_stream(&queries, &*documents.tokens, k, &options),
        };
        copy_ranked(&found.map_err(text)?.rankings, k, ids, scores)
    })
}
