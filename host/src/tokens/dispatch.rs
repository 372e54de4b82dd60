//! The lists of formats that rows are stored in: what runs generic code for a format that is known
//! at run time, and what has a variant for each, names them here and nowhere else.

pub use crate::{__with_element as with_element, __with_format as with_format};

/// Runs code for the Rust type of an [`ElementType`](crate::format::ElementType).
///
/// ```
/// use maxsim::format::{Element, ElementType, with_element};
///
/// fn rounded<T: Element>(x: f32) -> f32 {
///     T::from_f32(x).to_f32()
/// }
/// let narrow = |element| with_element!(element, T => rounded::<T>(0.1));
/// assert_eq!(narrow(ElementType::Bf16), 0.100_097_656);
/// assert_eq!(narrow(ElementType::F32), 0.1);
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __with_element {
    ($element:expr, $T:ident => $value:expr) => {
        match $element {
            $crate::format::ElementType::F16 => {
                type $T = $crate::half::f16;
                $value
            }
            $crate::format::ElementType::Bf16 => {
                type $T = $crate::half::bf16;
                $value
            }
            $crate::format::ElementType::F32 => {
                type $T = f32;
                $value
            }
        }
    };
}

/// Runs code for the Rust type of a [`TokenFormat`](crate::format::TokenFormat): an
/// [`Element`](crate::format::Element), or a [`Quantized`](crate::format::Quantized) format of
/// codes. Either of the two may be left out.
///
/// ```
/// use maxsim::format::{Element, ElementType, Quantized, TokenFormat, with_format};
///
/// fn size<F: maxsim::format::Format>() -> Option<usize> {
///     Some(size_of::<F::Stored>())
/// }
/// let size_of_row = |format: TokenFormat, dim: usize| {
///     with_format!(format, {
///         element T => size::<T>(),
///         codes F => size::<F>(),
///         _ => None,
///     })
///     .map(|n_bytes| n_bytes * dim)
/// };
/// assert_eq!(size_of_row(ElementType::F32.into(), 128), Some(512));
/// assert_eq!(size_of_row(TokenFormat::Fp8, 128), Some(128));
/// assert_eq!(size_of_row(TokenFormat::Residual(ElementType::F16), 128), None);
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __with_format {
    ($format:expr, {
        element $T:ident => $element:expr, codes $F:ident => $codes:expr, $other:pat => $rest:expr,
    }) => {
        match $format {
            $crate::format::TokenFormat::Element(element) => {
                $crate::__with_element!(element, $T => $element)
            }
            format => {
                $crate::__with_format!(format, { codes $F => $codes, $other => $rest, })
            }
        }
    };
    ($format:expr, { element $T:ident => $element:expr, $other:pat => $rest:expr, }) => {
        match $format {
            $crate::format::TokenFormat::Element(element) => {
                $crate::__with_element!(element, $T => $element)
            }
            $other => $rest,
        }
    };
    ($format:expr, { codes $F:ident => $codes:expr, $other:pat => $rest:expr, }) => {
        match $format {
            $crate::format::TokenFormat::Int8 => {
                type $F = $crate::format::Int8;
                $codes
            }
            $crate::format::TokenFormat::Int8Affine => {
                type $F = $crate::format::Int8Affine;
                $codes
            }
            $crate::format::TokenFormat::Fp8 => {
                type $F = $crate::format::Fp8;
                $codes
            }
            $other => $rest,
        }
    };
}

/// Runs code for the Rust types of the formats of both sides of a call
/// ([`ScorableWith`](crate::tokens::format::ScorableWith) says which go together).
macro_rules! with_pair {
    ($queries:expr, $documents:expr, $Q:ident, $D:ident => $value:expr, else $rest:expr) => {{
        use $crate::tokens::format::TokenFormat::{Element, Fp8, Int8, Int8Affine, Residual};
        macro_rules! pair {
            ($q:ty, $d:ty) => {{
                type $Q = $q;
                type $D = $d;
                $value
            }};
        }
        use half::{bf16, f16};
        use $crate::tokens::element::ElementType::{Bf16, F16, F32};
        use $crate::tokens::format as formats;
        match ($queries, $documents) {
            (Element(F16), Element(F16)) => pair!(f16, f16),
            (Element(Bf16), Element(Bf16)) => pair!(bf16, bf16),
            (Element(F32), Element(F32)) => pair!(f32, f32),
            (Int8, Int8) => pair!(formats::Int8, formats::Int8),
            (Fp8, Fp8) => pair!(formats::Fp8, formats::Fp8),
            (Element(F16), Int8Affine) => pair!(f16, formats::Int8Affine),
            (Element(Bf16), Int8Affine) => pair!(bf16, formats::Int8Affine),
            (Int8, Int8Affine) => pair!(formats::Int8, formats::Int8Affine),
            (Element(F16), Residual(_)) => pair!(f16, formats::Residual<f16>),
            (Element(Bf16), Residual(_)) => pair!(bf16, formats::Residual<bf16>),
            (Element(F32), Residual(_)) => pair!(f32, formats::Residual<f32>),
            _ => $rest,
        }
    }};
}
pub(crate) use with_pair;

