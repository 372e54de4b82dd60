//! The numbers in the rows.

use maxsim::format::{Element, ElementType, with_element};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// Distribution of the stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Rows of length 1.
    Unit,
    /// -3 to 3, both zeros among them: many ties, and no sum rounds.
    Integers,
    /// Every similarity is negative.
    Negative,
    /// Unit rows, each one of a few.
    Duplicates,
    /// Rows of lengths from 2⁻²⁶ to 2¹⁴: subnormal f16 among them, and such as are shorter than
    /// what rows are divided by at least where they are normalised.
    Mixed,
    /// Unit rows, some with a NaN, an infinity or zeros in place of elements.
    Special,
    /// Every similarity is a zero of either sign: all tokens tie.
    Zeros,
    /// Every similarity is -∞: all tokens tie, and none beats having none.
    Lowest,
}

impl Values {
    /// Every distribution.
    pub const ALL: [Values; 8] = [
        Values::Unit,
        Values::Integers,
        Values::Negative,
        Values::Duplicates,
        Values::Mixed,
        Values::Special,
        Values::Zeros,
        Values::Lowest,
    ];
}

/// The side that rows are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Query tokens.
    Query,
    /// Document tokens.
    Document,
}

/// Generates a weight for every row, of either sign and some of them 0; NaN in rows that are not
/// used, where values are poisoned.
pub fn weights(
    values: Values,
    used: &[bool],
    poison: bool,
    rng: &mut Xoshiro256PlusPlus,
) -> Vec<f32> {
    let mut weight = |is_used: bool| match (rng.random_range(0..8), values) {
        _ if poison && !is_used => f32::NAN,
        (0, _) => 0.0,
        (_, Values::Integers) => rng.random_range(-2i8..=2).into(),
        (_, _) => rng.random_range(-2.0f32..2.0),
    };
    used.iter().map(|&is_used| weight(is_used)).collect()
}

/// Generates a matrix `[n_rows, dim]`.
pub fn rows(
    values: Values,
    role: Role,
    n_rows: usize,
    dim: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> Vec<f32> {
    let mut matrix = vec![0.0; n_rows * dim];
    if values == Values::Duplicates {
        let few: Vec<f32> = (0..3).flat_map(|_| unit_row(dim, rng)).collect();
        for row in matrix.chunks_exact_mut(dim) {
            row.copy_from_slice(&few[rng.random_range(0..3) * dim..][..dim]);
        }
        return matrix;
    }
    for row in matrix.chunks_exact_mut(dim) {
        match values {
            Values::Integers => row.fill_with(|| rng.random_range(-3i8..=3).into()),
            Values::Negative => {
                let sign = if role == Role::Query { 1.0 } else { -1.0 };
                row.fill_with(|| sign * rng.random_range(0.1f32..1.0));
            }
            Values::Zeros => row.fill(match role {
                Role::Query => 1.0,
                Role::Document => [0.0, -0.0][rng.random_range(0..2)],
            }),
            Values::Lowest => row.fill(match role {
                Role::Query => 1.0,
                Role::Document => f32::NEG_INFINITY,
            }),
            _ => row.copy_from_slice(&unit_row(dim, rng)),
        }
        match values {
            Values::Integers => {
                let at = rng.random_range(0..dim);
                row[at] = -0.0;
            }
            Values::Mixed => {
                let scale = 2f32.powi(rng.random_range(-26..=14));
                row.iter_mut().for_each(|x| *x *= scale);
            }
            Values::Special if rng.random_range(0..6) == 0 => {
                let at = rng.random_range(0..dim);
                match rng.random_range(0..5) {
                    0 => row[at] = f32::NAN,
                    1 => row[at] = f32::INFINITY,
                    2 => row[at] = f32::NEG_INFINITY,
                    3 => row[at] = -f32::NAN,
                    _ => row.fill(0.0),
                }
            }
            _ => {}
        }
    }
    matrix
}

fn unit_row(dim: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
    let mut row: Vec<f32> = (0..dim).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-6);
    row.iter_mut().for_each(|x| *x /= norm);
    row
}

/// Fills the rows that are not `used` with values that show wherever they leak.
pub fn poison(matrix: &mut [f32], dim: usize, used: &[bool], rng: &mut Xoshiro256PlusPlus) {
    for (row, _) in matrix.chunks_exact_mut(dim).zip(used).filter(|(_, used)| !**used) {
        row.fill([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 6e4][rng.random_range(0..4)]);
    }
}

/// The nearest value with 10 fraction bits (ties to even), as the TF32 kernels multiply it.
pub fn rounded_to_tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0xFFF + (bits >> 13 & 1)) & !0x1FFF)
}

/// The number that `x` becomes when it is stored as `element`.
pub fn stored(element: ElementType, x: f32) -> f32 {
    with_element!(element, T => T::from_f32(x).to_f32())
}
