//! The page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::record::{Facts, Record, Row, Timed};
use super::{COMPRESSED, Gpu, TRAINING, compressed, fidelity, literature, search, training};

/// Cases of the short table.
const SHORT: [&str; 10] = [
    "page-10k",
    "visual-10k",
    "medium-10k",
    "short-10k-300",
    "1k-1024-1024",
    "multi-32-180",
    "pages-32",
    "in-batch",
    "ragged-100k-cross",
    "candidates-100",
];

/// The five shapes whose geometric mean has a goal.
const MEAN_OF: &str = "1k-";
const MEAN_GOAL: f64 = 1.33;

/// Goals of the first score after the device is opened, in milliseconds, by kind of image.
const COLD_START_GOALS_MS: [(&str, f64); 2] = [("cubin", 50.0), ("ptx", 500.0)];

/// Goal of a call's cost on the host, in microseconds.
const ENQUEUE_GOAL_US: f64 = 8.0;

pub fn page(gpus: &[Gpu]) -> String {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `cargo xtask report` from `docs/measured/*/*.json`, which \
         `bench/campaign.py`, `bench/training.py`, `bench/operations`, `bench/search`, \
         `bench/cpu`, `bench/fidelity` and `bench/literature` make; not edited by hand.\n",
    );
    for gpu in gpus {
        for (title, record) in &gpu.records {
            let name = record.gpu.as_deref().unwrap_or(&gpu.folder);
            let _ = write!(page, "\n## {title}: {name}\n");
            match *title {
                TRAINING => training::section(&mut page, record),
                COMPRESSED => compressed::section(&mut page, record),
                _ => section(&mut page, &gpu.folder, record),
            }
        }
        for (title, record) in &gpu.with_goals {
            let name = record.card.as_deref().unwrap_or(&gpu.folder);
            let _ = write!(page, "\n## {title}: {name}\n");
            search::section(&mut page, record);
        }
        if let Some(record) = &gpu.fidelity {
            fidelity::section(&mut page, record);
        }
        if let Some(record) = &gpu.literature {
            literature::section(&mut page, &gpu.folder, record);
        }
    }
    page + literature::TABLES
}

/// Writes where, when and how the record was measured.
pub fn facts(page: &mut String, found: &Facts) {
    let versions = found.versions.iter().map(|(name, version)| format!("{name} {version}"));
    let mut facts =
        vec![found.driver.as_ref().map(|driver| format!("driver {driver}")), found.date.clone()];
    facts.extend(versions.map(Some));
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let _ = write!(page, "\n{}.\n", facts.join(" · "));
    if let Some(protocol) = &found.protocol {
        let _ = write!(page, "\nProtocol: {protocol}.\n");
    }
}

fn section(page: &mut String, folder: &str, record: &Record) {
    facts(page, &record.facts);
    let plot = |page: &mut String, words: &str, file: &str| {
        let _ = write!(page, "\n![{words}](measured/{folder}/{file})\n");
    };
    short(page, record);
    plot(page, "Speed-up over the faster peer by case", "speedup.svg");
    goals(page, record);
    all_cases(page, record);
    options(page, record);
    costs(page, record);
    roofs(page, record);
    if !record.rows.is_empty() {
        plot(page, "Arithmetic rate against arithmetic intensity, with the roofs", "roofline.svg");
    }
    if !record.scaling.is_empty() {
        scaling(page, record);
        plot(page, "Time against the number of documents", "documents.svg");
    }
    baselines(page, record);
    cold_start(page, record);
}

fn short(page: &mut String, record: &Record) {
    // A case's first row is its plain call.
    let rows = SHORT.iter().filter_map(|name| record.rows.iter().find(|row| row.name == *name));
    let rows: Vec<&Row> = rows.filter(|row| row.x_best_peer.is_some()).collect();
    if rows.is_empty() {
        return;
    }
    *page += "\n### In short\n\n| case | maxsim, ms | best peer, ms | × the best peer | of the \
              limit |\n|---|---|---|---|---|\n";
    for row in rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} ({}) | {} | {} |",
            row.case,
            ms(row.ours_ms),
            ms(row.best_peer_ms),
            row.best_peer.as_deref().unwrap_or("–"),
            ratio(row.x_best_peer),
            ratio(row.of_limit),
        );
    }
}

