//! Times scoring calls for a driver that interleaves them with other libraries.
//!
//! The first line of standard input says what to score, as words `name=value`:
//!
//! ```text
//! device=cpu element=f32 queries=1 query_len=32 documents=1000 document_len=300 dim=128 seed=1
//! ```
//!
//! With `data=FILE` instead of `seed`, the file holds the query and then the document tokens
//! as little-endian elements. The answer is `ready` and the plan. Then, a line each:
//!
//! - `run` makes one scoring call and prints the milliseconds that the caller waited;
//! - `device` reads 512 MB first, so that caches hold something else, then makes one call in a
//!   stream and prints the milliseconds between events before and after it;
//! - `memory` prints the bytes that were allocated on the device beyond inputs and outputs;
//! - `scores FILE` makes one call and writes its scores as little-endian f32.
//!
//! The end of the input ends the program.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::str::FromStr;
use std::time::Instant;

use half::{bf16, f16};
use maxsim::{
    Device, DeviceScores, DeviceTokens, Element, Event, Pairing, ScoreOptions, Stream, Tokens, Work,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let setup = lines.next().ok_or("no setup line on standard input")??;
    let setup = Setup::parse(&setup)?;
    match setup.word("element")? {
        "f16" => serve::<f16>(&setup, lines),
        "bf16" => serve::<bf16>(&setup, lines),
        "f32" => serve::<f32>(&setup, lines),
        other => Err(format!("element={other}: expected f16, bf16 or f32").into()),
    }
}

/// The words of the setup line.
struct Setup(HashMap<String, String>);

impl Setup {
    fn parse(line: &str) -> Result<Setup> {
        let word = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_string(), value.to_string()))
        };
        let words = line.split_whitespace().map(word).collect::<Option<_>>();
        Ok(Setup(words.ok_or_else(|| format!("setup line: expected name=value words: {line}"))?))
    }

    fn word(&self, name: &str) -> Result<&str> {
        Ok(self.0.get(name).ok_or_else(|| format!("setup line: {name}= is missing"))?)
    }

    fn number<N: FromStr>(&self, name: &str) -> Result<N> {
        let word = self.word(name)?;
        word.parse().map_err(|_| format!("setup line: {name}={word} is not a number").into())
    }

    fn device(&self) -> Result<Device> {
        match self.word("device")? {
            "cpu" => Ok(Device::cpu()),
            other => match other.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Device::cuda(ordinal)?),
                _ => Err(format!("device={other}: expected cpu or cuda:N").into()),
            },
        }
    }

    /// Query and document tokens, both `[n, len, dim]`.
    fn data<T: Element>(&self, n_query: usize, n_document: usize) -> Result<(Vec<T>, Vec<T>)> {
        if let Ok(path) = self.word("data") {
            let mut elements = vec![T::from_f32(0.0); n_query + n_document];
            let bytes = bytemuck::cast_slice_mut(&mut elements);
            let mut file = std::fs::File::open(path)?;
            let found = file.metadata()?.len();
            if found != bytes.len() as u64 {
                let expected = bytes.len();
                return Err(format!("{path} has {found} bytes, the shapes say {expected}").into());
            }
            file.read_exact(bytes)?;
            let documents = elements.split_off(n_query);
            return Ok((elements, documents));
        }
        let mut state: u64 = self.number("seed")?;
        let mut tokens = |n| (0..n).map(|_| T::from_f32(uniform(&mut state))).collect();
        Ok((tokens(n_query), tokens(n_document)))
    }
}

/// The next number in -0.5 to 0.5 of a Weyl sequence under SplitMix64's mixing.
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

