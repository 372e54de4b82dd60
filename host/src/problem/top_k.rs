//! The rows that scores are ranked in, and the keys of the best of each.
//!
//! A key is a score and its document's id as one integer
//! ([`maxsim_kernels::abi::params::top_k`]): a ranking is the order of falling keys, and the best k
//! are the k largest of them, however they are found.

use maxsim_kernels::abi::params::top_k::{Entry, NO_KEY, entry, is_empty, is_nan, key, upper_word};

use super::pairing::Kind;
use super::{Problem, ScoreShape};
use crate::error::{Error, Result};
use crate::problem::ranking::{Ranked, Ranking};
use crate::runtime::alloc::{filled, reserve};

pub(crate) use maxsim_kernels::abi::params::top_k::K_MAX;

/// Keys of a row that are collected before those that are not among the best are dropped.
const COLLECTED_MIN: usize = 1024;

/// The rows that the scores of a problem are ranked in: one for each query.
#[derive(Debug)]
pub(crate) struct RankedRows {
    /// Shape of the scores.
    pub shape: ScoreShape,
    pub n_rows: usize,
    /// Scores of a row; where rows are listed, of the longest.
    pub row_len: usize,
    pub n_documents: usize,
    /// How many documents further the first of the next row is, where rows are not listed.
    pub row_documents: usize,
    /// Documents and scores of rows, where documents are not in order.
    pub listed: Option<Listed>,
    /// A bit per document, 1 where it has no valid token. `None` where every document has one, and
    /// where the device alone knows.
    pub empty: Option<Vec<u32>>,
    /// Whether the host knows which documents have a valid token.
    pub knows_empty: bool,
}

/// Lists of rows, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The first entry of each row, and the end of the last; `None` where all are equally long.
    pub starts: Option<Vec<u32>>,
    /// The document of each entry.
    pub documents: Vec<u32>,
    /// The index of each entry's score; `None` where that is the entry's.
    pub positions: Option<Vec<u32>>,
}

impl RankedRows {
    pub(crate) fn new(problem: &Problem<'_>) -> Result<RankedRows> {
        let (shape, documents) = (problem.shape(), problem.documents());
        let n_rows = problem.queries().n_items();
        let n_documents = documents.n_items();
        let listed = match &problem.pairing().0 {
            Kind::Cross | Kind::OwnCandidates { .. } => None,
            Kind::Candidates { ids, .. } => {
                Some(Listed { documents: ids.clone(), ..Listed::default() })
            }
            Kind::Pairs { ids } => Some(Listed::of_pairs(ids, n_rows)?),
        };
        let starts = listed.as_ref().and_then(|listed| listed.starts.as_deref());
        let longest = |starts: &[u32]| starts.windows(2).map(|row| row[1] - row[0]).max();
        let row_len = match starts {
            Some(starts) => longest(starts).unwrap_or(0) as usize,
            None => shape.row_len().unwrap_or(0),
        };
        let row_documents = match problem.pairing().0 {
            Kind::OwnCandidates { k } => k,
            _ => 0,
        };
        let knows_empty = documents.knows_empty_items();
        let mut empty = None;
        if knows_empty && documents.has_empty_items() {
            let mut bits = filled(n_documents.div_ceil(32) as u64, 0u32)?;
            for item in (0..n_documents).filter(|&item| !documents.has_tokens(item)) {
                bits[item / 32] |= 1 << (item % 32);
            }
            empty = Some(bits);
        }
        Ok(RankedRows {
            shape,
            n_rows,
            row_len,
            n_documents,
            row_documents,
            listed,
            empty,
            knows_empty,
        })
    }

