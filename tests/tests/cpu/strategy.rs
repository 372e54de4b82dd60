//! The strategies reach what they are for.

use std::collections::BTreeSet;

use maxsim::format::ElementType;
use maxsim_tests::case::{Layout, Pairs};
use maxsim_tests::strategy::{EDGE_DIMS, EDGE_LENGTHS, cases};
use maxsim_tests::values::Values;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

#[test]
fn two_thousand_cases_meet_every_combination() {
    let strategy = cases(ElementType::F16);
    let mut runner = TestRunner::deterministic();
    let (mut combinations, mut dims, mut lengths) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut values, mut worth, mut cost, mut cut) = (BTreeSet::new(), 0, 0, 0);
    for _ in 0..2000 {
        let case = strategy.new_tree(&mut runner).expect("a case").current();
        let pairs = match case.pairs {
            Pairs::Cross => 0,
            Pairs::Own { .. } => 1,
            Pairs::Candidates { .. } => 2,
            Pairs::List { .. } => 3,
        };
        cost += case.cost();
        if case.cost() > 0 {
            worth += 1;
            let longest = case.documents.lengths.iter().max();
            cut += usize::from(case.document_splits.is_some() && longest > Some(&128));
            combinations.insert((pairs, case.queries.layout as u8, case.documents.layout as u8));
            values.insert((case.values as u8, case.poison));
            dims.insert(case.dim);
            lengths.extend(case.queries.lengths.iter().chain(&case.documents.lengths).copied());
        }
    }
    assert_eq!(combinations.len(), 4 * (Layout::Scattered as usize + 1).pow(2));
    assert_eq!(values.len(), Values::ALL.len() * 2);
    assert!(EDGE_DIMS.iter().all(|dim| dims.contains(dim)), "{dims:?}");
    assert!(EDGE_LENGTHS.iter().all(|len| lengths.contains(len)), "{lengths:?}");
    // Most cases have something to score, and none of it takes long.
    assert!(worth > 1400, "{worth} cases with work");
    assert!(cut > 200, "{cut} cases whose documents can be cut");
    assert!(cost / 2000 < 1_000_000, "{} multiply-adds a case", cost / 2000);
}
