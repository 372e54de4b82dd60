//! Loading kernels before the first call needs them.

use std::time::Duration;

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::Resources;
use maxsim_kernels::table::auxiliary::{AUXILIARY, Auxiliary, Role};
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::device::Device;
use crate::error::Result;
use crate::plan::choice::Plan;
use crate::plan::kernels::LoadedKernel;
use crate::plan::limits::{Access, DeviceLimits};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::runtime::on::On;
use crate::tokens::element::ElementType;
use crate::tokens::layout::TokenLayout;

/// Calls that a device is made ready for; `default()` is all that score.
///
/// A kernel is loaded by the first call that runs it. A program that serves requests says at its
/// start what calls will come, and none of them has to wait:
///
/// ```
/// use maxsim::format::ElementType;
/// use maxsim::plan::{DeviceLimits, KernelSource, LoadedKernel};
/// use maxsim::{Device, WarmUp, WarmUpReport};
///
/// let device = Device::best();
/// let calls =
///     WarmUp::default().elements(&[ElementType::F16]).dims(&[128]).winners(false);
/// let report: WarmUpReport = device.warm_up(&calls)?;
/// for LoadedKernel { name, source, time, .. } in &report.kernels {
///     println!("{name}: {source} in {time:?}");
/// }
/// let from_ptx = report.kernels.iter().filter(|kernel| kernel.source == KernelSource::Ptx);
/// println!("ready after {:?}; {} kernels were compiled", report.time, from_ptx.count());
///
/// // Which kernels such calls can choose here.
/// if let Some(limits) = device.limits() {
///     calls.kernels(limits)?.iter().for_each(|kernel| println!("{}", kernel.name));
/// }
/// // And on an A100, known on a machine without a GPU; the last two of a training run.
/// let limits = DeviceLimits {
///     capability: (8, 0),
///     n_multiprocessors: 108,
///     shared_bytes: 163 << 10,
/// };
/// assert!(calls.kernels(&limits)?.iter().all(|kernel| kernel.name.contains("_sm80_f16_")));
/// let names = calls.clone().training(true).auxiliary_kernels(&limits);
/// assert!(names.contains(&"maxsim_gradient_sort") && names.len() > 10);
/// assert!(!calls.auxiliary_kernels(&limits).contains(&"maxsim_gradient_sort"));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct WarmUp {
    /// Element types of the calls; empty = all, and compressed tokens.
    #[cfg_attr(feature = "serde", serde(with = "crate::runtime::by_name::list"))]
    pub elements: Vec<ElementType>,
    /// Elements per token of the calls; empty = all that there are kernels for.
    pub dims: Vec<usize>,
    /// Whether they ask for winners; `None` = some do and some do not. (Every kernel gives
    /// scores and token scores.)
    pub winners: Option<bool>,
    /// Whether they normalise rows; `None` = some do and some do not.
    pub normalize: Option<bool>,
    /// Whether gradients are computed from winners, by any strategy, and losses on the device. The
    /// calls are then taken to ask for winners, too.
    pub training: bool,
}

/// The defaults with one thing changed after the other.
impl WarmUp {
    /// Sets [`WarmUp::elements`](field@WarmUp::elements).
    pub fn elements(self, elements: &[ElementType]) -> WarmUp {
        WarmUp { elements: elements.to_vec(), ..self }
    }

    /// Sets [`WarmUp::dims`](field@WarmUp::dims).
    pub fn dims(self, dims: &[usize]) -> WarmUp {
        WarmUp { dims: dims.to_vec(), ..self }
    }

    /// Sets [`WarmUp::winners`](field@WarmUp::winners).
    pub fn winners(self, winners: impl Into<Option<bool>>) -> WarmUp {
        WarmUp { winners: winners.into(), ..self }
    }

    /// Sets [`WarmUp::normalize`](field@WarmUp::normalize).
    pub fn normalize(self, normalize: impl Into<Option<bool>>) -> WarmUp {
        WarmUp { normalize: normalize.into(), ..self }
    }

    /// Sets [`WarmUp::training`](field@WarmUp::training).
    pub fn training(self, training: bool) -> WarmUp {
        WarmUp { training, ..self }
    }
}