    /// The keys of a row of the scores of all rows.
    fn keys(&self, row: usize, scores: &[f32], first_id: u32) -> impl Iterator<Item = u64> {
        let starts = self.listed.as_ref().and_then(|listed| listed.starts.as_deref());
        let entries = match starts {
            Some(starts) => starts[row] as usize..starts[row + 1] as usize,
            None => row * self.row_len..(row + 1) * self.row_len,
        };
        entries.clone().map(move |entry| {
            let (document, index) = match &self.listed {
                None => (row * self.row_documents + (entry - entries.start), entry),
                Some(Listed { documents, positions, .. }) => {
                    let index = positions.as_ref().map_or(entry, |all| all[entry] as usize);
                    (documents[entry] as usize, index)
                }
            };
            let is_empty = self
                .empty
                .as_ref()
                .is_some_and(|bits| bits[document / 32] >> (document % 32) & 1 != 0);
            // Ids are checked to be below 2³².
            key(scores[index].to_bits(), first_id + document as u32, is_empty)
        })
    }
}

impl Listed {
    /// The rows of pairs of a query and a document: those of each query in their order.
    fn of_pairs(ids: &[[u32; 2]], n_rows: usize) -> Result<Listed> {
        let mut starts = filled(n_rows as u64 + 1, 0u32)?;
        for [query, _] in ids {
            starts[*query as usize + 1] += 1;
        }
        for row in 0..n_rows {
            starts[row + 1] += starts[row];
        }
        if ids.is_sorted_by_key(|[query, _]| *query) {
            let documents = ids.iter().map(|[_, document]| *document).collect();
            return Ok(Listed { starts: Some(starts), documents, positions: None });
        }
        let mut next = starts.clone();
        let mut documents = filled(ids.len() as u64, 0u32)?;
        let mut positions = filled(ids.len() as u64, 0u32)?;
        for (position, [query, document]) in (0u32..).zip(ids) {
            let entry = &mut next[*query as usize];
            documents[*entry as usize] = *document;
            positions[*entry as usize] = position;
            *entry += 1;
        }
        Ok(Listed { starts: Some(starts), documents, positions: Some(positions) })
    }
}

/// Refuses ids of documents that 32 bits do not hold.
pub(crate) fn check_ids(first_id: u32, n_documents: usize) -> Result<()> {
    let end = u64::from(first_id) + n_documents as u64;
    match end <= 1 << 32 {
        true => Ok(()),
        false => Err(Error::TooLarge { what: "document ids", limit: 1 << 32, found: end }),
    }
}

/// Refuses a k that a device does not select.
pub(crate) fn check_k(k: usize) -> Result<()> {
    match k <= K_MAX {
        true => Ok(()),
        false => Err(Error::TooLarge {
            what: "k of a selection on a device (Scores::top_k has no limit)",
            limit: K_MAX as u64,
            found: k as u64,
        }),
    }
}

/// The keys of the best k of each row, falling, with zeros behind them; and the numbers of NaN and
/// of empty documents among all that were seen.
#[derive(Clone, Debug)]
pub(crate) struct BestKeys {
    k: usize,
    /// `[n_rows, k]`
    pub keys: Vec<u64>,
    /// `[n_rows, 2]`
    pub counts: Vec<u64>,
}

impl BestKeys {
    /// Those of rows of which nothing was seen.
    pub(crate) fn new(n_rows: usize, k: usize) -> Result<BestKeys> {
        let keys = filled((n_rows as u64).saturating_mul(k as u64), NO_KEY)?;
        Ok(BestKeys { k, keys, counts: filled(n_rows as u64 * 2, 0)? })
    }

    /// Takes scores into account, beside what was seen before where `adds`.
    pub(crate) fn select(
        &mut self,
        rows: &RankedRows,
        scores: &[f32],
        first_id: u32,
        adds: bool,
    ) -> Result<()> {
        let mut collected = Vec::new();
        reserve(&mut collected, self.k.saturating_mul(2).max(COLLECTED_MIN))?;
        for row in 0..rows.n_rows {
            let (best, counts) = self.row(row);
            if !adds {
                best.fill(NO_KEY);
                counts.fill(0);
            }
            let keys = rows.keys(row, scores, first_id).inspect(|&key| {
                counts[0] += u64::from(is_nan(upper_word(key)));
                counts[1] += u64::from(is_empty(upper_word(key)));
            });
            merge(best, keys, &mut collected);
        }
        Ok(())
    }

