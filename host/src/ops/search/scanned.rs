//! The scan of a search: the scores of all codes, where they were made.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::score::prepared::{DeviceScores, PreparedScore};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::{Ranked, Ranking, TopK};
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

/// Most scores of a GPU whose best the host finds: 256 KB.
const FEW: usize = 1 << 16;

/// Scores that are compared at a time.
pub(super) const BLOCK: usize = 16;

/// The scores of all codes, where they were made.
pub(super) enum Scanned {
    /// `[n_queries, n_documents]`
    Host(Vec<f32>),
    Device {
        device: Device,
        /// Maybe that of an earlier call of the same items, whose mask was another.
        work: Arc<PreparedScore>,
        /// The documents of this call, with their own mask.
        documents: Arc<TokenLayout>,
        scores: DeviceScores,
    },
}

impl Scanned {
    /// Scores all codes. On a GPU the scores may not be there when this returns.
    pub fn new<Q: ScorableWith<D>, D: Format>(
        device: &Device,
        queries: TokensRef<'_, Q>,
        documents: TokensRef<'_, D>,
    ) -> Result<Scanned> {
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        if device.ordinal().is_none() {
            return Ok(Scanned::Host(device.score(queries, documents, &cross)?.into_values()));
        }
        if let TokensRef::Host(_) = documents {
            // Before anything is uploaded.
            let _ = device.plan(queries, documents, &cross, &options)?;
        }
        let (mut own_queries, mut own_documents) = (None, None);
        let queries = queries.sent_to(device, &mut own_queries)?;
        let documents = documents.on(device, &mut own_documents)?;
        let work = device.prepare_cached(queries, documents, &cross, &options)?;
        let scores = work.new_unfilled()?;
        device.enqueue(work.command(device, queries, documents, &scores)?)?;
        let (device, documents) = (device.clone(), documents.layout.clone());
        Ok(Scanned::Device { device, work, documents, scores })
    }

