//! XTR on a device: maxima, thresholds and scores, one behind the other on a stream.
//!
//! ```text
//! forward   maxima and winners of all pairs, by a kernel for sm_80
//! select    the k-th largest of a query token's maxima: as many similarities reach it, few more
//! collect   the similarities above that bound, by a kernel with the same tiles: the same bits
//! select    the k-th largest of what was collected: the threshold
//! score     scores of maxima and thresholds, and the winners that were retrieved
//! ```
//!
//! The host waits once, at the end. Where a list was too short for what is above its bound, the
//! k-th largest of what came is a better bound, and the last three steps follow again; each time
//! at least as many similarities are excluded as a list has beyond k. Maxima of other pairs than
//! all give no bound, and then the first pass collects whatever comes first.

mod lists;

use std::sync::Arc;

use bytemuck::cast_slice_mut;
use maxsim_kernels::abi::element::{ElementType, Operand};
use maxsim_kernels::abi::params::xtr::{
    CollectParams, Collected, SCORE_THREADS, SELECT_SHARED_BYTES, ScoreParams, SelectParams,
    divisor,
};
use maxsim_kernels::table::auxiliary::{
    Family, XTR_COLLECT, XTR_COLLECT_128, XTR_COLLECT_NORMALIZED, XTR_SCORE, XTR_SELECT,
};
use maxsim_kernels::table::forward::Variant;

use self::lists::Lists;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::calls::{Reduction, XtrCall, XtrFound};
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{RESERVED_BYTES, start};
use crate::cuda::driver::memory::{Buffer, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::forward::collect::Collecting;
use crate::cuda::forward::plan::ForwardPlan;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::runtime::alloc::filled;
use crate::runtime::interrupt::Interrupt;

/// Bytes of all lists together, unless each has to have room for 2k.
const LIST_BYTES: u64 = 12 << 20;

/// Most similarities of a list, where 2k are not more.
const CAPACITY: u64 = 4096;

/// Most bytes of maxima in a stream's workspace, which keeps them for its next call: more are the
/// call's own.
const MAXIMA_KEPT_BYTES: u64 = 64 << 20;

/// Alignment of what lies in the workspace.
const ALIGN_BYTES: u64 = 256;

/// Places in the stream's workspace, behind what the plans need: nothing there lives longer than
/// a call.
struct Places {
    token_scores: u64,
    lists: u64,
    divisors: u64,
    end: u64,
}

/// The kernels of a call.
struct Kernels {
    collect: Kernel<CollectParams>,
    select: Kernel<SelectParams>,
    score: Kernel<ScoreParams>,
}

impl CudaDevice {
    /// Scores a problem by what query tokens retrieve, and waits for the results.
    pub(crate) fn xtr(self: &Arc<CudaDevice>, call: &XtrCall<'_, ForwardPlan>) -> Result<XtrFound> {
        let pool = call.pool.map_or(call.work, |(_, plan)| plan);
        let kernels = Kernels {
            collect: self.kernel_of(family(pool.variant()), element(pool.variant())?)?,
            select: self.kernel(XTR_SELECT)?,
            score: self.kernel(XTR_SCORE)?,
        };
        let [scores_bytes, winner_bytes, _] = call.shape.lens_bytes();
        let outputs = match call.reduction {
            None => CudaOutputs::unfilled(self, call.shape)?,
            Some(_) => CudaOutputs::with_room(self, [scores_bytes, winner_bytes, 0])?,
        };
        let lists = Lists::new(self, call.problem)?;
        self.on_idle_stream(|stream| {
            let run = Run { device: self, call, pool, kernels: &kernels, lists: &lists };
            run.run(stream, outputs)
        })
    }
}

/// A call with what it needs beside the workspace.
struct Run<'a> {
    device: &'a Arc<CudaDevice>,
    call: &'a XtrCall<'a, ForwardPlan>,
    /// The plan of the pairs that thresholds are of.
    pool: &'a ForwardPlan,
    kernels: &'a Kernels,
    lists: &'a Lists,
}

