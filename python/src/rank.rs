//! Rankings of documents in host memory: of tokens, a chunk at a time, or of scores.

use maxsim::{AnyTokens, Device, Error, Pairing, Ranked, Ranking, Result, ScoreOptions, TopK};
use pyo3::prelude::*;

use crate::errors::shape;
use crate::pool;
use crate::side::{Memory, Side, entries};

/// Scores that are in memory at a time, of a ranking of tokens.
pub const CHUNK_SCORES: usize = 1 << 22;

/// Room for rankings: per query the scores (f32) and ids (i64) of the best, and how many documents
/// were NaN and how many empty (two i64).
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct RankingRoom(
    /* scores */ Memory,
    /* ids */ Memory,
    /* counts */ Memory,
    /* queries */ usize,
    /* documents each */ usize,
);

impl RankingRoom {
    /// Queries, and documents of each.
    pub fn shape(&self) -> (usize, usize) {
        (self.3, self.4)
    }

    /// # Safety
    /// The addresses must be those of as much memory as the numbers say, of this call alone.
    pub unsafe fn write(&self, rankings: impl ExactSizeIterator<Item = Ranking>) -> Result<()> {
        let k = self.4;
        let full = rankings.map(|ranking| match ranking.ranked.len() == k {
            true => Ok(ranking),
            false => Err(room_for(ranking.ranked.len(), k)),
        });
        // SAFETY: the caller's promise.
        unsafe { self.write_each(full) }
    }

    /// As [`RankingRoom::write`], of rankings that may be shorter: the places behind them have -1
    /// and a score of −∞.
    ///
    /// # Safety
    /// As [`RankingRoom::write`].
    pub unsafe fn write_some(&self, rankings: Vec<Ranking>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write_each(rankings.into_iter().map(Ok)) }
    }

    /// # Safety
    /// As [`RankingRoom::write`].
    unsafe fn write_each(
        &self,
        rankings: impl ExactSizeIterator<Item = Result<Ranking>>,
    ) -> Result<()> {
        let RankingRoom(scores, ids, counts, n, k) = *self;
        if rankings.len() != n {
            return Err(shape("rankings", format!("room for {} queries", rankings.len()), n));
        }
        // SAFETY: the caller's promise.
        let (scores, ids, counts) = unsafe {
            let len = entries(n, k)?;
            let scores = scores.write::<f32>("scores", len)?;
            (scores, ids.write::<i64>("ids", len)?, counts.write::<i64>("counts", entries(n, 2)?)?)
        };
        scores.fill(f32::NEG_INFINITY);
        ids.fill(-1);
        for (query, ranking) in rankings.enumerate() {
            let ranking = ranking?;
            if ranking.ranked.len() > k {
                return Err(room_for(ranking.ranked.len(), k));
            }
            counts[query * 2] = ranking.n_nan as i64;
            counts[query * 2 + 1] = ranking.n_empty as i64;
            for (i, document) in ranking.ranked.iter().enumerate() {
                scores[query * k + i] = document.score;
                ids[query * k + i] = i64::from(document.id);
            }
        }
        Ok(())
    }
}

/// The error of rankings that have another length than there is room for.
fn room_for(n_ranked: usize, k: usize) -> Error {
    shape("rankings", format!("room for {n_ranked}"), k)
}

/// Ranks documents for every query; holds the scores of some documents at a time.
#[pyfunction]
pub fn topk(
    py: Python<'_>,
    n_threads: usize,
    sides: (Side, Side),
    normalize: bool,
    k: usize,
    room: RankingRoom,
) -> PyResult<()> {
    pool::run(py, n_threads, || {
        // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
        let (queries, documents) = unsafe { (sides.0.tokens()?, sides.1.tokens()?) };
        let best = best(&queries, &documents, normalize, k)?;
        // SAFETY: as above.
        unsafe { room.write(best.into_iter().map(TopK::into_ranking)) }
    })
}

fn best(
    queries: &AnyTokens<'_>,
    documents: &AnyTokens<'_>,
    normalize: bool,
    k: usize,
) -> Result<Vec<TopK>> {
    let (layout, options) = (documents.layout(), ScoreOptions::default().normalize(normalize));
    let n_queries = queries.layout().n_items();
    let mut best = vec![TopK::new(k.min(layout.n_items())); n_queries];
    let chunk = (CHUNK_SCORES / n_queries.max(1)).max(1);
    for first in (0..layout.n_items()).step_by(chunk) {
        let items = first..layout.n_items().min(first + chunk);
        let some = documents.items(items.clone())?;
        let scores = Device::cpu().score_any(queries, &some, &Pairing::cross(), &options)?;
        for (best, row) in best.iter_mut().zip(scores.rows()) {
            for (item, &score) in items.clone().zip(row) {
                let has_tokens = layout.has_tokens(item);
                best.push(Ranked { id: item as u32, score, has_tokens });
            }
        }
    }
    Ok(best)
}

/// Ranks the columns of scores `[n_queries, n_columns]`: `has_tokens` is a byte per
/// column, or none.
#[pyfunction]
pub fn rank(
    py: Python<'_>,
    n_threads: usize,
    scores: Memory,
    has_tokens: Option<Memory>,
    n_columns: usize,
    k: usize,
    room: RankingRoom,
) -> PyResult<()> {
    pool::run(py, n_threads, || {
        let n = room.3;
        // SAFETY: as in `topk`.
        let (scores, has_tokens) = unsafe {
            let has_tokens = has_tokens.map(|has| has.read::<u8>("has_tokens", n_columns));
            let scores = scores.read::<f32>("scores", entries(n, n_columns)?)?;
            (scores, has_tokens.transpose()?)
        };
        let rankings = (0..n).map(|query| {
            let mut best = TopK::new(k.min(n_columns));
            for (i, &score) in scores[query * n_columns..][..n_columns].iter().enumerate() {
                let has_tokens = has_tokens.is_none_or(|has| has[i] != 0);
                best.push(Ranked { id: i as u32, score, has_tokens });
            }
            best.into_ranking()
        });
        // SAFETY: as in `topk`.
        unsafe { room.write(rankings) }
    })
}
