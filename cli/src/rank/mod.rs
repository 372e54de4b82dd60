//! `maxsim rank`: files in, a ranking out.

pub(crate) mod explain;
pub(crate) mod pairs;
pub mod queries;
pub mod screen;
pub mod search;
mod sides;
mod sources;
pub mod stream;
pub mod winners;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use maxsim::format::{ElementType, ScaleType, TokenFormat};
use maxsim::search::SearchOptions;
use maxsim::{Device, Devices, Ranked, Ranking, ScoreOptions};
use maxsim_kernels::table::forward::FORWARD;

use self::stream::{Outcome, Request};
use crate::args::{DeviceChoice, Format, RankArgs, Verify};
use crate::documents::{DocumentFile, Documents};
use crate::finite::{self, Checked};
use crate::input::{Change, TokenFile, settle};
use crate::judging::Judging;
use crate::judging::ids::{Ids, Side};
use crate::judging::metrics::{self, Metrics};
use crate::judging::qrels::Qrels;
use crate::output::{self, Destination, Results};
use crate::progress::progress_bar;
use crate::provenance::{self, Proof};
use crate::selection::Selected;
use crate::texts::{Keep, counted, printable};

/// Runs the command.
pub fn rank(args: &RankArgs) -> Result<()> {
    let destination = Destination::new(args)?;
    let verify = args.verify.unwrap_or_default();
    if let (Some(screen), true) = (&args.screen, verify != Verify::Never) {
        settle(screen);
        settle(&args.documents);
    }
    let queries = TokenFile::open_with(&args.queries, &args.files.files.queries())?;
    let queries = queries.with_weights(args.weights.as_deref(), args.mean)?;
    let document_file = DocumentFile::open_with(&args.documents, &args.files.documents())?;
    let documents = document_file.documents()?;
    let mut notes = Vec::new();
    let queries = checked(queries, &documents, &args.sides(), &mut notes)?;
    let screen = match &args.screen {
        Some(path) => Some(screen::open(path, args.files.files.reading(), &documents)?),
        None => None,
    };
    let proof = match &screen {
        Some(screen) => Some(screen::check(screen, &documents, verify)?),
        None => None,
    };
    let ids = [queries.ids(Side::Queries)?, document_file.ids(documents.n_items())?];
    let judging = judging(args, ids, screen.as_ref())?;
    let (selected, of_selection) =
        Selected::open(&args.selection, &judging.queries, &judging.documents)?;
    let scanned = match (&screen, &documents) {
        (Some(file), _) => Some(file),
        (None, Documents::Tokens(file)) => Some(*file),
        (None, Documents::Residual(..)) => None,
    };
    let query_scales = match scanned {
        Some(file) => queries::scales(&queries, file.contents().format, &mut notes)?,
        None => ScaleType::default(),
    };
    // The metrics look further than a short list.
    let top_k = args.n_listed().max(if judging.qrels.is_some() { metrics::DEPTH } else { 0 });
    let devices = sharing(args)?;
    let device = opened(args, &queries, scanned)?;
    let n_pairs = selected.n_pairs(queries.n_items(), documents.n_items());
    check_room(args, n_pairs)?;
    let progress = progress_bar(n_pairs, "pairs");
    let started = Instant::now();
    let request = Request {
        queries: &queries,
        documents: &documents,
        selected: &selected,
        device: &device,
        devices: devices.as_ref(),
        options: &ScoreOptions::default()
            .allow_tf32(args.allow_tf32)
            .normalize(args.normalize)
            .angular(args.angular)
            .kernel(args.kernel.as_deref()),
        query_scales,
        allow_infinite: args.allow_infinite,
        top_k,
        chunk_bytes: args.chunk_bytes,
        progress: &progress,
    };
    let outcome = outcome(&request, args, screen.as_ref().zip(proof));
    progress.finish_and_clear();
    let outcome = outcome?;
    let elapsed = started.elapsed();
    queries.check_unchanged(Change::Content)?;
    document_file.check_unchanged(Change::Content)?;
    let verified = screen.as_ref().filter(|_| verify != Verify::Never);
    if let (Some(screen), Documents::Tokens(documents)) = (verified, &documents) {
        provenance::check_unchanged(screen, documents)?;
    }
    let summary = Summary { request: &request, elapsed };
    notes.extend(of_selection.into_iter().map(|warning| format!("warning: {warning}")));
    publish(args, &destination, &judging, &summary, outcome, &notes)?;
    if let Some(note) = proof.map(|proof| proof.to_string()).filter(|note| !note.is_empty()) {
        say(&note);
    }
    Ok(())
}

