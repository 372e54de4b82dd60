//! Handles over foreign device memory, checked before they are used.

use std::sync::Arc;

use super::Device;
use super::tokens::DeviceTokens;
use crate::cuda::CudaDevice;
use crate::cuda::CudaTokens;
use crate::cuda::check_range;
use crate::cuda::read_rows;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;

/// Bytes from the first element of a matrix to past its last.
fn extent_bytes(rows: usize, row_bytes: u64, pitch_bytes: u64) -> Result<u64> {
    let limit = u64::MAX;
    match rows as u64 {
        0 => Ok(0),
        rows => (rows - 1)
            .checked_mul(pitch_bytes)
            .and_then(|bytes| bytes.checked_add(row_bytes))
            .ok_or(Error::TooLarge { what: "bytes of a token matrix", limit, found: limit }),
    }
}

/// A matrix of token rows in device memory of the caller: row `i` starts at
/// `address + i · pitch_bytes`.
///
/// ```no_run
/// use maxsim::format::{Int8, RawRows, RawScales};
/// use maxsim::{Device, DeviceTokens, Result, TokenLayout};
///
/// /// 1000 documents of 32 tokens that another library has, as f32 and as codes.
/// ///
/// /// # Safety
/// /// The memory stays as it is for as long as the handles and their calls use it.
/// unsafe fn view(
///     device: &Device,
///     elements: u64,
///     [codes, scales, mask]: [u64; 3],
/// ) -> Result<(DeviceTokens<f32>, DeviceTokens<Int8>)> {
///     let layout = TokenLayout::padded(1000, 32, 128)?;
///     let rows = RawRows::new(elements, 128 * 4);
///     // SAFETY: the caller's promise.
///     let plain = unsafe { DeviceTokens::from_raw_parts(device, rows, layout.clone())? };
///     plain.check_normalizable()?; // by calls that normalise rows; waits for the device
///     let (rows, scales) = (RawRows::new(codes, 128).mask(mask), RawScales::F16(scales));
///     // SAFETY: the caller's promise.
///     let codes = unsafe { DeviceTokens::from_raw_codes(device, rows, scales, layout)? };
///     assert_eq!(codes.access().pitch_bytes, 128);
///     Ok((plain, codes))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RawRows {
    address: u64,
    pitch_bytes: u64,
    mask: Option<u64>,
    segments: Option<u64>,
    weights: Option<u64>,
}

impl RawRows {
    /// Rows from an address on, this many bytes from one to the next.
    pub fn new(address: u64, pitch_bytes: u64) -> RawRows {
        RawRows { address, pitch_bytes, mask: None, segments: None, weights: None }
    }

    /// With a mask: the address of one byte per row, non-zero = valid.
    pub fn mask(self, mask: impl Into<Option<u64>>) -> RawRows {
        RawRows { mask: mask.into(), ..self }
    }

    /// With items that the host does not know ([`TokenLayout::unread`]): the address of two u32 for
    /// each, its first row and their number, aligned to 8.
    /// [`Stream::write_segments`](crate::stream::Stream::write_segments) writes them.
    pub fn segments(self, segments: impl Into<Option<u64>>) -> RawRows {
        RawRows { segments: segments.into(), ..self }
    }

    /// With weights of query tokens ([`Tokens::with_weights`](crate::Tokens::with_weights)): the
    /// address of an f32 per row, aligned to 4, which may be written between calls.
    ///
    /// ```no_run
    /// use maxsim::format::RawRows;
    /// use maxsim::{Device, DeviceTokens, Result, TokenLayout};
    ///
    /// /// 16 queries of 32 tokens that another library has, with their weights.
    /// ///
    /// /// # Safety
    /// /// The memory stays as it is for as long as the handle and its calls use it.
    /// unsafe fn view(device: &Device, [rows, weights]: [u64; 2]) -> Result<DeviceTokens<f32>> {
    ///     let rows = RawRows::new(rows, 128 * 4).weights(weights);
    ///     // SAFETY: the caller's promise.
    ///     unsafe { DeviceTokens::from_raw_parts(device, rows, TokenLayout::padded(16, 32, 128)?) }
    /// }
    /// ```
    pub fn weights(self, weights: impl Into<Option<u64>>) -> RawRows {
        RawRows { weights: weights.into(), ..self }
    }

    /// Addresses of mask, segments and weights; 0 = none.
    pub(super) fn beside(&self) -> [u64; 3] {
        [self.mask, self.segments, self.weights].map(|address| address.unwrap_or(0))
    }
}

