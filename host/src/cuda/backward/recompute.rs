//! Finds winners again for the gradients, for some queries at a time where they are many.

use std::ops::Range;
use std::sync::Arc;

use cust::sys::CUstream;

use super::sides::is_disjoint;
use super::{CudaBackward, document_sums_bytes};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::BackwardCall;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::forward::plan::ForwardPlan;
use crate::error::Result;
use crate::plan::backward::BackwardKind;
use crate::plan::choice::Chosen;
use crate::problem::Problem;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::problem::shape::ScoreShape;
use crate::tokens::element::ElementType;

/// Finds winners again, slice by slice, and sums over each slice's.
#[derive(Debug)]
pub(in crate::cuda) struct Recompute {
    slices: Vec<Slice>,
    /// Room for the scores and winners of one slice.
    room: CudaOutputs,
    /// The documents' gradient in f32, where several slices add to it and it has another type:
    /// rounding after every slice would not be what is asked for.
    sums: Option<Buffer>,
}

/// The pairs of some queries.
#[derive(Debug)]
struct Slice {
    work: ForwardPlan,
    outputs: CudaOutputs,
    backward: CudaBackward,
}

impl Recompute {
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        kind: BackwardKind,
        outputs: &OutputShape,
        chosen: Chosen,
        bytes_max: u64,
    ) -> Result<Recompute> {
        let ranges = match chosen.splits {
            None => slices(problem, kind.gradient, outputs, bytes_max)?,
            Some(_) => Vec::from([all(problem)]),
        };
        let places: Vec<Place> = ranges.iter().map(|range| place(outputs, range)).collect();
        let largest = |i: usize| places.iter().map(|place| place.lens_bytes[i]).max().unwrap_or(0);
        let room = CudaOutputs::with_room(device, [largest(0), largest(1), largest(2)])?;
        let is_cut = ranges.len() > 1;
        let [_, of_documents] = kind.sides;
        let narrows = is_cut && of_documents && kind.gradient != ElementType::F32;
        let sums = narrows.then(|| Buffer::new(device, document_sums_bytes(problem)));
        let sums = sums.transpose()?;
        let gradient = if is_cut { ElementType::F32 } else { kind.gradient };
        let slices = ranges.into_iter().zip(places).map(|(range, place)| {
            let part = if is_cut { problem.of_queries(range) } else { problem.clone() };
            let kind = BackwardKind { gradient, ..kind };
            Ok(Slice {
                work: ForwardPlan::new(device, &part, chosen, outputs)?,
                outputs: room.part(place.skipped_bytes, place.lens_bytes),
                backward: CudaBackward::new(device, &part, element, kind, outputs)?,
            })
        });
        Ok(Recompute { slices: slices.collect::<Result<_>>()?, room, sums })
    }

    /// Whether the documents' gradient is summed in f32 first.
    pub(in crate::cuda) fn narrows(&self) -> bool {
        self.sums.is_some()
    }

    /// The hazard of the winners, which all calls of the work share.
    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        self.room.hazard()
    }

    /// Refuses handles that the work cannot take.
    pub(in crate::cuda) fn check(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
    ) -> Result<()> {
        self.slices.iter().try_for_each(|slice| slice.work.check_maps(queries, documents))
    }

    /// Bytes of workspace that a call of some handles needs.
    pub(in crate::cuda) fn workspace_bytes_of(&self, adds: bool, tokens: [&CudaTokens; 2]) -> u64 {
        let adds = adds || self.slices.len() > 1;
        let of = |Slice { work, backward, .. }: &Slice| {
            work.workspace_bytes_of(tokens).max(backward.workspace_bytes_of(adds, tokens))
        };
        self.slices.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes of workspace that a call of any handles needs.
    pub(in crate::cuda) fn workspace_bytes(&self, adds: bool) -> u64 {
        let adds = adds || self.slices.len() > 1;
        let of =
            |slice: &Slice| slice.work.workspace_bytes().max(slice.backward.workspace_bytes(adds));
        self.slices.iter().map(of).max().unwrap_or(0)
    }

    /// Enqueues the slices of `whole`, one after the other.
    ///
    /// # Safety
    /// As [`CudaBackward::run`].
    pub(in crate::cuda) unsafe fn run(
        &self,
        whole: &CudaBackward,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &BackwardCall<'_>,
        workspace: u64,
    ) -> Result<()> {
        let [of_queries, of_documents] = call.gradients.sides();
        let mut to = ([of_queries, of_documents], call.adds);
        // SAFETY: the room is as long as each slice's outputs, and the sums are as the documents'
        // gradient; the caller's promise for the rest.
        unsafe {
            if self.slices.len() > 1 {
                let sums = match &self.sums {
                    Some(sums) => GradientMatrix {
                        address: sums.address(),
                        element: ElementType::F32,
                        ..of_documents
                    },
                    None => of_documents,
                };
                if !call.adds {
                    of_queries.clear(entered, stream)?;
                    call.gradients.weights().clear(entered, stream)?;
                }
                if !call.adds || self.narrows() {
                    sums.clear(entered, stream)?;
                }
                to = ([of_queries, sums], true);
            }
            let (queries, documents) = (call.queries, call.documents);
            for Slice { work, outputs, backward } in &self.slices {
                let maps = work.tensor_maps(entered, queries, documents)?;
                work.run(entered, stream, maps, queries, documents, outputs, workspace)?;
                backward.run_saved(entered, stream, call, outputs, to, workspace)?;
            }
            let ([_, sums], _) = to;
            match self.narrows() {
                false => Ok(()),
                true => whole.narrow(entered, stream, of_documents.output(call.adds), &sums),
            }
        }
    }
}

