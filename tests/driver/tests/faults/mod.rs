//! Drivers that fail: at every call of every kind of work the library gives an error and neither
//! panics nor keeps memory, and the same work succeeds afterwards; a device that is lost stays so,
//! and says so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::f16;
use maxsim::chamfer::ChamferOptions;
use maxsim::format::{Fp8, Int8, ScaleType};
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::stream::Queue;
use maxsim::streaming::{Generated, StreamOptions};
use maxsim::training::BackwardOptions;
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};

use super::stand_in::{CALLS, StandIn, in_process, in_stand_in, stand_in};

const DIM: usize = 128;

/// Codes of the driver: an invalid value, no memory, a module's image, an operation that is not
/// supported.
const REFUSALS: [u32; 4] = [1, 2, 200, 801];

/// An illegal address, after which every call fails.
const ILLEGAL_ADDRESS: u32 = 700;

/// A kind of work, which makes all that it needs.
type Work = fn(&Device) -> Result<()>;

/// Kinds of work by name.
const WORK: [(&str, Work); 7] = [
    ("scores of host tokens", scores),
    ("prepared scores and their best", prepared),
    ("gradients", gradients),
    ("codes", codes),
    ("residual tokens", residual),
    ("documents that pass by", passing),
    ("clouds", clouds),
];

fn rows(n: usize) -> Vec<f16> {
    (0..n * DIM).map(|i| f16::from_bits((i * 2_654_435_761 % 30_000) as u16)).collect()
}

fn tokens(rows: &[f16], n: usize, len: usize) -> Result<Tokens<'_, f16>> {
    Tokens::padded(rows, n, len, DIM)
}

fn scores(device: &Device) -> Result<()> {
    let (queries, documents) = (rows(2 * 8), rows(20 * 12));
    let (queries, documents) = (tokens(&queries, 2, 8)?, tokens(&documents, 20, 12)?);
    let options = ScoreOptions::default().winners(true);
    let scores = device.score_with(&queries, &documents, &Pairing::cross(), &options)?;
    assert_eq!(scores.values().len(), 40);
    Ok(())
}

fn prepared(device: &Device) -> Result<()> {
    let (queries, documents) = (rows(2 * 8), rows(20 * 12));
    let queries = device.upload(&tokens(&queries, 2, 8)?)?;
    let documents = device.upload(&tokens(&documents, 20, 12)?)?;
    let cross = Pairing::cross();
    let work = device.prepare(&queries, &documents, &cross, &ScoreOptions::default())?;
    let mut stream = device.stream()?;
    let mut out = work.new_scores()?;
    stream.score_into(&queries, &documents, &work, &mut out)?;
    let best = device.prepare_top_k(&work, &documents, 3)?;
    let mut ranked = best.new_best()?;
    stream.top_k_into(&out, &best, &mut ranked)?;
    stream.synchronize()?;
    assert_eq!(out.read()?.values().len(), 40);
    Ok(())
}

fn gradients(device: &Device) -> Result<()> {
    let (queries, documents) = (rows(2 * 8), rows(20 * 12));
    let (queries, documents) = (tokens(&queries, 2, 8)?, tokens(&documents, 20, 12)?);
    let (cross, options) = (Pairing::cross(), BackwardOptions::default());
    let scores = device.score_for_training(&queries, &documents, &cross)?;
    let grads = vec![1.0f32; 40];
    let made = device.backward(&queries, &documents, scores.with_grad(&grads), &options)?;
    assert_eq!(made.queries.len(), 2 * 8 * DIM);
    Ok(())
}

fn codes(device: &Device) -> Result<()> {
    let documents = rows(20 * 12);
    let documents = device.upload(&tokens(&documents, 20, 12)?)?;
    let int8 = documents.quantize::<Int8>(ScaleType::F16)?;
    let fp8 = documents.quantize::<Fp8>(ScaleType::F32)?;
    let (int8, fp8) = (int8.download()?, fp8.download()?);
    assert_eq!((int8.layout().n_items(), fp8.layout().n_items()), (20, 20));
    Ok(())
}

