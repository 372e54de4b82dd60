//! Rankings as one JSON object.

use std::io::{self, Write};

use maxsim::Ranked;
use serde::{Serialize, Serializer};

use super::Results;
use crate::judging::ids::Id;
use crate::judging::metrics::Metrics;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    scores: Option<Vec<Score>>,
    /// In their place, where they are smaller the better a document is.
    #[serde(skip_serializing_if = "Option::is_none")]
    distances: Option<Vec<Score>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    without_tokens: Vec<Id<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    titles: Option<Vec<Option<&'a str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<Option<&'a str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proven: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    winners: Option<Vec<Vec<Option<u32>>>>,
}

/// A score. JSON has no infinities: they are strings, named as JavaScript and the JSON form of
/// Protocol Buffers do.
struct Score(f32);

impl Serialize for Score {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            f32::INFINITY => serializer.serialize_str("Infinity"),
            f32::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            score => serializer.serialize_f32(score),
        }
    }
}

/// `{"queries": [{"id", "documents", "scores"}], "metrics": {"ndcg@10", "recall@10"}}`,
/// metrics where there are judgements, and `distances` in place of angular scores. A query has
/// besides, where there are any, the ids `without_tokens`, `titles` and `texts` of its documents,
/// the number of its first places that are `proven`, where compressed documents were searched, and
/// `winners`: for each document, and each token of the query, the document's token that it matches.
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
        let shown = || ranked.iter().map(|ranked| Score(results.shown(ranked))).collect();
        let texts = |of: for<'t> fn(&'t Text) -> Option<&'t str>| {
            let of = |ranked: &Ranked| judging.texts.get(ranked.id).and_then(of);
            (!judging.texts.is_empty()).then(|| ranked.iter().map(of).collect())
        };
        Query {
            id: judging.queries.get(query),
            documents: ranked.iter().map(id).collect(),
            scores: (!results.distances).then(&shown),
            distances: results.distances.then(&shown),
            without_tokens: ranked.iter().filter(|r| !r.has_tokens).map(id).collect(),
            titles: texts(|text| text.title.as_deref()),
            texts: texts(|text| text.text.as_deref()),
            proven: results.proven.map(|proven| proven[query as usize]),
            winners: results.winners.map(|winners| {
                let of_query = &winners[query as usize];
                (0..ranked.len()).map(|place| of_query.of(place).collect()).collect()
            }),
        }
    }))
}
