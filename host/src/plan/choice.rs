//! Chooses the kernel that runs a problem, and keeps why the others do not: a pure function of
//! shapes and device limits.

use std::fmt;

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::FORWARD;
use maxsim_kernels::table::forward::Variant;

use super::consistent::agree;
pub(crate) use super::cost::n_tile_entries;
use super::cost::{DocumentLens, START_CLOCKS, centroid_clocks, cost, decoding_clocks};
use super::document_splits::{self, DocumentSplits};
use super::eligible::eligible;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::plan::limits::DeviceLimits;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::runtime::pool::n_threads;

/// The kernel that a call runs, and why not the others.
#[derive(Clone, Debug)]
#[must_use]
pub struct Plan {
    choice: Choice,
    rejected: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
enum Choice {
    Cpu,
    Kernel { chosen: Chosen, cost: f64, reason: String },
}

/// Kernel and splits that run on a CUDA device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub variant: &'static Variant,
    /// Document splits; `None` where documents are whole.
    pub splits: Option<DocumentSplits>,
    /// Number of centroids that documents are decoded from; 0 for other formats.
    pub n_centroids: u32,
}

impl Plan {
    /// The plan of the CPU engine.
    pub(crate) fn cpu(options: &ScoreOptions) -> Result<Plan> {
        if let Some(kernel) = &options.kernel {
            return Err(Error::Unsupported {
                what: format!("kernel {kernel} on the CPU"),
                why: "the CPU engine has no kernels to choose from; leave `kernel` unset".into(),
            });
        }
        check_splits(options)?;
        Ok(Plan { choice: Choice::Cpu, rejected: Vec::new() })
    }

    /// Chooses a kernel of the table: eligibility first, then the least cost, then
    /// the order of the table. A kernel named in `options` skips preference, never
    /// eligibility.
    pub fn choose(
        problem: &Problem<'_>,
        operand: impl Into<Operand>,
        limits: &DeviceLimits,
        access: [Access; 2],
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let operand = operand.into();
        if let Some(name) = &options.kernel
            && !FORWARD.iter().any(|row| row.name == name)
        {
            return Err(Error::Unsupported {
                what: format!("kernel {name}"),
                why: "there is no such kernel; `maxsim info --kernels` lists them".into(),
            });
        }
        check_splits(options)?;
        let winners = match options.consistent && !options.winners {
            true => Some(Plan::with_winners(problem, operand, limits, access, options)?),
            false => None,
        };
        let lens = DocumentLens::of(problem);
        let mut rejected = Vec::new();
        let mut best: Option<(f64, Chosen)> = None;
        for row in FORWARD {
            let forced = options.kernel.as_deref() == Some(row.name);
            if options.kernel.is_some() && !forced {
                continue;
            }
            let agrees = || agree(row, winners, problem);
            match eligible(row, problem, operand, limits, access, options).and_then(|()| agrees()) {
                Err(why) => rejected.push((row.name, why)),
                Ok(()) => {
                    let n_entries = n_tile_entries(row, problem);
                    let split = document_splits::choose(row, problem, n_entries, limits, options);
                    let whole = cost(row, problem, n_entries, &lens, limits);
                    let start = if row.schedule.is_contiguous() { 0.0 } else { START_CLOCKS };
                    let before = start
                        + centroid_clocks(row, problem, limits, access[1])
                        + decoding_clocks(row, problem, limits);
                    let cost = before
                        + split
                            .and_then(|split| split.clocks)
                            .map_or(whole, |split| split.min(whole));
                    let chosen = Chosen {
                        variant: row,
                        splits: split.map(|split| split.splits),
                        n_centroids: access[1].n_centroids,
                    };
                    match best {
                        Some((least, _)) if cost >= least => {
                            rejected.push((row.name, format!("costs more ({cost:.3e})")));
                        }
                        _ => {
                            if let Some((least, other)) = best.replace((cost, chosen)) {
                                let other = other.variant;
                                rejected.push((other.name, format!("costs more ({least:.3e})")));
                            }
                        }
                    }
                }
            }
        }
        let Some((cost, chosen)) = best else {
            let why = rejected
                .iter()
                .filter(|(name, _)| options.kernel.as_deref().is_none_or(|k| k == *name))
                .map(|(name, why)| format!("{name}: {why}"))
                .collect::<Vec<_>>()
                .join("; ");
            let what = format!("MaxSim of {operand} tokens of dim {}", problem.dim());
            return Err(Error::Unsupported { what, why });
        };
        let reason = match options.kernel {
            Some(_) => "asked for by name".to_string(),
            None => "least cost of the eligible rows".to_string(),
        };
        Ok(Plan { choice: Choice::Kernel { chosen, cost, reason }, rejected })
    }

