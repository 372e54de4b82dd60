//! Losses in stream order: a training step that never touches the host.

use std::sync::{Arc, Mutex};

use super::command::check_angular;
use super::{check_positives, check_rows, checked_temperature};
use crate::cuda::{CudaLoss, CudaLossWork, CudaTargets};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::score::prepared::DeviceScores;
use crate::problem::scores::Scores;
use crate::runtime::alloc::copy_of;
use crate::runtime::on::On;
use crate::runtime::swap::{Swap, lock};
use crate::tokens::layout::check_len;

/// A loss of the module [`loss`](crate::loss) made ready, with its targets on the device.
///
/// Made by [`Device::prepare_contrastive`], [`Device::prepare_distillation`] or
/// [`Device::prepare_distillation_from`], and used with any scores of that many queries and
/// documents.
///
/// On a CUDA device it is computed in f32, every sum in a fixed order, so that the same scores give
/// the same bits. With T the temperature, y the targets, p the probabilities and
///
/// ```text
/// B = (40 + 16 · ln n_documents) · 2⁻²⁴
/// A = 1/n_queries · Σ_q Σ_d y[q, d] · (|log y[q, d]| + |log p[q, d]|)
/// ```
///
/// gradients are within B / (T · n_queries) of those of the functions in [`loss`](crate::loss),
/// which compute in f64, and the value within B · (1 + A) of theirs (A is the value itself for
/// the contrastive loss). Rows that have no softmax, and documents of score −∞, mean what they
/// mean there; a target below 2⁻¹²⁶ counts as 0. On the CPU these functions are what runs.
///
/// ```
/// use maxsim::loss::{DeviceLoss, PreparedLoss};
/// use maxsim::stream::Queue;
/// use maxsim::training::{BackwardOptions, GradientType};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// // Two queries and their documents, of one token each; dim 2.
/// let device = Device::best();
/// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?)?;
/// let documents = device.upload(&Tokens::padded(&[1.0f32, 1.0, 1.0, 1.0], 2, 1, 2)?)?;
/// let options = ScoreOptions::default().winners(true);
/// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
/// let contrastive: PreparedLoss = device.prepare_contrastive(2, &[0, 1], 0.5)?;
/// let backward =
///     device.prepare_backward(&work, &BackwardOptions::default(), GradientType::F32)?;
///
/// let mut scores = work.new_scores()?;
/// let mut loss: DeviceLoss = contrastive.new_loss()?;
/// let mut grad_scores = backward.new_grad_scores()?;
/// let mut gradients = backward.new_gradients()?;
/// let mut step = device.capture(|capture| {
///     capture.score_into(&queries, &documents, &work, &mut scores)?;
///     capture.loss(&contrastive, &scores, &mut grad_scores, &mut loss)?;
///     let scores = scores.with_grad(&grad_scores);
///     capture.backward(&queries, &documents, &backward, scores, &mut gradients)
/// })?;
/// step.launch(&mut device.stream()?)?; // returns at once
/// assert!((loss.read()? - 2f32.ln()).abs() < 1e-6); // waits
/// assert_eq!(gradients.read()?.documents, [-0.5, 0.5, 0.5, -0.5]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PreparedLoss {
    pub(super) device: Device,
    pub(super) n_queries: usize,
    pub(super) n_documents: usize,
    pub(super) inner: On<Arc<CpuLossWork>, Arc<CudaLossWork>>,
}

/// Arguments of the CPU's functions besides scores.
#[derive(Debug)]
pub(super) struct CpuLossWork {
    pub(super) n_documents: usize,
    pub(super) temperature: f32,
    pub(super) targets: CpuTargets,
}

#[derive(Debug)]
pub(super) enum CpuTargets {
    Positives(Vec<usize>),
    Teacher(Swap<Vec<f32>>),
    Scores(Arc<Swap<Scores>>),
}

/// The value of a loss, on a device: written by [`Queue::loss`](crate::stream::Queue::loss), read
/// when needed.
#[derive(Debug)]
#[must_use]
pub struct DeviceLoss {
    pub(super) device: Device,
    pub(super) n_queries: usize,
    pub(super) inner: On<Arc<Mutex<f32>>, Arc<CudaLoss>>,
}

/// Most scores of a call, as elsewhere.
const N_SCORES_MAX: usize = i32::MAX as usize;

