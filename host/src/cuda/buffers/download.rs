//! Reads tokens back from device memory, as they are stored.

use std::sync::Arc;

use bytemuck::Zeroable;

use super::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::memory::download;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::runtime::alloc::filled;
use crate::runtime::swap::lock;
use crate::tokens::Tokens;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;

/// Bytes that are read at once where rows have a pitch.
const STAGING_BYTES: u64 = 8 << 20;

impl CudaTokens {
    /// The tokens, of elements or codes of format `F` in a layout, in host memory.
    pub(crate) fn download<F: Format>(
        &self,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
    ) -> Result<Tokens<'static, F>> {
        let entered = device.enter()?;
        let (rows, dim) = (layout.rows(), layout.dim());
        let mut data = filled(rows as u64 * dim as u64, F::Stored::zeroed())?;
        let row_bytes = dim * size_of::<F::Stored>();
        self.download_rows(&entered, row_bytes, bytemuck::cast_slice_mut(&mut data))?;
        let mut mask = filled(if layout.is_masked() { rows as u64 } else { 0 }, 0u8)?;
        // SAFETY: a masked layout's tokens have a mask of one byte per row.
        unsafe { download(&entered, self.matrix().mask, &mut mask)? };
        let mask = layout.is_masked().then_some(&mask[..]);
        let norms = lock(&self.row_scales);
        let scales = match &*norms {
            Some(norms) => norms.scales(&entered, rows)?,
            None => None,
        };
        let mut weights = filled(if layout.is_weighted() { rows as u64 } else { 0 }, 0f32)?;
        // SAFETY: a weighted layout's tokens have a weight per row.
        unsafe {
            download(&entered, self.weights(), bytemuck::cast_slice_mut(&mut weights))?;
        }
        let weights = layout.is_weighted().then_some(&weights[..]);
        Tokens::assemble(data.into(), scales, layout.clone(), (mask, weights))
    }

    /// The rows without what lies between them.
    fn download_rows(
        &self,
        entered: &Entered<'_>,
        row_bytes: usize,
        data: &mut [u8],
    ) -> Result<()> {
        let Access { base, pitch_bytes, .. } = self.access();
        if pitch_bytes == row_bytes as u64 {
            // SAFETY: the matrix is these rows, one after the other.
            return unsafe { download(entered, base, data) };
        }
        let at_once = (STAGING_BYTES / pitch_bytes).max(1);
        let mut staging = Vec::new();
        for (i, rows) in (0..).zip(data.chunks_mut(at_once as usize * row_bytes)) {
            let gaps = rows.len() / row_bytes - 1;
            // Bytes behind the last row may not exist: it may be the end of the memory.
            staging.resize(gaps * pitch_bytes as usize + row_bytes, 0);
            // SAFETY: that many rows from there on are rows of the matrix.
            unsafe { download(entered, base + i * at_once * pitch_bytes, &mut staging)? };
            let stored = staging.chunks(pitch_bytes as usize);
            for (row, stored) in rows.chunks_exact_mut(row_bytes).zip(stored) {
                row.copy_from_slice(&stored[..row_bytes]);
            }
        }
        Ok(())
    }
}
