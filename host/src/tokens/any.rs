//! Tokens whose format is known only when a program runs: those of a file, or of a foreign array.
//!
//! [`Tokens`] and [`DeviceTokens`](crate::DeviceTokens) have their format in their type, so that
//! what does not go together does not compile. Where the format is data, [`AnyTokens`] and
//! [`AnyDeviceTokens`](crate::format::AnyDeviceTokens) hold tokens of whichever, and the calls of
//! [`Device`](crate::Device) that end in `_any` check at run time what the types say elsewhere.
//!
//! ```
//! use maxsim::format::{AnyDeviceTokens, AnyTokensRef, ScaleType, TokenFormat};
//! use maxsim::stream::Queue;
//! use maxsim::{AnyTokens, Device, Pairing, ScoreOptions, Tokens};
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
//! let (cross, options) = (Pairing::cross(), ScoreOptions::default());
//! let again = device.score_any(sides[0], sides[1], &cross, &options)?;
//! assert_eq!(again.values(), scores.values());
//! assert_eq!(device.plan_any(sides[0], sides[1], &cross, &options)?.name(), "cpu");
//! // In stream order, of handles alone.
//! let queries = device.upload_any(&queries)?;
//! let work = device.prepare_any(&queries, &handle, &cross, &options)?;
//! let mut enqueued = work.new_scores()?;
//! device.stream()?.score_any_into(&queries, &handle, &work, &mut enqueued)?;
//! assert_eq!(enqueued.read()?.values(), scores.values());
//! # Ok::<(), maxsim::Error>(())
//! ```

use std::ops::Range;

use super::Tokens;
use super::dispatch::{for_each_format, with_format, with_host, with_host_elements};
use super::format::{Quantized, TokenFormat};
use super::layout::TokenLayout;
use super::scales::ScaleType;
use crate::error::{Error, Result};

macro_rules! any_tokens {
    ($($variant:ident($format:ty): $what:literal,)* ;) => {
        /// [`Tokens`] of any format.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        #[must_use]
        pub enum AnyTokens<'a> {
            $(
                #[doc = $what]
                $variant(Tokens<'a, $format>),
            )*
        }

        $(impl<'a> From<Tokens<'a, $format>> for AnyTokens<'a> {
            fn from(tokens: Tokens<'a, $format>) -> Self {
                AnyTokens::$variant(tokens)
            }
        })*
    };
}
for_each_format!(any_tokens);

impl<'a> AnyTokens<'a> {
    /// Storage format of the tokens.
    pub fn format(&self) -> TokenFormat {
        with_host!(self, tokens => tokens.format())
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        with_host!(self, tokens => tokens.layout())
    }

    /// Borrows some consecutive items, as [`Tokens::items`].
    pub fn items(&self, items: Range<usize>) -> Result<AnyTokens<'_>> {
        Ok(with_host!(self, tokens => tokens.items(items)?.into()))
    }

    /// Compressed tokens of elements, as [`Tokens::quantize`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the tokens are codes already, or `format` is not int8,
    /// int8-affine or fp8; those of [`Tokens::quantize`].
    pub fn quantize(&self, format: TokenFormat, scales: ScaleType) -> Result<AnyTokens<'static>> {
        fn of<F: Quantized>(tokens: &AnyTokens<'_>, scales: ScaleType) -> Result<AnyTokens<'static>>
        where
            AnyTokens<'static>: From<Tokens<'static, F>>,
        {
            with_host_elements!(
                tokens,
                tokens => Ok(tokens.quantize::<F>(scales)?.into()),
                codes => Err(no_codes(codes.format(), F::FORMAT))
            )
        }
        with_format!(format, {
            codes F => of::<F>(self, scales),
            format => Err(no_codes(self.format(), format)),
        })
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
