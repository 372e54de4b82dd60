//! Rankings as one JSON object.

use std::io::{self, Write};

use anyhow::{Result, bail};
use maxsim::Ranked;
use serde::{Serialize, Serializer};

use super::Results;
use crate::ids::Id;
use crate::metrics::Metrics;
use crate::texts::Text;

#[derive(Serialize)]
struct Object<'a> {
    #[serde(serialize_with = "queries")]
    queries: &'a Results<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
}

#[derive(Serialize)]
struct Query<'a> {
    id: Id<'a>,
    documents: Vec<Id<'a>>,
    scores: Vec<f32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    without_tokens: Vec<Id<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    titles: Option<Vec<Option<&'a str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<Option<&'a str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proven: Option<usize>,
}

/// JSON has no infinities.
pub(super) fn check(results: &Results<'_>) -> Result<()> {
    for (query, ranking) in results.rankings.iter().enumerate() {
        if let Some(ranked) = ranking.ranked.iter().find(|ranked| !ranked.score.is_finite()) {
            bail!(
                "the score of query {query} and document {} is {}, which JSON cannot hold; \
                 use another --format",
                ranked.id,
                ranked.score
            );
        }
    }
    Ok(())
}

/// `{"queries": [{"id", "documents", "scores"}], "metrics": {"ndcg@10", "recall@10"}}`,
/// metrics where there are judgements. A query has besides, where there are any, the ids
/// `without_tokens`, `titles` and `texts` of its documents, and the number of its first places
/// that are `proven`, where compressed documents were searched.
pub(super) fn write(results: &Results<'_>, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Object { queries: results, metrics: results.metrics })?;
    writeln!(out)
}

/// One query at a time: the object never exists as a whole.
fn queries<S: Serializer>(results: &Results<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    let judging = results.judging;
    serializer.collect_seq((0u32..).zip(results.rankings).map(|(query, ranking)| {
        let ranked = &ranking.ranked;
        let id = |ranked: &Ranked| judging.documents.get(ranked.id);
        let texts = |of: for<'t> fn(&'t Text) -> Option<&'t str>| {
            let of = |ranked: &Ranked| judging.texts.get(ranked.id).and_then(of);
            (!judging.texts.is_empty()).then(|| ranked.iter().map(of).collect())
        };
        Query {
            id: judging.queries.get(query),
            documents: ranked.iter().map(id).collect(),
            scores: ranked.iter().map(|ranked| ranked.score).collect(),
            without_tokens: ranked.iter().filter(|r| !r.has_tokens).map(id).collect(),
            titles: texts(|text| text.title.as_deref()),
            texts: texts(|text| text.text.as_deref()),
            proven: results.proven.map(|proven| proven[query as usize]),
        }
    }))
}
