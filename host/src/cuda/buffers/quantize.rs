//! Codes made of rows in device memory, by the formulas of [`maxsim_kernels::abi::quantize`].
//!
//! The kernel writes codes at their pitch with zeros behind each row, scales and minima in the
//! kernels' form, a word per row, and a copy of the mask: the new tokens share no memory with the
//! old ones. One scale for all rows takes a kernel before it, which finds the largest magnitude.
//! Kernels and memory are made ready once, before calls, as that allocates and waits.

use std::sync::Arc;

use maxsim_kernels::abi::params::backward::{Rows, WARPS};
use maxsim_kernels::abi::params::quantize::{LargestParams, QuantizeParams, lanes, pitch_bytes};
use maxsim_kernels::abi::quantize::fp8_scale;
use maxsim_kernels::table::auxiliary::{
    QUANTIZE, QUANTIZE_AFFINE, QUANTIZE_LARGEST, QUANTIZE_TENSOR,
};

use super::row_scales::{RowScales, Source};
use super::tokens::CudaTokens;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download};
use crate::cuda::driver::transfer::upload;
use crate::error::Result;
use crate::plan::limits::Access;
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
        let (n_rows, dim) = (layout.rows(), layout.dim());
        let pitch_bytes = pitch_bytes(dim) as u64;
        let codes = Buffer::new(device, n_rows as u64 * pitch_bytes)?;
        let row_scales = RowScales::with_room(device, source, n_rows)?;
        let mask = match self.is_masked() {
            true => Some(Buffer::new(device, n_rows as u64)?),
            false => None,
        };
        let mask_copy = mask.as_ref().map_or(0, Buffer::address);
        let (lanes_log2, n_columns) = lanes(dim, size_of::<T>());
        let params = QuantizeParams {
            rows: Rows { lanes_log2, n_columns, ..self.rows() },
            codes: codes.address(),
            pitch_bytes,
            scales: row_scales.address(),
            mask: self.matrix().mask,
            mask_copy,
            n_rows: n_rows as u32,
            format: match F::FORMAT {
                TokenFormat::Fp8 => QuantizeParams::FP8,
                _ => QuantizeParams::INT8,
            },
            f16_scales: u32::from(scales == ScaleType::F16),
            scale: match source {
                Source::Tensor(scale) => scale,
                _ => 0.0,
            },
        };
        let kernel = device.kernel_of(family, T::TYPE)?;
        let grid = params.n_rows.div_ceil(WARPS * (32 >> lanes_log2));
        device.on_idle_stream(|stream| {
            let entered = device.enter()?;
            // SAFETY: the buffers were just made, for these rows, and nothing else has them.
            unsafe { row_scales.clear_padding(&entered, stream.raw(), n_rows)? };
            if grid > 0 {
                // SAFETY: as above; the rows and their mask are there while `self` is borrowed, and
                // the call waits; there is a warp for all rows; the kernel takes this struct.
                unsafe { start(&entered, stream.raw(), &kernel, grid, 0, &params)? };
            }
            stream.synchronize()
        })?;
        let access = Access { base: codes.address(), pitch_bytes, n_centroids: 0 };
        let owned = mask.into_iter().chain([codes]).collect();
        let operand = F::FORMAT.stored_operand();
        let made = CudaTokens::new(device, operand, layout, access, mask_copy, owned)?;
        made.set_scales(row_scales);
        Ok(made)
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
