//! The angular similarity of a query token: what its distance is below 0.

/// −(1 − `cosine`), and 0 for a cosine that rounding has brought above 1; NaN of NaN. The cosine is
/// the largest of a query token, so that this is minus its smallest distance.
#[inline(always)]
pub const fn angular(cosine: f32) -> f32 {
    // `min` would make a number of a NaN.
    if cosine >= 1.0 { 0.0 } else { cosine - 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_never_below_zero() {
        assert_eq!(angular(1.0).to_bits(), 0);
        assert_eq!(angular(f32::from_bits(1.0f32.to_bits() + 1)).to_bits(), 0);
        assert_eq!([0.25, 0.0, -1.0].map(angular), [-0.75, -1.0, -2.0]);
        assert!(angular(f32::NAN).is_nan());
        assert_eq!(angular(f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
