//! What the kernels of XTR know of query tokens and pairs.

use std::sync::Arc;

use bytemuck::cast_slice;

use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::upload_lists;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::xtr::query_token_rows;
use crate::runtime::alloc::reserve;

/// Addresses of lists by query, query token and pair, the tokens of a query behind those of the one
/// before. They do not change.
#[derive(Debug)]
pub(super) struct Lists {
    /// First tokens of queries.
    pub first_tokens: u64,
    /// Of each query token: where its maxima are.
    pub places: u64,
    /// Of each query token: its row.
    pub rows: u64,
    /// Of each query: its first maximum, its first token and how many it has.
    pub queries: u64,
    /// Of each pair: its first maximum and its query, where they are listed.
    pub pairs: u64,
    _memory: Buffer,
}

/// The halves of a number, the lower first, as kernels read it.
fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

impl Lists {
    pub(super) fn new(device: &Arc<CudaDevice>, problem: &Problem<'_>) -> Result<Lists> {
        let (layout, offsets) = (problem.queries(), problem.token_offsets());
        let n_tokens = layout.total_len();
        let row_len = problem.shape().row_len();
        let (mut first_tokens, mut queries, mut places) = (Vec::new(), Vec::new(), Vec::new());
        reserve(&mut first_tokens, layout.n_items())?;
        reserve(&mut queries, layout.n_items())?;
        reserve(&mut places, n_tokens as usize)?;
        let mut next = 0u32;
        for query in 0..layout.n_items() {
            let len = layout.item_len(query) as u32;
            // Where pairs are listed, entries are theirs.
            let first = row_len.map_or(0, |_| offsets.bases()[query]);
            let [low, high] = halves(first);
            first_tokens.push(next);
            queries.push([low, high, next, len]);
            let n_maxima = row_len.unwrap_or(0) as u32;
            places.extend((0..u64::from(len)).map(|token| {
                let [low, high] = halves(first + token);
                [low, high, len, n_maxima]
            }));
            next += len;
        }
        let mut pairs: Vec<[u32; 4]> = Vec::new();
        if row_len.is_none() {
            reserve(&mut pairs, offsets.bases().len())?;
            let numbered = offsets.bases().iter().enumerate();
            pairs.extend(numbered.map(|(p, &first)| {
                let [low, high] = halves(first);
                [low, high, problem.pair(p).0 as u32, 0]
            }));
        }
        let rows = query_token_rows(layout)?;
        let lists: [&[u8]; 5] = [
            cast_slice(&first_tokens),
            cast_slice(&places),
            cast_slice(&rows),
            cast_slice(&queries),
            cast_slice(&pairs),
        ];
        let (memory, addresses) = upload_lists(device, lists)?;
        let [first_tokens, places, rows, queries, pairs] = addresses;
        Ok(Lists { first_tokens, places, rows, queries, pairs, _memory: memory })
    }
}
