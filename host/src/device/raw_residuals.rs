//! Residual-compressed tokens in device memory of the caller.

use std::sync::Arc;

use maxsim_kernels::abi::params::NORMS_PADDING;
use maxsim_kernels::abi::residual_chunk::{centroid_bytes, row_bytes};

use super::Device;
use super::raw::check_beside;
use super::stream::Stream;
use super::tokens::DeviceTokens;
use crate::cuda::CudaTokens;
use crate::error::{Error, Result};
use crate::plan::limits::ResidualAddresses;
use crate::residual::arrangement::WEIGHT_BYTES;
use crate::residual::codec::check_nbits;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::format::Residual;
use crate::tokens::layout::TokenLayout;

/// Residual-compressed tokens in device memory of the caller, arranged as GPUs decode them: see
/// [`Arrangement`](crate::residual::Arrangement), whose `padding_rows` codes, residuals and norms
/// have behind the last row. Addresses are multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RawResiduals {
    nbits: u32,
    codes: u64,
    residuals: u64,
    centroids: u64,
    n_centroids: usize,
    weights: u64,
    norms: Option<u64>,
    mask: Option<u64>,
    segments: Option<u64>,
}

impl RawResiduals {
    /// Tokens with buckets of `nbits` bits: addresses of one u32 per row, the id of its centroid,
    /// and of the rows' residuals; of so many centroids in the queries' element type; and of the
    /// tables of bucket weights.
    pub fn new(
        nbits: u32,
        [codes, residuals]: [u64; 2],
        (centroids, n_centroids): (u64, usize),
        weights: u64,
    ) -> RawResiduals {
        RawResiduals {
            nbits,
            codes,
            residuals,
            centroids,
            n_centroids,
            weights,
            norms: None,
            mask: None,
            segments: None,
        }
    }

    /// With room for what tokens are normalised by, one f32 per row, which
    /// [`Stream::find_residual_norms`] writes; without it they are not normalised.
    pub fn norms(self, norms: impl Into<Option<u64>>) -> RawResiduals {
        RawResiduals { norms: norms.into(), ..self }
    }

    /// With a mask: the address of one byte per row, non-zero = valid.
    pub fn mask(self, mask: impl Into<Option<u64>>) -> RawResiduals {
        RawResiduals { mask: mask.into(), ..self }
    }

    /// With items that the host does not know ([`TokenLayout::unread`]), as
    /// [`RawRows::segments`](crate::format::RawRows::segments): candidates, say, that a device has
    /// named.
    pub fn segments(self, segments: impl Into<Option<u64>>) -> RawResiduals {
        RawResiduals { segments: segments.into(), ..self }
    }

    /// Bytes of the memory of so many rows of `dim` elements: codes, residuals, centroids, tables
    /// of bucket weights, and norms or what they take.
    ///
    /// ```
    /// use maxsim::format::RawResiduals;
    ///
    /// let [codes, residuals, centroids, ..] = RawResiduals::lens_bytes(2, 64, 1000, 128);
    /// assert!(codes > 4 * 1000 && residuals > 32 * 1000);
    /// assert_eq!(centroids, 64 * 256);
    /// ```
    pub const fn lens_bytes(nbits: u32, n_centroids: usize, rows: usize, dim: usize) -> [u64; 5] {
        let n = rows as u64 + NORMS_PADDING as u64;
        let centroids = n_centroids as u64 * centroid_bytes(dim) as u64;
        [n * 4, n * row_bytes(dim, nbits) as u64, centroids, WEIGHT_BYTES as u64, n * 4]
    }

    /// The addresses, where kernels can read from them.
    fn checked(&self) -> Result<ResidualAddresses> {
        let RawResiduals { codes, residuals, centroids, weights, norms, .. } = *self;
        let norms = norms.unwrap_or(0);
        let all = [codes, residuals, centroids, weights, norms];
        match all.iter().find(|address| !address.is_multiple_of(ALIGN_BYTES)) {
            None => Ok(ResidualAddresses { codes, residuals, centroids, weights, norms }),
            Some(&address) => {
                let why = format!("residuals and their tables are aligned to {ALIGN_BYTES} bytes");
                Err(Error::ForeignPointer { address, why })
            }
        }
    }
}

