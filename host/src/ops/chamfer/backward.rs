//! Gradients of Chamfer distances.

use super::on_cuda;
use crate::cpu;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::problem::chamfer::{Chamfer, CloudPairs, PointReduction, Reduced, each_cloud, reduced};
use crate::runtime::alloc::{filled, reserve};
use crate::runtime::on::On;
use crate::tokens::element::Element;
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
    /// that no other point chose, and rows of no cloud get exactly 0. The L1 metric has slope 0
    /// where coordinates are equal. The same gradients have the same bits, whatever the number of
    /// threads: a sum of n terms errs by at most n · 2⁻²³ · Σ |term|, to first order.
    ///
    /// ```
    /// use maxsim::chamfer::{ChamferGrad, ChamferGradients, ChamferOptions};
    /// use maxsim::{Device, Tokens};
    ///
    /// let (device, options) = (Device::cpu(), ChamferOptions::default());
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
    /// [`PointReduction::None`], and on a CUDA device: use [`Device::cpu`].
    /// [`Error::WrongDevice`], [`Error::HostMemory`].
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
        let On::Cpu(()) = self.0 else { return Err(on_cuda()) };
        let points = [x.host_matrix()?, y.host_matrix()?];
        let factors = Factors::new(found, grad)?;
        let of = |side: usize, pair: usize, point: usize| factors.of(side, pair, point);
        let [x, y] = cpu::chamfer::gradients(&pairs, points, found, &of)?;
        Ok(ChamferGradients { x, y })
    }
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
enum Factors<'a> {
    Given([&'a [f32]; 2]),
    /// Of each direction, for each pair the gradient of a point's distance, and the only point that
    /// has it.
    Reduced(Vec<Vec<(f32, Option<usize>)>>),
}

impl Factors<'_> {
    fn new<'a>(found: &Chamfer, grad: ChamferGrad<'a>) -> Result<Factors<'a>> {
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
    fn of(&self, side: usize, pair: usize, point: usize) -> Option<f32> {
        match self {
            Factors::Given(sides) => Some(sides[side][point]),
            Factors::Reduced(sides) => {
                let (factor, only) = sides[side][pair];
                only.is_none_or(|only| only == point).then_some(factor)
            }
        }
    }
}
