//! Partitions the work of a call: into launches that fit the workspace, and into units that fill
//! the device.

use std::ops::Range;

use maxsim_kernels::abi::layout::sm90::DOCUMENT_TILE;
use maxsim_kernels::abi::params::{N_PARTIAL_ROWS, Segment, UnitStart};

use super::work_list::Shape;

/// Most document tokens of a unit. CTAs with different tiles of a query read the same documents; in
/// longer units they drift apart, and the second reader no longer finds them in the L2 cache.
pub(in crate::cuda) const UNIT_TOKENS_MAX: u64 = 4096;

/// Fewest tokens per CTA for the dynamic scheduler of contiguous documents: with fewer, units would
/// be a few short documents, which cost more than they even out (docs/decisions/short-queries.md).
pub(in crate::cuda) const CONTIGUOUS_DYNAMIC_TOKENS_MIN: u64 = 10_000;

/// Into how many units a CTA's share is divided for the dynamic scheduler, where those are not too
/// small or too large. CTAs do not get equal shares of the memory's rate, and end within a fraction
/// of a unit if enough units remain for the scheduler.
const DYNAMIC_PARTS: u64 = 32;

/// Divisor of a CTA's share that gives its first unit.
const FIRST_PART: u64 = 4;

/// Units of fewer tokens than this cost more tickets than they even out
/// (docs/decisions/forward-schedules.md), …
const SHORT_UNIT_TOKENS: u64 = 512;
/// … and CTAs begin with so many of their share's [`DYNAMIC_PARTS`].
const FIRST_OF_SHORT: u64 = 26;

/// Into how many units a CTA's share is divided where documents are read in order.
const SWEEP_PARTS: u64 = 64;

/// Tokens that a document costs besides its own: the sum over the rows, and half of the columns
/// that its last tile wastes.
const DOCUMENT_TOKENS: u64 = 32;

/// Tokens that a document costs besides its own where documents are read as one run of rows: no
/// load waits for a document's end.
const CONTIGUOUS_DOCUMENT_TOKENS: u64 = 8;

/// Consecutive entries that one launch covers: those of whole queries, or some of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct LaunchRange {
    pub queries: Range<usize>,
    pub entries: Range<u32>,
    /// Tiles of the longest query.
    pub max_tiles: u32,
    /// Whether some query with entries has fewer tiles.
    pub is_ragged: bool,
}

impl LaunchRange {
    /// Partial sums: one per tile and entry, none where each score has one tile.
    pub(in crate::cuda) fn n_partials(&self) -> u64 {
        match self.max_tiles {
            0 | 1 => 0,
            n_tiles => u64::from(n_tiles) * self.entries.len() as u64,
        }
    }

    /// The range's entries of query `q`.
    pub(in crate::cuda) fn entries_of(&self, q: usize, first_entries: &[u32]) -> Range<u32> {
        let begin = first_entries[q].max(self.entries.start);
        begin..first_entries[q + 1].min(self.entries.end).max(begin)
    }
}

/// Divides the entries into runs of at most `partials_max` partial sums (or, if one entry has
/// more, of one entry). `first_entries` and `first_tiles` have one number per query and the
/// total.
pub(in crate::cuda) fn launch_ranges(
    first_entries: &[u32],
    first_tiles: &[u32],
    partials_max: u64,
) -> Vec<LaunchRange> {
    let n_queries = first_entries.len() - 1;
    let n_tiles = |q: usize| first_tiles[q + 1] - first_tiles[q];
    let mut ranges = Vec::new();
    if (0..n_queries).all(|q| n_tiles(q) <= 1) {
        ranges.push(LaunchRange {
            queries: 0..n_queries,
            entries: 0..first_entries[n_queries],
            max_tiles: 1,
            is_ragged: false,
        });
        return ranges;
    }
    let mut open: Option<LaunchRange> = None;
    for q in 0..n_queries {
        let entries = first_entries[q]..first_entries[q + 1];
        if entries.is_empty() {
            continue;
        }
        let max_tiles = n_tiles(q);
        let own = LaunchRange { queries: q..q + 1, entries, max_tiles, is_ragged: false };
        let joined = match &open {
            Some(open) => LaunchRange {
                queries: open.queries.start..q + 1,
                entries: open.entries.start..own.entries.end,
                max_tiles: open.max_tiles.max(own.max_tiles),
                is_ragged: open.is_ragged || open.max_tiles != own.max_tiles,
            },
            None => own.clone(),
        };
        if joined.n_partials() <= partials_max {
            open = Some(joined);
            continue;
        }
        ranges.extend(open.take());
        if own.n_partials() <= partials_max {
            open = Some(own);
            continue;
        }
        let n_at_once = (partials_max / u64::from(own.max_tiles)).max(1);
        ranges.extend(own.entries.clone().step_by(n_at_once as usize).map(|begin| LaunchRange {
            entries: begin..own.entries.end.min(begin.saturating_add(n_at_once as u32)),
            ..own.clone()
        }));
    }
    ranges.extend(open);
    ranges
}

