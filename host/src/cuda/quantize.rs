//! Codes made of rows in device memory, by the formulas of [`maxsim_kernels::quantize`].
//!
//! The kernel writes codes at their pitch with zeros behind each row, scales as kernels take them,
//! an f32 per row, and a copy of the mask: the new tokens share nothing with the old ones. Made
//! once, before calls: it allocates and waits.

use std::sync::Arc;

use maxsim_kernels::element::Operand;
use maxsim_kernels::gradient::{Rows, THREADS, WARPS};
use maxsim_kernels::quantize::{QUANTIZE, QuantizeParams, lanes, pitch_bytes};

use super::context::CudaDevice;
use super::launch::start;
use super::memory::Buffer;
use super::norms::Norms;
use super::tokens::CudaTokens;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::format::{Format, TokenFormat};
use crate::plan::Access;
use crate::scales::ScaleType;
use crate::tokens::TokenLayout;
use crate::warm_up::gradient_row;

impl CudaTokens {
    /// These tokens, of elements `T` in a layout, as codes of format `F`.
    pub(crate) fn quantize<T: Element, F: Format>(
        &self,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
        scales: ScaleType,
    ) -> Result<CudaTokens> {
        let (operand, format) = match F::FORMAT {
            TokenFormat::Int8 => (Operand::I8, QuantizeParams::INT8),
            TokenFormat::Fp8 => (Operand::E4m3, QuantizeParams::FP8),
            other => {
                return Err(Error::Unsupported {
                    what: format!("{other} tokens on a CUDA device"),
                    why: "no kernel takes them yet; use Device::cpu()".into(),
                });
            }
        };
        if scales == ScaleType::Tensor {
            return Err(Error::Unsupported {
                what: format!("{} tokens with one scale for all, made on {device:?}", F::FORMAT),
                why:
                    "a CUDA device makes scales by row, of type f16 or f32; compress the tokens in \
                      host memory (`Tokens::quantize`)"
                        .into(),
            });
        }
        let (n_rows, dim) = (layout.rows(), layout.dim());
        let pitch_bytes = pitch_bytes(dim) as u64;
        let codes = Buffer::new(device, n_rows as u64 * pitch_bytes)?;
        let norms = Norms::with_room(device, scales, n_rows)?;
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
            scales: norms.address(),
            mask: self.matrix().mask,
            mask_copy,
            n_rows: n_rows as u32,
            format,
            f16_scales: u32::from(scales == ScaleType::F16),
            reserved: 0,
        };
        let kernel = device.load(QUANTIZE[gradient_row(T::TYPE)], THREADS, 0)?;
        let grid = params.n_rows.div_ceil(WARPS * (32 >> lanes_log2));
        device.on_idle_stream(|stream| {
            let entered = device.enter()?;
            // SAFETY: the buffers were just made, for these rows, and nobody else has them.
            unsafe { norms.clear_padding(&entered, stream.raw(), n_rows)? };
            if grid > 0 {
                // SAFETY: as above; the rows and their mask are there while `self` is borrowed, and
                // the call waits; there is a warp for all rows; the kernel takes this struct.
                unsafe { start(&entered, stream.raw(), kernel, grid, 0, &params)? };
            }
            stream.synchronize()
        })?;
        let access = Access { base: codes.address(), pitch_bytes };
        let owned = mask.into_iter().chain([codes]).collect();
        let made = CudaTokens::new(device, operand, layout, access, mask_copy, owned)?;
        made.set_scales(norms);
        Ok(made)
    }
}
