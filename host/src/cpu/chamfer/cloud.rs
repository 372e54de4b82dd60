//! A cloud of points as its neighbours are looked for in it: blocks along a curve, and boxes.

use crate::cpu::tokens::Matrix;
use crate::error::Result;
use crate::problem::chamfer::Metric;
use crate::runtime::alloc::{filled, reserve};
use crate::tokens::format::{Format, widen};
use crate::tokens::layout::TokenLayout;

/// Most dims of points that are sorted: boxes of more exclude hardly anything.
pub(super) const SORTED_DIM: usize = 8;

/// Points of a block.
pub(super) const LANES: usize = 16;

/// Boxes of the box above.
pub(super) const FAN_OUT: usize = 8;

/// The index of no point.
pub(super) const NO_POINT: u32 = u32::MAX;

/// Bits of a place on the curve.
const CODE_BITS: usize = 30;

/// The valid points of a cloud.
pub(super) struct Cloud {
    dim: usize,
    /// The points without NaN or infinity, as they lie in blocks.
    order: Vec<u32>,
    /// Coordinates `[n_blocks, dim, LANES]`; infinite behind the last point.
    blocks: Vec<f32>,
    /// Boxes of blocks, then of eight of these, and so on; none where points are not sorted.
    levels: Vec<Level>,
    /// The other points.
    odd: Vec<u32>,
    first_nan: Option<u32>,
}

/// Boxes `[n, dim]` with the lowest index of a point in each.
pub(super) struct Level {
    low: Vec<f32>,
    high: Vec<f32>,
    least: Vec<u32>,
}

impl Cloud {
    /// Reads a cloud and sorts it.
    pub(super) fn new<F: Format>(
        layout: &TokenLayout,
        points: Matrix<'_, F>,
        cloud: usize,
    ) -> Result<Cloud> {
        let (dim, rows) = (layout.dim(), layout.item_rows(cloud));
        let (mut order, mut odd, mut first_nan) = (Vec::new(), Vec::new(), None);
        reserve(&mut order, rows.len())?;
        let mut row = vec![0.0; dim];
        for (point, index) in rows.clone().zip(0u32..) {
            if points.mask.is_some_and(|mask| mask[point] == 0) {
                continue;
            }
            widen::<F>(&points.data[point * dim..][..dim], &mut row);
            if row.iter().all(|x| x.is_finite()) {
                order.push(index);
                continue;
            }
            if row.iter().any(|x| x.is_nan()) && first_nan.is_none() {
                first_nan = Some(index);
            }
            reserve(&mut odd, 1)?;
            odd.push(index);
        }
        let mut read = |index: u32, row: &mut [f32]| {
            let point = rows.start + index as usize;
            widen::<F>(&points.data[point * dim..][..dim], row);
        };
        if dim <= SORTED_DIM {
            sort(&mut order, dim, &mut read)?;
        }
        let n_blocks = order.len().div_ceil(LANES);
        let mut blocks = filled((n_blocks * LANES * dim) as u64, f32::INFINITY)?;
        for (block, points) in blocks.chunks_exact_mut(LANES * dim).zip(order.chunks(LANES)) {
            for (lane, &index) in points.iter().enumerate() {
                read(index, &mut row);
                row.iter().enumerate().for_each(|(k, &x)| block[k * LANES + lane] = x);
            }
        }
        let mut cloud = Cloud { dim, order, blocks, levels: Vec::new(), odd, first_nan };
        if dim <= SORTED_DIM && n_blocks > 1 {
            cloud.levels = cloud.boxes();
        }
        Ok(cloud)
    }

    /// Points in blocks.
    pub(super) fn n_points(&self) -> usize {
        self.order.len()
    }

    /// Whether it has no valid point.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.odd.is_empty()
    }

    /// Its points in blocks, by their place.
    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Its points with NaN or infinity.
    pub(super) fn odd(&self) -> &[u32] {
        &self.odd
    }

    /// Its first point with NaN.
    pub(super) fn first_nan(&self) -> Option<u32> {
        self.first_nan
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.order.len().div_ceil(LANES)
    }

    /// Coordinates `[dim, LANES]` of a block.
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &[f32] {
        &self.blocks[block * LANES * self.dim..][..LANES * self.dim]
    }

    /// The index of a block's point; [`NO_POINT`] behind the last one.
    #[inline(always)]
    pub(super) fn index(&self, block: usize, lane: usize) -> u32 {
        self.order.get(block * LANES + lane).copied().unwrap_or(NO_POINT)
    }

    /// Copies the coordinates of a point by its place.
    pub(super) fn point(&self, place: usize, row: &mut [f32]) {
        let (block, lane) = (self.block(place / LANES), place % LANES);
        row.iter_mut().enumerate().for_each(|(k, x)| *x = block[k * LANES + lane]);
    }

    pub(super) fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The boxes of all levels; the last has at most [`FAN_OUT`].
    fn boxes(&self) -> Vec<Level> {
        let first = Level::new(self.dim, self.n_blocks(), |level, block| {
            for lane in 0..LANES.min(self.order.len() - block * LANES) {
                let of = |k: usize| self.block(block)[k * LANES + lane];
                level.widen(self.dim, block, of, of, self.index(block, lane));
            }
        });
        let mut levels = vec![first];
        while let Some(below) = levels.last().filter(|level| level.n() > FAN_OUT) {
            let above = Level::new(self.dim, below.n().div_ceil(FAN_OUT), |level, node| {
                for child in node * FAN_OUT..((node + 1) * FAN_OUT).min(below.n()) {
                    let [low, high] = [&below.low, &below.high].map(|x| &x[child * self.dim..]);
                    level.widen(self.dim, node, |k| low[k], |k| high[k], below.least[child]);
                }
            });
            levels.push(above);
        }
        levels
    }
}

