//! Ranks by a search of compressed documents (`--screen`): they are scanned in chunks, and of the
//! documents themselves only the candidates' rows are read and scored.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use maxsim::format::{
    Element, Format, Quantized, ScaleType, ScorableWith, TokenFormat, with_format,
};
use maxsim::residual::ResidualSource;
use maxsim::search::{
    Certainty, ErrorTerms, Hit, SearchFound, SearchOptions, SearchSource, SearchTokens,
};
use maxsim::streaming::{Source, StreamProgress, StreamStage, Subset};
use maxsim::{Error, Ranked, Ranking, Tokens};

use crate::args::Verify;
use crate::documents::{DocumentFile, Documents};
use crate::input::{Reading, TokenFile};
use crate::provenance::{self, Proof};
use crate::rank::queries::{compressed, query_format};
use crate::rank::search::may_overflow;
use crate::rank::sides::{self, Call};
use crate::rank::sources::{Elements, Found};
use crate::rank::stream::{Calls, Outcome, Request, Search, check_numbers, scores};
use crate::selection::Selected;

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
    with_format!(documents.contents().format, {
        element T => request.with_less_memory(|request| {
            search::<T>(request, screen, documents, (proof, options))
        }),
        other => bail!("the documents are {other}, compressed themselves"),
    })
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
    documents: &TokenFile,
    (proof, search): (Proof, SearchOptions),
) -> Result<Outcome> {
    let n_queries = request.queries.n_items();
    let queries = request.queries.tokens::<T>(0..n_queries)?;
    let found = Found::measuring();
    let tokens = Elements::new(documents, request.allow_infinite, &found);
    let scan = Request { documents: &Documents::Tokens(screen), ..*request };
    let coarse = Coarse {
        request,
        queries: &queries,
        terms: query_terms::<T>(request, screen.contents().format)?,
        tokens: &tokens,
        is_known: proof.holds(),
        search,
    };
    let ranked = sides::run(&scan, 0..n_queries, &found, coarse)?;
    let has_nan = ranked.rankings.iter().any(|ranking| ranking.n_nan > 0);
    if has_nan || may_overflow(request, &found)? {
        // Scores beyond f32 are in no list of the best: look at each.
        let n_pairs = request.selected.n_pairs(n_queries, documents.n_items());
        request.progress.reset();
        request.progress.set_length(n_pairs as u64);
        request.progress.set_message("pairs to look at");
        scores(request, 0..n_queries, |items, scores| {
            check_numbers(scores, 0, items, request.allow_infinite)
        })?;
    }
    Ok(outcome(ranked, request.selected))
}

/// A search of codes, of which what they find is scored as tokens.
struct Coarse<'a, T: Element> {
    request: &'a Request<'a>,
    queries: &'a Tokens<'a, T>,
    /// Error terms of the queries as the scan has them.
    terms: ErrorTerms,
    tokens: &'a dyn Source<T>,
    /// Whether codes are known to be those of the tokens.
    is_known: bool,
    search: SearchOptions,
}

impl<T: Element> Coarse<'_, T> {
    fn run<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &Tokens<'_, Q>,
        tokens: &dyn Source<T>,
        codes: &dyn Source<D>,
    ) -> Result<SearchFound> {
        let Request { device, devices, top_k, .. } = *self.request;
        let queries = SearchTokens::known(self.queries, queries, &self.terms)?;
        let documents = match self.is_known {
            true => SearchSource::known(&tokens, &codes, None)?,
            false => SearchSource::assumed(&tokens, &codes, None)?,
        };
        let (bar, options) = (self.request.progress.clone(), self.request.stream_options()?);
        let before = bar.position();
        let options = options.progress(move |done| show(&bar, before, done));
        let (q, d, search) = (&queries, &documents, &self.search);
        let found = match devices {
            Some(devices) => devices.search_coarse_stream(q, d, top_k, search, &options),
            None => device.search_coarse_stream(q, d, top_k, search, &options),
        };
        found.map_err(|error| match error {
            Error::Shape { argument: "compressed documents", .. } => {
                anyhow::Error::from(error).context("--screen is not of --documents")
            }
            error => error.into(),
        })
    }
}

/// Moves the bar of a search, which counts pairs first, and then those that are scored again.
fn show(bar: &ProgressBar, before: u64, done: &StreamProgress) {
    match done.stage {
        StreamStage::Scan => bar.set_position(before + done.pairs),
        _ => {
            bar.set_message("pairs to score again");
            bar.set_length(done.n_documents);
            bar.set_position(done.pairs);
        }
    }
}

impl<T: Element> Call for Coarse<'_, T> {
    type Output = SearchFound;

    fn of_rows<Q: ScorableWith<D>, D: Format>(
        self,
        queries: &Tokens<'_, Q>,
        codes: &dyn Source<D>,
    ) -> Result<SearchFound> {
        match self.request.selected {
            Selected::Same(ids) => self.run(queries, &Subset::new(self.tokens, ids)?, codes),
            Selected::All | Selected::Each(_) => self.run(queries, self.tokens, codes),
        }
    }

    fn of_residuals<U: Element>(
        self,
        _: &Tokens<'_, U>,
        _: &dyn ResidualSource,
    ) -> Result<SearchFound> {
        bail!("plaid documents have no error bounds")
    }
}

/// What was found, as the file numbers documents.
fn outcome(found: SearchFound, selected: &Selected) -> Outcome {
    let mut search = Search { proven: Vec::new(), n_rescored: 0 };
    let id_of = |place: u32| match selected {
        Selected::Same(ids) => ids[place as usize],
        Selected::All | Selected::Each(_) => place,
    };
    let rankings = found.rankings.into_iter().map(|found| {
        search.n_rescored += found.n_rescored;
        let is_proven = |document: &&Hit| document.certainty == Certainty::Proven;
        search.proven.push(found.documents.iter().take_while(is_proven).count());
        let ranked = found.documents.iter().map(|document| Ranked {
            id: id_of(document.id),
            score: document.score,
            has_tokens: document.has_tokens,
        });
        Ranking { ranked: ranked.collect(), n_nan: found.n_nan, n_empty: found.n_empty }
    });
    let rankings = rankings.collect();
    let calls = Calls { kernels: found.kernels, n_chunks: found.n_chunks };
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
