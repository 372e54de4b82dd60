//! Which kernel runs a problem, and why: a pure function of shapes and device limits.

use std::fmt;

use maxsim_kernels::variants::{Arch, FORWARD, Variant};

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::scores::ScoreOptions;

/// What eligibility needs to know of a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Compute capability (major, minor).
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: usize,
    /// Shared memory that a block may opt in to, in bytes.
    pub shared_bytes: usize,
}

/// How a matrix in device memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the first element.
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
}

impl Access {
    /// Access to a matrix that this library uploads: aligned base, pitch rounded up to 16 bytes.
    pub fn uploaded(dim: usize, element: ElementType) -> Access {
        let row_bytes = (dim * element.size_bytes()) as u64;
        Access { base: 0, pitch_bytes: row_bytes.next_multiple_of(16) }
    }

    /// Whether rows start on 16-byte boundaries, as `cp.async` and TMA need.
    pub fn is_aligned(&self) -> bool {
        self.base.is_multiple_of(16) && self.pitch_bytes.is_multiple_of(16)
    }
}

/// The kernel that a call runs, and why not the others.
#[derive(Clone, Debug)]
pub struct Plan {
    choice: Choice,
    rejected: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
enum Choice {
    Cpu { n_threads: usize },
    Kernel { variant: &'static Variant, cost: f64, reason: String },
}

impl Plan {
    /// The plan of the CPU engine.
    pub(crate) fn cpu(options: &ScoreOptions, n_threads: usize) -> Result<Plan> {
        if let Some(kernel) = &options.kernel {
            return Err(Error::Unsupported {
                what: format!("kernel {kernel} on the CPU"),
                why: "the CPU engine has no kernel rows; leave `kernel` unset".into(),
            });
        }
        Ok(Plan { choice: Choice::Cpu { n_threads }, rejected: Vec::new() })
    }

    /// Chooses a row of the variant table: eligibility first, then the least cost, then
    /// the order of the table. A kernel named in `options` skips preference, never
    /// eligibility.
    pub fn choose(
        problem: &Problem<'_>,
        element: ElementType,
        limits: &DeviceLimits,
        queries: Access,
        documents: Access,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        if let Some(name) = &options.kernel
            && !FORWARD.iter().any(|row| row.name == name)
        {
            return Err(Error::Unsupported {
                what: format!("kernel {name}"),
                why: "the variant table has no such row; `maxsim info` lists them".into(),
            });
        }
        let mut rejected = Vec::new();
        let mut best: Option<(f64, &'static Variant)> = None;
        for row in FORWARD {
            let forced = options.kernel.as_deref() == Some(row.name);
            if options.kernel.is_some() && !forced {
                continue;
            }
            match eligible(row, problem, element, limits, queries, documents, options) {
                Err(why) => rejected.push((row.name, why)),
                Ok(()) => {
                    let cost = cost(row, problem);
                    match best {
                        Some((least, _)) if cost >= least => {
                            rejected.push((row.name, format!("costs more ({cost:.3e})")));
                        }
                        _ => {
                            if let Some((least, other)) = best.replace((cost, row)) {
                                rejected.push((other.name, format!("costs more ({least:.3e})")));
                            }
                        }
                    }
                }
            }
        }
        let Some((cost, variant)) = best else {
            let why = rejected
                .iter()
                .filter(|(name, _)| options.kernel.as_deref().is_none_or(|k| k == *name))
                .map(|(name, why)| format!("{name}: {why}"))
                .collect::<Vec<_>>()
                .join("; ");
            let what = format!("MaxSim of {element} tokens of dim {}", problem.dim());
            return Err(Error::Unsupported { what, why });
        };
        let reason = match options.kernel {
            Some(_) => "asked for by name".to_string(),
            None => "least cost of the eligible rows".to_string(),
        };
        Ok(Plan { choice: Choice::Kernel { variant, cost, reason }, rejected })
    }

    /// The row of the variant table, or `None` for the CPU engine.
    pub fn variant(&self) -> Option<&'static Variant> {
        match &self.choice {
            Choice::Cpu { .. } => None,
            Choice::Kernel { variant, .. } => Some(variant),
        }
    }

