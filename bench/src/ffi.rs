//! The C interface.
//!
//! Objects are opaque handles, freed with [`maxsim_bench_free`]; a handle of the wrong kind is
//! an error. Functions return null or -1 for an error, which [`maxsim_bench_last_error`] then
//! explains; a panic is such an error too. One thread at a time may use a handle.
//!
//! Addresses are device addresses. On the CPU device they are host addresses: tokens are copied
//! once, and scores are written at each call, so that scripts can be tried without a GPU.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use maxsim::stream::Stream;
use maxsim::training::{BackwardOptions, DeviceGradScores, DeviceGradients, GradientType};
use maxsim::{Device, TokenLayout};
use maxsim_kernels::table::forward::FORWARD;
use serde_json::json;

use crate::codes::{Codes, Residual, upload_residual};
pub use crate::object::Object;
use crate::object::{
    AnyTokens, AnyWork, Outputs, Place, Result, copy_to, enqueue, enqueue_backward, text,
    with_tokens,
};
use crate::options;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why the last call on this thread failed. Valid until the thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn maxsim_bench_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|error| error.as_ptr())
}

/// Opens CUDA device `ordinal` in its primary context, or the CPU for -1. Null for an error.
#[unsafe(no_mangle)]
pub extern "C" fn maxsim_bench_open(ordinal: i32) -> *mut Object {
    made(|| {
        let device = match usize::try_from(ordinal) {
            Ok(ordinal) => Device::cuda(ordinal).map_err(text)?,
            Err(_) => Device::cpu(),
        };
        let kernels: Vec<&str> = FORWARD.iter().map(|row| row.name).collect();
        let what = json!({
            "name": device.name(),
            "capability": device.limits().map(|limits| limits.capability),
            "multiprocessors": device.limits().map(|limits| limits.n_multiprocessors),
            "cuda_of_driver": device.driver_version(),
            "kernels": kernels,
        });
        let what = CString::new(what.to_string()).unwrap_or_default();
        Ok(Object::Device(device, what))
    })
}

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
        let place = Place { element: string(element)?, address, layout, mask };
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
        let place = Place { element: string(element)?, address, layout, mask };
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
        Ok(Object::Tokens(codes_of(codes)?.upload(device)?))
    })
}

/// f16 tokens `[n, len, dim]` in foreign memory, as for [`maxsim_bench_tokens`], and INT8 codes of
/// the same tokens, which are copied to the device. Queries and documents made so are scored coarse
/// to fine. Null for an error.
///
/// # Safety
/// As [`maxsim_bench_tokens`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_screened(
    device: *const Object,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
    codes: *const Object,
) -> *mut Object {
    // SAFETY: the caller's promises, each used for what it is for.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let layout = layout(dim, n, len, std::ptr::null())?;
        let place = Place { element: "f16", address, layout, mask: 0 };
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
        Ok(Object::Tokens(upload_residual(device, &tokens, string(query_element)?)?))
    })
}

/// Checks and plans a problem and uploads its lists. `candidates` is 0 for every query against
/// every document, else the number of each query's own documents. `options` are words
/// `name=value`, separated by commas: `winners`, `token_scores` (0 or 1) and `kernel`. Null for
/// an error.
///
/// # Safety
/// The handles must live, `options` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_prepare(
    queries: *const Object,
    documents: *const Object,
    candidates: u64,
    options: *const c_char,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let options = options::parse(string(options)?)?;
        let work = tokens(queries)?.prepare(tokens(documents)?, candidates as usize, &options)?;
        let plan = CString::new(work.plan().to_string()).unwrap_or_default();
        Ok(Object::Work(work, plan))
    })
}

/// A work's plan, or what a device is (JSON), as text that lives as long as the handle.
/// Null for an error.
///
/// # Safety
/// The handle must live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_text(object: *const Object) -> *const c_char {
    // SAFETY: the caller's promise.
    let found = guarded(|| match unsafe { get(object)? } {
        Object::Work(_, text) | Object::Device(_, text) => Ok(text.as_ptr()),
        other => Err(format!("{} has no text", other.kind())),
    });
    found.unwrap_or(std::ptr::null())
}

/// Results of a work at `scores` (f32) and, exactly where the work was prepared for them, at
/// `winners` and `token_scores` (else 0). Those of a coarse-to-fine work have memory of their own:
/// the addresses are 0, and scores are read with [`maxsim_bench_scores`]. Null for an error.
///
/// # Safety
/// The handle must live; the memory must until the outputs are freed, and have no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_outputs(
    work: *const Object,
    scores: u64,
    winners: u64,
    token_scores: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Work(work, _) = get(work)? else { return wrong("a work", work) };
        Ok(Object::Outputs(Outputs::at(work, scores, winners, token_scores)?))
    })
}