/// Chooses the number of CTAs for `n_tiles` query tiles that alternate (0 = they do not): as many
/// as the device runs at once, or a few fewer so that a CTA meets the same query tile in every
/// round.
pub(in crate::cuda) fn grid(shape: &Shape, n_tiles: u64) -> u32 {
    let n_blocks = shape.n_blocks.max(1) as u64;
    let rounds = n_blocks.checked_div(n_tiles).map_or(0, |rounds| rounds * n_tiles);
    // Losing more than a sixteenth of the device costs more than loading a query tile again.
    let is_worth_it = shape.prefers_whole_rounds && rounds * 16 >= n_blocks * 15;
    (if is_worth_it { rounds } else { n_blocks }).min(i32::MAX as u64) as u32
}

impl Shape {
    /// Cost of a document of `len` tokens, in tokens.
    pub(in crate::cuda) fn cost(&self, len: u32) -> u64 {
        u64::from(len)
            + if self.is_contiguous { CONTIGUOUS_DOCUMENT_TOKENS } else { DOCUMENT_TOKENS }
    }
}

/// How a tile's entries are divided into units, by their cost in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Chunks {
    /// Units of a tile.
    pub n: u64,
    /// The first units, each of cost `first`.
    pub n_first: u64,
    pub first: u64,
    /// Cost of each of the others.
    pub rest: u64,
    /// Whether the scheduler is dynamic; otherwise CTAs take units in turns.
    pub is_dynamic: bool,
}

impl Chunks {
    /// For `n_entries` entries of each tile that cost `total`.
    pub(in crate::cuda) fn new(
        shape: &Shape,
        total: u64,
        n_entries: usize,
        n_tiles: u64,
        grid: u32,
    ) -> Chunks {
        let n_blocks = u64::from(grid);
        let are_enough = total / n_blocks.max(1) >= shape.dynamic_tokens_min;
        if n_tiles == 1 && are_enough && n_entries as u64 > n_blocks {
            return Chunks::dynamic(shape, total, n_blocks);
        }
        Chunks::round_robin(shape, total, n_entries, n_tiles, grid)
    }

    /// Units of the static scheduler: whole rounds of all CTAs, of units of at most
    /// `unit_tokens_max` tokens.
    pub(in crate::cuda) fn round_robin(
        shape: &Shape,
        total: u64,
        n_entries: usize,
        n_tiles: u64,
        grid: u32,
    ) -> Chunks {
        let n_units = n_tiles * total.div_ceil(shape.unit_tokens_max.max(1));
        let n_units = n_units.max(1).next_multiple_of(u64::from(grid.max(1)));
        let n = (n_units / n_tiles.max(1)).clamp(1, n_entries.max(1) as u64);
        Chunks { n, n_first: 0, first: 0, rest: total.div_ceil(n).max(1), is_dynamic: false }
    }

    /// Units of the dynamic scheduler. The first ones are as much of the work as all CTAs surely
    /// have time for: later ones even out by how much CTAs differ, and have to be published to
    /// every warp of the CTA.
    fn dynamic(shape: &Shape, total: u64, n_blocks: u64) -> Chunks {
        let share = total / n_blocks;
        if shape.is_sweep {
            let rest = (share / SWEEP_PARTS).clamp(1, UNIT_TOKENS_MAX);
            let n = total.div_ceil(rest).max(n_blocks);
            return Chunks { n, n_first: n_blocks, first: rest, rest, is_dynamic: true };
        }
        // Dynamic units are short ones, however long the static units of contiguous documents
        // are.
        let most = shape.unit_tokens_max.clamp(1, UNIT_TOKENS_MAX);
        let rest = (share / DYNAMIC_PARTS).clamp(1, most);
        let first = match rest < SHORT_UNIT_TOKENS {
            true => share * FIRST_OF_SHORT / DYNAMIC_PARTS,
            false => share / FIRST_PART,
        };
        let n = n_blocks + (total - first * n_blocks).div_ceil(rest);
        Chunks { n, n_first: n_blocks, first, rest, is_dynamic: true }
    }

