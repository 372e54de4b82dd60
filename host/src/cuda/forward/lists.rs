//! A call's work lists in device memory.

use std::sync::Arc;

use bytemuck::cast_slice;

use super::document_splits::SplitProblem;
use super::residual::decoding::DecodedProblem;
use super::work_list::WorkList;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::upload_lists;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::outputs::OutputShape;
use crate::tokens::layout::TokenLayout;
use maxsim_kernels::abi::params::backward::PairSlot;

/// A work list in device memory: where each of its lists is; 0 = absent.
#[derive(Debug)]
pub(in crate::cuda) struct DeviceLists {
    pub groups: u64,
    pub units: u64,
    pub unit_starts: u64,
    pub run_units: u64,
    pub entry_document: u64,
    pub entry_score: u64,
    pub query_token_base: u64,
    pub score_token_base: u64,
    /// The rows of items that are the work's own: splits of documents, or decoded documents.
    pub item_segments: u64,
    /// Query tokens of each score, where documents are split.
    pub score_tokens: u64,
    memory: Buffer,
}

/// The items of a work's lists.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) enum WorkItems<'a> {
    /// The documents.
    Whole,
    /// Splits of the documents.
    Splits(&'a SplitProblem),
    /// The documents where they are decoded to.
    Decoded(&'a DecodedProblem),
}

impl DeviceLists {
    pub(in crate::cuda) fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// Uploads all lists with one copy. Where documents are split or decoded, the list is that of
    /// the splits or the decoded documents, and the outputs those of the splits.
    pub(in crate::cuda) fn upload(
        device: &Arc<CudaDevice>,
        list: &WorkList,
        outputs: &OutputShape,
        items: WorkItems<'_>,
        queries: &TokenLayout,
    ) -> Result<DeviceLists> {
        let groups: Vec<[u32; 4]> =
            list.tiles.groups.iter().map(|g| [g.query, g.start, g.row, g.rows_and_part]).collect();
        let units: Vec<[u32; 5]> = list
            .units
            .iter()
            .map(|u| [u.tile, u.entry_begin, u.entry_end, u.first.start, u.first.len])
            .collect();
        let unit_starts: Vec<[u32; 4]> = list
            .unit_starts
            .iter()
            .map(|u| [u.entry, u.first.start, u.first.len, u.offset])
            .collect();
        let run_units: Vec<[u32; 8]> = list
            .run_units
            .iter()
            .map(|u| [u.tile, u.entry, u.entry_end, u.start, u.end, 0, 0, 0])
            .collect();
        let bases = outputs.token_offsets.as_ref().map_or(&[][..], |offsets| offsets.bases());
        let (query_bases, score_bases) = match outputs.shape.row_len() {
            Some(_) => (bases, &[][..]),
            None => (&[][..], bases),
        };
        let (item_segments, score_tokens) = match items {
            WorkItems::Whole => (&[][..], Vec::new()),
            WorkItems::Splits(split) => {
                (split.segments(), split.score_tokens(queries, &list.tiles))
            }
            WorkItems::Decoded(decoded) => (decoded.segments(), Vec::new()),
        };
        let score_tokens: Vec<[u32; 4]> = score_tokens
            .iter()
            .map(|s| [s.query_start, s.query_len, s.first, s.first_group])
            .collect();
        let lists = [
            cast_slice(&groups),
            cast_slice(&units),
            cast_slice(&unit_starts),
            cast_slice(&run_units),
            cast_slice(&list.entry_document),
            cast_slice(&list.entry_score),
            cast_slice(query_bases),
            cast_slice(score_bases),
            cast_slice(item_segments),
            cast_slice(&score_tokens),
        ];
        let (memory, addresses) = upload_lists(device, lists)?;
        let [
            groups,
            units,
            unit_starts,
            run_units,
            entry_document,
            entry_score,
            query_token_base,
            score_token_base,
            item_segments,
            score_tokens,
        ] = addresses;
        Ok(DeviceLists {
            groups,
            units,
            unit_starts,
            run_units,
            entry_document,
            entry_score,
            query_token_base,
            score_token_base,
            item_segments,
            score_tokens,
            memory,
        })
    }
}

/// Every score's pair, with where its winners are.
pub(in crate::cuda) fn slots(problem: &Problem<'_>) -> Vec<PairSlot> {
    let offsets = problem.token_offsets();
    let slot = |p: usize| {
        let (q, d) = problem.pair(p);
        let [query_start, query_len] = problem.queries().segments()[q];
        let [document_start, document_len] = problem.documents().segments()[d];
        PairSlot {
            token_base: offsets.range(p).start as u64,
            score: p as u32,
            query_start,
            query_len,
            document_start,
            document_len,
            reserved: 0,
        }
    };
    (0..problem.shape().n_scores()).map(slot).collect()
}

/// A listed pair as the device reads it.
pub(in crate::cuda) fn slot_words(slot: &PairSlot) -> [u32; 8] {
    let [low, high] = [slot.token_base as u32, (slot.token_base >> 32) as u32];
    let [start, len] = [slot.document_start, slot.document_len];
    [low, high, slot.score, slot.query_start, slot.query_len, start, len, 0]
}
