//! Gradients of projected documents that stay on a device, of rows that it alone knows: those that
//! some query token chose.
//!
//! A document has a slot for each winner, or for each row where those are fewer, so that all work
//! is known before any winner is. One kernel puts chosen rows in slots and counts winners among
//! them; slots are then a matrix of documents, projected again, with the gradients that there are
//! of any documents. Slots without a row, or whose token's gradient is 0 throughout, hold zeros and
//! store nothing.
//!
//! The gradient of hidden states is zeros but for chosen rows. They are written by a stream beside
//! the one that computes, which waits for them before it stores rows. It begins behind the
//! projection, whose CTAs take all registers, with a kernel of one CTA a multiprocessor, beside
//! which there is room for others.

mod group;
mod memory;

use std::sync::Arc;

use maxsim_kernels::abi::params::projection::gradient::{
    ActiveParams, ChooseParams, GatherRowsParams, SumPartsParams, THREADS, ZerosParams,
    choose_shared_bytes,
};
use maxsim_kernels::table::auxiliary::{
    PROJECTION_ACTIVE, PROJECTION_CHOOSE, PROJECTION_GATHER, PROJECTION_SUM, PROJECTION_ZEROS,
};

use self::group::{Group, pitch};
use self::memory::{Addresses, Divided, Memory};
use super::projection::{HiddenGradient, Layer};
use crate::cuda::buffers::gradients::{CudaGradScores, CudaGradients, output};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::{BackwardCall, ProjectionCall, SlotsCall};
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::event::CudaEvent;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::forward::projection::check_rows;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::problem::outputs::GradientMatrix;
use crate::tokens::element::ElementType;

/// Gradients of projected documents made ready, with their lists and memory.
#[derive(Debug)]
pub(crate) struct CudaProjectedBackward {
    device: Arc<CudaDevice>,
    hidden: Arc<CudaTokens>,
    layer: Layer,
    element: ElementType,
    kernels: Kernels,
    groups: Vec<Group>,
    at: Addresses,
    /// Numbers of the queries' gradient, of that of their weights, of ∂W and of ∂b.
    lens: [u64; 4],
    memory: Memory,
}

#[derive(Clone, Copy, Debug)]
struct Kernels {
    choose: Kernel<ChooseParams>,
    gather: Kernel<GatherRowsParams>,
    active: Kernel<ActiveParams>,
    sum: Kernel<SumPartsParams>,
    zeros: Kernel<ZerosParams>,
}

