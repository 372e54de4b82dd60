//! Times scoring calls for a driver that interleaves them with other libraries.
//!
//! The first line of the input says what to score, as words `name=value`:
//!
//! ```text
//! device=cpu element=f32 queries=1 query_len=32 documents=1000 document_len=300 dim=128 data=FILE
//! ```
//!
//! The file holds the query and then the document tokens as little-endian elements. The answer
//! is `ready` and the plan. Then, a line each:
//!
//! - `run` makes one scoring call and prints the milliseconds that the caller waited;
//! - `scores FILE` makes one call and writes its scores as little-endian f32.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::str::FromStr;
use std::time::Instant;

use maxsim::format::{Element, ElementType, with_element};
use maxsim::{Pairing, ScoreOptions, Tokens};

use crate::cold_start::open;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Answers line by line until the input ends.
pub fn run(
    mut lines: impl Iterator<Item = std::io::Result<String>>,
    out: &mut impl Write,
) -> Result<()> {
    let setup = lines.next().ok_or("no setup line on standard input")??;
    let setup = Setup::parse(&setup)?;
    let name = setup.word("element")?;
    let element = ElementType::ALL.into_iter().find(|element| element.name() == name);
    let Some(element) = element else {
        return Err(format!("element={name}: expected f16, bf16 or f32").into());
    };
    with_element!(element, T => serve::<T>(&setup, lines, out))
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

    /// Query and document tokens.
    fn data<T: Element>(&self, n_query: usize, n_document: usize) -> Result<(Vec<T>, Vec<T>)> {
        let path = self.word("data")?;
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
        Ok((elements, documents))
    }
}

fn serve<T: Element>(
    setup: &Setup,
    lines: impl Iterator<Item = std::io::Result<String>>,
    out: &mut impl Write,
) -> Result<()> {
    let device = open(setup.word("device")?)?;
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
    writeln!(out, "ready {}", plan.to_string().lines().next().unwrap_or_default())?;
    out.flush()?;
    for line in lines {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("run", "") => {
                let start = Instant::now();
                let _ = device.score(&queries, &documents, &pairing)?;
                writeln!(out, "{}", start.elapsed().as_secs_f64() * 1e3)?;
            }
            ("scores", path) => {
                let scores = device.score(&queries, &documents, &pairing)?;
                let bytes: Vec<u8> = scores.values().iter().flat_map(|s| s.to_le_bytes()).collect();
                std::fs::write(path, bytes)?;
                writeln!(out, "written")?;
            }
            _ => return Err("expected `run` or `scores FILE`".into()),
        }
        out.flush()?;
    }
    Ok(())
}
