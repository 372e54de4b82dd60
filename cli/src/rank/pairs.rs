//! Scores pairs of a query and a document: candidates, and what a search scores again.

use anyhow::{Result, bail};
use maxsim::{Pairing, Scores};

use crate::input::Items;
use crate::rank::explain::BadScore;
use crate::rank::sides::{Part, Sides};
use crate::rank::stream::{
    Calls, DOCUMENT_BYTES, MAX_PAIRS, Request, first_chunk_bytes, is_bad, is_out_of_memory,
};

/// Device memory per pair: its score, and its place in the work list.
const PAIR_BYTES: u64 = 4 + DOCUMENT_BYTES;

/// Scores pairs `[document, query]`, which rise: as many documents on the device at a time as there
/// is room for, each of them once, and no others. `take` gets some of the pairs with their scores.
///
/// # Errors
/// Where a score is NaN, or infinite unless that is allowed; those of `take`.
pub(super) fn score(
    request: &Request<'_>,
    pairs: &[[u32; 2]],
    mut take: impl FnMut(&[[u32; 2]], &Scores) -> Result<()>,
) -> Result<Calls> {
    let sides = Sides::new(request, 0..request.queries.n_items())?;
    let device = request.device;
    let queries = match device.memory()? {
        Some(_) => Part::Handle(device.upload_any(&sides.queries)?),
        None => Part::Tokens(sides.queries.clone()),
    };
    let dim = request.documents.layout().dim();
    // Devices pad rows to 16 bytes.
    let row_bytes = (dim * sides.format.size_bytes()).next_multiple_of(16) as u64;
    let mut chunk_bytes = first_chunk_bytes(request.chunk_bytes, device)?;
    let mut calls = Calls::default();
    let mut rest = pairs;
    while !rest.is_empty() {
        let Chunk { n_pairs, documents, query_ids, places, bytes } =
            Chunk::new(request, rest, row_bytes, chunk_bytes);
        let pairing = Pairing::pairs(&query_ids, &places)?;
        let scored = sides.read(&Items::of(&documents)).and_then(|part| {
            let scores = device.score_any(&queries, &part, &pairing, request.options)?;
            let plan = device.plan_any(&queries, &part, &pairing, request.options)?;
            Ok((plan.name(), scores))
        });
        let (kernel, scores) = match scored {
            // Another process may hold the device's memory: fewer documents then.
            Err(error) if documents.len() > 1 && is_out_of_memory(&error) => {
                chunk_bytes = bytes / 2;
                continue;
            }
            scored => scored?,
        };
        let values = scores.values();
        if let Some(p) = values.iter().position(|&x| is_bad(x, request.allow_infinite)) {
            let [document, query] = rest[p].map(|id| id as usize);
            bail!(BadScore { query, document, score: values[p] });
        }
        take(&rest[..n_pairs], &scores)?;
        request.progress.inc(n_pairs as u64);
        calls.count(kernel);
        rest = &rest[n_pairs..];
    }
    Ok(calls)
}

/// The pairs of a call.
struct Chunk {
    n_pairs: usize,
    /// The documents, rising.
    documents: Vec<u32>,
    /// The query of each pair.
    query_ids: Vec<u32>,
    /// The place of each pair's document among the documents.
    places: Vec<u32>,
    /// Device memory that they need.
    bytes: u64,
}

impl Chunk {
    /// The first of some pairs: as many as `chunk_bytes` hold, those of a document at least in so
    /// far as a call takes them.
    fn new(request: &Request<'_>, pairs: &[[u32; 2]], row_bytes: u64, chunk_bytes: u64) -> Chunk {
        let layout = request.documents.layout();
        let (mut documents, mut query_ids, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        for &[document, query] in pairs {
            let is_new = documents.last() != Some(&document);
            let mut with_pair = bytes + PAIR_BYTES;
            if is_new {
                with_pair += layout.item_len(document as usize) as u64 * row_bytes;
            }
            let is_full = is_new && with_pair > chunk_bytes && !documents.is_empty();
            if is_full || query_ids.len() as u64 == MAX_PAIRS {
                break;
            }
            if is_new {
                documents.push(document);
            }
            query_ids.push(query);
            places.push(documents.len() as u32 - 1);
            bytes = with_pair;
        }
        Chunk { n_pairs: query_ids.len(), documents, query_ids, places, bytes }
    }
}
