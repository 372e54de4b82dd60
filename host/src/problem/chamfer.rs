//! Chamfer distances: what is asked for, what is found, and how distances of points are reduced.

use crate::error::{Error, Result};
use crate::runtime::alloc::filled;
use crate::tokens::layout::limits::check_dim;
use crate::tokens::layout::{TokenLayout, check_len};

/// The distance of two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Metric {
    /// Σ (p − q)², without a root.
    #[default]
    SquaredL2,
    /// Σ |p − q|.
    L1,
}

/// What becomes of the distances of a cloud's points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum PointReduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// The largest: the directed Hausdorff distance (of squares, where the metric squares).
    Max,
    /// Nothing: there are no values, and the distances are the result.
    None,
}

/// Options of a Chamfer distance.
///
/// ```
/// use maxsim::chamfer::{ChamferOptions, Metric, PointReduction};
/// use maxsim::{Device, Tokens};
///
/// // Two pairs of clouds on a line: (0, 4) and (1, 1), (0, 2) and (3, 5).
/// let x = Tokens::padded(&[0.0f32, 4.0, 0.0, 2.0], 2, 2, 1)?;
/// let y = Tokens::padded(&[1.0f32, 1.0, 3.0, 5.0], 2, 2, 1)?;
/// let values = |options: ChamferOptions| -> maxsim::Result<Vec<f32>> {
///     Ok(Device::cpu().chamfer(&x, &y, &options)?.values().to_vec())
/// };
/// let options = ChamferOptions::default;
/// assert_eq!(values(options())?, [6.0, 10.0]); // 5 + 1, 5 + 5
/// assert_eq!(values(options().metric(Metric::L1))?, [3.0, 4.0]);
/// assert_eq!(values(options().reduction(PointReduction::Max))?, [10.0, 18.0]);
/// assert_eq!(values(options().single_direction(true))?, [5.0, 5.0]);
/// assert_eq!(values(options().weights([0.5, 2.0]))?, [3.0, 20.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct ChamferOptions {
    /// The distance of two points.
    pub metric: Metric,
    /// What becomes of the distances of a cloud's points.
    pub reduction: PointReduction,
    /// Only the distances of the first clouds' points, and not those of the second clouds'.
    pub single_direction: bool,
    /// What the value of each pair of clouds is multiplied by; `None` = 1. Not with
    /// [`PointReduction::None`], which has no values.
    pub weights: Option<Vec<f32>>,
}

/// The defaults with one thing changed after the other.
impl ChamferOptions {
    /// Sets [`ChamferOptions::metric`](field@ChamferOptions::metric).
    pub fn metric(self, metric: Metric) -> ChamferOptions {
        ChamferOptions { metric, ..self }
    }

    /// Sets [`ChamferOptions::reduction`](field@ChamferOptions::reduction).
    pub fn reduction(self, reduction: PointReduction) -> ChamferOptions {
        ChamferOptions { reduction, ..self }
    }

    /// Sets [`ChamferOptions::single_direction`](field@ChamferOptions::single_direction).
    pub fn single_direction(self, single_direction: bool) -> ChamferOptions {
        ChamferOptions { single_direction, ..self }
    }

    /// Sets [`ChamferOptions::weights`](field@ChamferOptions::weights).
    pub fn weights(self, weights: impl Into<Vec<f32>>) -> ChamferOptions {
        ChamferOptions { weights: Some(weights.into()), ..self }
    }
}

/// The nearest neighbour of each point of some clouds, a cloud's points after the other's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbours {
    /// The distance to it: 0 for masked points and where the other cloud is empty.
    pub distances: Vec<f32>,
    /// Its index in the other cloud, the lowest of equally near ones; −1 where there is none.
    pub indices: Vec<i32>,
}

/// Chamfer distances of pairs of clouds, with the neighbours that gradients need.
#[derive(Clone, Debug)]
#[must_use]
pub struct Chamfer {
    pub(crate) layouts: [TokenLayout; 2],
    pub(crate) options: ChamferOptions,
    pub(crate) values: Vec<f32>,
    pub(crate) x: Neighbours,
    pub(crate) y: Option<Neighbours>,
}

impl Neighbours {
    /// None of each point of a layout.
    pub(crate) fn none(layout: &TokenLayout) -> Result<Neighbours> {
        let n = layout.total_len();
        Ok(Neighbours { distances: filled(n, 0.0)?, indices: filled(n, -1)? })
    }
}

impl Chamfer {
    /// What was found; values and the second side's neighbours only where options ask for them.
    pub(crate) fn of(
        layouts: [TokenLayout; 2],
        options: &ChamferOptions,
        values: Vec<f32>,
        [x, y]: [Neighbours; 2],
    ) -> Chamfer {
        let has_values = options.reduction != PointReduction::None;
        Chamfer {
            layouts,
            options: options.clone(),
            values: if has_values { values } else { Vec::new() },
            x,
            y: (!options.single_direction).then_some(y),
        }
    }

    /// The distance of each pair of clouds, both directions added; none with
    /// [`PointReduction::None`].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Neighbours of the first clouds' points.
    pub fn x(&self) -> &Neighbours {
        &self.x
    }

    /// Neighbours of the second clouds' points; `None` where a single direction was asked for.
    pub fn y(&self) -> Option<&Neighbours> {
        self.y.as_ref()
    }

