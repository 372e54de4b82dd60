//! What `maxsim quantize` says.

use std::io::{self, Write};

use serde::Serialize;

use super::{Agreement, Codec, Written};
use crate::args::ReportFormat;
use crate::texts::counted;

/// What the command says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Format of the embeddings before.
    pub input: String,
    /// Format after.
    pub format: String,
    /// How scales are stored, where there are any.
    pub scales: Option<String>,
    /// What residual-compressed tokens are decoded with.
    pub codec: Option<Codec>,
    /// Items of the file.
    pub n_items: usize,
    /// What was written, and how far it is off.
    #[serde(flatten)]
    pub written: Written,
    /// How well rankings agree, where queries were given.
    pub agreement: Option<Agreement>,
}

impl Report {
    /// Prints it to standard output.
    pub(super) fn print(&self, form: ReportFormat) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if form == ReportFormat::Json {
            serde_json::to_writer(&mut out, self)?;
            return writeln!(out);
        }
        let Report { input, format, n_items, written, agreement, .. } = self;
        let Written { n_tokens, dim, bytes_before, bytes, ratio, .. } = written;
        let items = counted(*n_items as u64, "item", "items");
        let tokens = counted(*n_tokens as u64, "token", "tokens");
        write!(out, "{items}, {tokens} of {dim}: {input} to {format}")?;
        if let Some(scales) = &self.scales {
            write!(out, ", scales {scales}")?;
        }
        if let Some(codec) = &self.codec {
            write!(out, ", {codec}")?;
        }
        write!(out, "\nsize: {bytes_before} to {bytes} bytes")?;
        if let Some(Codec { bytes, .. }) = &self.codec {
            write!(out, " ({bytes} of them centroids and buckets)")?;
        }
        writeln!(out, ", {ratio:.3} times smaller")?;
        let Written { mean_error, max_error, .. } = written;
        writeln!(out, "elements: off by {mean_error:.2e} on average, {max_error:.2e} at most")?;
        if written.n_not_finite > 0 {
            let tokens = counted(written.n_not_finite as u64, "token has", "tokens have");
            writeln!(out, "{tokens} elements that are not finite: scores with them are NaN")?;
        }
        let Some(agreement) = agreement else { return Ok(()) };
        let Agreement { n_queries, mean_score_error, max_score_error, .. } = agreement;
        let queries = counted(*n_queries as u64, "query", "queries");
        writeln!(
            out,
            "scores of {queries}: off by {mean_score_error:.2e} on average, {max_score_error:.2e} at most"
        )?;
        if let (Some(mean), Some(least)) = (agreement.spearman, agreement.least_spearman) {
            writeln!(out, "rankings: Spearman's ρ {mean:.5} on average, {least:.5} at least")?;
        }
        if let Some(overlap) = agreement.top20_overlap {
            writeln!(out, "rankings: {:.2} % of the first 20 agree", 100.0 * overlap)?;
        }
        if let (Some(before), Some(after)) = (agreement.ndcg_before, agreement.ndcg_after) {
            let change = after - before;
            writeln!(out, "nDCG@10: {before:.4} before, {after:.4} after ({change:+.4})")?;
        }
        Ok(())
    }
}
