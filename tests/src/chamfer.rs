//! Clouds of points, and what their Chamfer distances and gradients must be: by comparison of all
//! points with each other.

use maxsim::chamfer::{
    Chamfer, ChamferGrad, ChamferGradients, ChamferOptions, Metric, Neighbours, PointReduction,
};
use maxsim::format::{Element, ElementType, with_element};
use maxsim::{Device, Tokens};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::gpu::text;

/// How the points of clouds lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Evenly in a cube.
    Cube,
    /// On the unit sphere; those of the second clouds are those of the first, 10⁻³ away.
    Converging,
    /// On a lattice of few points: many equal ones, and equally near ones.
    Lattice,
    /// All of them one point.
    Same,
    /// In a plane with walls, the denser the nearer to the middle, as a scanner sees a street.
    Scene,
    /// Some with NaN or infinities.
    Special,
    /// So far apart that squares overflow.
    Huge,
}

impl Points {
    /// Every kind.
    pub const ALL: [Points; 7] = [
        Points::Cube,
        Points::Converging,
        Points::Lattice,
        Points::Same,
        Points::Scene,
        Points::Special,
        Points::Huge,
    ];
}

/// How clouds lie in their matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// One behind the other.
    Packed,
    /// Behind each other, with rows between them that are none's; and a mask.
    Masked,
    /// All of them from the first row on.
    Overlapping,
}

/// Pairs of clouds and what is asked of them.
#[derive(Clone, Debug)]
pub struct CloudCase {
    /// Dims of a point.
    pub dim: usize,
    /// Lengths of the clouds of both sides.
    pub lens: Vec<[usize; 2]>,
    /// How points lie.
    pub points: Points,
    /// How clouds lie.
    pub lie: Lie,
    /// Element type of points.
    pub element: ElementType,
    /// The distance of two points.
    pub metric: Metric,
    /// What becomes of the points' distances.
    pub reduction: PointReduction,
    /// Whether the second clouds' points count too.
    pub single_direction: bool,
    /// Whether pairs have weights.
    pub weighted: bool,
    /// Seed of the points.
    pub seed: u64,
}

impl CloudCase {
    /// Clouds of f32 points with the usual options.
    pub fn new(dim: usize, lens: &[[usize; 2]], points: Points) -> CloudCase {
        CloudCase {
            dim,
            lens: lens.to_vec(),
            points,
            lie: Lie::Packed,
            element: ElementType::F32,
            metric: Metric::SquaredL2,
            reduction: PointReduction::Mean,
            single_direction: false,
            weighted: false,
            seed: 1,
        }
    }

    /// The options of the call.
    pub fn options(&self) -> ChamferOptions {
        let options = ChamferOptions::default()
            .metric(self.metric)
            .reduction(self.reduction)
            .single_direction(self.single_direction);
        match self.weighted && self.reduction != PointReduction::None {
            true => {
                options.weights((0..self.lens.len()).map(|i| i as f32 - 1.5).collect::<Vec<_>>())
            }
            false => options,
        }
    }
}

/// Any case.
pub fn cases() -> impl Strategy<Value = CloudCase> {
    let lens = prop::collection::vec([0usize..90, 0usize..90], 0..5);
    let dims = prop_oneof![3 => 1usize..=3, 2 => 4usize..=15, 1 => 16usize..80];
    let points = prop::sample::select(Points::ALL.to_vec());
    let lie = prop::sample::select(vec![Lie::Packed, Lie::Masked, Lie::Overlapping]);
    let element = prop::sample::select(ElementType::ALL.to_vec());
    let metric = prop::sample::select(vec![Metric::SquaredL2, Metric::L1]);
    let reduction = prop::sample::select(vec![
        PointReduction::Mean,
        PointReduction::Sum,
        PointReduction::Max,
        PointReduction::None,
    ]);
    let flags = (any::<bool>(), any::<bool>(), any::<u64>());
    (dims, lens, points, lie, element, metric, reduction, flags).prop_map(
        |(dim, lens, points, lie, element, metric, reduction, flags)| {
            let (single_direction, weighted, seed) = flags;
            CloudCase {
                dim,
                lens,
                points,
                lie,
                element,
                metric,
                reduction,
                single_direction,
                weighted,
                seed,
            }
        },
    )
}

/// A side's clouds: elements, and the rows and mask of each cloud.
#[derive(Clone, Debug)]
pub struct Clouds<T> {
    /// `[rows, dim]`.
    pub elements: Vec<T>,
    /// Dims of a point.
    pub dim: usize,
    starts: Vec<i64>,
    lens: Vec<i64>,
    mask: Option<Vec<u8>>,
}