    /// Name of what runs: a kernel, or `cpu`.
    pub fn name(&self) -> &'static str {
        self.variant().map_or("cpu", |v| v.name)
    }

    /// The rows that do not run, each with the reason.
    pub fn rejected(&self) -> &[(&'static str, String)] {
        &self.rejected
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            Choice::Cpu { n_threads } => write!(f, "cpu: {n_threads} threads")?,
            Choice::Kernel { variant: v, cost, reason } => write!(
                f,
                "{}: {reason}; tiles of {} query rows × {} document tokens, {} stages, {} threads, estimated cost {cost:.3e}",
                v.name, v.query_tile, v.document_tile, v.stages, v.threads
            )?,
        }
        for (name, why) in &self.rejected {
            write!(f, "\n  not {name}: {why}")?;
        }
        Ok(())
    }
}

/// May this compiled kernel run this problem? If not, why.
fn eligible(
    row: &Variant,
    problem: &Problem<'_>,
    element: ElementType,
    limits: &DeviceLimits,
    queries: Access,
    documents: Access,
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    let dim = problem.dim();
    if row.element != element {
        return Err(format!("works on {}", row.element));
    }
    if row.winners != options.winners {
        return Err(if row.winners { "finds winners" } else { "finds no winners" }.into());
    }
    if !row.arch.runs_on(limits.capability) {
        let (major, minor) = limits.capability;
        return Err(format!(
            "{} code does not run on compute capability {major}.{minor}",
            row.arch.target()
        ));
    }
    if dim > row.dim_max {
        return Err(format!("dim is at most {}", row.dim_max));
    }
    if row.shared_bytes(dim) > limits.shared_bytes {
        return Err(format!(
            "needs {} bytes of shared memory, the device has {}",
            row.shared_bytes(dim),
            limits.shared_bytes
        ));
    }
    if row.arch == Arch::Sm90a {
        if !dim.is_multiple_of(8) {
            return Err("TMA needs a dim that is a multiple of 8".into());
        }
        for (name, access) in [("queries", queries), ("documents", documents)] {
            if !access.is_aligned() {
                return Err(format!("TMA needs 16-byte aligned rows, the {name} are not"));
            }
        }
    }
    Ok(())
}

/// Tensor-core clocks that the tiles take, padding included, per multiprocessor-second of
/// the slower instruction set. Only ratios matter.
fn cost(row: &Variant, problem: &Problem<'_>) -> f64 {
    let padded = |lens: &mut dyn Iterator<Item = usize>, tile: usize| -> f64 {
        lens.map(|len| (len.div_ceil(tile) * tile) as f64).sum()
    };
    let queries = problem.queries();
    let documents = problem.documents();
    let q = padded(&mut (0..queries.n_items()).map(|i| queries.item_len(i)), row.query_tile);
    let d = padded(&mut (0..documents.n_items()).map(|i| documents.item_len(i)), row.document_tile);
    // Pairs are spread as in a cross product: only the kernel's padding differs.
    let rate = match (row.arch, row.element) {
        // Multiply-adds per clock and multiprocessor, as a share of peak seen in practice.
        // With 128 query rows the tensor cores read shared memory at its full rate.
        (Arch::Sm90a, _) if row.query_tile < 256 => 2048.0 * 0.55,
        (Arch::Sm90a, _) => 2048.0 * 0.8,
        (Arch::Sm80, ElementType::F32) => 64.0 * 0.3,
        (Arch::Sm80, _) => 1024.0 * 0.4,
    };
    let k = (row.slabs(problem.dim()) * 128 / row.element.size_bytes()) as f64;
    q * d * k / rate
}
