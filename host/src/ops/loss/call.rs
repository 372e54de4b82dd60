//! Calls of losses: checked, enqueued or captured, and on the CPU run.

use std::sync::{Arc, Mutex};

use super::prepared::{CpuLossWork, CpuTargets, DeviceLoss, LossWork};
use super::{Loss, contrastive, distillation};
use crate::cuda::{CudaCall, CudaGradScores, CudaLoss, CudaLossWork, CudaOutputs};
use crate::device::Device;
use crate::device::graph::Capture;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::ops::backward::prepared::DeviceGradScores;
use crate::ops::score::prepared::DeviceScores;
use crate::problem::scores::Scores;
use crate::runtime::on::On;
use crate::runtime::swap::{Replaced, lock};
use crate::tokens::layout::check_len;

/// What a call is given.
struct Call<'a> {
    scores: &'a DeviceScores,
    grad_scores: &'a DeviceGradScores,
    loss: &'a DeviceLoss,
}

impl LossWork {
    /// Checks that a call on `device` is one that the work was prepared for.
    fn check(&self, device: &Device, call: &Call<'_>) -> Result<()> {
        device.check_same("work", &self.device)?;
        device.check_same("scores", &call.scores.device)?;
        let shape = call.scores.shape();
        let n_scores = self.n_queries * self.n_documents;
        let rows_fit = shape.row_len().is_none_or(|len| len == self.n_documents || n_scores == 0);
        if shape.n_scores() != n_scores || !rows_fit {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!(
                    "scores of {} queries with {} documents each",
                    self.n_queries, self.n_documents
                ),
                found: format!("{} scores {shape:?}", shape.n_scores()),
            });
        }
        device.check_same("grad_scores", &call.grad_scores.device)?;
        check_len("grad_scores", n_scores, "one per score", call.grad_scores.n_scores)?;
        device.check_same("loss", &call.loss.device)?;
        if call.loss.n_queries != self.n_queries {
            return Err(Error::Shape {
                argument: "loss",
                expected: format!("room for a loss over {} queries", self.n_queries),
                found: format!("room for one over {}", call.loss.n_queries),
            });
        }
        Ok(())
    }
}

impl Stream {
    /// Enqueues a loss of scores and its gradients with respect to them, which
    /// [`Stream::backward`] takes. Overwrites both. Does not wait, and on a CUDA device allocates
    /// nothing.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], or [`Error::Shape`] where scores, gradients or loss are not of as
    /// many queries and documents as the work was prepared for; nothing is enqueued then.
    pub fn loss(
        &mut self,
        work: &LossWork,
        scores: &DeviceScores,
        grad_scores: &mut DeviceGradScores,
        loss: &mut DeviceLoss,
    ) -> Result<()> {
        let call = Call { scores, grad_scores, loss };
        work.check(&self.device, &call)?;
        match &mut self.inner {
            On::Cpu(()) => CpuCall::new(work, &call)?.run(),
            On::Cuda(stream) => {
                let (work, scores, grad_scores, loss) = call.on_cuda(work)?;
                work.enqueue(stream, scores, grad_scores, loss)
            }
        }
    }
}

impl Capture {
    /// Adds a loss of scores and its gradients with respect to them, to run after the calls before
    /// it. Overwrites both.
    ///
    /// # Errors
    /// Those of [`Stream::loss`].
    pub fn loss(
        &mut self,
        work: &LossWork,
        scores: &DeviceScores,
        grad_scores: &mut DeviceGradScores,
        loss: &mut DeviceLoss,
    ) -> Result<()> {
        let call = Call { scores, grad_scores, loss };
        work.check(self.device(), &call)?;
        match &work.inner {
            On::Cpu(_) => {
                let call = CpuCall::new(work, &call)?;
                self.push_cpu(move || call.run());
            }
            On::Cuda(_) => {
                let (work, scores, grad_scores, loss) = call.on_cuda(work)?;
                self.push_cuda(CudaCall::loss(work, scores, grad_scores, loss));
            }
        }
        Ok(())
    }
}

type OnCuda<'a> =
    (&'a Arc<CudaLossWork>, &'a Arc<CudaOutputs>, &'a Arc<CudaGradScores>, &'a Arc<CudaLoss>);

impl<'a> Call<'a> {
    /// What the call uses on a CUDA device.
    fn on_cuda(&self, work: &'a LossWork) -> Result<OnCuda<'a>> {
        match (&work.inner, &self.scores.inner, &self.grad_scores.inner, &self.loss.inner) {
            (On::Cuda(work), On::Cuda(scores), On::Cuda(grad_scores), On::Cuda(loss)) => {
                Ok((work, scores, grad_scores, loss))
            }
            _ => Err(self.wrong_device()),
        }
    }

    fn wrong_device(&self) -> Error {
        let (expected, found) = (self.scores.device.to_string(), "another device".into());
        Error::WrongDevice { argument: "loss", expected, found }
    }
}

/// A call of the CPU's functions with everything that it uses.
struct CpuCall {
    work: Arc<CpuLossWork>,
    scores: Arc<Replaced<Scores>>,
    grad_scores: Arc<Replaced<Vec<f32>>>,
    loss: Arc<Mutex<f32>>,
}

impl CpuCall {
    /// What the call is given must be of the work; [`LossWork::check`] checks it.
    fn new(work: &LossWork, call: &Call<'_>) -> Result<CpuCall> {
        match (&work.inner, &call.scores.inner, &call.grad_scores.inner, &call.loss.inner) {
            (On::Cpu(work), On::Cpu(scores), On::Cpu(grad_scores), On::Cpu(loss)) => Ok(CpuCall {
                work: work.clone(),
                scores: scores.clone(),
                grad_scores: grad_scores.clone(),
                loss: loss.clone(),
            }),
            _ => Err(call.wrong_device()),
        }
    }

    fn run(&self) -> Result<()> {
        let CpuLossWork { n_documents, temperature, ref targets } = *self.work;
        let distil = |scores: &[f32], teacher: &[f32]| {
            distillation(scores, teacher, n_documents, temperature)
        };
        let scores = self.scores.get();
        let Loss { value, grad_scores } = match targets {
            CpuTargets::Positives(positives) => {
                contrastive(scores.values(), n_documents, positives, temperature)?
            }
            CpuTargets::Teacher(teacher) => distil(scores.values(), &teacher.get())?,
            CpuTargets::Scores(teacher) => distil(scores.values(), teacher.get().values())?,
        };
        self.grad_scores.set(grad_scores);
        *lock(&self.loss) = value;
        Ok(())
    }
}