fn residual(device: &Device) -> Result<()> {
    let centroids = Centroids::F32(vec![0.0; DIM].into());
    let codec = ResidualCodec::new(2, DIM, centroids, &[0.0; 4], true)?;
    let layout = TokenLayout::padded(20, 12, DIM)?;
    let (codes, bytes) = (vec![0i32; 240], vec![0; 240 * DIM / 4]);
    let documents =
        ResidualTokens::new(codec.into(), codes, bytes, BitOrder::LittleEndian, layout)?;
    let documents = device.upload_residual::<f16>(&documents)?;
    let queries = rows(2 * 8);
    let queries = device.upload(&tokens(&queries, 2, 8)?)?;
    let scores = device.score(&queries, &documents, &Pairing::cross())?;
    assert_eq!(scores.values().len(), 40);
    Ok(())
}

fn passing(device: &Device) -> Result<()> {
    let query = rows(8);
    let query = tokens(&query, 1, 8)?;
    let layout = TokenLayout::padded(100, 10, DIM)?;
    let fill = |rows: std::ops::Range<usize>, to: &mut [f16]| {
        to.fill(f16::from_bits(rows.start as u16));
        Ok(())
    };
    let source = Generated::<f16, _>::new(layout, fill);
    let options = StreamOptions::default().buffer_bytes(20 * 10 * 256).threads(2);
    let found = device.search_stream(&query, &source, 5, &options)?;
    assert_eq!(found.rankings.len(), 1);
    Ok(())
}

fn clouds(device: &Device) -> Result<()> {
    let points = vec![0.5f32; 3 * 64];
    let clouds = Tokens::padded(&points, 2, 32, 3)?;
    let found = device.chamfer(&clouds, &clouds, &ChamferOptions::default())?;
    assert_eq!(found.values().len(), 2);
    Ok(())
}

/// What came of work whose driver fails.
fn outcome(work: Work, device: &Device) -> std::thread::Result<Result<()>> {
    catch_unwind(AssertUnwindSafe(|| work(device)))
}

/// Most calls of a kind of work that fail with one code.
const FAILURES_MAX: u64 = 90;

/// Fails the calls that work makes, one after the other: all of them, or of many every few, other
/// ones for every code. What is kept between calls is there: the work was done before.
fn fail_each(driver: &StandIn, name: &str, work: Work, (turn, code): (u64, u32)) -> u64 {
    let device = Device::cuda(0).expect("the stand-in's device");
    let plain = || work(&device).unwrap_or_else(|error| panic!("{name}: {error}"));
    plain();
    driver.clear();
    plain();
    let n_calls = driver.count(CALLS);
    assert!(n_calls > 20, "{name} asks the driver for little: {n_calls} calls");
    let mut n_errors = 0;
    let step = n_calls.div_ceil(FAILURES_MAX);
    for number in (1 + turn % step..=n_calls).step_by(step as usize) {
        driver.fail(number, code, false, false);
        let found = outcome(work, &device);
        driver.fail(0, 0, false, false);
        let found =
            found.unwrap_or_else(|_| panic!("{name}: panics where call {number} is {code}"));
        if let Err(error) = found {
            n_errors += 1;
            let words = error.to_string();
            assert!(!words.is_empty() && !matches!(error, Error::DeviceLost { .. }), "{words}");
        }
        // Whatever was under way is undone: the same work succeeds.
        let again = outcome(work, &device).expect("no panic after a failure");
        again.unwrap_or_else(|error| panic!("{name}: {error}, after call {number} was {code}"));
    }
    n_errors
}

