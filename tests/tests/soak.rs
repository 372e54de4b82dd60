//! Eight threads that call everything at once, on every device: no result may differ from that of
//! the same call alone by a bit, and nothing may be left behind.
//!
//! Environment: MAXSIM_SOAK_SECONDS, the time under load; two seconds by default, so that the test
//! is run everywhere. Longer runs are recorded: `cargo test --test soak -- --nocapture` says what
//! was called how often, and what memory there was after the first and the last quarter.

#![cfg(not(target_family = "wasm"))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use half::f16;
use maxsim::format::{Int8, ScaleType};
use maxsim::stream::Queue;
use maxsim::streaming::StreamOptions;
use maxsim::training::BackwardOptions;
use maxsim::{Device, Pairing, Ranking, Result, ScoreOptions, Scores, Tokens};
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;

const N_THREADS: usize = 8;
const DIM: usize = 128;
const K: usize = 7;

/// Bytes of host and of device memory that may be taken between the first quarter and the end:
/// blocks that are kept for later calls, of as many as run at once by chance.
const KEPT_HOST_BYTES: u64 = 64 << 20;
const KEPT_DEVICE_BYTES: u64 = 64 << 20;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Score,
    Normalized,
    Backward,
    TopK,
    Stream,
    Graph,
    Quantize,
}

const KINDS: [Kind; 7] = [
    Kind::Score,
    Kind::Normalized,
    Kind::Backward,
    Kind::TopK,
    Kind::Stream,
    Kind::Graph,
    Kind::Quantize,
];

/// Queries and documents of some lengths, in host memory.
struct Data {
    queries: Vec<f16>,
    query_offsets: Vec<i64>,
    documents: Vec<f16>,
    offsets: Vec<i64>,
}

impl Data {
    fn new(query_lens: &[usize], n_docs: usize, longest: usize, seed: u32) -> Data {
        let offsets = |lens: &mut dyn Iterator<Item = usize>| -> Vec<i64> {
            let mut end = 0;
            let ends = lens.map(|len| {
                end += len as i64;
                end
            });
            [0].into_iter().chain(ends).collect()
        };
        let query_offsets = offsets(&mut query_lens.iter().copied());
        let offsets = offsets(&mut (0..n_docs).map(|i| (i * 37 + 11) % longest));
        let numbers = |offsets: &[i64], seed: u32| -> Vec<f16> {
            let n = offsets[offsets.len() - 1] as u32 * DIM as u32;
            let number = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9) >> 16;
            (0..n).map(|i| f16::from_f32(number(i) as f32 / 32768.0 - 1.0)).collect()
        };
        Data {
            queries: numbers(&query_offsets, seed),
            documents: numbers(&offsets, seed + 1),
            query_offsets,
            offsets,
        }
    }

    fn queries(&self) -> Result<Tokens<'_, f16>> {
        Tokens::packed(&self.queries, DIM, &self.query_offsets)
    }

    fn documents(&self) -> Result<Tokens<'_, f16>> {
        Tokens::packed(&self.documents, DIM, &self.offsets)
    }

    /// The bits of what a call gives, all of it made anew and dropped.
    fn call(&self, device: &Device, kind: Kind) -> Result<Vec<u32>> {
        let (queries, documents, cross) = (self.queries()?, self.documents()?, Pairing::cross());
        let plain = ScoreOptions::default();
        Ok(match kind {
            Kind::Score => {
                let options = plain.winners(true);
                bits(&device.score_with(&queries, &documents, &cross, &options)?)
            }
            Kind::Normalized => {
                let documents = device.upload(&documents)?;
                let options = plain.normalize(true);
                bits(&device.score_with(&queries, &documents, &cross, &options)?)
            }
            Kind::Backward => {
                let queries = device.upload(&queries)?;
                let scores = device.score_for_training(&queries, &documents, &cross)?;
                let n = (self.query_offsets.len() - 1) * (self.offsets.len() - 1);
                let g: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
                let scores = scores.with_grad(&g);
                let options = BackwardOptions::default();
                let found = device.backward(&queries, &documents, scores, &options)?;
                found.queries.iter().chain(&found.documents).map(|x| x.to_bits()).collect()
            }
            Kind::TopK => {
                let documents = device.upload(&documents)?;
                ranked(&device.top_k(&queries, &documents, &cross, &plain, K)?)
            }
            Kind::Stream => {
                let options = StreamOptions::default().buffer_bytes(1 << 20).threads(2);
                ranked(&device.search_stream(&queries, &documents, K, &options)?.rankings)
            }
            Kind::Graph => {
                let (queries, documents) = (device.upload(&queries)?, device.upload(&documents)?);
                let work = device.prepare(&queries, &documents, &cross, &plain)?;
                let mut scores = work.new_scores()?;
                let mut graph = device.capture(|capture| {
                    capture.score_into(&queries, &documents, &work, &mut scores)
                })?;
                let mut stream = device.stream()?;
                graph.launch(&mut stream)?;
                graph.launch(&mut stream)?;
                stream.synchronize()?;
                bits(&scores.read()?)
            }
            Kind::Quantize => {
                let queries = device.upload(&queries)?.quantize::<Int8>(ScaleType::F16)?;
                let documents = device.upload(&documents)?.quantize::<Int8>(ScaleType::F16)?;
                bits(&device.score(&queries, &documents, &cross)?)
            }
        })
    }
}

