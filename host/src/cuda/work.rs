//! The work of a call as lists and launches: pure functions of shapes.
//!
//! *Entries* are (query, document) pairs, numbered so that those of one query are
//! consecutive. A *unit* is one query tile against a run of entries. Where every query has
//! equally many entries, units are computed on the device; otherwise they are listed.

use std::ops::Range;

use maxsim_kernels::params::{QueryTile, Unit};

use super::split::{Group, entries_per_unit, grid, groups};
use crate::error::{Error, Result};
use crate::pairing::Kind;
use crate::problem::Problem;

/// What the launches of a kernel depend on besides the problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Query rows per tile.
    pub query_tile: usize,
    /// Blocks that run at once on the whole device.
    pub n_blocks: usize,
    /// A block keeps its query tile from unit to unit.
    pub prefers_whole_rounds: bool,
    /// Partial sums that the workspace may hold.
    pub partials_max: u64,
    /// Most entries of a unit.
    pub entries_per_unit_max: u64,
}

/// One launch of the forward kernel, and of the sum of its partial results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub entries: Range<u32>,
    pub tiles: Range<u32>,
    /// First listed unit, where units are listed.
    pub first_unit: u32,
    pub n_units: u32,
    pub entries_per_unit: u32,
    pub grid: u32,
    /// Tiles per query that are added up; 0 = the kernel writes the scores itself.
    pub n_partial_tiles: u32,
    /// Some of those tiles do not exist for some queries: partial sums must start at 0.
    pub is_ragged: bool,
}

/// The lists and launches of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkList {
    pub query_tiles: Vec<QueryTile>,
    /// Listed units; empty where they are computed.
    pub units: Vec<Unit>,
    /// Document per entry; empty where it follows from the entry.
    pub entry_document: Vec<u32>,
    /// Score per entry; empty where they are the same.
    pub entry_score: Vec<u32>,
    pub launches: Vec<Launch>,
    /// Entries of every query, where units are computed.
    pub entries_per_query: u32,
    /// What to subtract per query to get from an entry to its document.
    pub document_stride: u32,
    /// Partial sums of the largest launch.
    pub n_partials: u64,
    /// Some score belongs to a query without tokens, which no kernel visits.
    pub has_unvisited_scores: bool,
}

impl WorkList {
    pub(super) fn new(problem: &Problem<'_>, shape: &Shape) -> Result<WorkList> {
        let queries = problem.queries();
        let mut work = WorkList::default();
        let mut first_entries = vec![0u32];
        match &problem.pairing().0 {
            Kind::Pairs { ids } => {
                first_entries = work.sort_pairs(ids, queries.n_items())?;
            }
            kind => {
                let n_queries = queries.n_items();
                let row_len = problem.shape().n_scores().checked_div(n_queries).unwrap_or(0);
                first_entries.extend((1..=n_queries).map(|q| (q * row_len) as u32));
                work.entries_per_query = row_len as u32;
                match kind {
                    Kind::Cross => work.document_stride = row_len as u32,
                    Kind::Candidates { ids, .. } => work.entry_document = ids.clone(),
                    Kind::OwnCandidates { .. } | Kind::Pairs { .. } => {}
                }
            }
        }
        let n_entries = |q: usize| first_entries[q + 1] - first_entries[q];
        let mut first_tiles = vec![0u32];
        for q in 0..queries.n_items() {
            let len = queries.item_len(q);
            // A query without entries needs no tiles: listed units would never name them.
            let len = if n_entries(q) == 0 { 0 } else { len };
            work.has_unvisited_scores |= len == 0 && n_entries(q) > 0;
            work.query_tiles.extend(
                (0..len)
                    .step_by(shape.query_tile)
                    .map(|row| QueryTile { query: q as u32, row: row as u32 }),
            );
            first_tiles.push(u32::try_from(work.query_tiles.len()).map_err(|_| {
                Error::TooLarge {
                    what: "number of query tiles",
                    limit: u64::from(u32::MAX),
                    found: work.query_tiles.len() as u64,
                }
            })?);
        }
        let is_listed = matches!(problem.pairing().0, Kind::Pairs { .. });
        // Without a document token every score is 0: no kernel has to look.
        if problem.documents().max_len() == 0 {
            work.has_unvisited_scores = problem.shape().n_scores() > 0;
            return Ok(work);
        }
        for group in groups(&first_entries, &first_tiles, shape.partials_max) {
            let launch = if is_listed {
                work.list_units(&group, &first_entries, &first_tiles, shape)?
            } else {
                work.compute_units(&group, &first_tiles, shape)?
            };
            work.n_partials = work.n_partials.max(group.n_partials());
            work.launches.extend(launch);
        }
        Ok(work)
    }