/// Kernels that [`Device::warm_up`](crate::Device::warm_up) has loaded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct WarmUpReport {
    /// The kernels that the calls can choose, in the order of the forward table; then the others
    /// that they run, in the order of theirs.
    pub kernels: Vec<LoadedKernel>,
    /// Time that all took.
    pub time: Duration,
}

impl WarmUp {
    /// Lists the forward kernels that such calls can choose on a device, for any lengths and
    /// layouts: every eligible one.
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
        let mut codes = Vec::new();
        if self.elements.is_empty() {
            let all = FORWARD.iter().map(|row| row.operand);
            for operand in all.filter(|operand| !is_element(operand)).filter(has_rows) {
                if !codes.contains(&operand) {
                    codes.push(operand);
                }
            }
        }
        let operands =
            self.wanted_elements().iter().map(|&element| Operand::from(element)).chain(codes);
        let all =
            operands.flat_map(|operand| options.iter().map(move |&options| (operand, options)));
        let all: Vec<(Operand, [bool; 2])> =
            all.filter(|(operand, [_, normalize])| is_element(operand) || !normalize).collect();
        for &dim in &self.dims {
            for &(operand, options) in &all {
                let _ = plan(operand, dim, limits, options, None)?;
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

    /// The other kernels that such calls run on a device, in the order of their table: norms,
    /// gradients by every strategy, losses, what scores winners again, and scores of centroids.
    pub fn auxiliary_kernels(&self, limits: &DeviceLimits) -> Vec<&'static str> {
        self.auxiliary(limits).map(|row| row.resources.name).collect()
    }

    fn auxiliary(&self, limits: &DeviceLimits) -> impl Iterator<Item = &'static Auxiliary> {
        let normalizes = self.normalize != Some(false);
        // Compressed tokens come with all elements, where the device has kernels for them.
        let has_codes = self.elements.is_empty();
        let has_residuals = has_codes && limits.has_rows(Operand::Residual(ElementType::F16));
        let is_needed = move |row: &&Auxiliary| match row.role {
            Role::Forward => true,
            Role::Normalized => normalizes,
            Role::Centroids => has_residuals,
            Role::Rescore => has_codes && limits.has_rows(Operand::I8),
            Role::Backward | Role::Loss => self.training,
            Role::BackwardNormalized => self.training && normalizes,
            Role::BackwardCodes => self.training && has_codes,
            Role::BackwardResidual => self.training && has_residuals,
            // Loaded where such calls are made ready.
            Role::TopK
            | Role::Chamfer
            | Role::Projection
            | Role::Xtr
            | Role::Upload
            | Role::Measurement => false,
        };
        let is_of_element = |row: &&Auxiliary| {
            row.element.is_none_or(|element| self.wanted_elements().contains(&element))
        };
        let capability = limits.capability;
        AUXILIARY
            .iter()
            .filter(move |row| row.is_for(capability))
            .filter(is_needed)
            .filter(is_of_element)
    }

    fn wanted_elements(&self) -> &[ElementType] {
        match &self.elements[..] {
            [] => &ElementType::ALL,
            elements => elements,
        }
    }
}

/// Plans one token against a document that several CTAs can share, which every eligible kernel can
/// run.
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
    Plan::choose(&problem, operand, limits, [access, access], &options)
}

