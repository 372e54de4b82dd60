//! An index folder of another library as a file of this tool's.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Codec;
use crate::args::{QuantizeArgs, ReportFormat};
use crate::finite;
use crate::output::Destination;
use crate::progress::progress_spinner;
use crate::residual::{read_index, write_into};
use crate::texts::counted;

/// Report about a converted index. There are no embeddings to compare with.
#[derive(Debug, Serialize)]
struct Report {
    format: &'static str,
    codec: Codec,
    n_items: usize,
    n_tokens: u64,
    dim: usize,
    bytes: u64,
}

/// Reads an index and writes its codes and buckets unchanged.
pub(super) fn convert(args: &QuantizeArgs, folder: &Path, destination: &Destination) -> Result<()> {
    let spinner = progress_spinner("reading the index");
    let tokens = read_index(folder);
    spinner.finish_and_clear();
    let tokens = tokens?;
    finite::check_residual(&tokens, folder, false)?;
    let order = args.bit_order.unwrap_or(tokens.order());
    let tokens = tokens.into_order(order);
    destination.write_with(|out| write_into(out, &tokens, None))?;
    let (layout, codec) = (tokens.layout(), Codec::of(&tokens));
    let report = Report {
        format: "plaid",
        n_items: layout.n_items(),
        n_tokens: layout.total_len(),
        dim: layout.dim(),
        bytes: tokens.size_bytes() + codec.bytes,
        codec,
    };
    report.print(args.report).context("writing to standard output failed")
}

impl Report {
    fn print(&self, form: ReportFormat) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if form == ReportFormat::Json {
            serde_json::to_writer(&mut out, self)?;
            return writeln!(out);
        }
        let Report { format, codec, n_items, n_tokens, dim, bytes } = self;
        let items = counted(*n_items as u64, "item", "items");
        let tokens = counted(*n_tokens, "token", "tokens");
        writeln!(out, "{items}, {tokens} of {dim}: index to {format}, {codec}")?;
        let of_codec = codec.bytes;
        writeln!(out, "size: {bytes} bytes ({of_codec} of them centroids and buckets)")
    }
}
