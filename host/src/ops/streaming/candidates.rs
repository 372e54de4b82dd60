//! Candidates of an earlier stage, read from where the corpus is and ranked.

use std::ops::Range;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::corpus::DEVICE_BUFFER_BYTES;
use super::options::StreamOptions;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::problem::chunks::chunks;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranking;
use crate::runtime::alloc::filled;
use crate::runtime::interrupt::Interrupt;
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::layout::{TokenLayout, check_len};
use crate::tokens::streamed::{Source, Streamed};

impl Device {
    /// The best `k` of each query's own candidates, `candidates[query]`, whose tokens are read from
    /// a source that holds the whole corpus: what a first stage has found, scored in full
    /// precision. Each candidate is read once, however many queries have it, and no more of them
    /// than a buffer holds are in memory at once.
    ///
    /// Coarse to fine over a corpus that fits nowhere: codes pass by, and what they find is read.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Tokens};
    ///
    /// let device = Device::best();
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
    /// let codes = documents.quantize::<Int8>(ScaleType::F16)?; // in a file, say
    /// let query_codes = queries.quantize::<Int8>(ScaleType::F16)?;
    ///
    /// let options = StreamOptions::default();
    /// let coarse = device.search_stream(&query_codes, &codes, 2, &options)?;
    /// let ids = |ranking: &maxsim::Ranking| ranking.ranked.iter().map(|found| found.id).collect();
    /// let candidates: Vec<Vec<u32>> = coarse.rankings.iter().map(ids).collect();
    /// let fine = device.rank_candidates(&queries, &documents, &candidates, 1, &options)?;
    /// assert_eq!((fine[0].ranked[0].id, fine[0].ranked[0].score), (1, 0.96));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not as many lists as queries, [`Error::Id`] for a candidate
    /// that there is not. Those of [`Device::search_stream`] and [`Device::top_k`].
    pub fn rank_candidates<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl Source<T>,
        candidates: &[Vec<u32>],
        k: usize,
        options: &StreamOptions,
    ) -> Result<Vec<Ranking>> {
        let queries = queries.into();
        let documents = Streamed::new(source)?;
        let n_queries = queries.layout().n_items();
        check_len("candidates", n_queries, "one list per query", candidates.len())?;
        let wanted = wanted(candidates, documents.layout.n_items())?;
        let interrupt = Interrupt::current();
        let mut found = vec![vec![Ranking::default()]; n_queries];
        for ids in batches(documents.layout, size_of::<T>(), &wanted, options)? {
            interrupt.check()?;
            let part = gathered(&documents, ids)?;
            let pairs = pairs(candidates, ids)?;
            let rankings = self.top_k(queries, &part, &pairs, &options.score, k)?;
            for (found, mut ranking) in found.iter_mut().zip(rankings) {
                // Ids rise in either numbering, so that ties stay in order.
                ranking.ranked.iter_mut().for_each(|best| best.id = ids[best.id as usize]);
                found.push(ranking);
            }
        }
        Ok(found.into_iter().map(|found| Ranking::merge(found, k)).collect())
    }
}

/// The candidates of all queries, each once, in rising order.
pub(super) fn wanted(candidates: &[Vec<u32>], n_items: usize) -> Result<Vec<u32>> {
    let mut wanted: Vec<u32> = Vec::new();
    for list in candidates {
        if let Some(index) = list.iter().position(|&id| id as usize >= n_items) {
            let found = list[index].into();
            return Err(Error::Id { argument: "candidates", index, found, n_items });
        }
        wanted.extend(list);
    }
    wanted.sort_unstable();
    wanted.dedup();
    Ok(wanted)
}

/// Documents that are read at a time, some of `ids`: as many as a buffer holds, at least one.
pub(super) fn batches<'i>(
    layout: &TokenLayout,
    element_bytes: usize,
    ids: &'i [u32],
    options: &StreamOptions,
) -> Result<Vec<&'i [u32]>> {
    let offsets = offsets(ids.iter().map(|&id| layout.item_len(id as usize)));
    let together = TokenLayout::packed(offsets[ids.len()], layout.dim(), &offsets)?;
    let buffer_bytes = options.buffer_bytes.unwrap_or(DEVICE_BUFFER_BYTES);
    let batches = chunks(&together, layout.dim() * element_bytes, 1, buffer_bytes);
    Ok(batches.into_iter().map(|batch| &ids[batch.items]).collect())
}

/// Where items of some lengths start that lie one behind the other, and where the last one ends.
fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut offsets = vec![0];
    for len in lengths {
        offsets.push(offsets[offsets.len() - 1] + len);
    }
    offsets
}

/// The queries and documents of the candidates that are among `ids`, which rise.
fn pairs(candidates: &[Vec<u32>], ids: &[u32]) -> Result<Pairing> {
    let (mut queries, mut documents) = (Vec::new(), Vec::new());
    for (query, list) in (0u32..).zip(candidates) {
        for place in list.iter().filter_map(|id| ids.binary_search(id).ok()) {
            queries.push(query);
            // There are fewer than 2³¹ items.
            documents.push(place as u32);
        }
    }
    Pairing::pairs(&queries, &documents)
}

/// Reads some documents, several at once.
pub(super) fn gathered<T: Element>(
    documents: &Streamed<'_, T>,
    ids: &[u32],
) -> Result<Tokens<'static, T>> {
    let dim = documents.layout.dim();
    let rows: Vec<Range<usize>> =
        ids.iter().map(|&id| documents.layout.item_rows(id as usize)).collect();
    let offsets = offsets(rows.iter().map(Range::len));
    let n_rows = offsets[rows.len()];
    let mut data: Vec<T> = filled((n_rows * dim) as u64, bytemuck::Zeroable::zeroed())?;
    let (mut rest, mut places) = (&mut data[..], Vec::with_capacity(rows.len()));
    for rows in &rows {
        let (place, behind) = rest.split_at_mut(rows.len() * dim);
        places.push((rows.clone(), place));
        rest = behind;
    }
    let read = |(rows, place): (Range<usize>, &mut [T])| match rows.is_empty() {
        true => Ok(()),
        false => documents.fill(rows, place),
    };
    let parallel = Parallel::new();
    parallel.share(|_| match parallel.is_alone() {
        true => places.into_iter().try_for_each(read),
        false => places.into_par_iter().try_for_each(read),
    })?;
    let tokens = Tokens::from_layout(data, TokenLayout::packed(n_rows, dim, &offsets)?)?;
    match documents.mask {
        None => Ok(tokens),
        Some(mask) => {
            let mask: Vec<u8> = rows.into_iter().flat_map(|rows| &mask[rows]).copied().collect();
            tokens.with_mask(mask)
        }
    }
}