/// Refuses more scores than memory has room for.
fn check_room(args: &RankArgs, n_pairs: usize) -> Result<()> {
    if !args.scores {
        return Ok(());
    }
    // A running top-k doubles its room when it is full.
    let bytes = n_pairs.saturating_mul(2 * size_of::<Ranked>());
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
        anyhow!(
            "--scores: {n_pairs} scores take {bytes} bytes of memory; use --top-k, or rank fewer \
             queries or documents at a time"
        )
    })
}

/// Ranks, and explains errors with files and rows.
fn outcome(
    request: &Request<'_>,
    args: &RankArgs,
    screen: Option<(&TokenFile, Proof)>,
) -> Result<Outcome> {
    let ranked = || {
        let mut outcome = match screen {
            Some((screen, proof)) => screen::rank(request, screen, proof, search_options(args))?,
            None => stream::rank(request)?,
        };
        if args.winners {
            let (winners, calls) = winners::find(request, &outcome.rankings, args.n_listed())?;
            outcome.winners = Some(winners);
            outcome.calls.add(calls);
        }
        Ok(outcome)
    };
    ranked().map_err(|error| {
        let file = match request.documents {
            Documents::Tokens(file) => Some(*file),
            Documents::Residual(..) => None,
        };
        let files: Vec<&TokenFile> =
            file.into_iter().chain(screen.map(|(screen, _)| screen)).collect();
        explain::scoring(error, request.queries, &args.documents, &files)
    })
}

/// Reads names of queries and documents, and the relevant documents.
fn judging(args: &RankArgs, ids: [Ids; 2], screen: Option<&TokenFile>) -> Result<Judging> {
    let keep = if args.format == Format::Json { Keep::Whole } else { Keep::Beginning };
    let texts = args.texts.as_deref().map(|path| (path, keep));
    let [queries, documents] = ids;
    let judging = Judging::open(&args.judging, texts, queries, documents)?;
    if let Some(screen) = screen {
        judging.documents.check_same(&screen.ids(Side::Documents)?)?;
    }
    if args.format == Format::Trec {
        judging.queries.check_columns()?;
        judging.documents.check_columns()?;
    }
    Ok(judging)
}

/// How --screen is searched.
fn search_options(args: &RankArgs) -> SearchOptions {
    let default = SearchOptions::default();
    let n_candidates = args.shortlist.unwrap_or(default.n_candidates);
    SearchOptions::default().n_candidates(n_candidates).exact(args.exact)
}

/// The devices that share the documents, where there are to be several.
fn sharing(args: &RankArgs) -> Result<Option<Devices>> {
    if args.device != DeviceChoice::CudaAll {
        return Ok(None);
    }
    // Without a GPU these are the CPU.
    let _ = args.device.open()?;
    Ok(Some(Devices::all()))
}

/// Opens the device, and checks that it has the kernel that is asked for and can score the
/// `scanned` documents.
fn opened(args: &RankArgs, queries: &TokenFile, scanned: Option<&TokenFile>) -> Result<Device> {
    let device = match (args.device, scanned) {
        (DeviceChoice::Auto, Some(file)) => {
            let (device, format) = (DeviceChoice::Auto.open()?, file.contents().format);
            let scored = queries::query_format(queries.contents().format, format);
            if device.can_score(scored, format) { device } else { Device::cpu() }
        }
        (choice, _) => choice.open()?,
    };
    if let Some(name) = &args.kernel {
        check_kernel(name, &device)?;
    }
    Ok(device)
}

