//! The work of a call as lists and launches: pure functions of shapes.
//!
//! In a cross product *entries* are documents, and tiles hold rows of any queries. Otherwise
//! entries are (query, document) pairs, numbered so that those of one query are consecutive,
//! and every query has tiles of its own. A *unit* is one query tile against a run of entries.
//! Units that are alike are computed on the device; others are listed.

use std::ops::Range;
use std::slice;

use maxsim_kernels::abi::params::{ContiguousUnit, Segment, Unit, UnitStart};

use super::partition::{Chunks, Even, LaunchRange, grid, launch_ranges};
use super::query_tiles::{Packed, Tiles};
use crate::error::{Error, Result};
use crate::plan::stream_k::Shares;
use crate::problem::Problem;
use crate::problem::pairing::Kind;
use crate::tokens::layout::TokenLayout;

/// The properties of a kernel and a device that its launches depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Shape {
    /// Query rows per tile.
    pub query_tile: usize,
    /// CTAs that run at once on the whole device.
    pub n_blocks: usize,
    /// Whether a CTA keeps its query tile from unit to unit.
    pub prefers_whole_rounds: bool,
    /// Partial sums that the workspace may hold.
    pub partials_max: u64,
    /// Counters of parts that the workspace has; 0 where the kernel cannot add parts itself.
    pub n_counters_max: u64,
    /// Fewest tokens per CTA for the dynamic scheduler; `u64::MAX` where the kernel has none.
    pub dynamic_tokens_min: u64,
    /// Most document tokens of a unit of several documents.
    pub unit_tokens_max: u64,
    /// Whether the kernel reads documents as runs of rows.
    pub is_contiguous: bool,
    /// Whether units may end within a document.
    pub is_stream_k: bool,
    /// Whether CTAs take documents in order from the first on ([`crate::plan::sweep`]).
    pub is_sweep: bool,
}

/// One launch of the forward kernel, and of the sum of its partial results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Launch {
    pub entries: Range<u32>,
    pub tiles: Range<u32>,
    pub units: Units,
    pub n_units: u32,
    pub grid: u32,
    /// Parts that are added up; 0 = the kernel writes the scores itself.
    pub n_parts: u32,
    /// Whether some queries have fewer parts: partial sums must start at 0.
    pub is_ragged: bool,
    /// Whether the CTA that brings the last part of a unit adds the parts up. Otherwise a kernel of
    /// its own does.
    pub sums_in_kernel: bool,
    /// Whether the scheduler is dynamic; otherwise CTAs take units in turns.
    pub is_dynamic: bool,
    /// Results of the launch (partial sums: per part).
    pub n_results: u32,
    /// Results of a query that follow each other: the launch's entries of a cross product, 0
    /// for other pairings.
    pub query_stride: u32,
    /// First query.
    pub first_query: u32,
}

/// The form in which a launch describes its units to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Units {
    /// Computed.
    Even(Even),
    /// Every tile's units start at these entries: first index into `unit_starts`.
    Starts(u32),
    /// One by one: first index into `units`.
    Listed(u32),
    /// As runs of rows, one by one: first index into `run_units`.
    Contiguous(u32),
    /// Computed, as runs of rows that end within documents of one length.
    StreamK(Shares),
}

/// The lists and launches of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct WorkList {
    pub tiles: Tiles,
    /// Listed units.
    pub units: Vec<Unit>,
    /// Starts of the units of launches of a cross product, each with one behind the last.
    pub unit_starts: Vec<UnitStart>,
    /// Units as runs of rows, where the kernel reads such and cannot compute them.
    pub run_units: Vec<ContiguousUnit>,
    /// Document per entry; empty where it is the entry.
    pub entry_document: Vec<u32>,
    /// Score per entry; empty where they are the same.
    pub entry_score: Vec<u32>,
    pub launches: Vec<Launch>,
    /// Entries of every query, where units are computed.
    pub entries_per_query: u32,
    /// First entry of query `q` is `q` times this.
    pub entry_stride: u32,
    /// Tiles of every query, where entries are a query's own and all have as many.
    pub tiles_per_query: u32,
    /// Partial sums of the largest launch.
    pub n_partials: u64,
    /// Whether some score belongs to a query without tokens, which no kernel visits.
    pub has_unvisited_scores: bool,
}

impl WorkList {
    pub(in crate::cuda) fn new(problem: &Problem<'_>, shape: &Shape) -> Result<WorkList> {
        WorkList::in_pieces(problem, shape, &[])
    }

