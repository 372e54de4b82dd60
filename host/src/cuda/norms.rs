//! What rows are normalised by, in device memory: r = 1 / √max(‖x‖², 10⁻¹²), an f32 per row. Where
//! rows are codes, their scales take its place, and where they are affine a word with the scale and the
//! minimum, both f16.
//!
//! Of tokens that are ours it is found once. Memory of others may hold something else at each call,
//! which therefore finds it anew; calls at the same time find the same, since nobody may write to
//! the rows meanwhile.

use std::borrow::Cow;
use std::sync::Arc;

use cust::sys::CUstream;
use half::f16;
use maxsim_kernels::gradient::{ROW_NORMS, RowNormsParams, WARPS};
use maxsim_kernels::params::NORMS_PADDING;

use super::context::{CudaDevice, Entered};
use super::launch::start;
use super::memory::{Buffer, download, fill};
use super::module::Kernel;
use super::stream::Order;
use super::tokens::CudaTokens;
use super::upload::upload;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::scales::{ScaleType, Scales};
use crate::scores::filled;
use crate::warm_up::gradient_row;

/// Room for r of every row, and what fills it.
#[derive(Debug)]
pub(super) struct Norms {
    buffer: Buffer,
    source: Source,
}

/// What fills the room.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The kernel that finds r.
    Kernel(Kernel),
    /// Scales of this type by row, which come with the rows.
    Rows(ScaleType),
    /// Scales and minima, which come with the rows.
    Affine,
    /// The one scale of all rows.
    Tensor(f32),
}

impl Norms {
    /// The scales of `rows` rows of codes, and what kernels may read behind them.
    pub(super) fn of_scales(
        device: &Arc<CudaDevice>,
        scales: &Scales<'_>,
        rows: usize,
    ) -> Result<Norms> {
        let mut words = filled(rows as u64 + NORMS_PADDING as u64, 0u32)?;
        let word = |row: usize| match scales {
            Scales::Affine { scales, mins } => {
                u32::from(mins[row].to_bits()) << 16 | u32::from(scales[row].to_bits())
            }
            _ => scales.scale(row).to_bits(),
        };
        words[..rows].iter_mut().enumerate().for_each(|(row, to)| *to = word(row));
        let source = match scales {
            Scales::Tensor(scale) => Source::Tensor(*scale),
            Scales::Affine { .. } => Source::Affine,
            _ => Source::Rows(scales.storage()),
        };
        Ok(Norms { buffer: upload(device, bytemuck::cast_slice(&words))?, source })
    }

    /// Room for what comes with `rows` rows of codes, and for what kernels may read behind it.
    pub(super) fn with_room(
        device: &Arc<CudaDevice>,
        source: Source,
        rows: usize,
    ) -> Result<Norms> {
        let buffer = Buffer::new(device, (rows + NORMS_PADDING) as u64 * 4)?;
        Ok(Norms { buffer, source })
    }

    /// Where they are.
    pub(super) fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Makes what is behind the scales of `rows` rows 0, in stream order.
    ///
    /// # Safety
    /// `stream` must be a stream of the context, and no other work use the room, which is that of
    /// `rows` rows.
    pub(super) unsafe fn clear_padding(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        rows: usize,
    ) -> Result<()> {
        let address = self.buffer.address() + rows as u64 * 4;
        // SAFETY: the caller's promise.
        unsafe { fill(entered, address, 0, NORMS_PADDING as u64 * 4, stream) }
    }

