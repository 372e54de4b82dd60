//! Tokens: in foreign memory, compressed, and uploaded.

use std::ffi::c_char;

use super::handle::{codes_of, get, layout, string, wrong};
use super::{done, made};
use crate::codes::{Codes, Residual, upload_residual};
use crate::object::{AnyTokens, Object, Place, copy_to};

/// Tokens in foreign memory: `[n, len, dim]`, or packed `[offsets[n], dim]` where
/// `offsets` (n + 1 host values) is not null and `len` is ignored. `element` is `f16`, `bf16`
/// or `f32`; `mask` the address of a byte per row, or 0. Waits for the device. Null for an error.
///
/// # Safety
/// `device` must be a live handle, `element` a C string, `offsets` null or n + 1 values. The
/// memory must stay as it is until the tokens are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_tokens(
    device: *const Object,
    element: *const c_char,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
    offsets: *const i64,
    mask: u64,
) -> *mut Object {
    // SAFETY: the caller's promises, each used for what it is for.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let layout = layout(dim, n, len, offsets)?;
        let place = Place { element: string(element)?, address, layout, mask, weights: 0 };
        Ok(Object::Tokens(AnyTokens::at(device, place)?))
    })
}

/// Query tokens `[n, len, dim]` in foreign memory, as for [`maxsim_bench_tokens`], with a weight
/// each: f32 `[n, len]` at another address. Null for an error.
///
/// # Safety
/// As [`maxsim_bench_tokens`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_weighted(
    device: *const Object,
    element: *const c_char,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
    weights: u64,
) -> *mut Object {
    // SAFETY: the caller's promises, each used for what it is for.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let layout = layout(dim, n, len, std::ptr::null())?;
        let place = Place { element: string(element)?, address, layout, mask: 0, weights };
        Ok(Object::Tokens(AnyTokens::at(device, place)?))
    })
}

/// Compresses tokens at a host address, laid out as for [`maxsim_bench_tokens`], in host memory:
/// `format` is `int8`, `int8-affine` or `fp8`, `scales` how scales are stored: `f16`, `f32` or
/// `tensor`. What comes is read with [`maxsim_bench_codes`] and scored after
/// [`maxsim_bench_upload`]. Null for an error.
///
/// # Safety
/// `format`, `scales` and `element` must be C strings, `offsets` null or n + 1 values. The memory
/// must be readable during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_quantize(
    format: *const c_char,
    scales: *const c_char,
    element: *const c_char,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
    offsets: *const i64,
    mask: u64,
) -> *mut Object {
    // SAFETY: the caller's promises, each used for what it is for.
    made(|| unsafe {
        let layout = layout(dim, n, len, offsets)?;
        let place = Place { element: string(element)?, address, layout, mask, weights: 0 };
        Ok(Object::Codes(Codes::quantized(string(format)?, string(scales)?, place)?))
    })
}

/// Writes codes (`[rows, dim]` bytes) and, as f32, each row's scale and minimum (0 unless affine)
/// to host addresses; what has the address 0 is left out. 0, or -1 for an error.
///
/// # Safety
/// The handle must live; the memory must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_codes(
    codes: *const Object,
    codes_to: u64,
    scales_to: u64,
    mins_to: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe { codes_of(codes)?.read(codes_to, scales_to, mins_to) })
}

/// Writes how far scores may be from the exact scores of what the codes stand for, f32
/// `[n_queries, n_documents]`, to a host address: what the library states of its engines' rounding.
/// 0, or -1 for an error.
///
/// # Safety
/// The handles must live; the memory must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_rounding_bounds(
    queries: *const Object,
    documents: *const Object,
    to: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let bounds = codes_of(queries)?.rounding_bounds(codes_of(documents)?)?;
        copy_to(to, &bounds)
    })
}

/// Copies codes to a device: tokens. Null for an error.
///
/// # Safety
/// The handles must live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_upload(
    device: *const Object,
    codes: *const Object,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        Ok(Object::Tokens(codes_of(codes)?.upload(device)?.into()))
    })
}

/// Tokens `[n, len, dim]` in foreign memory, as for [`maxsim_bench_tokens`], and INT8 codes of the
/// same tokens, which are copied to the device. Queries and documents made so are scored coarse
/// to fine. Null for an error.
///
/// # Safety
/// As [`maxsim_bench_tokens`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_screened(
    device: *const Object,
    element: *const c_char,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
    offsets: *const i64,
    codes: *const Object,
) -> *mut Object {
    // SAFETY: the caller's promises, each used for what it is for.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let layout = layout(dim, n, len, offsets)?;
        let place = Place { element: string(element)?, address, layout, mask: 0, weights: 0 };
        Ok(Object::Tokens(AnyTokens::screened(device, place, codes_of(codes)?)?))
    })
}

/// Residual-compressed tokens `[n, len, dim]` at host addresses, copied to a device for queries of
/// `query_element`: `centroids` f16 `[n_centroids, dim]`, `bucket_weights` f32 `[2^nbits]`, `codes`
/// i32 `[n, len]`, `residuals` `[n, len, ceil(dim · nbits / 8)]` bytes in `order`, `colbert` or
/// `little-endian`; `normalize` 0 or 1. Null for an error.
///
/// # Safety
/// The handle must live, the texts be C strings, and the memory readable during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_residual(
    device: *const Object,
    query_element: *const c_char,
    nbits: u64,
    centroids: u64,
    n_centroids: u64,
    dim: u64,
    bucket_weights: u64,
    codes: u64,
    residuals: u64,
    order: *const c_char,
    n: u64,
    len: u64,
    normalize: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let residual = Residual {
            nbits: nbits as u32,
            centroids,
            n_centroids: n_centroids as usize,
            bucket_weights,
            normalize: normalize != 0,
            codes,
            residuals,
            order: string(order)?,
        };
        let tokens = residual.tokens(layout(dim, n, len, std::ptr::null())?)?;
        let tokens = upload_residual(device, &tokens, string(query_element)?)?;
        Ok(Object::Tokens(tokens.into()))
    })
}
