//! Rankings as a TREC run.

use std::io::{self, Write};

use super::Results;

/// Name of the run in the last column.
const TAG: &str = "maxsim";

/// Lines `qid Q0 docid rank score tag`. Documents without tokens are left out: evaluators
/// sort by score, and the 0 of such a document would put it above negative scores.
pub(super) fn write(results: &Results<'_>, out: &mut impl Write) -> io::Result<()> {
    for (query, ranking) in results.rankings.iter().enumerate() {
        for (rank, ranked) in (1..).zip(ranking.ranked.iter().filter(|r| r.has_tokens)) {
            writeln!(out, "{query} Q0 {} {rank} {} {TAG}", ranked.id, ranked.score)?;
        }
    }
    Ok(())
}
