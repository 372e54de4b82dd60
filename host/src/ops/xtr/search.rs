//! Searches by retrieved tokens, with what was not retrieved imputed.

use super::reduce::{first_thresholds, is_retrieved};
use crate::cpu;
use crate::device::Device;
use crate::device::tokens::TokensRef;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::score::check_normalize;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::{Ranked, Ranking, TopK};
use crate::problem::scores::Scores;
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
    /// retrieved, and those without tokens, are not ranked. Documents may be compressed. Beside
    /// what [`Device::xtr`] needs for thresholds it takes 64 MB, or 4 bytes for each token of one
    /// query and document, whichever is more.
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
    /// The errors of [`Device::xtr`]; [`Error::Unsupported`] for options that are not for searches.
    pub fn xtr_search<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        n: usize,
        options: &XtrOptions,
    ) -> Result<Vec<Ranking>> {
        let (queries, documents) = (queries.into(), documents.into());
        let cross = Pairing::cross();
        let (layout, corpus) = (queries.layout(), documents.layout());
        let problem = Problem::new(layout, corpus, &cross)?;
        options.check(&problem)?;
        options.check_search()?;
        self.check_xtr()?;
        let score_options = ScoreOptions::default().normalize(options.normalize).token_scores(true);
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
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
            rankings.extend(ranked(&problem, &scores, &thresholds, is_valid, n)?);
        }
        Ok(rankings)
    }
}

/// The queries from `first` on whose maxima are held at once.
fn part_of(queries: &TokenLayout, first: usize, n_documents: usize) -> Result<TokenLayout> {
    let (mut starts, mut lengths) = (Vec::new(), Vec::new());
    let mut n_maxima = 0;
    for query in first..queries.n_items() {
        let rows = queries.item_rows(query);
        n_maxima += rows.len() as u64 * n_documents as u64;
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

/// The rankings of queries, of which `is_valid` says which rows are not masked.
fn ranked(
    problem: &Problem<'_>,
    scores: &Scores,
    thresholds: &[f32],
    is_valid: impl Fn(usize) -> bool,
    n: usize,
) -> Result<Vec<Ranking>> {
    let (queries, documents) = (problem.queries(), problem.documents());
    let maxima = scores.token_scores().unwrap_or_default();
    let (first, offsets) = (first_thresholds(queries)?, problem.token_offsets());
    let mut rankings = Vec::new();
    reserve(&mut rankings, queries.n_items())?;
    for query in 0..queries.n_items() {
        let thresholds = &thresholds[first[query]..][..queries.item_len(query)];
        let mut best = TopK::new(n);
        let mut n_empty = 0;
        for document in 0..documents.n_items() {
            if !documents.has_tokens(document) {
                n_empty += 1;
                continue;
            }
            let maxima = &maxima[offsets.range(query * documents.n_items() + document)];
            let (mut sum, mut any) = (0.0f64, false);
            let tokens = maxima.iter().zip(thresholds).zip(queries.item_rows(query));
            for ((&maximum, &threshold), _) in tokens.filter(|(_, row)| is_valid(*row)) {
                let is_retrieved = is_retrieved(maximum, threshold);
                any |= is_retrieved;
                sum += f64::from(if is_retrieved { maximum } else { threshold });
            }
            if any {
                best.push(Ranked { id: document as u32, score: sum as f32, has_tokens: true });
            }
        }
        rankings.push(Ranking { n_empty, ..best.into_ranking() });
    }
    Ok(rankings)
}