    /// Copies the scores to the host, where they are few: their best are found there before a GPU
    /// has begun to select them. Whether it has copied them.
    pub fn copy_few(&mut self) -> Result<bool> {
        match self {
            Scanned::Device { scores, .. } if scores.shape().n_scores() <= FEW => {
                *self = Scanned::Host(scores.read_some(0..scores.shape().n_scores())?);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The best `k` of each query, of at least one document.
    pub fn best(&self, documents: &TokenLayout, k: usize) -> Result<Vec<Ranking>> {
        match self {
            Scanned::Host(scores) => {
                let rows = scores.chunks(documents.n_items().max(1));
                Ok(rows.map(|row| best_of(row, documents, k)).collect())
            }
            Scanned::Device { device, work, scores, .. } => {
                device.prepare_top_k(&**work, documents, k)?.select(scores)
            }
        }
    }

    /// The scores of some queries, of `n_documents` each.
    pub fn rows(&self, queries: Range<usize>, n_documents: usize) -> Result<Cow<'_, [f32]>> {
        let scores = queries.start * n_documents..queries.end * n_documents;
        match self {
            Scanned::Host(all) => Ok(Cow::Borrowed(&all[scores])),
            Scanned::Device { scores: all, .. } => Ok(Cow::Owned(all.read_some(scores)?)),
        }
    }
}

/// The best `k` of the scores of one query.
fn best_of(row: &[f32], documents: &TokenLayout, k: usize) -> Ranking {
    let ranked = |(id, &score): (u32, &f32)| {
        let has_tokens = documents.has_tokens(id as usize);
        Ranked { id, score, has_tokens }
    };
    let reached = reached_by(row, k).filter(|_| !documents.has_empty_items() && k > 0);
    let Some(least) = reached else {
        let mut best = TopK::new(k);
        (0u32..).zip(row).map(ranked).for_each(|document| best.push(document));
        return best.into_ranking();
    };
    let reaching = |_, scores: &[f32; BLOCK]| scores.map(|score| score >= least);
    // No document is without tokens, and no score is NaN.
    let ranked = |(id, score)| Ranked { id, score, has_tokens: true };
    let mut best: Vec<Ranked> = scores_where(row, reaching).into_iter().map(ranked).collect();
    best.sort_unstable_by(Ranked::rank);
    best.truncate(k);
    Ranking { ranked: best, n_nan: 0, n_empty: 0 }
}

/// The scores of a row that a comparison of [`BLOCK`] at a time is true of, with their documents.
/// It is given the number of the block; behind the last score comes NaN.
pub(super) fn scores_where(
    row: &[f32],
    is_wanted: impl Fn(usize, &[f32; BLOCK]) -> [bool; BLOCK],
) -> Vec<(u32, f32)> {
    let mut found = Vec::new();
    let mut add = |block: usize, scores: &[f32; BLOCK]| {
        let mut lanes = 0u32;
        // One comparison and one word for all.
        for (lane, is_wanted) in is_wanted(block, scores).into_iter().enumerate() {
            lanes |= u32::from(is_wanted) << lane;
        }
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            found.push(((block * BLOCK + lane) as u32, scores[lane]));
            lanes &= lanes - 1;
        }
    };
    let (blocks, rest) = row.as_chunks::<BLOCK>();
    blocks.iter().enumerate().for_each(|(block, scores)| add(block, scores));
    if !rest.is_empty() {
        add(blocks.len(), &std::array::from_fn(|lane| rest.get(lane).copied().unwrap_or(f32::NAN)));
    }
    found
}

/// A number that at least `k` scores reach, and hardly more where they are many: the k-th of the
/// largest of some of them each. −∞ where it takes all scores; `None` where one is NaN.
fn reached_by(row: &[f32], k: usize) -> Option<f32> {
    let mut maxima: Vec<f32> = Vec::with_capacity(row.len().div_ceil(BLOCK));
    let mut is_nan = [0u32; BLOCK];
    let mut add = |scores: &[f32]| {
        let (blocks, rest) = scores.as_chunks::<BLOCK>();
        let mut most = [f32::NEG_INFINITY; BLOCK];
        for scores in blocks {
            for lane in 0..BLOCK {
                most[lane] = if scores[lane] > most[lane] { scores[lane] } else { most[lane] };
                is_nan[lane] |= u32::from(scores[lane].is_nan());
            }
        }
        for ((most, is_nan), &score) in most.iter_mut().zip(&mut is_nan).zip(rest) {
            *most = if score > *most { score } else { *most };
            *is_nan |= u32::from(score.is_nan());
        }
        maxima.extend(&most[..scores.len().min(BLOCK)]);
    };
    row.chunks(BLOCK * BLOCK).for_each(&mut add);
    if is_nan != [0; BLOCK] {
        return None;
    }
    if maxima.len() <= k || k == 0 {
        return Some(f32::NEG_INFINITY);
    }
    Some(*maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as a ranking of all: of scores that tie, are NaN or infinite, in any number.
    #[test]
    fn the_best_of_a_row_are_those_of_a_ranking() {
        for n in [1usize, 15, 16, 17, 300, 5000] {
            for (n_values, strange) in [(1, 0.0), (7, -0.0), (100_000, 1.5), (900, f32::NAN)] {
                let mut row: Vec<f32> =
                    (0..n).map(|i| ((i * 2_654_435_761) % n_values) as f32 - 3.0).collect();
                row[n / 2] = strange;
                row[n / 3] = f32::NEG_INFINITY;
                let lengths: Vec<i64> = (0..n as i64).map(|i| i64::from(i % 5 != 2)).collect();
                let full = TokenLayout::padded(n, 1, 4).unwrap();
                for layout in [full.clone(), full.with_lengths(&lengths).unwrap()] {
                    for k in [0, 1, 5, 100, 256, 6000] {
                        let mut best = TopK::new(k);
                        for (id, &score) in (0u32..).zip(&row) {
                            let has_tokens = layout.has_tokens(id as usize);
                            best.push(Ranked { id, score, has_tokens });
                        }
                        let (found, wanted) = (best_of(&row, &layout, k), best.into_ranking());
                        let ids = |ranking: &Ranking| -> Vec<(u32, u32)> {
                            ranking.ranked.iter().map(|r| (r.id, r.score.to_bits())).collect()
                        };
                        assert_eq!(ids(&found), ids(&wanted), "{n} scores, k = {k}");
                        assert_eq!((found.n_nan, found.n_empty), (wanted.n_nan, wanted.n_empty));
                    }
                }
            }
        }
    }
}