impl Level {
    /// So many boxes, each of which `fill` widens to what it has.
    fn new(dim: usize, n: usize, fill: impl Fn(&mut Level, usize)) -> Level {
        let mut level = Level {
            low: vec![f32::INFINITY; n * dim],
            high: vec![f32::NEG_INFINITY; n * dim],
            least: vec![NO_POINT; n],
        };
        (0..n).for_each(|node| fill(&mut level, node));
        level
    }

    /// Makes room for what lies from `low` to `high`.
    fn widen(
        &mut self,
        dim: usize,
        node: usize,
        low: impl Fn(usize) -> f32,
        high: impl Fn(usize) -> f32,
        least: u32,
    ) {
        for k in 0..dim {
            let (own_low, own_high) =
                (&mut self.low[node * dim + k], &mut self.high[node * dim + k]);
            *own_low = own_low.min(low(k));
            *own_high = own_high.max(high(k));
        }
        self.least[node] = self.least[node].min(least);
    }

    pub(super) fn n(&self) -> usize {
        self.least.len()
    }

    /// The lowest index of a point in a box.
    #[inline(always)]
    pub(super) fn least(&self, node: usize) -> u32 {
        self.least[node]
    }

    /// A number that the distance of a point to no point of a box is below.
    #[inline(always)]
    pub(super) fn bound<const L1: bool>(&self, node: usize, point: &[f32]) -> f32 {
        let first = node * point.len();
        let (low, high) = (&self.low[first..][..point.len()], &self.high[first..][..point.len()]);
        let mut sum = 0.0;
        for ((&x, &low), &high) in point.iter().zip(low).zip(high) {
            // Not `max`: there is no NaN.
            let (below, above) = (low - x, x - high);
            let gap = if below > above { below } else { above };
            sum = add::<L1>(sum, if gap > 0.0 { gap } else { 0.0 });
        }
        sum
    }
}

/// The metric of a constant.
pub(super) fn is_l1(metric: Metric) -> bool {
    metric == Metric::L1
}

/// Adds what a difference of coordinates adds to a distance.
#[inline(always)]
pub(super) fn add<const L1: bool>(sum: f32, difference: f32) -> f32 {
    if L1 { sum + difference.abs() } else { difference.mul_add(difference, sum) }
}

/// Sorts points by their place on a Morton curve through the box of all, equal ones by index.
fn sort(order: &mut [u32], dim: usize, read: &mut impl FnMut(u32, &mut [f32])) -> Result<()> {
    let mut row = vec![0.0f32; dim];
    let (mut low, mut high) = (vec![f32::INFINITY; dim], vec![f32::NEG_INFINITY; dim]);
    for &index in &*order {
        read(index, &mut row);
        for (k, &x) in row.iter().enumerate() {
            (low[k], high[k]) = (low[k].min(x), high[k].max(x));
        }
    }
    let bits = CODE_BITS / dim;
    let cells = f64::from(1u32 << bits);
    let mut keys: Vec<u64> = Vec::new();
    reserve(&mut keys, order.len())?;
    for &index in &*order {
        read(index, &mut row);
        let mut code = 0u64;
        for (k, &x) in row.iter().enumerate() {
            let (low, high) = (f64::from(low[k]), f64::from(high[k]));
            let part = if high > low { (f64::from(x) - low) / (high - low) } else { 0.0 };
            let cell = ((part * cells) as u64).min((1 << bits) - 1);
            (0..bits).for_each(|bit| code |= (cell >> bit & 1) << (bit * dim + k));
        }
        keys.push(code << 32 | u64::from(index));
    }
    keys.sort_unstable();
    order.iter_mut().zip(keys).for_each(|(index, key)| *index = key as u32);
    Ok(())
}
