//! A projection and hidden states where a device reads them.

use std::ops::Range;
use std::sync::Arc;

use super::Projection;
use super::slices::Slice;
use crate::cpu::projection::Weights;
use crate::cpu::tokens::{HostTokens, Matrix};
use crate::cuda::{CudaTokens, ProjectionCall, SliceCall};
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::scores::Scores;
use crate::runtime::alloc::{copy_of, filled};
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

/// Makes tokens of hidden states, some rows at a time.
pub(super) struct Projector<'a, T: Element> {
    device: &'a Device,
    normalize: bool,
    on: On<OnCpu<'a, T>, OnCuda>,
}

struct OnCpu<'a, T: Element> {
    weights: Weights,
    hidden: Matrix<'a, T>,
}

/// Handles of the call, or what was uploaded for it.
struct OnCuda {
    hidden: Arc<CudaTokens>,
    weight: Arc<CudaTokens>,
    bias: Option<Arc<CudaTokens>>,
}

impl<'a, T: Element> Projector<'a, T> {
    /// Checks hidden states, and brings what the device does not have there.
    pub(super) fn new(
        device: &'a Device,
        projection: &Projection<'_, T>,
        hidden: TokensRef<'a, T>,
    ) -> Result<Projector<'a, T>> {
        projection.check(device, &hidden)?;
        if device.as_cuda().is_some() {
            let why = "tokens would lose them; give them to queries on the CPU";
            hidden.layout().check_unweighted("of hidden states on a CUDA device", why)?;
        }
        let there = |tokens: &TokensRef<'_, T>| -> Result<Arc<CudaTokens>> {
            Ok(tokens.cuda_tokens(device, &mut None)?.clone())
        };
        let on = match &device.0 {
            On::Cpu(()) => {
                let weights = projection.host_weights()?;
                On::Cpu(OnCpu { weights, hidden: hidden.host_matrix()? })
            }
            On::Cuda(_) => On::Cuda(OnCuda {
                hidden: there(&hidden)?,
                weight: there(&projection.weight)?,
                bias: projection.bias.as_ref().map(there).transpose()?,
            }),
        };
        Ok(Projector { device, normalize: projection.normalize, on })
    }

    /// The tokens of some rows: `layout` is theirs in the matrix of these rows.
    pub(super) fn tokens(
        &self,
        rows: Range<usize>,
        layout: TokenLayout,
    ) -> Result<DeviceTokens<T>> {
        let storage = match (&self.on, &self.device.0) {
            (On::Cpu(on), _) => On::Cpu(Arc::new(on.tokens(rows, layout.dim())?)),
            (On::Cuda(on), On::Cuda(cuda)) => {
                let call = self.call(on, rows, &layout);
                On::Cuda(Arc::new(on.hidden.project(cuda, &call)?))
            }
            (On::Cuda(_), On::Cpu(())) => return Err(self.device.wrong_queue()),
        };
        Ok(DeviceTokens::new(self.device.clone(), layout, storage))
    }

    /// Scores the slices of a problem, and stores what is found. On a GPU they have the kernel of
    /// the whole problem, where that can run them, so that equal documents have equal scores.
    pub(super) fn score(
        &self,
        queries: TokensRef<'_, T>,
        problem: &Problem<'_>,
        slices: &[Slice],
        options: &ScoreOptions,
        scores: &mut Scores,
    ) -> Result<()> {
        let (On::Cuda(on), On::Cuda(cuda)) = (&self.on, &self.device.0) else {
            for slice in slices {
                let tokens = self.tokens(slice.rows.clone(), slice.documents.clone())?;
                let found = self.device.score_with(queries, &tokens, &slice.pairing, options)?;
                slice.store(&found, scores);
            }
            return Ok(());
        };
        let access = [queries.access(), Access::uploaded(problem.dim(), T::FORMAT)];
        let plan = |problem: &Problem<'_>, options: &ScoreOptions| {
            self.device.plan_formats(problem, [T::FORMAT; 2], access, options)
        };
        let named = match options.consistent {
            // Each slice has a kernel that agrees with the one that finds its winners.
            true => options.clone(),
            false => options.clone().kernel(plan(problem, options)?.name()),
        };
        let mut calls = Vec::with_capacity(slices.len());
        for slice in slices {
            let problem = Problem::new(queries.layout(), &slice.documents, &slice.pairing)?;
            let planned = match plan(&problem, &named) {
                Err(Error::Unsupported { .. }) => plan(&problem, options),
                planned => planned,
            };
            let chosen = planned?.chosen().ok_or_else(|| self.device.wrong_queue())?;
            let projection = self.call(on, slice.rows.clone(), &slice.documents);
            calls.push(SliceCall { projection, problem, chosen });
        }
        let mut own = None;
        let queries = queries.cuda_tokens(self.device, &mut own)?;
        let found = cuda.score_slices(queries, &on.hidden, &calls, options)?;
        slices.iter().zip(&found).for_each(|(slice, found)| slice.store(found, scores));
        Ok(())
    }

    fn call<'b>(
        &self,
        on: &'b OnCuda,
        rows: Range<usize>,
        layout: &'b TokenLayout,
    ) -> ProjectionCall<'b> {
        ProjectionCall {
            rows,
            layout,
            weight: &on.weight,
            bias: on.bias.as_deref(),
            element: T::TYPE,
            normalize: self.normalize,
        }
    }
}

impl<T: Element> OnCpu<'_, T> {
    /// The tokens of some rows, of `dim` elements, and what is beside the rows.
    fn tokens(&self, rows: Range<usize>, dim: usize) -> Result<HostTokens<T>> {
        let n = self.weights.hidden();
        let mut data = filled((rows.len() * dim) as u64, T::from_f32(0.0))?;
        self.weights.project(&self.hidden.data[rows.start * n..rows.end * n], &mut data)?;
        let mask = self.hidden.mask.map(|mask| copy_of(&mask[rows.clone()])).transpose()?;
        let weights = self.hidden.weights.map(|weights| copy_of(&weights[rows])).transpose()?;
        Ok(HostTokens { data, scales: None, residuals: None, mask, weights })
    }
}
