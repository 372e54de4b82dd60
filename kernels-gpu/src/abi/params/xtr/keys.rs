//! Numbers by which similarities are compared.

/// A number that is larger for a larger f32: 0 for NaN, which is below all.
#[inline(always)]
pub const fn key(bits: u32) -> u32 {
    if bits & 0x7FFF_FFFF > 0x7F80_0000 {
        return 0;
    }
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The bits of the f32 that has a key; −∞ for what no number has.
#[inline(always)]
pub const fn bits(key: u32) -> u32 {
    if key >> 31 != 0 {
        key & 0x7FFF_FFFF
    } else if key < self::key(f32::NEG_INFINITY.to_bits()) {
        f32::NEG_INFINITY.to_bits()
    } else {
        !key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_numbers() {
        let numbers =
            [f32::NEG_INFINITY, -2.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, f32::MAX, f32::INFINITY];
        for pair in numbers.windows(2) {
            assert!(key(pair[0].to_bits()) < key(pair[1].to_bits()), "{pair:?}");
        }
        for number in numbers {
            assert_eq!(bits(key(number.to_bits())), number.to_bits());
        }
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!(bits(key(nan.to_bits())), f32::NEG_INFINITY.to_bits());
        }
    }
}
