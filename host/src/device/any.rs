//! Handles whose format is known only when a program runs, and the sides of their calls.

use half::{bf16, f16};

use super::Device;
use super::tokens::{DeviceTokens, TokensRef};
use crate::tokens::any::AnyTokens;
use crate::tokens::format::{Format, Fp8, Int8, Int8Affine, Residual, TokenFormat};
use crate::tokens::layout::TokenLayout;

/// [`DeviceTokens`] of any format.
#[derive(Debug)]
#[non_exhaustive]
#[must_use]
pub enum AnyDeviceTokens {
    /// Half precision.
    F16(DeviceTokens<f16>),
    /// bfloat16.
    Bf16(DeviceTokens<bf16>),
    /// Single precision.
    F32(DeviceTokens<f32>),
    /// Signed whole numbers with scales.
    Int8(DeviceTokens<Int8>),
    /// Whole numbers with scales and minima.
    Int8Affine(DeviceTokens<Int8Affine>),
    /// e4m3 numbers with scales.
    Fp8(DeviceTokens<Fp8>),
    /// Residual-compressed tokens, for half precision queries.
    ResidualF16(DeviceTokens<Residual<f16>>),
    /// Residual-compressed tokens, for bfloat16 queries.
    ResidualBf16(DeviceTokens<Residual<bf16>>),
    /// Residual-compressed tokens, for single precision queries.
    ResidualF32(DeviceTokens<Residual<f32>>),
}

/// One side of a call: [`AnyTokens`] or [`AnyDeviceTokens`].
#[derive(Clone, Copy, Debug)]
pub enum AnyTokensRef<'a> {
    /// Tokens in host memory, uploaded for this call where that is needed.
    Host(&'a AnyTokens<'a>),
    /// Tokens on the device.
    Device(&'a AnyDeviceTokens),
}

/// Evaluates an expression with the typed handle in an [`AnyDeviceTokens`].
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

/// A format that [`AnyTokens`] and [`AnyDeviceTokens`] can hold.
pub(crate) trait AnyFormat: Format {
    /// The tokens, where this is their format.
    fn of<'a>(tokens: AnyTokensRef<'a>) -> Option<TokensRef<'a, Self>>;
}

macro_rules! stored_formats {
    ($($format:ty: $variant:ident),*) => {
        $(impl AnyFormat for $format {
            fn of(tokens: AnyTokensRef<'_>) -> Option<TokensRef<'_, Self>> {
                match tokens {
                    AnyTokensRef::Host(AnyTokens::$variant(tokens)) => {
                        Some(TokensRef::Host(tokens))
                    }
                    AnyTokensRef::Device(AnyDeviceTokens::$variant(tokens)) => {
                        Some(TokensRef::Device(tokens))
                    }
                    _ => None,
                }
            }
        }

        device_formats!(@from $format: $variant);)*
    };
}

macro_rules! device_formats {
    (@from $format:ty: $variant:ident) => {
        impl From<DeviceTokens<$format>> for AnyDeviceTokens {
            fn from(tokens: DeviceTokens<$format>) -> Self {
                AnyDeviceTokens::$variant(tokens)
            }
        }
    };
    ($($format:ty: $variant:ident),*) => {
        $(impl AnyFormat for $format {
            fn of(tokens: AnyTokensRef<'_>) -> Option<TokensRef<'_, Self>> {
                match tokens {
                    AnyTokensRef::Device(AnyDeviceTokens::$variant(tokens)) => {
                        Some(TokensRef::Device(tokens))
                    }
                    _ => None,
                }
            }
        }

        device_formats!(@from $format: $variant);)*
    };
}

stored_formats!(f16: F16, bf16: Bf16, f32: F32, Int8: Int8, Int8Affine: Int8Affine, Fp8: Fp8);
device_formats!(
    Residual<f16>: ResidualF16,
    Residual<bf16>: ResidualBf16,
    Residual<f32>: ResidualF32
);

impl AnyDeviceTokens {
    /// What the tokens are stored as.
    pub fn format(&self) -> TokenFormat {
        with_handle!(self, tokens => tokens.format())
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        with_handle!(self, tokens => tokens.layout())
    }

    /// Where the tokens are.
    pub fn device(&self) -> &Device {
        with_handle!(self, tokens => tokens.device())
    }
}

impl<'a> AnyTokensRef<'a> {
    /// What the tokens are stored as.
    pub fn format(self) -> TokenFormat {
        match self {
            AnyTokensRef::Host(tokens) => tokens.format(),
            AnyTokensRef::Device(tokens) => tokens.format(),
        }
    }

    /// Shape and items.
    pub fn layout(self) -> &'a TokenLayout {
        match self {
            AnyTokensRef::Host(tokens) => tokens.layout(),
            AnyTokensRef::Device(tokens) => tokens.layout(),
        }
    }
}

impl<'a> From<&'a AnyTokens<'a>> for AnyTokensRef<'a> {
    fn from(tokens: &'a AnyTokens<'a>) -> Self {
        AnyTokensRef::Host(tokens)
    }
}

impl<'a> From<&'a AnyDeviceTokens> for AnyTokensRef<'a> {
    fn from(tokens: &'a AnyDeviceTokens) -> Self {
        AnyTokensRef::Device(tokens)
    }
}

impl AsRef<TokenLayout> for AnyDeviceTokens {
    fn as_ref(&self) -> &TokenLayout {
        self.layout()
    }
}