#[test]
fn a_call_that_fails_is_an_error_and_the_next_work_succeeds() {
    in_stand_in("faults::a_call_that_fails_is_an_error_and_the_next_work_succeeds", |driver| {
        for (name, work) in WORK {
            for (turn, code) in (0..).zip(REFUSALS) {
                let n_errors = fail_each(driver, name, work, (turn, code));
                println!("{name}: {n_errors} errors of calls that returned {code}");
                assert!(n_errors > 5, "{name}: failures of {code} are not seen");
            }
        }
    });
}

/// Numbers of a kind of work and of the call that fails, in a process whose driver was asked for
/// nothing before.
const FAULT: &str = "MAXSIM_TEST_FAULT";

/// What such a process says where the work makes fewer calls.
const NO_MORE: &str = "no call failed";

/// Runs `of` for every kind of work and call, every `step`th of them, in processes of their own.
fn in_processes(test: &str, step: usize, of: impl FnOnce(&StandIn, &str, Work, u64)) {
    if let Some(driver) = stand_in() {
        let asked = std::env::var(FAULT).expect("what is to fail");
        let (work, number) = asked.split_once(' ').expect("two numbers");
        let (name, work) = WORK[work.parse::<usize>().expect("work")];
        return of(&driver, name, work, number.parse().expect("a call"));
    }
    for (i, (name, _)) in WORK.iter().enumerate() {
        // Each kind of work begins at another call, so that all calls have their turn.
        let mut numbers = (1 + i % step..).step_by(step);
        let last = numbers.find(|number| {
            in_process(test, Some((FAULT, format!("{i} {number}")))).contains(NO_MORE)
        });
        println!("{name}: calls up to {last:?}");
        assert!(last.is_some_and(|last| last > 2), "{name}: no call failed at all");
    }
}

#[test]
fn memory_that_is_lacking_is_an_error_and_none_is_kept() {
    in_processes("faults::memory_that_is_lacking_is_an_error_and_none_is_kept", 1, lack);
}

fn lack(driver: &StandIn, name: &str, work: Work, number: u64) {
    let device = Device::cuda(0).expect("the stand-in's device");
    driver.fail(number, 2, true, false);
    let found = outcome(work, &device).expect("no panic where memory is lacking");
    let n_failed = driver.failed();
    driver.fail(0, 0, false, false);
    if n_failed == 0 {
        return println!("{NO_MORE}");
    }
    // It may have been found elsewhere, where much was kept; else the error says what was lacking.
    if let Err(error) = found {
        let is_memory = matches!(error, Error::DeviceMemory { .. } | Error::HostMemory { .. });
        assert!(is_memory || error.to_string().contains("memory"), "{name}: {error}");
    }
    let bytes = [0, 1, 2].map(|_| {
        work(&device).unwrap_or_else(|error| panic!("{name}: {error}, with all memory there"));
        driver.used_bytes() + driver.page_locked_bytes()
    });
    assert_eq!(bytes[1], bytes[2], "{name}: memory that is kept with every call");
}

#[test]
fn a_lost_device_says_so_ever_after() {
    in_processes("faults::a_lost_device_says_so_ever_after", 11, lose);
}

fn lose(driver: &StandIn, name: &str, work: Work, number: u64) {
    let device = Device::cuda(0).expect("the stand-in's device");
    driver.fail(number, ILLEGAL_ADDRESS, false, true);
    let found = outcome(work, &device).expect("no panic where a device is lost");
    if driver.failed() == 0 {
        return println!("{NO_MORE}");
    }
    let error = found.err().map(|error| error.to_string()).unwrap_or_default();
    // A failure that only freeing met shows at the next call.
    let next = outcome(work, &device).expect("no panic after a device is lost");
    let next = next.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(next.contains("lost"), "{name}, call {number}: {error:?}, then {next:?}");
    let n_failed = driver.failed();
    let _ = outcome(work, &device).expect("no panic after a device is lost");
    assert_eq!(driver.failed(), n_failed, "{name}: a lost device is not touched again");
}
