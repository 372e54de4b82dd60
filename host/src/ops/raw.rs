//! Results in device memory of the caller.

use std::sync::Arc;

use maxsim_kernels::abi::params::quantize::pitch_bytes;

use crate::cuda::{CudaGradScores, CudaGradients, CudaOutputs, CudaTopK};
use crate::device::raw_codes::RawScaleWords;
use crate::device::stream::Stream;
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::backward::outputs::DeviceGradScores;
use crate::ops::backward::outputs::DeviceGradients;
use crate::ops::backward::prepared::PreparedBackward;
use crate::ops::score::prepared::DeviceScores;
use crate::ops::score::prepared::PreparedScore;
use crate::ops::top_k::prepared::{DeviceTopK, PreparedTopK};
use crate::problem::outputs::{OutputAddresses, Trust};
use crate::problem::provenance::LastProvenance;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::format::Quantized;
use crate::tokens::quantize::check_scales;
use crate::tokens::scales::ScaleType;

impl DeviceScores {
    /// Results of a work in device memory of the caller: `n_scores` f32 at `scores`
    /// and, exactly where the work was prepared for them, winners (see
    /// [`DeviceScores::winner_bytes`]) and f32 token scores. The memory's place, range and
    /// alignment are checked as for
    /// [`DeviceTokens::from_raw_parts`](crate::DeviceTokens::from_raw_parts); its contents stay as
    /// they are until the first call.
    ///
    /// # Safety
    /// Until this value and every graph that captured it are dropped *and* every call and
    /// launch that was given them has finished, the memory must stay allocated, and nothing else
    /// may write to it, or read it while a call or launch runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::Shape`] where winners or token
    /// scores are given but not asked for or the reverse, [`Error::ForeignPointer`].
    pub unsafe fn from_raw_parts(
        work: &PreparedScore,
        scores: u64,
        winners: Option<u64>,
        token_scores: Option<u64>,
    ) -> Result<DeviceScores> {
        // SAFETY: the caller's promise.
        unsafe { DeviceScores::of_raw(work, scores, winners, token_scores, Trust::Checked) }
    }

    /// As [`DeviceScores::from_raw_parts`], for callers that know their memory: the driver is not
    /// asked about it. Results may be in the memory of a captured call.
    ///
    /// # Safety
    /// As [`DeviceScores::from_raw_parts`], and the memory must be of the device and long enough.
    /// It may be freed in stream order, behind all calls that were given this value. The caller
    /// orders calls on different streams that use the memory: nothing is recorded of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::Shape`] where winners or token
    /// scores are given but not asked for or the reverse, [`Error::ForeignPointer`] for an address
    /// that is no multiple of the element size.
    pub unsafe fn from_raw_unchecked(
        work: &PreparedScore,
        scores: u64,
        winners: Option<u64>,
        token_scores: Option<u64>,
    ) -> Result<DeviceScores> {
        // SAFETY: the caller's promise.
        unsafe { DeviceScores::of_raw(work, scores, winners, token_scores, Trust::Unchecked) }
    }

    /// # Safety
    /// As [`DeviceScores::from_raw_unchecked`]; where the memory is checked, as
    /// [`DeviceScores::from_raw_parts`].
    unsafe fn of_raw(
        work: &PreparedScore,
        scores: u64,
        winners: Option<u64>,
        token_scores: Option<u64>,
        trust: Trust,
    ) -> Result<DeviceScores> {
        let cuda = work.device.cuda_device("memory of a CUDA device")?;
        let shape = &work.outputs;
        for (argument, is_given, is_wanted) in [
            ("winners", winners.is_some(), shape.winners),
            ("token_scores", token_scores.is_some(), shape.token_scores),
        ] {
            if is_given != is_wanted {
                let word = |is: bool| if is { "an address" } else { "no address" };
                let (expected, found) = (word(is_wanted).into(), word(is_given).into());
                return Err(Error::Shape { argument, expected, found });
            }
        }
        let addresses = OutputAddresses {
            scores,
            winners: winners.unwrap_or(0),
            token_scores: token_scores.unwrap_or(0),
        };
        // SAFETY: the caller's promise.
        let outputs = unsafe { CudaOutputs::from_raw_parts(cuda, shape, addresses, trust)? };
        Ok(DeviceScores {
            device: work.device.clone(),
            shape: shape.clone(),
            provenance: LastProvenance::default(),
            inner: On::Cuda(Arc::new(outputs)),
        })
    }
}

