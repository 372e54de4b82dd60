//! Cuts a corpus into chunks of documents that are scored one after the other.

use std::ops::Range;

use crate::tokens::layout::{MAX_COUNT, TokenLayout};

/// Most documents of a chunk: its lists are then small enough to be copied without waiting.
const DOCUMENTS_MAX: usize = 1 << 16;

/// Most bytes of the scores of a chunk.
const SCORES_BYTES: usize = 64 << 20;

/// Consecutive documents, and the rows from their first to their last token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub items: Range<usize>,
    pub rows: Range<usize>,
}

/// Cuts all documents into chunks for `n_queries` queries, each of as many documents as
/// `buffer_bytes` hold, at least one. Where they are cut depends on nothing else, so that each
/// chunk is scored alike wherever that is.
pub(crate) fn chunks(
    layout: &TokenLayout,
    bytes_per_row: usize,
    n_queries: usize,
    buffer_bytes: u64,
) -> Vec<Chunk> {
    let items_max = (SCORES_BYTES / size_of::<f32>() / n_queries.max(1)).clamp(1, DOCUMENTS_MAX);
    let rows_max = (buffer_bytes / bytes_per_row.max(1) as u64).min(MAX_COUNT as u64) as usize;
    let (mut chunks, mut first) = (Vec::new(), 0);
    let mut rows: Option<Range<usize>> = None;
    let mut push = |items: Range<usize>, rows: Option<Range<usize>>| {
        chunks.push(Chunk { items, rows: rows.unwrap_or(0..0) });
    };
    for item in 0..layout.n_items() {
        let own = Some(layout.item_rows(item)).filter(|rows| !rows.is_empty());
        let with = hull(rows.clone(), own.clone());
        let is_full = item - first == items_max
            || with.as_ref().is_some_and(|rows| rows.len() > rows_max && item > first);
        if is_full {
            push(first..item, rows);
            (first, rows) = (item, own);
        } else {
            rows = with;
        }
    }
    if first < layout.n_items() {
        push(first..layout.n_items(), rows);
    }
    chunks
}

/// Divides consecutive things among `n`, so that each gets about the same weight.
pub(crate) fn shares(weights: impl Iterator<Item = usize>, n: usize) -> Vec<Range<usize>> {
    shares_of(&weights.collect::<Vec<_>>(), n)
}

/// The same of weights that are counted: of one type, so that programs have it once.
fn shares_of(weights: &[usize], n: usize) -> Vec<Range<usize>> {
    // Things without weight are divided too.
    let weights = weights.iter().map(|&weight| weight as u128 + 1);
    let total: u128 = weights.clone().sum();
    let (mut ends, mut before) = (vec![0; n], 0u128);
    for weight in weights {
        // The share that the thing's middle lies in.
        let share = (2 * before + weight) * n as u128 / (2 * total);
        ends[share as usize] += 1;
        before += weight;
    }
    let mut first = 0;
    let mut share = |len: usize| {
        let start = first;
        first += len;
        start..first
    };
    ends.into_iter().map(&mut share).collect()
}

/// The rows from the first to the last of two ranges.
fn hull(a: Option<Range<usize>>, b: Option<Range<usize>>) -> Option<Range<usize>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_as_many_documents_as_fit_and_one_at_least() {
        let layout = TokenLayout::packed(20, 1, &[0i64, 2, 4, 4, 14, 15, 18, 18]).unwrap();
        let found = chunks(&layout, 3, 1, 12);
        let expected = [(0..3, 0..4), (3..4, 4..14), (4..7, 14..18)];
        let expected = expected.map(|(items, rows)| Chunk { items, rows });
        assert_eq!(found, expected);
        // What a layout says of the same items.
        for Chunk { items, rows } in found {
            assert_eq!(layout.items(items).unwrap().0, rows);
        }
        let empty = TokenLayout::packed(9, 1, &[5i64, 5, 5]).unwrap();
        assert_eq!(chunks(&empty, 1, 1, 1), [Chunk { items: 0..2, rows: 0..0 }]);
        assert_eq!(chunks(&TokenLayout::padded(0, 3, 1).unwrap(), 1, 1, 1), []);
    }

    #[test]
    fn shares_are_consecutive_and_about_equal() {
        let of = |weights: &[usize], n| shares(weights.iter().copied(), n);
        assert_eq!(of(&[9; 6], 3), [0..2, 2..4, 4..6]);
        assert_eq!(of(&[0; 3], 3), [0..1, 1..2, 2..3]);
        assert_eq!(of(&[99, 1, 1, 1, 1], 2), [0..1, 1..5]);
        assert_eq!(of(&[5], 3), [0..0, 0..1, 1..1]);
        assert_eq!(of(&[], 2), [0..0, 0..0]);
        assert_eq!(of(&[1, 2, 3], 1).len(), 1);
    }

    #[test]
    fn rows_between_documents_count() {
        let layout = TokenLayout::scattered(100, 1, &[90i64, 0, 50], &[5i64, 5, 5]).unwrap();
        assert_eq!(chunks(&layout, 1, 1, 60).len(), 2);
        assert_eq!(chunks(&layout, 1, 1, 95).len(), 1);
        assert_eq!(chunks(&layout, 1, 1, 20).len(), 3);
    }

    #[test]
    fn scores_and_lists_of_a_chunk_are_small() {
        let layout = TokenLayout::padded(200_000, 1, 1).unwrap();
        let longest = |n_queries| {
            let chunks = chunks(&layout, 1, n_queries, 1 << 30);
            chunks.iter().map(|chunk| chunk.items.len()).max()
        };
        assert_eq!(longest(1), Some(DOCUMENTS_MAX));
        assert_eq!(longest(1000), Some(SCORES_BYTES / 4 / 1000));
        assert_eq!(longest(usize::MAX), Some(1));
    }
}