    /// The options that it was computed with.
    pub fn options(&self) -> &ChamferOptions {
        &self.options
    }

    /// The directions that were computed: the side of their points, and the neighbours.
    pub(crate) fn directions(&self) -> impl Iterator<Item = (usize, &Neighbours)> {
        [Some(&self.x), self.y.as_ref()].into_iter().flatten().enumerate()
    }

    /// The weight of a pair of clouds.
    pub(crate) fn weight(&self, pair: usize) -> f32 {
        self.options.weights.as_ref().map_or(1.0, |weights| weights[pair])
    }
}

/// Pairs of clouds that were checked: cloud `i` of the one side meets cloud `i` of the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloudPairs<'a> {
    pub layouts: [&'a TokenLayout; 2],
}

impl<'a> CloudPairs<'a> {
    pub(crate) fn new(
        x: &'a TokenLayout,
        y: &'a TokenLayout,
        options: &ChamferOptions,
    ) -> Result<CloudPairs<'a>> {
        for (argument, layout) in [("x", x), ("y", y)] {
            check_dim(layout.dim())?;
            layout.check_read(argument)?;
            layout.check_unweighted("of points", "clouds have weights: ChamferOptions::weights")?;
        }
        let shape = |argument, expected: String, found: String| {
            Err(Error::Shape { argument, expected, found })
        };
        if x.dim() != y.dim() {
            return shape("y", format!("points of dim {}", x.dim()), format!("dim {}", y.dim()));
        }
        if x.n_items() != y.n_items() {
            let expected = format!("{} clouds, one for each of x", x.n_items());
            return shape("y", expected, format!("{} clouds", y.n_items()));
        }
        if let Some(weights) = &options.weights {
            check_len("weights", x.n_items(), "one per pair of clouds", weights.len())?;
            if options.reduction == PointReduction::None {
                return Err(Error::Unsupported {
                    what: "weights of clouds whose distances are not reduced".into(),
                    why: "there are no values to weight; multiply the distances".into(),
                });
            }
        }
        Ok(CloudPairs { layouts: [x, y] })
    }

    pub(crate) fn n_pairs(&self) -> usize {
        self.layouts[0].n_items()
    }

    pub(crate) fn dim(&self) -> usize {
        self.layouts[0].dim()
    }
}

/// Calls `visit` with every cloud of a layout: its number, its first place among the points of all
/// clouds, and its length.
pub(crate) fn each_cloud(layout: &TokenLayout, mut visit: impl FnMut(usize, usize, usize)) {
    let mut first = 0;
    for cloud in 0..layout.n_items() {
        let len = layout.item_len(cloud);
        visit(cloud, first, len);
        first += len;
    }
}

/// The points of a cloud that have a neighbour, and what is made of their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reduced {
    /// 0 without points.
    pub value: f64,
    /// Points that have a neighbour.
    pub n: usize,
    /// The first of them with the largest number, or with NaN.
    pub largest: usize,
}

/// Reduces numbers of a cloud's points, in their order; NaN shows.
pub(crate) fn reduced(reduction: PointReduction, numbers: &[f32], neighbours: &[i32]) -> Reduced {
    let (mut n, mut sum, mut most) = (0, 0.0f64, None::<(usize, f32)>);
    for (point, (&number, &neighbour)) in numbers.iter().zip(neighbours).enumerate() {
        if neighbour < 0 {
            continue;
        }
        n += 1;
        sum += f64::from(number);
        let is_more = |(_, most): (usize, f32)| number > most || number.is_nan() && !most.is_nan();
        if most.is_none_or(is_more) {
            most = Some((point, number));
        }
    }
    let (largest, most) = most.unwrap_or((0, 0.0));
    let value = match reduction {
        PointReduction::Mean => sum / n.max(1) as f64,
        PointReduction::Sum => sum,
        PointReduction::Max => most.into(),
        PointReduction::None => 0.0,
    };
    Reduced { value, n, largest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_neighbour_do_not_count() {
        let of = |reduction, numbers: &[f32], neighbours: &[i32]| {
            let found = reduced(reduction, numbers, neighbours);
            (found.value, found.n, found.largest)
        };
        let (numbers, neighbours) = ([9.0, 1.0, 3.0, 3.0], [-1, 0, 5, 2]);
        assert_eq!(of(PointReduction::Mean, &numbers, &neighbours), (7.0 / 3.0, 3, 2));
        assert_eq!(of(PointReduction::Sum, &numbers, &neighbours).0, 7.0);
        assert_eq!(of(PointReduction::Max, &numbers, &neighbours).0, 3.0);
        assert_eq!(of(PointReduction::None, &numbers, &neighbours).0, 0.0);
        assert_eq!(of(PointReduction::Mean, &[0.0], &[-1]), (0.0, 0, 0));
        // NaN is the largest, wherever it is.
        for numbers in [[f32::NAN, 1.0, f32::NAN], [2.0, f32::NAN, 1.0]] {
            let first = numbers.iter().position(|x| x.is_nan()).unwrap();
            let found = reduced(PointReduction::Max, &numbers, &[0, 0, 0]);
            assert!(found.value.is_nan() && found.largest == first);
        }
    }
}
