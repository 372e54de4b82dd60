//! Gradients of Chamfer distances.

use super::n_points;
use std::sync::Arc;

use crate::cpu;
use crate::cuda::{
    ChamferGradCall, CudaChamfer, CudaChamferWork, CudaDevice, CudaGradScores, CudaGradients,
    CudaTokens,
};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::backward::blocking::{Gradients, matrices};
use crate::problem::chamfer::{Chamfer, CloudPairs, PointReduction, Reduced, each_cloud, reduced};
use crate::runtime::alloc::{copy_of, filled, reserve};
use crate::runtime::on::On;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::layout::{TokenLayout, check_len};

/// Gradients of a loss with respect to what a Chamfer distance has found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChamferGrad<'a> {
    /// With respect to [`Chamfer::values`]: one for each pair of clouds.
    Values(&'a [f32]),
    /// With respect to the distances of the first clouds' points and of the second clouds'; of
    /// the latter none where a single direction was asked for.
    Distances(&'a [f32], &'a [f32]),
}

/// Gradients with respect to points.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct ChamferGradients {
    /// `[rows, dim]` of the matrix of `x`, row-major.
    pub x: Vec<f32>,
    /// `[rows, dim]` of the matrix of `y`, row-major.
    pub y: Vec<f32>,
}

impl Device {
    /// Gradients of a loss with respect to the points of clouds, from those with respect to their
    /// Chamfer distances. Neighbours are constant, as those of
    /// [`PointReduction::Max`] are which point is the farthest (the first of equally far ones).
    ///
    /// `x` and `y` must be what `found` was found for. Masked points, points without a neighbour
    /// that no other point chose, and rows of no cloud get exactly 0. A point at a distance that is
    /// not finite makes its own gradient and its neighbour's NaN. The L1 metric has slope 0
    /// where coordinates are equal. The same gradients have the same bits, whatever the number of
    /// threads: a sum of n terms errs by at most n · 2⁻²³ · Σ |term|, to first order.
    ///
    /// ```
    /// use maxsim::chamfer::{ChamferGrad, ChamferGradients, ChamferOptions};
    /// use maxsim::{Device, Tokens};
    ///
    /// let (device, options) = (Device::best(), ChamferOptions::default());
    /// // On a line: 0 and 4; 1, 2 and 5.
    /// let x = Tokens::padded(&[0.0f32, 4.0], 1, 2, 1)?;
    /// let y = Tokens::padded(&[1.0f32, 2.0, 5.0], 1, 3, 1)?;
    /// let found = device.chamfer(&x, &y, &options)?;
    /// assert_eq!(found.values(), [1.0 + 2.0]);
    /// let gradients: ChamferGradients =
    ///     device.chamfer_backward(&x, &y, &found, ChamferGrad::Values(&[3.0]))?;
    /// // Of 3/2 · ((0 − 1)² + (4 − 5)²) + (1 − 0)² + (2 − 0)² + (5 − 4)²
    /// assert_eq!(gradients.x, [-3.0 - 2.0 - 4.0, -3.0 - 2.0]);
    /// assert_eq!(gradients.y, [3.0 + 2.0, 4.0, 3.0 + 2.0]);
    ///
    /// // Of the distances themselves.
    /// let grad = ChamferGrad::Distances(&[1.0, 0.0], &[0.0, 0.5, 0.0]);
    /// let gradients = device.chamfer_backward(&x, &y, &found, grad)?;
    /// assert_eq!(gradients.x, [-2.0 - 2.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where clouds are not those of `found`, or there are not as many gradients
    /// as values or distances; [`Error::Unsupported`] for gradients of values of
    /// [`PointReduction::None`], and on a CUDA device for clouds that share rows: use
    /// [`Device::cpu`]. [`Error::WrongDevice`], [`Error::HostMemory`], [`Error::DeviceMemory`].
    pub fn chamfer_backward<'a, T: Element>(
        &self,
        x: impl Into<TokensRef<'a, T>>,
        y: impl Into<TokensRef<'a, T>>,
        found: &Chamfer,
        grad: ChamferGrad<'_>,
    ) -> Result<ChamferGradients> {
        let (x, y) = (x.into(), y.into());
        let pairs = CloudPairs::new(x.layout(), y.layout(), &found.options)?;
        check_clouds("x", &found.layouts[0], x.layout())?;
        check_clouds("y", &found.layouts[1], y.layout())?;
        check_grad(found, grad)?;
        x.check_device("x", self)?;
        y.check_device("y", self)?;
        if let On::Cuda(cuda) = &self.0 {
            let work = CudaChamferWork::new(cuda, &pairs, &found.options, T::TYPE)?;
            work.check_backward()?;
            let (mut own_x, mut own_y) = (None, None);
            let tokens = [x.cuda_tokens(self, &mut own_x)?, y.cuda_tokens(self, &mut own_y)?];
            return on_device(cuda, &work, tokens, found, grad);
        }
        let points = [x.host_matrix()?, y.host_matrix()?];
        let factors = Factors::new(found, grad)?;
        let of = |side: usize, pair: usize, point: usize| factors.of(side, pair, point);
        let [x, y] = cpu::chamfer::gradients(&pairs, points, found, &of)?;
        Ok(ChamferGradients { x, y })
    }
}