    /// The work of a cross product some documents at a time: no launch has those of two `pieces`,
    /// and launches are in their order. Without pieces any problem as a whole.
    pub(in crate::cuda) fn in_pieces(
        problem: &Problem<'_>,
        shape: &Shape,
        pieces: &[Range<u32>],
    ) -> Result<WorkList> {
        let mut work = WorkList {
            tiles: Tiles::new(shape.query_tile),
            units: Vec::new(),
            unit_starts: Vec::new(),
            run_units: Vec::new(),
            tiles_per_query: 0,
            entry_document: Vec::new(),
            entry_score: Vec::new(),
            launches: Vec::new(),
            entries_per_query: 0,
            entry_stride: 0,
            n_partials: 0,
            has_unvisited_scores: false,
        };
        // Without a document token every score is 0, and no kernel is launched.
        if problem.documents().max_len() == 0 {
            work.has_unvisited_scores = problem.shape().n_scores() > 0;
            return Ok(work);
        }
        match &problem.pairing().0 {
            Kind::Cross => work.cross(problem, shape, pieces)?,
            Kind::OwnCandidates { k } => work.candidates(problem, shape, *k)?,
            Kind::Candidates { ids, k } => {
                work.entry_document = ids.clone();
                work.candidates(problem, shape, *k)?;
            }
            Kind::Pairs { ids } => {
                let first_entries = work.sort_pairs(ids, problem.queries().n_items());
                work.by_query(problem, shape, &first_entries, true)?;
            }
        }
        if shape.is_contiguous {
            work.list_contiguous(problem.documents());
        }
        for launch in &work.launches {
            let n_partials = u64::from(launch.n_parts) * u64::from(launch.n_results);
            work.n_partials = work.n_partials.max(n_partials);
        }
        Ok(work)
    }

    /// Every query meets every document: entries are documents.
    fn cross(&mut self, problem: &Problem<'_>, shape: &Shape, pieces: &[Range<u32>]) -> Result<()> {
        let (queries, documents) = (problem.queries(), problem.documents());
        let (wanted, n_documents) = (problem.wanted(), documents.n_items());
        self.entries_per_query = n_documents as u32;
        self.has_unvisited_scores = wanted.clone().any(|q| queries.item_len(q) == 0);
        let all = 0..n_documents as u32;
        let pieces = if pieces.is_empty() { slice::from_ref(&all) } else { pieces };
        let n_together = pieces.iter().map(|piece| piece.len()).max().unwrap_or(0).max(1);
        let packed = self.tiles.shared(queries, wanted.clone())?;
        let n_scores = (wanted.len() * n_together) as u64;
        if packed.n_parts <= 1 || n_scores * u64::from(packed.n_parts) <= shape.partials_max {
            return pieces.iter().try_for_each(|entries| {
                let (entries, packed) = (entries.clone(), packed.clone());
                self.cross_launch(documents, shape, wanted.clone(), entries, packed)
            });
        }
        // Too many partial sums: some queries at a time, or some documents for one query.
        self.tiles = Tiles::new(shape.query_tile);
        let bound = |q: usize| self.tiles.parts_bound(queries.item_len(q));
        let n_parts = wanted.clone().map(bound).max().unwrap_or(1);
        let n_at_once = (shape.partials_max / n_parts / n_together as u64) as usize;
        let n_documents_at_once = match n_at_once {
            0 => (shape.partials_max / n_parts).max(1) as usize,
            _ => n_together,
        };
        let mut ranges = Vec::new();
        for first in wanted.clone().step_by(n_at_once.max(1)) {
            let range = first..wanted.end.min(first + n_at_once.max(1));
            ranges.push((range.clone(), self.tiles.shared(queries, range)?));
        }
        for piece in pieces {
            for (range, packed) in &ranges {
                for begin in piece.clone().step_by(n_documents_at_once) {
                    let end = piece.end.min(begin.saturating_add(n_documents_at_once as u32));
                    let (range, packed) = (range.clone(), packed.clone());
                    self.cross_launch(documents, shape, range, begin..end, packed)?;
                }
            }
        }
        Ok(())
    }