/// Waits for the last call with these outputs and copies its scores, f32, to a host address; 0, or
/// -1 for an error.
///
/// # Safety
/// The handle must live and be in use nowhere else; the memory must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_scores(outputs: *mut Object, to: u64) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe { outputs_of(outputs)?.read(to) })
}

/// A foreign `CUstream`; 0 is the legacy default stream. Ignored on the CPU. Null for
/// an error.
///
/// # Safety
/// The device's handle must live; the stream must until this handle is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_stream(device: *const Object, stream: u64) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let stream = match device.ordinal() {
            Some(_) => Stream::from_raw(device, stream),
            None => device.stream(),
        };
        Ok(Object::Stream(stream.map_err(text)?))
    })
}

/// Enqueues a prepared call; 0, or -1 for an error.
///
/// # Safety
/// The handles must live, and stream and outputs be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_enqueue(
    stream: *mut Object,
    queries: *const Object,
    documents: *const Object,
    work: *const Object,
    outputs: *mut Object,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Work(work, _) = get(work)? else { return wrong("a work", work) };
        enqueue(
            stream_of(stream)?,
            tokens(queries)?,
            tokens(documents)?,
            work,
            outputs_of(outputs)?,
        )
    })
}

/// What [`maxsim_bench_enqueue`] costs a Rust caller: enqueues `n` calls without waiting and
/// writes the mean microseconds of one; 0, or -1 for an error.
///
/// # Safety
/// As [`maxsim_bench_enqueue`]; `mean_us` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_enqueue_us(
    stream: *mut Object,
    queries: *const Object,
    documents: *const Object,
    work: *const Object,
    outputs: *mut Object,
    n: u64,
    mean_us: *mut f64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Work(work, _) = get(work)? else { return wrong("a work", work) };
        let (queries, documents) = (tokens(queries)?, tokens(documents)?);
        let (stream, outputs) = (stream_of(stream)?, outputs_of(outputs)?);
        let start = Instant::now();
        for _ in 0..n {
            enqueue(stream, queries, documents, work, outputs)?;
        }
        mean_us.write(start.elapsed().as_secs_f64() * 1e6 / n.max(1) as f64);
        Ok(())
    })
}

/// A call with nothing prepared: checks, plans, uploads the lists, enqueues, and frees the lists,
/// which waits for the call. 0, or -1 for an error.
///
/// # Safety
/// As [`maxsim_bench_prepare`], [`maxsim_bench_outputs`] and [`maxsim_bench_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_call(
    stream: *mut Object,
    queries: *const Object,
    documents: *const Object,
    candidates: u64,
    options: *const c_char,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let options = options::parse(string(options)?)?;
        let (queries, documents) = (tokens(queries)?, tokens(documents)?);
        let work = queries.prepare(documents, candidates as usize, &options)?;
        let mut outputs = Outputs::at(&work, scores, 0, 0)?;
        enqueue(stream_of(stream)?, queries, documents, &work, &mut outputs)
    })
}

/// Makes the gradients of a work with winners ready, in the tokens' element type. `strategy` is
/// `owner`, `atomic` or `recompute`. Null for an error.
///
/// # Safety
/// The handle must live, `strategy` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_prepare_backward(
    work: *const Object,
    strategy: *const c_char,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Work(AnyWork::Plain(work), _) = get(work)? else {
            return wrong("a work", work);
        };
        let options = BackwardOptions::new(options::strategy(string(strategy)?)?);
        let work = work.device().prepare_backward(work, &options, GradientType::Tokens);
        Ok(Object::Backward(work.map_err(text)?))
    })
}

/// Gradients of scores (f32) and of tokens in foreign memory, on a GPU. Null for an
/// error.
///
/// # Safety
/// The handle must live; the memory must until the gradients are freed, and have no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_gradients(
    backward: *const Object,
    grad_scores: u64,
    queries: u64,
    documents: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Backward(work) = get(backward)? else {
            return wrong("a gradient's work", backward);
        };
        let grad_scores = DeviceGradScores::from_raw_parts(work, grad_scores).map_err(text)?;
        let gradients = DeviceGradients::from_raw_parts(work, queries, documents).map_err(text)?;
        Ok(Object::Gradients(grad_scores, gradients))
    })
}

/// Enqueues the gradients of a call that was enqueued before; 0, or -1 for an error.
///
/// # Safety
/// The handles must live, and stream, outputs and gradients be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_enqueue_backward(
    stream: *mut Object,
    queries: *const Object,
    documents: *const Object,
    backward: *const Object,
    outputs: *mut Object,
    gradients: *mut Object,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Backward(work) = get(backward)? else {
            return wrong("a gradient's work", backward);
        };
        let Some(Object::Gradients(grad_scores, gradients)) = gradients.as_mut() else {
            return wrong("gradients", gradients);
        };
        enqueue_backward(
            stream_of(stream)?,
            tokens(queries)?,
            tokens(documents)?,
            work,
            outputs_of(outputs)?,
            grad_scores,
            gradients,
        )
    })
}

