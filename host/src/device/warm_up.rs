//! Loading kernels before the first call needs them.

use std::time::Duration;

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::backward::residual::{GATHER, PROJECT, SUM, TABLES};
use maxsim_kernels::abi::params::quantize::QUANTIZE;
use maxsim_kernels::abi::params::rescore::RESCORE;
use maxsim_kernels::abi::params::{backward, loss};
use maxsim_kernels::abi::residual_chunk::CENTROID_KERNELS;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::device::Device;
use crate::error::Result;
use crate::plan::choice::Plan;
use crate::plan::kernels::LoadedKernel;
use crate::plan::kernels::gradient_row;
use crate::plan::limits::{Access, DeviceLimits};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::runtime::on::On;
use crate::tokens::element::ElementType;
use crate::tokens::layout::TokenLayout;

/// Which calls a device is made ready for; `default()` is all that score.
///
/// A kernel is loaded by the first call that runs it. A program that serves requests says at its
/// start what calls will come, and none of them has to wait:
///
/// ```
/// use maxsim::format::ElementType;
/// use maxsim::{Device, WarmUp};
///
/// let device = Device::best();
/// let calls =
///     WarmUp::default().elements(&[ElementType::F16]).dims(&[128]).winners(false);
/// let warmed = device.warm_up(&calls)?;
/// for kernel in &warmed.kernels {
///     println!("{}: {} in {:?}", kernel.name, kernel.source, kernel.time);
/// }
/// println!("ready after {:?}", warmed.time);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct WarmUp {
    /// Their element types; empty = all, and compressed tokens.
    #[cfg_attr(feature = "serde", serde(with = "crate::runtime::by_name::list"))]
    pub elements: Vec<ElementType>,
    /// Their elements per token; empty = whatever there are kernels for.
    pub dims: Vec<usize>,
    /// Whether they ask for winners; `None` = some do and some do not. (Every kernel gives
    /// scores and token scores.)
    pub winners: Option<bool>,
    /// Whether they normalise rows; `None` = some do and some do not.
    pub normalize: Option<bool>,
    /// Whether gradients are computed from winners, by whatever strategy, and losses on the device.
    /// The calls are then taken to ask for winners, too.
    pub training: bool,
}

/// The defaults with one thing changed after the other.
impl WarmUp {
    /// Sets [`WarmUp::elements`](field@WarmUp::elements).
    #[must_use]
    pub fn elements(self, elements: &[ElementType]) -> WarmUp {
        WarmUp { elements: elements.to_vec(), ..self }
    }

    /// Sets [`WarmUp::dims`](field@WarmUp::dims).
    #[must_use]
    pub fn dims(self, dims: &[usize]) -> WarmUp {
        WarmUp { dims: dims.to_vec(), ..self }
    }

    /// Sets [`WarmUp::winners`](field@WarmUp::winners).
    #[must_use]
    pub fn winners(self, winners: impl Into<Option<bool>>) -> WarmUp {
        WarmUp { winners: winners.into(), ..self }
    }

    /// Sets [`WarmUp::normalize`](field@WarmUp::normalize).
    #[must_use]
    pub fn normalize(self, normalize: impl Into<Option<bool>>) -> WarmUp {
        WarmUp { normalize: normalize.into(), ..self }
    }

    /// Sets [`WarmUp::training`](field@WarmUp::training).
    #[must_use]
    pub fn training(self, training: bool) -> WarmUp {
        WarmUp { training, ..self }
    }
}

/// What [`Device::warm_up`](crate::Device::warm_up) has loaded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WarmUpReport {
    /// The kernels that the calls can choose, in the order of the variant table; then what goes
    /// with them, and those of gradients.
    pub kernels: Vec<LoadedKernel>,
    /// Time that all took.
    pub time: Duration,
}