/// Writes the ranking, and then the notes about it.
fn publish(
    args: &RankArgs,
    destination: &Destination,
    judging: &Judging,
    summary: &Summary<'_>,
    outcome: Outcome,
    notes: &[String],
) -> Result<()> {
    let qrels = judging.qrels.as_ref();
    let metrics = qrels.map(|qrels| Metrics::new(&outcome.rankings, qrels));
    let report = summary.line(&outcome);
    let rankings = shortened(outcome.rankings, args.n_listed());
    let proven = outcome.search.map(|search| shortest(search.proven, args.n_listed()));
    let (proven, winners) = (proven.as_deref(), outcome.winners.as_deref());
    let distances = args.angular;
    let results = Results { rankings: &rankings, judging, metrics, proven, winners, distances };
    destination.write(args.format, &results)?;
    // The ranking is out, so a closed stderr does not matter.
    notes.iter().for_each(|note| say(note));
    say(&report);
    if let (Format::Trec, Some(metrics)) = (args.format, metrics) {
        say(&metrics.to_string());
    }
    let of_files = summary.request.queries.warnings().chain(summary.request.documents.warnings());
    let of_qrels = qrels.map_or(&[][..], Qrels::warnings).iter().cloned();
    let warnings = of_files.chain(of_qrels).chain(output::warning(args.format, &results));
    warnings.for_each(|warning| say(&format!("warning: {warning}")));
    Ok(())
}

/// The files that a call is made of, and what may be done to make them agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedSides<'a> {
    /// Names for messages.
    pub queries: &'a Path,
    pub documents: &'a Path,
    /// Whether queries are converted to the documents' type.
    pub convert: bool,
    /// Whether infinite elements are taken.
    pub allow_infinite: bool,
}

impl RankArgs {
    fn sides(&self) -> CheckedSides<'_> {
        let RankArgs { queries, documents, convert, allow_infinite, .. } = self;
        CheckedSides { queries, documents, convert: *convert, allow_infinite: *allow_infinite }
    }
}

/// Checks that queries are finite and can be scored with the documents, and converts them to their
/// element type where that was asked for. Notes about it are added to `notes`.
pub(crate) fn checked(
    mut queries: TokenFile,
    documents: &Documents<'_>,
    args: &CheckedSides<'_>,
    notes: &mut Vec<String>,
) -> Result<TokenFile> {
    Checked::new(&queries, "query", args.allow_infinite).check()?;
    let element = match documents {
        Documents::Tokens(file) => file.contents().format.element(),
        Documents::Residual(tokens, _) => {
            finite::check_residual(tokens, args.documents, args.allow_infinite)?;
            None
        }
    };
    if let (true, Some(element), Some(_)) =
        (args.convert, element, queries.contents().format.element())
    {
        queries = queries::converted(queries, element, notes)?;
    }
    check_agreement(args, &queries, documents)?;
    Ok(queries)
}

/// Prints a line on stderr. Notes come when all is done, so that a failure is one line.
pub(crate) fn say(line: &str) {
    for line in line.lines() {
        let _ = writeln!(std::io::stderr(), "{}", printable(line));
    }
}

fn check_agreement(
    args: &CheckedSides<'_>,
    queries: &TokenFile,
    documents: &Documents<'_>,
) -> Result<()> {
    let q = queries.contents();
    let names = || format!("{} and {}", args.queries.display(), args.documents.display());
    let is_possible = match documents {
        Documents::Tokens(file) => match (q.format, file.contents().format) {
            (TokenFormat::Element(q), TokenFormat::Element(d)) => q == d,
            // Queries can be compressed on the way.
            (TokenFormat::Element(_), _) => true,
            (q, d) => q.is_scorable_with(d),
        },
        // Documents are decoded on the way.
        Documents::Residual(..) => q.format.element().is_some(),
    };
    ensure!(
        is_possible,
        "{}: queries are {} and documents {}; such documents take {} queries{}",
        names(),
        q.format,
        documents.format_name(),
        takes(documents),
        match (q.format, documents) {
            (TokenFormat::Element(_), Documents::Tokens(_)) => ": use --convert",
            _ => "",
        }
    );
    ensure!(
        q.layout.dim() == documents.layout().dim(),
        "{}: queries have dim {} and documents {}; they must come from one model",
        names(),
        q.layout.dim(),
        documents.layout().dim()
    );
    Ok(())
}

