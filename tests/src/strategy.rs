//! Proptest strategies for cases: biased to the edges of tiles, shrinking to small cases.

use maxsim::format::ElementType;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::case::{Case, Layout, Pairs, Side};
use crate::values::Values;

/// Dims at the edges of fragments, slabs and kernel rows.
pub const EDGE_DIMS: [usize; 23] = [
    1, 7, 8, 15, 16, 17, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 256, 257, 512, 513, 768,
    1030, 4096,
];

/// Lengths at the edges of tiles.
pub const EDGE_LENGTHS: [usize; 15] =
    [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513];

/// Any case of one element type.
pub fn cases(element: ElementType) -> impl Strategy<Value = Case> {
    let dim = prop_oneof![3 => select(&EDGE_DIMS), 1 => 1..=512usize];
    let pairs = prop_oneof![
        Just(Pairs::Cross),
        (0..=9usize).prop_map(|k| Pairs::Own { k }),
        (0..=20usize).prop_map(|k| Pairs::Candidates { k }),
        (0..=60usize).prop_map(|n| Pairs::List { n }),
    ];
    let most = prop_oneof![14 => Just(1 << 19), 5 => Just(1 << 21), 1 => Just(1 << 23)];
    let splits = prop_oneof![3 => Just(None), 1 => (2..=5usize).prop_map(Some)];
    (
        (dim, side(), side(), pairs, select(&Values::ALL), any::<bool>()),
        (any::<bool>(), any::<[bool; 2]>(), any::<u64>().no_shrink(), most, splits),
        prop_oneof![6 => Just([false; 2]), 1 => Just([true, false]), 1 => Just([true, false])],
        prop_oneof![3 => Just(false), 1 => Just(true)],
    )
        .prop_map(
            move |(
                (dim, queries, documents, pairs, values, poison),
                (token_scores, upload, seed, most, document_splits),
                [normalize, angular],
                weights,
            )| {
                let mut case = Case {
                    element,
                    dim,
                    queries,
                    documents,
                    pairs,
                    values,
                    poison,
                    normalize,
                    angular,
                    weights,
                    token_scores,
                    document_splits,
                    upload,
                    seed,
                };
                // Splits have 128 tokens or more: such a case has some longer document.
                if case.document_splits.is_some() {
                    case.documents.lengths.iter_mut().step_by(3).for_each(|len| *len += 150);
                }
                let least = if case.document_splits.is_some() { 1 << 21 } else { 0 };
                at_most(case, most.max(least))
            },
        )
}

fn side() -> impl Strategy<Value = Side> {
    let lengths = prop_oneof![
        4 => vec(0..=20usize, 0..=40),
        4 => vec(select(&EDGE_LENGTHS[..11]), 0..=6),
        2 => vec(prop_oneof![3 => select(&EDGE_LENGTHS), 1 => 0..=300usize], 1..=2),
    ];
    let layout =
        select(&[Layout::Padded, Layout::PaddedLengths, Layout::Packed, Layout::Scattered]);
    let valid_percent = prop_oneof![4 => Just(None), 3 => (0..=100u32).prop_map(Some)];
    (layout, lengths, 0..=9usize, valid_percent).prop_map(
        |(layout, lengths, spare_rows, valid_percent)| Side {
            layout,
            lengths,
            spare_rows,
            valid_percent,
        },
    )
}

/// Drops pairs, then items, then tokens, until a case costs at most `most` multiply-adds.
fn at_most(mut case: Case, most: usize) -> Case {
    while case.cost() > most {
        match &mut case.pairs {
            Pairs::Own { k: n } | Pairs::Candidates { k: n } | Pairs::List { n } if *n > 2 => {
                *n /= 2;
                continue;
            }
            _ => {}
        }
        let [queries, documents] = [&mut case.queries.lengths, &mut case.documents.lengths];
        let more_items =
            if queries.len() > documents.len() { &mut *queries } else { &mut *documents };
        if more_items.len() > 1 {
            more_items.truncate(more_items.len().div_ceil(2));
            continue;
        }
        let longer =
            if queries.iter().max() > documents.iter().max() { queries } else { documents };
        longer.iter_mut().for_each(|len| *len /= 2);
    }
    case
}