fn bits(scores: &Scores) -> Vec<u32> {
    let values = scores.values().iter().map(|x| x.to_bits());
    let winners = scores.winners().into_iter().flatten();
    values.chain(winners.map(|&winner| winner as u32)).collect()
}

fn ranked(rankings: &[Ranking]) -> Vec<u32> {
    let all = rankings.iter().flat_map(|ranking| &ranking.ranked);
    all.flat_map(|found| [found.id, found.score.to_bits()]).collect()
}

/// Bytes that the process has in memory, where the system says it.
fn resident_bytes() -> u64 {
    let words = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    words.split(' ').nth(1).and_then(|n| n.parse().ok()).map_or(0, |n: u64| n * 4096)
}

/// Bytes of the process, and free ones of each device.
fn memory(devices: &[Device]) -> Result<(u64, Vec<u64>)> {
    let mut free = Vec::new();
    for device in devices {
        free.extend(device.memory()?.map(|memory| memory.free_bytes));
    }
    Ok((resident_bytes(), free))
}

/// What threads call, and what they have found.
struct Load {
    devices: Vec<Device>,
    data: [Data; 3],
    /// Of each device, kind and data: what the call gives alone.
    wanted: BTreeMap<(usize, Kind, usize), Vec<u32>>,
    n_calls: BTreeMap<Kind, AtomicU64>,
    /// The first call that gave something else.
    wrong: Mutex<Option<String>>,
    start: Instant,
}

impl Load {
    fn new() -> Result<Load> {
        let devices = all_devices();
        let data = [
            Data::new(&[32], 150, 120, 1),
            Data::new(&[1, 7, 32, 0, 70], 60, 90, 2),
            Data::new(&[300], 20, 400, 3),
        ];
        let mut wanted = BTreeMap::new();
        for (at, device) in devices.iter().enumerate() {
            for kind in KINDS {
                for (i, data) in data.iter().enumerate() {
                    wanted.insert((at, kind, i), data.call(device, kind)?);
                }
            }
        }
        let distinct: BTreeSet<&Vec<u32>> = wanted.values().collect();
        assert!(distinct.len() > KINDS.len(), "calls give different things");
        let n_calls = KINDS.map(|kind| (kind, 0.into())).into();
        Ok(Load { devices, data, wanted, n_calls, wrong: None.into(), start: Instant::now() })
    }

    /// Calls by every thread until so much time has passed since the start; what memory there is
    /// then.
    fn run(&self, until: Duration, turn: u64) -> Result<(u64, Vec<u64>)> {
        thread::scope(|scope| {
            for thread in 0..N_THREADS as u64 {
                scope.spawn(move || {
                    let mut state = thread * 1000 + turn;
                    while self.start.elapsed() < until && self.wrong.lock().unwrap().is_none() {
                        self.call(&mut state);
                    }
                });
            }
        });
        memory(&self.devices)
    }

    /// A call at random.
    fn call(&self, state: &mut u64) {
        let mut draw = |n: usize| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(12_345);
            (*state >> 33) as usize % n
        };
        let at = draw(self.devices.len());
        let (kind, i) = (KINDS[draw(KINDS.len())], draw(self.data.len()));
        let found = self.data[i].call(&self.devices[at], kind);
        self.n_calls[&kind].fetch_add(1, Ordering::Relaxed);
        let why = match found {
            Ok(found) if found == self.wanted[&(at, kind, i)] => return,
            Ok(_) => "other bits than alone".into(),
            Err(error) => error.to_string(),
        };
        let why = format!("{}, {kind:?} {i}: {why}", self.devices[at]);
        self.wrong.lock().unwrap().get_or_insert(why);
    }

    /// How often each kind was called.
    fn calls(&self) -> String {
        let said =
            |(kind, n): (&Kind, &AtomicU64)| format!("{kind:?} {}", n.load(Ordering::Relaxed));
        self.n_calls.iter().map(said).collect::<Vec<_>>().join(", ")
    }
}

#[test]
fn threads_that_call_everything_at_once() {
    let seconds = std::env::var("MAXSIM_SOAK_SECONDS")
        .map_or(2.0, |words| words.parse().expect("MAXSIM_SOAK_SECONDS is a number of seconds"));
    Suite::run("soak", [seconds], |suite, &seconds| {
        let text = |error: maxsim::Error| error.to_string();
        let load = Load::new().map_err(text)?;
        let until = Duration::from_secs_f64;
        let (host, free) = load.run(until(seconds / 4.0), 0).map_err(text)?;
        let (host_end, free_end) = load.run(until(seconds), 1).map_err(text)?;
        if let Some(why) = load.wrong.lock().unwrap().take() {
            return Err(why);
        }
        suite.note(&format!(
            "{seconds} s of {N_THREADS} threads on {} devices: {}; process {host} and {host_end} \
             bytes, free on devices {free:?} and {free_end:?}",
            load.devices.len(),
            load.calls()
        ));
        for device in &load.devices {
            suite.count(&device.to_string());
        }
        if host_end > host + KEPT_HOST_BYTES {
            return Err(format!("the process had {host} bytes and has {host_end}"));
        }
        match free.iter().zip(&free_end).all(|(a, b)| b + KEPT_DEVICE_BYTES >= *a) {
            true => Ok(()),
            false => Err(format!("devices had {free:?} bytes free, and have {free_end:?}")),
        }
    });
}
