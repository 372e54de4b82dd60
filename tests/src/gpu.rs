//! Helpers that the suites of the GPU share.

use std::time::Duration;

use bytemuck::pod_read_unaligned;
use maxsim::format::{Element, ElementType};
use maxsim::{Device, DeviceTokens, Error, ScoreOptions, Scores, Tokens};
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::agree;
use crate::case::{Case, Pairs};
use crate::engines::{Problem, cuda_devices, runs_row};
use crate::suite::Suite;

/// Ragged items, several tiles on every axis: all the ways in which work is split.
pub fn ragged_cases(element: ElementType) -> Vec<Case> {
    let queries: Vec<usize> = (0..9).map(|i| (i * 83) % 300).collect();
    let documents: Vec<usize> = (0..150).map(|i| (i * 37) % 290).collect();
    let pairings = [Pairs::Cross, Pairs::Candidates { k: 40 }, Pairs::List { n: 500 }];
    let mut cases = Vec::new();
    for dim in [64, 100, 128, 256] {
        for pairs in pairings {
            let mut case = Case { element, pairs, ..Case::new(dim, &queries, &documents) };
            case.upload = [true; 2];
            case.documents.valid_percent = Some(90);
            cases.push(case);
        }
    }
    cases
}

/// The options that force a row, with everything that it can give.
pub fn options(row: &Variant) -> ScoreOptions {
    let kernel = Some(row.name.to_string());
    ScoreOptions::default()
        .winners(row.winners)
        .token_scores(!row.schedule.is_stream_k())
        .allow_tf32(row.tf32)
        .normalize(row.normalizes())
        .kernel(kernel.as_deref())
}

/// Compares numbers bit for bit: `==` would take +0 for -0 and no NaN for itself.
pub fn same_bits(a: &Scores, b: &Scores) -> bool {
    let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
    bits(a.values()) == bits(b.values())
        && a.winners() == b.winners()
        && a.token_scores().map(bits) == b.token_scores().map(bits)
}

/// Runs a call 20 times, which must give the same bits; what the first one gave.
pub fn twenty_times(call: impl Fn() -> Result<Scores, Error>) -> Result<Scores, String> {
    let first = call().map_err(text)?;
    for i in 1..20 {
        if !same_bits(&first, &call().map_err(text)?) {
            return Err(format!("run {i} differs from run 0"));
        }
    }
    Ok(first)
}

/// Calls `check` with every row of the element type, on every device.
pub fn on_every_row(
    element: ElementType,
    mut check: impl FnMut(&Device, &'static Variant) -> Result<(), String>,
) -> Result<(), String> {
    for device in cuda_devices() {
        for row in FORWARD.iter().filter(|row| row.operand == element) {
            check(device, row).map_err(|why| format!("{device} {}: {why}", row.name))?;
        }
    }
    Ok(())
}

/// Calls `check` with the rows of the element type that are some suite's, on every device that runs
/// them.
pub fn on_rows(
    element: ElementType,
    are_meant: impl Fn(&Variant) -> bool,
    mut check: impl FnMut(&Device, &Variant) -> Result<(), String>,
) -> Result<(), String> {
    on_every_row(element, |device, row| match are_meant(row) && runs_row(device, row) {
        true => check(device, row),
        false => Ok(()),
    })
}

/// Runs a case [`twenty_times`] on such rows, from uploaded tokens, and checks what they find.
pub fn repeat_on_rows<T: Element>(
    suite: &Suite,
    case: &Case,
    are_meant: impl Fn(&Variant) -> bool,
) -> Result<(), String> {
    let problem = Problem::<T>::new(case);
    let (queries, documents, pairing) = problem.inputs().map_err(text)?;
    on_rows(T::TYPE, are_meant, |device, row| {
        let queries = device.upload(&queries).map_err(text)?;
        let documents = device.upload(&documents).map_err(text)?;
        let options = options(row);
        let run = || device.score_with(&queries, &documents, &pairing, &options);
        let first = twenty_times(run)?;
        agree::check(&problem.data, &problem.expected, &options, &first)?;
        suite.count(&format!("{device} {}", row.name));
        Ok(())
    })
}

/// Runs a problem that every device can run.
pub fn run<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    options: &ScoreOptions,
) -> Result<Scores, String> {
    problem.run(device, options).map_err(text)?.ok_or_else(|| "no kernel".into())
}

/// Whether a time is above its limit and limits count: not with MAXSIM_UNTIMED=1.
pub fn is_too_long(time: Duration, limit: Duration) -> bool {
    time > limit && std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1")
}

/// Bytes of a device's memory that nothing has taken.
pub fn free_bytes(device: &Device) -> Result<u64, String> {
    Ok(device.memory().map_err(text)?.ok_or("no device memory")?.free_bytes)
}

/// Device memory that begins with these bytes, and ends with bytes of a NaN.
pub fn memory(device: &Device, bytes: &[u8]) -> Result<DeviceTokens<f32>, String> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(256).max(256), 0xFF);
    let words: Vec<f32> = bytes.chunks_exact(4).map(pod_read_unaligned).collect();
    // Rows without gaps.
    let tokens = Tokens::padded(&words, words.len() / 64, 1, 64).map_err(text)?;
    device.upload(&tokens).map_err(text)
}

/// An error as the suites report it.
pub fn text(error: Error) -> String {
    error.to_string()
}
