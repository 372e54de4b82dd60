//! `maxsim quantize`: embeddings in, a compressed file and a report out.

mod agreement;
mod errors;
mod index;
mod plaid;
mod report;
mod write;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::{ElementType, ScaleType, TokenFormat, with_format};
use maxsim::residual::{Nearest, TrainOptions};

use crate::args::{Compression, QuantizeArgs};
use crate::documents::{DocumentFile, Documents};
use crate::finite::{Checked, Refused};
use crate::input::{Change, Format, TokenFile, settle};
use crate::judging::Judging;
use crate::judging::ids::Side;
use crate::judging::qrels::Qrels;
use crate::output::Destination;
use crate::progress::progress_bar;
use crate::provenance::{Notes, remember_written, source_of};
use crate::rank::explain::{self, BadScore};
use crate::rank::queries;
use crate::rank::say;
use crate::residual::write_into;
use crate::texts::chain;
pub use agreement::Agreement;
pub use errors::{Errors, Written};
pub use plaid::{Codec, compress};
pub use report::Report;
use write::{Clipped, Clips, Found};

/// Runs the command.
pub fn quantize(args: &QuantizeArgs) -> Result<()> {
    check_options(args)?;
    let path = args.output.display();
    ensure!(
        matches!(Format::of(&args.output), Ok(Format::Safetensors)),
        "--output {path}: the name must end in .safetensors"
    );
    let inputs = args.input.iter().chain(&args.queries).chain(args.judging.inputs());
    let inputs = inputs.chain(args.files.inputs());
    let destination =
        Destination::of(&args.output, inputs).with_context(|| format!("--output {path}"))?;
    ensure!(
        args.queries.is_none() || matches!(destination, Destination::File(_)),
        "--output {path}: it is not a regular file, and --queries needs one that can be read back"
    );
    let input_path = match (&args.input, &args.index) {
        (Some(path), _) => path,
        (None, Some(folder)) => return index::convert(args, folder, &destination),
        (None, None) => bail!("give --input or --index"),
    };
    settle(input_path);
    let file = TokenFile::open_with(input_path, &args.files.input())?;
    let input = file.contents().format;
    ensure!(
        input.element().is_some(),
        "{}: the embeddings are {input} already; give the original embeddings",
        input_path.display()
    );
    let mut notes = Vec::new();
    let queries = match &args.queries {
        Some(path) => Some(open_queries(path, &file, args, &mut notes)?),
        None => None,
    };
    let qrels = match &queries {
        Some(queries) => {
            let (query_ids, document_ids) =
                (queries.ids(Side::Queries)?, file.ids(Side::Documents)?);
            Judging::open(&args.judging, None, query_ids, document_ids)?.qrels
        }
        None => None,
    };

    let Compressed { format, scales, codec, written, said } = match args.format {
        Compression::Codes(format) => codes(&file, format, args, &destination)?,
        Compression::Plaid => residuals(&file, input_path, args, &destination)?,
    };

    notes.extend(said);
    let agreement = match &queries {
        Some(queries) => {
            let after = DocumentFile::open(&args.output, args.files.files.reading())?;
            let files = [&Documents::Tokens(&file), &after.documents()?];
            Some(agreement::measure(queries, files, qrels.as_ref()))
        }
        None => None,
    };
    // The file is written, so a score that is not finite costs the comparison alone.
    let agreement = match (agreement.transpose(), &queries) {
        (Err(error), Some(queries)) if error.is::<BadScore>() => {
            let why = explain::scoring(error, queries, input_path, &[&file]);
            notes.push(format!("warning: rankings were not compared: {}", chain(&why)));
            None
        }
        (agreement, _) => agreement?,
    };
    let n_items = file.n_items();
    let input = input.to_string();
    let report = Report { input, format, scales, codec, n_items, written, agreement };
    report.print(args.report).context("writing to standard output failed")?;
    // The report is out, so a closed stderr does not matter.
    notes.iter().for_each(|note| say(note));
    let of_files = file.warnings().chain(queries.iter().flat_map(TokenFile::warnings));
    let warnings = of_files.chain(qrels.iter().flat_map(Qrels::warnings).cloned());
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Opens the queries to compare rankings with, converted where that was asked for.
fn open_queries(
    path: &Path,
    file: &TokenFile,
    args: &QuantizeArgs,
    notes: &mut Vec<String>,
) -> Result<TokenFile> {
    let mut queries = TokenFile::open_with(path, &args.files.files.queries())?;
    Checked::finite(&queries, "query").check()?;
    if let (true, Some(element)) = (args.convert, file.contents().format.element()) {
        queries = queries::converted(queries, element, notes)?;
    }
    agreement::check(&queries, file).with_context(|| path.display().to_string())?;
    Ok(queries)
}

/// Refuses options that the chosen format does not have.
fn check_options(args: &QuantizeArgs) -> Result<()> {
    ensure!(
        args.judging.qrels.is_some()
            || args.judging.query_ids.is_none() && args.judging.document_ids.is_none(),
        "--query-ids and --document-ids are for --qrels"
    );
    if args.format == Compression::Plaid {
        ensure!(args.scales.is_none(), "--scales is not for --format plaid, which has none");
        return Ok(());
    }
    let given = [
        ("--index", args.index.is_some()),
        ("--nbits", args.nbits.is_some()),
        ("--centroids", args.centroids.is_some()),
        ("--seed", args.seed.is_some()),
        ("--bit-order", args.bit_order.is_some()),
        ("--keep-lengths", args.keep_lengths),
    ];
    match given.into_iter().find(|&(_, is_given)| is_given) {
        Some((option, _)) => bail!("{option} is only for --format plaid"),
        None => Ok(()),
    }
}

/// A compressed file.
struct Compressed {
    format: String,
    scales: Option<String>,
    codec: Option<Codec>,
    written: Written,
    /// Messages about tokens that lost more than rounding takes.
    said: Vec<String>,
}

/// Writes codes of a byte with scales.
fn codes(
    file: &TokenFile,
    format: TokenFormat,
    args: &QuantizeArgs,
    destination: &Destination,
) -> Result<Compressed> {
    let progress = progress_bar(file.layout().rows(), "rows");
    let mut how = match args.scales {
        Some(scales) => (scales, Clips::Take),
        None if format.has_mins() => (ScaleType::F16, Clips::Take),
        None => (ScaleType::F16, Clips::Refuse),
    };
    let found = loop {
        let found = with_format!(format, {
            codes F => write::write::<F>(file, how, destination, &progress),
            other => bail!("{other} is not a format that is quantised row by row"),
        });
        match found {
            Ok(found) => break found,
            Err(error) if error.is::<Clipped>() => how = (ScaleType::F32, Clips::Avoid),
            // This error names the file itself, which is not the output.
            Err(error) => match error.downcast::<Refused>() {
                Ok(refused) => bail!(refused),
                Err(error) => return Err(error),
            },
        }
        progress.reset();
    };
    progress.finish_and_clear();
    let Found { written, avoided, notes } = found;
    if let (true, Some(codes)) = (destination.is_file(), notes.codes) {
        remember_written(&args.output, &codes);
    }
    let said = report::losses(format, how.0, &written, &avoided);
    let (format, scales) = (format.to_string(), Some(how.0.name().to_string()));
    Ok(Compressed { format, scales, codec: None, written, said })
}

/// Writes residual-compressed tokens.
fn residuals(
    file: &TokenFile,
    path: &Path,
    args: &QuantizeArgs,
    destination: &Destination,
) -> Result<Compressed> {
    Checked::finite(file, "item").check()?;
    let usual = TrainOptions::default();
    let element = file.contents().format.element().unwrap_or(usual.centroid_element);
    let encode = usual
        .encode
        .order(args.bit_order.unwrap_or(usual.encode.order))
        .nearest(if args.keep_lengths { Nearest::Distance } else { Nearest::Dot });
    let options = usual
        .nbits(args.nbits.unwrap_or(usual.nbits))
        .n_centroids(args.centroids)
        .seed(args.seed.unwrap_or(usual.seed))
        .normalize(!args.keep_lengths)
        // f16 is finer than bf16 near 1, but other lengths may be beyond it.
        .centroid_element(if args.keep_lengths { element } else { ElementType::F16 })
        .encode(encode);
    let compressed = compress(file, &options).with_context(|| path.display().to_string());
    let (tokens, errors) = compressed?;
    let layout = file.layout();
    let before = (layout.rows() * layout.dim() * element.size_bytes()) as u64;
    let notes = Notes {
        element: element.name().to_owned(),
        source: source_of(file)?,
        identity: file.identity(),
        codes: None,
        ids: file.ids(Side::Documents)?.note()?,
    };
    destination.write_with(|out| {
        file.check_unchanged(Change::Content)?;
        write_into(out, &tokens, Some(&notes))
    })?;
    let codec = Codec::of(&tokens);
    let written = Written::new(errors, layout.dim(), [before, tokens.size_bytes() + codec.bytes]);
    Ok(Compressed {
        format: "plaid".to_string(),
        scales: None,
        codec: Some(codec),
        written,
        said: Vec::new(),
    })
}
