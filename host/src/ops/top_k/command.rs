//! The commands of a selection.

use std::sync::Arc;

use super::prepared::{DeviceTopK, PreparedTopK};
use crate::cuda::Selection;
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::error::{Error, Result};
use crate::ops::score::prepared::DeviceScores;
use crate::problem::ranking::Ranking;
use crate::problem::scores::Scores;
use crate::problem::top_k::{BestKeys, RankedRows, check_ids};
use crate::runtime::on::On;
use crate::runtime::swap::Swap;

impl PreparedTopK {
    /// The call of this selection on a queue of `device`, checked.
    pub(crate) fn command<'a>(
        &'a self,
        device: &Device,
        scores: &'a DeviceScores,
        best: &'a DeviceTopK,
        call: Selection,
    ) -> Result<Command<'a>> {
        device.check_same("work", &self.device)?;
        device.check_same("scores", &scores.device)?;
        if scores.shape() != self.rows.shape {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("those of the work, {:?}", self.rows.shape),
                found: format!("{:?}", scores.shape()),
            });
        }
        best.check("best", device, [self.rows.n_rows, self.k])?;
        check_ids(call.first_id, self.rows.n_documents)?;
        let call = match (&self.inner, &scores.inner, &best.inner) {
            (On::Cpu(()), On::Cpu(scores), On::Cpu(best)) => on_cpu(CpuTopK {
                rows: self.rows.clone(),
                scores: scores.clone(),
                best: best.clone(),
                call,
            }),
            (On::Cuda(work), On::Cuda(outputs), On::Cuda(best)) => {
                On::Cuda(CudaCommand::TopK { work, outputs, best, call })
            }
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }
}

impl PreparedTopK {
    /// The best of the scores that were given to calls, with one wait.
    pub(crate) fn select(&self, scores: &DeviceScores) -> Result<Vec<Ranking>> {
        let best = self.new_best()?;
        let device = &self.device;
        let command =
            self.command(device, scores, &best, Selection { first_id: 0, adds: false })?;
        match (command.call, &best.inner, &device.0) {
            (On::Cuda(call), On::Cuda(best), On::Cuda(cuda)) => {
                let found = cuda.on_idle_stream(|stream| {
                    call.enqueue(stream)?;
                    best.read_on(stream)
                })?;
                Ok(found.rankings())
            }
            (On::Cpu(call), ..) => call.run().and_then(|()| best.read()),
            _ => Err(device.wrong_queue()),
        }
    }
}

impl DeviceTopK {
    /// Checks that this is on a device, and of so many queries and this k.
    fn check(&self, argument: &'static str, device: &Device, wanted: [usize; 2]) -> Result<()> {
        device.check_same(argument, &self.device)?;
        let found = [self.n_rows, self.k];
        if found == wanted {
            return Ok(());
        }
        let text = |[n_rows, k]: [usize; 2]| format!("the best {k} of {n_rows} queries");
        Err(Error::Shape { argument, expected: text(wanted), found: text(found) })
    }

    /// The call that takes what `other` has into account, checked.
    pub(crate) fn merge_command<'a>(
        &'a self,
        device: &Device,
        other: &'a DeviceTopK,
    ) -> Result<Command<'a>> {
        device.check_same("best", &self.device)?;
        other.check("other", device, [self.n_rows, self.k])?;
        let call = match (&other.inner, &self.inner) {
            (On::Cpu(other), On::Cpu(best)) => {
                on_cpu(CpuMerge { other: other.clone(), best: best.clone() })
            }
            (On::Cuda(other), On::Cuda(best)) => On::Cuda(CudaCommand::MergeTopK { other, best }),
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }
}

/// A selection on the CPU, with everything that it uses.
struct CpuTopK {
    rows: Arc<RankedRows>,
    scores: Arc<Swap<Scores>>,
    best: Arc<Swap<BestKeys>>,
    call: Selection,
}

impl CpuCall for CpuTopK {
    fn run(&self) -> Result<()> {
        let Selection { first_id, adds } = self.call;
        let mut best = BestKeys::clone(&self.best.get());
        best.select(&self.rows, self.scores.get().values(), first_id, adds)?;
        self.best.set(best);
        Ok(())
    }
}

/// A merging on the CPU.
struct CpuMerge {
    other: Arc<Swap<BestKeys>>,
    best: Arc<Swap<BestKeys>>,
}

impl CpuCall for CpuMerge {
    fn run(&self) -> Result<()> {
        let mut best = BestKeys::clone(&self.best.get());
        best.merge(&self.other.get())?;
        self.best.set(best);
        Ok(())
    }
}
