//! A projection and hidden states where a device reads them.

use std::ops::Range;
use std::sync::Arc;

use super::Projection;
use super::slices::Slice;
use super::slots::{Winners, call, slots};
use crate::cpu::projection::Weights;
use crate::cpu::tokens::{HostTokens, Matrix};
use crate::cuda::{
    CudaDevice, CudaProjectedBackward, CudaProjectionSums, CudaSlices, CudaTokens, ProjectionCall,
    SliceCall,
};
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::runtime::alloc::{copy_of, zeroed};
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

/// Most bytes of slots whose rows are multiplied together, if they are of more than one document.
const SLOTS_BYTES_MAX: usize = 128 << 20;

/// Makes tokens of hidden states, some rows at a time.
#[derive(Debug)]
pub(super) struct Projector<'a, T: Element> {
    device: Device,
    normalize: bool,
    on: On<OnCpu<'a, T>, OnCuda>,
}

#[derive(Debug)]
struct OnCpu<'a, T: Element> {
    weights: Weights,
    hidden: Matrix<'a, T>,
}

/// Handles of the call, or what was uploaded for it.
#[derive(Debug)]
struct OnCuda {
    hidden: Arc<CudaTokens>,
    weight: Arc<CudaTokens>,
    bias: Option<Arc<CudaTokens>>,
}

impl<'a, T: Element> Projector<'a, T> {
    /// Checks hidden states, and brings what the device does not have there.
    pub(super) fn new(
        device: &Device,
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
        Ok(Projector { device: device.clone(), normalize: projection.normalize, on })
    }

    /// The device that projects.
    pub(super) fn device(&self) -> &Device {
        &self.device
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

    /// Makes slices ready to be scored where that is work: on a GPU. They have the kernel of the
    /// whole problem, where that can run them, so that equal documents have equal scores.
    pub(super) fn prepare(
        &self,
        access: Access,
        problem: &Problem<'_>,
        slices: &[Slice],
        options: &ScoreOptions,
    ) -> Result<Option<CudaSlices>> {
        let (On::Cuda(on), On::Cuda(cuda)) = (&self.on, &self.device.0) else { return Ok(None) };
        let access = [access, Access::uploaded(problem.dim(), T::FORMAT)];
        let plan = |problem: &Problem<'_>, options: &ScoreOptions| {
            self.device.plan_formats(problem, [T::FORMAT; 2], access, options)
        };
        let named = match options.consistent {
            // Each slice has a kernel that agrees with the one that finds its winners.
            true => options.clone(),
            false => options.clone().kernel(plan(problem, options)?.name()),
        };
        let mut calls: Vec<SliceCall<'_>> = Vec::with_capacity(slices.len());
        for (i, slice) in slices.iter().enumerate() {
            let problem = Problem::new(problem.queries(), &slice.documents, &slice.pairing)?;
            let before = calls.last().filter(|_| slice.is_like(&slices[i - 1]));
            let (chosen, number) = match before {
                Some(call) => (call.chosen, call.plan),
                None => {
                    let planned = match plan(&problem, &named) {
                        Err(Error::Unsupported { .. }) => plan(&problem, options),
                        planned => planned,
                    };
                    let chosen = planned?.chosen().ok_or_else(|| self.device.wrong_queue())?;
                    (chosen, calls.last().map_or(0, |call| call.plan + 1))
                }
            };
            let projection = self.call(on, slice.rows.clone(), &slice.documents);
            calls.push(SliceCall { projection, problem, chosen, plan: number });
        }
        CudaSlices::new(cuda, &on.hidden, &calls, options).map(Some)
    }

    /// What a GPU has, and the GPU.
    fn on_cuda(&self) -> Result<(&OnCuda, &Arc<CudaDevice>)> {
        match (&self.on, &self.device.0) {
            (On::Cuda(on), On::Cuda(cuda)) => Ok((on, cuda)),
            _ => Err(self.device.wrong_queue()),
        }
    }

    /// Makes gradients ready that stay on a GPU, of winners at addresses and rows of `hidden`
    /// elements.
    pub(super) fn backward(
        &self,
        problem: &Problem<'_>,
        hidden: usize,
        winners: &dyn Fn(usize) -> Winners,
    ) -> Result<CudaProjectedBackward> {
        let (on, cuda) = self.on_cuda()?;
        let slots = slots(problem)?;
        let of_slots = Problem::new(problem.queries(), &slots, problem.pairing())?;
        let row_bytes = hidden * size_of::<T>() + problem.dim() * (2 * 4 + size_of::<T>());
        let rows_max = (SLOTS_BYTES_MAX / row_bytes).max(1) as u32;
        let slices = Slice::of_rows(&of_slots, rows_max)?;
        let some = slices.iter().filter(|slice| !slice.rows.is_empty());
        let calls: Vec<_> =
            some.map(|slice| call(slice, problem, winners)).collect::<Result<_>>()?;
        let queries = problem.queries();
        let n_weights = if queries.is_weighted() { queries.rows() } else { 0 };
        let numbers = [queries.rows() * queries.dim(), n_weights];
        let projection = self.call(on, 0..0, problem.documents());
        CudaProjectedBackward::new(cuda, &on.hidden, &projection, &calls, numbers)
    }

    /// The gradients of weight and bias on a GPU, of no rows yet.
    pub(super) fn sums(&self) -> Result<CudaProjectionSums> {
        let (on, cuda) = self.on_cuda()?;
        CudaProjectionSums::new(cuda, &on.weight, on.bias.as_ref(), T::TYPE, self.normalize)
    }

    /// Copies of some rows of hidden states on a GPU.
    pub(super) fn gathered(&self, rows: &[u32]) -> Result<Arc<CudaTokens>> {
        let (on, cuda) = self.on_cuda()?;
        on.hidden.gathered(cuda, rows, T::TYPE).map(Arc::new)
    }

    /// The tokens of such copies, in a layout of as many rows.
    pub(super) fn tokens_of(
        &self,
        states: &Arc<CudaTokens>,
        layout: TokenLayout,
    ) -> Result<DeviceTokens<T>> {
        let (on, cuda) = self.on_cuda()?;
        let call = self.call(on, 0..layout.rows(), &layout);
        let storage = On::Cuda(Arc::new(states.project(cuda, &call)?));
        Ok(DeviceTokens::new(self.device.clone(), layout, storage))
    }

    /// The mask of hidden states on a GPU.
    pub(super) fn mask(&self) -> Result<Option<Vec<u8>>> {
        let (on, cuda) = self.on_cuda()?;
        on.hidden.read_mask(cuda)
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
            bias: on.bias.as_ref(),
            element: T::TYPE,
            normalize: self.normalize,
        }
    }
}

impl<T: Element> OnCpu<'_, T> {
    /// The tokens of some rows, of `dim` elements, and what is beside the rows.
    fn tokens(&self, rows: Range<usize>, dim: usize) -> Result<HostTokens<T>> {
        let n = self.weights.hidden();
        let mut data = zeroed::<T>(rows.len() as u64 * dim as u64)?;
        self.weights.project(&self.hidden.data[rows.start * n..rows.end * n], &mut data)?;
        let mask = self.hidden.mask.map(|mask| copy_of(&mask[rows.clone()])).transpose()?;
        let weights = self.hidden.weights.map(|weights| copy_of(&weights[rows])).transpose()?;
        Ok(HostTokens { data: data.into(), scales: None, residuals: None, mask, weights })
    }
}
