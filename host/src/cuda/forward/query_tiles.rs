//! Queries as groups of 16 tokens, and groups as tiles.

use std::ops::Range;

use maxsim_kernels::abi::params::Group;

use crate::error::{Error, Result};
use crate::tokens::layout::TokenLayout;

/// Filling tiles across query borders costs a second kernel that adds partial sums. It must
/// save this share of the tiles.
const WORTH_SPLITTING: f64 = 0.07;

/// Tiles of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Packed {
    pub tiles: Range<u32>,
    /// Tiles of the query that has most.
    pub n_parts: u32,
    /// Whether some query has fewer tiles.
    pub is_ragged: bool,
    /// Whether some tile has groups of several queries.
    pub is_shared: bool,
}

/// The tiles of all launches: `groups_per_tile` groups each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Tiles {
    pub groups: Vec<Group>,
    groups_per_tile: usize,
}

impl Tiles {
    pub(in crate::cuda) fn new(query_tile: usize) -> Tiles {
        Tiles { groups: Vec::new(), groups_per_tile: query_tile / Group::ROWS }
    }

    /// Number of tiles; the last one is complete.
    pub(in crate::cuda) fn n_tiles(&self) -> Result<u32> {
        let n_groups = self.groups.len() as u64;
        let limit = u64::from(u32::MAX);
        if n_groups > limit {
            return Err(Error::TooLarge { what: "groups of query tokens", limit, found: n_groups });
        }
        Ok((self.groups.len() / self.groups_per_tile) as u32)
    }

    /// Query of a tile's first group.
    pub(in crate::cuda) fn first_query(&self, tile: u32) -> u32 {
        self.groups[tile as usize * self.groups_per_tile].query
    }

    /// Tokens of every query, where tile `t` holds query `t` alone, whose rows start with row `t`
    /// times it; 0 in other layouts.
    pub(in crate::cuda) fn query_len(&self) -> u32 {
        let tiles = || self.groups.chunks_exact(self.groups_per_tile);
        let len = tiles().next().map_or(0, |tile| tile.iter().map(|group| group.n_rows()).sum());
        let is_group = |tile: u32, i: usize, group: &Group| {
            let row = (i * Group::ROWS) as u32;
            match len.saturating_sub(row).min(Group::ROWS as u32) {
                0 => group.n_rows() == 0,
                n_rows => {
                    let start = tile.wrapping_mul(len).wrapping_add(row);
                    *group == Group::new(tile, start, row, n_rows, 0)
                }
            }
        };
        let mut tiles = (0..).zip(tiles());
        let are_queries =
            tiles.all(|(t, tile)| tile.iter().enumerate().all(|(i, group)| is_group(t, i, group)));
        if are_queries { len } else { 0 }
    }

    /// Per query, the index of its first group within the tile of that group.
    pub(in crate::cuda) fn first_groups(&self, n_queries: usize) -> Vec<u32> {
        let mut first_groups = vec![0; n_queries];
        for (i, group) in self.groups.iter().enumerate() {
            if group.query != Group::NO_QUERY && group.row == 0 {
                first_groups[group.query as usize] = (i % self.groups_per_tile) as u32;
            }
        }
        first_groups
    }

    /// Most tiles that a query of `len` tokens can touch.
    pub(in crate::cuda) fn parts_bound(&self, len: usize) -> u64 {
        match len.div_ceil(Group::ROWS) {
            0 | 1 => 1,
            n_groups => ((n_groups + self.groups_per_tile - 2) / self.groups_per_tile + 1) as u64,
        }
    }

    /// Tiles that several queries share.
    pub(in crate::cuda) fn shared(
        &mut self,
        queries: &TokenLayout,
        range: Range<usize>,
    ) -> Result<Packed> {
        let first = self.n_tiles()?;
        let n_groups = |q: usize| queries.item_len(q).div_ceil(Group::ROWS);
        // Groups in use when a query that would cross a border starts a new tile instead.
        let mut kept_whole = 0;
        for q in range.clone() {
            kept_whole += self.skip_for(kept_whole, n_groups(q)) + n_groups(q);
        }
        let all: usize = range.clone().map(n_groups).sum();
        let n_tiles = |n_groups: usize| n_groups.div_ceil(self.groups_per_tile) as f64;
        let splits = n_tiles(kept_whole) > n_tiles(all) * (1.0 + WORTH_SPLITTING);
        let (mut n_parts, mut fewest) = (0, u32::MAX);
        for q in range {
            if !splits {
                let n_skipped = self.skip_for(self.groups.len(), n_groups(q));
                self.groups.resize(self.groups.len() + n_skipped, Group::NONE);
            }
            let own = self.push(queries, q)?;
            n_parts = own.max(n_parts);
            fewest = own.min(fewest);
        }
        let tiles = first..self.close()?;
        let groups = &self.groups[tiles.start as usize * self.groups_per_tile..];
        let is_shared = groups.chunks(self.groups_per_tile).any(|tile| {
            let other = |group: &Group| ![tile[0].query, Group::NO_QUERY].contains(&group.query);
            tile.iter().any(other)
        });
        Ok(Packed { tiles, n_parts, is_ragged: fewest < n_parts, is_shared })
    }