/// Enqueues a kernel that reads the tokens' matrix and computes nothing; 0, or -1 for an error.
///
/// # Safety
/// The handles must live, and the stream be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_read(
    stream: *mut Object,
    matrix: *const Object,
    blocks_per_multiprocessor: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let stream = stream_of(stream)?;
        let n_blocks = blocks_per_multiprocessor as usize;
        with_tokens!(tokens(matrix)?, matrix => stream.read_roof(matrix, n_blocks)).map_err(text)
    })
}

/// Frees an object; waits for the calls that use it. Null is nothing to free.
///
/// # Safety
/// The handle must have come from this library and not have been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_free(object: *mut Object) {
    if !object.is_null() {
        // SAFETY: made by `Box::into_raw` in `made`, and freed once.
        let object = unsafe { Box::from_raw(object) };
        guarded(|| {
            drop(object);
            Ok(())
        });
    }
}

/// Runs code, remembers its error.
fn guarded<R>(code: impl FnOnce() -> Result<R>) -> Option<R> {
    let error = match catch_unwind(AssertUnwindSafe(code)) {
        Ok(Ok(result)) => return Some(result),
        Ok(Err(error)) => error,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("panic: {}", said.unwrap_or_default())
        }
    };
    let error = CString::new(error.replace('\0', "")).unwrap_or_default();
    LAST_ERROR.set(error);
    None
}

fn made(code: impl FnOnce() -> Result<Object>) -> *mut Object {
    guarded(code).map_or(std::ptr::null_mut(), |object| Box::into_raw(Box::new(object)))
}

fn done(code: impl FnOnce() -> Result<()>) -> i32 {
    guarded(code).map_or(-1, |()| 0)
}

/// # Safety
/// The handle must be null or live.
unsafe fn get<'a>(object: *const Object) -> Result<&'a Object> {
    // SAFETY: the caller's promise.
    unsafe { object.as_ref() }.ok_or_else(|| "a handle is null".to_string())
}

/// # Safety
/// The handle must be null or live.
unsafe fn wrong<R>(expected: &str, found: *const Object) -> Result<R> {
    // SAFETY: the caller's promise.
    Err(format!("expected {expected}, found {}", unsafe { get(found)? }.kind()))
}

/// # Safety
/// The handle must be null or live.
unsafe fn tokens<'a>(object: *const Object) -> Result<&'a AnyTokens> {
    // SAFETY: the caller's promise.
    match unsafe { get(object)? } {
        Object::Tokens(tokens) => Ok(tokens),
        other => Err(format!("expected tokens, found {}", other.kind())),
    }
}

/// # Safety
/// The handle must be null, or live and in use nowhere else.
unsafe fn stream_of<'a>(object: *mut Object) -> Result<&'a mut Stream> {
    // SAFETY: the caller's promise.
    match unsafe { object.as_mut() } {
        Some(Object::Stream(stream)) => Ok(stream),
        Some(other) => Err(format!("expected a stream, found {}", other.kind())),
        None => Err("a handle is null".to_string()),
    }
}

/// # Safety
/// The handle must be null, or live and in use nowhere else.
unsafe fn outputs_of<'a>(object: *mut Object) -> Result<&'a mut Outputs> {
    // SAFETY: the caller's promise.
    match unsafe { object.as_mut() } {
        Some(Object::Outputs(outputs)) => Ok(outputs),
        Some(other) => Err(format!("expected outputs, found {}", other.kind())),
        None => Err("a handle is null".to_string()),
    }
}

/// # Safety
/// The handle must be null or live.
unsafe fn codes_of<'a>(object: *const Object) -> Result<&'a Codes> {
    // SAFETY: the caller's promise.
    match unsafe { get(object)? } {
        Object::Codes(codes) => Ok(codes),
        other => Err(format!("expected codes, found {}", other.kind())),
    }
}

/// `[n, len, dim]`, or packed where there are offsets.
///
/// # Safety
/// `offsets` must be null or n + 1 values.
unsafe fn layout(dim: u64, n: u64, len: u64, offsets: *const i64) -> Result<TokenLayout> {
    let (n, len, dim) = (n as usize, len as usize, dim as usize);
    if offsets.is_null() {
        return TokenLayout::padded(n, len, dim).map_err(text);
    }
    // SAFETY: the caller's promise.
    let offsets = unsafe { std::slice::from_raw_parts(offsets, n + 1) };
    TokenLayout::packed(offsets[n].max(0) as usize, dim, offsets).map_err(text)
}

/// # Safety
/// The pointer must be null or a C string.
unsafe fn string<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err("a string is null".to_string());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| "a string is not UTF-8".to_string())
}