    /// Divides `total` into units that end between any two tiles, one for each CTA.
    pub(in crate::cuda) fn stream_k(shape: &Shape, total: u64, n_tiles: u64, grid: u32) -> Chunks {
        let most = N_PARTIAL_ROWS as usize / shape.query_tile.max(1);
        let n = (u64::from(grid).min(most as u64) / n_tiles.max(1)).max(1);
        Chunks { n, n_first: 0, first: 0, rest: total.div_ceil(n).max(1), is_dynamic: false }
    }

    /// Starts of units that end between any two tiles, and of the one behind the last.
    pub(in crate::cuda) fn starts(&self, shape: &Shape, lens: &[[u32; 2]]) -> Vec<UnitStart> {
        let share = self.shares(shape, lens);
        let mut starts: Vec<UnitStart> = Vec::new();
        let mut add = |entry: usize, offset: u32| {
            let [start, len] = lens.get(entry).copied().unwrap_or_default();
            let start = UnitStart { entry: entry as u32, first: Segment { start, len }, offset };
            // No unit is empty.
            if starts.last() != Some(&start) {
                starts.push(start);
            }
        };
        add(0, 0);
        let (mut entry, mut before) = (0, 0);
        for i in 1..self.n {
            let share = share(i);
            while entry < lens.len() && before + shape.cost(lens[entry][1]) <= share {
                before += shape.cost(lens[entry][1]);
                entry += 1;
            }
            let Some(&[_, len]) = lens.get(entry) else { break };
            // The nearest end of a tile.
            let tile = DOCUMENT_TILE as u64;
            let offset = (share - before + tile / 2) / tile * tile;
            match offset < u64::from(len) {
                true => add(entry, offset as u32),
                false => add(entry + 1, 0),
            }
        }
        add(lens.len(), 0);
        starts
    }

    /// Cost of the first `n` units.
    fn cost(&self, n: u64) -> u64 {
        n.min(self.n_first) * self.first + n.saturating_sub(self.n_first) * self.rest
    }

    /// Computes the shares of the first so many units in the cost of documents of any lengths: the
    /// remainder of rounding is spread over all units.
    fn shares(&self, shape: &Shape, lens: &[[u32; 2]]) -> impl Fn(u64) -> u64 {
        let total: u128 = lens.iter().map(|len| u128::from(shape.cost(len[1]))).sum();
        let planned = u128::from(self.cost(self.n.max(1)).max(1));
        move |n| (total * u128::from(self.cost(n)) / planned) as u64
    }

    /// Units of `n_entries` entries of the same cost.
    pub(in crate::cuda) fn even(&self, n_entries: usize, cost: u64) -> (Even, u64) {
        let n_entries = n_entries as u64;
        if !self.is_dynamic {
            let (per_unit, n_longer) = (n_entries / self.n, n_entries % self.n);
            let even = Even { per_unit: per_unit as u32, n_longer: n_longer as u32, longer_by: 1 };
            return (even, self.n);
        }
        let entries = |share: u64| (share + cost / 2).checked_div(cost).unwrap_or(1).max(1);
        let per_unit = entries(self.rest);
        let first = entries(self.first).clamp(per_unit, (n_entries / self.n_first).max(per_unit));
        let n_rest = n_entries.saturating_sub(first * self.n_first).div_ceil(per_unit);
        let even = Even {
            per_unit: per_unit as u32,
            n_longer: self.n_first as u32,
            longer_by: (first - per_unit) as u32,
        };
        (even, self.n_first + n_rest)
    }

    /// Bounds of the units of documents of any lengths: one more than units (at most `n`), rising
    /// from 0 to the number of documents.
    pub(in crate::cuda) fn bounds(&self, shape: &Shape, lens: &[[u32; 2]]) -> Vec<usize> {
        let share = self.shares(shape, lens);
        let n = self.n.max(1) as usize;
        let mut bounds = vec![0];
        let mut sum = 0;
        for (i, &[_, len]) in lens.iter().enumerate() {
            // A unit ends where its share of the cost is nearest.
            while bounds.len() < n && sum + shape.cost(len) / 2 >= share(bounds.len() as u64) {
                bounds.push(i);
            }
            sum += shape.cost(len);
        }
        bounds.push(lens.len());
        // No unit is empty: long documents take the place of several.
        bounds.dedup();
        bounds
    }
}

/// Units of `per_unit` entries, of which each of a tile's first `n_longer` has `longer_by` more;
/// the last one has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Even {
    pub per_unit: u32,
    pub n_longer: u32,
    pub longer_by: u32,
}
