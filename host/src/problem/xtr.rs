//! XTR: what is asked for, and which documents a query token retrieves from.

use std::ops::Range;

use super::Problem;
use super::pairing::Kind;
use crate::error::{Error, Result};
use crate::runtime::alloc::reserve;
use crate::tokens::layout::TokenLayout;

/// What the sum of a pair's maxima is divided by, over the query tokens that retrieved a token of
/// the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Normalizer {
    /// The number of these query tokens: eq. 5 of Lee et al. 2023, as in sentence-transformers. A
    /// pair without any scores 0.
    #[default]
    Retrieved,
    /// The number of the query's valid tokens.
    QueryTokens,
    /// 1: the score is the sum.
    None,
    /// The number of maxima above 0, or 10⁻³ where there are none, of other maxima: those of
    /// PyLate 1.6 and of PrimeQA, whose scores a model may have been trained with.
    ///
    /// There, a similarity that was not retrieved counts as 0 *before* the maximum. So a maximum
    /// below 0 adds nothing, and gives no gradient, but where all tokens of the document were
    /// retrieved and it is as long as the longest item of the call (there, shorter ones are padded
    /// with tokens that are not retrieved). A sum of such maxima alone is divided by 10⁻³.
    /// Similarities that tie at the threshold are all retrieved here, and some of them there.
    PylateCompatible,
}

/// The document tokens that a query token retrieves from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum TokenPool {
    /// Those of all documents of the call, whichever of them a query is paired with: as PyLate and
    /// sentence-transformers score each query's own candidates (`xtr_kd_scores`).
    #[default]
    AllDocuments,
    /// Those of the documents that its query is paired with, each document once.
    PairedDocuments,
}

/// Options of XTR scores.
///
/// ```
/// use maxsim::xtr::{Normalizer, TokenPool, XtrOptions};
/// use maxsim::{Device, Pairing, Tokens};
///
/// // Two queries of one token, each with two documents of one token as candidates; dim 1.
/// let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1)?;
/// let documents = Tokens::padded(&[1.0f32, 2.0, 3.0, -4.0], 4, 1, 1)?;
/// let values = |options: XtrOptions| -> maxsim::Result<Vec<f32>> {
///     let pairing = Pairing::own_candidates(2);
///     Ok(Device::cpu().xtr(&queries, &documents, &pairing, &options)?.values().to_vec())
/// };
/// // Similarities are 1, 2, 3, −4 of the first query's token, and 2, 4, 6, −8 of the second's.
/// let options = || XtrOptions::default().k(2);
/// assert_eq!(values(options())?, [0.0, 2.0, 6.0, 0.0]); // of all four the best two
/// assert_eq!(values(options().pool(TokenPool::PairedDocuments))?, [1.0, 2.0, 6.0, -8.0]);
/// assert_eq!(values(options().k(4).normalizer(Normalizer::None))?, [1.0, 2.0, 6.0, -8.0]);
/// assert_eq!(values(options().normalize(true))?, [1.0, 1.0, 1.0, 0.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct XtrOptions {
    /// Document tokens that a query token retrieves, 256 by default; more where several tie with
    /// the last.
    pub k: usize,
    /// What sums are divided by.
    pub normalizer: Normalizer,
    /// What tokens are retrieved from.
    pub pool: TokenPool,
    /// Divide every row by its length, as
    /// [`ScoreOptions::normalize`](field@crate::ScoreOptions::normalize) does.
    pub normalize: bool,
}

impl Default for XtrOptions {
    fn default() -> XtrOptions {
        let (normalizer, pool) = (Normalizer::default(), TokenPool::default());
        XtrOptions { k: 256, normalizer, pool, normalize: false }
    }
}

/// The defaults with one thing changed after the other.
impl XtrOptions {
    /// Sets [`XtrOptions::k`](field@XtrOptions::k).
    pub fn k(self, k: usize) -> XtrOptions {
        XtrOptions { k, ..self }
    }

    /// Sets [`XtrOptions::normalizer`](field@XtrOptions::normalizer).
    pub fn normalizer(self, normalizer: Normalizer) -> XtrOptions {
        XtrOptions { normalizer, ..self }
    }

    /// Sets [`XtrOptions::pool`](field@XtrOptions::pool).
    pub fn pool(self, pool: TokenPool) -> XtrOptions {
        XtrOptions { pool, ..self }
    }

