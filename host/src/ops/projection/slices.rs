//! Slices of a call: documents whose tokens are there at the same time, and their scores.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::plan::pieces::pieces;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::problem::scores::Scores;
use crate::tokens::layout::TokenLayout;

/// Most bytes of tokens of a slice, if it is more than one document: few enough for the caches of a
/// device, which has two of them.
const SLICE_BYTES_MAX: usize = 15 << 20;

/// Consecutive documents, and the scores of them.
#[derive(Debug)]
pub(super) struct Slice {
    /// The number of its first document.
    pub first: usize,
    /// The rows from the first of their tokens to the last.
    pub rows: Range<usize>,
    /// The documents in the matrix of these rows.
    pub documents: TokenLayout,
    pub pairing: Pairing,
    scores: SliceScores,
}

/// Numbers of a slice's scores among those of the call.
#[derive(Debug)]
enum SliceScores {
    /// Those of a cross product: the slice's first document, and how many there are in all.
    Cross {
        first: usize,
        n_documents: usize,
    },
    Listed(Vec<u32>),
}

impl Slice {
    /// Cuts a call whose documents have tokens of `token_bytes` bytes. Documents that a list does
    /// not name are in a slice only where it names another one of the slice.
    pub(super) fn all(problem: &Problem<'_>, token_bytes: usize) -> Result<Vec<Slice>> {
        Slice::of_rows(problem, (SLICE_BYTES_MAX / token_bytes).max(1) as u32)
    }

    /// As [`Slice::all`], of at most `rows_max` rows each if it is more than one document.
    pub(super) fn of_rows(problem: &Problem<'_>, rows_max: u32) -> Result<Vec<Slice>> {
        let documents = problem.documents();
        let pieces = pieces(documents, rows_max);
        let mut listed = vec![Vec::new(); pieces.len()];
        if !matches!(problem.pairing().0, Kind::Cross) {
            for p in 0..problem.shape().n_scores() {
                let document = problem.pair(p).1 as u32;
                let piece = pieces.partition_point(|piece| piece.documents.end <= document);
                listed[piece].push(p as u32);
            }
        }
        let mut slices = Vec::with_capacity(pieces.len());
        for (piece, listed) in pieces.iter().zip(listed) {
            let items = piece.documents.start as usize..piece.documents.end as usize;
            let first = items.start;
            let (pairing, scores) = match problem.pairing().0 {
                Kind::Cross => {
                    let n_documents = documents.n_items();
                    (Pairing::cross(), SliceScores::Cross { first, n_documents })
                }
                _ => {
                    let pair = |&p: &u32| {
                        let (q, d) = problem.pair(p as usize);
                        [q as u32, (d - first) as u32]
                    };
                    let ids = listed.iter().map(pair).collect();
                    (Pairing(Kind::Pairs { ids }), SliceScores::Listed(listed))
                }
            };
            if matches!(&scores, SliceScores::Listed(scores) if scores.is_empty()) {
                continue;
            }
            let (rows, documents) = documents.masked_items(items)?;
            slices.push(Slice { first, rows, documents, pairing, scores });
        }
        Ok(slices)
    }

    /// Whether another slice is the same problem, of other rows.
    pub(super) fn is_like(&self, other: &Slice) -> bool {
        self.documents == other.documents && self.pairing == other.pairing
    }

    /// The number of the slice's score `i` among those of the call.
    pub(super) fn score(&self, i: usize) -> usize {
        match &self.scores {
            SliceScores::Cross { first, n_documents } => {
                let n = self.documents.n_items();
                i / n * n_documents + first + i % n
            }
            SliceScores::Listed(scores) => scores[i] as usize,
        }
    }

    /// Copies the slice's scores to their places among those of the call.
    pub(super) fn store(&self, found: &Scores, all: &mut Scores) {
        for (i, &value) in found.values.iter().enumerate() {
            all.values[self.score(i)] = value;
        }
        let (Some(from), Some(to)) = (&found.token_offsets, &all.token_offsets) else { return };
        for i in 0..found.values.len() {
            let (from, to) = (from.range(i), to.range(self.score(i)));
            if let (Some(found), Some(all)) = (&found.winners, &mut all.winners) {
                all[to.clone()].copy_from_slice(&found[from.clone()]);
            }
            if let (Some(found), Some(all)) = (&found.token_scores, &mut all.token_scores) {
                all[to].copy_from_slice(&found[from]);
            }
        }
    }

    /// The winners of the slice's scores, and the gradients with respect to those, out of all.
    pub(super) fn with_grad(&self, all: &Scores, grad_scores: &[f32]) -> (Vec<i32>, Vec<f32>) {
        let n_scores = match &self.scores {
            SliceScores::Cross { n_documents: 0, .. } => 0,
            SliceScores::Cross { n_documents, .. } => {
                grad_scores.len() / n_documents * self.documents.n_items()
            }
            SliceScores::Listed(scores) => scores.len(),
        };
        let scores = (0..n_scores).map(|i| self.score(i));
        let grads = scores.clone().map(|p| grad_scores[p]).collect();
        let (Some(offsets), Some(winners)) = (&all.token_offsets, all.winners()) else {
            return (Vec::new(), grads);
        };
        let winners = scores.flat_map(|p| &winners[offsets.range(p)]).copied().collect();
        (winners, grads)
    }
}

/// Refuses options that would change tokens once more.
pub(super) fn check_options(options: &ScoreOptions) -> Result<()> {
    match options.normalize {
        false => Ok(()),
        true => Err(Error::Unsupported {
            what: "`normalize` of projected documents".into(),
            why: "normalise them by Projection::normalize, and queries before they are scored"
                .into(),
        }),
    }
}
