//! Handles whose format is known only when a program runs, and the sides of their calls.

use std::any::Any;

use super::Device;
use super::stream::Stream;
use super::tokens::{DeviceTokens, TokensRef};
use crate::error::Result;
use crate::tokens::Tokens;
use crate::tokens::any::AnyTokens;
use crate::tokens::dispatch::{for_each_handle, with_handle};
use crate::tokens::format::{Format, TokenFormat};
use crate::tokens::layout::TokenLayout;

/// One side of a call: [`AnyTokens`] or [`AnyDeviceTokens`].
#[derive(Clone, Copy, Debug)]
pub enum AnyTokensRef<'a> {
    /// Tokens in host memory, uploaded for this call where that is needed.
    Host(&'a AnyTokens<'a>),
    /// Tokens on the device.
    Device(&'a AnyDeviceTokens),
}

/// A format that [`AnyDeviceTokens`] can hold.
pub(crate) trait AnyFormat: Format {
    /// The tokens in host memory, where this is their format; [`AnyTokens`] holds no residuals.
    fn of_host<'a>(_: &'a AnyTokens<'a>) -> Option<&'a Tokens<'a, Self>> {
        None
    }
}

macro_rules! any_device_tokens {
    ($($stored:ident($format:ty): $what:literal,)* ;
        $($residual:ident($of:ty): $of_what:literal,)*) => {
        /// [`DeviceTokens`] of any format.
        #[derive(Debug)]
        #[non_exhaustive]
        #[must_use]
        pub enum AnyDeviceTokens {
            $(
                #[doc = $what]
                $stored(DeviceTokens<$format>),
            )*
            $(
                #[doc = $of_what]
                $residual(DeviceTokens<$of>),
            )*
        }

        $(impl AnyFormat for $format {
            fn of_host<'a>(tokens: &'a AnyTokens<'a>) -> Option<&'a Tokens<'a, Self>> {
                match tokens {
                    AnyTokens::$stored(tokens) => Some(tokens),
                    _ => None,
                }
            }
        })*

        $(impl AnyFormat for $of {})*

        any_device_tokens!(@from $($stored($format))* $($residual($of))*);
    };
    (@from $($variant:ident($format:ty))*) => {
        $(impl From<DeviceTokens<$format>> for AnyDeviceTokens {
            fn from(tokens: DeviceTokens<$format>) -> Self {
                AnyDeviceTokens::$variant(tokens)
            }
        })*
    };
}
for_each_handle!(any_device_tokens);

impl AnyDeviceTokens {
    /// Storage format of the tokens.
    pub fn format(&self) -> TokenFormat {
        with_handle!(self, tokens => tokens.format())
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        with_handle!(self, tokens => tokens.layout())
    }

    /// Device that holds the tokens.
    pub fn device(&self) -> &Device {
        with_handle!(self, tokens => tokens.device())
    }

    /// The handle with its format in its type, where that is the format.
    ///
    /// ```
    /// use maxsim::format::AnyDeviceTokens;
    /// use maxsim::{Device, Tokens};
    ///
    /// let handle = Device::cpu().upload(&Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?)?;
    /// let handle = AnyDeviceTokens::from(handle);
    /// assert!(handle.typed::<f32>().is_some());
    /// assert!(handle.typed::<maxsim::half::f16>().is_none());
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn typed<F: Format>(&self) -> Option<&DeviceTokens<F>> {
        with_handle!(self, tokens => (tokens as &dyn Any).downcast_ref())
    }
}

impl<'a> AnyTokensRef<'a> {
    /// The tokens with their format in their type, where that is the format.
    pub(crate) fn typed<F: AnyFormat>(self) -> Option<TokensRef<'a, F>> {
        match self {
            AnyTokensRef::Host(tokens) => F::of_host(tokens).map(TokensRef::Host),
            AnyTokensRef::Device(tokens) => tokens.typed().map(TokensRef::Device),
        }
    }

    /// Storage format of the tokens.
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

impl Stream {
    /// As [`Stream::read_roof`], of a handle of any format.
    ///
    /// # Errors
    /// The errors of [`Stream::read_roof`].
    pub fn read_roof_any(
        &mut self,
        tokens: &AnyDeviceTokens,
        blocks_per_multiprocessor: usize,
    ) -> Result<()> {
        with_handle!(tokens, tokens => self.read_roof(tokens, blocks_per_multiprocessor))
    }
}
