//! Projects hidden states some rows at a time, by one kernel, and scores their tokens.

use std::sync::Arc;

use maxsim_kernels::abi::params::projection::{ProjectionParams, ROWS, SHARED_BYTES};
use maxsim_kernels::table::auxiliary::PROJECTION;

use super::plan::ForwardPlan;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::{ProjectionCall, SliceCall};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::stream::CudaStream;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::scores::Scores;

impl CudaTokens {
    /// Tokens of some of these rows, with a copy of their mask. Waits for them.
    pub(crate) fn project(
        self: &Arc<CudaTokens>,
        device: &Arc<CudaDevice>,
        call: &ProjectionCall<'_>,
    ) -> Result<CudaTokens> {
        let tokens = Buffer::new(device, call.tokens_bytes())?;
        let view = device.on_idle_stream(|stream| {
            // SAFETY: the buffer was just made, for these rows, and nothing else has it.
            let view = unsafe { self.project_to(device, stream, call, tokens.address()) };
            // Even after an error, a launch before it may be running.
            let ended = stream.synchronize();
            view.and_then(|view| ended.map(|()| view))
        })?;
        view.owning(device, tokens)
    }

    /// Enqueues the kernel that projects some of these rows to an address, and views their tokens
    /// there, with the mask of the rows.
    ///
    /// # Safety
    /// The address must be that of memory of the stream's device for the tokens
    /// ([`ProjectionCall::tokens_bytes`]), aligned to 16 bytes, which nothing uses but this stream
    /// before the kernel has run; until then these rows, the weight and the bias must live.
    pub(in crate::cuda) unsafe fn project_to(
        self: &Arc<CudaTokens>,
        device: &Arc<CudaDevice>,
        stream: &mut CudaStream,
        call: &ProjectionCall<'_>,
        address: u64,
    ) -> Result<CudaTokens> {
        for (argument, matrix) in [("hidden", &**self), ("weight", call.weight)] {
            if !matrix.access().is_aligned() {
                return Err(Error::Shape {
                    argument,
                    expected: "rows on 16-byte boundaries, where a CUDA device projects".into(),
                    found: "other rows; upload a copy".into(),
                });
            }
        }
        let (rows, pitch_bytes) = (&call.rows, call.pitch_bytes());
        let Access { base, pitch_bytes: hidden_pitch, .. } = self.access();
        let params = ProjectionParams {
            hidden: base + rows.start as u64 * hidden_pitch,
            hidden_pitch,
            weight: call.weight.access().base,
            weight_pitch: call.weight.access().pitch_bytes,
            bias: call.bias.map_or(0, |bias| bias.access().base),
            tokens: address,
            tokens_pitch: pitch_bytes,
            n_rows: rows.len() as u32,
            n_hidden: self.rows().dim,
            dim: call.layout.dim() as u32,
            normalize: u32::from(call.normalize),
        };
        let kernel = device.kernel_of(&PROJECTION, call.element)?;
        let grid = rows.len().div_ceil(ROWS) as u32;
        if grid > 0 {
            let entered = device.enter()?;
            stream.order(&entered)?;
            let shared_bytes = SHARED_BYTES as u32;
            // SAFETY: the caller's promise; the matrices have the rows that the parameters say; the
            // kernel takes this struct.
            unsafe { start(&entered, stream.raw(), &kernel, grid, shared_bytes, &params)? };
        }
        let access = Access { base: address, pitch_bytes, n_centroids: 0 };
        let mask = if self.is_masked() { self.matrix().mask + rows.start as u64 } else { 0 };
        let tokens = CudaTokens::new(device, call.element, call.layout, access, mask, Vec::new())?;
        Ok(if mask == 0 { tokens } else { tokens.with_source(self) })
    }
}

impl CudaDevice {
    /// The scores of each slice. All of them are enqueued before the first is waited for: their
    /// tokens take turns in the same memory.
    pub(crate) fn score_slices(
        self: &Arc<CudaDevice>,
        queries: &CudaTokens,
        hidden: &Arc<CudaTokens>,
        slices: &[SliceCall<'_>],
        options: &ScoreOptions,
    ) -> Result<Vec<Scores>> {
        let most = slices.iter().map(|slice| slice.projection.tokens_bytes()).max();
        let tokens = Buffer::new(self, most.unwrap_or(0))?;
        let mut enqueued = Vec::with_capacity(slices.len());
        self.on_idle_stream(|stream| {
            let result = slices.iter().try_for_each(|slice| {
                let address = tokens.address();
                // SAFETY: the buffer has room for the tokens of any slice, and only this stream
                // uses it, until it has been waited for.
                let documents =
                    unsafe { hidden.project_to(self, stream, &slice.projection, address)? };
                let shape = OutputShape::new(&slice.problem, options);
                let work = ForwardPlan::new(self, &slice.problem, slice.chosen, &shape)?;
                // A call writes every output, filled or computed.
                let outputs = CudaOutputs::unfilled(self, &shape)?;
                work.enqueue(stream, queries, &documents, &outputs)?;
                enqueued.push((shape, outputs, work, documents));
                Ok(())
            });
            // Even after an error, launches before it may be running, and use what is dropped next.
            let ended = stream.synchronize();
            result.and(ended)
        })?;
        enqueued.iter().map(|(shape, outputs, ..)| outputs.read(shape)).collect()
    }
}