impl<T: Element> DeviceTokens<T> {
    /// Tokens in device memory of the caller, without a copy.
    ///
    /// `layout` (made without a mask) says which rows make up each item. A mask is read once here,
    /// to know which items are empty.
    /// Rows more than 2⁶² long cannot be normalised together with others as long
    /// ([`DeviceTokens::check_normalizable`] finds them).
    /// Rows that are not 16-byte aligned are scored too, by a slower kernel (but for queries of
    /// residual-compressed documents, whose rows must be).
    ///
    /// The memory must come from the device's primary context, as that of the CUDA runtime
    /// does. This is checked, and so are its range and alignment. Waits for the device.
    ///
    /// # Safety
    /// Until this handle and every graph that captured it are dropped *and* every call and
    /// launch that was given them has finished, the memory must stay allocated, and nothing may
    /// write to the matrix (during a call or launch) or to the mask (ever). Freeing the memory in
    /// the order of a stream, behind all such calls, is as good as freeing it when they have
    /// finished.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, [`Error::Shape`] for a pitch shorter than a
    /// row or a masked layout, [`Error::ForeignPointer`] for an address that is not such memory.
    pub unsafe fn from_raw_parts(
        device: &Device,
        rows: RawRows,
        layout: TokenLayout,
    ) -> Result<DeviceTokens<T>> {
        let cuda = device.cuda_device("memory of a CUDA device")?;
        let (access, layout, _) = matrix::<T>(cuda, rows, layout)?;
        let tokens = CudaTokens::view(cuda, T::TYPE, &layout, access, rows.beside())?;
        Ok(DeviceTokens::foreign(device.clone(), layout.into(), On::Cuda(Arc::new(tokens))))
    }

    /// As [`DeviceTokens::from_raw_parts`], for callers that know their memory: the driver is not
    /// asked about it, a mask is not read, and nothing is waited for. Where items lie one behind
    /// the other and are equally long, no memory is allocated on the device, and the handle may be
    /// made while a stream is captured.
    ///
    /// A layout that is kept, behind an [`Arc`], need not be made again for other memory. Rows with
    /// a mask have a layout [`with_unread_mask`](TokenLayout::with_unread_mask), or one that was
    /// made with the same mask.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::RawRows;
    /// use maxsim::half::f16;
    /// use maxsim::stream::{DeviceScores, Queue, Stream};
    /// use maxsim::{Device, DeviceTokens, Pairing, Result, ScoreOptions, TokenLayout};
    ///
    /// /// Scores f16 matrices `[n, len, 128]` of another library, on its stream.
    /// ///
    /// /// # Safety
    /// /// The memory stays as it is until the stream has done the call.
    /// unsafe fn score(
    ///     stream: &mut Stream,
    ///     [queries, documents]: [(u64, &Arc<TokenLayout>); 2],
    ///     scores: u64,
    /// ) -> Result<()> {
    ///     let device = stream.device().clone();
    ///     // SAFETY: the caller's promise.
    ///     let view = |(address, layout): (u64, &Arc<TokenLayout>)| unsafe {
    ///         let rows = RawRows::new(address, 256);
    ///         DeviceTokens::<f16>::from_raw_unchecked(&device, rows, layout.clone())
    ///     };
    ///     let (queries, documents) = (view(queries)?, view(documents)?);
    ///     let options = ScoreOptions::default();
    ///     let work = device.prepare_cached(&queries, &documents, &Pairing::cross(), &options)?;
    ///     // SAFETY: the caller's promise.
    ///     let scores = unsafe { DeviceScores::from_raw_unchecked(&work, scores, None, None) };
    ///     let mut scores = scores?;
    ///     stream.score_into(&queries, &documents, &work, &mut scores)
    /// }
    /// ```
    ///
    /// # Safety
    /// As [`DeviceTokens::from_raw_parts`], and the memory must be of the device: all rows of the
    /// layout, at an address and a pitch that are multiples of the element size, and with a mask
    /// one byte, with weights four for each of them. It may be freed in stream order: for work that
    /// is enqueued behind all calls that were given the handle. Mask and weights may be written
    /// between calls, the mask unless the layout was made with it. Segments must be within the
    /// rows, none longer than the layout says, when a call reads them; they too may be written
    /// between calls.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, [`Error::Shape`] for a pitch shorter than a row, and
    /// where one of layout and rows is masked, or has segments or weights, without the other.
    pub unsafe fn from_raw_unchecked(
        device: &Device,
        rows: RawRows,
        layout: impl Into<Arc<TokenLayout>>,
    ) -> Result<DeviceTokens<T>> {
        let (cuda, layout) = (device.cuda_device("memory of a CUDA device")?, layout.into());
        let access = trusted_matrix::<T>(rows, &layout)?;
        let tokens = CudaTokens::view(cuda, T::TYPE, &layout, access, rows.beside())?;
        Ok(DeviceTokens::foreign(device.clone(), layout, On::Cuda(Arc::new(tokens))))
    }
}