pub fn goals(page: &mut String, record: &Record) {
    let mut missed: Vec<String> = Vec::new();
    for row in &record.rows {
        let words = row.missed();
        if !words.is_empty() {
            missed.push(format!("{}: {}", row.case, words.join("; ")));
        }
        if let Some(us) = row.ours.enqueue_rust_us.filter(|us| *us > ENQUEUE_GOAL_US) {
            missed.push(format!("{}: {us:.1} µs to enqueue, goal {ENQUEUE_GOAL_US:.0}", row.case));
        }
    }
    let mean: Vec<f64> = record
        .rows
        .iter()
        .filter(|row| row.name.starts_with(MEAN_OF))
        .filter_map(|row| row.x_best_peer)
        .collect();
    *page += "\n### Goals\n\n";
    if !mean.is_empty() {
        let geometric = (mean.iter().map(|x| x.ln()).sum::<f64>() / mean.len() as f64).exp();
        let _ = writeln!(
            page,
            "Geometric mean over the {} shapes with 1000 documents: {geometric:.2} × the best \
             peer, goal {MEAN_GOAL:.2}.\n",
            mean.len()
        );
    }
    let old: BTreeSet<&str> = record
        .rows
        .iter()
        .filter(|row| row.is_of_earlier_build(record))
        .map(|row| row.case.as_str())
        .collect();
    if !old.is_empty() {
        let old: Vec<&str> = old.into_iter().collect();
        let _ =
            writeln!(page, "Measured with an earlier build of the kernel: {}.\n", old.join("; "));
    }
    if missed.is_empty() {
        *page += "Every goal is met.\n";
        return;
    }
    *page += "Not met:\n\n";
    for line in missed {
        let _ = writeln!(page, " - {line}");
    }
}

fn all_cases(page: &mut String, record: &Record) {
    *page += "\n### All cases\n\nMilliseconds on the device: median (interquartile range), caches \
              cold. The limit is the larger of the arithmetic at the rate of a cuBLAS product of \
              8192³ and the time of a kernel that only reads the documents. Goals in brackets.\n\n\
              | case | maxsim | peers | × the best peer | limit | of the limit |\n\
              |---|---|---|---|---|---|\n";
    for row in &record.rows {
        let _ = writeln!(page, "{}", figures(row));
    }
}

/// A row of the table of all cases.
pub fn figures(row: &Row) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} |",
        row.case,
        spread(&row.ours),
        peers(row),
        goal(ratio(row.x_best_peer), row.targets.x),
        limit(row),
        goal(ratio(row.of_limit), row.targets.limit),
    )
}

/// All peers' times.
pub fn peers(row: &Row) -> String {
    let peers: Vec<String> =
        row.peers.iter().map(|(name, timed)| format!("{name} {}", spread(timed))).collect();
    if peers.is_empty() { "–".to_string() } else { peers.join(" · ") }
}

/// The limit's time, and what it is.
pub fn limit(row: &Row) -> String {
    match (row.limit_ms, &row.limit_is) {
        (Some(limit), Some(by)) => format!("{} ({by})", ms(Some(limit))),
        _ => "–".to_string(),
    }
}

fn options(page: &mut String, record: &Record) {
    let rows: Vec<&Row> = record.rows.iter().filter(|row| row.x_plain.is_some()).collect();
    if rows.is_empty() {
        return;
    }
    *page += "\n### Against the plain call\n\n| case | maxsim, ms | × the plain call's time \
              (goal: at most) |\n|---|---|---|\n";
    for row in rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            row.case,
            ms(row.ours_ms),
            goal(ratio(row.x_plain), row.targets.plain),
        );
    }
}

pub fn costs(page: &mut String, record: &Record) {
    *page += "\n### Around the call\n\nmaxsim / best peer. Enqueue: host time of a call that is \
              not waited for (maxsim from Rust, then from Python). Whole call: from Python until \
              the scores are there, for maxsim with nothing prepared. First call: with whatever is \
              compiled and tuned. Error: largest relative one of a sample of documents, against \
              float64.\n\n\
              | case | warm, ms | enqueue, µs | whole call, ms | first call, s | memory, MB | \
              error |\n\
              |---|---|---|---|---|---|---|\n";
    for row in record.rows.iter().filter(|row| row.ours_ms.is_some()) {
        let none = Timed::default();
        let peer = row.best_peer.as_ref().and_then(|name| row.peers.get(name)).unwrap_or(&none);
        let both =
            |figure: &dyn Fn(&Timed) -> String| format!("{} / {}", figure(&row.ours), figure(peer));
        let rust = row.ours.enqueue_rust_us.map_or(String::new(), |us| format!("{us:.1}, "));
        let _ = writeln!(
            page,
            "| {} | {} | {rust}{} | {} | {} | {} | {} |",
            row.case,
            both(&|timed| ms(timed.warm_ms)),
            both(&|timed| timed.enqueue_us.map_or("–".into(), |us| format!("{us:.1}"))),
            both(&|timed| ms(timed.call_ms)),
            both(&|timed| timed.first_call_s.map_or("–".into(), |s| format!("{s:.1}"))),
            both(&|timed| timed.device_bytes.map_or("–".into(), |b| format!("{:.1}", b / 1e6))),
            both(&|timed| timed
                .largest_relative_error
                .map_or("–".into(), |e| format!("{e:.1e}"))),
        );
    }
}

