//! Row scales in device memory, an f32 per row: r = 1 / √max(‖x‖², 10⁻¹²) of normalised rows.
//!
//! Rows of codes have their scales there instead, and affine rows a word with the scale and the
//! minimum, both f16. Scales that are given as f16 are kept as f32 and, where some kernel reads f16
//! scales, as f16 too.
//!
//! r of memory that the library owns is computed once. Foreign memory may hold something else at
//! each call, which therefore computes r again, in the workspace of its stream.

use std::borrow::Cow;
use std::sync::Arc;

use cust::sys::CUstream;
use half::f16;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::NORMS_PADDING;
use maxsim_kernels::abi::params::backward::{RowNormsParams, WARPS};
use maxsim_kernels::table::auxiliary::ROW_NORMS;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use super::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::memory::{Buffer, download, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::staging::send_rows;
use crate::cuda::driver::stream::Order;
use crate::error::{Error, Result};
use crate::runtime::alloc::filled;
use crate::runtime::arrival::Arrival;
use crate::runtime::swap::lock;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::{ScaleType, Scales};

/// Alignment of f16 scales in bytes: two cache lines, which the scales of one tile fill.
const F16_SCALES_ALIGN: usize = 256;

/// Alignment of r in a workspace.
const FOUND_ALIGN: u64 = 256;

/// r of rows that are 2⁶² long: two such have dot products of 2¹²⁴ at most.
const LEAST_FACTOR: f64 = 1.0 / (1u64 << 62) as f64;

/// Memory with a scale for every row, and where its values come from.
#[derive(Debug)]
pub(crate) struct RowScales {
    address: u64,
    /// The memory at the address, unless it is foreign.
    _owned: Option<Buffer>,
    /// Index of the word at which the same scales begin as f16, where they are kept.
    f16_begin: Option<usize>,
    source: Source,
}

/// Source of row scales.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) enum Source {
    /// A kernel computes r from the rows.
    Kernel,
    /// Scales of this type by row, which come with the rows.
    Rows(ScaleType),
    /// Scales and minima, which come with the rows.
    Affine,
    /// The one scale of all rows.
    Tensor(f32),
}

impl RowScales {
    /// Uploads the scales of a layout's rows, codes of operand type `operand`, with the padding
    /// that kernels may read behind them.
    pub(crate) fn of_scales(
        device: &Arc<CudaDevice>,
        scales: &Scales<'_>,
        operand: Operand,
        layout: &TokenLayout,
        arrival: Arrival,
    ) -> Result<RowScales> {
        let source = match scales {
            Scales::Tensor(scale) => Source::Tensor(*scale),
            Scales::Affine { .. } => Source::Affine,
            _ => Source::Rows(scales.storage()),
        };
        let capability = device.limits().capability;
        let has_reader = has_reader_of_f16(capability, operand, layout.dim());
        let (words, f16_begin) = words(scales, layout.rows(), has_reader)?;
        let buffer = send_rows(device, bytemuck::cast_slice(&words), [1; 2], arrival)?;
        Ok(RowScales { address: buffer.address(), _owned: Some(buffer), f16_begin, source })
    }

    /// An uninitialised buffer for the scales of `rows` rows of codes, with the padding that
    /// kernels may read behind them.
    pub(in crate::cuda) fn with_room(
        device: &Arc<CudaDevice>,
        source: Source,
        rows: usize,
    ) -> Result<RowScales> {
        let buffer = Buffer::new(device, (rows + NORMS_PADDING) as u64 * 4)?;
        Ok(RowScales { address: buffer.address(), _owned: Some(buffer), f16_begin: None, source })
    }

    /// The device address.
    pub(in crate::cuda) fn address(&self) -> u64 {
        self.address
    }

    /// The address of documents' scales in the form that a kernel reads, and 1 where that is f16,
    /// or 0.
    fn address_for(&self, variant: &Variant) -> (u64, u32) {
        match self.f16_begin {
            Some(word) if variant.reads_f16_scales() => (self.address + word as u64 * 4, 1),
            _ => (self.address, 0),
        }
    }

    /// Fills the padding behind the scales of `rows` rows with zeros, in stream order.
    ///
    /// # Safety
    /// `stream` must be a stream of the context, and no other work use the buffer, which is that of
    /// `rows` rows.
    pub(in crate::cuda) unsafe fn clear_padding(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        rows: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { clear_padding(entered, stream, self.address, rows) }
    }

