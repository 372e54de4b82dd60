//! Gradients of projected documents in device memory of the caller.

use std::sync::Arc;

use super::Projection;
use super::projector::Projector;
use super::training::{
    DeviceProjectedGradients, PreparedProjectedTraining, ProjectedAddresses, ProjectedStep, Room,
};
use crate::cuda::{CudaDevice, CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::backward::outputs::DeviceGradScores;
use crate::problem::Problem;
use crate::problem::outputs::{GradientMatrix, Trust};
use crate::problem::pairing::Pairing;
use crate::runtime::on::On;
use crate::tokens::element::Element;

/// Bytes of a winner of the caller's: an i32.
const WINNER_BYTES: u64 = 4;

/// Room for gradients at the addresses of matrices.
///
/// # Safety
/// As [`PreparedProjectedTraining::gradients_from_raw_unchecked`].
unsafe fn gradients_at(
    device: &Arc<CudaDevice>,
    parts: [[GradientMatrix; 3]; 2],
) -> Result<[Arc<CudaGradients>; 2]> {
    // SAFETY: the caller's promise.
    let of = |parts| unsafe { CudaGradients::from_raw_parts(device, parts, Trust::Unchecked) };
    let [sides, layer] = parts;
    Ok([Arc::new(of(sides)?), Arc::new(of(layer)?)])
}

impl<T: Element> PreparedProjectedTraining<'_, T> {
    /// Room for gradients, as [`PreparedProjectedTraining::new_gradients`], in device memory of the
    /// caller. The driver is not asked about the memory.
    ///
    /// # Safety
    /// The memory must be of the device and long enough, and nothing else may use it while a call
    /// that was given this value runs. It may not be memory that the call reads, and the gradients
    /// may not overlap.
    ///
    /// # Errors
    /// [`Error::Shape`] for an address of a gradient that there is not, and where one is missing;
    /// [`Error::ForeignPointer`] for an address that is no multiple of the element size.
    pub unsafe fn gradients_from_raw_unchecked(
        &self,
        to: ProjectedAddresses,
    ) -> Result<DeviceProjectedGradients> {
        let cuda = self.device().cuda_device("memory of a CUDA device")?;
        // SAFETY: the caller's promise.
        let parts = unsafe { gradients_at(cuda, self.room.at(to)?)? };
        Ok(DeviceProjectedGradients { device: self.device().clone(), parts })
    }

    /// Gradients of scores in device memory of the caller: an f32 each. The driver is not asked
    /// about the memory.
    ///
    /// ```no_run
    /// use maxsim::Result;
    /// use maxsim::projection::{PreparedProjectedTraining, ProjectedAddresses};
    ///
    /// /// Gradients of the last scores, from and to memory of another library.
    /// ///
    /// /// # Safety
    /// /// There is an f32 for each score, and room.
    /// unsafe fn backward(
    ///     work: &mut PreparedProjectedTraining<'_, f32>,
    ///     queries: &maxsim::DeviceTokens<f32>,
    ///     grad_scores: u64,
    ///     to: ProjectedAddresses,
    /// ) -> Result<()> {
    ///     // SAFETY: the caller's promise.
    ///     let (grad_scores, mut to) = unsafe {
    ///         let to = work.gradients_from_raw_unchecked(to)?;
    ///         (work.grad_scores_from_raw_unchecked(grad_scores)?, to)
    ///     };
    ///     work.backward(queries, &grad_scores, &mut to)
    /// }
    /// ```
    ///
    /// # Safety
    /// The memory must be of the device and long enough, and may not be written to while a call
    /// that was given this value runs.
    ///
    /// # Errors
    /// [`Error::ForeignPointer`] for an address that is no multiple of 4.
    pub unsafe fn grad_scores_from_raw_unchecked(&self, address: u64) -> Result<DeviceGradScores> {
        let cuda = self.device().cuda_device("memory of a CUDA device")?;
        let n_scores = self.n_scores();
        // SAFETY: the caller's promise.
        let own =
            unsafe { CudaGradScores::from_raw_parts(cuda, address, n_scores, Trust::Unchecked)? };
        let inner = On::Cuda(Arc::new(own));
        Ok(DeviceGradScores { device: self.device().clone(), n_scores, inner })
    }
}