/// Calls `$emit!` with every format that rows are stored in: `Variant(Rust type): what it is`, and
/// behind them with what else it is given.
macro_rules! for_each_format {
    ($emit:ident $($with:tt)*) => {
        $emit! {
            F16(half::f16): "Half precision.",
            Bf16(half::bf16): "bfloat16.",
            F32(f32): "Single precision.",
            Int8(crate::tokens::format::Int8): "Signed whole numbers with scales.",
            Int8Affine(crate::tokens::format::Int8Affine): "Whole numbers with scales and minima.",
            Fp8(crate::tokens::format::Fp8): "e4m3 numbers with scales.",
            ; $($with)*
        }
    };
}
pub(crate) use for_each_format;

/// As [`for_each_format`], and behind them with the residual-compressed ones, which handles have
/// too.
macro_rules! for_each_handle {
    ($emit:ident) => {
        $crate::tokens::dispatch::for_each_format! {
            $emit
            ResidualF16(crate::tokens::format::Residual<half::f16>):
                "Residual-compressed tokens, for half precision queries.",
            ResidualBf16(crate::tokens::format::Residual<half::bf16>):
                "Residual-compressed tokens, for bfloat16 queries.",
            ResidualF32(crate::tokens::format::Residual<f32>):
                "Residual-compressed tokens, for single precision queries.",
        }
    };
}
pub(crate) use for_each_handle;

/// Calls `$emit!` with every element type: `Variant(Rust type): what it is`.
macro_rules! for_each_element {
    ($emit:ident) => {
        $emit! {
            F16(half::f16): "IEEE 754 binary16, as ColBERT and fast-plaid store them.",
            Bf16(half::bf16): "bfloat16.",
            F32(f32): "IEEE 754 binary32, as next-plaid stores them.",
        }
    };
}
pub(crate) use for_each_element;

/// Evaluates an expression with the typed tokens in an
/// [`AnyTokens`](crate::tokens::any::AnyTokens).
macro_rules! with_host {
    ($any:expr, $tokens:ident => $value:expr) => {
        match $any {
            $crate::tokens::any::AnyTokens::F16($tokens) => $value,
            $crate::tokens::any::AnyTokens::Bf16($tokens) => $value,
            $crate::tokens::any::AnyTokens::F32($tokens) => $value,
            $crate::tokens::any::AnyTokens::Int8($tokens) => $value,
            $crate::tokens::any::AnyTokens::Int8Affine($tokens) => $value,
            $crate::tokens::any::AnyTokens::Fp8($tokens) => $value,
        }
    };
}
pub(crate) use with_host;

/// As [`with_host`], where they are elements.
macro_rules! with_host_elements {
    ($any:expr, $tokens:ident => $value:expr, $codes:ident => $rest:expr) => {
        match $any {
            $crate::tokens::any::AnyTokens::F16($tokens) => $value,
            $crate::tokens::any::AnyTokens::Bf16($tokens) => $value,
            $crate::tokens::any::AnyTokens::F32($tokens) => $value,
            $codes => $rest,
        }
    };
}
pub(crate) use with_host_elements;

/// Evaluates an expression with the typed handle in an
/// [`AnyDeviceTokens`](crate::device::any::AnyDeviceTokens).
macro_rules! with_handle {
    ($any:expr, $tokens:ident => $value:expr) => {
        match $any {
            AnyDeviceTokens::F16($tokens) => $value,
            AnyDeviceTokens::Bf16($tokens) => $value,
            AnyDeviceTokens::F32($tokens) => $value,
            AnyDeviceTokens::Int8($tokens) => $value,
            AnyDeviceTokens::Int8Affine($tokens) => $value,
            AnyDeviceTokens::Fp8($tokens) => $value,
            AnyDeviceTokens::ResidualF16($tokens) => $value,
            AnyDeviceTokens::ResidualBf16($tokens) => $value,
            AnyDeviceTokens::ResidualF32($tokens) => $value,
        }
    };
}
pub(crate) use with_handle;
