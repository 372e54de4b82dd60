//! Results in device memory of the caller.

use std::sync::Arc;

use crate::cuda::{CudaGradScores, CudaGradients, CudaOutputs};
use crate::error::{Error, Result};
use crate::ops::backward::outputs::DeviceGradScores;
use crate::ops::backward::outputs::DeviceGradients;
use crate::ops::backward::prepared::PreparedBackward;
use crate::ops::score::prepared::DeviceScores;
use crate::ops::score::prepared::PreparedScore;
use crate::problem::outputs::{OutputAddresses, Trust};
use crate::problem::provenance::LastProvenance;
use crate::runtime::on::On;

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
    /// [`PreparedBackward::element_type`]. The memory's place, range and alignment are checked; its
    /// contents stay as they are until the first call.
    ///
    /// # Safety
    /// Until this value and every graph that captured it are dropped *and* every call and launch
    /// that was given them has finished, the memory must stay allocated, and nothing else may write
    /// to it, or read it while a call or launch runs. It may not be memory that the call reads, and
    /// the two gradients may not overlap.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a work of the CPU, [`Error::ForeignPointer`].
    pub unsafe fn from_raw_parts(
        work: &PreparedBackward,
        queries: u64,
        documents: u64,
    ) -> Result<DeviceGradients> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradients::of_raw(work, [queries, documents], Trust::Checked) }
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
    ) -> Result<DeviceGradients> {
        // SAFETY: the caller's promise.
        unsafe { DeviceGradients::of_raw(work, [queries, documents], Trust::Unchecked) }
    }

    /// # Safety
    /// As [`DeviceGradients::from_raw_unchecked`]; where the memory is checked, as
    /// [`DeviceGradients::from_raw_parts`].
    unsafe fn of_raw(
        work: &PreparedBackward,
        addresses: [u64; 2],
        trust: Trust,
    ) -> Result<DeviceGradients> {
        let device = work.device.cuda_device("memory of a CUDA device")?;
        let matrices = work.matrices(addresses);
        // SAFETY: the caller's promise.
        let gradients = unsafe { CudaGradients::from_raw_parts(device, matrices, trust)? };
        Ok(DeviceGradients::of(work, On::Cuda(Arc::new(gradients))))
    }
}