impl DeviceGradScores {
    /// Numbers in device memory of the caller: f32, one per score of the work.
    /// The memory's place, range and alignment are checked.
    ///
    /// # Safety
    /// Until this value and every graph that captured it are dropped *and* every call and launch
    /// that was given them has finished, the memory must stay allocated, and nothing may write to
    /// it while a call or launch runs, or read it while a loss does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`].
    pub unsafe fn from_raw_parts(
        work: &PreparedBackward,
        address: u64,
    ) -> Result<DeviceGradScores> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradScores::of_raw(work, address, Trust::Checked) }
    }

    /// As [`DeviceGradScores::from_raw_parts`], without asking the driver about the memory.
    ///
    /// # Safety
    /// As [`DeviceGradScores::from_raw_parts`], and the memory must be of the device and long
    /// enough. It may be freed in stream order, behind all calls that were given this value. The
    /// caller orders calls on different streams that use the memory: nothing is recorded of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`] for an address that
    /// is no multiple of 4.
    pub unsafe fn from_raw_unchecked(
        work: &PreparedBackward,
        address: u64,
    ) -> Result<DeviceGradScores> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradScores::of_raw(work, address, Trust::Unchecked) }
    }

    /// # Safety
    /// As [`DeviceGradScores::from_raw_unchecked`]; where the memory is checked, as
    /// [`DeviceGradScores::from_raw_parts`].
    unsafe fn of_raw(
        work: &PreparedBackward,
        address: u64,
        trust: Trust,
    ) -> Result<DeviceGradScores> {
        let device = work.device.cuda_device("memory of a CUDA device")?;
        let n_scores = work.outputs.shape.n_scores();
        // SAFETY: the caller's promise.
        let own = unsafe { CudaGradScores::from_raw_parts(device, address, n_scores, trust)? };
        let inner = On::Cuda(Arc::new(own));
        Ok(DeviceGradScores { device: work.device.clone(), n_scores, inner })
    }
}

impl DeviceGradients {
    /// Gradients in device memory of the caller: of queries and of documents, each
    /// `[rows, dim]` of its token matrix without gaps, in elements of
    /// [`PreparedBackward::element_type`]; and of the queries' weights, an f32 per row, where they
    /// have any and their gradient is wanted. The memory's place, range and alignment are checked;
    /// its contents stay as they are until the first call.
    ///
    /// # Safety
    /// Until this value and every graph that captured it are dropped *and* every call and launch
    /// that was given them has finished, the memory must stay allocated, and nothing else may write
    /// to it, or read it while a call or launch runs. It may not be memory that the call reads, and
    /// the gradients may not overlap.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`], and
    /// [`Error::Shape`] for an address of weights' gradients where there are none.
    pub unsafe fn from_raw_parts(
        work: &PreparedBackward,
        queries: u64,
        documents: u64,
        weights: Option<u64>,
    ) -> Result<DeviceGradients> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradients::of_raw(work, [queries, documents], weights, Trust::Checked) }
    }

    /// As [`DeviceGradients::from_raw_parts`], without asking the driver about the memory.
    ///
    /// # Safety
    /// As [`DeviceGradients::from_raw_parts`], and the memory must be of the device and long
    /// enough. It may be freed in stream order, behind all calls that were given this value. The
    /// caller orders calls on different streams that use the memory: nothing is recorded of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`] for an address that
    /// is no multiple of the element size.
    pub unsafe fn from_raw_unchecked(
        work: &PreparedBackward,
        queries: u64,
        documents: u64,
        weights: Option<u64>,
    ) -> Result<DeviceGradients> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradients::of_raw(work, [queries, documents], weights, Trust::Unchecked) }
    }

    /// # Safety
    /// As [`DeviceGradients::from_raw_unchecked`]; where the memory is checked, as
    /// [`DeviceGradients::from_raw_parts`].
    unsafe fn of_raw(
        work: &PreparedBackward,
        sides: [u64; 2],
        weights: Option<u64>,
        trust: Trust,
    ) -> Result<DeviceGradients> {
        let device = work.device.cuda_device("memory of a CUDA device")?;
        if weights.is_some() && !work.has_weights_gradient() {
            return Err(Error::Shape {
                argument: "weights",
                expected: "None: queries have no weights, or their gradient is not wanted".into(),
                found: "an address".into(),
            });
        }
        let matrices = work.matrices(sides, weights);
        // SAFETY: the caller's promise.
        let gradients = unsafe { CudaGradients::from_raw_parts(device, matrices, trust)? };
        Ok(DeviceGradients::of(work, On::Cuda(Arc::new(gradients))))
    }
}