    fn cross_launch(
        &mut self,
        documents: &TokenLayout,
        shape: &Shape,
        queries: Range<usize>,
        entries: Range<u32>,
        packed: Packed,
    ) -> Result<()> {
        let n_tiles = packed.tiles.len() as u64;
        let grid = grid(shape, n_tiles);
        let lens = &documents.segments()[entries.start as usize..entries.end as usize];
        let total = lens.iter().map(|len| shape.cost(len[1])).sum();
        let chunks = match shape.is_stream_k {
            true => Chunks::stream_k(shape, total, n_tiles, grid),
            false => Chunks::new(shape, total, lens.len(), n_tiles, grid),
        };
        let (units, n_chunks) = if shape.is_stream_k && shape.is_contiguous {
            let shares = self.shares(shape, &entries, lens)?;
            (Units::StreamK(shares), u64::from(shares.n_units))
        } else if shape.is_stream_k {
            let first = self.unit_starts.len() as u32;
            let starts = chunks.starts(shape, lens).into_iter();
            self.unit_starts.extend(
                starts.map(|start| UnitStart { entry: entries.start + start.entry, ..start }),
            );
            let n_chunks = self.unit_starts.len() as u64 - u64::from(first) - 1;
            (Units::Starts(first), n_chunks)
        } else if are_alike(lens) {
            let (even, n_chunks) =
                chunks.even(lens.len(), lens.first().map_or(1, |len| shape.cost(len[1])));
            (Units::Even(even), n_chunks)
        } else {
            let first = self.unit_starts.len() as u32;
            let bounds = chunks.bounds(shape, lens);
            let n_chunks = bounds.len() as u64 - 1;
            self.unit_starts.extend(bounds.into_iter().map(|i| {
                let [start, len] = lens.get(i).copied().unwrap_or_default();
                let entry = entries.start + i as u32;
                UnitStart { entry, first: Segment { start, len }, offset: 0 }
            }));
            (Units::Starts(first), n_chunks)
        };
        let n_results = (queries.len() * lens.len()) as u32;
        // The tiles of each query must be its own, one after the other.
        let is_even = !packed.is_shared && !packed.is_ragged;
        let n_units = n_tiles * n_chunks;
        let sums_in_kernel = is_even && can_count(shape, n_units, packed.n_parts);
        self.launch(Launch {
            query_stride: entries.len() as u32,
            entries,
            tiles: packed.tiles,
            units,
            n_units: count(n_units)?,
            grid,
            n_parts: if packed.n_parts > 1 { packed.n_parts } else { 0 },
            is_ragged: packed.is_ragged,
            sums_in_kernel,
            is_dynamic: chunks.is_dynamic,
            n_results,
            first_query: queries.start as u32,
        });
        Ok(())
    }

    /// Equal shares of documents that are one run of rows, the launch's only ones.
    fn shares(&self, shape: &Shape, entries: &Range<u32>, lens: &[[u32; 2]]) -> Result<Shares> {
        let refuse = || Error::Unsupported {
            what: format!("units that end within documents for entries {entries:?}"),
            why: "one query tile meets documents of one length, all of more than 16 tokens".into(),
        };
        let [_, len] = *lens.first().filter(|_| are_alike(lens)).ok_or_else(refuse)?;
        let shares = Shares::of(lens.len() as u32, len, shape.n_blocks).ok_or_else(refuse)?;
        (entries.start == 0).then_some(shares).ok_or_else(refuse)
    }

    fn candidates(&mut self, problem: &Problem<'_>, shape: &Shape, k: usize) -> Result<()> {
        let n_queries = problem.queries().n_items();
        let first_entries: Vec<u32> = (0..=n_queries).map(|q| (q * k) as u32).collect();
        self.entries_per_query = k as u32;
        self.entry_stride = k as u32;
        let is_listed = !are_alike(problem.documents().segments());
        self.by_query(problem, shape, &first_entries, is_listed)
    }

    /// Numbers pairs by query, stable; first entry per query.
    fn sort_pairs(&mut self, ids: &[[u32; 2]], n_queries: usize) -> Vec<u32> {
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
        first_entries
    }

    /// Every query has entries of its own.
    fn by_query(
        &mut self,
        problem: &Problem<'_>,
        shape: &Shape,
        first_entries: &[u32],
        is_listed: bool,
    ) -> Result<()> {
        let queries = problem.queries();
        let n_queries = queries.n_items();
        let mut first_tiles = vec![0u32];
        for q in 0..n_queries {
            // A query without entries needs no tiles: no unit would name them.
            if first_entries[q + 1] > first_entries[q] {
                self.has_unvisited_scores |= queries.item_len(q) == 0;
                self.tiles.own(queries, q)?;
            }
            first_tiles.push(self.tiles.n_tiles()?);
        }
        let mut tiles = first_tiles.windows(2).map(|tiles| tiles[1] - tiles[0]);
        self.tiles_per_query = match tiles.next() {
            Some(n) if tiles.all(|other| other == n) => n,
            _ => 0,
        };
        for range in launch_ranges(first_entries, &first_tiles, shape.partials_max) {
            let tiles = first_tiles[range.queries.start]..first_tiles[range.queries.end];
            let (units, n_units, grid, is_dynamic) = match is_listed {
                true => self.list_units(problem, &range, first_entries, &first_tiles, shape),
                false => self.even_units(problem, &range, tiles.len() as u64, shape),
            };
            self.launch(Launch {
                n_results: range.entries.len() as u32,
                n_parts: if range.max_tiles > 1 { range.max_tiles } else { 0 },
                is_ragged: range.is_ragged,
                sums_in_kernel: !range.is_ragged && can_count(shape, n_units, range.max_tiles),
                is_dynamic,
                entries: range.entries,
                tiles,
                units,
                n_units: count(n_units)?,
                grid,
                query_stride: 0,
                first_query: 0,
            });
        }
        Ok(())
    }