    /// The tiles of one query.
    pub(in crate::cuda) fn own(&mut self, queries: &TokenLayout, q: usize) -> Result<Range<u32>> {
        let first = self.n_tiles()?;
        self.push(queries, q)?;
        Ok(first..self.close()?)
    }

    /// Groups to skip behind the first `n`, so that `more` of one query do not cross a
    /// border that they need not cross.
    fn skip_for(&self, n: usize, more: usize) -> usize {
        let used = n % self.groups_per_tile;
        let fits = used + more <= self.groups_per_tile;
        if used == 0 || fits { 0 } else { self.groups_per_tile - used }
    }

    /// Adds a query's groups; the number of tiles that they touch.
    fn push(&mut self, queries: &TokenLayout, q: usize) -> Result<u32> {
        let [start, len] = queries.segments()[q];
        let first = self.groups.len() / self.groups_per_tile;
        let mut n_parts = 0;
        for row in (0..len).step_by(Group::ROWS) {
            let part = (self.groups.len() / self.groups_per_tile - first) as u32;
            let n_rows = (len - row).min(Group::ROWS as u32);
            self.groups.push(Group::new(q as u32, start + row, row, n_rows, part));
            n_parts = part + 1;
        }
        let limit = u64::from(Group::PARTS_MAX);
        match u64::from(n_parts) {
            n if n > limit => Err(Error::TooLarge { what: "tiles of a query", limit, found: n }),
            _ => Ok(n_parts),
        }
    }

    /// Fills the last tile up; the number of tiles.
    fn close(&mut self) -> Result<u32> {
        let n_groups = self.groups.len().next_multiple_of(self.groups_per_tile);
        self.groups.resize(n_groups, Group::NONE);
        self.n_tiles()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(lens: &[i64]) -> TokenLayout {
        let starts: Vec<i64> = lens.iter().map(|_| 0).collect();
        TokenLayout::scattered(10_000, 8, &starts, lens).unwrap()
    }

    fn packed(lens: &[i64]) -> (u32, u32, bool) {
        let queries = layout(lens);
        let mut tiles = Tiles::new(256);
        let packed = tiles.shared(&queries, 0..lens.len()).unwrap();
        assert_eq!(tiles.groups.len() % 16, 0);
        let n_rows: u32 = tiles.groups.iter().map(|g| g.n_rows()).sum();
        assert_eq!(i64::from(n_rows), lens.iter().sum::<i64>());
        for &len in lens {
            assert!(
                u64::from(packed.n_parts) <= tiles.parts_bound(len as usize).max(1) || len == 0
            );
        }
        (packed.tiles.len() as u32, packed.n_parts, packed.is_ragged)
    }

    #[test]
    fn short_queries_fill_tiles_and_keep_whole() {
        assert_eq!(packed(&[32; 32]), (4, 1, false));
        // Five queries of three groups in 16 waste a sixteenth, which is less than a sum costs.
        assert_eq!(packed(&[33; 100]), (20, 1, false));
        assert_eq!(packed(&[32, 0, 32]), (1, 1, true));
        assert_eq!(packed(&[]), (0, 0, false));
    }

    #[test]
    fn first_groups_are_where_queries_start_in_their_tiles() {
        let queries = layout(&[32, 0, 40, 5, 100, 17]);
        let mut tiles = Tiles::new(64);
        tiles.shared(&queries, 0..6).unwrap();
        // Tiles of four groups: 2 + 2 of 3 | 1 of 3 + 1 + 2 of 7 | 4 of 7 | 1 of 7 + 2.
        assert_eq!(tiles.first_groups(6), [0, 0, 2, 1, 2, 1]);
    }

    #[test]
    fn long_queries_share_tiles_where_that_saves_some() {
        // 65 groups a query: five tiles each, or four and a sixteenth.
        assert_eq!(packed(&[1030; 16]), (65, 5, false));
        // Nine groups a query.
        assert_eq!(packed(&[130; 16]), (9, 2, true));
        assert_eq!(packed(&[1024; 4]), (16, 4, false));
        assert_eq!(packed(&[1024]), (4, 4, false));
    }
}