impl CudaProjectedBackward {
    /// Makes gradients ready: `queries` are the numbers of the queries' gradient and of that of
    /// their weights. Rows and layout of the projection are not looked at. The winners of the
    /// calls' pairs must stay where they are.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        hidden: &Arc<CudaTokens>,
        projection: &ProjectionCall<'_>,
        calls: &[SlotsCall<'_>],
        [n_queries, n_weights]: [usize; 2],
    ) -> Result<CudaProjectedBackward> {
        check_rows("hidden", hidden)?;
        let &ProjectionCall { weight, bias, element, normalize, .. } = projection;
        let layer = Layer::new(device, weight, bias, element, normalize)?;
        let (dim, n) = (weight.n_rows() as u64, u64::from(hidden.rows().dim));
        let most = |of: &dyn Fn(&SlotsCall<'_>) -> u64| calls.iter().map(of).max().unwrap_or(0);
        let n_slots = most(&|call| call.n_slots as u64);
        let pitches = [n, dim].map(|n| pitch(n, element));
        let [u_bytes, r_bytes] = layer.norm_bytes(n_slots as usize);
        let [parts_bytes, bias_bytes] = layer.parts_bytes();
        let lens = [n_queries as u64, n_weights as u64, dim * n, bias.map_or(0, |_| dim)];
        let mut divided = Divided::default();
        let mut at = Addresses {
            rows: divided.next(n_slots * 4),
            states: divided.next(n_slots * pitches[0]),
            tokens: divided.next(n_slots * pitches[1]),
            gradients: divided.next(n_slots * dim * 4),
            projected: divided.next(u_bytes),
            norms: divided.next(r_bytes),
            winners: divided.next(most(&|call| call.problem.token_offsets().total() * 4)),
            grad_scores: divided.next(most(&|call| call.problem.shape().n_scores() as u64 * 4)),
            queries: divided.next(lens[0] * 4),
            query_weights: divided.next(lens[1] * 4),
            parts: divided.next(parts_bytes),
            bias_parts: divided.next(bias_bytes),
        };
        let memory = Memory::new(device, divided.0)?;
        at.place(memory.address());
        let kernels = Kernels {
            choose: device.kernel(PROJECTION_CHOOSE)?,
            gather: device.kernel(PROJECTION_GATHER)?,
            active: device.kernel(PROJECTION_ACTIVE)?,
            sum: device.kernel(PROJECTION_SUM)?,
            zeros: device.kernel(PROJECTION_ZEROS)?,
        };
        let group = |call| Group::new(device, projection, call, &at, [n as usize, n_weights]);
        let groups = calls.iter().map(group).collect::<Result<_>>()?;
        let (device, hidden) = (device.clone(), hidden.clone());
        Ok(CudaProjectedBackward {
            device,
            hidden,
            layer,
            element,
            kernels,
            groups,
            at,
            lens,
            memory,
        })
    }

    /// Writes the gradients of queries, of hidden states and of query weights, and those of the
    /// weight and of the bias, from gradients of scores. Waits for them.
    pub(crate) fn run(
        self: &mut CudaProjectedBackward,
        queries: &CudaTokens,
        grad_scores: &CudaGradScores,
        to: [&CudaGradients; 2],
    ) -> Result<()> {
        debug_assert!(self.memory.address() <= self.at.rows);
        let device = &self.device;
        let events = [CudaEvent::new(device, false)?, CudaEvent::new(device, false)?];
        device.until_both_are_done(|[stream, beside]| {
            let entered = device.enter()?;
            let order = stream.order(&entered)?;
            beside.order(&entered)?;
            let _last = grad_scores.hazard().begin(&entered, stream, order)?;
            let [of_queries, of_hidden] = to[0].sides();
            // SAFETY: matrices and memory have these lengths; this call alone writes to them until
            // both streams have been waited for, and so long do they live. What the second stream
            // writes is waited for before the first one does.
            unsafe {
                for (address, n) in [self.at.queries, self.at.query_weights].iter().zip(self.lens) {
                    fill(&entered, *address, 0, n * 4, stream.raw())?;
                }
                for (i, group) in self.groups.iter().enumerate() {
                    self.project(&entered, stream, group, grad_scores)?;
                    if i == 0 {
                        self.clear_beside(&entered, [&*stream, &*beside], of_hidden, &events)?;
                    }
                    self.tokens_of(&entered, stream, group, queries)?;
                    self.through_layer(&entered, stream, group, i > 0)?;
                    if i == 0 {
                        events[1].hold_back(&entered, stream, order)?;
                    }
                    self.store_rows(&entered, stream, group, of_hidden)?;
                }
                if self.groups.is_empty() {
                    // No rows, and so no parts.
                    let [parts_bytes, bias_bytes] = self.layer.parts_bytes();
                    fill(&entered, self.at.parts, 0, parts_bytes, stream.raw())?;
                    fill(&entered, self.at.bias_parts, 0, bias_bytes, stream.raw())?;
                    of_hidden.clear(&entered, stream.raw())?;
                }
                let [of_weight, of_bias] = to[1].sides();
                let n_parts = self.layer.n_parts();
                self.sum(&entered, stream, self.at.queries, 1, of_queries)?;
                self.sum(&entered, stream, self.at.query_weights, 1, to[0].weights())?;
                self.sum(&entered, stream, self.at.parts, n_parts, of_weight)?;
                self.sum(&entered, stream, self.at.bias_parts, n_parts, of_bias)
            }
        })
    }

    /// Enqueues what puts chosen rows in slots, and projects them.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`].
    unsafe fn project(
        &self,
        entered: &Entered<'_>,
        stream: &mut CudaStream,
        group: &Group,
        grad_scores: &CudaGradScores,
    ) -> Result<()> {
        let Access { base: to, pitch_bytes: to_pitch, .. } = group.states.access();
        let choose = ChooseParams { grad_scores: grad_scores.address(), ..group.choose };
        let gather = GatherRowsParams {
            from: self.hidden.access().base,
            from_pitch: self.hidden.access().pitch_bytes,
            rows: self.at.rows,
            to,
            to_pitch,
            n_rows: group.states.n_rows() as u32,
            row_bytes: self.hidden.rows().dim * self.element.size_bytes() as u32,
        };
        let n_chunks = u64::from(gather.n_rows) * u64::from(gather.row_bytes.div_ceil(16));
        let n_blocks = n_chunks.div_ceil(THREADS as u64) as u32;
        let chosen_bytes = choose_shared_bytes(32 * choose.n_words) as u32;
        let Kernels { choose: by_document, gather: by_chunk, .. } = &self.kernels;
        // SAFETY: the caller's promise; there are CTAs for all documents and chunks, and shared
        // memory for the longest document whose rows are listed.
        unsafe {
            start(entered, stream.raw(), by_document, group.n_documents, chosen_bytes, &choose)?;
            start(entered, stream.raw(), by_chunk, n_blocks, 0, &gather)?;
            group.projecting.enqueue(&self.device, stream)
        }
    }

    /// Fills a gradient with zeros on the second stream, behind what the first has been given.
    /// `events` are then those points of the two.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`].
    unsafe fn clear_beside(
        &self,
        entered: &Entered<'_>,
        [stream, beside]: [&CudaStream; 2],
        to: GradientMatrix,
        events: &[CudaEvent; 2],
    ) -> Result<()> {
        let order = beside.order(entered)?;
        let len_bytes = to.len_bytes();
        // SAFETY: the caller's promise; the matrix has this length.
        unsafe {
            events[0].record(entered, stream.raw())?;
            events[0].hold_back(entered, beside, order)?;
            match (to.address | len_bytes).is_multiple_of(16) && len_bytes > 0 {
                true => {
                    let params = ZerosParams { to: to.address, n_chunks: len_bytes / 16 };
                    let grid = self.device.limits().n_multiprocessors as u32;
                    start(entered, beside.raw(), &self.kernels.zeros, grid, 0, &params)?;
                }
                false => to.clear(entered, beside.raw())?,
            }
            events[1].record(entered, beside.raw())
        }
    }

    /// Enqueues what finds the gradients of the tokens of slots, and adds to those of queries.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`], behind [`CudaProjectedBackward::project`].
    unsafe fn tokens_of(
        &self,
        entered: &Entered<'_>,
        stream: &mut CudaStream,
        group: &Group,
        queries: &CudaTokens,
    ) -> Result<()> {
        let active = ActiveParams {
            gradients: self.at.gradients,
            rows: self.at.rows,
            states: group.states.access().base,
            states_pitch: group.states.access().pitch_bytes,
            n_slots: group.states.n_rows() as u32,
            dim: group.backward.dim as u32,
        };
        let call = BackwardCall {
            queries,
            documents: &group.projecting.tokens,
            outputs: &group.outputs,
            grad_scores: &group.grad_scores,
            gradients: &group.gradients,
            adds: true,
        };
        let [_, of_tokens] = group.gradients.sides();
        let n_blocks = active.n_slots.div_ceil(THREADS as u32 / 32);
        // SAFETY: the caller's promise; there is a warp for each slot.
        unsafe {
            of_tokens.clear(entered, stream.raw())?;
            group.backward.enqueue(stream, &call)?;
            start(entered, stream.raw(), &self.kernels.active, n_blocks, 0, &active)
        }
    }

    /// Enqueues what makes gradients of the slots' tokens those before they were normalised, and
    /// writes, or adds to, the parts of those of weight and bias.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`], behind [`CudaProjectedBackward::tokens_of`].
    unsafe fn through_layer(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        group: &Group,
        adds: bool,
    ) -> Result<()> {
        let Addresses { gradients, projected, norms, parts, bias_parts, .. } = self.at;
        let addresses = [gradients, projected, norms];
        let parts = [parts, bias_parts];
        // SAFETY: the caller's promise.
        unsafe {
            self.layer.through_norm(entered, stream, &group.states, addresses)?;
            self.layer.weight_parts(entered, stream, &group.states, gradients, parts, adds)
        }
    }

    /// Enqueues what makes the gradients of hidden states, where these are wanted.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`], behind [`CudaProjectedBackward::through_layer`].
    unsafe fn store_rows(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        group: &Group,
        to: GradientMatrix,
    ) -> Result<()> {
        if to.rows == 0 {
            return Ok(());
        }
        let rows = HiddenGradient {
            address: to.address,
            rows: self.at.rows,
            narrows: to.element != ElementType::F32,
        };
        let n_slots = group.states.n_rows() as u32;
        // SAFETY: the caller's promise.
        unsafe { self.layer.of_hidden(entered, stream, n_slots, self.at.gradients, rows) }
    }

    /// Enqueues the sums of parts, each of all numbers of a matrix.
    ///
    /// # Safety
    /// As in [`CudaProjectedBackward::run`], behind what writes the parts.
    unsafe fn sum(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        parts: u64,
        n_parts: u32,
        to: GradientMatrix,
    ) -> Result<()> {
        let n = to.rows as u64 * to.dim as u64;
        let out = output(to.address, to.element, to.dim, false);
        let params = SumPartsParams { out, parts, n, n_parts, reserved: 0 };
        match n.div_ceil(THREADS as u64) as u32 {
            0 => Ok(()),
            // SAFETY: the caller's promise; there is a thread for each number.
            grid => unsafe { start(entered, stream.raw(), &self.kernels.sum, grid, 0, &params) },
        }
    }
}
