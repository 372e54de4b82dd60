//! The command of a loss.

use std::sync::{Arc, Mutex};

use super::prepared::{CpuLossWork, CpuTargets, DeviceLoss, PreparedLoss};
use super::{Loss, contrastive, distillation};
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::error::{Error, Result};
use crate::ops::backward::outputs::DeviceGradScores;
use crate::ops::score::prepared::DeviceScores;
use crate::problem::scores::Scores;
use crate::runtime::on::On;
use crate::runtime::swap::{Swap, lock};
use crate::tokens::layout::check_len;

impl PreparedLoss {
    /// The call of this loss on a queue of `device`, checked.
    pub(crate) fn command<'a>(
        &'a self,
        device: &Device,
        scores: &'a DeviceScores,
        grad_scores: &'a DeviceGradScores,
        loss: &'a DeviceLoss,
    ) -> Result<Command<'a>> {
        self.check(device, scores, grad_scores, loss)?;
        let call = match (&self.inner, &scores.inner, &grad_scores.inner, &loss.inner) {
            (On::Cpu(work), On::Cpu(scores), On::Cpu(grad_scores), On::Cpu(loss)) => {
                on_cpu(CpuLoss {
                    work: work.clone(),
                    scores: scores.clone(),
                    grad_scores: grad_scores.clone(),
                    loss: loss.clone(),
                })
            }
            (On::Cuda(work), On::Cuda(outputs), On::Cuda(grad_scores), On::Cuda(loss)) => {
                On::Cuda(CudaCommand::Loss { work, outputs, grad_scores, loss })
            }
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }

    /// Checks that a call on `device` is one that the work was prepared for.
    fn check(
        &self,
        device: &Device,
        scores: &DeviceScores,
        grad_scores: &DeviceGradScores,
        loss: &DeviceLoss,
    ) -> Result<()> {
        device.check_same("work", &self.device)?;
        device.check_same("scores", &scores.device)?;
        let shape = scores.shape();
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
        check_angular("scores", scores)?;
        device.check_same("grad_scores", &grad_scores.device)?;
        check_len("grad_scores", n_scores, "one per score", grad_scores.n_scores)?;
        device.check_same("loss", &loss.device)?;
        if loss.n_queries != self.n_queries {
            return Err(Error::Shape {
                argument: "loss",
                expected: format!("room for a loss over {} queries", self.n_queries),
                found: format!("room for one over {}", loss.n_queries),
            });
        }
        Ok(())
    }
}

/// Refuses angular scores of documents without tokens, which are at no distance.
pub(super) fn check_angular(argument: &'static str, scores: &DeviceScores) -> Result<()> {
    match scores.shape.without_tokens.len() {
        0 => Ok(()),
        n => Err(Error::Shape {
            argument,
            expected: "angular scores of documents that have tokens".into(),
            found: format!("{n} of documents without any: leave these out"),
        }),
    }
}

/// A loss on the CPU, with everything that it uses.
struct CpuLoss {
    work: Arc<CpuLossWork>,
    scores: Arc<Swap<Scores>>,
    grad_scores: Arc<Swap<Vec<f32>>>,
    loss: Arc<Mutex<f32>>,
}

impl CpuCall for CpuLoss {
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
