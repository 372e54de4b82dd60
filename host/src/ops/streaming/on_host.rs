//! Scores of a chunk on the CPU, of some queries at a time where documents are long.

use std::ops::Range;

use super::corpus::{Corpus, Passed};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::problem::chunks::Chunk;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::tokens::Tokens;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;

/// Multiply-adds of queries and one document, per call on the CPU: some hundredths of a second.
const GROUP_WORK: u64 = 1 << 31;

/// Fewest query tokens of a call for that: as many as the engine scores a document against at a
/// time.
const GROUP_TOKENS: u64 = 256;

/// The queries of a call.
pub(super) struct Queries<'a, Q: Format> {
    device: &'a Device,
    groups: Vec<(Range<usize>, Group<'a, Q>)>,
}

enum Group<'a, Q: Format> {
    All(TokensRef<'a, Q>),
    Some(Box<Tokens<'a, Q>>),
}

impl<'a, Q: Format> Queries<'a, Q> {
    /// Queries for some documents, in groups where these are so long that one call would show no
    /// progress. Those of a handle stay together.
    pub(super) fn new(
        device: &'a Device,
        queries: TokensRef<'a, Q>,
        documents: &TokenLayout,
    ) -> Result<Queries<'a, Q>> {
        let groups = match (queries, groups(queries.layout(), documents)) {
            (TokensRef::Host(tokens), groups) if groups.len() > 1 => groups
                .into_iter()
                .map(|group| Ok((group.clone(), Group::Some(tokens.items(group)?.into()))))
                .collect::<Result<_>>()?,
            _ => vec![(0..queries.layout().n_items(), Group::All(queries))],
        };
        Ok(Queries { device, groups })
    }

    /// Reads a chunk and scores it: `[n_queries, n_documents]`.
    pub(super) fn scores<C: Corpus<Q>>(
        &self,
        documents: &C,
        chunk: &Chunk,
        options: &ScoreOptions,
        passed: Passed<'_>,
    ) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        documents.with_part(self.device, chunk.items.clone(), &mut |score| {
            for (queries, group) in &self.groups {
                let tokens = match group {
                    Group::All(tokens) => *tokens,
                    Group::Some(tokens) => TokensRef::Host(tokens),
                };
                let (_, scores) = score(tokens, &Pairing::cross(), options)?;
                match all.is_empty() {
                    true => all = scores.into_values(),
                    false => all.extend_from_slice(scores.values()),
                }
                passed(chunk, queries.clone())?;
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// Queries that are scored at a time on the CPU: all of them, unless documents are long.
fn groups(queries: &TokenLayout, documents: &TokenLayout) -> Vec<Range<usize>> {
    let token_work = (documents.max_len() as u64).saturating_mul(documents.dim() as u64);
    let most = (GROUP_WORK / token_work.max(1)).max(GROUP_TOKENS);
    let (mut groups, mut first, mut tokens) = (Vec::new(), 0, 0);
    for query in 0..queries.n_items() {
        tokens += queries.item_len(query) as u64;
        if tokens >= most {
            groups.push(first..query + 1);
            (first, tokens) = (query + 1, 0);
        }
    }
    // A call without queries names the kernel that would have run.
    if first < queries.n_items() || groups.is_empty() {
        groups.push(first..queries.n_items());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_divided_where_documents_are_long() {
        let queries = TokenLayout::padded(48, 64, 32).unwrap();
        let of = |len| groups(&queries, &TokenLayout::padded(1, len, 32).unwrap());
        let ends = |groups: Vec<Range<usize>>| groups.iter().map(|group| group.end).collect();
        let found: [Vec<usize>; 2] = [of(300), of(1 << 16)].map(ends);
        assert_eq!(found, [vec![48], vec![16, 32, 48]]);
        // Groups are not smaller than what the engine takes at a time.
        assert_eq!(of(1 << 24)[0], 0..4);
        let none = TokenLayout::padded(0, 64, 32).unwrap();
        let long = TokenLayout::padded(1, 1 << 16, 32).unwrap();
        assert_eq!(groups(&none, &long).first(), Some(&(0..0)));
    }
}