impl<T: Element> Clouds<T> {
    /// The clouds as the library takes them.
    ///
    /// # Errors
    /// The library's.
    pub fn tokens(&self) -> maxsim::Result<Tokens<'_, T>> {
        let tokens = Tokens::scattered(&self.elements, self.dim, &self.starts, &self.lens)?;
        match &self.mask {
            Some(mask) => tokens.with_mask(&mask[..]),
            None => Ok(tokens),
        }
    }

    /// The row of a point, if it is valid.
    fn row(&self, cloud: usize, point: usize) -> Option<usize> {
        let row = self.starts[cloud] as usize + point;
        self.mask.as_ref().is_none_or(|mask| mask[row] != 0).then_some(row)
    }

    fn values(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        self.elements[row * self.dim..][..self.dim].iter().map(|x| x.to_f32())
    }
}

/// Both sides' clouds of a case.
pub fn clouds<T: Element>(case: &CloudCase) -> [Clouds<T>; 2] {
    let mut rng = SmallRng::seed_from_u64(case.seed);
    let gap = usize::from(case.lie == Lie::Masked) * 3;
    let mut before: Vec<f32> = Vec::new();
    [0, 1].map(|side| {
        let (mut starts, mut lens, mut rows) = (Vec::new(), Vec::new(), 0);
        for len in case.lens.iter().map(|lens| lens[side]) {
            starts.push(if case.lie == Lie::Overlapping { 0 } else { rows as i64 });
            lens.push(len as i64);
            match case.lie {
                Lie::Overlapping => rows = rows.max(len),
                _ => rows += len + gap,
            }
        }
        let values = values(case, side, rows, &before, &mut rng);
        before.clone_from(&values);
        let elements = values.into_iter().map(T::from_f32).collect();
        let mask = (case.lie == Lie::Masked)
            .then(|| (0..rows).map(|_| u8::from(rng.random_range(0..4) > 0)).collect());
        Clouds { elements, dim: case.dim, starts, lens, mask }
    })
}

fn values(
    case: &CloudCase,
    side: usize,
    rows: usize,
    before: &[f32],
    rng: &mut SmallRng,
) -> Vec<f32> {
    let dim = case.dim;
    let mut values = vec![0.0f32; rows * dim];
    for (i, row) in values.chunks_exact_mut(dim).enumerate() {
        row.fill_with(|| rng.random_range(-1.0..1.0));
        match case.points {
            Points::Cube => {}
            Points::Converging => {
                let length = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-6);
                row.iter_mut().for_each(|x| *x /= length);
                if side == 1 && before.len() >= (i + 1) * dim {
                    let near = &before[i * dim..][..dim];
                    row.iter_mut().zip(near).for_each(|(x, near)| *x = *x * 1e-3 + near);
                }
            }
            Points::Lattice => row.iter_mut().for_each(|x| *x = (*x * 2.0).round()),
            Points::Same => row.fill(0.25),
            Points::Scene => {
                let range = 0.5 / (row[0].abs() + 0.01);
                row.iter_mut().for_each(|x| *x *= range);
                if let [.., height] = row {
                    *height *= if i % 3 == 0 { 0.2 } else { 0.001 };
                }
            }
            Points::Special => {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                if rng.random_range(0..60) == 0 {
                    row[rng.random_range(0..dim)] = odd[rng.random_range(side..3)];
                }
            }
            Points::Huge => row.iter_mut().for_each(|x| *x *= 3e38),
        }
    }
    values
}

/// Neighbours of a side's points, as the library computes distances, but without any search.
fn nearest<T: Element>(case: &CloudCase, sides: [&Clouds<T>; 2]) -> Neighbours {
    let [own, other] = sides;
    let mut nearest = Neighbours::default();
    for cloud in 0..own.lens.len() {
        for point in 0..own.lens[cloud] as usize {
            let mut best: Option<(f32, usize)> = None;
            let row = own.row(cloud, point);
            for neighbour in 0..other.lens[cloud] as usize {
                let Some((row, at)) = row.zip(other.row(cloud, neighbour)) else { continue };
                let differences = own.values(row).zip(other.values(at)).map(|(p, q)| p - q);
                let distance = differences.fold(0.0f32, |sum, x| match case.metric {
                    Metric::L1 => sum + x.abs(),
                    _ => x.mul_add(x, sum),
                });
                let is_nearer = |(least, _): (f32, usize)| {
                    distance < least || distance.is_nan() && !least.is_nan()
                };
                if best.is_none_or(is_nearer) {
                    best = Some((distance, neighbour));
                }
            }
            let (distance, neighbour) = best.map_or((0.0, -1), |(d, at)| (d, at as i32));
            nearest.distances.push(distance);
            nearest.indices.push(neighbour);
        }
    }
    nearest
}

