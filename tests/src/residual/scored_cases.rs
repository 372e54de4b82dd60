//! Cases of residual-compressed documents that the suites of scores and of gradients share.

use maxsim::format::ElementType;
use proptest::prelude::*;

use crate::case::{Case, Pairs};
use crate::residual::scores::{ResidualCase, in_turns};
use crate::strategy;
use crate::values::Values;

/// Any case.
pub fn cases() -> impl Strategy<Value = ResidualCase> {
    (strategy::cases(ElementType::F16), any::<u16>(), any::<bool>()).prop_map(
        |(case, turn, has_nan)| {
            // As many cases before this one as decide what it is.
            let turns = std::iter::repeat_n(case, usize::from(turn) % 72 + 1);
            let last = in_turns(turns).pop().expect("a case");
            ResidualCase { has_nan: has_nan && turn % 5 == 0, ..last }
        },
    )
}

/// Makes cases of some documents in every layout and pairing.
pub fn in_every_pairing_and_layout() -> Vec<ResidualCase> {
    let case = Case { poison: true, ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9]) };
    let cases = case.in_every_layout_and_pairing().into_iter().zip(0..);
    in_turns(cases.map(|(case, i)| Case { seed: case.seed + i, ..case }))
}

/// Short documents of every dim that is at an edge.
pub fn of_edge_dims() -> Vec<Case> {
    let shape = |dim| [Case::new(dim, &[17, 3], &[65, 1, 16]), Case::new(dim, &[65], &[129])];
    strategy::EDGE_DIMS.into_iter().flat_map(shape).collect()
}

/// Each of some cases with every number of bits.
pub fn with_every_nbits(cases: Vec<Case>) -> impl Iterator<Item = ResidualCase> {
    (0..4).flat_map(move |turn| {
        let mut cases = in_turns(cases.clone());
        for case in &mut cases {
            case.nbits = [1, 2, 4, 8][(case.nbits.trailing_zeros() as usize + turn) % 4];
            case.case.seed += turn as u64;
        }
        cases
    })
}

/// Makes cases of no items, no valid tokens, and numbers that are not finite.
pub fn nothing_and_nan() -> Vec<ResidualCase> {
    let mut cases =
        Case::without_tokens(&[Pairs::Cross, Pairs::Own { k: 2 }, Pairs::List { n: 5 }]);
    let mut masked = Case { poison: true, ..Case::new(128, &[17, 65], &[129, 3]) };
    masked.documents.valid_percent = Some(0);
    cases.extend((0..6).map(|_| masked.clone()));
    let mut cases = in_turns(cases);
    masked.documents.valid_percent = Some(60);
    cases.extend(in_turns((0..18).map(|_| masked.clone())));
    for case in in_turns((0..18).map(|seed| Case { seed, ..masked.clone() })) {
        cases.push(ResidualCase { has_nan: true, ..case });
    }
    // Queries with infinities, which are more than what centroids and weights add to it apart.
    for values in [Values::Special, Values::Lowest] {
        let case = Case { values, ..Case::new(128, &[17, 65], &[129, 3]) };
        cases.extend(in_turns((0..18).map(|seed| Case { seed, ..case.clone() })));
    }
    cases
}
