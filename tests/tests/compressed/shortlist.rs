//! Shortlists: searches over documents that come in chunks, with scores and bounds that are known.

use maxsim::search::{Candidate, Certainty, SearchOptions, Shortlist};
use maxsim::{Error, Ranked, TopK};
use maxsim_tests::suite::Suite;
use proptest::prelude::*;

/// Documents in any order and number, with scores and errors that are known: what is held, what is
/// let go, and what is proven.
#[test]
fn searches_in_chunks_prove_what_is_so() {
    #[derive(Clone, Debug)]
    struct Corpus {
        documents: Vec<(f32, f32, f32)>,
        k: usize,
        options: SearchOptions,
    }
    let corpora = || {
        // Small whole numbers, so that scores and bounds tie; some documents are nothing like that.
        let document =
            (0..40u8, 0..6u8, 0..100u8, -1.0..=1.0f32).prop_map(|(exact, bound, kind, off)| {
                match kind {
                    0 => (f32::NAN, f32::NAN, 1.0),
                    1 => (f32::from(exact), f32::NAN, 1.0),
                    2 => (f32::INFINITY, f32::INFINITY, f32::INFINITY),
                    3 => (f32::from(exact), 7.0, f32::INFINITY),
                    _ => {
                        let (exact, bound) = (f32::from(exact), f32::from(bound));
                        (exact, exact + (off * bound).round(), bound)
                    }
                }
            });
        let documents = proptest::collection::vec(document, 0..3000);
        (documents, 0..=10usize, 0..=30usize, any::<bool>()).prop_map(
            |(documents, k, n_candidates, exact)| {
                let options = SearchOptions::default().n_candidates(n_candidates).exact(exact);
                Corpus { documents, k, options }
            },
        )
    };
    Suite::run_random("search_candidates", corpora, |suite, corpus| {
        let Corpus { documents, k, options } = corpus;
        let mut search = Shortlist::new(*k, *options);
        let mut best = TopK::new(*k);
        for (id, &(exact, score, bound)) in (0u32..).zip(documents) {
            let has_tokens = id % 13 != 5;
            search.push(Candidate { id, score, bound, has_tokens });
            best.push(Ranked { id, score: if has_tokens { exact } else { 0.0 }, has_tokens });
        }
        let mut n_rounds = 0;
        loop {
            let ids = search.wanted();
            if ids.is_empty() {
                break;
            }
            n_rounds += 1;
            for id in ids {
                search
                    .rescored(id, documents[id as usize].0)
                    .map_err(|error: Error| error.to_string())?;
            }
        }
        let (found, exact) = (search.into_ranking(), best.into_ranking());
        let is_likely = |place| place == Certainty::Likely;
        let same = |a: &maxsim::search::Hit, b: &Ranked| {
            a.id == b.id && (a.score == b.score || a.score.is_nan() && b.score.is_nan())
        };
        let mut places = found.documents.iter().zip(&exact.ranked);
        let counts = (found.n_empty, found.n_nan) == (exact.n_empty, exact.n_nan);
        let right = places.all(|(found, exact)| is_likely(found.certainty) || same(found, exact));
        let all_proven = !found.documents.iter().any(|found| is_likely(found.certainty));
        let rounds = n_rounds <= if options.exact { 2 } else { 1 };
        let complete = found.documents.len() == exact.ranked.len();
        if !(counts && right && rounds && complete && (all_proven || !options.exact)) {
            let what = [counts, right, rounds, complete, all_proven];
            return Err(format!("{what:?}: {found:?}, exactly {exact:?}"));
        }
        suite.count("host");
        Ok(())
    });
}

/// What is named and not answered may be anywhere.
#[test]
fn nothing_is_proven_beside_what_was_not_rescored() {
    let options = SearchOptions::default().n_candidates(2).exact(true);
    let mut search = Shortlist::new(1, options);
    for (id, score) in [(0, 1.0), (1, 0.5), (2, 0.1)] {
        search.push(Candidate { id, score, bound: 0.05, has_tokens: true });
    }
    assert_eq!(search.wanted(), [0, 1]);
    search.rescored(1, 0.52).expect("within the bound");
    assert_eq!(search.wanted(), [0]);
    let found = search.clone().into_ranking();
    assert_eq!((found.documents[0].id, found.documents[0].certainty), (1, Certainty::Likely));
    for (id, score, said) in [(1, 0.52, "has named"), (2, 0.1, "has named"), (0, 0.94, "0.94")] {
        let refused = search.clone().rescored(id, score).expect_err("refused").to_string();
        assert!(refused.contains(said), "{refused}");
    }
    search.rescored(0, 0.96).expect("within the bound");
    assert!(search.wanted().is_empty());
    let found = search.into_ranking();
    assert_eq!((found.documents[0].id, found.documents[0].certainty), (0, Certainty::Proven));
}