/// Formats of the queries that documents are ranked for.
fn takes(documents: &Documents<'_>) -> String {
    let elements = "f16, bf16 or f32";
    let Documents::Tokens(file) = documents else { return elements.to_string() };
    match file.contents().format {
        TokenFormat::Element(element) => element.to_string(),
        // f32 queries are always compressed.
        codes => format!("{}, {elements}", queries::query_format(ElementType::F32.into(), codes)),
    }
}

fn check_kernel(name: &str, device: &Device) -> Result<()> {
    let is_there = FORWARD.iter().any(|row| row.name == name);
    ensure!(is_there, "--kernel {name}: no such kernel; `maxsim info --kernels` lists them");
    let is_gpu = device.ordinal().is_some();
    ensure!(is_gpu, "--kernel {name}: the CPU has no kernels; leave --kernel out");
    Ok(())
}

fn shortened(mut rankings: Vec<Ranking>, top_k: usize) -> Vec<Ranking> {
    for ranking in &mut rankings {
        ranking.ranked.truncate(top_k);
    }
    rankings
}

fn shortest(mut lens: Vec<usize>, top_k: usize) -> Vec<usize> {
    lens.iter_mut().for_each(|len| *len = top_k.min(*len));
    lens
}

/// Summary of a run: device, kernels and speed.
struct Summary<'a> {
    request: &'a Request<'a>,
    elapsed: Duration,
}

impl Summary<'_> {
    fn line(&self, outcome: &Outcome) -> String {
        let Request { documents, selected, device, devices, .. } = *self.request;
        let (queries, format_name) = (self.request.queries.layout(), documents.format_name());
        let documents = documents.layout();
        let n_pairs = selected.n_pairs(queries.n_items(), documents.n_items()) as u64;
        let selected = selected.documents(documents.n_items());
        let devices = devices.map_or(std::slice::from_ref(device), Devices::devices);
        let devices: Vec<String> = devices.iter().map(Device::to_string).collect();
        let of_all = match (selected.len(), documents.n_items()) {
            (n_selected, n_all) if n_selected < n_all => format!("{n_selected} of "),
            _ => String::new(),
        };
        let n_tokens: usize = selected.iter().map(|&id| documents.item_len(id as usize)).sum();
        let seconds = self.elapsed.as_secs_f64();
        let mut line = format!(
            "{} × {of_all}{} ({}; {} × {n_tokens} tokens of {} {}) in {seconds:.3} s, {:.3e} \
             pairs/s, on {}",
            counted(queries.n_items() as u64, "query", "queries"),
            counted(documents.n_items() as u64, "document", "documents"),
            counted(n_pairs, "pair", "pairs"),
            queries.total_len(),
            queries.dim(),
            format_name,
            n_pairs as f64 / seconds.max(1e-9),
            devices.join(" and "),
        );
        if device.ordinal().is_some() {
            let kernels = outcome.calls.kernels.join(" and ");
            line += &format!(" ({}) with {kernels}", device.name());
        }
        if outcome.calls.n_chunks > 1 {
            line += &format!(", in {} chunks", outcome.calls.n_chunks);
        }
        if let Some(search) = &outcome.search {
            let n_places: usize = outcome.rankings.iter().map(|r| r.ranked.len()).sum();
            let n_proven: usize = search.proven.iter().sum();
            line += &format!(
                "; {} of the pairs scored again, {n_proven} of {n_places} places proven",
                search.n_rescored
            );
        }
        let is_empty = |&&id: &&u32| !documents.has_tokens(id as usize);
        let n_empty = selected.iter().filter(is_empty).count() as u64;
        if n_empty > 0 {
            let documents = counted(n_empty, "document", "documents");
            let rank = if n_empty == 1 { "ranks" } else { "rank" };
            line += &format!("; {documents} without tokens {rank} last");
        }
        line
    }
}