    /// The scales of `rows` rows of codes, as they were before they were made f32; `None` where rows
    /// are elements.
    pub(super) fn scales(
        &self,
        entered: &Entered<'_>,
        rows: usize,
    ) -> Result<Option<Scales<'static>>> {
        let scale_type = match self.source {
            Source::Kernel(_) => return Ok(None),
            Source::Tensor(scale) => return Ok(Some(Scales::Tensor(scale))),
            Source::Rows(scale_type) => Some(scale_type),
            Source::Affine => None,
        };
        let mut words = filled(rows as u64, 0u32)?;
        // SAFETY: the room is that of these rows.
        unsafe {
            download(entered, self.buffer.address(), bytemuck::cast_slice_mut(&mut words))?;
        }
        let halves = |half: &dyn Fn(u32) -> f16| words.iter().map(|&word| half(word)).collect();
        Ok(Some(match scale_type {
            None => Scales::Affine {
                scales: Cow::Owned(halves(&|word| f16::from_bits(word as u16))),
                mins: Cow::Owned(halves(&|word| f16::from_bits((word >> 16) as u16))),
            },
            Some(ScaleType::F16) => {
                Scales::F16(Cow::Owned(halves(&|word| f16::from_f32(f32::from_bits(word)))))
            }
            Some(_) => Scales::F32(words.into_iter().map(f32::from_bits).collect()),
        }))
    }
}

impl CudaTokens {
    /// Makes ready what a call that normalises rows needs of its tokens: afterwards nothing is
    /// allocated. Waits for it the first time, which a call in the order of a foreign capture cannot.
    pub(crate) fn prepare_norms(
        &self,
        device: &Arc<CudaDevice>,
        order: Option<Order>,
    ) -> Result<()> {
        let mut norms = lock(&self.norms);
        if norms.is_some() {
            return Ok(());
        }
        if matches!(order, Some(Order::Capture { .. })) {
            return Err(Error::Unsupported {
                what: "normalising tokens for the first time while the stream is captured".into(),
                why: "run the same call once before the capture".into(),
            });
        }
        let Some(element) = self.element() else { return Ok(()) };
        let kernel = device.gradient_kernel(ROW_NORMS[gradient_row(element)])?;
        let n_bytes = (self.n_rows() + NORMS_PADDING) as u64 * 4;
        let new =
            Norms { buffer: Buffer::zeroed(device, n_bytes)?, source: Source::Kernel(kernel) };
        if self.is_owned() {
            device.on_idle_stream(|stream| {
                let entered = device.enter()?;
                // SAFETY: the buffer was just made, for these rows, and nobody else has it.
                unsafe { self.find_norms(&entered, stream.raw(), &new)? };
                stream.synchronize()
            })?;
        }
        *norms = Some(new);
        Ok(())
    }

    /// Where r is of the rows, once it has been prepared; 0 before.
    pub(super) fn norms_address(&self) -> u64 {
        lock(&self.norms).as_ref().map_or(0, Norms::address)
    }

    /// Gives codes their scales.
    pub(super) fn set_scales(&self, scales: Norms) {
        *lock(&self.norms) = Some(scales);
    }

    /// Enqueues what finds r again, where the rows are not ours.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; the tokens must live until the kernel has run.
    pub(super) unsafe fn refresh_norms(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
    ) -> Result<()> {
        match &*lock(&self.norms) {
            // SAFETY: the buffer is of these rows; whoever else writes to it writes the same.
            Some(norms) if !self.is_owned() => unsafe { self.find_norms(entered, stream, norms) },
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As [`CudaTokens::refresh_norms`]; `norms` must have room for these rows.
    unsafe fn find_norms(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        norms: &Norms,
    ) -> Result<()> {
        let Source::Kernel(kernel) = norms.source else { return Ok(()) };
        let rows = self.rows();
        let rows_per_block = WARPS * (32 >> rows.lanes_log2);
        let n_rows = self.n_rows() as u32;
        let params = RowNormsParams { rows, norms: norms.buffer.address(), n_rows, reserved: 0 };
        match n_rows.div_ceil(rows_per_block) {
            0 => Ok(()),
            // SAFETY: the caller's promise; there is a warp for all rows.
            n_blocks => unsafe { start(entered, stream, kernel, n_blocks, 0, &params) },
        }
    }
}
