//! Ranks by a search of compressed documents (`--screen`): they are scanned in chunks, and of the
//! documents themselves only the candidates' rows are read and scored.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::{Element, Format, Quantized, ScaleType, TokenFormat, with_format};
use maxsim::search::{Candidate, Certainty, ErrorTerms, SearchOptions, Shortlist, rescore_bounds};
use maxsim::{
    Device, DeviceTokens, Error, Pairing, Ranked, Ranking, ScoreOptions, TokenLayout, Tokens,
};
use rayon::prelude::*;

use crate::args::Verify;
use crate::documents::{DocumentFile, Documents};
use crate::finite::Checked;
use crate::input::{Reading, TokenFile};
use crate::provenance::{self, Proof};
use crate::rank::queries::{compressed, query_format};
use crate::rank::stream::{Outcome, Request, Search, check_numbers, first_chunk_bytes, scores};

/// Opens compressed documents, and checks that they can be those of `documents`.
pub fn open(path: &Path, reading: Reading, documents: &Documents<'_>) -> Result<TokenFile> {
    let check = |file: &DocumentFile| {
        let DocumentFile::Tokens(screen) = file else {
            bail!("plaid documents have no error bounds; use int8, int8-affine or fp8 ones");
        };
        let Documents::Tokens(file) = documents else {
            bail!("--documents are compressed themselves; use the uncompressed embeddings");
        };
        let (format, full) = (screen.contents().format, file.contents().format);
        ensure!(format.element().is_none(), "the documents are {format}, not compressed");
        ensure!(
            full.element().is_some(),
            "--documents are {full}, compressed themselves; use the uncompressed embeddings"
        );
        let (a, b) = (screen.layout(), file.layout());
        ensure!(
            a.dim() == b.dim() && a.n_items() == b.n_items(),
            "{} documents of dim {}, where --documents has {} of dim {}; compress that file",
            a.n_items(),
            a.dim(),
            b.n_items(),
            b.dim()
        );
        let differs = (0..a.n_items()).find(|&i| a.item_len(i) != b.item_len(i));
        if let Some(i) = differs {
            let (a, b) = (a.item_len(i), b.item_len(i));
            bail!("document {i} has {a} tokens, where --documents has {b}; compress that file");
        }
        Ok(())
    };
    let open = || -> Result<TokenFile> {
        let file = DocumentFile::open(path, reading)?;
        check(&file)?;
        match file {
            DocumentFile::Tokens(file) => Ok(*file),
            DocumentFile::Residual(..) => bail!("the documents are plaid"),
        }
    };
    open().with_context(|| format!("--screen {}", path.display()))
}

/// Ranks `request.documents` by a search of `screen`, the same documents compressed: places are
/// proven where `proof` holds. NaN scores are errors.
pub fn rank(
    request: &Request<'_>,
    screen: &TokenFile,
    proof: Proof,
    options: SearchOptions,
) -> Result<Outcome> {
    let Documents::Tokens(documents) = request.documents else {
        bail!("the documents are compressed themselves");
    };
    let mut outcome = with_format!(documents.contents().format, {
        element T => search::<T>(request, documents, screen, options),
        other => bail!("the documents are {other}, compressed themselves"),
    })?;
    if let (false, Some(search)) = (proof.holds(), &mut outcome.search) {
        search.proven.fill(0);
    }
    Ok(outcome)
}

/// Finds out whether `screen` was made of `documents`, which [`open`] has compared the layouts of.
pub fn check(screen: &TokenFile, documents: &Documents<'_>, verify: Verify) -> Result<Proof> {
    match documents {
        Documents::Tokens(documents) => provenance::check(screen, documents, verify),
        Documents::Residual(_) => bail!("the documents are compressed themselves"),
    }
}

fn search<T: Element>(
    request: &Request<'_>,
    documents: &TokenFile,
    screen: &TokenFile,
    options: SearchOptions,
) -> Result<Outcome> {
    let (n_queries, allow_infinite) = (request.queries.n_items(), request.allow_infinite);
    let query_terms = query_terms::<T>(request, screen.contents().format)?;
    let mut searches = vec![Shortlist::new(request.top_k, options); n_queries];
    let scan = Request { documents: &Documents::Tokens(screen), ..*request };
    let take = |items: &Range<usize>, scores: &[f32]| {
        let terms = document_terms(screen, items.clone())?;
        let bounds = rescore_bounds(&query_terms, &terms, &Pairing::cross(), T::TYPE)?;
        let rows = scores.par_chunks(items.len()).zip(bounds.par_chunks(items.len()));
        searches.par_iter_mut().zip(rows).for_each(|(search, (scores, bounds))| {
            for ((document, &score), &bound) in items.clone().zip(scores).zip(bounds) {
                let has_tokens = screen.layout().has_tokens(document);
                // A layout has fewer than 2³¹ items.
                search.push(Candidate { id: document as u32, score, bound, has_tokens });
            }
        });
        Ok(())
    };
    let (mut kernels, mut n_chunks) = scores(&scan, 0..n_queries, take)?;
    let queries = request.queries.tokens::<T>(0..n_queries)?;
    let mut rescoring = Rescoring {
        device: request.device,
        queries: request.device.upload(&queries)?,
        documents: Checked::new(documents, "document", allow_infinite),
        layout: documents.layout(),
        chunk_bytes: first_chunk_bytes(request.chunk_bytes, request.device)?,
        kernels: &mut kernels,
        n_chunks: &mut n_chunks,
    };
    loop {
        let pairs = (0u32..).zip(&mut searches);
        let pairs = pairs.flat_map(|(q, search)| search.wanted().into_iter().map(move |d| [d, q]));
        let mut pairs: Vec<[u32; 2]> = pairs.collect();
        if pairs.is_empty() {
            break;
        }
        // Sort by document, so that each is uploaded once.
        pairs.sort_unstable();
        request.progress.reset();
        request.progress.set_length(pairs.len() as u64);
        request.progress.set_message("pairs to score again");
        let mut rest = &pairs[..];
        while !rest.is_empty() {
            let (n, found) = rescoring.next(rest)?;
            for (&[document, query], &score) in rest.iter().zip(&found) {
                let (query_id, document_id) = (query as usize, document as usize);
                check_numbers(&[score], query_id, &(document_id..document_id + 1), allow_infinite)?;
                searches[query as usize]
                    .rescored(document, score)
                    .with_context(|| format!("query {query}: --screen is not of --documents"))?;
            }
            rest = &rest[n..];
            request.progress.inc(n as u64);
        }
    }
    Ok(outcome(searches, kernels, n_chunks))
}

