//! How work is cut: into launches that fit the workspace, and into units that fill the device.

use std::ops::Range;

use super::work::Shape;

/// Most entries of a unit. More would only make the last blocks finish later.
const ENTRIES_PER_UNIT_MAX: u64 = 64;

/// Document tokens of a unit. Blocks with different tiles of a query read the same documents;
/// in longer units they drift apart, and the second reader finds them gone from the L2 cache.
const TOKENS_PER_UNIT: u64 = 4096;

/// Units per block that even out documents of different lengths.
const ROUNDS: u64 = 8;

/// Consecutive entries that one launch covers: those of whole queries, or some of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub queries: Range<usize>,
    pub entries: Range<u32>,
    /// Tiles of the longest query.
    pub max_tiles: u32,
    /// Some query with entries has fewer tiles.
    pub is_ragged: bool,
}

impl Group {
    /// Partial sums: one per tile and entry, none where each score has one tile.
    pub(super) fn n_partials(&self) -> u64 {
        match self.max_tiles {
            0 | 1 => 0,
            n_tiles => u64::from(n_tiles) * self.entries.len() as u64,
        }
    }

    /// The group's entries of query `q`.
    pub(super) fn entries_of(&self, q: usize, first_entries: &[u32]) -> Range<u32> {
        let begin = first_entries[q].max(self.entries.start);
        begin..first_entries[q + 1].min(self.entries.end).max(begin)
    }
}

/// Cuts the entries into groups of at most `partials_max` partial sums (or, if one entry has
/// more, of one entry). `first_entries` and `first_tiles` have one number per query and the
/// total.
pub(super) fn groups(first_entries: &[u32], first_tiles: &[u32], partials_max: u64) -> Vec<Group> {
    let n_queries = first_entries.len() - 1;
    let n_tiles = |q: usize| first_tiles[q + 1] - first_tiles[q];
    let mut groups = Vec::new();
    if (0..n_queries).all(|q| n_tiles(q) <= 1) {
        groups.push(Group {
            queries: 0..n_queries,
            entries: 0..first_entries[n_queries],
            max_tiles: 1,
            is_ragged: false,
        });
        return groups;
    }
    let mut open: Option<Group> = None;
    for q in 0..n_queries {
        let entries = first_entries[q]..first_entries[q + 1];
        if entries.is_empty() {
            continue;
        }
        let max_tiles = n_tiles(q);
        let own = Group { queries: q..q + 1, entries, max_tiles, is_ragged: false };
        let joined = match &open {
            Some(open) => Group {
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
        groups.extend(open.take());
        if own.n_partials() <= partials_max {
            open = Some(own);
            continue;
        }
        let n_at_once = (partials_max / u64::from(own.max_tiles)).max(1);
        groups.extend(own.entries.clone().step_by(n_at_once as usize).map(|begin| Group {
            entries: begin..own.entries.end.min(begin.saturating_add(n_at_once as u32)),
            ..own.clone()
        }));
    }
    groups.extend(open);
    groups
}

/// Blocks for `n_tiles` query tiles that take turns (0 = they do not): as many as the device
/// runs at once, or a few fewer so that a block meets the same query tile in every round.
pub(super) fn grid(shape: &Shape, n_tiles: u64) -> u32 {
    let n_blocks = shape.n_blocks.max(1) as u64;
    let rounds = n_blocks.checked_div(n_tiles).map_or(0, |rounds| rounds * n_tiles);
    // Losing more than a sixteenth of the device costs more than loading a query tile again.
    let is_worth_it = shape.prefers_whole_rounds && rounds * 16 >= n_blocks * 15;
    (if is_worth_it { rounds } else { n_blocks }).min(i32::MAX as u64) as u32
}

/// Most entries of a unit, for documents of `n_tokens` tokens in all.
pub(super) fn entries_per_unit_max(n_documents: usize, n_tokens: u64) -> u64 {
    (TOKENS_PER_UNIT * n_documents as u64)
        .checked_div(n_tokens)
        .map_or(ENTRIES_PER_UNIT_MAX, |n| n.clamp(1, ENTRIES_PER_UNIT_MAX))
}

/// Entries per unit (at most `most`) for which the busiest block has the least to do, given
/// `n_tiles` tiles with `n_entries` entries each. At least [`ROUNDS`] units per block where there is enough
/// work.
pub(super) fn entries_per_unit(n_tiles: u64, n_entries: u64, grid: u32, most: u64) -> u32 {
    let grid = u64::from(grid.max(1));
    let rounds = |per_unit: u64| (n_tiles * n_entries.div_ceil(per_unit)).div_ceil(grid);
    let most = (1..=most)
        .take_while(|&per_unit| per_unit == 1 || rounds(per_unit) >= ROUNDS)
        .last()
        .unwrap_or(1);
    // A unit costs about a quarter of an entry more than its entries.
    let busiest = |per_unit: u64| rounds(per_unit) * (4 * per_unit + 1);
    (1..=most).rev().min_by_key(|&per_unit| busiest(per_unit)).unwrap_or(1) as u32
}
