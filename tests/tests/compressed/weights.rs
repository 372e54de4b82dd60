//! Compressed query tokens with weights, in every format and in tiles of every height.

use maxsim::format::ElementType;
use maxsim_tests::case::Case;
use maxsim_tests::quantized::{Formats, QuantizedCase, check_quantized_case};
use maxsim_tests::suite::Suite;

#[test]
fn of_every_format() {
    let few = ([7, 0, 32].to_vec(), [60, 300, 0, 9].to_vec());
    let shapes = [[7].to_vec(), [32, 20].to_vec(), [100].to_vec(), [250].to_vec()]
        .map(|queries| (queries, [130, 0, 257, 9, 60, 60].to_vec()));
    let mut cases = Vec::new();
    for formats in Formats::ALL {
        for (token_scores, seed) in [(false, 1), (true, 2)] {
            let of = |dim, (queries, documents): &(Vec<usize>, Vec<usize>)| {
                let case = Case::new(dim, queries, documents);
                Case { element: ElementType::F16, weights: true, token_scores, seed, ..case }
            };
            cases.push(QuantizedCase { case: of(40, &few), formats });
            for shape in &shapes {
                cases.push(QuantizedCase { case: of(128, shape), formats });
            }
            let splits =
                Case { document_splits: Some(2), upload: [true; 2], ..of(128, &shapes[1]) };
            cases.push(QuantizedCase { case: splits, formats });
        }
    }
    Suite::run("quantized_weights", cases, check_quantized_case);
}
