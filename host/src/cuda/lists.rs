//! A call's work lists in device memory.

use std::sync::Arc;

use bytemuck::cast_slice;

use super::context::CudaDevice;
use super::memory::Buffer;
use super::pieces::CutProblem;
use super::upload::upload_lists;
use super::work::WorkList;
use crate::error::Result;
use crate::tokens::TokenLayout;
use crate::work::OutputShape;

/// A work list in device memory: where each of its lists is; 0 = absent.
#[derive(Debug)]
pub(super) struct DeviceLists {
    pub groups: u64,
    pub units: u64,
    pub unit_starts: u64,
    pub run_units: u64,
    pub entry_document: u64,
    pub entry_score: u64,
    pub query_token_base: u64,
    pub score_token_base: u64,
    /// Of cut documents.
    pub piece_segments: u64,
    /// Of cut documents.
    pub score_tokens: u64,
    _memory: Buffer,
}

impl DeviceLists {
    /// Copies the lists to the device, in one go; where documents are cut, the list and the
    /// outputs are those of the pieces.
    pub(super) fn upload(
        device: &Arc<CudaDevice>,
        list: &WorkList,
        outputs: &OutputShape,
        cut: Option<(&CutProblem, &TokenLayout)>,
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
        let (piece_segments, score_tokens) = match cut {
            Some((cut, queries)) => (cut.segments(), cut.score_tokens(queries, &list.tiles)),
            None => (&[][..], Vec::new()),
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
            cast_slice(piece_segments),
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
            piece_segments,
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
            piece_segments,
            score_tokens,
            _memory: memory,
        })
    }
}
