//! Rankings as one JSON object.

use std::io::{self, Write};

use anyhow::{Result, bail};
use serde::{Serialize, Serializer};

use super::Results;
use crate::metrics::Metrics;

#[derive(Serialize)]
struct Object<'a> {
    #[serde(serialize_with = "queries")]
    queries: &'a Results<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
}

#[derive(Serialize)]
struct Query {
    id: u32,
    documents: Vec<u32>,
    scores: Vec<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proven: Option<usize>,
}

/// JSON has no infinities.
pub(super) fn check(results: &Results<'_>) -> Result<()> {
    for (query, ranking) in results.rankings.iter().enumerate() {
        if let Some(ranked) = ranking.ranked.iter().find(|ranked| !ranked.score.is_finite()) {
            bail!(
                "the score of query {query} and document {} is {}, which JSON cannot hold; \
                 take another --format",
                ranked.id,
                ranked.score
            );
        }
    }
    Ok(())
}

/// `{"queries": [{"id", "documents", "scores"}], "metrics": {"ndcg@10", "recall@10"}}`,
/// metrics where there are judgements; and with each query the number of its first places that are
/// `proven`, where compressed documents were searched.
pub(super) fn write(results: &Results<'_>, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Object { queries: results, metrics: results.metrics })?;
    writeln!(out)
}

/// One query at a time: the object never exists as a whole.
fn queries<S: Serializer>(results: &Results<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq((0u32..).zip(results.rankings).map(|(id, ranking)| Query {
        id,
        documents: ranking.ranked.iter().map(|ranked| ranked.id).collect(),
        scores: ranking.ranked.iter().map(|ranked| ranked.score).collect(),
        proven: results.proven.map(|proven| proven[id as usize]),
    }))
}