impl Device {
    /// Makes [`loss::contrastive`](crate::loss::contrastive) ready for scores
    /// `[positives.len(), n_documents]` on this device, for any number of
    /// [`Queue::loss`](crate::stream::Queue::loss) calls.
    ///
    /// # Errors
    /// The errors of the function for positives and temperature; [`Error::TooLarge`] for 2³¹ scores
    /// or more; [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn prepare_contrastive(
        &self,
        n_documents: usize,
        positives: &[usize],
        temperature: f32,
    ) -> Result<PreparedLoss> {
        checked_temperature(temperature)?;
        check_positives(positives, n_documents)?;
        check_n_scores(positives.len().saturating_mul(n_documents))?;
        let inner = match &self.0 {
            On::Cuda(cuda) => {
                let targets = CudaTargets::positives(cuda, positives)?;
                let shape = [positives.len(), n_documents];
                let work = CudaLossWork::new(cuda, shape, temperature, targets)?;
                On::Cuda(Arc::new(work))
            }
            On::Cpu(()) => {
                let own = copy_of(positives)?;
                let targets = CpuTargets::Positives(own);
                On::Cpu(Arc::new(CpuLossWork { n_documents, temperature, targets }))
            }
        };
        Ok(PreparedLoss { device: self.clone(), n_queries: positives.len(), n_documents, inner })
    }

    /// Makes [`loss::distillation`](crate::loss::distillation) ready for scores of the shape of
    /// `teacher`, `[n_queries, n_documents]`, on this device, for any number of
    /// [`Queue::loss`](crate::stream::Queue::loss) calls. [`PreparedLoss::write_teacher`] replaces
    /// the teacher's scores.
    ///
    /// ```
    /// use maxsim::stream::Queue;
    /// use maxsim::training::{BackwardOptions, GradientType};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// // One query, two documents that score the same; the teacher says 3 : 1.
    /// let device = Device::best();
    /// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?)?;
    /// let documents = device.upload(&Tokens::padded(&[1.0f32, 1.0, 1.0, 1.0], 2, 1, 2)?)?;
    /// let options = ScoreOptions::default().winners(true);
    /// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
    /// let backward =
    ///     device.prepare_backward(&work, &BackwardOptions::default(), GradientType::F32)?;
    /// let mut distillation = device.prepare_distillation(&[3f32.ln(), 0.0], 2, 1.0)?;
    ///
    /// let (mut scores, mut grad_scores) = (work.new_scores()?, backward.new_grad_scores()?);
    /// let mut loss = distillation.new_loss()?;
    /// let mut stream = device.stream()?;
    /// stream.score_into(&queries, &documents, &work, &mut scores)?;
    /// stream.loss(&distillation, &scores, &mut grad_scores, &mut loss)?;
    /// assert!((loss.read()? - 0.1308).abs() < 1e-4); // 3/4 · ln 3/2 + 1/4 · ln 1/2
    /// assert!((grad_scores.read()?[0] + 0.25).abs() < 1e-6);
    ///
    /// // The next batch's teacher agrees.
    /// distillation.write_teacher(&[7.0, 7.0])?;
    /// stream.loss(&distillation, &scores, &mut grad_scores, &mut loss)?;
    /// assert!(loss.read()?.abs() < 1e-6);
    ///
    /// // A larger model on the same device as the teacher: its scores stay there.
    /// let teacher = device.upload(&Tokens::padded(&[3f32.ln(), 0.0], 2, 1, 1)?)?;
    /// let one = device.upload(&Tokens::padded(&[1.0f32], 1, 1, 1)?)?;
    /// let teaching = device.prepare(&one, &teacher, &Pairing::cross(), &options)?;
    /// let mut teacher_scores = teaching.new_scores()?;
    /// let distillation = device.prepare_distillation_from(&teacher_scores, 2, 1.0)?;
    /// stream.score_into(&one, &teacher, &teaching, &mut teacher_scores)?;
    /// stream.loss(&distillation, &scores, &mut grad_scores, &mut loss)?;
    /// assert!((loss.read()? - 0.1308).abs() < 1e-4);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    /// # Errors
    /// The errors of the function for the teacher's scores and temperature; [`Error::TooLarge`] for
    /// 2³¹ scores or more; [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn prepare_distillation(
        &self,
        teacher: &[f32],
        n_documents: usize,
        temperature: f32,
    ) -> Result<PreparedLoss> {
        checked_temperature(temperature)?;
        check_rows("teacher", teacher.len(), n_documents)?;
        check_n_scores(teacher.len())?;
        let n_queries = teacher.len().checked_div(n_documents).unwrap_or(0);
        let inner = match &self.0 {
            On::Cuda(cuda) => {
                let targets = CudaTargets::teacher(cuda, teacher)?;
                let work = CudaLossWork::new(cuda, [n_queries, n_documents], temperature, targets)?;
                On::Cuda(Arc::new(work))
            }
            On::Cpu(()) => {
                let targets = CpuTargets::Teacher(Swap::new(copy_of(teacher)?));
                On::Cpu(Arc::new(CpuLossWork { n_documents, temperature, targets }))
            }
        };
        Ok(PreparedLoss { device: self.clone(), n_queries, n_documents, inner })
    }

    /// As [`Device::prepare_distillation`], with scores of this device as the teacher's: those that
    /// `teacher` holds when a call runs.
    ///
    /// # Errors
    /// The errors of [`Device::prepare_distillation`], and [`Error::WrongDevice`].
    pub fn prepare_distillation_from(
        &self,
        teacher: &DeviceScores,
        n_documents: usize,
        temperature: f32,
    ) -> Result<PreparedLoss> {
        self.check_same("teacher", &teacher.device)?;
        check_angular("teacher", teacher)?;
        checked_temperature(temperature)?;
        let shape = teacher.shape();
        let n_scores = shape.n_scores();
        check_rows("teacher", n_scores, n_documents)?;
        if shape.row_len().is_some_and(|len| len != n_documents && n_scores > 0) {
            return Err(Error::Shape {
                argument: "teacher",
                expected: format!("scores of {n_documents} documents for each query"),
                found: format!("{n_scores} scores {shape:?}"),
            });
        }
        let n_queries = n_scores.checked_div(n_documents).unwrap_or(0);
        let inner = match &teacher.inner {
            On::Cuda(outputs) => {
                let cuda = self.cuda_device("a loss on a CUDA device")?;
                let targets = CudaTargets::scores(outputs);
                let work = CudaLossWork::new(cuda, [n_queries, n_documents], temperature, targets)?;
                On::Cuda(Arc::new(work))
            }
            On::Cpu(scores) => {
                let targets = CpuTargets::Scores(scores.clone());
                On::Cpu(Arc::new(CpuLossWork { n_documents, temperature, targets }))
            }
        };
        Ok(PreparedLoss { device: self.clone(), n_queries, n_documents, inner })
    }
}