impl Run<'_> {
    fn run(&self, stream: &mut CudaStream, mut outputs: CudaOutputs) -> Result<XtrFound> {
        let XtrCall { problem, work, tokens, reduction, .. } = *self.call;
        let entered = self.device.enter()?;
        let (capacity, interrupt) = (self.capacity(), Interrupt::current());
        let places = self.places(capacity);
        let order = stream.order(&entered)?;
        let start = stream.workspace(&entered, order, places.end)?;
        let [kept_bytes, own_bytes] = self.maxima_bytes();
        let own = Buffer::new(self.device, own_bytes)?;
        if reduction.is_some() {
            let at = if own_bytes > 0 { own.address() } else { start + places.token_scores };
            outputs.lend_token_scores(at, kept_bytes + own_bytes);
        }
        drop(entered);
        work.enqueue(stream, tokens[0], tokens[1], &outputs)?;
        let entered = self.device.enter()?;
        // SAFETY: the plan is of a kernel for sm_80, as the caller says, and the workspace large
        // enough.
        let collecting = unsafe { self.pool.prepare_collect(&entered, stream, tokens)? };
        let collected = Collected {
            bounds: self.lists.bounds,
            counts: self.lists.counts,
            lists: start + places.lists,
            first_tokens: self.lists.first_tokens,
            capacity: capacity as u32,
            reserved: 0,
        };
        let selects = self.selects();
        if selects && self.call.pool.is_none() {
            self.select(&entered, stream, collected, &collecting, Some(&outputs))?;
        }
        let mut thresholds = filled(problem.queries().total_len(), 0.0f32)?;
        let n_scores = problem.shape().n_scores() as u64;
        let [mut values, mut divisors] = [filled(n_scores, 0.0f32)?, filled(n_scores, 0.0f32)?];
        loop {
            interrupt.check()?;
            if selects {
                self.find_thresholds(&entered, stream, collected, &collecting)?;
            }
            let found = [outputs.addresses().scores, start + places.divisors];
            if let Some(reduction) = reduction {
                self.score(&entered, stream, &outputs, reduction, found[1])?;
            }
            let mut n_open = [0u32];
            let (to_values, to_divisors) = match reduction {
                Some(_) => (&mut values[..], &mut divisors[..]),
                None => (&mut [][..], &mut [][..]),
            };
            let from = [
                (self.lists.n_open, cast_slice_mut(&mut n_open)),
                (self.lists.thresholds, cast_slice_mut(&mut thresholds)),
                (found[0], cast_slice_mut(to_values)),
                (found[1], cast_slice_mut(to_divisors)),
            ];
            // SAFETY: there are so many of each; this stream alone writes them.
            unsafe { stream.read(&entered, from)? };
            if n_open[0] == 0 {
                break;
            }
        }
        if reduction.is_some() {
            outputs.return_token_scores();
        }
        drop(own);
        Ok(XtrFound { outputs, values, divisors, thresholds })
    }

    /// Whether there are similarities of which some query tokens retrieve a part.
    fn selects(&self) -> bool {
        let (n_pairs, n_documents) = (self.pooled().shape().n_scores(), self.pooled().documents());
        let n_tokens = self.pooled().queries().total_len();
        // With fewer than k all are retrieved, as thresholds of −∞ say.
        n_pairs > 0 && n_tokens > 0 && self.call.k as u64 <= n_documents.total_len()
    }

    /// The problem that thresholds are of.
    fn pooled(&self) -> &Problem<'_> {
        self.call.pool.map_or(self.call.problem, |(problem, _)| problem)
    }

    /// Similarities that a list has room for: at least 2k, or all that there are.
    fn capacity(&self) -> u64 {
        if !self.selects() {
            return 0;
        }
        let (n_tokens, k) = (self.call.problem.queries().total_len(), self.call.k as u64);
        let most = self.pooled().documents().total_len();
        (LIST_BYTES / 4 / n_tokens).min(CAPACITY).max(2 * k).min(most)
    }

    /// Bytes of maxima in the workspace, and in memory of the call's own: one of them is 0.
    fn maxima_bytes(&self) -> [u64; 2] {
        match self.call.reduction.map_or(0, |_| self.call.shape.lens_bytes()[2]) {
            few if few <= MAXIMA_KEPT_BYTES => [few, 0],
            many => [0, many],
        }
    }

    fn places(&self, capacity: u64) -> Places {
        let XtrCall { problem, work, tokens, .. } = *self.call;
        let plans = [work, self.pool].map(|plan| plan.workspace_bytes_of(tokens));
        let mut end = plans.into_iter().fold(RESERVED_BYTES, u64::max);
        let mut place = |len_bytes: u64| {
            let start = end.next_multiple_of(ALIGN_BYTES);
            end = start + len_bytes;
            start
        };
        let [token_scores_bytes, _] = self.maxima_bytes();
        let [token_scores, lists, divisors] = [
            place(token_scores_bytes),
            place(problem.queries().total_len() * capacity * 4),
            place(problem.shape().n_scores() as u64 * 4),
        ];
        Places { token_scores, lists, divisors, end }
    }

    /// Enqueues a pass that collects, and a selection of what came.
    fn find_thresholds(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        collected: Collected,
        collecting: &Collecting<'_>,
    ) -> Result<()> {
        // SAFETY: four bytes of the lists; bounds, counts and lists are of these query tokens, and
        // this stream alone uses them; the kernel is that of the plan's tile.
        unsafe {
            fill(entered, self.lists.n_open, 0, 4, stream.raw())?;
            collecting.enqueue(entered, stream, &self.kernels.collect, collected)?;
        }
        self.select(entered, stream, collected, collecting, None)
    }

    /// Enqueues a selection: of maxima, where they are given, or of what was collected.
    fn select(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        collected: Collected,
        collecting: &Collecting<'_>,
        maxima: Option<&CudaOutputs>,
    ) -> Result<()> {
        let maxima = maxima.map(CudaOutputs::addresses);
        let problem = self.call.problem;
        let lacks_some = problem.queries().is_masked() || problem.documents().has_empty_items();
        let params = SelectParams {
            collected,
            thresholds: self.lists.thresholds,
            scales: collecting.query_scales(),
            rows: self.lists.rows,
            maxima: maxima.map_or(0, |maxima| maxima.token_scores),
            winners: maxima.filter(|_| lacks_some).map_or(0, |maxima| maxima.winners),
            places: self.lists.places,
            n_open: self.lists.n_open,
            k: self.call.k as u32,
            winner_bytes: self.call.shape.winner_bytes as u32,
        };
        let n_tokens = problem.queries().total_len() as u32;
        let (kernel, shared_bytes) = (&self.kernels.select, SELECT_SHARED_BYTES as u32);
        // SAFETY: the lists are of these query tokens, and so are maxima, of all documents; this
        // stream alone uses them.
        unsafe { start(entered, stream.raw(), kernel, n_tokens, shared_bytes, &params) }
    }

    /// Enqueues the scores of all pairs.
    fn score(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        outputs: &CudaOutputs,
        reduction: Reduction,
        divisors: u64,
    ) -> Result<()> {
        let XtrCall { problem, shape, tokens, .. } = *self.call;
        let n_pairs = problem.shape().n_scores() as u32;
        if n_pairs == 0 {
            return Ok(());
        }
        let addresses = outputs.addresses();
        let params = ScoreParams {
            maxima: addresses.token_scores,
            winners: addresses.winners,
            thresholds: self.lists.thresholds,
            queries: self.lists.queries,
            pairs: self.lists.pairs,
            rows: self.lists.rows,
            mask: tokens[0].matrix().mask,
            scores: addresses.scores,
            divisors,
            n_pairs,
            row_len: problem.shape().row_len().unwrap_or(0) as u32,
            winner_bytes: shape.winner_bytes as u32,
            divisor: divisor(reduction),
        };
        let grid = n_pairs.div_ceil(SCORE_THREADS as u32);
        // SAFETY: maxima, winners and lists are those of the problem, and the workspace has the
        // divisors; this stream alone uses them.
        unsafe { start(entered, stream.raw(), &self.kernels.score, grid, 0, &params) }
    }
}

/// The number by which kernels know a reduction.
fn divisor(reduction: Reduction) -> u32 {
    match reduction {
        Reduction::Retrieved => divisor::RETRIEVED,
        Reduction::QueryTokens => divisor::QUERY_TOKENS,
        Reduction::Sum => divisor::NONE,
        Reduction::Imputed => divisor::IMPUTED,
    }
}

/// The family of the kernels that collect with the tiles of a forward kernel.
fn family(variant: &Variant) -> &'static Family<CollectParams> {
    match (variant.normalizes(), variant.streams_queries) {
        (true, _) => &XTR_COLLECT_NORMALIZED,
        (false, true) => &XTR_COLLECT,
        (false, false) => &XTR_COLLECT_128,
    }
}

fn element(variant: &Variant) -> Result<ElementType> {
    match variant.operand {
        Operand::Element(element) => Ok(element),
        _ => Err(Error::Unsupported {
            what: "thresholds of codes on a CUDA device".into(),
            why: "kernels take elements; use Device::cpu()".into(),
        }),
    }
}
