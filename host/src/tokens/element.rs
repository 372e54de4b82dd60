//! Element types of token matrices, as Rust types.

use half::{bf16, f16};
pub use maxsim_kernels::abi::element::ElementType;

use super::format::{Format, TokenFormat, sealed};
use crate::linalg::convert::widen_f16;

/// Elements that the CPU works on at once.
pub(crate) const LANES: usize = 16;

/// Elements in f32.
pub(crate) type Lanes = [f32; LANES];

/// A Rust type that can be an element of a token matrix: [`half::f16`],
/// [`half::bf16`] or `f32`. Sealed: kernels exist for these only.
///
/// All are IEEE 754 formats of 2 or 4 bytes: a sign, then the bits of a magnitude, whose order is
/// that of magnitudes, with infinity and then NaN above all others.
#[diagnostic::on_unimplemented(
    message = "tokens cannot have elements of type `{Self}`",
    label = "expected f32, f16 or bf16",
    note = "of numbers without a type Rust makes f64: write `1.0f32`, or `x as f32`",
    note = "`maxsim::half` has the types f16 and bf16"
)]
pub trait Element: Format<Stored = Self> + bytemuck::Pod {
    /// The element type this is.
    const TYPE: ElementType;

    /// The smallest normal number.
    #[doc(hidden)]
    const NORMAL_MIN: f32 = f32::MIN_POSITIVE;

    /// Products that tensor cores form for one of elements.
    #[doc(hidden)]
    const N_PRODUCTS: usize = 1;

    /// The value as `f32`; exact for all three types.
    fn to_f32(self) -> f32;

    /// The nearest value of this type (ties to even).
    fn from_f32(value: f32) -> Self;

    /// The largest of the elements' magnitudes; 0 of no elements, NaN where one is NaN.
    ///
    /// ```
    /// use maxsim::format::Element;
    /// use maxsim::half::bf16;
    ///
    /// fn summary<T: Element>(elements: &[T]) -> String {
    ///     format!("{} up to {}", T::TYPE, T::largest_magnitude(elements))
    /// }
    /// assert_eq!(summary(&[1.0f32, -3.0, 2.0]), "f32 up to 3");
    /// assert_eq!(summary(&[bf16::from_f32(0.5)]), "bf16 up to 0.5");
    /// assert!(f32::largest_magnitude(&[1.0, f32::NAN, f32::INFINITY]).is_nan());
    /// ```
    fn largest_magnitude(elements: &[Self]) -> f32 {
        // Many elements an instruction, without a branch: the order of bits is that of magnitudes.
        if size_of::<Self>() == 2 {
            let bits = bytemuck::cast_slice::<_, i16>(elements).iter();
            let largest = bits.fold(0, |most: i16, x| most.max(x & i16::MAX));
            bytemuck::cast::<_, Self>(largest).to_f32()
        } else {
            let bits = bytemuck::cast_slice::<_, i32>(elements).iter();
            let largest = bits.fold(0, |most: i32, x| most.max(x & i32::MAX));
            bytemuck::cast::<_, Self>(largest).to_f32()
        }
    }
}

impl sealed::Sealed for f16 {}

impl Format for f16 {
    type Stored = f16;
    const FORMAT: TokenFormat = TokenFormat::Element(ElementType::F16);

    fn widen_into(stored: &[f16], values: &mut [f32]) {
        widen_f16(stored, values);
    }
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;
    const NORMAL_MIN: f32 = f16::MIN_POSITIVE.to_f32_const();

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl sealed::Sealed for bf16 {}

impl Format for bf16 {
    type Stored = bf16;
    const FORMAT: TokenFormat = TokenFormat::Element(ElementType::Bf16);

    /// The crate `half` keeps signalling NaNs, which costs a branch an element.
    fn widen_into(stored: &[bf16], values: &mut [f32]) {
        for (value, x) in values.iter_mut().zip(stored) {
            *value = f32::from_bits(u32::from(x.to_bits()) << 16);
        }
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl sealed::Sealed for f32 {}

impl Format for f32 {
    type Stored = f32;
    const FORMAT: TokenFormat = TokenFormat::Element(ElementType::F32);

    fn widen_into(stored: &[f32], values: &mut [f32]) {
        values.copy_from_slice(stored);
    }
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
    /// Each is split into two TF32 numbers; the product of the lower parts is left out.
    const N_PRODUCTS: usize = 3;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }
}

/// Elements as f32, by arithmetic that the compiler makes vectors of. The crate `half` calls a
/// function for each 8, and looks for what the CPU can do.
#[inline(always)]
pub(crate) fn widen_lanes<T: Element>(elements: &[T; LANES]) -> Lanes {
    let mut values = [0.0; LANES];
    match T::TYPE {
        ElementType::F32 => values.copy_from_slice(bytemuck::cast_slice(elements)),
        ElementType::Bf16 => {
            let bits: &[u16] = bytemuck::cast_slice(elements);
            for (value, &bits) in values.iter_mut().zip(bits) {
                *value = f32::from_bits(u32::from(bits) << 16);
            }
        }
        ElementType::F16 => {
            let bits: &[u16] = bytemuck::cast_slice(elements);
            values.iter_mut().zip(bits).for_each(|(value, &bits)| *value = of_f16(bits));
        }
    }
    values
}

/// The number that bits of f16 are: its exponent is put in place by a product, which subnormal
/// numbers need, and is exact.
#[inline(always)]
fn of_f16(bits: u16) -> f32 {
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7FFF));
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((254 - 15) << 23);
    // Infinity and NaN have the largest exponent of either type.
    let exponent = if magnitude >= 0x7C00 { 0xFF << 23 } else { 0 };
    f32::from_bits(value.to_bits() | exponent | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_have_the_order_of_their_bits() {
        fn check<T: Element>() {
            let of = |values: &[f32]| {
                let elements: Vec<T> = values.iter().map(|&x| T::from_f32(x)).collect();
                T::largest_magnitude(&elements)
            };
            assert_eq!(of(&[]), 0.0);
            assert_eq!(of(&[-0.0]).to_bits(), 0);
            assert_eq!(of(&[0.25, -2.0, 1.5]), 2.0);
            assert_eq!(of(&[3.0, f32::NEG_INFINITY]), f32::INFINITY);
            assert!(of(&[f32::INFINITY, -f32::NAN, 1.0]).is_nan());
        }
        check::<f16>();
        check::<bf16>();
        check::<f32>();
    }

    #[test]
    fn all_numbers_of_16_bits_are_widened_exactly() {
        for first in (0..=u16::MAX).step_by(LANES) {
            let bits: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
            for (found, bits) in widen_lanes(&bits.map(f16::from_bits)).into_iter().zip(bits) {
                let expected = f16::from_bits(bits).to_f32();
                let is_same = found.to_bits() == expected.to_bits();
                assert!(is_same || (found.is_nan() && expected.is_nan()), "f16 {bits:#x}");
            }
            for (found, bits) in widen_lanes(&bits.map(bf16::from_bits)).into_iter().zip(bits) {
                assert_eq!(found.to_bits() >> 16, u32::from(bits), "bf16 {bits:#x}");
            }
        }
    }
}