    /// Copies the scales of `rows` rows of codes to the host, in the type that they were given in;
    /// `None` where rows are elements.
    pub(in crate::cuda) fn scales(
        &self,
        entered: &Entered<'_>,
        rows: usize,
    ) -> Result<Option<Scales<'static>>> {
        let scale_type = match self.source {
            Source::Kernel => return Ok(None),
            Source::Tensor(scale) => return Ok(Some(Scales::Tensor(scale))),
            Source::Rows(scale_type) => Some(scale_type),
            Source::Affine => None,
        };
        let mut words = filled(rows as u64, 0u32)?;
        // SAFETY: the room is that of these rows.
        unsafe {
            download(entered, self.address, bytemuck::cast_slice_mut(&mut words))?;
        }
        let f16s = |part: &dyn Fn(u32) -> f16| words.iter().map(|&word| part(word)).collect();
        Ok(Some(match scale_type {
            None => Scales::Affine {
                scales: Cow::Owned(f16s(&|word| f16::from_bits(word as u16))),
                mins: Cow::Owned(f16s(&|word| f16::from_bits((word >> 16) as u16))),
            },
            Some(ScaleType::F16) => {
                Scales::F16(Cow::Owned(f16s(&|word| f16::from_f32(f32::from_bits(word)))))
            }
            Some(_) => Scales::F32(words.into_iter().map(f32::from_bits).collect()),
        }))
    }
}

/// Whether some kernel of a device reads the f16 scales of rows of codes without widening.
fn has_reader_of_f16(capability: (u32, u32), operand: Operand, dim: usize) -> bool {
    let reads = |row: &Variant| row.reads_f16_scales() && row.arch.runs_on(capability);
    FORWARD.iter().any(|row| reads(row) && row.operand == operand && dim <= row.dim_max)
}

/// Returns the words that a device keeps for the scales of `rows` rows, and the index of the word
/// at which f16 scales begin. Those are kept where `has_reader` says that a kernel reads them.
/// Padding behind either covers what kernels may read: the scales of a tile that begins with the
/// last row, and the other half of the last row's word.
fn words(scales: &Scales<'_>, rows: usize, has_reader: bool) -> Result<(Vec<u32>, Option<usize>)> {
    let n = rows + NORMS_PADDING;
    let f16_scales = match scales {
        Scales::F16(scales) if has_reader => {
            Some((n.next_multiple_of(F16_SCALES_ALIGN / 4), scales))
        }
        _ => None,
    };
    let n_words = f16_scales.map_or(n, |(first, _)| first + n.div_ceil(2));
    let mut words = filled(n_words as u64, 0u32)?;
    words[..rows].iter_mut().enumerate().for_each(|(row, to)| *to = scales.word(row));
    if let Some((first, f16_scales)) = f16_scales {
        let to: &mut [f16] = bytemuck::cast_slice_mut(&mut words[first..]);
        to[..rows].copy_from_slice(f16_scales);
    }
    Ok((words, f16_scales.map(|(first, _)| first)))
}

/// Bytes of workspace for r of as many rows.
pub(in crate::cuda) fn found_bytes(rows: usize) -> u64 {
    ((rows + NORMS_PADDING) as u64 * 4).next_multiple_of(FOUND_ALIGN)
}

/// Bytes of a workspace of which calls use `len_bytes`, and behind them `found_bytes` for r.
pub(in crate::cuda) fn with_found(len_bytes: u64, found_bytes: u64) -> u64 {
    match found_bytes {
        0 => len_bytes,
        found_bytes => found_start(len_bytes) + found_bytes,
    }
}

/// Where r begins in a workspace of which calls use `len_bytes`: behind what all calls share.
pub(in crate::cuda) fn found_start(len_bytes: u64) -> u64 {
    len_bytes.max(N_RESERVED * 4).next_multiple_of(FOUND_ALIGN)
}

impl CudaTokens {
    /// Whether each call that normalises rows finds their r itself.
    fn finds_row_scales(&self) -> bool {
        !self.is_owned() && self.element().is_some()
    }

    /// Bytes of workspace that such a call needs for them.
    pub(in crate::cuda) fn found_bytes(&self) -> u64 {
        if self.finds_row_scales() { found_bytes(self.n_rows()) } else { 0 }
    }

