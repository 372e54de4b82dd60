//! Calls of scores: prepared, enqueued and timed.

use std::ffi::{CString, c_char};
use std::time::Instant;

use maxsim::stream::Stream;

use super::handle::{get, outputs_of, stream_of, string, tokens, wrong};
use super::{done, made};
use crate::object::{Object, Outputs, enqueue, text};
use crate::options;

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

/// Measures [`maxsim_bench_enqueue`] for a Rust caller: enqueues `n` calls without waiting and
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
        stream.read_roof_any(&tokens(matrix)?.tokens, n_blocks).map_err(text)
    })
}
