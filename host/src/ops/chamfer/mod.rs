//! Chamfer distances of clouds of points.

pub(crate) mod backward;
pub(crate) mod normals;

use crate::cpu;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::problem::chamfer::{
    Chamfer, ChamferOptions, CloudPairs, Neighbours, PointReduction, each_cloud, reduced,
};
use crate::runtime::alloc::filled;
use crate::runtime::on::On;
use crate::tokens::element::Element;

impl Device {
    /// Chamfer distances of clouds of points: of cloud `i` of `x` and cloud `i` of `y`, for each
    /// `i`.
    ///
    /// ```text
    /// 1/N Σ_p min_q ‖p − q‖² + 1/M Σ_q min_p ‖q − p‖²
    /// ```
    ///
    /// Clouds are the items of a layout, of any lengths and of dim 1 to 4096; masked points take no
    /// part. [`ChamferOptions`] has other metrics and reductions. Every distance is computed by
    /// differences in f32, never by products, so that clouds that nearly coincide have the distance
    /// that they have: one errs by at most (dim + 2) · 2⁻²⁴ of itself. The neighbour of a point is
    /// the one that a comparison with every point finds, and of equally near ones the first.
    ///
    /// An empty cloud adds nothing to its pair's value, and neither does the other one, whose
    /// points have no neighbour. NaN shows: a point with NaN, or whose other cloud has one, is at
    /// distance NaN, and its neighbour is some point that it has that distance to. Infinite
    /// coordinates follow IEEE 754.
    ///
    /// ```
    /// use maxsim::chamfer::{ChamferOptions, Neighbours};
    /// use maxsim::{Device, Tokens};
    ///
    /// // Two points and three points in the plane.
    /// let x = Tokens::padded(&[0.0f32, 0.0, 4.0, 0.0], 1, 2, 2)?;
    /// let y = Tokens::padded(&[0.0f32, 1.0, 4.0, 2.0, 4.0, -2.0], 1, 3, 2)?;
    /// let found = Device::cpu().chamfer(&x, &y, &ChamferOptions::default())?;
    /// let expected = Neighbours { distances: vec![1.0, 4.0], indices: vec![0, 1] };
    /// assert_eq!(found.x(), &expected); // of two equally near points the first
    /// assert_eq!(found.y().map(|y| &y.distances[..]), Some(&[1.0, 4.0, 4.0][..]));
    /// assert_eq!(found.values(), [2.5 + 3.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not as many clouds of `y` as of `x`, dims differ, or there
    /// are not as many weights as pairs; [`Error::WrongDevice`] for a handle of another device;
    /// [`Error::Unsupported`] for weights without values, and on a CUDA device: use
    /// [`Device::cpu`]. [`Error::HostMemory`].
    pub fn chamfer<'a, T: Element>(
        &self,
        x: impl Into<TokensRef<'a, T>>,
        y: impl Into<TokensRef<'a, T>>,
        options: &ChamferOptions,
    ) -> Result<Chamfer> {
        let (x, y) = (x.into(), y.into());
        let pairs = CloudPairs::new(x.layout(), y.layout(), options)?;
        x.check_device("x", self)?;
        y.check_device("y", self)?;
        let On::Cpu(()) = self.0 else { return Err(on_cuda()) };
        let points = [x.host_matrix()?, y.host_matrix()?];
        let (x, y) =
            cpu::chamfer::nearest(&pairs, points, options.metric, options.single_direction)?;
        let mut found = Chamfer {
            layouts: pairs.layouts.map(Clone::clone),
            options: options.clone(),
            values: Vec::new(),
            x,
            y,
        };
        found.values = values(&found, |nearest| &nearest.distances)?;
        Ok(found)
    }
}

/// The values of pairs, of numbers of their points.
fn values<'a>(
    found: &'a Chamfer,
    numbers: impl Fn(&'a Neighbours) -> &'a [f32],
) -> Result<Vec<f32>> {
    let reduction = found.options.reduction;
    if reduction == PointReduction::None {
        return Ok(Vec::new());
    }
    let mut sums = filled(found.layouts[0].n_items() as u64, 0.0f64)?;
    for (side, nearest) in found.directions() {
        each_cloud(&found.layouts[side], |pair, first, len| {
            let (numbers, own) = (&numbers(nearest)[first..][..len], first..first + len);
            sums[pair] += reduced(reduction, numbers, &nearest.indices[own]).value;
        });
    }
    let weighted = |(pair, sum): (usize, f64)| (sum * f64::from(found.weight(pair))) as f32;
    Ok(sums.into_iter().enumerate().map(weighted).collect())
}

/// The error for clouds on a CUDA device.
fn on_cuda() -> Error {
    Error::Unsupported {
        what: "Chamfer distances on a CUDA device".into(),
        why: "they are computed on the CPU: use Device::cpu".into(),
    }
}
