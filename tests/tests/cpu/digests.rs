//! What every target computes alike: winners, rankings and scores of INT8 codes of fixed
//! embeddings have one digest each, that of x86-64. (Scores of other formats may differ in their
//! last bits, as each instruction set sums in an order of its own; the suites hold them to the
//! oracle.)

use half::{bf16, f16};
use maxsim::format::{Element, Int8, ScaleType};
use maxsim::{Device, Pairing, ScoreOptions, Scores, Tokens};
use twox_hash::XxHash3_64;

/// Tokens of each query and each document.
const QUERIES: [usize; 5] = [32, 1, 7, 32, 19];
const DOCUMENTS: [usize; 9] = [100, 1, 0, 37, 64, 300, 16, 5, 129];
/// Whole registers, and what is left over.
const DIMS: [usize; 3] = [128, 100, 31];

/// Numbers from -1 to 1, the same on every target.
fn numbers(n: usize, seed: u64) -> impl Iterator<Item = f32> {
    (0..n as u64).map(move |i| {
        let bits = XxHash3_64::oneshot_with_seed(seed, &i.to_le_bytes());
        // 23 bits: exact.
        (bits >> 41) as f32 / (1u64 << 22) as f32 - 1.0
    })
}

fn offsets(lengths: &[usize]) -> Vec<i64> {
    let ends = lengths.iter().scan(0, |end, &len| {
        *end += len as i64;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Packed tokens of one side: their elements, and a mask without every seventh.
fn side<T: Element>(lengths: &[usize], dim: usize, seed: u64) -> Tokens<'static, T> {
    let n_rows: usize = lengths.iter().sum();
    let elements: Vec<T> = numbers(n_rows * dim, seed).map(T::from_f32).collect();
    let mask: Vec<u8> = (0..n_rows).map(|row| u8::from(row % 7 != 3)).collect();
    let layout = maxsim::TokenLayout::packed(n_rows, dim, &offsets(lengths)).expect("a layout");
    Tokens::from_layout(elements, layout).and_then(|tokens| tokens.with_mask(mask)).expect("tokens")
}

/// A digest of some calls' results.
#[derive(Default)]
struct Digest(Vec<u8>);

impl Digest {
    fn winners(&mut self, scores: &Scores) {
        let winners = scores.winners().expect("winners were asked for");
        self.0.extend(winners.iter().flat_map(|winner| i64::from(*winner).to_le_bytes()));
    }

    fn bits(&mut self, scores: &Scores) {
        let values = scores.values().iter().chain(scores.token_scores().expect("token scores"));
        self.0.extend(values.flat_map(|value| value.to_bits().to_le_bytes()));
    }

    fn hex(&self) -> String {
        format!("{:016x}", XxHash3_64::oneshot(&self.0))
    }
}

fn winners_and_rankings<T: Element>() -> String {
    let mut digest = Digest::default();
    let options = ScoreOptions::default().winners(true);
    for dim in DIMS {
        let (queries, documents) = (side::<T>(&QUERIES, dim, 1), side::<T>(&DOCUMENTS, dim, 2));
        let cross = Pairing::cross();
        let scores = Device::cpu().score_with(&queries, &documents, &cross, &options);
        let scores = scores.expect("scores");
        digest.winners(&scores);
        for ranking in scores.top_k(&documents, DOCUMENTS.len()).expect("rankings") {
            digest.0.extend(ranking.ranked.iter().flat_map(|ranked| ranked.id.to_le_bytes()));
        }
    }
    digest.hex()
}

#[test]
fn winners_and_rankings_of_every_target_are_those_of_x86() {
    let found = [
        winners_and_rankings::<f32>(),
        winners_and_rankings::<f16>(),
        winners_and_rankings::<bf16>(),
    ];
    assert_eq!(found, ["ca7dbec34e5a2d2e", "ca7dbec34e5a2d2e", "d8b1573146beedde"]);
}

#[test]
fn int8_scores_of_every_target_have_the_bits_of_x86() {
    let options = ScoreOptions::default().winners(true).token_scores(true);
    let mut digest = Digest::default();
    for dim in DIMS {
        let compress = |lengths: &[usize], seed| {
            side::<f32>(lengths, dim, seed).quantize::<Int8>(ScaleType::F32).expect("codes")
        };
        let (queries, documents) = (compress(&QUERIES, 3), compress(&DOCUMENTS, 4));
        let scores = Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options);
        let scores = scores.expect("scores");
        digest.winners(&scores);
        digest.bits(&scores);
    }
    assert_eq!(digest.hex(), "36bfd4eb4f7e346c");
}