/// What residuals and their tables are aligned to: kernels load 16 bytes at once.
const ALIGN_BYTES: u64 = 16;

impl<T: Element> DeviceTokens<Residual<T>> {
    /// Residual-compressed tokens in device memory of the caller, without a copy, for callers that
    /// know their memory: the driver is not asked about it, nothing is read here, and nothing is
    /// waited for. Where items lie one behind the other and are equally long, no memory is
    /// allocated on the device.
    ///
    /// What a device multiplies stands at
    /// [`Device::upload_residual`](crate::Device::upload_residual); `layout` as that of
    /// [`DeviceTokens::from_raw_unchecked`].
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::{RawResiduals, Residual};
    /// use maxsim::half::f16;
    /// use maxsim::stream::Stream;
    /// use maxsim::{DeviceTokens, Result, TokenLayout};
    ///
    /// /// Documents of another library's index, for f16 queries.
    /// ///
    /// /// # Safety
    /// /// The memory is arranged as GPUs decode it, and stays until the stream has done all calls
    /// /// that use it.
    /// unsafe fn view(
    ///     stream: &mut Stream,
    ///     [codes, residuals, centroids, weights, norms]: [u64; 5],
    ///     layout: &Arc<TokenLayout>,
    /// ) -> Result<DeviceTokens<Residual<f16>>> {
    ///     let device = stream.device().clone();
    ///     let raw = RawResiduals::new(4, [codes, residuals], (centroids, 65536), weights);
    ///     let raw = raw.norms(norms).mask(None).segments(None);
    ///     // SAFETY: the caller's promise.
    ///     unsafe {
    ///         let documents = DeviceTokens::from_raw_residuals(&device, raw, layout.clone())?;
    ///         stream.find_residual_norms(&documents)?; // once
    ///         Ok(documents)
    ///     }
    /// }
    /// ```
    ///
    /// # Safety
    /// The memory must be of the device and as long as [`RawResiduals`] says. Codes, those of the
    /// padding too, must be ids of centroids. Centroids, weights and their sums must be finite
    /// where a token that is not is to be seen as such; norms must be those of the rows before
    /// scores are computed. As for [`DeviceTokens::from_raw_unchecked`], memory may be freed in
    /// stream order behind all calls that were given the handle, and written between them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, and for f32 queries; [`Error::Shape`] for other bits than
    /// 1, 2, 4 and 8, for rows without a centroid, and where one of layout and rows is masked, or
    /// has segments, without the other; [`Error::ForeignPointer`] for an address that is no
    /// multiple of 16.
    pub unsafe fn from_raw_residuals(
        device: &Device,
        raw: RawResiduals,
        layout: impl Into<Arc<TokenLayout>>,
    ) -> Result<DeviceTokens<Residual<T>>> {
        let (cuda, layout) = (device.cuda_device("memory of a CUDA device")?, layout.into());
        let RawResiduals { nbits, n_centroids, mask, segments, .. } = raw;
        check_nbits(nbits)?;
        check_beside("a mask", layout.is_masked(), mask)?;
        check_beside("segments", layout.is_unread(), segments)?;
        let is_count = u32::try_from(n_centroids).is_ok();
        if !is_count || n_centroids == 0 && layout.rows() > 0 {
            return Err(Error::Shape {
                argument: "centroids",
                expected: "at least one, and less than 2^32".into(),
                found: n_centroids.to_string(),
            });
        }
        let (addresses, tables) = (raw.checked()?, (nbits, n_centroids));
        let beside = [mask, segments].map(|address| address.unwrap_or(0));
        let tokens = CudaTokens::view_residual(cuda, T::TYPE, &layout, addresses, tables, beside)?;
        Ok(DeviceTokens::foreign(device.clone(), layout, On::Cuda(Arc::new(tokens))))
    }