/// Offsets and lengths of a slice's scores and winners among those of the whole call.
struct Place {
    skipped_bytes: [u64; 3],
    lens_bytes: [u64; 3],
}

fn place(outputs: &OutputShape, range: &Range<usize>) -> Place {
    let [scores_bytes, winner_bytes, _] = outputs.lens_bytes();
    let (Some(row_len), Some(offsets)) = (outputs.shape.row_len(), &outputs.token_offsets) else {
        return Place { skipped_bytes: [0; 3], lens_bytes: [scores_bytes, winner_bytes, 0] };
    };
    let bases = offsets.bases();
    let token = |query: usize| bases.get(query).copied().unwrap_or(offsets.total());
    let [begin, end] = [range.start, range.end]
        .map(|query| [(query * row_len) as u64 * 4, token(query) * outputs.winner_bytes as u64]);
    Place {
        skipped_bytes: [begin[0], begin[1], 0],
        lens_bytes: [end[0] - begin[0], end[1] - begin[1], 0],
    }
}

fn all(problem: &Problem<'_>) -> Range<usize> {
    0..problem.queries().n_items()
}

/// Divides the queries into slices whose winners take at most `bytes_max`, or are of one query. One
/// slice has all of them where several would save nothing.
fn slices(
    problem: &Problem<'_>,
    gradient: ElementType,
    outputs: &OutputShape,
    bytes_max: u64,
) -> Result<Vec<Range<usize>>> {
    let (queries, documents) = (problem.queries(), problem.documents());
    let all = all(problem);
    let [_, total, _] = outputs.lens_bytes();
    let sums_bytes = match gradient {
        ElementType::F32 => 0,
        _ => document_sums_bytes(problem),
    };
    let is_cross = matches!(problem.shape(), ScoreShape::Cross { .. });
    // Rows of several queries would be rounded after every slice.
    if !is_cross || bytes_max.saturating_add(sums_bytes) >= total || !is_disjoint(queries)? {
        return Ok(Vec::from([all]));
    }
    let share = total.div_ceil(total.div_ceil(bytes_max.max(1)));
    let bytes_of = |query: usize| {
        (queries.item_len(query) * documents.n_items() * outputs.winner_bytes) as u64
    };
    let (mut ranges, mut start, mut bytes) = (Vec::new(), 0, 0);
    for query in all.clone() {
        let own = bytes_of(query);
        if bytes > 0 && bytes + own > share.min(bytes_max) {
            ranges.push(start..query);
            (start, bytes) = (query, 0);
        }
        bytes += own;
    }
    ranges.push(start..all.end);
    Ok(ranges)
}
