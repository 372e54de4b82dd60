//! Coarse-to-fine scores on a device: the forward kernel of INT8 codes finds winners, another one
//! scores them in full precision.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward::Rows;
use maxsim_kernels::abi::params::rescore::{
    RescoreParams, SHARED_BYTES, WARPS_LOG2, lanes, warps_log2,
};
use maxsim_kernels::table::auxiliary::RESCORE;

use super::lists::{slot_words, slots};
use super::plan::ForwardPlan;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Kind;
use crate::tokens::element::ElementType;
use crate::tokens::layout::regular_len;

/// Queries and documents.
pub(crate) type Sides = [Arc<CudaTokens>; 2];

/// A coarse-to-fine call made ready: the work that finds winners, and the lists of the kernel that
/// scores them.
#[derive(Debug)]
pub(crate) struct CudaRescore {
    device: Arc<CudaDevice>,
    coarse_scores: Arc<ForwardPlan>,
    kernel: Kernel<RescoreParams>,
    row_bytes: usize,
    n_pairs: u32,
    /// Scores per query, where pairs are computed.
    row_len: u32,
    own_documents: bool,
    winner_bytes: usize,
    warps_log2: u32,
    /// Listed pairs, or the place of each query's winners, if the kernel reads either.
    list: Option<Buffer>,
    is_listed: bool,
}

impl CudaRescore {
    /// Uploads the lists and loads the kernel; `coarse_scores` is the work of the same problem's
    /// codes.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        coarse_scores: &Arc<ForwardPlan>,
        outputs: &OutputShape,
    ) -> Result<CudaRescore> {
        let is_listed = match problem.pairing().0 {
            Kind::Cross | Kind::OwnCandidates { .. } => false,
            Kind::Candidates { .. } | Kind::Pairs { .. } => true,
        };
        let is_regular = regular_len(problem.queries().segments()).is_some();
        let list = match (is_listed, is_regular) {
            (true, _) => {
                let words: Vec<[u32; 8]> = slots(problem).iter().map(slot_words).collect();
                Some(upload(device, bytemuck::cast_slice(&words))?)
            }
            (false, true) => None,
            (false, false) => {
                let offsets = problem.token_offsets();
                Some(upload(device, bytemuck::cast_slice(offsets.bases()))?)
            }
        };
        Ok(CudaRescore {
            device: device.clone(),
            coarse_scores: coarse_scores.clone(),
            kernel: device.kernel_of(&RESCORE, element)?,
            row_bytes: problem.dim() * element.size_bytes(),
            n_pairs: problem.shape().n_scores() as u32,
            row_len: problem.shape().row_len().unwrap_or(0) as u32,
            own_documents: matches!(problem.pairing().0, Kind::OwnCandidates { .. }),
            winner_bytes: outputs.winner_bytes,
            warps_log2: warps_log2(problem.queries().max_len()),
            list,
            is_listed,
        })
    }

    /// Enqueues the call. Allocates nothing once the stream's workspace has grown.
    ///
    /// The handles' layouts and the outputs' shape must be those of the work; `Stream` checks them.
    pub(crate) fn enqueue(
        &self,
        stream: &mut CudaStream,
        codes: [&Arc<CudaTokens>; 2],
        tokens: [&Arc<CudaTokens>; 2],
        outputs: &CudaOutputs,
    ) -> Result<()> {
        self.check(&codes)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let workspace = match self.workspace_bytes() {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)?,
        };
        let raw = stream.raw();
        // SAFETY: the handles have the problem's layouts and the outputs its shape (the caller's
        // check), in this context; only this stream uses its workspace, and the hazard orders the
        // writes of the outputs.
        let run = || unsafe { self.run(&entered, raw, &codes, &tokens, outputs, workspace) };
        outputs.hazard().enqueue(&entered, stream, order, run)
    }

    /// Refuses codes that the work's kernel cannot read.
    pub(in crate::cuda) fn check(
        &self,
        [queries, documents]: &[impl AsRef<CudaTokens>; 2],
    ) -> Result<()> {
        self.coarse_scores.check_maps(queries.as_ref(), documents.as_ref())
    }

    /// Bytes of workspace that the work needs.
    pub(in crate::cuda) fn workspace_bytes(&self) -> u64 {
        self.coarse_scores.workspace_bytes()
    }

    /// Enqueues the work's launches.
    ///
    /// # Safety
    /// As [`ForwardPlan::run`], for codes and tokens alike.
    pub(in crate::cuda) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        codes: &[impl AsRef<CudaTokens>; 2],
        tokens: &[impl AsRef<CudaTokens>; 2],
        outputs: &CudaOutputs,
        workspace: u64,
    ) -> Result<()> {
        let [queries, documents] = codes.each_ref().map(AsRef::as_ref);
        let maps = self.coarse_scores.tensor_maps(entered, queries, documents)?;
        // Token scores are written below, every one of them, and so are scores.
        let winners = outputs.without_token_scores();
        let params = self.params(tokens.each_ref().map(AsRef::as_ref), outputs);
        // SAFETY: the caller's promise; each CTA has a share of all pairs.
        unsafe {
            self.coarse_scores
                .run(entered, stream, maps, queries, documents, &winners, workspace)?;
            match self.n_pairs.div_ceil(1 << (WARPS_LOG2 - self.warps_log2)) {
                0 => Ok(()),
                grid => start(entered, stream, &self.kernel, grid, SHARED_BYTES as u32, &params),
            }
        }
    }

    fn params(
        &self,
        [queries, documents]: [&CudaTokens; 2],
        outputs: &CudaOutputs,
    ) -> RescoreParams {
        let (lanes_log2, n_columns) = lanes(self.row_bytes);
        let rows = |tokens: &CudaTokens| Rows { lanes_log2, n_columns, ..tokens.rows() };
        let (query_rows, document_rows) = (rows(queries), rows(documents));
        let list = self.list.as_ref().map_or(0, Buffer::address);
        let out = outputs.addresses();
        RescoreParams {
            queries: queries.matrix(),
            documents: documents.matrix(),
            query_rows,
            document_rows,
            slots: if self.is_listed { list } else { 0 },
            query_token_base: if self.is_listed { 0 } else { list },
            winners: out.winners,
            scores: out.scores,
            token_scores: out.token_scores,
            n_pairs: self.n_pairs,
            row_len: self.row_len,
            own_documents: u32::from(self.own_documents),
            winner_bytes: self.winner_bytes as u32,
            warps_log2: self.warps_log2,
            whole: query_rows.aligned & document_rows.aligned,
        }
    }
}
