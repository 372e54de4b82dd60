//! How work is cut: into launches that fit the workspace, and into units that fill the device.

use std::ops::Range;

use super::work::Shape;

/// Document tokens of a unit. Blocks with different tiles of a query read the same documents;
/// in longer units they drift apart, and the second reader finds them gone from the L2 cache.
pub(super) const UNIT_TOKENS_MAX: u64 = 4096;

/// What a document costs besides its tokens, in tokens: the sum over the rows, and half of the
/// columns that its last tile wastes.
const DOCUMENT_TOKENS: u64 = 32;

/// Consecutive entries that one launch covers: those of whole queries, or some of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub queries: Range<usize>,
    pub entries: Range<u32>,
    /// Tiles of the longest query.
    pub max_tiles: u32,
    /// Some query with entries has fewer tiles.
    pub is_ragged: bool,
}

impl Cut {
    /// Partial sums: one per tile and entry, none where each score has one tile.
    pub(super) fn n_partials(&self) -> u64 {
        match self.max_tiles {
            0 | 1 => 0,
            n_tiles => u64::from(n_tiles) * self.entries.len() as u64,
        }
    }

    /// The cut's entries of query `q`.
    pub(super) fn entries_of(&self, q: usize, first_entries: &[u32]) -> Range<u32> {
        let begin = first_entries[q].max(self.entries.start);
        begin..first_entries[q + 1].min(self.entries.end).max(begin)
    }
}

/// Cuts the entries into runs of at most `partials_max` partial sums (or, if one entry has
/// more, of one entry). `first_entries` and `first_tiles` have one number per query and the
/// total.
pub(super) fn cuts(first_entries: &[u32], first_tiles: &[u32], partials_max: u64) -> Vec<Cut> {
    let n_queries = first_entries.len() - 1;
    let n_tiles = |q: usize| first_tiles[q + 1] - first_tiles[q];
    let mut cuts = Vec::new();
    if (0..n_queries).all(|q| n_tiles(q) <= 1) {
        cuts.push(Cut {
            queries: 0..n_queries,
            entries: 0..first_entries[n_queries],
            max_tiles: 1,
            is_ragged: false,
        });
        return cuts;
    }
    let mut open: Option<Cut> = None;
    for q in 0..n_queries {
        let entries = first_entries[q]..first_entries[q + 1];
        if entries.is_empty() {
            continue;
        }
        let max_tiles = n_tiles(q);
        let own = Cut { queries: q..q + 1, entries, max_tiles, is_ragged: false };
        let joined = match &open {
            Some(open) => Cut {
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
        cuts.extend(open.take());
        if own.n_partials() <= partials_max {
            open = Some(own);
            continue;
        }
        let n_at_once = (partials_max / u64::from(own.max_tiles)).max(1);
        cuts.extend(own.entries.clone().step_by(n_at_once as usize).map(|begin| Cut {
            entries: begin..own.entries.end.min(begin.saturating_add(n_at_once as u32)),
            ..own.clone()
        }));
    }
    cuts.extend(open);
    cuts
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

/// Cost of a document of `len` tokens, in tokens.
pub(super) fn cost(len: u32) -> u64 {
    u64::from(len) + DOCUMENT_TOKENS
}

/// Units per tile for `n_entries` entries that cost `total`: whole rounds of all blocks, of units
/// of at most `unit_tokens_max` tokens.
pub(super) fn n_chunks(
    total: u64,
    n_entries: usize,
    n_tiles: u64,
    grid: u32,
    unit_tokens_max: u64,
) -> u64 {
    let n_units = n_tiles * total.div_ceil(unit_tokens_max.max(1));
    let n_units = n_units.max(1).next_multiple_of(u64::from(grid.max(1)));
    (n_units / n_tiles.max(1)).clamp(1, n_entries.max(1) as u64)
}

/// Bounds of `n_chunks` runs of documents of about equal cost: one more than runs, from 0 to the
/// number of documents.
pub(super) fn balanced(lens: &[[u32; 2]], n_chunks: u64) -> Vec<usize> {
    let total: u64 = lens.iter().map(|len| cost(len[1])).sum();
    let mut bounds = vec![0];
    let mut sum = 0;
    for (i, &[_, len]) in lens.iter().enumerate() {
        // A run ends where its share of the cost is nearest.
        let share = |n: usize| (u128::from(total) * n as u128 / u128::from(n_chunks.max(1))) as u64;
        while bounds.len() < n_chunks as usize && sum + cost(len) / 2 >= share(bounds.len()) {
            bounds.push(i);
        }
        sum += cost(len);
    }
    bounds.resize(n_chunks.max(1) as usize, lens.len());
    bounds.push(lens.len());
    bounds
}