    /// Enqueues the kernel that finds r of the rows in the workspace from `end` on, where they are
    /// foreign, and moves `end` behind. Returns the address of r, or 0 where the handle has it.
    ///
    /// # Safety
    /// `stream` must be a stream of the context, which alone uses the workspace; that must have
    /// [`CudaTokens::found_bytes`]; the tokens must live until the kernel has run.
    pub(in crate::cuda) unsafe fn find_row_scales(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        kernel: &Kernel<RowNormsParams>,
        end: &mut u64,
    ) -> Result<u64> {
        if !self.finds_row_scales() {
            return Ok(0);
        }
        let address = *end;
        *end += self.found_bytes();
        // SAFETY: the caller's promise.
        unsafe { self.write_norms(entered, stream, kernel, [address, 0])? };
        Ok(address)
    }

    /// Enqueues the kernel that finds r times the weight of each row, in the workspace at `to`.
    ///
    /// # Safety
    /// As [`CudaTokens::find_row_scales`]; there must be [`found_bytes`] of workspace.
    pub(in crate::cuda) unsafe fn find_weighted_scales(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        kernel: &Kernel<RowNormsParams>,
        to: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write_norms(entered, stream, kernel, [to, self.weights()]) }
    }

    /// Makes row scales for calls that normalise rows, of memory that the library owns; later calls
    /// allocate nothing. The first call waits for them, which a call in a foreign capture cannot.
    pub(crate) fn prepare_row_scales(
        &self,
        device: &Arc<CudaDevice>,
        order: Option<Order>,
    ) -> Result<()> {
        if let Some(scaled) = self.scaled() {
            scaled.prepare_row_scales(device, order)?;
        }
        if self.finds_row_scales() {
            return Ok(());
        }
        let mut row_scales = lock(&self.row_scales);
        if row_scales.is_some() {
            return Ok(());
        }
        if matches!(order, Some(Order::Capture { .. })) {
            return Err(Error::Unsupported {
                what: "normalising tokens for the first time while the stream is captured".into(),
                why: "run the same call once before the capture".into(),
            });
        }
        let Some(element) = self.element() else { return Ok(()) };
        let kernel = device.kernel_of(&ROW_NORMS, element)?;
        *row_scales = Some(self.computed_norms(device, kernel)?);
        Ok(())
    }

    /// New row scales, which are there when this returns.
    fn computed_norms(
        &self,
        device: &Arc<CudaDevice>,
        kernel: Kernel<RowNormsParams>,
    ) -> Result<RowScales> {
        let new = RowScales::with_room(device, Source::Kernel, self.n_rows())?;
        device.until_done(|stream| {
            let entered = device.enter()?;
            // SAFETY: the buffer was just made, for these rows, and nothing else has it.
            unsafe { self.write_norms(&entered, stream.raw(), &kernel, [new.address(), 0]) }
        })?;
        Ok(new)
    }

    /// The address of the row scales; 0 before they have been prepared.
    pub(in crate::cuda) fn row_scales_address(&self) -> u64 {
        lock(&self.row_scales).as_ref().map_or(0, RowScales::address)
    }

    /// The address of the row scales of documents in the form that a kernel reads, and 1 where that
    /// is f16, or 0.
    pub(in crate::cuda) fn row_scales_address_for(&self, variant: &Variant) -> (u64, u32) {
        lock(&self.row_scales).as_ref().map_or((0, 0), |row_scales| row_scales.address_for(variant))
    }

    /// Sets the scales of codes.
    pub(crate) fn set_scales(&self, scales: RowScales) {
        *lock(&self.row_scales) = Some(scales);
    }

    /// Sets the scales of codes of a format in foreign memory: a word per row, and the padding that
    /// kernels may read behind them. A word is an f32, or has f16 scale and minimum of an affine
    /// row.
    pub(crate) fn set_scale_words(&self, address: u64, format: TokenFormat) {
        let source = match format {
            TokenFormat::Int8Affine => Source::Affine,
            _ => Source::Rows(ScaleType::F32),
        };
        self.set_scales(RowScales { address, _owned: None, f16_begin: None, source });
    }

    /// Checks that the valid rows of foreign memory, or of projected tokens, are short enough for
    /// products in f32, as [`crate::tokens::scaled_rows`] makes those that are uploaded. Waits for
    /// the device.
    pub(crate) fn check_normalizable(
        &self,
        device: &Arc<CudaDevice>,
        layout: &TokenLayout,
    ) -> Result<()> {
        if self.is_scaled() {
            return Ok(());
        }
        let Some(element) = self.element() else { return Ok(()) };
        let entered = device.enter()?;
        // The rows may have been written on any stream.
        device.synchronize(&entered)?;
        let found = self.computed_norms(device, device.kernel_of(&ROW_NORMS, element)?)?;
        let mut norms = filled(self.n_rows() as u64, 0f32)?;
        let mut mask = filled(if self.is_masked() { norms.len() as u64 } else { 0 }, 0u8)?;
        // SAFETY: the room is that of these rows, and the mask was checked to be there.
        unsafe {
            download(&entered, found.address(), bytemuck::cast_slice_mut(&mut norms))?;
            download(&entered, self.matrix().mask, &mut mask)?;
        }
        let mut rows = (0..layout.n_items()).flat_map(|item| layout.item_rows(item));
        let is_valid = |row: usize| mask.get(row).is_none_or(|&valid| valid != 0);
        // r of a row with an infinity is 0, whose products are those of IEEE.
        let is_long = |&row: &usize| {
            is_valid(row) && norms[row] > 0.0 && f64::from(norms[row]) < LEAST_FACTOR
        };
        match rows.find(is_long) {
            None => Ok(()),
            Some(row) => Err(Error::Shape {
                argument: "tokens",
                expected: "rows to be normalised that are at most 2^62 long".into(),
                found: format!(
                    "row {row}, which is {:.1e} long; upload the tokens, or divide them by a \
                     power of two",
                    1.0 / f64::from(norms[row])
                ),
            }),
        }
    }

    /// Enqueues the kernel that computes r of all rows, and zeros behind them.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; the tokens must live until the kernel has run, and
    /// nothing else may use the memory at `norms`, which is for these rows and the padding.
    unsafe fn write_norms(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        kernel: &Kernel<RowNormsParams>,
        [norms, weights]: [u64; 2],
    ) -> Result<()> {
        let rows = self.rows();
        let rows_per_block = WARPS * (32 >> rows.lanes_log2);
        let n_rows = self.n_rows() as u32;
        let params = RowNormsParams { rows, norms, weights, n_rows, reserved: 0 };
        // SAFETY: the caller's promise; there is a warp for all rows.
        unsafe {
            clear_padding(entered, stream, norms, self.n_rows())?;
            match n_rows.div_ceil(rows_per_block) {
                0 => Ok(()),
                n_blocks => start(entered, stream, kernel, n_blocks, 0, &params),
            }
        }
    }
}

