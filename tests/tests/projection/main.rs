//! Projected hidden states: tokens, scores and gradients are those of the projection in f64, on
//! every device that projects.

mod edges;
mod times;

use maxsim::format::ElementType;
use maxsim_tests::case::{Case, Layout, Pairs, Side};
use maxsim_tests::gradients::all_devices;
use maxsim_tests::projection::{ProjectedCase, check_case_on};
use maxsim_tests::strategy::cases;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::prelude::*;

/// Values whose gradients are finite: sums that overflow are no concern of projections.
const VALUES: [Values; 3] = [Values::Unit, Values::Integers, Values::Duplicates];

fn check(suite: &Suite, case: &ProjectedCase) -> Result<(), String> {
    all_devices().iter().try_for_each(|device| check_case_on(suite, case, device))
}

fn projected(case: impl Strategy<Value = Case>) -> impl Strategy<Value = ProjectedCase> {
    let hidden = prop_oneof![3 => 1usize..=80, 1 => 500usize..=530];
    let values = prop::sample::select(VALUES.to_vec());
    (case, hidden, values, any::<bool>(), any::<bool>()).prop_map(
        |(case, hidden, values, bias, normalize)| {
            let document_splits = None;
            let dim = case.dim.min(300);
            let case = Case { values, dim, document_splits, normalize: false, ..case };
            ProjectedCase { case, hidden, bias, normalize }
        },
    )
}

#[test]
fn random_cases() {
    let elements = prop::sample::select(ElementType::ALL.to_vec());
    let any = || elements.clone().prop_flat_map(|element| projected(cases(element)));
    Suite::run_random("projection", any, check);
}

/// Every layout and pairing, with masks, over rows that would show.
#[test]
fn every_layout_and_pairing() {
    let case = Case { poison: true, ..Case::new(20, &[5, 0, 17], &[9, 30, 0, 1]) };
    let all = case.in_every_layout_and_pairing().into_iter().enumerate().map(|(i, case)| {
        let element = ElementType::ALL[i % 3];
        let (bias, normalize) = (i % 2 == 0, i % 5 < 3);
        ProjectedCase { case: Case { element, ..case }, hidden: 33, bias, normalize }
    });
    Suite::run("projection_layouts", all, check);
}

/// Tokens so long that documents of a call are several slices, of one document and of some.
#[test]
fn several_slices() {
    let pairs = [Pairs::Cross, Pairs::Candidates { k: 4 }, Pairs::List { n: 7 }];
    let all = pairs.into_iter().map(|pairs| {
        let lengths = [400, 0, 700, 90, 1800, 30, 990, 1];
        let documents = Side { valid_percent: Some(80), ..Side::packed(lengths) };
        let case = Case::new(4096, &[2, 1], &lengths);
        let case = Case { pairs, documents, poison: true, values: Values::Integers, ..case };
        ProjectedCase { case, hidden: 3, bias: true, normalize: true }
    });
    Suite::run("projection_slices", all, check);
}

/// Slices of documents of one length, which are one problem, each with rows of its own and, in some
/// cases, masked ones.
#[test]
fn slices_of_one_problem() {
    let all = [None, Some(80)].into_iter().map(|valid_percent| {
        let lengths = [500; 8];
        let documents = Side { layout: Layout::Padded, valid_percent, ..Side::packed(lengths) };
        let case = Case { documents, ..Case::new(4096, &[2, 1], &lengths) };
        ProjectedCase { case, hidden: 3, bias: true, normalize: true }
    });
    Suite::run("projection_alike", all, check);
}

/// More chosen rows than a GPU multiplies together, of more rows; and a document with more rows
/// than are listed. Some rows are chosen by several tokens, and a query has none.
#[test]
fn many_chosen_rows() {
    let documents = [100; 40];
    let many = Case::new(4096, &[40, 0, 41], &documents);
    let many = Case { values: Values::Integers, ..many };
    let long = Case { element: ElementType::F16, ..Case::new(8, &[5, 9], &[70_000, 3, 66_000]) };
    let all = [(many, 3), (long, 8)].into_iter().map(|(case, hidden)| {
        let case = Case { poison: true, ..case };
        ProjectedCase { case, hidden, bias: true, normalize: true }
    });
    Suite::run("projection_chosen", all, check);
}

/// The longest rows of hidden states.
#[test]
fn long_hidden_states() {
    let all = [4097, 8192].map(|hidden| {
        let case = Case { element: ElementType::Bf16, ..Case::new(65, &[3], &[5, 2]) };
        ProjectedCase { case, hidden, bias: true, normalize: true }
    });
    Suite::run("projection_long", all, check);
}
