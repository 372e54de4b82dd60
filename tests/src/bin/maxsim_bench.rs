//! Times scoring calls for a driver that interleaves them with other libraries.
//!
//! The first line of standard input says what to score, as words `name=value`:
//!
//! ```text
//! device=cpu element=f32 queries=1 query_len=32 documents=1000 document_len=300 dim=128 seed=1
//! ```
//!
//! With `data=FILE` instead of `seed`, the file holds the query and then the document tokens
//! as little-endian f32. The answer is `ready` and the plan. Then, a line each: `run` makes one
//! scoring call and prints its milliseconds; `scores FILE` makes one and writes its scores as
//! little-endian f32. The end of the input ends the program.

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::str::FromStr;
use std::time::Instant;

use half::{bf16, f16};
use maxsim::{Device, Element, Pairing, ScoreOptions, Tokens};

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
            let bytes = std::fs::read(path)?;
            if bytes.len() != (n_query + n_document) * 4 {
                return Err(
                    format!("{path} has {} bytes, not what the shapes say", bytes.len()).into()
                );
            }
            let mut values = bytes
                .chunks_exact(4)
                .map(|b| T::from_f32(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            let queries = values.by_ref().take(n_query).collect();
            return Ok((queries, values.collect()));
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
    let pairing = Pairing::cross();
    let plan = device.plan(&queries, &documents, &pairing, &ScoreOptions::default())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", plan.to_string().lines().next().unwrap_or_default())?;
    for line in lines {
        let line = line?;
        let start = Instant::now();
        let scores = device.score(&queries, &documents, &pairing)?;
        let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
        match line.split_once(' ') {
            None if line == "run" => writeln!(out, "{elapsed_ms}")?,
            Some(("scores", path)) => {
                let bytes: Vec<u8> = scores.values().iter().flat_map(|s| s.to_le_bytes()).collect();
                std::fs::write(path, bytes)?;
                writeln!(out, "written")?;
            }
            _ => return Err(format!("expected `run` or `scores FILE`, found `{line}`").into()),
        }
        out.flush()?;
    }
    Ok(())
}
