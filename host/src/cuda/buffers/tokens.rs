//! Tokens in device memory.

use std::fmt;
use std::sync::{Arc, Mutex};

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::layout::sm90::DESCRIPTOR_HIGH;
use maxsim_kernels::abi::params::backward::{Rows, columns};
use maxsim_kernels::abi::params::{Matrix, TensorMap};
use maxsim_kernels::table::forward::Variant;

use super::residual::CudaResiduals;
use super::row_scales::RowScales;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::{send_rows, upload_lists};
use crate::cuda::driver::tensor_map::{Maps, Rounding, can_map};
use crate::error::Result;
use crate::plan::limits::Access;
use crate::runtime::arrival::Arrival;
use crate::tokens::Tokens;
use crate::tokens::element::ElementType;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::scaled_rows;

/// A token matrix in device memory with its segments and mask, as kernels read it.
pub(crate) struct CudaTokens {
    access: Access,
    operand: Operand,
    n_rows: usize,
    dim: usize,
    mask: u64,
    /// Address of a weight per row, or 0.
    weights: u64,
    /// The items' segments; empty where item `i` is the `item_len` rows from row `i * item_len` on.
    segments: Option<Buffer>,
    /// Address of segments in memory of the caller, or 0.
    foreign_segments: u64,
    item_len: u32,
    /// Whether some item has no valid token.
    has_empty_items: bool,
    /// The matrix as TMA reads it, where TMA can take it.
    maps: Option<Box<Maps>>,
    /// The tensor maps of an f32 matrix that round elements to TF32.
    tf32_maps: Option<Box<Maps>>,
    /// The memory at the addresses, where the handle owns it.
    owned: Vec<Buffer>,
    /// Whether the rows were projected: no copy is scaled then, however long they are.
    is_projected: bool,
    /// The codes and tables that rows are decoded from, of residual-compressed tokens.
    pub(in crate::cuda) residuals: Option<CudaResiduals>,
    /// The scales of codes; or r of every row, from the first call on that normalises rows.
    pub(in crate::cuda) row_scales: Mutex<Option<RowScales>>,
    /// Scaled copy of the tokens for calls that normalise rows, where some are too long for f32 to
    /// square: see [`crate::tokens::scaled_rows`].
    scaled: Option<Box<CudaTokens>>,
    /// The tokens whose memory these are in, where they are the same rows as other items.
    _source: Option<Arc<CudaTokens>>,
}

impl fmt::Debug for CudaTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaTokens").field("access", &self.access).finish_non_exhaustive()
    }
}

impl CudaTokens {
    /// Copies tokens to the device. Rows get a pitch rounded up to 16 bytes.
    pub(crate) fn upload<F: Format>(
        device: &Arc<CudaDevice>,
        tokens: &Tokens<'_, F>,
        arrival: Arrival,
    ) -> Result<CudaTokens> {
        let rows = |rows: &[F::Stored]| CudaTokens::upload_rows(device, tokens, rows, arrival);
        let uploaded = rows(tokens.data())?;
        let scaled = match scaled_rows::<F>(tokens.data(), tokens.layout().dim())? {
            None => None,
            Some(scaled) => Some(Box::new(rows(&scaled.data)?)),
        };
        Ok(CudaTokens { scaled, ..uploaded })
    }

    /// Copies `rows`, in the tokens' layout and with their mask and scales.
    fn upload_rows<F: Format>(
        device: &Arc<CudaDevice>,
        tokens: &Tokens<'_, F>,
        rows: &[F::Stored],
        arrival: Arrival,
    ) -> Result<CudaTokens> {
        let operand = F::FORMAT.stored_operand();
        let layout = tokens.layout();
        let row_bytes = layout.dim() * operand.size_bytes();
        let pitch_bytes = Access::uploaded(layout.dim(), F::FORMAT).pitch_bytes;
        let data: &[u8] = bytemuck::cast_slice(rows);
        let matrix = send_rows(device, data, [row_bytes, pitch_bytes as usize], arrival)?;
        let access = Access { base: matrix.address(), pitch_bytes, n_centroids: 0 };
        let send = |bytes: &[u8]| send_rows(device, bytes, [1; 2], arrival);
        let (mask, weights) = tokens.beside();
        let mask = mask.map(send).transpose()?;
        let weights = weights.map(|weights| send(bytemuck::cast_slice(weights))).transpose()?;
        let [mask_address, weights_address] =
            [&mask, &weights].map(|buffer| buffer.as_ref().map_or(0, Buffer::address));
        let owned = mask.into_iter().chain(weights).chain([matrix]).collect();
        let uploaded = CudaTokens::new(device, operand, layout, access, mask_address, owned)?;
        let uploaded = uploaded.with_weights(weights_address);
        if let Some(scales) = tokens.scales_of_codes() {
            uploaded.set_scales(RowScales::of_scales(device, scales, operand, layout, arrival)?);
        }
        Ok(uploaded)
    }

