//! How the comparisons of clouds are divided among CTAs: pure, of sizes alone.

use std::ops::Range;

use bytemuck::cast_slice;
use maxsim_kernels::abi::params::chamfer::{
    BLOCK_LEN, COLUMNS, CloudPair, GRADIENT_THREADS, NearestTask, PointTask, THREADS, WIDE_OWN,
    WIDE_TILE, columns_max, lanes_log2, points_per_thread, rows_of_cta, tile_len_max,
};

use super::search::is_searched;
use super::select::is_selected;
use crate::error::Result;
use crate::problem::chamfer::{ChamferOptions, CloudPairs, each_cloud};
use crate::runtime::alloc::reserve;
use crate::tokens::layout::check_count;

/// Points of the other cloud that a CTA could compare in the time that it takes to begin, to fill
/// its tile and to look for neighbours.
const START_LEN: u64 = 96;

/// How many of a hundred instructions that a multiprocessor could issue it issues, with one CTA and
/// with more of them: four warps wait for their own results too often.
const EFFICIENCY: [u64; 5] = [45, 72, 82, 88, 92];

/// Most points of the other cloud that a CTA compares its own with, where it has some at a time in
/// shared memory.
const WIDE_MOST: u32 = 1 << 14;

/// How a kernel compares points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    /// Points of a CTA.
    pub own_len: usize,
    /// A CTA compares them with a multiple of so many points.
    pub block_len: u32,
    /// Most points that it compares them with.
    pub most: u32,
    /// Whether the other cloud's points find their neighbours too.
    pub serves_both: bool,
}

impl Comparison {
    /// That of the kernel whose points have `width` numbers, in registers.
    pub(super) const fn narrow(width: usize) -> Comparison {
        let own_len = THREADS * points_per_thread(width);
        let most = tile_len_max(width);
        Comparison { own_len, block_len: BLOCK_LEN, most, serves_both: false }
    }

    /// That of the kernel for both directions, whose warps take turns in columns.
    pub(super) const fn both(width: usize) -> Comparison {
        let block_len = THREADS as u32 / 32 * COLUMNS;
        let (own_len, most) = (rows_of_cta(width), columns_max(width));
        Comparison { own_len, block_len, most, serves_both: true }
    }

    /// That of the kernel for any dim.
    pub(super) const WIDE: Comparison = Comparison {
        own_len: WIDE_OWN as usize,
        block_len: WIDE_TILE,
        most: WIDE_MOST,
        serves_both: false,
    };

    /// The sides of a pair whose points CTAs have: that of which fewer places are empty, where one
    /// serves both.
    fn sides(&self, lens: [u32; 2], n_directions: usize) -> Range<usize> {
        if !self.serves_both {
            return 0..n_directions;
        }
        let places = |own: u32, other: u32| {
            let own = (own as usize).next_multiple_of(self.own_len) as u64;
            own * u64::from(other.next_multiple_of(COLUMNS))
        };
        let [x, y] = lens;
        let side = usize::from(places(y, x) < places(x, y));
        side..side + 1
    }
}

/// What CTAs do, as words of kernels' structs.
#[derive(Debug, PartialEq)]
pub(super) struct Lists {
    /// [`CloudPair`]s.
    pub pairs: Vec<[u32; 8]>,
    /// [`NearestTask`]s.
    pub nearest: Vec<[u32; 4]>,
    /// [`PointTask`]s.
    pub points: Vec<[u32; 2]>,
    /// Pairs whose points are sorted: number and lengths.
    pub searched: Vec<(u32, [u32; 2])>,
    /// Pairs whose blocks of points are selected by products, by number.
    pub selected: Vec<(u32, CloudPair)>,
    /// Most points of a tile.
    pub tile_len: u32,
}

