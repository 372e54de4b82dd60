//! A gradient call's lists on the device.

use crate::cuda::backward::CudaBackward;
use crate::cuda::backward::Sums;
use std::sync::Arc;

use bytemuck::cast_slice;
use maxsim_kernels::abi::params::backward::{Pairs, RowTask, SortTask};

use super::plan::{GradientPlan, SidePairs};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::upload_lists;
use crate::cuda::forward::lists::slot_words;
use crate::error::Result;
use crate::problem::Problem;
use crate::tokens::layout::regular_len;

/// Device addresses of the lists; 0 = absent.
#[derive(Debug)]
pub(in crate::cuda) struct Lists {
    pub(super) slots: u64,
    pub query_order: u64,
    pub document_order: u64,
    pub(super) query_token_base: u64,
    pub rows: u64,
    pub(super) sorts: u64,
    pub(super) short_query_tasks: u64,
    _memory: Buffer,
}

impl Lists {
    /// Uploads all lists with one copy.
    pub(super) fn upload(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        plan: &GradientPlan,
    ) -> Result<Lists> {
        let slots: Vec<[u32; 8]> = plan.slots.iter().map(slot_words).collect();
        let row_words =
            |tasks: &[RowTask]| -> Vec<[u32; 8]> { tasks.iter().map(row_words).collect() };
        let (rows, short_query_tasks) = (row_words(&plan.rows), row_words(&plan.short_query_tasks));
        let sorts: Vec<[u32; 16]> = plan.sorts.iter().map(sort_words).collect();
        let is_regular = regular_len(problem.queries().segments()).is_some();
        let has_pairs = plan.query_pairs.is_some() || plan.document_pairs.is_some();
        let offsets = (!is_regular && has_pairs).then(|| problem.token_offsets());
        let bases = match (&offsets, problem.shape().row_len()) {
            (Some(offsets), Some(_)) => offsets.bases(),
            _ => &[],
        };
        let lists = [
            cast_slice(&slots),
            cast_slice(order(&plan.query_pairs)),
            cast_slice(order(&plan.document_pairs)),
            cast_slice(bases),
            cast_slice(&rows),
            cast_slice(&sorts),
            cast_slice(&short_query_tasks),
        ];
        let (memory, addresses) = upload_lists(device, lists)?;
        let [slots, query_order, document_order, query_token_base, rows, sorts, short_query_tasks] =
            addresses;
        Ok(Lists {
            slots,
            query_order,
            document_order,
            query_token_base,
            rows,
            sorts,
            short_query_tasks,
            _memory: memory,
        })
    }
}

/// The order of a side's pairs, where it is listed.
fn order(pairs: &Option<SidePairs>) -> &[u32] {
    match pairs {
        Some(SidePairs::Listed(order)) => order,
        _ => &[],
    }
}

/// A task of rows as the device reads it.
fn row_words(task: &RowTask) -> [u32; 8] {
    let RowTask { row, n_rows, first, n_pairs, index, .. } = *task;
    [row, n_rows, first.query, first.document, first.score, n_pairs, index, 0]
}

/// A task as the device reads it.
fn sort_words(task: &SortTask) -> [u32; 16] {
    let SortTask { row, n_rows, first, n_pairs, token_begin, token_end, .. } = *task;
    let SortTask { n_warps, chunk, n_chunks, counts, destination, list, share, .. } = *task;
    let [query, document, score] = [first.query, first.document, first.score];
    [
        row,
        n_rows,
        query,
        document,
        score,
        n_pairs,
        token_begin,
        token_end,
        n_warps,
        chunk,
        n_chunks,
        counts,
        destination,
        list,
        share,
        task.n_sources,
    ]
}

impl CudaBackward {
    /// Pairs for sums whose sources are rows of the side that is normalised by `source_norms`.
    pub(in crate::cuda) fn pairs(
        &self,
        call: &Sums<'_>,
        pairs: &SidePairs,
        order: u64,
        source_norms: u64,
    ) -> Pairs {
        let (slots, query_step, document_step, score_step) = match *pairs {
            SidePairs::Computed { query_step, document_step, score_step } => {
                (0, query_step, document_step, score_step)
            }
            SidePairs::Listed(_) => (self.lists.slots, 0, 0, 0),
        };
        Pairs {
            queries: call.queries.matrix(),
            documents: call.documents.matrix(),
            slots,
            order,
            query_token_base: self.lists.query_token_base,
            winners: call.outputs.addresses().winners,
            grad_scores: call.grad_scores.address(),
            source_norms,
            winner_bytes: self.winner_bytes as u32,
            row_len: self.row_len,
            query_step,
            document_step,
            score_step,
            reserved: 0,
        }
    }
}
