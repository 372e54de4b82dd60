//! Codes made of rows in device memory, by the formulas of [`maxsim_kernels::abi::quantize`].
//!
//! The kernel writes codes at their pitch with zeros behind each row, scales and minima in the
//! kernels' form, a word per row, and a copy of the mask: the new tokens share no memory with the
//! old ones, whose weights are copied too. One scale for all rows takes a kernel before it, which
//! finds the largest magnitude. Kernels and memory are made ready once, before calls, as that
//! allocates and waits; in memory of the caller codes are made in the order of a stream.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward::{Rows, WARPS};
use maxsim_kernels::abi::params::quantize::{LargestParams, QuantizeParams, lanes, pitch_bytes};
use maxsim_kernels::abi::quantize::fp8_scale;
use maxsim_kernels::table::auxiliary::{
    QUANTIZE, QUANTIZE_AFFINE, QUANTIZE_LARGEST, QUANTIZE_TENSOR,
};

use super::row_scales::{RowScales, Source};
use super::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::runtime::alloc::filled;
use crate::tokens::element::Element;
use crate::tokens::format::{Quantized, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::ScaleType;

impl CudaTokens {
    /// Compresses these tokens, of elements `T` in a layout, to codes of format `F` with scales of
    /// a type that the format has.
    pub(crate) fn quantize<T: Element, F: Quantized>(
        &self,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
        scales: ScaleType,
    ) -> Result<CudaTokens> {
        let (family, source) = match (F::FORMAT, scales) {
            (TokenFormat::Int8Affine, _) => (&QUANTIZE_AFFINE, Source::Affine),
            (TokenFormat::Fp8, ScaleType::Tensor) => {
                let largest = self.largest_of_valid::<T>(device, layout)?;
                (&QUANTIZE_TENSOR, Source::Tensor(fp8_scale(largest)))
            }
            _ => (&QUANTIZE, Source::Rows(scales)),
        };
        let n_rows = layout.rows();
        let pitch_bytes = pitch_bytes(layout.dim()) as u64;
        let codes = Buffer::new(device, n_rows as u64 * pitch_bytes)?;
        let row_scales = RowScales::with_room(device, source, n_rows)?;
        let mask = match self.is_masked() {
            true => Some(Buffer::new(device, n_rows as u64)?),
            false => None,
        };
        let mask_copy = mask.as_ref().map_or(0, Buffer::address);
        let params = QuantizeParams {
            mask: self.matrix().mask,
            mask_copy,
            scale: match source {
                Source::Tensor(scale) => scale,
                _ => 0.0,
            },
            ..self.code_params::<T>(F::FORMAT, scales, [codes.address(), row_scales.address()])
        };
        let kernel = device.kernel_of(family, T::TYPE)?;
        device.until_done(|stream| {
            let entered = device.enter()?;
            // SAFETY: the buffers were just made, for these rows, and nothing else has them.
            unsafe { row_scales.clear_padding(&entered, stream.raw(), n_rows)? };
            // SAFETY: as above; the rows and their mask are there while `self` is borrowed, and the
            // call waits.
            unsafe { write_codes(&entered, stream.raw(), &kernel, &params) }
        })?;
        let access = Access { base: codes.address(), pitch_bytes, n_centroids: 0 };
        let weights = self.copied_weights(device)?;
        let weights_copy = weights.as_ref().map_or(0, Buffer::address);
        let owned = mask.into_iter().chain(weights).chain([codes]).collect();
        let operand = F::FORMAT.stored_operand();
        let made = CudaTokens::new(device, operand, layout, access, mask_copy, owned)?;
        let made = made.with_weights(weights_copy);
        made.set_scales(row_scales);
        Ok(made)
    }

    /// A copy of the weights in memory of its own, where tokens have any.
    fn copied_weights(&self, device: &Arc<CudaDevice>) -> Result<Option<Buffer>> {
        // SAFETY: there is an f32 for each row.
        unsafe { self.copied(device, self.weights(), size_of::<f32>()) }
    }

    /// A copy of the mask in memory of its own, where tokens have one.
    pub(in crate::cuda) fn copied_mask(&self, device: &Arc<CudaDevice>) -> Result<Option<Buffer>> {
        let mask = if self.is_masked() { self.matrix().mask } else { 0 };
        // SAFETY: there is a byte for each row.
        unsafe { self.copied(device, mask, 1) }
    }

    /// A copy of what is beside the rows at an address, if it is not 0. By way of the host: a few
    /// bytes of each row, in a call that waits.
    ///
    /// # Safety
    /// There must be so many bytes for each row.
    unsafe fn copied(
        &self,
        device: &Arc<CudaDevice>,
        address: u64,
        bytes_per_row: usize,
    ) -> Result<Option<Buffer>> {
        if address == 0 {
            return Ok(None);
        }
        let mut bytes = filled((self.n_rows() * bytes_per_row) as u64, 0u8)?;
        // SAFETY: the caller's promise.
        unsafe { download(&device.enter()?, address, &mut bytes)? };
        upload(device, &bytes).map(Some)
    }

    /// Enqueues the kernel that compresses these tokens, of elements `T`, to codes of a format at
    /// an address, with scales at another. Masks do not matter to it.
    ///
    /// # Safety
    /// The addresses must be those of memory of the stream's device with the rows' codes at the
    /// pitch of [`pitch_bytes`], aligned to 16 bytes, and a word per row. Until the kernel has run
    /// nothing else may use them, and the tokens must live.
    pub(crate) unsafe fn quantize_into<T: Element>(
        &self,
        stream: &mut CudaStream,
        format: TokenFormat,
        scales: ScaleType,
        to: [u64; 2],
    ) -> Result<()> {
        let family = match format {
            TokenFormat::Int8Affine => &QUANTIZE_AFFINE,
            _ => &QUANTIZE,
        };
        let device = stream.device().clone();
        let kernel = device.kernel_of(family, T::TYPE)?;
        let params = self.code_params::<T>(format, scales, to);
        let entered = device.enter()?;
        stream.order(&entered)?;
        // SAFETY: the caller's promise.
        unsafe { write_codes(&entered, stream.raw(), &kernel, &params) }
    }

    /// The parameters of a kernel that compresses these tokens, of elements `T`, to codes and
    /// scales at these addresses: each row with a scale of its own, without a copy of their mask.
    fn code_params<T: Element>(
        &self,
        format: TokenFormat,
        scales: ScaleType,
        [codes, scale_words]: [u64; 2],
    ) -> QuantizeParams {
        let dim = self.rows().dim as usize;
        let (lanes_log2, n_columns) = lanes(dim, size_of::<T>());
        QuantizeParams {
            rows: Rows { lanes_log2, n_columns, ..self.rows() },
            codes,
            pitch_bytes: pitch_bytes(dim) as u64,
            scales: scale_words,
            mask: 0,
            mask_copy: 0,
            n_rows: self.n_rows() as u32,
            format: match format {
                TokenFormat::Fp8 => QuantizeParams::FP8,
                _ => QuantizeParams::INT8,
            },
            f16_scales: u32::from(scales == ScaleType::F16),
            scale: 0.0,
        }
    }

    /// The largest finite magnitude of all valid tokens, of elements `T` in a layout, as bits.
    fn largest_of_valid<T: Element>(
        &self,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
    ) -> Result<u32> {
        let used = layout.used_rows()?;
        let used = match used.iter().all(|&is_used| is_used) {
            true => None,
            false => Some(upload(device, bytemuck::cast_slice(&used))?),
        };
        let largest = Buffer::zeroed(device, size_of::<u32>() as u64)?;
        let params = LargestParams {
            rows: self.rows(),
            mask: self.matrix().mask,
            used: used.as_ref().map_or(0, Buffer::address),
            largest: largest.address(),
            n_rows: layout.rows() as u32,
            reserved: 0,
        };
        let kernel = device.kernel_of(&QUANTIZE_LARGEST, T::TYPE)?;
        // As many CTAs as run at once, since each of their warps writes to one word in the end.
        let n_blocks = params.n_rows.div_ceil(WARPS * (32 >> params.rows.lanes_log2));
        let blocks = kernel.entry().resources().blocks;
        let grid = n_blocks.min((device.limits().n_multiprocessors * blocks) as u32);
        let mut bits = [0u32];
        device.on_idle_stream(|stream| {
            let entered = device.enter()?;
            if grid > 0 {
                // SAFETY: the buffers were just made, for these rows; the rows and their mask are
                // there while `self` is borrowed, and the call waits; the kernel takes this struct.
                unsafe { start(&entered, stream.raw(), &kernel, grid, 0, &params)? };
            }
            stream.synchronize()?;
            // SAFETY: the buffer has these four bytes.
            unsafe { download(&entered, largest.address(), bytemuck::cast_slice_mut(&mut bits)) }
        })?;
        Ok(bits[0])
    }
}

/// Enqueues a kernel that makes codes.
///
/// # Safety
/// The rows that the parameters name, and the memory for their codes, scales and mask, must be
/// there until the kernel has run, and nothing else may use what it writes.
unsafe fn write_codes(
    entered: &Entered<'_>,
    stream: CUstream,
    kernel: &Kernel<QuantizeParams>,
    params: &QuantizeParams,
) -> Result<()> {
    let grid = params.n_rows.div_ceil(WARPS * (32 >> params.rows.lanes_log2));
    if grid == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise; there is a warp for all rows; the kernel takes this struct.
    unsafe { start(entered, stream, kernel, grid, 0, params) }
}
