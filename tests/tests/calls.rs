//! What a steady-state call costs the host: no allocation, and little time.
//!
//! That it neither allocates device memory nor waits shows in the graphs of `gpu/graph.rs` too: the
//! driver refuses both while it captures the same calls.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use half::f16;
use maxsim::format::{Int8, ScaleType};
use maxsim::search::CoarseCodes;
use maxsim::stream::Queue;
use maxsim::{Device, Pairing, Result, ScoreOptions, Tokens};
use maxsim_tests::coarse::has_kernels;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{is_too_long, text};
use maxsim_tests::suite::Suite;

/// The system's allocator, counting what each thread asks it for.
struct Counting;

thread_local! {
    static N_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    N_ALLOCATIONS.with(|n| n.set(n.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(address, layout, len) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during `run`.
fn allocations<R>(run: impl FnOnce() -> R) -> (u64, R) {
    let before = N_ALLOCATIONS.get();
    let result = run();
    (N_ALLOCATIONS.get() - before, result)
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn allocations_are_counted() {
    assert_eq!(allocations(|| black_box(1)).0, 0);
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))).0, 1);
    let mut list: Vec<u64> = Vec::with_capacity(1);
    assert_eq!(allocations(|| list.resize(1000, 1)).0, 1);
    // Those of other threads are theirs.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| allocations(|| drop(black_box(vec![0u8; 9]))).0);
        let (_, n) = allocations(|| N_ALLOCATIONS.get());
        assert_eq!(n, N_ALLOCATIONS.get());
        assert_eq!(other.join().expect("no panic"), 1);
    });
}

/// A kind of call: what it is, the queries' lengths, and whether rows are masked.
const CALLS: [(&str, &[i64], bool); 3] = [
    ("short query", &[0, 32], false),
    ("query of several tiles", &[0, 2000], false),
    ("queries with masked rows", &[0, 32, 48, 80], true),
];

const N_CALLS: usize = 1000;
/// Calls between two waits: fewer than the driver's queue holds.
const BATCH: usize = 100;

/// Calls as in `CALLS` with these options; the least time of a call, batch by batch.
fn steady(
    device: &Device,
    (what, offsets, masked): (&str, &[i64], bool),
    options: &ScoreOptions,
) -> Result<std::result::Result<Duration, String>> {
    const DIM: usize = 128;
    // Long enough to be cut in two.
    const LEN: usize = 256;
    let rows = offsets[offsets.len() - 1] as usize;
    let (query_data, document_data) = (vec![f16::ONE; rows * DIM], vec![f16::ONE; 16 * LEN * DIM]);
    let mask: Vec<u8> = (0..rows).map(|row| u8::from(row % 3 > 0)).collect();
    let mut queries = Tokens::packed(&query_data, DIM, offsets)?;
    if masked {
        queries = queries.with_mask(&mask)?;
    }
    let queries = device.upload(&queries)?;
    let documents = device.upload(&Tokens::padded(&document_data, 16, LEN, DIM)?)?;
    let work = device.prepare(&queries, &documents, &Pairing::cross(), options)?;
    let mut scores = work.new_scores()?;
    let mut stream = device.stream()?;
    // Grows the workspace, and has the driver make room for what it keeps itself.
    for _ in 0..2 * BATCH {
        stream.score_into(&queries, &documents, &work, &mut scores)?;
    }
    stream.synchronize()?;
    let free_bytes = |device: &Device| device.memory().map(|memory| memory.map(|m| m.free_bytes));
    let before = free_bytes(device)?;
    let mut least = Duration::MAX;
    for _ in 0..N_CALLS / BATCH {
        let start = Instant::now();
        let (n_allocations, result) = allocations(|| {
            (0..BATCH).try_for_each(|_| stream.score_into(&queries, &documents, &work, &mut scores))
        });
        least = least.min(start.elapsed() / BATCH as u32);
        result?;
        if n_allocations > 0 {
            return Ok(Err(format!("{what}: {n_allocations} allocations in {BATCH} calls")));
        }
        stream.synchronize()?;
    }
    let after = free_bytes(device)?;
    if before != after {
        return Ok(Err(format!("{what}: {before:?} bytes free before, {after:?} after")));
    }
    let expected = rows as f32 * DIM as f32;
    match scores.read()?.values() {
        [first, ..] if offsets.len() == 2 && *first != expected => {
            Ok(Err(format!("{what}: {first} instead of {expected}")))
        }
        _ => Ok(Ok(least)),
    }
}