/// A point of a direction: its side, its pair, its row and place, its neighbour's row and distance.
struct Term {
    side: usize,
    pair: usize,
    row: usize,
    place: usize,
    neighbour: usize,
    distance: f32,
}

/// Every point that has a neighbour, pair after pair.
fn terms<T: Element>(sides: [&Clouds<T>; 2], found: &Chamfer) -> Vec<Term> {
    let mut terms = Vec::new();
    for (side, nearest) in [Some(found.x()), found.y()].into_iter().flatten().enumerate() {
        let mut place = 0;
        for pair in 0..sides[side].lens.len() {
            for point in 0..sides[side].lens[pair] {
                if nearest.indices[place] >= 0 {
                    terms.push(Term {
                        side,
                        pair,
                        row: (sides[side].starts[pair] + point) as usize,
                        place,
                        neighbour: (sides[1 - side].starts[pair]
                            + i64::from(nearest.indices[place]))
                            as usize,
                        distance: nearest.distances[place],
                    });
                }
                place += 1;
            }
        }
    }
    terms
}

/// What a pair's value is made of: of each direction the sum, the points, and the farthest's place.
#[derive(Clone, Copy, Default)]
struct Reduced {
    sum: f64,
    n: usize,
    most: f32,
    farthest: usize,
}

fn reduced(terms: &[Term], n_pairs: usize) -> Vec<[Reduced; 2]> {
    let mut pairs = vec![[Reduced::default(); 2]; n_pairs];
    for term in terms {
        let Reduced { sum, n, most, farthest } = &mut pairs[term.pair][term.side];
        let is_more = term.distance > *most || term.distance.is_nan() && !most.is_nan();
        if *n == 0 || is_more {
            (*most, *farthest) = (term.distance, term.place);
        }
        *sum += f64::from(term.distance);
        *n += 1;
    }
    pairs
}

/// Runs a case on a device and compares everything with what it must be.
///
/// # Errors
/// What differs.
pub fn check(device: &Device, case: &CloudCase) -> Result<(), String> {
    with_element!(case.element, T => check_as::<T>(device, case))
}

fn check_as<T: Element>(device: &Device, case: &CloudCase) -> Result<(), String> {
    let [x, y] = clouds::<T>(case);
    let tokens = [x.tokens().map_err(text)?, y.tokens().map_err(text)?];
    let options = case.options();
    let found = device.chamfer(&tokens[0], &tokens[1], &options).map_err(text)?;
    same(&nearest(case, [&x, &y]), found.x()).map_err(|why| format!("x {why}"))?;
    match found.y() {
        None if case.single_direction => {}
        Some(found) if !case.single_direction => {
            same(&nearest(case, [&y, &x]), found).map_err(|why| format!("y {why}"))?;
        }
        _ => return Err("another direction than asked for".into()),
    }
    let terms = terms([&x, &y], &found);
    let reduced = reduced(&terms, case.lens.len());
    check_values(case, &found, &reduced)?;
    check_gradients(device, case, [&x, &y], [&tokens[0], &tokens[1]], &found, &terms, &reduced)
}

/// Checks that neighbours are the same, and distances bit for bit.
fn same(expected: &Neighbours, found: &Neighbours) -> Result<(), String> {
    let (a, b) = (&expected.distances, &found.distances);
    if a.len() != b.len() || expected.indices.len() != found.indices.len() {
        return Err(format!("has {} points, not {}", b.len(), a.len()));
    }
    for i in 0..a.len() {
        let is_same = a[i].to_bits() == b[i].to_bits() || a[i].is_nan() && b[i].is_nan();
        // Which of several points at distance NaN it is is not said.
        let is_neighbour =
            expected.indices[i] == found.indices[i] || a[i].is_nan() && found.indices[i] >= 0;
        if !is_same || !is_neighbour {
            return Err(format!(
                "point {i}: expected {} at {}, found {} at {}",
                expected.indices[i], a[i], found.indices[i], b[i]
            ));
        }
    }
    Ok(())
}

fn weight(case: &CloudCase, pair: usize) -> f64 {
    case.options().weights.map_or(1.0, |weights| weights[pair].into())
}

