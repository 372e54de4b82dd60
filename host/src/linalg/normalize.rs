//! The factor of a normalised row, r = 1 / √max(‖x‖², 10⁻¹²), and the gradient through it.

use maxsim_kernels::abi::residual::norm;

/// Sums that squares are added to at the same time.
const LANES: usize = 8;

/// ‖x‖²: squares are added in f64, in the order of the elements, and the sum is rounded to f32.
#[inline(always)]
pub(crate) fn square(row: &[f32]) -> f32 {
    rounded(sum_of_squares(row), row)
}

/// ‖x‖² in f64, added up in an order that keeps a CPU's registers full.
#[inline(always)]
fn sum_of_squares(row: &[f32]) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
    }
    sums.iter().sum::<f64>() + square_in_order(rest)
}

/// The [`square`] of a row whose squares have this sum in some order.
///
/// Squares are exact in f64, and a sum of n of them is off by less than n · 2⁻⁵³ of it in any
/// order. Where everything within twice that of this sum is rounded to one number, so is the sum in
/// order: nearly always.
#[inline(always)]
fn rounded(sum: f64, row: &[f32]) -> f32 {
    // Twice as much again, for the roundings of these operations.
    let margin = sum * (row.len() as f64 * (2.0 * f64::EPSILON));
    let (low, high) = ((sum - margin) as f32, (sum + margin) as f32);
    match low == high && high < f32::MAX {
        true => low,
        false => square_of_doubt(row) as f32,
    }
}

#[inline(always)]
fn square_in_order(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

/// As [`square_in_order`], for one row of very many.
#[cold]
#[inline(never)]
fn square_of_doubt(row: &[f32]) -> f64 {
    square_in_order(row)
}

/// r of a squared length; NaN of NaN.
pub(crate) fn norm_of(square: f32) -> f32 {
    norm(square, f32::sqrt)
}

/// Adds the gradient of a row to `gradient`, from `sum`, the gradient of the row normalised:
/// r · (sum - x̂ · ⟨x̂, sum⟩) with x̂ = r · x, or r · sum where r is constant. Nothing is added
/// where the sum is 0 throughout, whatever the row holds.
pub(crate) fn add_projected(row: &[f32], norm: f32, sum: &[f32], gradient: &mut [f32]) {
    if sum.iter().all(|&s| s == 0.0) {
        return;
    }
    if norm == norm_of(0.0) {
        gradient.iter_mut().zip(sum).for_each(|(gradient, &s)| *gradient += norm * s);
        return;
    }
    let unit = |x: &f32| norm * x;
    let terms = row.iter().zip(sum).map(|(x, &s)| f64::from(unit(x)) * f64::from(s));
    let product = terms.sum::<f64>() as f32;
    for ((gradient, &s), x) in gradient.iter_mut().zip(sum).zip(row) {
        *gradient += norm * (s - unit(x) * product);
    }
}

/// r = 1 / √max(‖x‖², 10⁻¹²) of a row, of the [`square`] that the library has wherever it
/// normalises rows on the CPU. A sum that f32 cannot hold is rounded after its root is taken.
pub(crate) fn row_norm(row: &[f32]) -> f32 {
    norm_of_row(sum_of_squares(row), row)
}

/// As [`row_norm`], of a row whose squares have this sum in some order.
#[inline(always)]
pub(crate) fn norm_of_row(sum: f64, row: &[f32]) -> f32 {
    let square = rounded(sum, row);
    if square < f32::MAX { norm_of(square) } else { norm_of_long(row) }
}

/// As [`row_norm`], of a row that is long or has a NaN or an infinity.
#[cold]
#[inline(never)]
fn norm_of_long(row: &[f32]) -> f32 {
    let square = square_in_order(row);
    if square > f64::from(f32::MAX) && square.is_finite() {
        return (1.0 / square.sqrt()) as f32;
    }
    norm_of(square as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from 0 to 1, not to themselves.
    fn value(i: usize) -> f32 {
        (i.wrapping_mul(2_654_435_761) % 16_777_213) as f32 / 16_777_213.0
    }

    #[test]
    fn squares_are_those_of_sums_in_order() {
        for dim in (1..70).chain([127, 128, 129, 384, 1000, 4096]) {
            for row in 0..200 {
                let values: Vec<f32> = (0..dim).map(|k| value(row * 4096 + k) - 0.5).collect();
                let expected = square_in_order(&values) as f32;
                assert_eq!(square(&values).to_bits(), expected.to_bits(), "dim {dim}, row {row}");
            }
        }
    }

    /// Where a sum lies between two numbers of f32, the order decides: in order, the small squares
    /// are lost one by one, and the tie goes to the even number.
    #[test]
    fn rows_whose_order_matters_are_added_in_order() {
        let mut row = vec![2.0f32.powi(-27); 4096];
        (row[0], row[1]) = (1.0, 2.0f32.powi(-12));
        assert_eq!((square(&row), square_in_order(&row)), (1.0, 1.0 + 2.0f64.powi(-24)));
        row.rotate_left(2);
        assert_eq!(square(&row), 1.0 + f32::EPSILON);
    }

    #[test]
    fn squares_that_are_no_numbers_are_kept() {
        assert!(square(&[1.0, f32::NAN]).is_nan());
        assert_eq!(square(&[f32::INFINITY; 9]), f32::INFINITY);
        assert_eq!(square(&[3e30; 9]), f32::INFINITY);
        assert_eq!(square(&[0.0; 9]).to_bits(), 0);
        assert_eq!(square(&[1e-20; 3]), square_in_order(&[1e-20; 3]) as f32);
    }
}