    /// Views foreign memory: a matrix, and mask, segments and weights at addresses, or 0. Exactly
    /// unread layouts have segments there.
    pub(crate) fn view(
        device: &Arc<CudaDevice>,
        operand: impl Into<Operand>,
        layout: &TokenLayout,
        access: Access,
        [mask, foreign_segments, weights]: [u64; 3],
    ) -> Result<CudaTokens> {
        let tokens = CudaTokens::new(device, operand, layout, access, mask, Vec::new())?;
        Ok(CudaTokens { foreign_segments, ..tokens }.with_weights(weights))
    }

    /// The same rows, residual-compressed ones too, as other items, whose segments are at an
    /// address.
    pub(crate) fn of_segments(
        self: &Arc<CudaTokens>,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
        segments: u64,
    ) -> Result<CudaTokens> {
        let beside = [self.mask, segments, self.weights];
        let view = CudaTokens::view(device, self.operand, layout, self.access, beside)?;
        let residuals = self.residuals.as_ref().map(CudaResiduals::view);
        Ok(CudaTokens { residuals, _source: Some(self.clone()), ..view })
    }

    /// The same rows of elements as other items, with these segments. No call waits for them.
    pub(crate) fn of_items(
        self: &Arc<CudaTokens>,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
        segments: &[[u32; 2]],
    ) -> Result<CudaTokens> {
        let beside = [self.mask, 0, self.weights];
        let view = CudaTokens::view(device, self.operand, layout, self.access, beside)?;
        let segments = match layout.is_unread() {
            true => Some(upload_lists(device, [bytemuck::cast_slice(segments)])?.0),
            false => view.segments,
        };
        Ok(CudaTokens { segments, _source: Some(self.clone()), ..view })
    }

    /// Rows of elements at another address, aligned as this one, as the same items. Calls no
    /// driver; what it is of must live as long as work that uses it.
    pub(in crate::cuda) fn at(&self, base: u64) -> CudaTokens {
        let access = Access { base, ..self.access };
        let maps =
            |rounding| Box::new(Maps::new(self.operand, access, self.n_rows, self.dim, rounding));
        CudaTokens {
            access,
            operand: self.operand,
            n_rows: self.n_rows,
            dim: self.dim,
            mask: 0,
            weights: 0,
            segments: None,
            foreign_segments: self.segments.as_ref().map_or(0, Buffer::address),
            item_len: self.item_len,
            has_empty_items: self.has_empty_items,
            maps: self.maps.as_ref().map(|_| maps(Rounding::None)),
            tf32_maps: self.tf32_maps.as_ref().map(|_| maps(Rounding::Tf32)),
            owned: Vec::new(),
            is_projected: false,
            residuals: None,
            row_scales: Mutex::new(None),
            scaled: None,
            _source: None,
        }
    }

    /// Tokens whose mask is in the memory of `source`.
    pub(in crate::cuda) fn with_source(self, source: &Arc<CudaTokens>) -> CudaTokens {
        CudaTokens { _source: Some(source.clone()), ..self }
    }

    /// Tokens whose projected rows are in a buffer that is theirs from now on, with a copy of the
    /// mask: foreign memory may go or change. By way of the host, a byte of each row; waits for it.
    pub(in crate::cuda) fn owning(
        self,
        device: &Arc<CudaDevice>,
        rows: Buffer,
    ) -> Result<CudaTokens> {
        let copy = self.copied_mask(device)?;
        let mask = copy.as_ref().map_or(0, Buffer::address);
        let owned = copy.into_iter().chain([rows]).collect();
        Ok(CudaTokens { owned, mask, is_projected: true, _source: None, ..self })
    }