impl WarmUp {
    /// The rows of the variant table that such calls can choose on a device, whatever lengths
    /// and layouts they have: every eligible one.
    ///
    /// # Errors
    /// As calls with one of the dims would fail: [`crate::Error::Unsupported`] where no kernel
    /// takes it, [`crate::Error::TooLarge`] or [`crate::Error::Shape`] for no dim at all.
    pub fn kernels(&self, limits: &DeviceLimits) -> Result<Vec<&'static Variant>> {
        let winners = match (self.winners, self.training) {
            (Some(false), true) | (None, _) => vec![false, true],
            (Some(winners), _) => vec![winners],
        };
        let normalize = match self.normalize {
            None => vec![false, true],
            Some(normalize) => vec![normalize],
        };
        let options: Vec<[bool; 2]> =
            winners.iter().flat_map(|&w| normalize.iter().map(move |&n| [w, n])).collect();
        // Compressed tokens are not normalised, and not every device has kernels for them.
        let is_element = |operand: &Operand| matches!(operand, Operand::Element(_));
        let has_rows = |operand: &Operand| limits.has_rows(*operand);
        let halves = [ElementType::F16, ElementType::Bf16];
        let codes = [Operand::I8, Operand::I8Affine, Operand::E4m3]
            .into_iter()
            .chain(halves.map(Operand::Affine))
            .chain(halves.map(Operand::Residual))
            .filter(has_rows);
        let codes = codes.filter(|_| self.elements.is_empty());
        let operands =
            self.wanted_elements().iter().map(|&element| Operand::from(element)).chain(codes);
        let all =
            operands.flat_map(|operand| options.iter().map(move |&options| (operand, options)));
        let all: Vec<(Operand, [bool; 2])> =
            all.filter(|(operand, [_, normalize])| is_element(operand) || !normalize).collect();
        for &dim in &self.dims {
            for &(operand, options) in &all {
                plan(operand, dim, limits, options, None)?;
            }
        }
        let runs = |row: &&Variant| {
            let dims = if self.dims.is_empty() { &[8, row.dim_max][..] } else { &self.dims };
            all.iter().filter(|(operand, _)| row.operand == *operand).any(|&(operand, options)| {
                let can = |&dim| plan(operand, dim, limits, options, Some(row.name)).is_ok();
                dims.iter().any(can)
            })
        };
        Ok(FORWARD.iter().filter(runs).collect())
    }

    /// The kernels that gradients of such calls need on a device, by every strategy, and those of
    /// losses; none unless they are asked for.
    pub fn gradient_kernels(&self, limits: &DeviceLimits) -> Vec<&'static str> {
        if !self.training {
            return Vec::new();
        }
        let normalizes = self.normalize != Some(false);
        let by_element = self.wanted_elements().iter().flat_map(|&element| {
            let row = gradient_row(element);
            let project = normalizes.then_some(backward::PROJECT[row]);
            let of = |entries: backward::ByArch| entries.on(limits.capability)[row];
            let owner = [of(backward::OWNER), of(backward::FEW), of(backward::ATOMIC)];
            [backward::GATHER[row]].into_iter().chain(owner).chain(project)
        });
        let shared = [backward::COUNT, backward::INVERT, backward::JOIN, backward::SUM];
        // What makes codes of documents is among `coarse_kernels`.
        let codes = self.elements.is_empty().then_some(backward::GATHER_CODES);
        let decodes = limits.has_rows(Operand::Residual(ElementType::F16));
        let residuals = match self.elements.is_empty() && decodes {
            true => [&GATHER[..], &PROJECT, &[TABLES, SUM]].concat(),
            false => Vec::new(),
        };
        by_element
            .chain(codes)
            .chain(residuals)
            .chain(shared)
            .chain([loss::CONTRASTIVE, loss::DISTILLATION, loss::MEAN])
            .collect()
    }

    /// The kernels that find what rows are normalised by; none where no call normalises any.
    pub fn norm_kernels(&self) -> Vec<&'static str> {
        match self.normalize {
            Some(false) => Vec::new(),
            _ => self
                .wanted_elements()
                .iter()
                .map(|&e| backward::ROW_NORMS[gradient_row(e)])
                .collect(),
        }
    }

    /// The kernels that score what INT8 codes have found, and those that make codes of queries;
    /// none where calls have no codes.
    pub fn coarse_kernels(&self, limits: &DeviceLimits) -> Vec<&'static str> {
        match self.elements.is_empty() && limits.has_rows(Operand::I8) {
            true => [RESCORE, QUANTIZE].concat(),
            false => Vec::new(),
        }
    }

    /// The kernels that compute what centroids of residual-compressed documents score; none where
    /// calls have no such documents.
    pub fn centroid_kernels(&self, limits: &DeviceLimits) -> Vec<&'static str> {
        match self.elements.is_empty() && limits.has_rows(Operand::Residual(ElementType::F16)) {
            true => CENTROID_KERNELS.concat(),
            false => Vec::new(),
        }
    }

    fn wanted_elements(&self) -> &[ElementType] {
        match &self.elements[..] {
            [] => &ElementType::ALL,
            elements => elements,
        }
    }
}