impl Lists {
    /// Those of a call whose points a kernel compares so.
    pub(super) fn new(
        pairs: &CloudPairs<'_>,
        options: &ChamferOptions,
        comparison: Comparison,
        n_multiprocessors: usize,
    ) -> Result<Lists> {
        let clouds = cloud_pairs(pairs, options)?;
        let own_len = comparison.own_len;
        let points_of_cta = GRADIENT_THREADS >> lanes_log2(pairs.dim());
        let n_directions = if options.single_direction { 1 } else { 2 };
        let is_searched = |cloud: &CloudPair| is_searched(cloud.lens, pairs.dim());
        let is_selected = |cloud: &CloudPair| is_selected(cloud.lens, pairs.dim(), options.metric);
        let is_compared = |cloud: &CloudPair| !is_searched(cloud) && !is_selected(cloud);
        let compared: Vec<CloudPair> =
            clouds.iter().filter(|cloud| is_compared(cloud)).copied().collect();
        let tile_len = tile_len(&compared, n_directions, comparison, n_multiprocessors);
        let (nearest, points) = (Vec::new(), Vec::new());
        let (searched, selected) = (Vec::new(), Vec::new());
        let mut lists = Lists { pairs: Vec::new(), nearest, points, searched, selected, tile_len };
        let tile_len = tile_len as usize;
        reserve(&mut lists.pairs, clouds.len())?;
        for (number, cloud) in (0u32..).zip(&clouds) {
            let CloudPair { starts, lens, places, weight, reserved } = *cloud;
            let [[a, b], [c, d], [e, f]] = [starts, lens, places];
            lists.pairs.push([a, b, c, d, e, f, weight.to_bits(), reserved]);
            if is_searched(cloud) {
                reserve(&mut lists.searched, 1)?;
                lists.searched.push((number, lens));
            }
            if is_selected(cloud) {
                reserve(&mut lists.selected, 1)?;
                lists.selected.push((number, *cloud));
            }
            for side in 0..2 {
                let (own, other) = (lens[side] as usize, lens[1 - side] as usize);
                let pair_and_side = 2 * number + side as u32;
                reserve(&mut lists.points, own.div_ceil(points_of_cta))?;
                lists.points.extend((0..own).step_by(points_of_cta).map(|first| {
                    let PointTask { pair_and_side, first } =
                        PointTask { pair_and_side, first: first as u32 };
                    [pair_and_side, first]
                }));
                if !is_compared(cloud) || !comparison.sides(lens, n_directions).contains(&side) {
                    continue;
                }
                reserve(&mut lists.nearest, own.div_ceil(own_len) * other.div_ceil(tile_len))?;
                for first_other in (0..other).step_by(tile_len) {
                    let n_others = tile_len.min(other - first_other) as u32;
                    lists.nearest.extend((0..own).step_by(own_len).map(|first| {
                        let (first, first_other) = (first as u32, first_other as u32);
                        let task = NearestTask { pair_and_side, first, first_other, n_others };
                        [task.pair_and_side, task.first, task.first_other, task.n_others]
                    }));
                }
            }
        }
        check_count("CTAs of a comparison of clouds", lists.nearest.len())?;
        Ok(lists)
    }

    /// The lists as they are in memory.
    pub(super) fn bytes(&self) -> [&[u8]; 3] {
        [cast_slice(&self.pairs), cast_slice(&self.nearest), cast_slice(&self.points)]
    }
}

/// The pairs with the places of their points.
fn cloud_pairs(pairs: &CloudPairs<'_>, options: &ChamferOptions) -> Result<Vec<CloudPair>> {
    let [x, y] = pairs.layouts;
    check_count("points of both sides", (x.total_len() + y.total_len()) as usize)?;
    let mut clouds = Vec::new();
    reserve(&mut clouds, pairs.n_pairs())?;
    for pair in 0..pairs.n_pairs() {
        let [[x_start, x_len], [y_start, y_len]] = [x, y].map(|side| side.segments()[pair]);
        clouds.push(CloudPair {
            starts: [x_start, y_start],
            lens: [x_len, y_len],
            places: [0; 2],
            weight: options.weights.as_ref().map_or(1.0, |weights| weights[pair]),
            reserved: 0,
        });
    }
    for (side, before) in [(0, 0), (1, x.total_len() as u32)] {
        each_cloud(pairs.layouts[side], |pair, first, _| {
            clouds[pair].places[side] = before + first as u32;
        });
    }
    Ok(clouds)
}

