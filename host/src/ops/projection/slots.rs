//! Slots for the rows of documents that query tokens choose, where only a device knows them: a pure
//! function of shapes.

use maxsim_kernels::abi::params::projection::gradient::{
    CHOOSE_ROWS_MAX, ChosenDocument, ChosenPair,
};

use super::slices::Slice;
use crate::cuda::SlotsCall;
use crate::error::Result;
use crate::problem::Problem;
use crate::runtime::alloc::filled;
use crate::tokens::layout::TokenLayout;

/// Address of the winners of a score, and bytes of one.
pub(super) type Winners = (u64, u32);

/// The documents of a problem in a matrix of slots.
///
/// A document that shares no row with another has a slot for each of its winners, if it has more
/// rows than winners. Others have a slot for each row, and so keep what they share.
pub(super) fn slots(problem: &Problem<'_>) -> Result<TokenLayout> {
    let documents = problem.documents();
    let segments = documents.segments();
    let offsets = problem.token_offsets();
    let mut winners = filled(segments.len() as u64, 0u64)?;
    for p in 0..problem.shape().n_scores() {
        winners[problem.pair(p).1] += offsets.range(p).len() as u64;
    }
    let mut order: Vec<usize> = (0..segments.len()).filter(|&d| segments[d][1] > 0).collect();
    order.sort_by_key(|&d| segments[d]);
    let (mut starts, mut lens) = (vec![0; segments.len()], vec![0; segments.len()]);
    // The first slot of the run of documents that share rows, where it ends, and its rows.
    let (mut end, mut at) = (0, 0);
    while at < order.len() {
        let start = segments[order[at]][0];
        let (mut last, mut run_end) = (at, start);
        while last < order.len() && (last == at || segments[order[last]][0] < run_end) {
            let [start, len] = segments[order[last]];
            run_end = run_end.max(start + len);
            last += 1;
        }
        let few = winners[order[at]].min(u64::from(u32::MAX)) as u32;
        let is_alone = last == at + 1;
        let n_rows = run_end - start;
        let n_slots = match is_alone && few < n_rows && n_rows <= CHOOSE_ROWS_MAX {
            true => few,
            false => n_rows,
        };
        for &d in &order[at..last] {
            starts[d] = end + (segments[d][0] - start);
            lens[d] = if is_alone { n_slots } else { segments[d][1] };
        }
        end += n_slots;
        at = last;
    }
    TokenLayout::scattered(end as usize, documents.dim(), &starts, &lens)
}

/// A slice of the problem of slots, as a device takes it: `problem` is that of all rows.
pub(super) fn call<'a>(
    slice: &'a Slice,
    problem: &Problem<'a>,
    winners: &dyn Fn(usize) -> Winners,
) -> Result<SlotsCall<'a>> {
    let part = Problem::new(problem.queries(), &slice.documents, &slice.pairing)?;
    let (offsets, n_scores) = (part.token_offsets(), part.shape().n_scores());
    let slots = slice.documents.segments();
    let segments = &problem.documents().segments()[slice.first..];
    let mut first_pairs = filled(slots.len() as u64 + 1, 0u32)?;
    for i in 0..n_scores {
        first_pairs[part.pair(i).1 + 1] += 1;
    }
    for d in 0..slots.len() {
        first_pairs[d + 1] += first_pairs[d];
    }
    let document = |d: usize| ChosenDocument {
        first_row: segments[d][0],
        n_rows: segments[d][1],
        slot: slots[d][0],
        n_slots: slots[d][1],
        first_pair: first_pairs[d],
        n_pairs: first_pairs[d + 1] - first_pairs[d],
    };
    let documents = (0..slots.len()).map(document).collect();
    let mut pairs = filled(n_scores as u64, ChosenPair::default())?;
    let mut next = first_pairs.clone();
    for i in 0..n_scores {
        let tokens = offsets.range(i);
        let score = slice.score(i);
        let (winners, winner_bytes) = winners(score);
        let place = &mut next[part.pair(i).1];
        pairs[*place as usize] = ChosenPair {
            winners,
            to: tokens.start as u64,
            score: score as u32,
            to_score: i as u32,
            n_tokens: tokens.len() as u32,
            winner_bytes,
        };
        *place += 1;
    }
    Ok(SlotsCall { problem: part, n_slots: slice.rows.len(), documents, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::pairing::Pairing;

    /// A document with fewer winners than rows has a slot for each; those that share rows, or have
    /// as many winners, keep their rows.
    #[test]
    fn documents_have_slots_for_winners_or_for_rows() {
        let queries = TokenLayout::padded(1, 3, 4).unwrap();
        let documents =
            TokenLayout::scattered(100, 4, &[50, 0, 20, 24, 3], &[9, 2, 6, 10, 0]).unwrap();
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        let found = slots(&problem).unwrap();
        assert_eq!(found.segments(), [[16, 3], [0, 2], [2, 6], [6, 10], [0, 0]]);
        assert_eq!(found.rows(), 19);
    }

    /// Pairs are with their documents, and say where winners and gradients go.
    #[test]
    fn pairs_are_listed_by_document() {
        let queries = TokenLayout::padded(2, 3, 4).unwrap();
        let documents = TokenLayout::padded(3, 40, 4).unwrap();
        let pairing = Pairing::pairs(&[1, 0, 1], &[2, 0, 0]).unwrap();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let layout = slots(&problem).unwrap();
        assert_eq!(layout.segments(), [[0, 6], [6, 0], [6, 3]]);
        let of_slots = Problem::new(&queries, &layout, &pairing).unwrap();
        let slices = Slice::of_rows(&of_slots, 100).unwrap();
        let [slice] = &slices[..] else { panic!("{slices:?}") };
        let call = call(slice, &problem, &|p| (1000 * p as u64, 2)).unwrap();
        assert_eq!(call.n_slots, 9);
        let document = |first_row, slot, n_slots, first_pair, n_pairs| ChosenDocument {
            first_row,
            n_rows: 40,
            slot,
            n_slots,
            first_pair,
            n_pairs,
        };
        let expected =
            [document(0, 0, 6, 0, 2), document(40, 0, 0, 2, 0), document(80, 6, 3, 2, 1)];
        assert_eq!(call.documents, expected);
        let pair = |p: u32| ChosenPair {
            winners: 1000 * u64::from(p),
            to: 3 * u64::from(p),
            score: p,
            to_score: p,
            n_tokens: 3,
            winner_bytes: 2,
        };
        assert_eq!(call.pairs, [pair(1), pair(2), pair(0)]);
    }
}