#[test]
fn a_steady_call_allocates_nothing_and_returns_soon() {
    /// Far above what a call takes, and below what it would with a wait or an allocation in it.
    const LIMIT: Duration = Duration::from_micros(40);
    Suite::run_gpu("gpu_steady_calls", |suite| {
        for device in cuda_devices() {
            for call in CALLS {
                for (everything, document_splits) in [(false, None), (true, None), (true, Some(2))]
                {
                    let options = ScoreOptions::default()
                        .winners(everything)
                        .token_scores(everything)
                        .document_splits(document_splits);
                    let least = steady(device, call, &options).map_err(text)??;
                    let outputs = match (everything, document_splits) {
                        (false, _) => "scores",
                        (true, None) => "all outputs",
                        (true, Some(_)) => "all outputs, cut documents",
                    };
                    let micros = least.as_secs_f64() * 1e6;
                    suite.note(&format!("{device} {}, {outputs}: {micros:.2} µs a call", call.0));
                    if is_too_long(least, LIMIT) {
                        return Err(format!("{}, {outputs}: {micros:.2} µs a call", call.0));
                    }
                }
            }
            suite.count(&device.to_string());
        }
        Ok(CALLS.len() * 3 * N_CALLS)
    });
}

/// The same of a coarse-to-fine call: allocations of this thread, and device memory taken.
fn steady_coarse(
    device: &Device,
    options: &ScoreOptions,
) -> Result<std::result::Result<(), String>> {
    const DIM: usize = 128;
    let rows = |n: usize| -> Vec<f16> {
        (0..n * DIM).map(|i| f16::from_f32((i % 251) as f32 / 251.0 - 0.5)).collect()
    };
    let (query_rows, document_rows) = (rows(80), rows(16 * 256));
    let queries = Tokens::packed(&query_rows, DIM, &[0i64, 32, 80])?;
    let documents = Tokens::padded(&document_rows, 16, 256, DIM)?;
    let codes = (
        device.upload(&queries.quantize::<Int8>(ScaleType::F16)?)?,
        device.upload(&documents.quantize::<Int8>(ScaleType::F16)?)?,
    );
    let (queries, documents) = (device.upload(&queries)?, device.upload(&documents)?);
    let coarse = CoarseCodes::new(&codes.0, &codes.1).assumed();
    let cross = Pairing::cross();
    let work = device.prepare_rescore(&queries, &documents, &coarse, &cross, options)?;
    let mut scores = work.new_scores()?;
    let mut stream = device.stream()?;
    for _ in 0..2 * BATCH {
        stream.rescore_into(&queries, &documents, &coarse, &work, &mut scores)?;
    }
    stream.synchronize()?;
    let before = device.memory()?.map(|memory| memory.free_bytes);
    for _ in 0..N_CALLS / BATCH {
        let (n_allocations, result) = allocations(|| {
            (0..BATCH).try_for_each(|_| {
                stream.rescore_into(&queries, &documents, &coarse, &work, &mut scores)
            })
        });
        result?;
        if n_allocations > 0 {
            return Ok(Err(format!("{n_allocations} allocations in {BATCH} calls")));
        }
        stream.synchronize()?;
    }
    let after = device.memory()?.map(|memory| memory.free_bytes);
    Ok(match before == after {
        true => Ok(()),
        false => Err(format!("{before:?} bytes free before, {after:?} after")),
    })
}

#[test]
fn a_steady_coarse_to_fine_call_allocates_nothing() {
    Suite::run_gpu("gpu_steady_coarse_calls", |suite| {
        let devices = || cuda_devices().iter().filter(|device| has_kernels(device));
        for device in devices() {
            for everything in [false, true] {
                let (winners, token_scores) = (everything, everything);
                let options = ScoreOptions::default().winners(winners).token_scores(token_scores);
                steady_coarse(device, &options).map_err(text)??;
            }
            suite.count(&device.to_string());
        }
        Ok(2 * N_CALLS)
    });
}
