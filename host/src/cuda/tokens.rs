//! Tokens in device memory.

use std::sync::Arc;

use maxsim_kernels::layout::sm90;
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
#[derive(Debug)]
pub(crate) struct CudaTokens {
    access: Access,
    mask: u64,
    segments: Buffer,
    maps: Option<Box<Maps>>,
    /// What the addresses point to, where it is ours.
    _owned: Vec<Buffer>,
}

/// The matrix as TMA reads it.
struct Maps {
    queries: TensorMap,
    documents: TensorMap,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Maps")
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
        let maps = if has_tma && tensor_map::can_map(element, access, rows, dim) {
            let _entered = device.enter()?;
            let encode =
                |box_rows| tensor_map::encode(device, element, access, rows, dim, box_rows);
            Some(Box::new(Maps {
                queries: encode(sm90::QUERY_TILE)?,
                documents: encode(sm90::DOCUMENT_TILE)?,
            }))
        } else {
            None
        };
        Ok(CudaTokens { access, mask, segments, maps, _owned: owned })
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

    /// The matrix in boxes of a query tile, where TMA can take it.
    pub(super) fn query_map(&self) -> Option<TensorMap> {
        self.maps.as_ref().map(|maps| maps.queries)
    }

    /// The matrix in boxes of a document tile, where TMA can take it.
    pub(super) fn document_map(&self) -> Option<TensorMap> {
        self.maps.as_ref().map(|maps| maps.documents)
    }
}