impl DeviceTopK {
    /// The best of each query in device memory of the caller: keys and counts, of
    /// [`PreparedTopK::len_bytes`]. The memory's place, range and alignment are checked; its
    /// contents stay as they are until the first call, which is a
    /// [`Queue::top_k_into`](crate::stream::Queue::top_k_into), unless they are zeros, which are no
    /// documents.
    ///
    /// # Safety
    /// Until this value and every graph that captured it are dropped *and* every call and launch
    /// that was given them has finished, the memory must stay allocated, and nothing else may write
    /// to it, or read it while a call or launch runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`].
    pub unsafe fn from_raw_parts(
        work: &PreparedTopK,
        keys: u64,
        counts: u64,
    ) -> Result<DeviceTopK> {
        // SAFETY: the caller's promise.
        unsafe { DeviceTopK::of_raw(work, [keys, counts], Trust::Checked) }
    }

    /// As [`DeviceTopK::from_raw_parts`], without asking the driver about the memory.
    ///
    /// # Safety
    /// As [`DeviceTopK::from_raw_parts`], and the memory must be of the device and long enough. It
    /// may be freed in stream order, behind all calls that were given this value. The caller orders
    /// calls on different streams that use the memory: nothing is recorded of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`] for an address that
    /// is no multiple of 8.
    pub unsafe fn from_raw_unchecked(
        work: &PreparedTopK,
        keys: u64,
        counts: u64,
    ) -> Result<DeviceTopK> {
        // SAFETY: the caller's promise.
        unsafe { DeviceTopK::of_raw(work, [keys, counts], Trust::Unchecked) }
    }

    /// # Safety
    /// As [`DeviceTopK::from_raw_unchecked`]; where the memory is checked, as
    /// [`DeviceTopK::from_raw_parts`].
    unsafe fn of_raw(work: &PreparedTopK, addresses: [u64; 2], trust: Trust) -> Result<DeviceTopK> {
        let device = work.device().cuda_device("memory of a CUDA device")?;
        // SAFETY: the caller's promise.
        let keys = unsafe { CudaTopK::from_raw_parts(device, work.shape(), addresses, trust)? };
        Ok(DeviceTopK::of_keys(work, keys))
    }
}

/// Room for codes and their scales in device memory of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RawCodes {
    codes: u64,
    scales: RawScaleWords,
}

impl RawCodes {
    /// Codes from an address on, which is a multiple of 16, and scales elsewhere.
    pub fn new(codes: u64, scales: RawScaleWords) -> RawCodes {
        RawCodes { codes, scales }
    }