impl Device {
    /// Writes the gradients that [`Device::backward_projected`] finds to device memory of the
    /// caller, in f32 or the element type, from winners and gradients of scores that are there,
    /// too; and waits for them. For callers that keep winners between scores and gradients;
    /// others have [`Device::prepare_projected_training`].
    ///
    /// ```no_run
    /// use maxsim::half::bf16;
    /// use maxsim::projection::{ProjectedAddresses, ProjectedStep, Projection};
    /// use maxsim::training::GradientType;
    /// use maxsim::{Device, DeviceTokens, Pairing, Result};
    ///
    /// /// Gradients of a step of another library, in its memory.
    /// ///
    /// /// # Safety
    /// /// There are winners and gradients of all scores, and room for the gradients.
    /// unsafe fn backward(
    ///     device: &Device,
    ///     [queries, hidden]: [&DeviceTokens<bf16>; 2],
    ///     head: &Projection<'_, bf16>,
    ///     [winners, grad_scores]: [u64; 2],
    ///     to: ProjectedAddresses,
    /// ) -> Result<()> {
    ///     let (cross, gradients) = (Pairing::cross(), GradientType::Tokens);
    ///     let step = ProjectedStep { winners, grad_scores, to, gradients };
    ///     // SAFETY: the caller's promise.
    ///     unsafe { device.backward_projected_into(queries, hidden, head, &cross, &step) }
    /// }
    /// ```
    ///
    /// # Safety
    /// The memory must be of the device, long enough, and ready: nothing else may write to any of
    /// it, or read the gradients, before this returns. Gradients may not overlap, nor be memory
    /// that the call reads.
    ///
    /// # Errors
    /// Those of [`Device::score_projected`]; [`Error::Unsupported`] on the CPU; [`Error::Shape`]
    /// for an address of a gradient that there is not, and where one is missing;
    /// [`Error::ForeignPointer`] for addresses that are no multiples of the size of an element.
    pub unsafe fn backward_projected_into<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
        pairing: &Pairing,
        step: &ProjectedStep,
    ) -> Result<()> {
        let &ProjectedStep { winners, grad_scores, to, gradients } = step;
        let (queries, hidden) = (queries.into(), hidden.into());
        let cuda = self.cuda_device("gradients of projections that stay on a device")?;
        queries.check_device("queries", self)?;
        if !winners.is_multiple_of(WINNER_BYTES) {
            let why = format!("it must be a multiple of {WINNER_BYTES}");
            return Err(Error::ForeignPointer { address: winners, why });
        }
        let projector = Projector::new(self, projection, hidden)?;
        let documents = hidden.layout().projected(projection.dim());
        let problem = Problem::new(queries.layout(), &documents, pairing)?;
        let offsets = problem.token_offsets();
        let place = |p: usize| {
            let first = offsets.range(p).start as u64;
            (winners + first * WINNER_BYTES, WINNER_BYTES as u32)
        };
        let room = Room::new(queries.layout(), hidden.layout(), projection, gradients).at(to)?;
        let n_scores = problem.shape().n_scores();
        let mut own = None;
        let queries = queries.cuda_tokens(self, &mut own)?;
        // SAFETY: the caller's promise.
        unsafe {
            let parts = gradients_at(cuda, room)?;
            let grad_scores =
                CudaGradScores::from_raw_parts(cuda, grad_scores, n_scores, Trust::Unchecked)?;
            let mut work = projector.backward(&problem, projection.hidden(), &place)?;
            work.run(queries, &grad_scores, [&parts[0], &parts[1]])
        }
    }
}
