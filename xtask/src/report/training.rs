//! The page's section about training steps.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::markdown::{facts, failure, figure_of, goal, ms, peers, ratio, spread};
use super::record::{Record, Row, missed};

/// Unit of winners and workspace sizes.
const MEGABYTE: f64 = 1048576.0;

/// Goal of the cosine of each gradient with that of an f32 reference.
const COSINE_GOAL: f64 = 0.999999;

pub fn section(page: &mut String, record: &Record) {
    facts(page, &record.facts);
    goals(page, record);
    steps(page, record);
    backward_alone(page, record);
    if record.rows.iter().any(|row| row.earlier_kernels) {
        *page += "\n† Not measured since kernels changed.\n";
    }
    gradients(page, record);
}

/// The case's words, with a mark where the figures are of other kernels.
fn case(row: &Row) -> String {
    let mark = if row.earlier_kernels { " †" } else { "" };
    format!("{}{mark}", row.case)
}

fn goals(page: &mut String, record: &Record) {
    *page += "\n### Goals\n\n";
    let missed: Vec<String> = record
        .rows
        .iter()
        .filter_map(|row| {
            let words = row.missed_in_training();
            (!words.is_empty()).then(|| format!(" - {}: {}\n", row.case, words.join("; ")))
        })
        .collect();
    match &missed[..] {
        [] => *page += "Every goal is met.\n",
        missed => {
            *page += "Not met:\n\n";
            page.extend(missed.iter().map(String::as_str));
        }
    }
}

fn steps(page: &mut String, record: &Record) {
    *page += "\n### Steps\n\nMilliseconds on the device for scores and gradients: median \
              (interquartile range), caches cold. The traffic floor is the time to read the \
              documents once and to write their gradient once. Peak: MB (2²⁰ bytes) beyond inputs \
              and gradients; of maxsim the winners and what else the step takes. Goals in \
              brackets.\n\n\
              | case | maxsim | peers | × the fastest peer | of the traffic floor | peak of maxsim \
              | of the fastest peer |\n|---|---|---|---|---|---|---|\n";
    for row in &record.rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            case(row),
            spread(&row.ours),
            peers(row),
            goal(ratio(row.x_best_peer), row.targets.x),
            goal(ratio(row.of_limit), row.targets.limit),
            peak(row),
            row.best_peer_bytes().map_or("–".into(), |bytes| format!("{:.1}", bytes / MEGABYTE)),
        );
    }
}

/// Winners, and what the step takes beside them.
fn peak(row: &Row) -> String {
    let megabytes = |bytes: f64| format!("{:.1}", bytes / MEGABYTE);
    match (row.ours.winner_bytes, row.ours.device_bytes) {
        (Some(winners), Some(beside)) => {
            let most = row.targets.workspace_mb.map_or(String::new(), |mb| format!(" ({mb:.0})"));
            format!("{} + {}{most}", megabytes(winners), megabytes(beside))
        }
        _ => "–".to_string(),
    }
}

fn backward_alone(page: &mut String, record: &Record) {
    *page += "\n### Scores and gradients alone\n\nThe gather floor is the time of two gathers of a \
              row per winner from the L2 cache at 9.5 TB/s. The last column has the gradients' \
              time where every winner is token 0, over that of the case. Goals, at most, in \
              brackets.\n\n\
              | case | scores, ms | gradients, ms | gather floor, ms | × the floor | one winner |\n\
              |---|---|---|---|---|---|\n";
    for row in record.rows.iter().filter(|row| row.ours_ms.is_some()) {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            case(row),
            figure_of(&row.forward),
            figure_of(&row.backward),
            ms(row.gather_floor_ms),
            goal(ratio(row.of_gather_floor()), row.targets.gather_floor),
            goal(ratio(row.hot()), row.targets.hot),
        );
    }
}

fn gradients(page: &mut String, record: &Record) {
    let rows = || record.rows.iter().filter(|row| row.ours_ms.is_some());
    let names = |unlike: &dyn Fn(&Row) -> bool| -> Vec<&str> {
        let names: BTreeSet<&str> =
            rows().filter(|row| unlike(row)).map(|row| &row.case[..]).collect();
        names.into_iter().collect()
    };
    *page += "\n### The gradients\n\n";
    let cosines = rows().flat_map(|row| row.ours.cosines.iter().flatten());
    if let Some(least) = cosines.copied().min_by(f64::total_cmp) {
        let _ = writeln!(
            page,
            "The least cosine of a gradient with that of an f32 reference is {least:.7}, goal \
             {COSINE_GOAL}."
        );
    }
    match &names(&|row| row.ours.repeats == Some(false))[..] {
        [] => *page += "A second step gave the same bits in every case.\n",
        unlike => {
            let _ = writeln!(page, "A second step gave other bits: {}.", unlike.join("; "));
        }
    }
    for row in record.rows.iter().filter(|row| row.ours_ms.is_none()) {
        let _ = writeln!(page, "{}: {}.", row.case, failure(&row.ours));
    }
}

impl Row {
    /// Time of the gradients alone over the floor.
    fn of_gather_floor(&self) -> Option<f64> {
        Some(self.backward.ms? / self.gather_floor_ms?)
    }

    /// Time of the gradients where every winner is token 0, over their time.
    fn hot(&self) -> Option<f64> {
        Some(self.backward_hot.ms? / self.backward.ms?)
    }

    /// Memory of the fastest peer beyond inputs and gradients.
    fn best_peer_bytes(&self) -> Option<f64> {
        self.peers.get(self.best_peer.as_ref()?)?.device_bytes
    }

    /// The goals that the row has and misses, in words.
    fn missed_in_training(&self) -> Vec<String> {
        if self.ours_ms.is_none() {
            return vec![failure(&self.ours)];
        }
        let workspace = self.ours.device_bytes.map(|bytes| bytes / MEGABYTE);
        let least = self.ours.cosines.iter().flatten().copied().min_by(f64::total_cmp);
        let targets = &self.targets;
        let mut words: Vec<String> = [
            missed(self.x_best_peer, targets.x, true, "× the fastest peer"),
            missed(self.of_limit, targets.limit, true, "of the traffic floor"),
            missed(workspace, targets.workspace_mb, false, "MB beside the winners"),
            missed(self.of_gather_floor(), targets.gather_floor, false, "× the gather floor"),
            missed(self.hot(), targets.hot, false, "× as long where one token wins everywhere"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if let Some(least) = least.filter(|least| *least < COSINE_GOAL) {
            words.push(format!("cosine with f32 {least:.7}, goal {COSINE_GOAL}"));
        }
        if self.ours.repeats == Some(false) {
            words.push("a second step gave other bits".to_string());
        }
        words
    }
}
