//! Compresses tokens on the device that holds them.

use std::sync::Arc;

use crate::cpu::tokens::HostTokens;
use crate::device::tokens::DeviceTokens;
use crate::error::Result;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::format::Quantized;
use crate::tokens::layout::limits::check_dim;
use crate::tokens::quantize::check_scales;
use crate::tokens::scales::ScaleType;

impl<T: Element> DeviceTokens<T> {
    /// Compresses the tokens on the device that holds them: layout, mask and weights stay; codes,
    /// scales and minima are those of [`Tokens::quantize`](crate::Tokens::quantize) to the bit.
    /// Foreign memory (`DeviceTokens::from_raw_parts`) is read, and its mask and weights copied, so
    /// that the result does not depend on it.
    ///
    /// Waits until the codes are there; with [`ScaleType::Tensor`] the matrix is read for the
    /// maximum before. To read codes back, there is [`DeviceTokens::download`].
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let device = Device::cpu();
    /// let tokens = device.upload(&Tokens::padded(&[0.6f32, 0.8, -0.28, 0.96], 2, 1, 2)?)?;
    /// let codes = tokens.quantize::<Int8>(ScaleType::F16)?;
    /// let scores = device.score(&codes, &codes, &Pairing::cross())?;
    /// assert!((scores.values()[1] - 0.6).abs() < 0.01);
    /// assert_eq!(codes.download()?.data(), [95, 127, -37, 127]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where the format has no such scales,
    /// [`crate::Error::DeviceMemory`] or [`crate::Error::HostMemory`] where there is no room.
    pub fn quantize<F: Quantized>(&self, scales: ScaleType) -> Result<DeviceTokens<F>> {
        check_dim(self.layout().dim())?;
        check_scales::<F>(scales)?;
        self.layout().check_read("tokens")?;
        let storage = match self.storage() {
            On::Cpu(tokens) => {
                let tokens = tokens.tokens(self.layout())?;
                let (codes, scales) = F::codes_of(&tokens, scales)?;
                On::Cpu(Arc::new(HostTokens::of_codes(codes, scales, tokens.beside())?))
            }
            On::Cuda(tokens) => {
                let device = self.device().cuda_device("tokens of a CUDA device")?;
                On::Cuda(Arc::new(tokens.quantize::<T, F>(device, self.layout(), scales)?))
            }
        };
        Ok(self.codes(storage))
    }
}
