//! Losses on a device: targets and values in its memory, and the kernels that run them.

use std::f64::consts::LOG2_E;
use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::loss;
use maxsim_kernels::abi::params::loss::{Factor, MeanParams, RowsParams, rows_per_block};
use maxsim_kernels::table::auxiliary::{LOSS_CONTRASTIVE, LOSS_DISTILLATION, LOSS_MEAN};

use crate::cuda::buffers::gradients::CudaGradScores;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download, overwrite};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::error::Result;

/// A loss made ready.
#[derive(Debug)]
pub(crate) struct CudaLossWork {
    device: Arc<CudaDevice>,
    rows: Kernel<RowsParams>,
    mean: Kernel<MeanParams>,
    targets: CudaTargets,
    /// 0 where there are no scores.
    n_queries: usize,
    n_documents: usize,
    temperature: f32,
}

/// Targets that scores are compared with.
#[derive(Debug)]
pub(crate) struct CudaTargets(Targets);

#[derive(Debug)]
enum Targets {
    /// A u32 column per query.
    Positives(Buffer),
    /// An f32 per score.
    Teacher(Buffer, Arc<Hazard>),
    /// Scores of other work, the teacher's.
    Scores(Arc<CudaOutputs>),
}

impl CudaTargets {
    /// A copy of positives below 2³¹.
    pub(crate) fn positives(device: &Arc<CudaDevice>, positives: &[usize]) -> Result<CudaTargets> {
        let narrow: Vec<u32> = positives.iter().map(|&positive| positive as u32).collect();
        Ok(CudaTargets(Targets::Positives(upload(device, bytemuck::cast_slice(&narrow))?)))
    }

    /// A copy of a teacher's scores.
    pub(crate) fn teacher(device: &Arc<CudaDevice>, scores: &[f32]) -> Result<CudaTargets> {
        let memory = upload(device, bytemuck::cast_slice(scores))?;
        Ok(CudaTargets(Targets::Teacher(memory, Arc::new(Hazard::new(device)?))))
    }

    /// Scores of other work.
    pub(crate) fn scores(outputs: &Arc<CudaOutputs>) -> CudaTargets {
        CudaTargets(Targets::Scores(outputs.clone()))
    }

    fn address(&self) -> u64 {
        match &self.0 {
            Targets::Positives(memory) | Targets::Teacher(memory, _) => memory.address(),
            Targets::Scores(outputs) => outputs.addresses().scores,
        }
    }
}

impl CudaLossWork {
    /// Loads the kernels. Targets must be of as many queries and documents, whose product is below
    /// 2³¹.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        [n_queries, n_documents]: [usize; 2],
        temperature: f32,
        targets: CudaTargets,
    ) -> Result<CudaLossWork> {
        let rows = match &targets.0 {
            Targets::Positives(_) => LOSS_CONTRASTIVE,
            Targets::Teacher(..) | Targets::Scores(_) => LOSS_DISTILLATION,
        };
        Ok(CudaLossWork {
            device: device.clone(),
            rows: device.kernel(rows)?,
            mean: device.kernel(LOSS_MEAN)?,
            targets,
            n_queries: if n_documents == 0 { 0 } else { n_queries },
            n_documents,
            temperature,
        })
    }

    /// Replaces the teacher's scores, of which there must be as many, once no work uses them any
    /// more. False where the work has none of its own.
    pub(crate) fn write_teacher(&self, scores: &[f32]) -> Result<bool> {
        let Targets::Teacher(memory, hazard) = &self.targets.0 else { return Ok(false) };
        if scores.is_empty() {
            return Ok(true);
        }
        let _last = hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        // SAFETY: there is memory for the scores; no work uses it, and none is given it while the
        // guard lives.
        unsafe { overwrite(&entered, memory.address(), bytemuck::cast_slice(scores))? };
        Ok(true)
    }

    /// The hazard of the teacher's scores, unless they are `outputs`.
    pub(super) fn own_hazard(&self, outputs: &CudaOutputs) -> Option<&Arc<Hazard>> {
        match &self.targets.0 {
            Targets::Scores(teacher) => {
                Some(teacher.hazard()).filter(|hazard| !Arc::ptr_eq(hazard, outputs.hazard()))
            }
            Targets::Teacher(_, hazard) => Some(hazard),
            Targets::Positives(_) => None,
        }
    }

    /// Enqueues the work. Allocates nothing.
    ///
    /// Scores, gradients and loss must be those of the work; `Stream` checks them.
    pub(crate) fn enqueue(
        &self,
        stream: &mut CudaStream,
        outputs: &CudaOutputs,
        grad_scores: &CudaGradScores,
        loss: &CudaLoss,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let hazards = [
            Some(outputs.hazard().as_ref()),
            Some(grad_scores.hazard().as_ref()),
            Some(loss.hazard.as_ref()),
            self.own_hazard(outputs).map(AsRef::as_ref),
        ];
        // SAFETY: scores, gradients and loss are those of the work (the caller's check), in this
        // context, and the hazards order their use.
        let run = || unsafe { self.run(&entered, stream.raw(), outputs, grad_scores, loss) };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// Enqueues the work's launches.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; what the call is given must be of the work and
    /// live until the launches have run. Until then nothing else may write the scores or use the
    /// rest.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        outputs: &CudaOutputs,
        grad_scores: &CudaGradScores,
        loss: &CudaLoss,
    ) -> Result<()> {
        let (n_queries, n_documents) = (self.n_queries as u32, self.n_documents as u32);
        let temperature = f64::from(self.temperature);
        let shared_bytes = loss::SHARED_BYTES as u32;
        // SAFETY: rows and losses are of these sizes; the caller's promise.
        unsafe {
            if n_queries > 0 {
                let params = RowsParams {
                    scores: outputs.addresses().scores,
                    targets: self.targets.address(),
                    grad_scores: grad_scores.address(),
                    losses: loss.losses(),
                    n_queries,
                    n_documents,
                    scale: Factor::new(2.0 * LOG2_E / temperature),
                    grad_scale: Factor::new(1.0 / (temperature * self.n_queries as f64)),
                };
                let grid = n_queries.div_ceil(rows_per_block(n_documents));
                start(entered, stream, &self.rows, grid, shared_bytes, &params)?;
            }
            let params = MeanParams {
                losses: loss.losses(),
                mean: loss.address(),
                n_queries,
                inverse: if n_queries == 0 { 0.0 } else { 1.0 / n_queries as f32 },
            };
            start(entered, stream, &self.mean, 1, shared_bytes, &params)
        }
    }
}

/// The value of a loss, behind it the losses of the queries.
#[derive(Debug)]
pub(crate) struct CudaLoss {
    device: Arc<CudaDevice>,
    memory: Buffer,
    hazard: Arc<Hazard>,
}

impl CudaLoss {
    pub(crate) fn new(device: &Arc<CudaDevice>, n_queries: usize) -> Result<CudaLoss> {
        let memory = Buffer::zeroed(device, (n_queries as u64 + 1) * 4)?;
        Ok(CudaLoss { device: device.clone(), memory, hazard: Arc::new(Hazard::new(device)?) })
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    fn losses(&self) -> u64 {
        self.address() + 4
    }

    pub(super) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Waits for the last work and copies the value.
    pub(crate) fn read(&self) -> Result<f32> {
        let _last = self.hazard.wait(&self.device)?;
        let (entered, mut value) = (self.device.enter()?, [0.0f32]);
        // SAFETY: the memory begins with the value.
        unsafe { download(&entered, self.address(), bytemuck::cast_slice_mut(&mut value))? };
        Ok(value[0])
    }
}
