//! Chamfer distances of clouds of points.

pub(crate) mod backward;
mod command;
pub(crate) mod normals;
pub(crate) mod prepared;
#[allow(unsafe_code)]
pub(crate) mod raw;

use self::backward::ChamferGrad;

use crate::cpu;
use crate::cpu::tokens::Matrix;
use crate::cuda::{CudaChamfer, CudaChamferWork};
use crate::device::Device;
use crate::device::tokens::TokensRef;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::problem::chamfer::{
    Chamfer, ChamferOptions, CloudPairs, Neighbours, PointReduction, each_cloud, reduced,
};
use crate::runtime::alloc::filled;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

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
    /// let found = Device::best().chamfer(&x, &y, &ChamferOptions::default())?;
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
    /// [`Error::Unsupported`] for weights without values. [`Error::HostMemory`],
    /// [`Error::DeviceMemory`].
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
        let On::Cuda(cuda) = &self.0 else {
            return on_host(&pairs, [x.host_matrix()?, y.host_matrix()?], options);
        };
        let work = CudaChamferWork::new(cuda, &pairs, options, T::TYPE)?;
        let (mut own_x, mut own_y) = (None, None);
        let tokens = [x.cuda_tokens(self, &mut own_x)?, y.cuda_tokens(self, &mut own_y)?];
        let layouts = pairs.layouts.map(Clone::clone);
        let found = CudaChamfer::new(cuda, n_points(&layouts), pairs.n_pairs(), pairs.dim())?;
        let (values, sides) = cuda.on_idle_stream(|stream| {
            work.enqueue(stream, tokens, &found)?;
            found.read(stream)
        })?;
        Ok(Chamfer::of(layouts, options, values, sides))
    }
}

/// The points of all clouds of each side.
fn n_points(layouts: &[TokenLayout; 2]) -> [usize; 2] {
    layouts.each_ref().map(|layout| layout.total_len() as usize)
}

/// What clouds in host memory have.
fn on_host<T: Element>(
    pairs: &CloudPairs<'_>,
    points: [Matrix<'_, T>; 2],
    options: &ChamferOptions,
) -> Result<Chamfer> {
    let (x, y) = cpu::chamfer::nearest(pairs, points, options.metric, options.single_direction)?;
    let layouts = pairs.layouts.map(Clone::clone);
    let sides = [x, y.unwrap_or_default()];
    let mut found = Chamfer::of(layouts, options, Vec::new(), sides);
    found.values = values(&found, |nearest| &nearest.distances)?;
    Ok(found)
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
