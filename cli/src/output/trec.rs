//! Rankings as a TREC run.

use std::io::{self, Write};

use maxsim::Ranking;

use super::Results;
use crate::judging::ids::Ids;
use crate::texts::counted;

/// Name of the run in the last column.
const TAG: &str = "maxsim";

/// Writes lines `qid Q0 docid rank score tag`. Documents without tokens are excluded: evaluators
/// sort by score, and the 0 of such a document would put it above negative scores. Scores have as
/// many digits as it takes to distinguish them. Minus a distance is a score: larger is better.
pub(super) fn write(results: &Results<'_>, out: &mut impl Write) -> io::Result<()> {
    let judging = results.judging;
    for (query, ranking) in (0u32..).zip(results.rankings) {
        let query = judging.queries.get(query);
        for (rank, ranked) in (1..).zip(ranking.ranked.iter().filter(|r| r.has_tokens)) {
            let document = judging.documents.get(ranked.id);
            writeln!(out, "{query} Q0 {document} {rank} {} {TAG}", ranked.score)?;
        }
    }
    Ok(())
}

/// Warns of places that evaluators will see otherwise: trec_eval sorts by score, and equal scores
/// by document id, descending, whatever the column of ranks says.
pub(super) fn warning(rankings: &[Ranking], documents: &Ids) -> Option<String> {
    let mut n_swapped = 0;
    for ranking in rankings {
        let ranked = || ranking.ranked.iter().filter(|r| r.has_tokens);
        let pairs = ranked().zip(ranked().skip(1)).filter(|(a, b)| a.score == b.score);
        let id = |item| documents.get(item).to_string();
        n_swapped += pairs.filter(|(a, b)| id(a.id) < id(b.id)).count() as u64;
    }
    (n_swapped > 0).then(|| {
        format!(
            "{} the score of the one before; trec_eval orders equal scores by document id, \
             descending, and may count other metrics",
            counted(n_swapped, "document has", "documents have")
        )
    })
}
