//! XTR on a device: maxima, thresholds and scores, one behind the other on a stream.
//!
//! ```text
//! forward   maxima and winners of all pairs
//! select    the k-th largest of a query token's maxima: as many similarities reach it, few more
//! collect   the similarities above that bound, by a kernel with the same tiles: the same bits
//! select    the k-th largest of what was collected: the threshold
//! score     scores of maxima and thresholds, and the winners that were retrieved
//! ```
//!
//! Where a kernel for sm_90a collects, it finds maxima and winners, too, and the product of all
//! pairs is computed once: bounds are made of the maxima of a sample of the documents.
//!
//! The host waits once, at the end. Where a list was too short for what is above its bound, the
//! k-th largest of what came is a better bound, and the last three steps follow again; each time
//! at least as many similarities are excluded as a list has beyond k. So they do where fewer than k
//! are above the bound of a sample, which −∞ replaces. Maxima of other pairs than all give no
//! bound, and then the first pass collects whatever comes first.

mod lists;
mod places;
mod sample;

use std::sync::Arc;

use bytemuck::cast_slice_mut;
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::element::{ElementType, Operand};
use maxsim_kernels::abi::params::xtr::{
    CollectParams, Collected, SCORE_THREADS, SELECT_SHARED_BYTES, ScoreParams, SelectParams,
    divisor,
};
use maxsim_kernels::table::auxiliary::{
    Family, XTR_COLLECT, XTR_COLLECT_128, XTR_COLLECT_MAPPED, XTR_COLLECT_NORMALIZED, XTR_SCORE,
    XTR_SELECT,
};
use maxsim_kernels::table::forward::Variant;

use self::lists::Lists;
use self::places::Places;
use self::sample::Sample;
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
use crate::problem::outputs::OutputAddresses;
use crate::problem::xtr::{list_len, sample_rank};
use crate::runtime::alloc::filled;
use crate::runtime::interrupt::Interrupt;

/// Most bytes of maxima in a stream's workspace, which keeps them for its next call: more are the
/// call's own.
const MAXIMA_KEPT_BYTES: u64 = 64 << 20;

/// Alignment of what lies in the workspace.
const ALIGN_BYTES: u64 = 256;

/// Bytes of the number of query tokens without a threshold, and what is left of them to a boundary.
const N_OPEN_BYTES: u64 = 16;

/// The kernels of a call.
struct Kernels {
    collect: Kernel<CollectParams>,
    select: Kernel<SelectParams>,
    score: Kernel<ScoreParams>,
}

/// What a plan keeps for its calls.
#[derive(Debug)]
struct Beside {
    lists: Lists,
    /// Where the kernel that collects finds maxima and winners, too.
    sample: Option<Sample>,
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
        let beside = self.beside(call)?;
        let sample = match &beside.sample {
            None => None,
            Some(sample) => {
                let rank = sample_rank(call.problem.documents().n_items(), call.k);
                Some((sample, rank.ok_or_else(no_sample)?))
            }
        };
        self.on_idle_stream(|stream| {
            let lists = &beside.lists;
            let run = Run { device: self, call, pool, kernels: &kernels, lists, sample };
            run.run(stream, outputs)
        })
    }

    /// What the call's plan keeps: made by the first call of it.
    fn beside(self: &Arc<CudaDevice>, call: &XtrCall<'_, ForwardPlan>) -> Result<Arc<Beside>> {
        let kept = &call.work.beside;
        if let Some(beside) = kept.get().cloned().and_then(|kept| kept.downcast().ok()) {
            return Ok(beside);
        }
        let variant = call.work.variant();
        let beside = Arc::new(Beside {
            lists: Lists::new(self, call.problem)?,
            sample: match variant.arch {
                Arch::Sm90a => Some(Sample::new(self, call.problem, variant)?),
                Arch::Sm80 => None,
            }
            .flatten(),
        });
        // Another thread may have been first: either will do.
        let _ = kept.set(beside.clone());
        Ok(beside)
    }
}

