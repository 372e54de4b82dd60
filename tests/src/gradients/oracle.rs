//! Whether gradients agree with the [`oracle`](crate::oracle)'s.

use maxsim::training::Gradients;
use maxsim_oracle::gradients as closed_form;
pub use maxsim_oracle::gradients::{Expected, Sum};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::case::Data;
use crate::oracle::Answer;

/// The closed form: `winners` pair-major, -1 = none; one number of `grad_scores` per score.
pub fn gradients(data: &Data, winners: &[i32], grad_scores: &[f32]) -> Expected {
    closed_form::gradients([&data.queries, &data.documents], &data.pairs, winners, grad_scores)
}

/// The winners of the oracle's answers, as the library gives them.
pub fn winners(answers: &[Answer]) -> Vec<i32> {
    let tokens = answers.iter().flat_map(|answer| &answer.tokens);
    tokens.map(|token| token.winner.map_or(-1, |t| t as i32)).collect()
}

/// Gradients of scores, some of them 0: small integers where no sum of `data` rounds.
pub fn grad_scores(data: &Data, seed: u64) -> Vec<f32> {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut grad = || match (rng.random_range(0..8), data.exact) {
        (0, _) => 0.0,
        (_, true) => rng.random_range(-3i8..=3).into(),
        (_, false) => rng.random_range(-1.0f32..1.0),
    };
    data.pairs.iter().map(|_| grad()).collect()
}

/// Compares gradients with the oracle's.
pub fn check(data: &Data, expected: &Expected, found: &Gradients) -> Result<(), String> {
    for (side, dim, expected, found) in [
        ("queries", data.queries.dim, &expected.queries, &found.queries),
        ("documents", data.documents.dim, &expected.documents, &found.documents),
        ("weights", 1, &expected.weights, &found.weights),
    ] {
        if expected.len() != found.len() {
            return Err(format!("{side}: expected {}, found {}", expected.len(), found.len()));
        }
        for (i, (expected, &found)) in expected.iter().zip(found).enumerate() {
            if !expected.agrees(data.exact, found) {
                let (row, k) = (i / dim, i % dim);
                return Err(format!("{side}[{row}][{k}]: expected {expected:?}, found {found:e}"));
            }
        }
    }
    Ok(())
}

/// How far sums whose terms are added in any order may be from the owner's: the norm of a side's
/// difference, over the owner's norm.
pub const ATOMIC_DISTANCE_MAX: f64 = 1e-6;

/// Checks gradients that were added atomically against those of the owner: the norm of each side's
/// difference, over that of Σ |g · x|. (The owner's own norm would be stricter than f32 is where
/// a matrix has few elements whose terms cancel out; [`relative_distances`] has it.) Elements that
/// are not finite must be the same ones.
pub(super) fn check_atomic(
    expected: &Expected,
    owner: &Gradients,
    found: &Gradients,
) -> Result<(), String> {
    for (side, sums, owner, found) in [
        ("queries", &expected.queries, &owner.queries, &found.queries),
        ("documents", &expected.documents, &owner.documents, &found.documents),
    ] {
        let (mut difference, mut magnitude) = (0.0, 0.0);
        for (sum, (&a, &b)) in sums.iter().zip(owner.iter().zip(found)) {
            if a.is_finite() && b.is_finite() {
                difference += (f64::from(a) - f64::from(b)).powi(2);
                magnitude += sum.magnitude.powi(2);
            } else if a != b && !(a.is_nan() && b.is_nan()) {
                return Err(format!("{side}: {b:e} where the owner has {a:e}"));
            }
        }
        let (difference, magnitude) = (difference.sqrt(), magnitude.sqrt());
        if difference > ATOMIC_DISTANCE_MAX * magnitude {
            return Err(format!("{side}: {difference:e} from the owner's, of {magnitude:e}"));
        }
    }
    Ok(())
}

/// ‖found − owner‖ / ‖owner‖ of each side, 0 where both are zeros.
pub fn relative_distances(owner: &Gradients, found: &Gradients) -> [f64; 2] {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    [(&owner.queries, &found.queries), (&owner.documents, &found.documents)].map(
        |(owner, found)| {
            let pairs = owner.iter().zip(found);
            let difference = norm(&mut pairs.map(|(&a, &b)| f64::from(b) - f64::from(a)));
            let of_owner = norm(&mut owner.iter().map(|&x| f64::from(x)));
            if difference == 0.0 { 0.0 } else { difference / of_owner }
        },
    )
}
