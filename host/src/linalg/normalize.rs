//! The factor of a normalised row, r = 1 / √max(‖x‖², 10⁻¹²), and the gradient through it.

use maxsim_kernels::abi::residual::norm;

/// ‖x‖².
pub(crate) fn square(row: &[f32]) -> f32 {
    row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() as f32
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

/// r = 1 / √max(‖x‖², 10⁻¹²) of a row. Squares are added in f64, in the order of the elements, and
/// the sum is rounded to f32 once, as wherever the library normalises rows on the CPU. A sum that
/// f32 cannot hold is rounded after its root is taken.
pub(crate) fn row_norm(row: &[f32]) -> f32 {
    let square = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    if square > f64::from(f32::MAX) && square.is_finite() {
        return (1.0 / square.sqrt()) as f32;
    }
    norm(square as f32, f32::sqrt)
}
