//! The first score of a process.

use std::error::Error;
use std::time::Instant;

use half::f16;
use maxsim::{Device, Pairing, Tokens};
use serde_json::{Value, json};

// One small call: what is timed is what comes before the kernel runs.
const QUERY_LEN: usize = 32;
const N_DOCUMENTS: usize = 100;
const DOCUMENT_LEN: usize = 300;
const DIM: usize = 128;

/// Opens a device and scores; how long each took, in milliseconds.
pub fn run(device: &str) -> Result<Value, Box<dyn Error>> {
    let tokens = |n: usize| -> Vec<f16> {
        (0..n * DIM).map(|i| f16::from_f32((i * 37 % 101) as f32 / 101.0 - 0.5)).collect()
    };
    let (queries, documents) = (tokens(QUERY_LEN), tokens(N_DOCUMENTS * DOCUMENT_LEN));
    let queries = Tokens::padded(&queries, 1, QUERY_LEN, DIM)?;
    let documents = Tokens::padded(&documents, N_DOCUMENTS, DOCUMENT_LEN, DIM)?;

    let start = Instant::now();
    let device = open(device)?;
    let open_ms = ms(start);
    let start = Instant::now();
    let scores = device.score(&queries, &documents, &Pairing::cross())?;
    let first_score_ms = ms(start);
    let start = Instant::now();
    let again = device.score(&queries, &documents, &Pairing::cross())?;
    let second_score_ms = ms(start);
    if scores != again {
        return Err("the second call gave other scores".into());
    }
    Ok(json!({
        "device": device.name(),
        "open_ms": open_ms,
        "first_score_ms": first_score_ms,
        "second_score_ms": second_score_ms,
    }))
}

/// A device by the name that it is printed with.
pub(crate) fn open(name: &str) -> Result<Device, Box<dyn Error>> {
    match name {
        "cpu" => Ok(Device::cpu()),
        other => match other.strip_prefix("cuda:").map(str::parse) {
            Some(Ok(ordinal)) => Ok(Device::cuda(ordinal)?),
            _ => Err(format!("device {other}: expected cpu or cuda:N").into()),
        },
    }
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