    /// Tokens at an address, with a mask of one byte per row at another (0 = none).
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        operand: impl Into<Operand>,
        layout: &TokenLayout,
        access: Access,
        mask: u64,
        owned: Vec<Buffer>,
    ) -> Result<CudaTokens> {
        let operand = operand.into();
        let (rows, dim) = (layout.rows(), layout.dim());
        let regular_len = layout.regular_len();
        let segments = match regular_len {
            Some(_) => None,
            None if layout.is_unread() => None,
            None => Some(upload_lists(device, [bytemuck::cast_slice(layout.segments())])?.0),
        };
        let item_len = regular_len.unwrap_or(0);
        let has_tma = Arch::Sm90a.runs_on(device.limits().capability);
        let can_map = has_tma && can_map(access, rows);
        let maps = |is_wanted: bool, rounding| {
            let maps = || Box::new(Maps::new(operand, access, rows, dim, rounding));
            (is_wanted && can_map).then(maps)
        };
        let tf32_maps = maps(operand == ElementType::F32, Rounding::Tf32);
        let maps = maps(!operand.is_decoded(), Rounding::None);
        let has_empty_items = layout.has_empty_items();
        Ok(CudaTokens {
            access,
            operand,
            n_rows: rows,
            dim,
            mask,
            weights: 0,
            segments,
            foreign_segments: 0,
            item_len,
            has_empty_items,
            maps,
            tf32_maps,
            owned,
            is_projected: false,
            residuals: None,
            row_scales: Mutex::new(None),
            scaled: None,
            _source: None,
        })
    }

    /// With weights at an address, one per row; 0 = none.
    pub(super) fn with_weights(self, weights: u64) -> CudaTokens {
        CudaTokens { weights, ..self }
    }

    /// The tokens as calls that normalise rows read them.
    pub(in crate::cuda) fn normalizable(&self) -> &CudaTokens {
        self.scaled.as_deref().unwrap_or(self)
    }

    /// The scaled copy of the tokens, where normalising needs one.
    pub(in crate::cuda) fn scaled(&self) -> Option<&CudaTokens> {
        self.scaled.as_deref()
    }

    /// How kernels reach the rows.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Whether single rows may be masked.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask != 0
    }

    /// The address of a weight per row; 0 = tokens have none.
    pub(in crate::cuda) fn weights(&self) -> u64 {
        self.weights
    }

    /// Whether some item has no valid token.
    pub(in crate::cuda) fn has_empty_items(&self) -> bool {
        self.has_empty_items
    }

    /// Whether the handle owns the matrix: rows then have zeros behind them up to a 16-byte
    /// boundary.
    pub(in crate::cuda) fn is_owned(&self) -> bool {
        !self.owned.is_empty()
    }

    /// Whether rows that are too long for f32 to square have a scaled copy, as those that are
    /// uploaded do.
    pub(super) fn is_scaled(&self) -> bool {
        self.is_owned() && !self.is_projected
    }

    /// The type of the elements; `None` where rows are codes.
    pub(in crate::cuda) fn element(&self) -> Option<ElementType> {
        match self.operand {
            Operand::Element(element) => Some(element),
            _ => None,
        }
    }

    /// Number of centroids, and of bucket weights, of residual-compressed tokens.
    pub(crate) fn n_table_rows(&self) -> [usize; 2] {
        let of = |residuals: &CudaResiduals| residuals.n_table_rows();
        self.residuals.as_ref().map_or([0; 2], of)
    }

    pub(in crate::cuda) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The matrix as warps read its rows.
    pub(in crate::cuda) fn rows(&self) -> Rows {
        let Access { base, pitch_bytes, .. } = self.access;
        let row_bytes = self.dim * self.operand.size_bytes();
        let (lanes_log2, n_columns) = columns(row_bytes);
        // Warps read up to a 16-byte boundary behind a row: rows end on one, or the library has
        // padded them.
        let is_padded = row_bytes.is_multiple_of(16) || self.is_owned();
        let aligned = u32::from(self.access.is_aligned() && is_padded);
        Rows { base, pitch_bytes, dim: self.dim as u32, lanes_log2, n_columns, aligned }
    }

    pub(in crate::cuda) fn matrix(&self) -> Matrix {
        Matrix {
            base: self.access.base,
            pitch_bytes: self.access.pitch_bytes,
            segments: self.segments.as_ref().map_or(self.foreign_segments, Buffer::address),
            mask: self.mask,
            item_len: self.item_len,
            descriptor_high: DESCRIPTOR_HIGH,
        }
    }

    /// The matrix as TMA reads it for a kernel, where TMA can take it.
    pub(in crate::cuda) fn maps(&self, variant: &Variant) -> Option<&Maps> {
        if variant.tf32 { self.tf32_maps.as_deref() } else { self.maps.as_deref() }
    }

    /// The matrix in boxes of a document tile's rows, where TMA can take it.
    pub(in crate::cuda) fn tile_map(&self, entered: &Entered<'_>) -> Result<Option<&TensorMap>> {
        self.maps.as_deref().map(|maps| maps.tiles(entered)).transpose()
    }
}
