//! The command of gradients.

use std::sync::Arc;

use super::blocking::Gradients;
use super::outputs::{DeviceGradScores, DeviceGradients};
use super::prepared::{CpuBackwardWork, PreparedBackward};
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::score::prepared::{DeviceScores, check_side};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::provenance::Provenance;
use crate::problem::scores::Scores;
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::Format;
use crate::tokens::layout::{TokenLayout, check_len};

/// Arguments of a call.
pub(crate) struct Call<'a, T: Element, D: Format> {
    pub queries: &'a DeviceTokens<T>,
    pub documents: &'a DeviceTokens<D>,
    pub scores: &'a DeviceScores,
    pub grad_scores: &'a DeviceGradScores,
    pub gradients: &'a DeviceGradients,
    pub adds: bool,
}

impl PreparedBackward {
    /// A call of these gradients on a queue of `device`, checked. `provenance` is what the scores'
    /// winners are of, where that is known.
    pub(crate) fn command<'a, T: Element, D: Format>(
        &'a self,
        device: &Device,
        call: Call<'a, T, D>,
        provenance: Option<Provenance>,
    ) -> Result<Command<'a>> {
        self.check(device, &call, provenance)?;
        let Call { queries, documents, scores, grad_scores, gradients, adds } = call;
        let inner = (&self.inner, &scores.inner, &grad_scores.inner, &gradients.inner);
        let call = match inner {
            (On::Cpu(work), On::Cpu(scores), On::Cpu(grad_scores), On::Cpu(gradients)) => {
                let CpuBackwardWork { finds_winners_again } = *work;
                on_cpu(CpuBackward {
                    layouts: [queries.layout.clone(), documents.layout.clone()],
                    queries: queries.host_tokens()?.clone(),
                    documents: documents.host_tokens()?.clone(),
                    pairing: self.provenance.pairing.clone(),
                    options: self.options.clone(),
                    scores: scores.clone(),
                    grad_scores: grad_scores.clone(),
                    gradients: gradients.clone(),
                    gradient: self.gradient,
                    rows: self.rows(),
                    finds_winners_again,
                    adds,
                })
            }
            (On::Cuda(work), On::Cuda(outputs), On::Cuda(grad_scores), On::Cuda(gradients)) => {
                let tokens = [queries.cuda_tokens()?, documents.cuda_tokens()?];
                On::Cuda(CudaCommand::Backward {
                    work,
                    tokens,
                    outputs,
                    grad_scores,
                    gradients,
                    adds,
                })
            }
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }

    /// Checks that a call on `device` is one that the work was prepared for.
    /// `provenance` is what the scores' winners are of, where that is known.
    fn check<T: Element, D: Format>(
        &self,
        device: &Device,
        call: &Call<'_, T, D>,
        provenance: Option<Provenance>,
    ) -> Result<()> {
        device.check_same("work", &self.device)?;
        let [queries, documents] = self.formats;
        check_side(&self.device, "queries", call.queries, queries, &self.provenance.queries)?;
        check_side(
            &self.device,
            "documents",
            call.documents,
            documents,
            &self.provenance.documents,
        )?;
        device.check_same("scores", &call.scores.device)?;
        if !Arc::ptr_eq(&call.scores.shape, &self.outputs) && call.scores.shape != self.outputs {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("results {:?} of the work", self.outputs.shape),
                found: format!("other results {:?}", call.scores.shape.shape),
            });
        }
        if provenance.is_some_and(|provenance| !provenance.is_same(&self.provenance)) {
            return Err(Error::Shape {
                argument: "scores",
                expected: "winners of the layouts and the pairing that the work was prepared for"
                    .into(),
                found: "those of a call with other work; score again with this work".into(),
            });
        }
        device.check_same("grad_scores", &call.grad_scores.device)?;
        let n_scores = self.outputs.shape.n_scores();
        check_len("grad_scores", n_scores, "one per score", call.grad_scores.n_scores)?;
        device.check_same("gradients", &call.gradients.device)?;
        let DeviceGradients { element, rows, dim, .. } = *call.gradients;
        let expected = self.rows();
        if (element, rows, dim) != (self.gradient, expected, self.provenance.queries.dim()) {
            return Err(Error::Shape {
                argument: "gradients",
                expected: said(self.gradient, expected, self.provenance.queries.dim()),
                found: said(element, rows, dim),
            });
        }
        Ok(())
    }
}

/// What gradients are, for an error.
fn said(element: ElementType, [queries, documents, weights]: [usize; 3], dim: usize) -> String {
    format!("{element} gradients of {queries} and {documents} rows of {dim} and {weights} weights")
}

/// A call of the CPU engine with everything that it uses.
struct CpuBackward<T: Element, D: Format> {
    /// Rows of both gradients, and of the weights'.
    rows: [usize; 3],
    layouts: [Arc<TokenLayout>; 2],
    queries: Arc<HostTokens<T>>,
    documents: Arc<HostTokens<D>>,
    pairing: Arc<Pairing>,
    options: ScoreOptions,
    scores: Arc<Swap<Scores>>,
    grad_scores: Arc<Swap<Vec<f32>>>,
    gradients: Arc<Swap<Gradients>>,
    gradient: ElementType,
    finds_winners_again: bool,
    adds: bool,
}

impl<T: Element, D: Format> CpuCall for CpuBackward<T, D> {
    fn run(&self) -> Result<()> {
        let [queries, documents] = &self.layouts;
        let problem = Problem::new(queries, documents, &self.pairing)?;
        let queries_dim = queries.dim();
        let (queries, documents) = (self.queries.matrix(), self.documents.matrix());
        let again = self
            .finds_winners_again
            .then(|| cpu::score(&problem, queries, documents, &self.options))
            .transpose()?;
        let saved = self.scores.get();
        let winners = again.as_ref().unwrap_or(&saved).winners().unwrap_or_default();
        let grad_scores = self.grad_scores.get();
        loop {
            let held = self.gradients.get();
            let mut sums = match self.adds {
                true => held.copied()?,
                false => Gradients::of_rows(self.rows, queries_dim)?,
            };
            cpu::add_gradients(
                &problem,
                queries,
                documents,
                winners,
                &grad_scores,
                sums.parts(),
                &self.options,
            )?;
            if self.gradient != ElementType::F32 {
                let rounded = |x: &mut f32| *x = T::from_f32(*x).to_f32();
                sums.queries.iter_mut().chain(&mut sums.documents).for_each(rounded);
            }
            if !self.adds {
                self.gradients.set(sums);
                break;
            }
            // If another call has added to the gradients meanwhile, add to its sums.
            if self.gradients.replace(&held, sums) {
                break;
            }
        }
        Ok(())
    }
}
