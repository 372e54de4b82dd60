//! Compressed query tokens with weights, in every format.

use maxsim::format::ElementType;
use maxsim_tests::case::Case;
use maxsim_tests::quantized::{Formats, QuantizedCase, check_quantized_case};
use maxsim_tests::suite::Suite;

#[test]
fn of_every_format() {
    let (queries, documents) = ([7, 0, 32], [60, 300, 0, 9]);
    let mut cases = Vec::new();
    for formats in Formats::ALL {
        for (token_scores, seed) in [(false, 1), (true, 2)] {
            let case = Case::new(40, &queries, &documents);
            let case =
                Case { element: ElementType::F16, weights: true, token_scores, seed, ..case };
            cases.push(QuantizedCase { case, formats });
        }
    }
    Suite::run("quantized_weights", cases, check_quantized_case);
}