    /// Numbers pairs by query, stable; first entry per query.
    fn sort_pairs(&mut self, ids: &[[u32; 2]], n_queries: usize) -> Result<Vec<u32>> {
        let mut first_entries = vec![0u32; n_queries + 1];
        for &[query, _] in ids {
            first_entries[query as usize + 1] += 1;
        }
        for q in 0..n_queries {
            first_entries[q + 1] += first_entries[q];
        }
        let mut next = first_entries.clone();
        self.entry_document = vec![0; ids.len()];
        self.entry_score = vec![0; ids.len()];
        for (pair, &[query, document]) in ids.iter().enumerate() {
            let entry = &mut next[query as usize];
            self.entry_document[*entry as usize] = document;
            self.entry_score[*entry as usize] = pair as u32;
            *entry += 1;
        }
        Ok(first_entries)
    }

    /// The launch of a group whose units the device computes.
    fn compute_units(
        &self,
        group: &Group,
        first_tiles: &[u32],
        shape: &Shape,
    ) -> Result<Option<Launch>> {
        let tiles = first_tiles[group.queries.start]..first_tiles[group.queries.end];
        let n_tiles = tiles.len() as u64;
        // A group is whole queries, or some entries of one.
        let n_entries = u64::from(self.entries_per_query).min(group.entries.len() as u64);
        let grid_max = grid(shape, n_tiles);
        let entries_per_unit =
            entries_per_unit(n_tiles, n_entries, grid_max, shape.entries_per_unit_max);
        let n_units = n_tiles * n_entries.div_ceil(u64::from(entries_per_unit));
        launch(group, tiles, 0, n_units, entries_per_unit, grid_max)
    }

    /// Lists the units of a group: all tiles of a query side by side, so that they read the
    /// same documents at the same time.
    fn list_units(
        &mut self,
        group: &Group,
        first_entries: &[u32],
        first_tiles: &[u32],
        shape: &Shape,
    ) -> Result<Option<Launch>> {
        let first_unit = self.units.len();
        let n_tile_entries = group
            .queries
            .clone()
            .map(|q| {
                let n_tiles = u64::from(first_tiles[q + 1] - first_tiles[q]);
                n_tiles * group.entries_of(q, first_entries).len() as u64
            })
            .sum();
        let grid_max = grid(shape, 0);
        let entries_per_unit =
            entries_per_unit(1, n_tile_entries, grid_max, shape.entries_per_unit_max);
        for q in group.queries.clone() {
            let entries = group.entries_of(q, first_entries);
            for entry_begin in entries.clone().step_by(entries_per_unit as usize) {
                let entry_end = entries.end.min(entry_begin.saturating_add(entries_per_unit));
                let tiles = first_tiles[q]..first_tiles[q + 1];
                self.units.extend(tiles.map(|tile| Unit { tile, entry_begin, entry_end }));
            }
        }
        let n_units = (self.units.len() - first_unit) as u64;
        let tiles = first_tiles[group.queries.start]..first_tiles[group.queries.end];
        launch(group, tiles, first_unit as u64, n_units, entries_per_unit, grid_max)
    }
}

/// A launch of a group's units; none when there are none.
fn launch(
    group: &Group,
    tiles: Range<u32>,
    first_unit: u64,
    n_units: u64,
    entries_per_unit: u32,
    grid_max: u32,
) -> Result<Option<Launch>> {
    let limit = i32::MAX as u64;
    if first_unit + n_units > limit {
        let found = first_unit + n_units;
        return Err(Error::TooLarge { what: "number of work units", limit, found });
    }
    if n_units == 0 {
        return Ok(None);
    }
    Ok(Some(Launch {
        entries: group.entries.clone(),
        tiles,
        first_unit: first_unit as u32,
        n_units: n_units as u32,
        entries_per_unit,
        grid: grid_max.min(n_units as u32),
        n_partial_tiles: if group.max_tiles > 1 { group.max_tiles } else { 0 },
        is_ragged: group.is_ragged,
    }))
}