    /// Sets [`XtrOptions::normalize`](field@XtrOptions::normalize).
    pub fn normalize(self, normalize: bool) -> XtrOptions {
        XtrOptions { normalize, ..self }
    }

    /// Refuses what has no meaning: nothing retrieved, and weights beside a normaliser.
    pub(crate) fn check(&self, problem: &Problem<'_>) -> Result<()> {
        if self.k == 0 {
            return Err(Error::Shape {
                argument: "k",
                expected: "at least 1 token to retrieve".into(),
                found: "0".into(),
            });
        }
        problem.queries().check_unweighted("of XTR queries", "a normaliser divides their sums")
    }
}

impl XtrOptions {
    /// Refuses what is not for searches.
    pub(crate) fn check_search(&self) -> Result<()> {
        if (self.normalizer, self.pool) == Default::default() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{:?} and {:?} of a search", self.normalizer, self.pool),
            why: "a search adds up what each query token retrieved from all documents; leave \
                  normalizer and pool as they are by default"
                .into(),
        })
    }
}

/// Queries whose tokens retrieve from the same documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub queries: Range<usize>,
    /// In rising order, each once.
    pub documents: Vec<u32>,
}

impl Pool {
    /// The pools of a problem's queries, in order, every query in one.
    pub(crate) fn of(problem: &Problem<'_>, pool: TokenPool) -> Result<Vec<Pool>> {
        let n_queries = problem.queries().n_items();
        let kind = &problem.pairing().0;
        if let (TokenPool::AllDocuments, _) | (_, Kind::Cross) = (pool, kind) {
            let mut documents = Vec::new();
            let n_documents = problem.documents().n_items();
            reserve(&mut documents, n_documents)?;
            // A layout has fewer than 2³¹ items.
            documents.extend(0..n_documents as u32);
            return Ok(vec![Pool { queries: 0..n_queries, documents }]);
        }
        let mut pools = Vec::new();
        reserve(&mut pools, n_queries)?;
        pools.extend((0..n_queries).map(|q| Pool { queries: q..q + 1, documents: Vec::new() }));
        for p in 0..problem.shape().n_scores() {
            let (query, document) = problem.pair(p);
            let documents = &mut pools[query].documents;
            reserve(documents, 1)?;
            documents.push(document as u32);
        }
        for Pool { documents, .. } in &mut pools {
            documents.sort_unstable();
            documents.dedup();
        }
        Ok(pools)
    }
}

/// The row of each query token, of the queries one after the other.
pub(crate) fn query_token_rows(queries: &TokenLayout) -> Result<Vec<u32>> {
    let mut rows = Vec::new();
    reserve(&mut rows, queries.total_len() as usize)?;
    rows.extend(
        (0..queries.n_items()).flat_map(|query| queries.item_rows(query)).map(|r| r as u32),
    );
    Ok(rows)
}

/// Bytes of the lists of all query tokens together, unless each has to have room for 2k.
const LIST_BYTES: u64 = 10 << 20;

/// Most similarities of a list, where 2k are not more.
const LIST_LEN_MAX: u64 = 4096;

/// Similarities that the list of each of so many query tokens has room for on a device: at least
/// 2k.
pub(crate) fn list_len(n_query_tokens: u64, k: u64) -> u64 {
    (LIST_BYTES / 4 / n_query_tokens.max(1)).min(LIST_LEN_MAX).max(2 * k)
}

/// Documents of a sample of so many; `None` where there are too few.
///
/// Of 512 and k 256, 3 of 16 make bounds that 690 of 92 160 independent similarities reach, and
/// 1107 where the sample says as little as it does of one query token in some thousands: lists of
/// 2048 tokens have room for 1280.
pub(crate) fn sample_len(n_documents: usize) -> Option<usize> {
    (n_documents >= 128).then(|| (n_documents / 16 * 3).max(64))
}

/// Which of a sample's maxima, the largest first, is most likely no larger than the `k`-th largest
/// maximum of all documents: 4½ standard deviations of what a sample has above that. `None` where
/// the sample has no such maximum.
pub(crate) fn sample_rank(n_documents: usize, k: usize) -> Option<usize> {
    let n = sample_len(n_documents)?;
    let share = k as f64 / n_documents as f64;
    let mean = n as f64 * share;
    let rank = (mean + 4.5 * (mean * (1.0 - share).max(0.0)).sqrt()).ceil() as usize + 1;
    (share < 1.0 && rank <= n).then_some(rank)
}
