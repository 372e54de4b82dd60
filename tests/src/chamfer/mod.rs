//! Clouds of points, and what their Chamfer distances and gradients must be: by comparison of all
//! points with each other.

mod checks;

use maxsim::Tokens;
use maxsim::chamfer::{ChamferOptions, Metric, PointReduction};
use maxsim::format::{Element, ElementType};
use proptest::prelude::*;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

pub use checks::{check_all, same};

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
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(case.seed);
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
    rng: &mut Xoshiro256PlusPlus,
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