/// Refuses what one of layout and rows has without the other.
pub(super) fn check_beside(what: &str, has_layout: bool, address: Option<u64>) -> Result<()> {
    if has_layout == address.is_some() {
        return Ok(());
    }
    let word =
        |is: bool| if is { what.to_string() } else { format!("no {}", what.replace("a ", "")) };
    Err(Error::Shape {
        argument: "layout",
        expected: format!("{}, as the rows have", word(address.is_some())),
        found: word(has_layout),
    })
}

/// Checks the distance between rows.
fn check_pitch<F: Format>(layout: &TokenLayout, pitch_bytes: u64) -> Result<()> {
    let stored_bytes = size_of::<F::Stored>() as u64;
    let row_bytes = layout.dim() as u64 * stored_bytes;
    if pitch_bytes >= row_bytes && pitch_bytes.is_multiple_of(stored_bytes) {
        return Ok(());
    }
    Err(Error::Shape {
        argument: "pitch_bytes",
        expected: format!("a multiple of {stored_bytes}, at least {row_bytes}"),
        found: pitch_bytes.to_string(),
    })
}

/// Checks that a matrix of `F` in memory that its caller knows and its layout go together.
pub(super) fn trusted_matrix<F: Format>(rows: RawRows, layout: &TokenLayout) -> Result<Access> {
    let RawRows { address, pitch_bytes, mask, segments, weights } = rows;
    check_pitch::<F>(layout, pitch_bytes)?;
    check_beside("a mask", layout.is_masked(), mask)?;
    check_beside("segments", layout.is_unread(), segments)?;
    check_beside("weights", layout.is_weighted(), weights)?;
    Ok(Access { base: address, pitch_bytes, n_centroids: 0 })
}

/// Checks a matrix of `F`, and gives its address, its layout with the rows' mask, and that mask.
pub(super) fn matrix<F: Format>(
    device: &Arc<CudaDevice>,
    rows: RawRows,
    layout: TokenLayout,
) -> Result<(Access, TokenLayout, Option<Vec<u8>>)> {
    let RawRows { address, pitch_bytes, mask, segments, weights } = rows;
    layout.check_read("layout")?;
    layout.check_unweighted("of a layout", "give their address to RawRows::weights")?;
    check_beside("segments", false, segments)?;
    let stored_bytes = size_of::<F::Stored>() as u64;
    let row_bytes = layout.dim() as u64 * stored_bytes;
    check_pitch::<F>(&layout, pitch_bytes)?;
    if layout.is_masked() {
        return Err(Error::Shape {
            argument: "layout",
            expected: "a layout without a mask (give the mask's address)".into(),
            found: "a masked layout".into(),
        });
    }
    let len_bytes = extent_bytes(layout.rows(), row_bytes, pitch_bytes)?;
    check_range(device, address, len_bytes, stored_bytes)?;
    if let Some(weights) = weights {
        check_range(device, weights, layout.rows() as u64 * 4, 4)?;
    }
    let layout = layout.weighted_if(weights.is_some());
    let valid = mask.map(|mask| read_rows::<u8>(device, mask, layout.rows())).transpose()?;
    let layout = match &valid {
        Some(valid) => layout.with_mask(valid)?,
        None => layout,
    };
    Ok((Access { base: address, pitch_bytes, n_centroids: 0 }, layout, valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extent_ends_with_the_last_row_not_with_its_pitch() {
        assert_eq!(extent_bytes(0, 20, 32).unwrap(), 0);
        assert_eq!(extent_bytes(1, 20, 32).unwrap(), 20);
        assert_eq!(extent_bytes(3, 20, 32).unwrap(), 84);
        assert!(matches!(extent_bytes(3, 20, u64::MAX / 2), Err(Error::TooLarge { .. })));
    }
}
