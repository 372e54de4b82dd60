//! Edge cases by hand: every axis at the edges of every tile, and what tends to break.

use maxsim::format::ElementType;
use maxsim_tests::case::{Case, Layout, Pairs};
use maxsim_tests::engines::check_case;
use maxsim_tests::strategy::EDGE_DIMS;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// Tile heights and widths that kernels may have.
const TILES: [usize; 4] = [16, 64, 128, 256];

/// 1, tile - 1, tile, tile + 1, 2 · tile + 1 of every tile.
fn edges() -> Vec<usize> {
    let around = |tile| [tile - 1, tile, tile + 1, 2 * tile + 1];
    let mut edges: Vec<usize> = TILES.into_iter().flat_map(around).chain([1]).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The same cases for every element type.
fn run(name: &'static str, cases: Vec<Case>) {
    Suite::run(name, of_every_element(&cases), check_case);
}

fn of_every_element(cases: &[Case]) -> impl Iterator<Item = Case> {
    let of = |element| cases.iter().map(move |case| Case { element, ..case.clone() });
    ElementType::ALL.into_iter().flat_map(of)
}

#[test]
fn lengths() {
    // The whole grid of query length × document length, small otherwise.
    let grid = edges().into_iter().flat_map(|q| edges().into_iter().map(move |d| (q, d)));
    run("edges_lengths", grid.map(|(q, d)| Case::new(8, &[q], &[d])).collect());
}

#[test]
fn dims() {
    let dims = EDGE_DIMS.into_iter().chain(edges().into_iter().filter(|&dim| dim <= 512));
    let shape = |dim| [Case::new(dim, &[17, 3], &[65, 1, 16]), Case::new(dim, &[65], &[129])];
    run("edges_dims", dims.flat_map(shape).collect());
}

#[test]
fn n_items() {
    let shape = |n| {
        let lengths =
            |longest: usize| -> Vec<usize> { (0..n).map(|i| i % (longest + 1)).collect() };
        [Case::new(16, &lengths(5), &[3, 0, 9]), Case::new(16, &[4, 1], &lengths(9))]
    };
    run("edges_n_items", edges().into_iter().flat_map(shape).collect());
}

#[test]
fn pairings_and_layouts() {
    let case = Case {
        values: Values::Integers,
        poison: true,
        ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9])
    };
    run("edges_pairings_and_layouts", case.in_every_layout_and_pairing());
}

/// Document splits: their edges, whatever is masked, missing or NaN in some of them.
#[test]
fn document_splits() {
    let mut cases = Vec::new();
    let documents = [0, 1, 127, 128, 129, 255, 256, 257, 513, 700];
    for (dim, queries, document_splits) in
        [(16, vec![3, 0, 70], 2), (128, vec![300, 1], 5), (8, vec![33], 9)]
    {
        for (values, poison) in [
            (Values::Integers, true),
            (Values::Negative, true),
            (Values::Duplicates, false),
            (Values::Special, true),
        ] {
            for pairs in [
                Pairs::Cross,
                Pairs::Own { k: 10 },
                Pairs::Candidates { k: 7 },
                Pairs::List { n: 9 },
            ] {
                for (query_mask, document_mask) in
                    [(None, None), (Some(60), Some(60)), (None, Some(1))]
                {
                    let mut case =
                        Case { pairs, values, poison, ..Case::new(dim, &queries, &documents) };
                    case.document_splits = Some(document_splits);
                    case.queries.valid_percent = query_mask;
                    case.documents.valid_percent = document_mask;
                    cases.push(case);
                }
            }
            // All of one length, of whole splits: nothing is listed.
            let mut case = Case { values, poison, ..Case::new(dim, &queries, &[640; 3]) };
            case.documents.layout = Layout::Padded;
            case.document_splits = Some(document_splits);
            cases.push(case);
        }
    }
    // Without a mask and with equal lengths nothing is filled: what an earlier call left in the
    // workspace must not show.
    let mut case = Case::new(64, &[40, 5], &[256; 4]);
    (case.document_splits, case.values) = (Some(2), Values::Negative);
    cases.push(case);
    Suite::run_on_kernels("edges_pieces", of_every_element(&cases), check_case);
}

#[test]
fn nothing_there() {
    let mut cases = Case::without_tokens(&[
        Pairs::Cross,
        Pairs::Own { k: 2 },
        Pairs::Candidates { k: 2 },
        Pairs::List { n: 5 },
    ]);
    cases.extend(Case::all_masked());
    run("edges_nothing_there", cases);
}

#[test]
fn values() {
    let mut cases = Vec::new();
    for values in Values::ALL {
        for (dim, queries, documents) in [
            (1, vec![1], vec![1]),
            (7, vec![3, 70], vec![2, 140]),
            (128, vec![33], vec![1, 300, 17]),
        ] {
            for valid_percent in [None, Some(70)] {
                let mut case = Case { values, ..Case::new(dim, &queries, &documents) };
                case.poison = true;
                case.queries.spare_rows = 5;
                case.documents.spare_rows = 5;
                case.documents.valid_percent = valid_percent;
                cases.push(case);
            }
        }
    }
    run("edges_values", cases);
}

/// Rows that are normalised: some of the cases above, so that they take turns in what they are.
#[test]
fn normalized() {
    let mut cases = Vec::new();
    // The values' order brings every pairing and layout together with some that are shorter than
    // what rows are divided by, and with infinities.
    let layouts = Case { poison: true, ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9]) };
    cases.extend(layouts.in_every_layout_and_pairing().into_iter().step_by(3));
    cases.extend(EDGE_DIMS.into_iter().map(|dim| Case::new(dim, &[17, 3], &[65, 1, 16])));
    for queries in [1, 63, 64, 65, 128, 129, 257] {
        let documents = [1, 16, 127, 128, 129, 300];
        cases.extend(documents.map(|documents| Case::new(8, &[queries], &[documents])));
    }
    for pairs in
        [Pairs::Cross, Pairs::Own { k: 4 }, Pairs::Candidates { k: 7 }, Pairs::List { n: 9 }]
    {
        for valid_percent in [None, Some(60)] {
            let mut case = Case { pairs, ..Case::new(128, &[70, 0, 3], &[0, 129, 513, 700]) };
            case.poison = true;
            case.document_splits = Some(3);
            case.documents.valid_percent = valid_percent;
            cases.push(case);
        }
    }
    let values = Values::ALL.into_iter().cycle();
    for ((i, case), values) in (0..).zip(&mut cases).zip(values) {
        (case.normalize, case.values) = (true, values);
        case.seed += i;
    }
    run("edges_normalized", cases);
}