    fn even_units(
        &self,
        problem: &Problem<'_>,
        range: &LaunchRange,
        n_tiles: u64,
        shape: &Shape,
    ) -> (Units, u64, u32, bool) {
        let grid = grid(shape, n_tiles);
        // A range is whole queries, or some entries of one.
        let n_entries = range.entries.len().min(self.entries_per_query as usize);
        let cost = shape.cost(problem.documents().max_len() as u32);
        let chunks = Chunks::new(shape, n_entries as u64 * cost, n_entries, n_tiles, grid);
        let (even, n_chunks) = chunks.even(n_entries, cost);
        (Units::Even(even), n_tiles * n_chunks, grid, chunks.is_dynamic)
    }

    /// Lists the units of a range of entries: all tiles of a query side by side, so that they read
    /// the same documents at the same time. The scheduler is static: small dynamic units would
    /// change the query tile with almost every one.
    fn list_units(
        &mut self,
        problem: &Problem<'_>,
        range: &LaunchRange,
        first_entries: &[u32],
        first_tiles: &[u32],
        shape: &Shape,
    ) -> (Units, u64, u32, bool) {
        let grid = grid(shape, 0);
        let first_unit = self.units.len();
        let segments = problem.documents().segments();
        let n_tiles = |q: usize| u64::from(first_tiles[q + 1] - first_tiles[q]);
        let lens = |q: usize, entry_document: &[u32]| -> Vec<[u32; 2]> {
            let entries = range.entries_of(q, first_entries);
            let document = |entry: u32| match entry_document.get(entry as usize) {
                Some(&document) => document,
                None => entry,
            };
            entries.map(|entry| segments[document(entry) as usize]).collect()
        };
        let n_tile_entries: u64 = range
            .queries
            .clone()
            .map(|q| n_tiles(q) * range.entries_of(q, first_entries).len() as u64)
            .sum();
        for q in range.queries.clone() {
            let lens = lens(q, &self.entry_document);
            if lens.is_empty() || n_tiles(q) == 0 {
                continue;
            }
            // Each query gets its share of the units that would fill the device.
            let share = n_tiles(q) as f64 * lens.len() as f64 / n_tile_entries as f64;
            let n_blocks = (f64::from(grid) * share).ceil() as u32;
            let total = lens.iter().map(|len| shape.cost(len[1])).sum();
            let chunks = Chunks::round_robin(shape, total, lens.len(), n_tiles(q), n_blocks);
            let bounds = chunks.bounds(shape, &lens);
            let first = range.entries_of(q, first_entries).start;
            for bounds in bounds.windows(2) {
                let (entry_begin, entry_end) = (first + bounds[0] as u32, first + bounds[1] as u32);
                let [start, len] = lens[bounds[0]];
                let rows = Segment { start, len };
                let tiles = first_tiles[q]..first_tiles[q + 1];
                self.units.extend(tiles.map(|tile| Unit {
                    tile,
                    entry_begin,
                    entry_end,
                    first: rows,
                }));
            }
        }
        let n_units = (self.units.len() - first_unit) as u64;
        (Units::Listed(first_unit as u32), n_units, grid, false)
    }

    /// Adds a launch, unless it has no units.
    fn launch(&mut self, launch: Launch) {
        if launch.n_units > 0 {
            let grid = launch.grid.min(launch.n_units);
            let sums_in_kernel = launch.sums_in_kernel && launch.n_parts > 0;
            // With no more units than CTAs a dynamic scheduler has none to distribute.
            let is_dynamic = launch.is_dynamic && launch.n_units > grid;
            self.launches.push(Launch { grid, sums_in_kernel, is_dynamic, ..launch });
        }
    }
}

fn count(n_units: u64) -> Result<u32> {
    let limit = i32::MAX as u64;
    if n_units > limit {
        return Err(Error::TooLarge { what: "number of work units", limit, found: n_units });
    }
    Ok(n_units as u32)
}

/// Whether there are counters for all units, of queries of `n_parts` parts each.
fn can_count(shape: &Shape, n_units: u64, n_parts: u32) -> bool {
    n_units <= shape.n_counters_max * u64::from(n_parts)
}

/// Whether documents have the same length.
fn are_alike(lens: &[[u32; 2]]) -> bool {
    lens.iter().all(|len| len[1] == lens[0][1])
}