/// The plan for one token against a document that several blocks can share, which every eligible
/// row can run.
fn plan(
    operand: Operand,
    dim: usize,
    limits: &DeviceLimits,
    [winners, normalize]: [bool; 2],
    kernel: Option<&str>,
) -> Result<Plan> {
    let (queries, documents) =
        (TokenLayout::padded(1, 1, dim)?, TokenLayout::padded(1, 1024, dim)?);
    let pairing = Pairing::cross();
    let problem = Problem::new(&queries, &documents, &pairing)?;
    let pitch_bytes = (dim * operand.size_bytes()).next_multiple_of(16) as u64;
    let access = Access { base: 0, pitch_bytes, n_centroids: 1 };
    let kernel = kernel.map(str::to_string);
    let allow_tf32 = true;
    let options =
        ScoreOptions { winners, normalize, allow_tf32, kernel, ..ScoreOptions::default() };
    Plan::choose(&problem, operand, limits, access, access, &options)
}

impl Device {
    /// Loads every kernel that calls like these can choose, and makes ready what uploads and
    /// synchronous calls need, so that the first call takes no longer than later ones. May be
    /// called again, from any thread: what is there stays. The CPU engine has nothing to load.
    ///
    /// # Errors
    /// Those of [`WarmUp::kernels`], and of the loading itself: [`crate::Error::PtxTooNew`],
    /// [`crate::Error::DeviceMemory`], [`crate::Error::Driver`].
    pub fn warm_up(&self, calls: &WarmUp) -> Result<WarmUpReport> {
        match &self.0 {
            On::Cpu(()) => {
                let _ = calls;
                Ok(WarmUpReport::default())
            }
            On::Cuda(device) => {
                let start = std::time::Instant::now();
                let limits = device.limits();
                let others = [
                    calls.norm_kernels(),
                    calls.gradient_kernels(limits),
                    calls.coarse_kernels(limits),
                    calls.centroid_kernels(limits),
                ]
                .concat();
                let kernels = device.warm_up(&calls.kernels(limits)?, &others)?;
                Ok(WarmUpReport { kernels, time: start.elapsed() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    const H200: DeviceLimits =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };
    const ADA: DeviceLimits =
        DeviceLimits { capability: (8, 9), n_multiprocessors: 128, shared_bytes: 99 * 1024 };

    #[test]
    fn everything_is_every_row_that_the_device_runs() {
        for limits in [H200, ADA] {
            let kernels = WarmUp::default().kernels(&limits).unwrap();
            let runs = |row: &&Variant| row.arch.runs_on(limits.capability);
            assert_eq!(kernels, FORWARD.iter().filter(runs).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_chosen_is_among_the_rows() {
        for dim in [1, 8, 64, 100, 128, 200, 256, 512] {
            for element in ElementType::ALL {
                for winners in [false, true] {
                    let calls = WarmUp {
                        elements: vec![element],
                        dims: vec![dim],
                        winners: Some(winners),
                        normalize: Some(false),
                        training: false,
                    };
                    let kernels = calls.kernels(&H200).unwrap();
                    assert!(kernels.iter().all(|row| row.operand == element));
                    assert!(kernels.iter().all(|row| row.dim_max >= dim));
                    for (query_len, n_documents) in [(1, 1), (32, 1000), (300, 7), (1024, 1000)] {
                        let queries = TokenLayout::padded(3, query_len, dim).unwrap();
                        let documents = TokenLayout::padded(n_documents, 300, dim).unwrap();
                        let cross = Pairing::cross();
                        let problem = Problem::new(&queries, &documents, &cross).unwrap();
                        let options = ScoreOptions { winners, ..ScoreOptions::default() };
                        // Views that are not aligned have fewer rows to choose from.
                        let uploaded = Access::uploaded(dim, element);
                        for access in [uploaded, Access { base: 4, ..uploaded }] {
                            let plan =
                                Plan::choose(&problem, element, &H200, access, access, &options);
                            let chosen = plan.unwrap().variant().unwrap();
                            assert!(kernels.contains(&chosen), "{} for {calls:?}", chosen.name);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn training_takes_winners_and_what_gradients_need() {
        let scoring = WarmUp { elements: vec![ElementType::F16], ..WarmUp::default() };
        assert!(scoring.gradient_kernels(&H200).is_empty());
        let training = WarmUp { winners: Some(false), training: true, ..scoring.clone() };
        assert_eq!(training.kernels(&H200).unwrap(), scoring.kernels(&H200).unwrap());
        let of_arch = |arch| {
            ["owner", "few", "atomic"].map(|kernel| format!("maxsim_gradient_{kernel}_{arch}_f16"))
        };
        for (limits, arch) in [(H200, "sm90"), (ADA, "sm80")] {
            let [owner, few, atomic] = &of_arch(arch);
            let expected = [
                "maxsim_gradient_gather_f16",
                owner,
                few,
                atomic,
                "maxsim_gradient_project_f16",
                "maxsim_gradient_count",
                "maxsim_gradient_invert",
                "maxsim_gradient_join",
                "maxsim_gradient_sum",
                "maxsim_loss_contrastive",
                "maxsim_loss_distillation",
                "maxsim_loss_mean",
            ];
            assert_eq!(training.gradient_kernels(&limits), expected);
        }
        let all = WarmUp { training: true, ..WarmUp::default() };
        // Those of codes and residuals, then what all share, then losses.
        let others = 1 + 6 + 4 + 3;
        assert_eq!(all.gradient_kernels(&H200).len(), 5 * 3 + others);
        assert_eq!(all.gradient_kernels(&ADA).len(), 5 * 3 + others);
        assert_eq!(all.norm_kernels().len(), 3);
        let plain = WarmUp { normalize: Some(false), ..all };
        assert_eq!(plain.gradient_kernels(&H200).len(), 4 * 3 + others);
        assert!(plain.norm_kernels().is_empty());
        assert!(plain.kernels(&H200).unwrap().iter().all(|row| !row.normalizes()));
    }

    #[test]
    fn calls_with_codes_take_what_scores_winners_again() {
        assert_eq!(WarmUp::default().coarse_kernels(&H200), [RESCORE, QUANTIZE].concat());
        let f16 = WarmUp { elements: vec![ElementType::F16], ..WarmUp::default() };
        assert!(f16.coarse_kernels(&H200).is_empty());
    }

    #[test]
    fn a_dim_without_a_kernel_is_an_error() {
        let kernels = |dim| WarmUp { dims: vec![128, dim], ..WarmUp::default() }.kernels(&H200);
        assert!(matches!(kernels(4097), Err(Error::Shape { .. })));
        assert!(kernels(0).is_err());
        assert!(kernels(64).is_ok() && kernels(4096).is_ok());
    }
}