/// The error of a plan for sm_90a whose problem gives no sample.
fn no_sample() -> Error {
    Error::Unsupported {
        what: "XTR by a kernel for compute capability 9.0 of so few documents".into(),
        why: "there is no sample of them".into(),
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
    /// The sample that bounds are of, and which of its maxima they are.
    sample: Option<(&'a Sample, usize)>,
}

impl Run<'_> {
    fn run(&self, stream: &mut CudaStream, mut outputs: CudaOutputs) -> Result<XtrFound> {
        let XtrCall { problem, work, tokens, reduction, .. } = *self.call;
        let entered = self.device.enter()?;
        let (capacity, interrupt) = (self.capacity(), Interrupt::current());
        let places = self.places(capacity);
        let order = stream.order(&entered)?;
        let start = stream.workspace(&entered, order, places.end)?;
        let places = places.at(start);
        let [kept_bytes, own_bytes] = self.maxima_bytes();
        let own = Buffer::new(self.device, own_bytes)?;
        if reduction.is_some() {
            let at = if own_bytes > 0 { own.address() } else { places.token_scores };
            outputs.lend_token_scores(at, kept_bytes + own_bytes);
        }
        drop(entered);
        let collected = Collected {
            bounds: places.bounds,
            counts: places.counts,
            lists: places.lists,
            first_tokens: self.lists.first_tokens,
            capacity: capacity as u32,
            reserved: 0,
        };
        if self.sample.is_none() {
            work.enqueue(stream, tokens[0], tokens[1], &outputs)?;
        }
        let entered = self.device.enter()?;
        // SAFETY: the plan has no document splits, as the caller says, and the workspace is large
        // enough.
        let collecting = unsafe { self.pool.prepare_collect(&entered, stream, tokens)? };
        let enqueued = Enqueued { entered: &entered, stream, places: &places, collected };
        self.begin(&enqueued, &collecting, &outputs, start)?;
        let mut thresholds = filled(problem.queries().total_len(), 0.0f32)?;
        let n_scores = problem.shape().n_scores() as u64;
        let [mut values, mut divisors] = [filled(n_scores, 0.0f32)?, filled(n_scores, 0.0f32)?];
        let mut is_first = true;
        loop {
            interrupt.check()?;
            if self.selects() {
                self.find_thresholds(&enqueued, &collecting, &outputs, is_first)?;
            }
            if let Some(reduction) = reduction {
                self.score(&enqueued, &outputs, reduction)?;
            }
            let mut n_open = [0u32; N_OPEN_BYTES as usize / 4];
            let (to_values, to_divisors) = match reduction {
                Some(_) => (&mut values[..], &mut divisors[..]),
                None => (&mut [][..], &mut [][..]),
            };
            let beside = [
                cast_slice_mut(&mut n_open),
                cast_slice_mut(&mut thresholds),
                cast_slice_mut(to_divisors),
            ];
            let values =
                (outputs.addresses().scores, [cast_slice_mut(to_values), &mut [], &mut []]);
            // SAFETY: there are so many of each; this stream alone writes them.
            unsafe { stream.read_parts(&entered, [(places.n_open, beside), values])? };
            if n_open[0] == 0 {
                break;
            }
            is_first = false;
        }
        if reduction.is_some() {
            outputs.return_token_scores();
        }
        drop(own);
        Ok(XtrFound { outputs, values, divisors, thresholds })
    }

    /// Enqueues what finds the first bounds.
    fn begin(
        &self,
        enqueued: &Enqueued<'_>,
        collecting: &Collecting<'_>,
        outputs: &CudaOutputs,
        workspace: u64,
    ) -> Result<()> {
        let &Enqueued { entered, stream, places, .. } = enqueued;
        let XtrCall { problem, tokens, k, .. } = *self.call;
        let none = Maxima { address: 0, winners: 0, places: self.lists.places, rank: u32::MAX };
        let lacks_some = problem.queries().is_masked() || problem.documents().has_empty_items();
        let addresses = outputs.addresses();
        let maxima = match self.sample {
            Some((sample, rank)) => {
                let [scores, maxima] = places.sample;
                let out = OutputAddresses { scores, winners: 0, token_scores: maxima };
                // SAFETY: the workspace has room for these outputs, and this stream alone uses it;
                // the plan is of the documents with these numbers.
                unsafe {
                    let is_some = problem.documents().is_masked() || lacks_some;
                    if is_some {
                        // Maxima that no kernel writes are NaN, which are none.
                        fill(entered, maxima, 0xFF, sample.lens_bytes[1], stream.raw())?;
                    }
                    // As for a plan of its own: every other output is written.
                    outputs.clear(entered, stream.raw(), false, is_some)?;
                    let numbers = sample.numbers;
                    sample.plan.run_listed(entered, stream, tokens, numbers, out, workspace)?;
                }
                let places = sample.lists.places;
                Maxima { address: maxima, winners: 0, places, rank: rank as u32 }
            }
            // Of other pairs there are none.
            None if !self.selects() || self.call.pool.is_some() => {
                Maxima { address: places.bounds, ..none }
            }
            None => Maxima {
                address: addresses.token_scores,
                winners: if lacks_some { addresses.winners } else { 0 },
                rank: k as u32,
                ..none
            },
        };
        self.select(enqueued, collecting, maxima, false)
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

    /// Similarities that a list has room for.
    fn capacity(&self) -> u64 {
        if !self.selects() {
            return 0;
        }
        let most = self.pooled().documents().total_len();
        list_len(self.call.problem.queries().total_len(), self.call.k as u64).min(most)
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
        let sample = self.sample.map(|(sample, _)| sample);
        let plans = [Some(work), Some(self.pool), sample.map(|sample| &sample.plan)];
        let plans = plans.into_iter().flatten().map(|plan| plan.workspace_bytes_of(tokens));
        let mut end = plans.fold(RESERVED_BYTES, u64::max).next_multiple_of(ALIGN_BYTES);
        let mut behind = |len_bytes: u64| {
            let start = end;
            end = start + len_bytes;
            start
        };
        let mut place = |len_bytes: u64| behind(len_bytes.next_multiple_of(ALIGN_BYTES));
        let [token_scores_bytes, _] = self.maxima_bytes();
        let n_tokens = problem.queries().total_len();
        let [scores_bytes, maxima_bytes] = sample.map_or([0; 2], |sample| sample.lens_bytes);
        Places {
            token_scores: place(token_scores_bytes),
            sample: [place(scores_bytes), place(maxima_bytes)],
            lists: place(n_tokens * capacity * 4),
            bounds: place(n_tokens * 4),
            counts: place(n_tokens * 4),
            n_open: behind(N_OPEN_BYTES),
            thresholds: behind(n_tokens * 4),
            divisors: behind(problem.shape().n_scores() as u64 * 4),
            end,
        }
    }

    /// Enqueues a pass that collects, and a selection of what came.
    fn find_thresholds(
        &self,
        enqueued: &Enqueued<'_>,
        collecting: &Collecting<'_>,
        outputs: &CudaOutputs,
        is_first: bool,
    ) -> Result<()> {
        let &Enqueued { entered, stream, places, collected } = enqueued;
        let is_likely = is_first && self.sample.is_some();
        let out = match self.sample {
            Some(_) => outputs.addresses(),
            // Nothing is stored there.
            None => OutputAddresses { scores: 0, winners: 0, token_scores: 0 },
        };
        // SAFETY: four bytes of the workspace; bounds, counts and lists are of these query tokens,
        // and this stream alone uses them; the kernel is that of the plan's tile.
        unsafe {
            if !is_first {
                fill(entered, places.n_open, 0, 4, stream.raw())?;
            }
            collecting.enqueue(entered, stream, &self.kernels.collect, collected, out)?;
        }
        let k = self.call.k as u32;
        let none = Maxima { address: 0, winners: 0, places: self.lists.places, rank: k };
        self.select(enqueued, collecting, none, is_likely)
    }

    /// Enqueues a selection: of maxima, where they are given, or of what was collected.
    fn select(
        &self,
        &Enqueued { entered, stream, places, collected }: &Enqueued<'_>,
        collecting: &Collecting<'_>,
        maxima: Maxima,
        bounds_are_likely: bool,
    ) -> Result<()> {
        let n_tokens = self.call.problem.queries().total_len() as u32;
        if n_tokens == 0 {
            return Ok(());
        }
        let params = SelectParams {
            collected,
            thresholds: places.thresholds,
            scales: collecting.query_scales(),
            rows: self.lists.rows,
            maxima: maxima.address,
            winners: maxima.winners,
            places: maxima.places,
            n_open: places.n_open,
            k: maxima.rank,
            winner_bytes: self.call.shape.winner_bytes as u32,
            bounds_are_likely: u32::from(bounds_are_likely),
            reserved: 0,
        };
        let (kernel, shared_bytes) = (&self.kernels.select, SELECT_SHARED_BYTES as u32);
        // SAFETY: the lists are of these query tokens, and so are maxima, of the documents that
        // they are of; this stream alone uses them.
        unsafe { start(entered, stream.raw(), kernel, n_tokens, shared_bytes, &params) }
    }

    /// Enqueues the scores of all pairs.
    fn score(
        &self,
        &Enqueued { entered, stream, places, .. }: &Enqueued<'_>,
        outputs: &CudaOutputs,
        reduction: Reduction,
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
            thresholds: places.thresholds,
            queries: self.lists.queries,
            pairs: self.lists.pairs,
            rows: self.lists.rows,
            mask: tokens[0].matrix().mask,
            scores: addresses.scores,
            divisors: places.divisors,
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

/// What work of a call is enqueued with.
struct Enqueued<'a> {
    entered: &'a Entered<'a>,
    stream: &'a CudaStream,
    places: &'a Places,
    collected: Collected,
}

/// Maxima that bounds are made of; an address of 0 = none.
#[derive(Clone, Copy)]
struct Maxima {
    address: u64,
    /// Winners without which a maximum is none; 0 = all are.
    winners: u64,
    places: u64,
    /// Which of them is the bound, the largest first.
    rank: u32,
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
    match (variant.arch, variant.normalizes(), variant.streams_queries) {
        (Arch::Sm90a, ..) => &XTR_COLLECT_MAPPED,
        (_, true, _) => &XTR_COLLECT_NORMALIZED,
        (_, false, true) => &XTR_COLLECT,
        (_, false, false) => &XTR_COLLECT_128,
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
