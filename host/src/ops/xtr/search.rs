//! Searches by retrieved tokens, with what was not retrieved imputed.

use std::sync::Arc;

use super::reduce::{first_thresholds, is_retrieved};
use crate::cpu;
use crate::cuda::{CudaDevice, Reduction};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::score::check_normalize;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::{Ranked, Ranking, TopK};
use crate::problem::scores::Scores;
use crate::problem::shape::TokenOffsets;
use crate::problem::xtr::{Pool, TokenPool, XtrOptions};
use crate::runtime::alloc::reserve;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

/// Maxima that are held at once, but for those of a single query: 64 MB.
const MAXIMA: u64 = 1 << 24;

impl Device {
    /// The best `n` documents of each query by XTR's retrieval score, among those of which a token
    /// was retrieved (Lee et al. 2023, eq. 4).
    ///
    /// Each query token `s` retrieves the [`XtrOptions::k`](field@XtrOptions::k) document tokens
    /// that are most similar to it, exactly, and those that tie with the last. What a document has
    /// not retrieved is imputed: it would have been less similar than all that was.
    ///
    /// ```text
    /// scores[q, d] = Σ_s (max_t S where s retrieved a token of d, else the least S retrieved by s)
    /// ```
    ///
    /// The score is the sum, as PyLate's `score_xtr` has it; the pool and the normaliser of
    /// `options` are not for searches, and must be the defaults. Documents of which no token was
    /// retrieved, and those without tokens, are not ranked. On the CPU documents may be
    /// compressed. Beside what [`Device::xtr`] needs for thresholds it takes 64 MB (on a CUDA
    /// device 128 MB), or 4 bytes for each token of one query and document (8), whichever is more.
    ///
    /// ```
    /// use maxsim::xtr::XtrOptions;
    /// use maxsim::{Device, Tokens};
    ///
    /// // One query of two tokens; three documents of one token; dim 2.
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::padded(&[5.0f32, 1.0, 4.0, 0.0, 0.0, 2.0], 3, 1, 2)?;
    /// let options = XtrOptions::default().k(1);
    /// let found = Device::cpu().xtr_search(&queries, &documents, 10, &options)?;
    /// // The first token retrieves 5, the second one 2: they are what the other document is given.
    /// let ranked: Vec<_> = found[0].ranked.iter().map(|x| (x.id, x.score)).collect();
    /// assert_eq!(ranked, [(0, 5.0 + 2.0), (2, 5.0 + 2.0)]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::xtr`]; [`Error::Unsupported`] for options that are not for searches,
    /// and on a CUDA device for compressed tokens.
    pub fn xtr_search<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        n: usize,
        options: &XtrOptions,
    ) -> Result<Vec<Ranking>> {
        let (queries, documents) = (queries.into(), documents.into());
        let cross = Pairing::cross();
        let problem = Problem::new(queries.layout(), documents.layout(), &cross)?;
        options.check(&problem)?;
        options.check_search()?;
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
        match self.as_cuda() {
            Some(cuda) => self.xtr_search_on_device(cuda, (queries, documents), n, options),
            None => self.xtr_search_on_cpu(queries, documents, n, options),
        }
    }

    fn xtr_search_on_cpu<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: TokensRef<'_, D>,
        n: usize,
        options: &XtrOptions,
    ) -> Result<Vec<Ranking>> {
        let cross = Pairing::cross();
        let (layout, corpus) = (queries.layout(), documents.layout());
        let score_options = ScoreOptions::default().normalize(options.normalize).token_scores(true);
        check_normalize(&score_options, [Q::FORMAT, D::FORMAT])?;
        let (query_rows, document_rows) = (queries.host_matrix()?, documents.host_matrix()?);
        let mut rankings = Vec::new();
        reserve(&mut rankings, layout.n_items())?;
        while rankings.len() < layout.n_items() {
            let part = part_of(layout, rankings.len(), corpus.n_items())?;
            let problem = Problem::new(&part, corpus, &cross)?;
            let pools = Pool::of(&problem, TokenPool::AllDocuments)?;
            let thresholds = cpu::xtr::thresholds(
                &problem,
                query_rows,
                document_rows,
                options.normalize,
                (&pools, options.k),
            )?;
            let scores = cpu::score(&problem, query_rows, document_rows, &score_options)?;
            let is_valid = |row: usize| query_rows.mask.is_none_or(|mask| mask[row] != 0);
            let imputed = Imputed::new(&problem, &scores, &thresholds)?;
            rankings.extend(ranked(&problem, n, |pair| imputed.score(pair, is_valid))?);
        }
        Ok(rankings)
    }

    /// Rankings of documents by what query tokens retrieve, on a CUDA device.
    fn xtr_search_on_device<Q: ScorableWith<D>, D: Format>(
        &self,
        cuda: &Arc<CudaDevice>,
        (queries, documents): (TokensRef<'_, Q>, TokensRef<'_, D>),
        n: usize,
        options: &XtrOptions,
    ) -> Result<Vec<Ranking>> {
        let (mut own_queries, mut own_documents) = (None, None);
        let queries = queries.sent_to(self, &mut own_queries)?;
        let documents = documents.sent_to(self, &mut own_documents)?;
        queries.layout().check_read("queries")?;
        if !documents.layout().knows_empty_items() {
            return Err(Error::Shape {
                argument: "documents",
                expected: "a layout that says which documents have a token".into(),
                found: "lengths or a mask that the device alone knows; read them first".into(),
            });
        }
        let (cross, corpus) = (Pairing::cross(), documents.layout());
        let n_queries = queries.layout().n_items();
        let mut rankings = Vec::new();
        reserve(&mut rankings, n_queries)?;
        while rankings.len() < n_queries {
            let layout = part_of(queries.layout(), rankings.len(), corpus.n_items())?;
            let is_whole = layout.n_items() == n_queries;
            let own = if is_whole { None } else { Some(queries.as_items(layout, &[])?) };
            let part = own.as_ref().unwrap_or(queries);
            let reduction = Some(Reduction::Imputed);
            let (_, found) =
                self.xtr_reduced(cuda, (part, documents), &cross, options, reduction)?;
            let problem = Problem::new(part.layout(), corpus, &cross)?;
            let score = |pair: usize| (found.divisors[pair] != 0.0).then(|| found.values[pair]);
            rankings.extend(ranked(&problem, n, score)?);
        }
        Ok(rankings)
    }
}

