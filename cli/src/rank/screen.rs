//! Ranks by a search of compressed documents (`--screen`): they are scanned in chunks, and of the
//! documents themselves only the candidates' rows are read and scored.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::{Element, Quantized, ScaleType, TokenFormat, with_format};
use maxsim::search::{Candidate, Certainty, ErrorTerms, SearchOptions, Shortlist, rescore_bounds};
use maxsim::{Pairing, Ranked, Ranking, Tokens};
use rayon::prelude::*;

use crate::args::Verify;
use crate::documents::{DocumentFile, Documents};
use crate::input::{Items, Reading, TokenFile, codes_of_items};
use crate::provenance::{self, Proof};
use crate::rank::pairs;
use crate::rank::queries::{compressed, query_format};
use crate::rank::stream::{Calls, Outcome, Request, Search, scores};

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
        element T => request.with_less_memory(|request| search::<T>(request, screen, options)),
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
        Documents::Residual(..) => bail!("the documents are compressed themselves"),
    }
}

fn search<T: Element>(
    request: &Request<'_>,
    screen: &TokenFile,
    options: SearchOptions,
) -> Result<Outcome> {
    let n_queries = request.queries.n_items();
    let query_terms = query_terms::<T>(request, screen.contents().format)?;
    let mut searches = vec![Shortlist::new(request.top_k, options); n_queries];
    let scan = Request { documents: &Documents::Tokens(screen), ..*request };
    let take = |items: &Items<'_>, scores: &[f32]| {
        let terms = document_terms(screen, items)?;
        let bounds = rescore_bounds(&query_terms, &terms, &Pairing::cross(), T::TYPE)?;
        let rows = scores.par_chunks(items.len()).zip(bounds.par_chunks(items.len()));
        searches.par_iter_mut().zip(rows).for_each(|(search, (scores, bounds))| {
            for ((document, &score), &bound) in items.iter().zip(scores).zip(bounds) {
                let has_tokens = screen.layout().has_tokens(document);
                // A layout has fewer than 2³¹ items.
                search.push(Candidate { id: document as u32, score, bound, has_tokens });
            }
        });
        Ok(())
    };
    let mut calls = scores(&scan, 0..n_queries, take)?;
    loop {
        let pairs = (0u32..).zip(&mut searches);
        let pairs = pairs.flat_map(|(q, search)| search.wanted().into_iter().map(move |d| [d, q]));
        let pairs: Vec<[u32; 2]> = pairs.collect();
        if pairs.is_empty() {
            break;
        }
        request.progress.reset();
        request.progress.set_length(pairs.len() as u64);
        request.progress.set_message("pairs to score again");
        let rescored = pairs::score(request, &pairs, |pairs, scores| {
            for (&[query, document], &score) in pairs.iter().zip(scores.values()) {
                searches[query as usize]
                    .rescored(document, score)
                    .with_context(|| format!("query {query}: --screen is not of --documents"))?;
            }
            Ok(())
        });
        calls.add(rescored?);
    }
    Ok(outcome(searches, calls))
}

fn outcome(searches: Vec<Shortlist>, calls: Calls) -> Outcome {
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
    Outcome { rankings, calls, search: Some(search), winners: None }
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

/// Error terms of some compressed documents.
fn document_terms(file: &TokenFile, items: &Items<'_>) -> Result<ErrorTerms> {
    Ok(with_format!(file.contents().format, {
        codes F => ErrorTerms::new(&codes_of_items::<F>(file, items)?),
        other => bail!("the documents are {other}, not compressed"),
    }))
}