/// The gradients of clouds on a device.
fn on_device(
    cuda: &Arc<CudaDevice>,
    work: &CudaChamferWork,
    tokens: [&Arc<CudaTokens>; 2],
    found: &Chamfer,
    grad: ChamferGrad<'_>,
) -> Result<ChamferGradients> {
    let own = CudaChamfer::of_found(cuda, found)?;
    let (values, most_of_points) = match grad {
        ChamferGrad::Values(values) => (copy_of(values)?, None),
        ChamferGrad::Distances(x, y) => {
            let mut both = Vec::new();
            reserve(&mut both, n_points(&found.layouts).iter().sum())?;
            both.extend_from_slice(x);
            both.extend_from_slice(y);
            let finite = both.iter().filter(|grad| grad.is_finite());
            let most = finite.fold(0.0f32, |most, grad| most.max(grad.abs()));
            (both, Some(most))
        }
    };
    let gradients = Arc::new(CudaGradScores::upload(cuda, &values)?);
    let dim = found.layouts[0].dim();
    let rows = [found.layouts[0].rows(), found.layouts[1].rows(), 0];
    let parts = matrices([0; 3], ElementType::F32, rows, dim);
    let written = CudaGradients::zeros(cuda, parts)?;
    let call = ChamferGradCall { gradients: &gradients, most_of_points };
    cuda.on_idle_stream(|stream| work.enqueue_backward(stream, tokens, &own, call, &written))?;
    let mut read = Gradients::of_rows(rows, dim)?;
    written.read([&mut read.queries, &mut read.documents, &mut read.weights])?;
    Ok(ChamferGradients { x: read.queries, y: read.documents })
}

/// Checks that clouds are those that distances are of.
pub(super) fn check_clouds(
    argument: &'static str,
    expected: &TokenLayout,
    found: &TokenLayout,
) -> Result<()> {
    if expected.same_tokens(found) {
        return Ok(());
    }
    let (expected, found) = (format!("the clouds {expected:?}"), format!("{found:?}"));
    Err(Error::Shape { argument, expected, found })
}

fn check_grad(found: &Chamfer, grad: ChamferGrad<'_>) -> Result<()> {
    match grad {
        ChamferGrad::Values(_) if found.options.reduction == PointReduction::None => {
            Err(Error::Unsupported {
                what: "gradients of values that there are not".into(),
                why: "distances were not reduced: use ChamferGrad::Distances".into(),
            })
        }
        ChamferGrad::Values(values) => {
            check_len("grad", found.values.len(), "one per value", values.len())
        }
        ChamferGrad::Distances(x, y) => {
            let n_y = found.y.as_ref().map_or(0, |y| y.distances.len());
            check_len("grad of x", found.x.distances.len(), "one per distance", x.len())?;
            check_len("grad of y", n_y, "one per distance", y.len())
        }
    }
}

/// The gradients of the distances of points.
pub(super) enum Factors<'a> {
    Given([&'a [f32]; 2]),
    /// Of each direction, for each pair the gradient of a point's distance, and the only point that
    /// has it.
    Reduced(Vec<Vec<(f32, Option<usize>)>>),
}

impl Factors<'_> {
    pub(super) fn new<'a>(found: &Chamfer, grad: ChamferGrad<'a>) -> Result<Factors<'a>> {
        let values = match grad {
            ChamferGrad::Distances(x, y) => return Ok(Factors::Given([x, y])),
            ChamferGrad::Values(values) => values,
        };
        let reduction = found.options.reduction;
        let mut sides = Vec::new();
        reserve(&mut sides, 2)?;
        for (side, nearest) in found.directions() {
            let mut factors = filled(values.len() as u64, (0.0, None))?;
            each_cloud(&found.layouts[side], |pair, first, len| {
                let own = first..first + len;
                let (distances, neighbours) =
                    (&nearest.distances[own.clone()], &nearest.indices[own]);
                let Reduced { n, largest, .. } = reduced(reduction, distances, neighbours);
                let grad = f64::from(values[pair]) * f64::from(found.weight(pair));
                factors[pair] = match reduction {
                    PointReduction::Mean => ((grad / n.max(1) as f64) as f32, None),
                    PointReduction::Max => (grad as f32, Some(first + largest)),
                    PointReduction::Sum | PointReduction::None => (grad as f32, None),
                };
            });
            sides.push(factors);
        }
        Ok(Factors::Reduced(sides))
    }

    /// The gradient of a point's distance; `None` where the loss does not depend on it.
    pub(super) fn of(&self, side: usize, pair: usize, point: usize) -> Option<f32> {
        match self {
            Factors::Given(sides) => Some(sides[side][point]),
            Factors::Reduced(sides) => {
                let (factor, only) = sides[side][pair];
                only.is_none_or(|only| only == point).then_some(factor)
            }
        }
    }
}