fn serve<T: Element>(
    setup: &Setup,
    lines: impl Iterator<Item = std::io::Result<String>>,
) -> Result<()> {
    let device = setup.device()?;
    let dim = setup.number("dim")?;
    let (n_queries, query_len) = (setup.number("queries")?, setup.number("query_len")?);
    let (n_documents, document_len) = (setup.number("documents")?, setup.number("document_len")?);
    let (queries, documents) =
        setup.data::<T>(n_queries * query_len * dim, n_documents * document_len * dim)?;
    let uploaded = (
        device.upload(&Tokens::padded(&queries, n_queries, query_len, dim)?)?,
        device.upload(&Tokens::padded(&documents, n_documents, document_len, dim)?)?,
    );
    drop((queries, documents));
    let (queries, documents) = uploaded;
    let mut timed = Timed::new(&device, &queries, &documents)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", timed.work.plan().to_string().lines().next().unwrap_or_default())?;
    for line in lines {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("run", "") => {
                let start = Instant::now();
                device.score(&queries, &documents, &Pairing::cross())?;
                writeln!(out, "{}", start.elapsed().as_secs_f64() * 1e3)?;
            }
            ("device", "") => writeln!(out, "{}", timed.device_ms(&queries, &documents)?)?,
            ("memory", "") => writeln!(out, "{}", timed.extra_bytes)?,
            ("scores", path) => {
                let scores = device.score(&queries, &documents, &Pairing::cross())?;
                let bytes: Vec<u8> = scores.values().iter().flat_map(|s| s.to_le_bytes()).collect();
                std::fs::write(path, bytes)?;
                writeln!(out, "written")?;
            }
            _ => return Err("expected `run`, `device`, `memory` or `scores FILE`".into()),
        }
        out.flush()?;
    }
    Ok(())
}

/// A prepared call, and what empties the caches before it.
struct Timed<T: Element> {
    stream: Stream,
    work: Work,
    scores: DeviceScores,
    flush: Option<Flush<T>>,
    events: [Event; 2],
    /// Device memory in use beyond inputs and outputs, once the call is warm.
    extra_bytes: u64,
}

/// A read of 512 MB: one query of one token against as many documents.
struct Flush<T: Element> {
    query: DeviceTokens<T>,
    documents: DeviceTokens<T>,
    work: Work,
    scores: DeviceScores,
}

impl<T: Element> Timed<T> {
    fn new(
        device: &Device,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<T>,
    ) -> Result<Timed<T>> {
        let flush = match device.ordinal() {
            Some(_) => Some(Flush::new(device)?),
            None => None,
        };
        let free = |device: &Device| -> Result<u64> {
            Ok(device.memory()?.map_or(0, |memory| memory.free_bytes))
        };
        let before = free(device)?;
        let work =
            device.prepare(queries, documents, &Pairing::cross(), &ScoreOptions::default())?;
        let mut scores = DeviceScores::new(&work)?;
        let mut stream = device.stream()?;
        stream.score_into(queries, documents, &work, &mut scores)?;
        stream.synchronize()?;
        let outputs = 4 * work.shape().n_scores() as u64;
        let extra_bytes = before.saturating_sub(free(device)?).saturating_sub(outputs);
        let events = [device.event()?, device.event()?];
        Ok(Timed { stream, work, scores, flush, events, extra_bytes })
    }

    fn device_ms(&mut self, queries: &DeviceTokens<T>, documents: &DeviceTokens<T>) -> Result<f32> {
        let [start, end] = &mut self.events;
        if let Some(Flush { query, documents, work, scores }) = &mut self.flush {
            // Twice: the second read keeps the queue full while the call is enqueued.
            self.stream.score_into(query, documents, work, scores)?;
            self.stream.score_into(query, documents, work, scores)?;
        }
        self.stream.record(start)?;
        self.stream.score_into(queries, documents, &self.work, &mut self.scores)?;
        self.stream.record(end)?;
        Ok(end.elapsed_ms(start)?)
    }
}

impl<T: Element> Flush<T> {
    fn new(device: &Device) -> Result<Flush<T>> {
        const DIM: usize = 64;
        let len = 1024;
        let n = (512 << 20) / (len * DIM * size_of::<T>());
        let mut state = 1;
        let document: Vec<T> = (0..len * DIM).map(|_| T::from_f32(uniform(&mut state))).collect();
        let all = document.repeat(n);
        let query = device.upload(&Tokens::padded(&document[..DIM], 1, 1, DIM)?)?;
        let documents = device.upload(&Tokens::padded(&all, n, len, DIM)?)?;
        let work =
            device.prepare(&query, &documents, &Pairing::cross(), &ScoreOptions::default())?;
        let scores = DeviceScores::new(&work)?;
        Ok(Flush { query, documents, work, scores })
    }
}
