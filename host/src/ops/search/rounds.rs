//! The rounds of a search: what it names, scored in full precision.

use super::Shortlist;
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::Result;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

/// Most pairs that a call re-scores.
const PAIRS_MAX: usize = 1 << 20;

/// Least items of a prepared call for one query.
const ITEMS_MIN: usize = 32;

/// Full precision for what searches name.
pub(super) struct Rescorer<'a, T: Element> {
    device: &'a Device,
    queries: TokensRef<'a, T>,
    documents: TokensRef<'a, T>,
}

impl<'a, T: Element> Rescorer<'a, T> {
    /// Queries and documents, where they are scored.
    pub fn new(
        device: &'a Device,
        queries: TokensRef<'a, T>,
        documents: TokensRef<'a, T>,
    ) -> Rescorer<'a, T> {
        Rescorer { device, queries, documents }
    }

    /// Both sides, where they are on a device.
    pub fn handles(&self) -> Option<[&'a DeviceTokens<T>; 2]> {
        match (self.queries, self.documents) {
            (TokensRef::Device(queries), TokensRef::Device(documents)) => {
                Some([queries, documents])
            }
            _ => None,
        }
    }

    /// Scores what the searches want next, search `q` for query `q`. Whether that was anything.
    pub fn round(&self, searches: &mut [Shortlist]) -> Result<bool> {
        let wanted: Vec<[u32; 2]> = (0u32..)
            .zip(&mut *searches)
            .flat_map(|(q, search)| search.wanted().into_iter().map(move |d| [q, d]))
            .collect();
        for pairs in wanted.chunks(PAIRS_MAX) {
            let scores = match self.handles().filter(|_| self.device.ordinal().is_some()) {
                Some([queries, documents]) => self.scores_of_items(queries, documents, pairs)?,
                None => {
                    let pairing = Pairing(Kind::Pairs { ids: pairs.to_vec() });
                    self.device.score(self.queries, self.documents, &pairing)?.into_values()
                }
            };
            for (&[q, d], score) in pairs.iter().zip(scores) {
                searches[q as usize].rescored(d, score)?;
            }
        }
        Ok(!wanted.is_empty())
    }

    /// The scores of pairs, by rising queries, on a GPU. What is named is made the items of a
    /// handle, so that nothing has to go through all documents: a plan looks at each.
    fn scores_of_items(
        &self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<T>,
        pairs: &[[u32; 2]],
    ) -> Result<Vec<f32>> {
        let layout = documents.layout();
        layout.check_read("documents")?;
        let (device, options) = (self.device, ScoreOptions::default());
        let n_queries = queries.layout().n_items();
        let (work, items) = if n_queries == 1 {
            // Calls for one query are short, and so is a call that was prepared before: for items
            // that the device alone knows, and for a number of them that comes again.
            let n_items = round_up(pairs.len());
            let segments = pairs.iter().map(|pair| layout.segments()[pair[1] as usize]);
            let mut segments: Vec<[u32; 2]> = segments.collect();
            segments.resize(n_items, [0, 0]);
            let items = documents.as_items(unread(layout, n_items)?, &segments)?;
            (device.prepare_cached(queries, &items, &Pairing::cross(), &options)?, items)
        } else {
            let chosen = layout.chosen(pairs.iter().map(|pair| pair[1]));
            let ids = (0u32..).zip(pairs).map(|(item, &[query, _])| [query, item]).collect();
            let items = documents.as_items(chosen, &[])?;
            let pairing = Pairing(Kind::Pairs { ids });
            (device.prepare(queries, &items, &pairing, &options)?.into(), items)
        };
        let scores = work.new_unfilled()?;
        device.enqueue(work.command(device, queries, &items, &scores)?)?;
        scores.read_some(0..pairs.len())
    }
}

/// As many items or some more, of few numbers: a power of two, or one and a half.
pub(super) fn round_up(n_items: usize) -> usize {
    let power = n_items.next_power_of_two().max(ITEMS_MIN);
    if n_items <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// The layout of some items among those of a layout, as long as these are.
pub(super) fn unread(layout: &TokenLayout, n_items: usize) -> Result<TokenLayout> {
    let mean = layout.total_len().div_ceil(layout.n_items().max(1) as u64) as usize;
    let (rows, dim, max_len) = (layout.rows(), layout.dim(), layout.max_len());
    let items = TokenLayout::unread(rows, dim, n_items, max_len, mean.min(max_len))?;
    Ok(if layout.is_masked() { items.with_unread_mask() } else { items })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_numbers_of_items_are_prepared() {
        for n_items in 0..5000usize {
            let rounded = round_up(n_items);
            assert!(rounded >= n_items && rounded <= (n_items * 3 / 2).max(ITEMS_MIN), "{n_items}");
        }
        let mut all: Vec<usize> = (0..5000).map(round_up).collect();
        all.dedup();
        assert!(all.is_sorted() && all.len() < 20, "{all:?}");
    }
}