impl Device {
    /// Loads every kernel that calls like these can choose, and makes ready what uploads and
    /// synchronous calls need, so that the first call takes no longer than later ones. May be
    /// called again, from any thread: loaded kernels stay. The CPU engine has nothing to load.
    ///
    /// # Errors
    /// The errors of [`WarmUp::kernels`], and of the loading itself: [`crate::Error::PtxTooNew`],
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
                let forward = calls.kernels(limits)?;
                let forward = forward.iter().map(|variant| variant.resources());
                let auxiliary = calls.auxiliary(limits).map(|row| row.resources);
                let kernels: Vec<Resources> = forward.chain(auxiliary).collect();
                let kernels = device.warm_up(&kernels)?;
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
                                Plan::choose(&problem, element, &H200, [access, access], &options);
                            let chosen = plan.unwrap().variant().unwrap();
                            assert!(kernels.contains(&chosen), "{} for {calls:?}", chosen.name);
                        }
                    }
                }
            }
        }
    }

    /// Lists auxiliary kernels that `calls` load and `others` do not.
    fn beyond(calls: &WarmUp, others: &WarmUp, limits: &DeviceLimits) -> Vec<&'static str> {
        let known = others.auxiliary_kernels(limits);
        assert!(known.iter().all(|name| calls.auxiliary_kernels(limits).contains(name)));
        let is_new = |name: &&str| !known.contains(name);
        calls.auxiliary_kernels(limits).into_iter().filter(is_new).collect()
    }

    #[test]
    fn training_takes_winners_and_what_gradients_need() {
        let scoring = WarmUp { elements: vec![ElementType::F16], ..WarmUp::default() };
        let training = WarmUp { winners: Some(false), training: true, ..scoring.clone() };
        assert_eq!(training.kernels(&H200).unwrap(), scoring.kernels(&H200).unwrap());
        for (limits, is_hopper) in [(H200, true), (ADA, false)] {
            let expected: Vec<&str> = AUXILIARY
                .iter()
                .filter(|row| row.element.is_none_or(|element| element == ElementType::F16))
                .filter(|row| match row.family {
                    "SEGMENTED_SUM" | "SHORT_QUERY" | "ATOMIC" => {
                        row.resources.name.contains("_sm90_") == is_hopper
                    }
                    family => [
                        "GATHER",
                        "PROJECT",
                        "COUNT",
                        "SORT",
                        "FIXUP",
                        "SUM_CHUNKS",
                        "LOSS_CONTRASTIVE",
                        "LOSS_DISTILLATION",
                        "LOSS_MEAN",
                    ]
                    .contains(&family),
                })
                .map(|row| row.resources.name)
                .collect();
            assert_eq!(expected.len(), 12);
            assert_eq!(beyond(&training, &scoring, &limits), expected);
        }
        let all = WarmUp { training: true, ..WarmUp::default() };
        let plain = WarmUp { normalize: Some(false), ..all.clone() };
        // Kernels of codes and residuals, those that all element types share, and losses.
        let others = 1 + 6 + 4 + 3;
        for limits in [H200, ADA] {
            let n_new = |calls: &WarmUp| {
                beyond(calls, &WarmUp { training: false, ..calls.clone() }, &limits).len()
            };
            assert_eq!(n_new(&all), 5 * 3 + others);
            assert_eq!(n_new(&plain), 4 * 3 + others);
            // The norms of three element types, and as many kernels of gradients.
            assert_eq!(beyond(&all, &plain, &limits).len(), 3 + 3);
        }
        assert!(plain.kernels(&H200).unwrap().iter().all(|row| !row.normalizes()));
    }

    #[test]
    fn calls_with_codes_take_what_scores_winners_again() {
        let families = |calls: &WarmUp| {
            let names = calls.auxiliary_kernels(&H200);
            let of_name = |name: &&str| {
                AUXILIARY.iter().find(|row| row.resources.name == *name).map(|row| row.family)
            };
            names.iter().filter_map(of_name).collect::<Vec<_>>()
        };
        let all = families(&WarmUp::default());
        let n_of = |family| all.iter().filter(|found| **found == family).count();
        assert_eq!((n_of("RESCORE"), n_of("QUANTIZE")), (3, 3));
        assert_eq!((n_of("CENTROID_SCORES"), n_of("INFINITE_QUERIES")), (2, 2));
        assert_eq!(n_of("DECODED_ROWS"), 2);
        assert_eq!(all.len(), 3 + 3 + 8 + 4);
        let f16 = WarmUp { elements: vec![ElementType::F16], ..WarmUp::default() };
        assert_eq!(families(&f16), ["SUM_PARTIALS", "COMBINE_SPLITS", "SEGMENTS", "ROW_NORMS"]);
    }

    #[test]
    fn a_dim_without_a_kernel_is_an_error() {
        let kernels = |dim| WarmUp { dims: vec![128, dim], ..WarmUp::default() }.kernels(&H200);
        assert!(matches!(kernels(4097), Err(Error::Shape { .. })));
        assert!(kernels(0).is_err());
        assert!(kernels(64).is_ok() && kernels(4096).is_ok());
    }
}
