//! Tokens in device memory.

use std::fmt;
use std::sync::Arc;

use maxsim_kernels::params::{Matrix, TensorMap};
use maxsim_kernels::variants::Arch;

use super::context::CudaDevice;
use super::memory::Buffer;
use super::tensor_map;
use super::upload::{upload, upload_rows};
use crate::element::{Element, ElementType};
use crate::error::Result;
use crate::plan::Access;
use crate::tokens::{TokenLayout, Tokens};

/// A token matrix in device memory with its segments and mask, as kernels read it.
pub(crate) struct CudaTokens {
    access: Access,
    mask: u64,
    segments: Buffer,
    /// The matrix as TMA reads it, where TMA can take it.
    map: Option<Box<TensorMap>>,
    /// What the addresses point to, where it is ours.
    _owned: Vec<Buffer>,
}

impl fmt::Debug for CudaTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaTokens").field("access", &self.access).finish_non_exhaustive()
    }
}

impl CudaTokens {
    /// Copies tokens to the device. Rows get a pitch rounded up to 16 bytes.
    pub(crate) fn upload<T: Element>(
        device: &Arc<CudaDevice>,
        tokens: &Tokens<'_, T>,
    ) -> Result<CudaTokens> {
        let layout = tokens.layout();
        let row_bytes = layout.dim() * size_of::<T>();
        let pitch_bytes = Access::uploaded(layout.dim(), T::TYPE).pitch_bytes;
        let data: &[u8] = bytemuck::cast_slice(tokens.data());
        let matrix = upload_rows(device, data, row_bytes, pitch_bytes as usize)?;
        let access = Access { base: matrix.address(), pitch_bytes };
        let mask = tokens.mask().map(|mask| upload(device, mask)).transpose()?;
        let mask_address = mask.as_ref().map_or(0, Buffer::address);
        let owned = mask.into_iter().chain([matrix]).collect();
        CudaTokens::new(device, T::TYPE, layout, access, mask_address, owned)
    }

    /// Tokens at an address, with a mask of one byte per row at another (0 = none).
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        element: ElementType,
        layout: &TokenLayout,
        access: Access,
        mask: u64,
        owned: Vec<Buffer>,
    ) -> Result<CudaTokens> {
        let (rows, dim) = (layout.rows(), layout.dim());
        let segments = upload(device, bytemuck::cast_slice(layout.segments()))?;
        let has_tma = Arch::Sm90a.runs_on(device.limits().capability);
        let map = if has_tma && tensor_map::can_map(element, access, rows, dim) {
            Some(Box::new(tensor_map::encode(device, element, access, rows, dim)?))
        } else {
            None
        };
        Ok(CudaTokens { access, mask, segments, map, _owned: owned })
    }

    /// How kernels reach the rows.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn matrix(&self) -> Matrix {
        Matrix {
            base: self.access.base,
            pitch_bytes: self.access.pitch_bytes,
            segments: self.segments.address(),
            mask: self.mask,
        }
    }

    /// The matrix as TMA reads it, where TMA can take it.
    pub(super) fn map(&self) -> Option<TensorMap> {
        self.map.as_deref().copied()
    }
}