    /// Takes into account what others have, of as many rows and the same k.
    pub(crate) fn merge(&mut self, other: &BestKeys) -> Result<()> {
        let mut collected = Vec::new();
        reserve(&mut collected, self.k.saturating_mul(2).max(COLLECTED_MIN))?;
        let k = self.k;
        for (row, more) in other.counts.chunks_exact(2).enumerate() {
            let (best, counts) = self.row(row);
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
            merge(best, other.keys[row * k..][..k].iter().copied(), &mut collected);
        }
        Ok(())
    }

    fn row(&mut self, row: usize) -> (&mut [u64], &mut [u64]) {
        (&mut self.keys[row * self.k..][..self.k], &mut self.counts[row * 2..][..2])
    }

    /// The ranking of each row.
    pub(crate) fn rankings(&self) -> Vec<Ranking> {
        let ranked = |&key: &u64| {
            let Entry { id, score, is_empty } = entry(key);
            Ranked { id, score, has_tokens: !is_empty }
        };
        let ranking = |(row, counts): (usize, &[u64])| {
            let keys = &self.keys[row * self.k..][..self.k];
            let ranked = keys.iter().take_while(|&&key| key != NO_KEY).map(ranked).collect();
            Ranking { ranked, n_nan: counts[0], n_empty: counts[1] }
        };
        self.counts.chunks_exact(2).enumerate().map(ranking).collect()
    }
}

/// Merges keys in any order into the best k, which fall.
fn merge(best: &mut [u64], keys: impl Iterator<Item = u64>, collected: &mut Vec<u64>) {
    let k = best.len();
    let Some(last) = k.checked_sub(1) else {
        // The keys may be counted as they come.
        return keys.for_each(drop);
    };
    collected.clear();
    collected.extend(best.iter().filter(|&&key| key != NO_KEY));
    // Whatever is not above the k-th of some is not among the best.
    let mut least = NO_KEY;
    for key in keys {
        if key <= least {
            continue;
        }
        if collected.len() == collected.capacity() {
            collected.select_nth_unstable_by(last, |a, b| b.cmp(a));
            collected.truncate(k);
            least = collected[last];
        }
        collected.push(key);
    }
    collected.sort_unstable_by(|a, b| b.cmp(a));
    collected.truncate(k);
    best.fill(NO_KEY);
    best[..collected.len()].copy_from_slice(collected);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_rows_of_their_queries() {
        let listed = Listed::of_pairs(&[[2, 7], [0, 1], [2, 3], [0, 4]], 4).unwrap();
        assert_eq!(listed.starts, Some(vec![0, 2, 2, 4, 4]));
        assert_eq!(
            (listed.documents, listed.positions),
            (vec![1, 4, 7, 3], Some(vec![1, 3, 0, 2]))
        );
        let listed = Listed::of_pairs(&[[0, 1], [0, 4], [2, 7]], 3).unwrap();
        assert_eq!(listed.starts, Some(vec![0, 2, 2, 3]));
        assert_eq!((listed.documents, listed.positions), (vec![1, 4, 7], None));
    }

    #[test]
    fn equal_keys_are_kept_as_often_as_they_come() {
        let mut best = [NO_KEY; 3];
        let mut collected = Vec::with_capacity(8);
        merge(&mut best, [5, 9, 5, 5, 1].into_iter(), &mut collected);
        assert_eq!(best, [9, 5, 5]);
        merge(&mut best, (2..2000).map(|key| key % 13), &mut collected);
        assert_eq!(best, [12, 12, 12]);
        merge(&mut [], [5, 9].into_iter(), &mut collected);
    }

    #[test]
    fn ids_end_with_32_bits() {
        assert!(check_ids(u32::MAX, 1).is_ok() && check_ids(u32::MAX, 2).is_err());
        assert!(check_k(K_MAX).is_ok() && check_k(K_MAX + 1).is_err());
    }
}