fn outcome(searches: Vec<Shortlist>, kernels: Vec<&'static str>, n_chunks: usize) -> Outcome {
    let mut search = Search { proven: Vec::new(), n_rescored: 0 };
    let rankings = searches.into_iter().map(|candidates| {
        let found = candidates.into_ranking();
        search.n_rescored += found.n_rescored;
        let is_proven = |document: &&maxsim::search::Hit| document.certainty == Certainty::Proven;
        search.proven.push(found.documents.iter().take_while(is_proven).count());
        let ranked = found.documents.iter().map(|document| Ranked {
            id: document.id,
            score: document.score,
            has_tokens: document.has_tokens,
        });
        Ranking { ranked: ranked.collect(), n_nan: found.n_nan, n_empty: found.n_empty }
    });
    let rankings = rankings.collect();
    Outcome { rankings, kernels, n_chunks, search: Some(search) }
}

/// Error terms of the queries as the scan has them: compressed for documents of a format, or not.
fn query_terms<T: Element>(request: &Request<'_>, documents: TokenFormat) -> Result<ErrorTerms> {
    let (file, scales) = (request.queries, request.query_scales);
    let queries = file.tokens::<T>(0..file.n_items())?;
    fn measured<T: Element, F: Quantized>(
        file: &TokenFile,
        queries: &Tokens<'_, T>,
        scales: ScaleType,
    ) -> Result<ErrorTerms> {
        let codes = compressed::<F>(file, 0..file.n_items(), scales)?;
        Ok(ErrorTerms::measured(&codes, queries)?)
    }
    with_format!(query_format(T::FORMAT, documents), {
        codes F => measured::<T, F>(file, &queries, scales),
        _ => Ok(ErrorTerms::new(&queries)),
    })
}

/// Error terms of a range of compressed documents.
fn document_terms(file: &TokenFile, items: Range<usize>) -> Result<ErrorTerms> {
    Ok(with_format!(file.contents().format, {
        codes F => ErrorTerms::new(&file.codes::<F>(items)?),
        other => bail!("the documents are {other}, not compressed"),
    }))
}

/// Scores pairs, with as many documents on the device at a time as there is room for.
struct Rescoring<'a, T: Format> {
    device: &'a Device,
    queries: DeviceTokens<T>,
    documents: Checked<'a>,
    layout: &'a TokenLayout,
    chunk_bytes: u64,
    kernels: &'a mut Vec<&'static str>,
    n_chunks: &'a mut usize,
}

impl<T: Element> Rescoring<'_, T> {
    /// Scores the first of some pairs (document, query), which come by document: how many, and
    /// their scores.
    fn next(&mut self, pairs: &[[u32; 2]]) -> Result<(usize, Vec<f32>)> {
        let dim = self.layout.dim();
        loop {
            let mut rows: Vec<T> = Vec::new();
            let (mut offsets, mut ids) = (vec![0i64], [Vec::new(), Vec::new()]);
            for (i, &[document, query]) in pairs.iter().enumerate() {
                let is_new = i == 0 || pairs[i - 1][0] != document;
                if is_new {
                    let document = document as usize;
                    let len = self.layout.item_len(document);
                    let bytes = (rows.len() + len * dim) * size_of::<T>();
                    if i > 0 && bytes as u64 > self.chunk_bytes {
                        break;
                    }
                    let tokens = self.documents.tokens::<T>(document..document + 1)?;
                    rows.extend_from_slice(tokens.data());
                    offsets.push((rows.len() / dim) as i64);
                }
                ids[0].push(query);
                ids[1].push(offsets.len() as u32 - 2);
            }
            let documents = Tokens::packed(&rows, dim, &offsets)?;
            let pairing = Pairing::pairs(&ids[0], &ids[1])?;
            let options = ScoreOptions::default();
            let kernel = self.device.plan(&self.queries, &documents, &pairing, &options)?.name();
            match self.device.score(&self.queries, &documents, &pairing) {
                // Another process may hold the device's memory: fewer documents then.
                Err(Error::DeviceMemory { .. }) if offsets.len() > 2 => {
                    self.chunk_bytes = (rows.len() * size_of::<T>()) as u64 / 2;
                }
                found => {
                    if !self.kernels.contains(&kernel) {
                        self.kernels.push(kernel);
                    }
                    *self.n_chunks += 1;
                    return Ok((ids[0].len(), found?.into_values()));
                }
            }
        }
    }
}