fn check_n_scores(n_scores: usize) -> Result<()> {
    match n_scores {
        0..=N_SCORES_MAX => Ok(()),
        _ => Err(Error::TooLarge {
            what: "number of scores",
            limit: N_SCORES_MAX as u64,
            found: n_scores as u64,
        }),
    }
}

impl PreparedLoss {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Replaces the teacher's scores, once no work uses them any more: waits for the device.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is another number of them; [`Error::Unsupported`] where the
    /// work was not made by [`Device::prepare_distillation`].
    pub fn write_teacher(&mut self, teacher: &[f32]) -> Result<()> {
        let n_scores = self.n_queries * self.n_documents;
        check_len("teacher", n_scores, "one per score", teacher.len())?;
        let written = match &self.inner {
            On::Cpu(work) => match &work.targets {
                CpuTargets::Teacher(own) => {
                    own.set(copy_of(teacher)?);
                    true
                }
                _ => false,
            },
            On::Cuda(work) => work.write_teacher(teacher)?,
        };
        match written {
            true => Ok(()),
            false => Err(Error::Unsupported {
                what: "teacher scores of a loss that holds none".into(),
                why: "it was not made by Device::prepare_distillation".into(),
            }),
        }
    }
}

impl PreparedLoss {
    /// Room for the value of a loss, which is 0 until it is written.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] where there is none: on a CUDA device 4 bytes per query are taken.
    pub fn new_loss(&self) -> Result<DeviceLoss> {
        let inner = match &self.inner {
            On::Cpu(_) => On::Cpu(Arc::default()),
            On::Cuda(_) => {
                let cuda = self.device.cuda_device("a loss on a CUDA device")?;
                On::Cuda(Arc::new(CudaLoss::new(cuda, self.n_queries)?))
            }
        };
        Ok(DeviceLoss { device: self.device.clone(), n_queries: self.n_queries, inner })
    }
}

impl DeviceLoss {
    /// Waits for the last call or launch that was given this loss, and copies its value to the
    /// host.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<f32> {
        match &self.inner {
            On::Cpu(value) => Ok(*lock(value)),
            On::Cuda(loss) => loss.read(),
        }
    }

    /// Device address of the f32 value; `None` on the CPU. Order work that reads it behind the
    /// stream that writes it.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(loss) => Some(loss.address()),
        }
    }
}