    /// The kernel that finds winners, whose bits other calls are to have.
    fn with_winners(
        problem: &Problem<'_>,
        operand: Operand,
        limits: &DeviceLimits,
        access: [Access; 2],
        options: &ScoreOptions,
    ) -> Result<&'static Variant> {
        // What is asked for by name is for this call.
        let options = ScoreOptions { winners: true, kernel: None, ..options.clone() };
        let plan = Plan::choose(problem, operand, limits, access, &options)?;
        plan.variant().ok_or_else(|| Error::Unsupported {
            what: "the bits of a call with winners".into(),
            why: "no kernel finds them".into(),
        })
    }

    /// The kernel, or `None` for the CPU engine.
    pub fn variant(&self) -> Option<&'static Variant> {
        self.chosen().map(|chosen| chosen.variant)
    }

    /// Splits of every document; 1 = documents stay whole.
    pub fn document_splits(&self) -> usize {
        self.chosen().and_then(|chosen| chosen.splits).map_or(1, |splits| splits.n)
    }

    /// Kernel and splits that run on a CUDA device; `None` for the CPU engine.
    pub(crate) fn chosen(&self) -> Option<Chosen> {
        match &self.choice {
            Choice::Cpu => None,
            Choice::Kernel { chosen, .. } => Some(*chosen),
        }
    }

    /// Name of what runs: a kernel, or `cpu`.
    pub fn name(&self) -> &'static str {
        self.variant().map_or("cpu", |v| v.name)
    }

    /// The kernels that do not run, each with the reason.
    pub fn rejected(&self) -> &[(&'static str, String)] {
        &self.rejected
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            Choice::Cpu => write!(f, "cpu: {} threads", n_threads())?,
            Choice::Kernel { chosen: Chosen { variant: v, splits, .. }, cost, reason } => {
                write!(
                    f,
                    "{}: {reason}; tiles of {} query rows × {} document tokens, {} stages, \
                     {} threads, estimated cost {cost:.3e}",
                    v.name, v.query_tile, v.document_tile, v.stages, v.threads
                )?;
                if let Some(DocumentSplits { n, len }) = splits {
                    write!(f, "; {n} document splits of up to {len} tokens")?;
                }
            }
        }
        for (name, why) in &self.rejected {
            write!(f, "\n  not {name}: {why}")?;
        }
        Ok(())
    }
}

/// Writes the fields that [`fmt::Display`] prints. A plan is only written, never read.
#[cfg(feature = "serde")]
impl serde::Serialize for Plan {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = to.serialize_struct("Plan", 4)?;
        out.serialize_field("name", self.name())?;
        out.serialize_field("document_splits", &self.document_splits())?;
        out.serialize_field(
            "reason",
            &match &self.choice {
                Choice::Cpu => format!("{} threads", n_threads()),
                Choice::Kernel { reason, .. } => reason.clone(),
            },
        )?;
        out.serialize_field("rejected", &self.rejected)?;
        out.end()
    }
}

fn check_splits(options: &ScoreOptions) -> Result<()> {
    match options.document_splits {
        Some(0) => Err(Error::Shape {
            argument: "document_splits",
            expected: "1 or more, or None".into(),
            found: "0".into(),
        }),
        _ => Ok(()),
    }
}
