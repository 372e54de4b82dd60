//! Reads what `bench/campaign.py` and `bench/training.py` write, as far as the report needs it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A campaign on one GPU.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Record {
    pub gpu: Option<String>,
    #[serde(flatten)]
    pub facts: Facts,
    pub ptx_sha256: BTreeMap<String, String>,
    /// Matrix products by element type.
    pub roofs: BTreeMap<String, Timed>,
    pub rows: Vec<Row>,
    pub scaling: Vec<Point>,
    pub baselines: Vec<Baseline>,
    pub cold_start: BTreeMap<String, ColdStart>,
}

/// Where, when and how a record was measured.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub driver: Option<String>,
    pub date: Option<String>,
    pub protocol: Option<String>,
    pub versions: BTreeMap<String, String>,
}

/// A method's figures, or why there are none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Timed {
    pub ms: Option<f64>,
    pub iqr_ms: Option<f64>,
    pub warm_ms: Option<f64>,
    pub call_ms: Option<f64>,
    /// Host time of a call that is not waited for, from Python.
    pub enqueue_us: Option<f64>,
    /// Time to enqueue one call from Rust.
    pub enqueue_rust_us: Option<f64>,
    /// The first call, with whatever it compiles and tunes.
    pub first_call_s: Option<f64>,
    pub device_bytes: Option<f64>,
    /// Winners that are kept from the scores to the gradients.
    pub winner_bytes: Option<f64>,
    /// Cosine of each gradient with that of an f32 reference.
    pub cosines: Option<Vec<f64>>,
    /// Whether a second step gave the same bits.
    pub repeats: Option<bool>,
    pub largest_relative_error: Option<f64>,
    /// Largest error over the bound that the library states, for compressed tokens.
    pub largest_error_of_bound: Option<f64>,
    /// Largest relative excess of a coarse-to-fine score over the exact one; negative where none
    /// exceeds it.
    pub largest_excess: Option<f64>,
    /// How far they are below the exact scores in the mean, relative.
    pub mean_loss: Option<f64>,
    pub tflop_per_s: Option<f64>,
    pub error: Option<String>,
}

/// A line of the table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Row {
    pub case: String,
    pub name: String,
    pub element: String,
    pub flop: f64,
    pub bytes: f64,
    pub read_ms: Option<f64>,
    pub ours: Timed,
    pub peers: BTreeMap<String, Timed>,
    pub ours_ms: Option<f64>,
    pub best_peer: Option<String>,
    pub best_peer_ms: Option<f64>,
    pub x_best_peer: Option<f64>,
    pub limit_ms: Option<f64>,
    pub limit_is: Option<String>,
    pub of_limit: Option<f64>,
    /// Scores alone, of a training step.
    pub forward: Timed,
    /// Gradients alone, of a training step.
    pub backward: Timed,
    /// The gradients alone where every winner is token 0.
    pub backward_hot: Timed,
    /// Least time of the rows that gradients are summed from.
    pub gather_floor_ms: Option<f64>,
    /// The library's call on the same tokens in f16, for compressed documents.
    pub f16: Timed,
    /// Time of that call over the one on compressed documents.
    pub x_f16: Option<f64>,
    pub floors: Floors,
    /// The matrix product whose rate is the arithmetic's limit: f16, tf32, f32, ...
    pub rate: String,
    /// Our time over that of the plain variant of the case.
    pub x_plain: Option<f64>,
    pub targets: Targets,
    /// Whether other kernels than those of the record made it.
    pub earlier_kernels: bool,
    pub kernel: Option<String>,
    pub kernel_sha256: Option<String>,
}

/// Least times that single resources allow, for residual documents.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Floors {
    /// To read codes and residuals.
    pub memory_ms: Option<f64>,
    /// To gather the centroids' rows from the L2 cache.
    pub gather_ms: Option<f64>,
    /// To issue the instructions that decode.
    pub decode_ms: Option<f64>,
}

/// Targets: the first two at least, the others at most.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Targets {
    pub x: Option<f64>,
    pub limit: Option<f64>,
    pub plain: Option<f64>,
    /// Memory of a training step beside inputs, gradients and winners.
    pub workspace_mb: Option<f64>,
    /// Gradients' time over the least time of the rows that they are summed from.
    pub gather_floor: Option<f64>,
    /// Gradients' time where every winner is token 0, over that of the case.
    pub hot: Option<f64>,
}

/// A point of the series over the number of documents.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Point {
    pub n_docs: f64,
    pub doc_len: f64,
    pub results: BTreeMap<String, Timed>,
}

/// maxsim beside PyTorch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Baseline {
    pub case: String,
    pub results: BTreeMap<String, Timed>,
}

/// The first score of a process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ColdStart {
    pub open_ms: Option<f64>,
    pub first_score_ms: Option<f64>,
    pub second_score_ms: Option<f64>,
    pub error: Option<String>,
}

impl Row {
    /// The goals that the row has and misses, in words.
    pub fn missed(&self) -> Vec<String> {
        let x_best = "× the best peer";
        let mut words: Vec<String> = [
            missed(self.x_best_peer, self.targets.x, true, x_best),
            missed(self.of_limit, self.targets.limit, true, "of the limit"),
            missed(self.x_plain, self.targets.plain, false, "× the plain call"),
        ]
        .into_iter()
        .flatten()
        .collect();
        // Nowhere slower than a peer, whatever the row's own goal. But exact f32 is not what the
        // peers compute, who round to TF32.
        if self.targets.x.is_none() && self.rate != "f32" {
            words.extend(missed(self.x_best_peer, self.x_best_peer.map(|_| 0.98), true, x_best));
        }
        words
    }

    /// Whether the kernel that ran is not the one of the record's last campaign.
    pub fn is_of_earlier_build(&self, record: &Record) -> bool {
        match (&self.kernel, &self.kernel_sha256) {
            (Some(kernel), Some(sum)) => {
                record.ptx_sha256.get(&format!("{kernel}.ptx")) != Some(sum)
            }
            _ => false,
        }
    }
}

/// A goal that is missed, in words: a figure that is to be at least (or at most) so large.
pub fn missed(found: Option<f64>, goal: Option<f64>, is_least: bool, what: &str) -> Option<String> {
    let goal = goal?;
    match found {
        None => Some(format!("{what}: no figure, goal {goal:.2}")),
        Some(found) if is_least && found < goal || !is_least && found > goal => {
            Some(format!("{what} {found:.3}, goal {goal:.2}"))
        }
        Some(_) => None,
    }
}
