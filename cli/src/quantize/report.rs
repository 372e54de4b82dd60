//! The report of `maxsim quantize`, as text or JSON.

use std::io::{self, Write};

use maxsim::format::{QuantizeReport, ScaleType, TokenFormat};
use serde::Serialize;

use super::{Agreement, Codec, Written};
use crate::args::ReportFormat;
use crate::texts::counted;

/// Report of the command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Format of the embeddings before.
    pub input: String,
    /// Format after.
    pub format: String,
    /// How scales are stored, where there are any.
    pub scales: Option<String>,
    /// Codec that decodes residual-compressed tokens.
    pub codec: Option<Codec>,
    /// Items of the file.
    pub n_items: usize,
    /// Sizes and errors of what was written.
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
        let Some(agreement) = agreement else { return Ok(()) };
        let Agreement { n_queries, mean_score_error, max_score_error, .. } = agreement;
        let queries = counted(*n_queries as u64, "query", "queries");
        writeln!(
            out,
            "scores of {queries}: off by {mean_score_error:.2e} on average, {max_score_error:.2e} \
             at most"
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

/// Describes tokens that lost more than the rounding of their codes takes, a line each: those
/// `written` with scales of a type, and those that f16 scales would have clipped.
pub(super) fn losses(
    format: TokenFormat,
    scales: ScaleType,
    written: &Written,
    avoided: &QuantizeReport,
) -> Vec<String> {
    let clipped = |n_elements: u64, n_tokens: u64| {
        let elements = counted(n_elements, "element", "elements");
        format!("{elements} of {}", counted(n_tokens, "token", "tokens"))
    };
    let instead = match format.has_mins() {
        true => "use --format int8 --scales f32",
        false => "use --scales f32",
    };
    let mut said = Vec::new();
    if avoided.n_clipped > 0 {
        said.push(format!(
            "scales are f32: as f16 they would clip {}, by {:.2e} at most",
            clipped(avoided.n_clipped, avoided.n_clipped_tokens),
            avoided.largest_clip
        ));
    }
    if written.n_clipped > 0 {
        said.push(format!(
            "warning: {} clipped, by {:.2e} at most, as f16 scales are too small for them; \
             {instead}",
            clipped(written.n_clipped, written.n_clipped_tokens),
            written.largest_clip
        ));
    }
    if written.n_coarse_tokens > 0 {
        said.push(format!(
            "warning: {} of {} keep two bits or fewer, {} of them nothing but zeros, as their \
             elements are too small for {} scales; {}",
            written.n_coarse_tokens,
            counted(written.n_tokens as u64, "token", "tokens"),
            written.n_zeroed_tokens,
            scales.name(),
            if scales == ScaleType::F32 { "scale the embeddings up" } else { instead }
        ));
    }
    said
}