    /// Bytes from one row of codes to the next: dim, rounded up to a multiple of 16.
    pub const fn pitch_bytes(dim: usize) -> u64 {
        pitch_bytes(dim) as u64
    }
}

impl Stream {
    /// Enqueues the compression of tokens to codes and scales in memory of the caller. They are
    /// those of [`DeviceTokens::quantize`] to the bit; layout and mask are not written anywhere.
    /// Does not wait, and allocates nothing.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::{Int8, RawCodes, RawRows, RawScaleWords, ScaleType};
    /// use maxsim::half::f16;
    /// use maxsim::stream::Stream;
    /// use maxsim::{DeviceTokens, Result, TokenLayout};
    ///
    /// /// Compresses f16 rows of another library, and views the codes. Nothing is waited for.
    /// ///
    /// /// # Safety
    /// /// What it allocates stays until the stream has done all calls that use it.
    /// unsafe fn compress(
    ///     stream: &mut Stream,
    ///     rows: RawRows,
    ///     layout: &Arc<TokenLayout>,
    ///     allocate: impl Fn(u64) -> u64,
    /// ) -> Result<DeviceTokens<Int8>> {
    ///     let (device, n, dim) = (stream.device().clone(), layout.rows(), layout.dim());
    ///     let pitch_bytes = RawCodes::pitch_bytes(dim);
    ///     let codes = allocate(n as u64 * pitch_bytes);
    ///     let scales = RawScaleWords::new(allocate(RawScaleWords::len_bytes(n)));
    ///     // SAFETY: the caller's promise.
    ///     unsafe {
    ///         let tokens = DeviceTokens::from_raw_unchecked(&device, rows, layout.clone())?;
    ///         let to = RawCodes::new(codes, scales);
    ///         stream.quantize_into::<f16, Int8>(&tokens, ScaleType::F16, to)?;
    ///         let codes = RawRows::new(codes, pitch_bytes);
    ///         DeviceTokens::from_raw_codes_unchecked(&device, codes, scales, layout.clone())
    ///     }
    /// }
    /// ```
    ///
    /// # Safety
    /// There must be device memory for [`RawCodes::pitch_bytes`] per row of the tokens' matrix and
    /// for [`RawScaleWords::len_bytes`]. Until the call has finished it must stay allocated, and
    /// nothing else may use it; so must the tokens' memory, where it is the caller's. All of it may
    /// be freed in stream order, behind the call.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, for scales that the format does not have, and for
    /// [`ScaleType::Tensor`], whose scale has to be waited for; [`Error::WrongDevice`];
    /// [`Error::ForeignPointer`] for addresses that are no multiples of 16.
    pub unsafe fn quantize_into<T: Element, F: Quantized>(
        &mut self,
        tokens: &DeviceTokens<T>,
        scales: ScaleType,
        to: RawCodes,
    ) -> Result<()> {
        check_scales::<F>(scales)?;
        self.device.check_same("tokens", tokens.device())?;
        self.device.cuda_device("memory of a CUDA device")?;
        if scales == ScaleType::Tensor {
            return Err(Error::Unsupported {
                what: "one scale for all rows in stream order".into(),
                why: "it has to be known before codes are made; use DeviceTokens::quantize".into(),
            });
        }
        let RawCodes { codes, scales: words } = to;
        if !codes.is_multiple_of(CODES_ALIGN_BYTES) {
            let why = format!("codes are written {CODES_ALIGN_BYTES} bytes at once");
            return Err(Error::ForeignPointer { address: codes, why });
        }
        let to = [codes, words.checked()?];
        match &mut self.inner {
            On::Cpu(()) => Ok(()),
            On::Cuda(stream) => {
                // SAFETY: the caller's promise.
                unsafe { tokens.cuda_tokens()?.quantize_into::<T>(stream, F::FORMAT, scales, to) }
            }
        }
    }
}

/// What codes that are made in memory of the caller are aligned to.
const CODES_ALIGN_BYTES: u64 = 16;