fn check_values(case: &CloudCase, found: &Chamfer, reduced: &[[Reduced; 2]]) -> Result<(), String> {
    if case.reduction == PointReduction::None {
        let is_none = found.values().is_empty();
        return is_none.then_some(()).ok_or("values of distances that were not reduced".into());
    }
    for (pair, sides) in reduced.iter().enumerate() {
        let of = |side: &Reduced| match case.reduction {
            PointReduction::Mean => side.sum / side.n.max(1) as f64,
            PointReduction::Max => side.most.into(),
            _ => side.sum,
        };
        let expected = (of(&sides[0]) + of(&sides[1])) * weight(case, pair);
        let (value, rounded) = (found.values()[pair], expected as f32);
        let error = (f64::from(value) - expected).abs();
        let is_same = value == rounded || value.is_nan() && rounded.is_nan();
        if !is_same && (error.is_nan() || error > 1e-6 * expected.abs()) {
            return Err(format!("pair {pair}: expected {expected}, found {value}"));
        }
    }
    Ok(())
}

/// Compares the gradients of values, or of distances, with sums in f64.
fn check_gradients<T: Element>(
    device: &Device,
    case: &CloudCase,
    clouds: [&Clouds<T>; 2],
    tokens: [&Tokens<'_, T>; 2],
    found: &Chamfer,
    terms: &[Term],
    reduced: &[[Reduced; 2]],
) -> Result<(), String> {
    let number = |i: usize| ((i * 37 + 11) % 29) as f32 / 7.0 - 2.0;
    let of_values: Vec<f32> = (0..case.lens.len()).map(number).collect();
    let n_points =
        |nearest: Option<&Neighbours>| nearest.map_or(0, |nearest| nearest.distances.len());
    let of_points = [Some(found.x()), found.y()]
        .map(|side| (0..n_points(side)).map(number).collect::<Vec<_>>());
    let of_values = (case.reduction != PointReduction::None).then_some(&of_values[..]);
    let grad = match of_values {
        Some(values) => ChamferGrad::Values(values),
        None => ChamferGrad::Distances(&of_points[0], &of_points[1]),
    };
    let [x, y] = tokens;
    let gradients = device.chamfer_backward(x, y, found, grad).map_err(text)?;
    let again = device.chamfer_backward(x, y, found, grad).map_err(text)?;
    let bits = |gradients: &ChamferGradients| {
        [&gradients.x, &gradients.y]
            .map(|side| side.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    if bits(&gradients) != bits(&again) {
        return Err("gradients differ from call to call".into());
    }
    let factor = |term: &Term| {
        let side = &reduced[term.pair][term.side];
        let Some(values) = of_values else { return Some(number(term.place).into()) };
        let grad = f64::from(values[term.pair]) * weight(case, term.pair);
        match case.reduction {
            PointReduction::Mean => Some(grad / side.n as f64),
            PointReduction::Max => (side.farthest == term.place).then_some(grad),
            _ => Some(grad),
        }
    };
    // Sums and sums of magnitudes.
    let mut expected = clouds.map(|side| vec![(0.0f64, 0.0f64); side.elements.len()]);
    for term in terms {
        let Some(factor) = factor(term) else { continue };
        let (from, to) = (term.side, 1 - term.side);
        let coordinates = clouds[from].values(term.row).zip(clouds[to].values(term.neighbour));
        for (k, (p, q)) in coordinates.enumerate() {
            let difference = p - q;
            let slope = f64::from(match case.metric {
                Metric::L1 if difference == 0.0 || difference.is_nan() => difference,
                Metric::L1 => difference.signum(),
                // It may overflow.
                _ => 2.0 * difference,
            });
            for (side, row, sign) in [(from, term.row, 1.0), (to, term.neighbour, -1.0)] {
                let (sum, magnitude) = &mut expected[side][row * case.dim + k];
                *sum += sign * factor * slope;
                *magnitude += (factor * slope).abs();
            }
        }
    }
    for (side, found) in [&gradients.x, &gradients.y].into_iter().enumerate() {
        compare(&expected[side], found, terms.len()).map_err(|why| format!("∂{side} {why}"))?;
    }
    Ok(())
}

fn compare(expected: &[(f64, f64)], found: &[f32], n: usize) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("has {} elements", found.len()));
    }
    for (i, (&(sum, magnitude), &found)) in expected.iter().zip(found).enumerate() {
        let error = (f64::from(found) - sum).abs();
        let allowed = (n + 4) as f64 * 2f64.powi(-23) * magnitude;
        let is_far = magnitude > f64::from(f32::MAX) / 4.0 && !found.is_finite();
        let are_nan = sum.is_nan() && found.is_nan();
        if !(error <= allowed || are_nan || is_far || f64::from(found) == sum) {
            return Err(format!("element {i}: expected {sum} ± {allowed}, found {found}"));
        }
    }
    Ok(())
}
