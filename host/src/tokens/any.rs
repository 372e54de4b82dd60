//! Tokens whose format is known only when a program runs: those of a file, or of a foreign array.
//!
//! [`Tokens`] and [`DeviceTokens`](crate::DeviceTokens) have their format in their type, so that
//! what does not go together does not compile. Where the format is data, [`AnyTokens`] and
//! [`AnyDeviceTokens`](crate::format::AnyDeviceTokens) hold tokens of whichever, and the calls of
//! [`Device`](crate::Device) that end in `_any` check at run time what the types say elsewhere.
//!
//! ```
//! use maxsim::format::{AnyDeviceTokens, AnyTokensRef, ScaleType, TokenFormat};
//! use maxsim::{AnyTokens, Device, Pairing, Tokens};
//!
//! let queries = AnyTokens::from(Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?);
//! let documents = AnyTokens::from(Tokens::padded(&[0.0f32, 1.0, 0.5, 0.5], 2, 1, 2)?);
//! let device = Device::cpu();
//! let scores = device.score_any(&queries, &documents, &Pairing::cross(), &Default::default())?;
//! assert_eq!(scores.values(), [0.0, 0.5]);
//! // The same of codes.
//! let codes = |tokens: &AnyTokens<'_>| tokens.quantize(TokenFormat::Int8, ScaleType::F32);
//! let [queries, documents] = [codes(&queries)?, codes(&documents)?];
//! let scores = device.score_any(&queries, &documents, &Pairing::cross(), &Default::default())?;
//! assert!((scores.values()[1] - 0.5).abs() < 1e-6);
//! // And of a handle.
//! let handle: AnyDeviceTokens = device.upload_any(&documents)?;
//! let sides: [AnyTokensRef<'_>; 2] = [(&queries).into(), (&handle).into()];
//! assert!(sides.iter().all(|side| side.format() == TokenFormat::Int8));
//! let again = device.score_any(sides[0], sides[1], &Pairing::cross(), &Default::default())?;
//! assert_eq!(again.values(), scores.values());
//! # Ok::<(), maxsim::Error>(())
//! ```

use std::ops::Range;

use half::{bf16, f16};

use super::Tokens;
use super::element::Element;
use super::format::{Fp8, Int8, Int8Affine, TokenFormat};
use super::layout::TokenLayout;
use super::scales::ScaleType;
use crate::error::{Error, Result};

/// [`Tokens`] of any format.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub enum AnyTokens<'a> {
    /// Half precision.
    F16(Tokens<'a, f16>),
    /// bfloat16.
    Bf16(Tokens<'a, bf16>),
    /// Single precision.
    F32(Tokens<'a, f32>),
    /// Signed whole numbers with scales.
    Int8(Tokens<'a, Int8>),
    /// Whole numbers with scales and minima.
    Int8Affine(Tokens<'a, Int8Affine>),
    /// e4m3 numbers with scales.
    Fp8(Tokens<'a, Fp8>),
}

/// Evaluates an expression with the typed tokens in an [`AnyTokens`].
macro_rules! with_host {
    ($any:expr, $tokens:ident => $value:expr) => {
        match $any {
            AnyTokens::F16($tokens) => $value,
            AnyTokens::Bf16($tokens) => $value,
            AnyTokens::F32($tokens) => $value,
            AnyTokens::Int8($tokens) => $value,
            AnyTokens::Int8Affine($tokens) => $value,
            AnyTokens::Fp8($tokens) => $value,
        }
    };
}
pub(crate) use with_host;

macro_rules! from_tokens {
    ($($format:ty: $variant:ident),*) => {
        $(impl<'a> From<Tokens<'a, $format>> for AnyTokens<'a> {
            fn from(tokens: Tokens<'a, $format>) -> Self {
                AnyTokens::$variant(tokens)
            }
        })*
    };
}

from_tokens!(f16: F16, bf16: Bf16, f32: F32, Int8: Int8, Int8Affine: Int8Affine, Fp8: Fp8);

impl<'a> AnyTokens<'a> {
    /// What the tokens are stored as.
    pub fn format(&self) -> TokenFormat {
        with_host!(self, tokens => tokens.format())
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        with_host!(self, tokens => tokens.layout())
    }

    /// Some consecutive items, borrowed, as [`Tokens::items`].
    pub fn items(&self, items: Range<usize>) -> Result<AnyTokens<'_>> {
        Ok(with_host!(self, tokens => tokens.items(items)?.into()))
    }

    /// Compressed tokens of elements, as [`Tokens::quantize`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the tokens are codes already, or `format` is not int8,
    /// int8-affine or fp8; those of [`Tokens::quantize`].
    pub fn quantize(&self, format: TokenFormat, scales: ScaleType) -> Result<AnyTokens<'static>> {
        fn of<T: Element>(
            tokens: &Tokens<'_, T>,
            format: TokenFormat,
            scales: ScaleType,
        ) -> Result<AnyTokens<'static>> {
            match format {
                TokenFormat::Int8 => Ok(tokens.quantize::<Int8>(scales)?.into()),
                TokenFormat::Int8Affine => Ok(tokens.quantize::<Int8Affine>(scales)?.into()),
                TokenFormat::Fp8 => Ok(tokens.quantize::<Fp8>(scales)?.into()),
                format => Err(no_codes(T::TYPE.into(), format)),
            }
        }
        match self {
            AnyTokens::F16(tokens) => of(tokens, format, scales),
            AnyTokens::Bf16(tokens) => of(tokens, format, scales),
            AnyTokens::F32(tokens) => of(tokens, format, scales),
            codes => Err(no_codes(codes.format(), format)),
        }
    }
}

impl AsRef<TokenLayout> for AnyTokens<'_> {
    fn as_ref(&self) -> &TokenLayout {
        self.layout()
    }
}

fn no_codes(found: TokenFormat, wanted: TokenFormat) -> Error {
    Error::Unsupported {
        what: format!("compressing {found} tokens to {wanted}"),
        why: "f16, bf16 and f32 tokens are compressed, to int8, int8-affine or fp8".into(),
    }
}