/// Fills the padding behind the scales of `rows` rows with zeros, in stream order.
///
/// # Safety
/// `stream` must be a stream of the context, and no other work use the scales, which are those of
/// `rows` rows.
unsafe fn clear_padding(
    entered: &Entered<'_>,
    stream: CUstream,
    scales: u64,
    rows: usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { fill(entered, scales + rows as u64 * 4, 0, NORMS_PADDING as u64 * 4, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_scales_are_kept_where_a_kernel_reads_them() {
        let hopper = |operand, dim| has_reader_of_f16((9, 0), operand, dim);
        assert!(hopper(Operand::I8, 128) && hopper(Operand::I8, 1));
        assert!(!hopper(Operand::I8, 129));
        assert!(!hopper(Operand::E4m3, 128) && !hopper(Operand::I8Affine, 128));
        assert!(!has_reader_of_f16((8, 0), Operand::I8, 128));
    }

    #[test]
    fn f16_scales_lie_behind_the_words_that_all_read() {
        for n in [0, 1, 2, 63, 64, 127, 128, 129, 300] {
            let f16_scales: Vec<f16> = (1..=n).map(|i| f16::from_f32(i as f32)).collect();
            let scales = Scales::F16(f16_scales.clone().into());
            let (all, first) = words(&scales, n, true).expect("memory");
            let first = first.expect("f16 scales");
            let found: &[f16] = bytemuck::cast_slice(&all[first..]);
            assert_eq!(found[..n], f16_scales);
            assert!(
                found.len() >= n + NORMS_PADDING && found[n..].iter().all(|x| x.to_bits() == 0)
            );
            assert!(first >= n + NORMS_PADDING && (first * 4).is_multiple_of(F16_SCALES_ALIGN));
            let (whole, none) = words(&scales, n, false).expect("memory");
            assert_eq!((whole.len(), none), (n + NORMS_PADDING, None));
            assert_eq!(all[..whole.len()], whole);
            assert!((0..n).all(|row| f32::from_bits(whole[row]) == f16_scales[row].to_f32()));
        }
    }
}