/// Maxima and thresholds of a cross product, of which imputed scores are made.
struct Imputed<'a> {
    problem: &'a Problem<'a>,
    maxima: &'a [f32],
    thresholds: &'a [f32],
    first: Vec<usize>,
    offsets: TokenOffsets,
}

impl<'a> Imputed<'a> {
    fn new(
        problem: &'a Problem<'a>,
        scores: &'a Scores,
        thresholds: &'a [f32],
    ) -> Result<Imputed<'a>> {
        let maxima = scores.token_scores().unwrap_or_default();
        let first = first_thresholds(problem.queries())?;
        let offsets = problem.token_offsets();
        Ok(Imputed { problem, maxima, thresholds, first, offsets })
    }

    /// The score of a pair, of which `is_valid` says which query rows are not masked; `None` where
    /// nothing was retrieved.
    fn score(&self, pair: usize, is_valid: impl Fn(usize) -> bool) -> Option<f32> {
        let (query, _) = self.problem.pair(pair);
        let thresholds = &self.thresholds[self.first[query]..];
        let maxima = &self.maxima[self.offsets.range(pair)];
        let (mut sum, mut any) = (0.0f64, false);
        let tokens = maxima.iter().zip(thresholds).zip(self.problem.queries().item_rows(query));
        for ((&maximum, &threshold), _) in tokens.filter(|(_, row)| is_valid(*row)) {
            let is_retrieved = is_retrieved(maximum, threshold);
            any |= is_retrieved;
            sum += f64::from(if is_retrieved { maximum } else { threshold });
        }
        any.then_some(sum as f32)
    }
}

/// The queries from `first` on whose maxima are held at once.
fn part_of(queries: &TokenLayout, first: usize, n_documents: usize) -> Result<TokenLayout> {
    let (mut starts, mut lengths) = (Vec::new(), Vec::new());
    let mut n_maxima = 0;
    for query in first..queries.n_items() {
        let rows = queries.item_rows(query);
        // And a score and a divisor of each pair.
        n_maxima += (rows.len() as u64 + 1) * n_documents as u64;
        if n_maxima > MAXIMA && query > first {
            break;
        }
        reserve(&mut starts, 1)?;
        reserve(&mut lengths, 1)?;
        starts.push(rows.start as u32);
        lengths.push(rows.len() as u32);
    }
    TokenLayout::scattered(queries.rows(), queries.dim(), &starts, &lengths)
}

/// The rankings of a cross product's queries by the scores of pairs, of documents that have one.
fn ranked(
    problem: &Problem<'_>,
    n: usize,
    score: impl Fn(usize) -> Option<f32>,
) -> Result<Vec<Ranking>> {
    let (queries, documents) = (problem.queries(), problem.documents());
    let mut rankings = Vec::new();
    reserve(&mut rankings, queries.n_items())?;
    for query in 0..queries.n_items() {
        let mut best = TopK::new(n);
        let mut n_empty = 0;
        for document in 0..documents.n_items() {
            if !documents.has_tokens(document) {
                n_empty += 1;
                continue;
            }
            if let Some(score) = score(query * documents.n_items() + document) {
                best.push(Ranked { id: document as u32, score, has_tokens: true });
            }
        }
        rankings.push(Ranking { n_empty, ..best.into_ranking() });
    }
    Ok(rankings)
}