    /// The same tokens as other items, which the device alone knows: candidates, say, that it has
    /// named. Nothing is copied, allocated or waited for; the memory of the tokens stays for as
    /// long as either handle uses it.
    ///
    /// `layout` is [`TokenLayout::unread`], of as many rows, and masked where these tokens are;
    /// `segments` as those of [`RawRows::segments`](crate::format::RawRows::segments).
    ///
    /// ```no_run
    /// use maxsim::format::{RawIndices, RawItems, RawItemsOut, Residual};
    /// use maxsim::half::f16;
    /// use maxsim::stream::Stream;
    /// use maxsim::{DeviceTokens, Result, TokenLayout};
    ///
    /// /// The documents of an index, 180 tokens each, that a list on the device names.
    /// ///
    /// /// # Safety
    /// /// The memory stays as it is until the stream has done the calls that are given the handle.
    /// unsafe fn candidates(
    ///     stream: &mut Stream,
    ///     index: &DeviceTokens<Residual<f16>>,
    ///     (n, ids): (usize, u64),
    ///     [segments, invalid]: [u64; 2],
    /// ) -> Result<DeviceTokens<Residual<f16>>> {
    ///     let (rows, n_documents) = (index.layout().rows(), index.layout().n_items());
    ///     let items = RawItems::padded(n_documents, 180, 180, rows);
    ///     let items = items.with_ids(n, RawIndices::I64(ids));
    ///     let layout = TokenLayout::unread(rows, index.layout().dim(), n, 180, 180)?;
    ///     // SAFETY: the caller's promise.
    ///     unsafe {
    ///         stream.write_segments(&items, RawItemsOut::new(invalid).segments(segments))?;
    ///         index.with_raw_segments(segments, layout)
    ///     }
    /// }
    /// ```
    ///
    /// # Safety
    /// Segments must be within the rows, none longer than the layout says, when a call reads them.
    /// They may be written between calls, and freed in stream order behind all calls that were
    /// given the handle.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU; [`Error::Shape`] for a layout whose items the host knows,
    /// or of another matrix, or where one of tokens and layout is masked without the other.
    pub unsafe fn with_raw_segments(
        &self,
        segments: u64,
        layout: impl Into<Arc<TokenLayout>>,
    ) -> Result<DeviceTokens<Residual<T>>> {
        let (cuda, layout) = (self.device().cuda_device("segments in memory")?, layout.into());
        let of = |layout: &TokenLayout| [layout.rows(), layout.dim()];
        let (found, wanted) = (of(&layout), of(self.layout()));
        if found != wanted {
            return Err(Error::Shape {
                argument: "layout",
                expected: format!("rows and dim {wanted:?} like the tokens"),
                found: format!("{found:?}"),
            });
        }
        let tokens = self.cuda_tokens()?;
        check_beside("segments", layout.is_unread(), Some(segments))?;
        check_beside("a mask", layout.is_masked(), tokens.is_masked().then_some(0))?;
        let view = tokens.of_segments(cuda, &layout, segments)?;
        Ok(DeviceTokens::foreign(self.device().clone(), layout, On::Cuda(Arc::new(view))))
    }
}

impl Stream {
    /// Enqueues the kernel that finds what the rows of
    /// [`DeviceTokens::from_raw_residuals`](crate::DeviceTokens::from_raw_residuals) are normalised
    /// by, in the memory that these have for it. Does not wait, and allocates nothing.
    ///
    /// # Safety
    /// `documents` must be such a handle. Until the kernel has run nothing else may use its norms.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU; [`Error::WrongDevice`].
    pub unsafe fn find_residual_norms<T: Element>(
        &mut self,
        documents: &DeviceTokens<Residual<T>>,
    ) -> Result<()> {
        self.device.check_same("documents", documents.device())?;
        self.device.cuda_device("memory of a CUDA device")?;
        let dim = documents.layout().dim();
        match &mut self.inner {
            On::Cpu(()) => Ok(()),
            On::Cuda(stream) => {
                // SAFETY: the caller's promise.
                unsafe { documents.cuda_tokens()?.write_residual_norms(stream, T::TYPE, dim) }
            }
        }
    }
}
