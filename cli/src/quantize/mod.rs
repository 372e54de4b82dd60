//! `maxsim quantize`: embeddings in, a compressed file and a report out.

mod agreement;
mod write;

use std::io::{self, Write};

use anyhow::{Context, Result, bail, ensure};
use maxsim::{Fp8, Int8, Int8Affine, TokenFormat};
use serde::Serialize;

use crate::args::{QuantizeArgs, ReportFormat};
use crate::input::{Format, TokenFile};
use crate::output::Destination;
use crate::qrels::Qrels;
use crate::rank::progress_bar;
pub use agreement::Agreement;
pub use write::Written;

/// What the command says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Format of the embeddings before.
    pub input: String,
    /// Format after.
    pub format: String,
    /// How scales are stored.
    pub scales: String,
    /// Items of the file.
    pub n_items: usize,
    /// What was written, and how far it is off.
    #[serde(flatten)]
    pub written: Written,
    /// How well rankings agree, where queries were given.
    pub agreement: Option<Agreement>,
}

/// Runs the command.
pub fn quantize(args: &QuantizeArgs) -> Result<()> {
    let path = args.output.display();
    ensure!(
        matches!(Format::of(&args.output), Ok(Format::Safetensors)),
        "--output {path}: the name must end in .safetensors"
    );
    let inputs = [&args.input].into_iter().chain(&args.queries).chain(&args.qrels);
    let destination =
        Destination::of(&args.output, inputs).with_context(|| format!("--output {path}"))?;
    ensure!(
        args.queries.is_none() || matches!(destination, Destination::File(_)),
        "--output {path}: it is not a file, and --queries need one that can be read again"
    );
    let file = TokenFile::open(&args.input, args.reading())?;
    let input = file.contents().format;
    ensure!(
        input.element().is_some(),
        "{}: the embeddings are {input} already; compress those that they were made of",
        args.input.display()
    );
    let queries = match &args.queries {
        Some(path) => Some(TokenFile::open(path, args.reading())?),
        None => None,
    };
    if let (Some(queries), Some(path)) = (&queries, &args.queries) {
        agreement::check(queries, &file).with_context(|| path.display().to_string())?;
    }
    let qrels = match (&args.qrels, &queries) {
        (Some(path), Some(queries)) => Some(Qrels::open(path, queries.n_items(), file.n_items())?),
        _ => None,
    };

    let progress = progress_bar(file.layout().rows(), "rows");
    let mut written = None;
    destination.write_with(|out| {
        written = Some(match args.format {
            TokenFormat::Int8 => write::write::<Int8>(&file, args.scales, out, &progress)?,
            TokenFormat::Int8Affine => {
                write::write::<Int8Affine>(&file, args.scales, out, &progress)?
            }
            TokenFormat::Fp8 => write::write::<Fp8>(&file, args.scales, out, &progress)?,
            TokenFormat::Element(element) => bail!("{element} is no compressed format"),
        });
        Ok(())
    })?;
    progress.finish_and_clear();
    let written = written.context("nothing was written")?;

    let agreement = match &queries {
        Some(queries) => {
            let compressed = TokenFile::open(&args.output, args.reading())?;
            Some(agreement::measure(queries, [&file, &compressed], qrels.as_ref())?)
        }
        None => None,
    };
    let report = Report {
        input: input.to_string(),
        format: args.format.to_string(),
        scales: args.scales.name().to_string(),
        n_items: file.n_items(),
        written,
        agreement,
    };
    print(&report, args.report).context("writing to standard output failed")
}

fn print(report: &Report, form: ReportFormat) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if form == ReportFormat::Json {
        serde_json::to_writer(&mut out, report)?;
        return writeln!(out);
    }
    let Report { input, format, scales, n_items, written, agreement } = report;
    let Written { n_tokens, dim, bytes_before, bytes, ratio, .. } = written;
    writeln!(
        out,
        "{n_items} items, {n_tokens} tokens of {dim}: {input} to {format}, scales {scales}"
    )?;
    writeln!(out, "size: {bytes_before} to {bytes} bytes, {ratio:.3} times smaller")?;
    let Written { mean_error, max_error, .. } = written;
    writeln!(out, "elements: off by {mean_error:.2e} on average, {max_error:.2e} at most")?;
    if written.n_not_finite > 0 {
        let n = written.n_not_finite;
        writeln!(out, "{n} tokens have elements that are not finite: scores with them are NaN")?;
    }
    let Some(agreement) = agreement else { return Ok(()) };
    let Agreement { n_queries, mean_score_error, max_score_error, .. } = agreement;
    writeln!(
        out,
        "scores of {n_queries} queries: off by {mean_score_error:.2e} on average, {max_score_error:.2e} at most"
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