/// The length of tiles with which the busiest multiprocessor has least to do.
fn tile_len(
    clouds: &[CloudPair],
    n_directions: usize,
    comparison: Comparison,
    n_multiprocessors: usize,
) -> u32 {
    let Comparison { own_len, block_len, most, .. } = comparison;
    let longest = clouds.iter().flat_map(|cloud| cloud.lens).max().unwrap_or(0);
    let most = most.min(longest.next_multiple_of(block_len)).max(block_len);
    let directions = || {
        clouds.iter().flat_map(|cloud| {
            let sides = comparison.sides(cloud.lens, n_directions);
            let lens = cloud.lens.map(u64::from);
            sides.map(move |side| (lens[side], lens[1 - side]))
        })
    };
    let n_own: u64 = directions().map(|(own, _)| own.div_ceil(own_len as u64)).sum();
    // Where there are many CTAs they are shared evenly, however long they are.
    if n_own > 16 * n_multiprocessors as u64 {
        return most;
    }
    let cost = |tile_len: u32| {
        let tiles = |(own, other): (u64, u64)| {
            own.div_ceil(own_len as u64) * other.div_ceil(tile_len.into())
        };
        let n_ctas: u64 = directions().map(tiles).sum();
        let n_in_turn = n_ctas.div_ceil(n_multiprocessors.max(1) as u64);
        let at_once = EFFICIENCY[(n_in_turn.max(1) as usize).min(EFFICIENCY.len()) - 1];
        n_in_turn * (u64::from(tile_len) + START_LEN) * 100 / at_once
    };
    let lens = (1..=most / block_len).rev().map(|blocks| blocks * block_len);
    lens.min_by_key(|&len| cost(len)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::layout::TokenLayout;

    fn lists(x: &[u32], y: &[u32], options: &ChamferOptions, comparison: Comparison) -> Lists {
        let layout = |lens: &[u32]| {
            let mut offsets = vec![0u32];
            lens.iter().for_each(|len| offsets.push(offsets[offsets.len() - 1] + len));
            TokenLayout::packed(offsets[lens.len()] as usize, 3, &offsets).unwrap()
        };
        let (x, y) = (layout(x), layout(y));
        Lists::new(&CloudPairs::new(&x, &y, options).unwrap(), options, comparison, 132).unwrap()
    }

    /// Every point of a cloud meets every point of the other once, in each direction or for both.
    #[test]
    fn all_points_meet() {
        let (x, y) = ([1000, 0, 5, 30_000], [2100, 7, 0, 4000]);
        let kernels = [4, 8, 16].map(|width| [Comparison::narrow(width), Comparison::both(width)]);
        for (single, kernel) in [false, true]
            .into_iter()
            .zip([kernels; 2])
            .flat_map(|(a, of)| of.into_iter().flatten().map(move |kernel| (a, kernel)))
        {
            if single && kernel.serves_both {
                continue;
            }
            let options = ChamferOptions::default().single_direction(single);
            let lists = lists(&x, &y, &options, kernel);
            let mut met = [[0u64; 2]; 4];
            for &[pair_and_side, first, first_other, n_others] in &lists.nearest {
                let (pair, side) = ((pair_and_side / 2) as usize, (pair_and_side % 2) as usize);
                let (own, other) = if side == 0 { (x[pair], y[pair]) } else { (y[pair], x[pair]) };
                assert!(first < own && first_other + n_others <= other);
                assert!(n_others <= kernel.most && first_other.is_multiple_of(kernel.block_len));
                let n_own = (kernel.own_len as u32).min(own - first);
                met[pair][side] += u64::from(n_own) * u64::from(n_others);
            }
            for pair in 0..4 {
                let all = u64::from(x[pair]) * u64::from(y[pair]);
                let [of_x, of_y] = met[pair];
                match kernel.serves_both {
                    true => assert!(of_x + of_y == all && (of_x == 0 || of_y == 0)),
                    false => assert_eq!(met[pair], [all, if single { 0 } else { all }]),
                }
            }
            let points = |side| -> u32 {
                let own = lists.points.iter().filter(|task| task[0] % 2 == side);
                let lens = if side == 0 { x } else { y };
                own.map(|task| 256.min(lens[task[0] as usize / 2] - task[1])).sum()
            };
            assert_eq!([points(0), points(1)], [31_005, 6107]);
            assert_eq!(lists.pairs[3], [1005, 2107, 30_000, 4000, 1005, 31_005 + 2107, ONE, 0]);
        }
    }

    /// Rows are points of the cloud with which fewer places are empty.
    #[test]
    fn rows_are_of_the_cloud_that_fills_them() {
        let sides = |x, y| Comparison::both(4).sides([x, y], 2).start;
        assert_eq!(
            [sides(1000, 300), sides(300, 1000), sides(1, 5000), sides(5000, 1)],
            [0, 1, 1, 0]
        );
        assert_eq!([sides(700, 700), sides(300, 250), sides(250, 300)], [0, 1, 0]);
    }

    const ONE: u32 = 1.0f32.to_bits();

    /// All multiprocessors have as much to do, or nearly.
    #[test]
    fn tiles_share_the_work() {
        let options = ChamferOptions::default();
        for (kernel, n_own) in [(Comparison::narrow(4), 256), (Comparison::both(4), 256)] {
            let batch = lists(&[2048; 32], &[2048; 32], &options, kernel);
            assert_eq!(batch.nearest.len() % n_own, 0);
            assert!(batch.nearest.len() >= 512);
            let one = lists(&[10_000], &[10_000], &options, kernel);
            let n = one.nearest.len();
            // Of 132 multiprocessors hardly any has one less than the others.
            assert!(n >= 3 * 132 && n.div_ceil(132) * 132 - n <= 40, "{n}");
        }
    }
}
