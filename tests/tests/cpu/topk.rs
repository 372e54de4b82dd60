//! The order of a ranking, and what the running top-k keeps of it.

use maxsim::{Ranked, Ranking, TopK};
use proptest::prelude::*;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn document(id: u32, score: f32) -> Ranked {
    Ranked { id, score, has_tokens: true }
}

fn empty(id: u32) -> Ranked {
    Ranked { id, score: 0.0, has_tokens: false }
}

fn top(k: usize, documents: &[Ranked]) -> Ranking {
    let mut top = TopK::new(k);
    documents.iter().for_each(|&document| top.push(document));
    top.into_ranking()
}

fn ids(ranking: &Ranking) -> Vec<u32> {
    ranking.ranked.iter().map(|document| document.id).collect()
}

#[test]
fn scores_fall_then_nan_then_empty() {
    let documents = [
        empty(0),
        document(1, NAN),
        document(2, -5.0),
        document(3, INF),
        document(4, 2.0),
        empty(5),
        document(6, -INF),
        document(7, -NAN),
        document(8, 3.0),
    ];
    let ranking = top(100, &documents);
    assert_eq!(ids(&ranking), [3, 8, 4, 2, 6, 1, 7, 0, 5]);
    assert_eq!((ranking.n_nan, ranking.n_empty), (2, 2));
    // An empty document scores 0 but stays below every number.
    assert_eq!(ids(&top(5, &documents)), [3, 8, 4, 2, 6]);
}

#[test]
fn equal_scores_go_by_lower_id_whatever_the_order_of_pushing() {
    let documents = [document(7, 1.0), document(2, 1.0), document(9, 1.0), document(4, 1.0)];
    assert_eq!(ids(&top(3, &documents)), [2, 4, 7]);
    // +0 equals -0.
    assert_eq!(ids(&top(2, &[document(2, 0.0), document(1, -0.0)])), [1, 2]);
    assert_eq!(ids(&top(2, &[document(2, -0.0), document(1, 0.0)])), [1, 2]);
    assert_eq!(ids(&top(2, &[document(5, NAN), document(3, NAN), document(4, NAN)])), [3, 4]);
    assert_eq!(ids(&top(2, &[empty(5), empty(3), empty(4)])), [3, 4]);
}

#[test]
fn k_of_nothing_of_all_and_of_more() {
    let documents = [document(0, 1.0), document(1, NAN), empty(2)];
    assert_eq!(ids(&top(3, &documents)), [0, 1, 2]);
    assert_eq!(ids(&top(usize::MAX, &documents)), [0, 1, 2]);
    assert_eq!(ids(&top(1, &documents)), [0]);
    let none = top(0, &documents);
    assert_eq!((none.ranked.len(), none.n_nan, none.n_empty), (0, 1, 1));
    assert_eq!(top(3, &[]), Ranking::default());
}

#[test]
fn counts_cover_what_was_not_kept() {
    let documents: Vec<Ranked> = (0..1000)
        .map(|id| match id % 10 {
            0 => empty(id),
            1 => document(id, NAN),
            _ => document(id, id as f32),
        })
        .collect();
    let ranking = top(2, &documents);
    assert_eq!(ids(&ranking), [999, 998]);
    assert_eq!((ranking.n_nan, ranking.n_empty), (100, 100));
}

/// Ties, NaN and empty documents are common.
fn documents() -> impl Strategy<Value = Vec<Ranked>> {
    let score =
        prop_oneof![6 => (-3i8..=3).prop_map(f32::from), 1 => Just(NAN), 1 => Just(-0.0f32)];
    proptest::collection::vec((score, proptest::bool::weighted(0.9)), 0..500).prop_map(|list| {
        let ranked = |(id, (score, has_tokens)): (usize, (f32, bool))| match has_tokens {
            true => document(id as u32, score),
            false => empty(id as u32),
        };
        list.into_iter().enumerate().map(ranked).collect()
    })
}

/// The definition: three classes one after the other, each sorted by its own rule.
fn sorted(documents: &[Ranked]) -> Vec<u32> {
    let class = |keep: fn(&&Ranked) -> bool| -> Vec<Ranked> {
        documents.iter().filter(keep).copied().collect()
    };
    let mut numbers = class(|d| d.has_tokens && !d.score.is_nan());
    // Stable sorts: by id first, then by falling score.
    numbers.sort_by_key(|d| d.id);
    numbers.sort_by(|a, b| b.score.partial_cmp(&a.score).expect("no NaN here"));
    let mut nan = class(|d| d.has_tokens && d.score.is_nan());
    nan.sort_by_key(|d| d.id);
    let mut empty = class(|d| !d.has_tokens);
    empty.sort_by_key(|d| d.id);
    [numbers, nan, empty].concat().iter().map(|d| d.id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_order_of_pushing_gives_the_head_of_the_sorted_list(
        documents in documents(),
        shuffled in any::<prop::sample::Index>(),
        k in prop_oneof![0..8usize, 0..600usize],
    ) {
        let mut expected = sorted(&documents);
        expected.truncate(k);
        let forward = top(k, &documents);
        prop_assert_eq!(ids(&forward), expected.clone());

        // Rotated and reversed: what is dropped early must not depend on what came first.
        let mut other = documents.clone();
        if !other.is_empty() {
            let by = shuffled.index(other.len());
            other.rotate_left(by);
        }
        other.reverse();
        let backward = top(k, &other);
        prop_assert_eq!(ids(&backward), expected);
        prop_assert_eq!(
            (forward.n_nan, forward.n_empty),
            (backward.n_nan, backward.n_empty)
        );
    }
}