pub fn roofs(page: &mut String, record: &Record) {
    if record.roofs.is_empty() {
        return;
    }
    *page += "\n### Roofs\n\nMatrix products of 8192³ on random data (cuBLAS)";
    if let Some(rate) = read_rate(record) {
        let _ = write!(page, "; the read-only kernel's best rate was {:.2} TB/s", rate / 1e12);
    }
    *page += ".\n\n| elements | TFLOP/s |\n|---|---|\n";
    for (element, timed) in &record.roofs {
        let rate = timed.tflop_per_s.map_or_else(|| failure(timed), |rate| format!("{rate:.0}"));
        let _ = writeln!(page, "| {element} | {rate} |");
    }
}

/// Bytes per second of the fastest read.
pub fn read_rate(record: &Record) -> Option<f64> {
    let rates = record.rows.iter().filter_map(|row| Some(row.bytes / row.read_ms? * 1e3));
    rates.max_by(f64::total_cmp)
}

fn scaling(page: &mut String, record: &Record) {
    let names: BTreeSet<&str> =
        record.scaling.iter().flat_map(|point| point.results.keys()).map(String::as_str).collect();
    let doc_len = record.scaling[0].doc_len;
    let _ = write!(
        page,
        "\n### One query of 32 tokens against n documents of {doc_len} tokens\n\n| n |"
    );
    for name in &names {
        let _ = write!(page, " {name}, ms |");
    }
    let _ = write!(page, "\n|---|{}\n", "---|".repeat(names.len()));
    for point in &record.scaling {
        let _ = write!(page, "| {} |", point.n_docs);
        for name in &names {
            let _ = write!(page, " {} |", point.results.get(*name).map_or("–".into(), figure_of));
        }
        *page += "\n";
    }
}

fn baselines(page: &mut String, record: &Record) {
    if record.baselines.is_empty() {
        return;
    }
    *page += "\n### Beside plain PyTorch\n\nThe shapes of the Flash-MaxSim paper, as context: \
              milliseconds and device memory beyond inputs.\n\n| case | method | ms | MB |\n\
              |---|---|---|---|\n";
    for baseline in &record.baselines {
        for (name, timed) in &baseline.results {
            let bytes =
                timed.device_bytes.map_or("–".into(), |bytes| format!("{:.1}", bytes / 1e6));
            let _ =
                writeln!(page, "| {} | {name} | {} | {bytes} |", baseline.case, figure_of(timed));
        }
    }
}

fn cold_start(page: &mut String, record: &Record) {
    if record.cold_start.is_empty() {
        return;
    }
    *page += "\n### The first score of a process\n\nMilliseconds, by what is loaded: machine code \
              (cubin), or PTX that the driver compiles.\n\n\
              | image | opening the device | from there to the first score | a second call |\n\
              |---|---|---|---|\n";
    for (image, start) in &record.cold_start {
        if let Some(error) = &start.error {
            let _ = writeln!(page, "| {image} | failed: {} | – | – |", cell(error));
            continue;
        }
        let wanted = COLD_START_GOALS_MS.iter().find(|(name, _)| name == image);
        let wanted = wanted.map_or(String::new(), |(_, goal)| format!(" (≤ {goal:.0})"));
        let one = |ms: Option<f64>| ms.map_or("–".to_string(), |ms| format!("{ms:.1}"));
        let _ = writeln!(
            page,
            "| {image} | {} | {}{wanted} | {} |",
            one(start.open_ms),
            one(start.first_score_ms),
            one(start.second_score_ms),
        );
    }
}

pub fn spread(timed: &Timed) -> String {
    match (timed.ms, timed.iqr_ms) {
        (Some(_), Some(iqr)) => format!("{} ({iqr:.4})", ms(timed.ms)),
        _ => failure(timed),
    }
}

pub fn figure_of(timed: &Timed) -> String {
    if timed.ms.is_some() { ms(timed.ms) } else { failure(timed) }
}

pub fn failure(timed: &Timed) -> String {
    timed.error.as_ref().map_or("–".to_string(), |error| format!("failed: {}", cell(error)))
}

/// The beginning of a message, which may stand in a table.
pub fn cell(message: &str) -> String {
    whole_cell(&message.chars().take(100).collect::<String>())
}

/// A text that may stand in a table, whole.
pub fn whole_cell(text: &str) -> String {
    text.replace('|', "/").replace(['\n', '<', '>'], " ")
}

pub fn ms(value: Option<f64>) -> String {
    match value {
        None => "–".to_string(),
        Some(ms) if ms < 1.0 => format!("{ms:.4}"),
        Some(ms) => format!("{ms:.3}"),
    }
}

pub fn ratio(value: Option<f64>) -> String {
    value.map_or("–".to_string(), |value| format!("{value:.2}"))
}

pub fn goal(found: String, goal: Option<f64>) -> String {
    goal.map_or(found.clone(), |goal| format!("{found} ({goal:.2})"))
}
