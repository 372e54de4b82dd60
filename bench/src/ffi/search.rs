//! Whole searches, from queries in host memory to ids there: of all scores, and by way of codes.

use half::f16;
use maxsim::format::{Int8, ScaleType};
use maxsim::search::{Certainty, Hit, SearchOptions, SearchTokens};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout, Tokens};

use super::handle::{get, layout, tokens, wrong};
use super::top_k::{copy_ranked, copy_rankings};
use super::{done, made};
use crate::codes::host_tokens;
use crate::object::{Object, Place, Result, copy_to, text};

/// f16 documents and INT8 codes of them in memory of a device's own, with bounds of what the codes
/// are off by: what proves places.
pub struct Corpus {
    /// Dropped before what it borrows.
    documents: Option<SearchTokens<'static, f16, Int8>>,
    tokens: *mut DeviceTokens<f16>,
    codes: *mut DeviceTokens<Int8>,
    device: Device,
}

impl Corpus {
    fn new(device: &Device, documents: &Tokens<'_, f16>) -> Result<Corpus> {
        let codes = documents.quantize::<Int8>(ScaleType::F16).map_err(text)?;
        let codes = Box::into_raw(Box::new(device.upload(&codes).map_err(text)?));
        let device = device.clone();
        let mut corpus = Corpus { documents: None, tokens: std::ptr::null_mut(), codes, device };
        corpus.tokens = Box::into_raw(Box::new(corpus.device.upload(documents).map_err(text)?));
        // SAFETY: both boxes stay where they are, and as they are, until this value is dropped.
        let (tokens, codes): (&'static _, &'static _) = unsafe { (&*corpus.tokens, &*codes) };
        corpus.documents = Some(SearchTokens::measured(tokens, codes).map_err(text)?);
        Ok(corpus)
    }
}

impl Drop for Corpus {
    fn drop(&mut self) {
        self.documents = None;
        // SAFETY: boxes that `new` made, which nothing borrows any more, or null.
        unsafe {
            if !self.tokens.is_null() {
                drop(Box::from_raw(self.tokens));
            }
            drop(Box::from_raw(self.codes));
        }
    }
}

/// f16 tokens at a host address.
///
/// # Safety
/// The memory must be readable as long as the tokens live.
pub(super) unsafe fn half_tokens<'a>(address: u64, layout: TokenLayout) -> Result<Tokens<'a, f16>> {
    // SAFETY: the caller's promise.
    unsafe { host_tokens::<f16>(Place { element: "f16", address, layout, mask: 0, weights: 0 }) }
}

/// Copies f16 documents `[n, len, dim]` at a host address to a device, with INT8 codes of them, and
/// measures how far these are off: what [`maxsim_bench_search`] searches. Null for an error.
///
/// # Safety
/// `device` must be a live handle; the memory must be readable during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_corpus(
    device: *const Object,
    address: u64,
    dim: u64,
    n: u64,
    len: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Device(device, _) = get(device)? else { return wrong("a device", device) };
        let documents = half_tokens(address, layout(dim, n, len, std::ptr::null())?)?;
        Ok(Object::Corpus(Corpus::new(device, &documents)?))
    })
}

/// Ranks the documents of a corpus for f16 queries `[n, len, dim]` at a host address: a scan of the
/// codes, of which at least `n_candidates` documents are scored again in full precision, with
/// `exact` (0 or 1) as many more as it takes to prove every place. Writes to host addresses as
/// [`maxsim_bench_best`](super::maxsim_bench_best) does, and of each query to `counts`, 64 bits
/// each, how many places are proven and how many documents were scored again. 0, or -1 for an
/// error.
///
/// # Safety
/// The handle must live; the memory must be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_search(
    corpus: *const Object,
    queries: u64,
    dim: u64,
    n: u64,
    len: u64,
    k: u64,
    n_candidates: u64,
    exact: u64,
    ids: u64,
    scores: u64,
    counts: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Corpus(corpus) = get(corpus)? else { return wrong("a corpus", corpus) };
        let Some(documents) = &corpus.documents else { return Ok(()) };
        let queries = half_tokens(queries, layout(dim, n, len, std::ptr::null())?)?;
        let codes = queries.quantize::<Int8>(ScaleType::F32).map_err(text)?;
        let queries = SearchTokens::measured(&queries, &codes).map_err(text)?;
        let how = SearchOptions::default().n_candidates(n_candidates as usize).exact(exact != 0);
        let found = corpus.device.search(&queries, documents, k as usize, &how).map_err(text)?;
        let is_proven = |hit: &&Hit| hit.certainty == Certainty::Proven;
        let count = |proven: usize, rescored: u64| [proven as i64, rescored as i64];
        let all: Vec<[i64; 2]> = found
            .iter()
            .map(|r| count(r.documents.iter().filter(is_proven).count(), r.n_rescored))
            .collect();
        copy_to(counts, &all)?;
        let rankings = found.iter().map(|r| r.documents.iter().map(|hit| (hit.id, hit.score)));
        copy_rankings(rankings, k as usize, ids, scores)
    })
}

/// Ranks f16 documents for f16 queries `[n, len, dim]` at a host address by all their scores.
/// Writes to host addresses as [`maxsim_bench_best`](super::maxsim_bench_best) does; 0, or -1 for
/// an error.
///
/// # Safety
/// The handle must live; the memory must be readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_rank(
    documents: *const Object,
    queries: u64,
    dim: u64,
    n: u64,
    len: u64,
    k: u64,
    ids: u64,
    scores: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let documents = tokens(documents)?.tokens.typed::<f16>();
        let documents = documents.ok_or("expected f16 documents")?;
        let queries = half_tokens(queries, layout(dim, n, len, std::ptr::null())?)?;
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let device = documents.device();
        let found = device.top_k(&queries, documents, &cross, &options, k as usize);
        let found = found.map_err(text)?;
        copy_ranked(&found, k as usize, ids, scores)
    })
}
