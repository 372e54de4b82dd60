//! Codes in device memory of the caller, with their scales.

use std::sync::Arc;

use maxsim_kernels::abi::params::NORMS_PADDING;

use super::Device;
use super::raw::{RawRows, matrix, trusted_matrix};
use super::tokens::DeviceTokens;
use crate::cuda::CudaDevice;
use crate::cuda::CudaTokens;
use crate::cuda::RowScales;
use crate::cuda::read_rows;
use crate::error::{Error, Result};
use crate::runtime::arrival::Arrival;
use crate::runtime::on::On;
use crate::tokens::format::Quantized;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// The scales of codes in device memory of the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RawScales {
    /// Address of one f16 number per row.
    F16(u64),
    /// Address of one f32 number per row.
    F32(u64),
    /// One number for all rows, of [`Fp8`](crate::format::Fp8).
    Tensor(f32),
    /// Scales and minima of [`Int8Affine`](crate::format::Int8Affine).
    Affine {
        /// Address of one f16 number per row: the distance of two codes.
        scales: u64,
        /// Address of one f16 number per row: what code 0 stands for.
        mins: u64,
    },
}

impl RawScales {
    /// A copy of those of a layout's rows.
    fn read(self, device: &Arc<CudaDevice>, rows: usize) -> Result<Scales<'static>> {
        Ok(match self {
            RawScales::F16(address) => Scales::F16(read_rows(device, address, rows)?.into()),
            RawScales::F32(address) => Scales::F32(read_rows(device, address, rows)?.into()),
            RawScales::Tensor(scale) => Scales::Tensor(scale),
            RawScales::Affine { scales, mins } => Scales::Affine {
                scales: read_rows(device, scales, rows)?.into(),
                mins: read_rows(device, mins, rows)?.into(),
            },
        })
    }
}

impl<F: Quantized> DeviceTokens<F> {
    /// Compressed tokens in device memory of the caller: the codes without a copy.
    ///
    /// Codes and `layout` as the elements of [`DeviceTokens::from_raw_parts`]. Scales are
    /// read once here, wherever they are, and checked as those of [`Tokens`](crate::Tokens). Waits
    /// for the device.
    ///
    /// # Safety
    /// As [`DeviceTokens::from_raw_parts`]; of the scales' memory nothing is used after the call.
    ///
    /// # Errors
    /// The errors of [`DeviceTokens::from_raw_parts`]; [`Error::Shape`] for scales that the format
    /// does not have or that are negative or infinite.
    pub unsafe fn from_raw_codes(
        device: &Device,
        rows: RawRows,
        scales: RawScales,
        layout: TokenLayout,
    ) -> Result<DeviceTokens<F>> {
        let cuda = device.cuda_device("memory of a CUDA device")?;
        let (access, layout, valid) = matrix::<F>(cuda, rows, layout)?;
        let scales = scales.read(cuda, layout.rows())?;
        scales.check(F::FORMAT, layout.rows())?;
        scales.check_values(&layout, valid.as_deref())?;
        let operand = F::FORMAT.stored_operand();
        let tokens = CudaTokens::view(cuda, operand, &layout, access, rows.beside())?;
        tokens.set_scales(RowScales::of_scales(cuda, &scales, operand, &layout, Arrival::Awaited)?);
        Ok(DeviceTokens::foreign(device.clone(), layout.into(), On::Cuda(Arc::new(tokens))))
    }

    /// As [`DeviceTokens::from_raw_codes`], for callers that know their memory, with scales that
    /// GPUs read where they are: the driver is not asked about the memory, neither mask nor scales
    /// are read here, and nothing is waited for or copied. Where items lie one behind the other and
    /// are equally long, no memory is allocated on the device.
    ///
    /// `layout` as that of [`DeviceTokens::from_raw_unchecked`]. See
    /// [`Stream::quantize_into`](crate::stream::Stream::quantize_into) for an example.
    ///
    /// # Safety
    /// As [`DeviceTokens::from_raw_unchecked`], for the scales too. They must be numbers of 0 or
    /// more, or NaN, for valid tokens, and may be written between calls as the codes.
    ///
    /// # Errors
    /// The errors of [`DeviceTokens::from_raw_unchecked`]; [`Error::ForeignPointer`] for scales
    /// whose address is no multiple of 16.
    pub unsafe fn from_raw_codes_unchecked(
        device: &Device,
        rows: RawRows,
        scales: RawScaleWords,
        layout: impl Into<Arc<TokenLayout>>,
    ) -> Result<DeviceTokens<F>> {
        let (cuda, layout) = (device.cuda_device("memory of a CUDA device")?, layout.into());
        let access = trusted_matrix::<F>(rows, &layout)?;
        let scales = scales.checked()?;
        let operand = F::FORMAT.stored_operand();
        let tokens = CudaTokens::view(cuda, operand, &layout, access, rows.beside())?;
        tokens.set_scale_words(scales, F::FORMAT);
        Ok(DeviceTokens::foreign(device.clone(), layout, On::Cuda(Arc::new(tokens))))
    }
}

/// The scales of codes in device memory of the caller, in the form that GPUs read: a word of 4
/// bytes per row of the matrix, and behind the last row as many more as
/// [`RawScaleWords::len_bytes`] has room for, which hold anything.
///
/// A word is an f32, the row's scale; also where all rows have one. Of
/// [`Int8Affine`](crate::format::Int8Affine) it is two f16 numbers: the scale, at the lower
/// address, and the minimum.
///
/// ```
/// use maxsim::format::RawScaleWords;
///
/// assert!(RawScaleWords::len_bytes(1000) > 4000);
/// let words = RawScaleWords::new(0x7000_0000);
/// assert_eq!(words.address(), 0x7000_0000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RawScaleWords {
    address: u64,
}

impl RawScaleWords {
    /// Words from an address on, which is a multiple of 16.
    pub fn new(address: u64) -> RawScaleWords {
        RawScaleWords { address }
    }

    /// The address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the words of so many rows, with those behind the last row.
    pub const fn len_bytes(rows: usize) -> u64 {
        (rows as u64 + NORMS_PADDING as u64) * 4
    }

    /// The address, where kernels can copy from it.
    pub(crate) fn checked(self) -> Result<u64> {
        match self.address.is_multiple_of(WORDS_ALIGN_BYTES) {
            true => Ok(self.address),
            false => Err(Error::ForeignPointer {
                address: self.address,
                why: format!("scale words are aligned to {WORDS_ALIGN_BYTES} bytes"),
            }),
        }
    }
}

/// What scale words are aligned to: kernels copy 16 bytes at once.
const WORDS_ALIGN_BYTES: u64 = 16;
