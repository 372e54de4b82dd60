//! Finds which tokens of the listed documents the queries' tokens have matched: these documents
//! alone are scored once more, with winners.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use maxsim::{Ranking, Scores};

use crate::rank::pairs;
use crate::rank::stream::{Calls, Request};

/// The matched tokens of one query's listed documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Winners {
    /// Tokens that the file has of the query, up to the last valid one.
    query_len: usize,
    /// For each document, and each token of the query, the document's token, or -1.
    tokens: Vec<i32>,
}

impl Winners {
    /// For each token of the query the token of the document at a place of the ranking: both are
    /// counted as the files have them. `None` where the query's token is masked, and where the
    /// document has none.
    pub fn of(&self, place: usize) -> impl ExactSizeIterator<Item = Option<u32>> + Clone {
        let tokens = &self.tokens[place * self.query_len..][..self.query_len];
        tokens.iter().map(|&token| u32::try_from(token).ok())
    }
}

/// The winners of each query's first `n_listed` documents, and the calls that it took.
pub(super) fn find(
    request: &Request<'_>,
    rankings: &[Ranking],
    n_listed: usize,
) -> Result<(Vec<Winners>, Calls)> {
    // One that ranks may have none.
    let options = request.options.clone().winners(true).kernel(None);
    let request = Request { options: &options, ..*request };
    let (mut all, mut places) = (Vec::with_capacity(rankings.len()), Vec::new());
    let mut pairs: Vec<[u32; 2]> = Vec::new();
    for (query, ranking) in (0u32..).zip(rankings) {
        let listed = &ranking.ranked[..n_listed.min(ranking.ranked.len())];
        let last = request.queries.layout().item_len(query as usize).checked_sub(1);
        let stored = |last| request.queries.stored_token(query as usize, last) + 1;
        let query_len = last.map_or(0, stored);
        let tokens = vec![-1; listed.len() * query_len];
        all.push(Winners { query_len, tokens });
        let with_tokens = (0usize..).zip(listed).filter(|(_, ranked)| ranked.has_tokens);
        let of_query: BTreeMap<u32, usize> =
            with_tokens.map(|(place, ranked)| (ranked.id, place)).collect();
        pairs.extend(of_query.keys().map(|&document| [document, query]));
        places.push(of_query);
    }
    request.progress.reset();
    request.progress.set_length(pairs.len() as u64);
    request.progress.set_message("pairs to match");
    let mut take = |pairs: &[[u32; 2]], scores: &Scores| {
        let (Some(winners), Some(offsets)) = (scores.winners(), scores.token_offsets()) else {
            bail!("the device found no winners");
        };
        for (p, pair) in pairs.iter().enumerate() {
            let [query, document] = pair.map(|id| id as usize);
            let Some(&place) = places[query].get(&pair[1]) else { continue };
            let Winners { query_len, tokens } = &mut all[query];
            for (token, &winner) in winners[offsets.range(p)].iter().enumerate() {
                if let Ok(winner) = usize::try_from(winner) {
                    let token = request.queries.stored_token(query, token);
                    let winner = request.documents.stored_token(document, winner);
                    tokens[place * *query_len + token] = winner as i32;
                }
            }
        }
        Ok(())
    };
    let calls = request.with_less_memory(|request| pairs::score(request, &pairs, &mut take))?;
    Ok((all, calls))
}
