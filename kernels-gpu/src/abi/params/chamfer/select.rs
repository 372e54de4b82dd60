//! Host/device ABI of the selection of points that may be nearest, by products on tensor cores.
//!
//! Points are copied as f16 rows, centred and scaled by a power of two, with three terms more: the
//! product of a *query* row of p and a *document* row of q is
//!
//! ```text
//! s(p, q) = ⟨p̂, q̂⟩ − ‖q̂‖²/2        ‖p̂ − q̂‖² = ‖p̂‖² − 2 s(p, q)
//! ```
//!
//! A forward kernel finds the largest s of each point over *blocks* of the other cloud's points,
//! and blocks that may have the nearest one are compared by differences.

use crate::abi::params::chamfer::{Clouds, NARROW_DIM, THREADS, wide_shared_bytes};

/// Points of a block of the other cloud: a document of the forward kernel.
pub const BLOCK: u32 = 128;

/// Most points of a query of the forward kernel.
pub const ITEM: u32 = 256;

/// Threads per CTA of `maxsim_chamfer_extents` and `maxsim_chamfer_copies`.
pub const COPY_THREADS: usize = 256;

/// Points of a warp there.
pub const COPY_POINTS: u32 = 4;

/// Points of a CTA there.
pub const COPY_LEN: u32 = COPY_THREADS as u32 / 32 * COPY_POINTS;

/// Threads per CTA of `maxsim_chamfer_select`.
pub const SELECT_THREADS: usize = 256;

/// Points of a CTA there, one for each lane, and bits of a word of the masks.
pub const SELECT_POINTS: u32 = 32;

/// Dynamic shared memory of that: the largest s of each point by each warp.
pub const SELECT_SHARED_BYTES: usize = SELECT_THREADS * 4;

/// Points of a CTA of `maxsim_chamfer_sm90_select`, and threads.
pub const HALVES_POINTS: u32 = 256;

/// Dynamic shared memory of that: the least t by each warp, bounds, and bits of points.
pub const HALVES_SHARED_BYTES: usize =
    (HALVES_POINTS as usize / 32 + 1) * HALVES_POINTS as usize * 2 + HALVES_POINTS as usize / 8;

/// Points that a CTA of `maxsim_chamfer_refine` compares with a block at a time.
pub const REFINE_POINTS: u32 = 32;

/// CTAs that share the points that want a block.
pub const REFINE_SHARES: u32 = 8;

/// Offset in shared memory of the list of points there, behind what comparing takes.
pub const REFINE_LIST: usize = wide_shared_bytes(REFINE_POINTS);

/// Dynamic shared memory of that: the list, and a number for each warp.
pub const REFINE_SHARED_BYTES: usize = REFINE_LIST + REFINE_POINTS as usize * 4 + THREADS / 32 * 4;

/// Largest |s| of points that are there, but for clouds whose coordinates are close to 2¹²⁷: then
/// blocks are compared for nothing.
pub const MARK: f32 = 30000.0;

/// s of points that are masked, of which products are smaller: negative. That of points with NaN or
/// infinity, whose blocks are always compared.
pub const MARKED: f32 = 60000.0;

/// Dims of copies of points of so many dims: three terms, in whole vectors of tensor cores.
pub const fn copied_dim(dim: usize) -> usize {
    (dim + 3).next_multiple_of(16)
}

/// Least dims of points that are selected so.
pub const SELECTED_DIM: usize = NARROW_DIM + 1;

/// Most dims, with which copies have no more than tokens may have.
pub const SELECTED_DIM_MAX: usize = 4096 - 16;

/// What is known of a pair: words of which larger ones replace others, 0 before.
pub mod extent {
    /// Bits of the largest magnitude of a centred coordinate.
    pub const MOST: u32 = 0;
    /// Bits of the largest ‖q̂‖² of each cloud.
    pub const NORMS: u32 = 1;
    /// Bits of the largest finite error of a copy of each.
    pub const ERRORS: u32 = 3;
    /// Words of a pair.
    pub const LEN: u32 = 8;
}

/// Points that a CTA of the kernels that copy points has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyTask {
    /// Twice the number of the pair, and the side of the points.
    pub pair_and_side: u32,
    /// First point.
    pub first: u32,
    /// Row of its copy.
    pub row: u32,
    /// 0.
    pub reserved: u32,
}

/// Parameters of the kernels that copy points.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyParams {
    /// The clouds.
    pub clouds: Clouds,
    /// Address of a [`CopyTask`] for each CTA: [`COPY_LEN`] points.
    pub tasks: u64,
    /// Address of [`extent::LEN`] words for each pair.
    pub extents: u64,
    /// Address of the f16 query rows; of those of [`super::products`], where copies are such.
    pub queries: u64,
    /// Address of the f16 document rows.
    pub documents: u64,
    /// Address of the f32 ‖p̂‖², by place.
    pub norms: u64,
    /// Address of the f32 distances between p̂ and the scaled point, no smaller than they are, by
    /// place; infinite where a point is not finite.
    pub errors: u64,
    /// Address of a word for each 128 rows of [`super::products`]: not 0 where a point of theirs
    /// is not finite. 0 before.
    pub odd: u64,
    /// Dims of a row of a copy.
    pub copied_dim: u32,
    /// 1 where copies are those of [`super::products`]; rows behind a cloud's last point are then
    /// such as are masked.
    pub is_halved: u32,
}

/// Parameters of `maxsim_chamfer_select`, a CTA per [`SELECT_POINTS`] points, and of
/// `maxsim_chamfer_refine`, [`REFINE_SHARES`] CTAs per block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RefineParams {
    /// What was copied.
    pub copies: CopyParams,
    /// Address of the keys, by place of all pairs.
    pub keys: u64,
    /// Address of the f32 largest s: for each query, for each block, for each point. Or of the f16
    /// least t of [`super::products`]: for each block, for each point.
    pub maxima: u64,
    /// Address of the f32 largest s of each point in earlier calls, by place, and with what this
    /// one finds; 0 where there is only one call.
    pub bests: u64,
    /// Address of a word for each block: not 0 where it is wanted by every point.
    pub odd: u64,
    /// Address of a word for each block, for each [`SELECT_POINTS`] points: a bit for each point
    /// that may have its neighbour in the block.
    pub masks: u64,
    /// Twice the number of the pair, and the side of the points.
    pub pair_and_side: u32,
    /// First point.
    pub first: u32,
    /// Points.
    pub n_points: u32,
    /// Blocks of the other cloud.
    pub n_blocks: u32,
    /// The first of them.
    pub first_block: u32,
    /// Bytes of the least t of a block.
    pub pitch_bytes: u32,
    /// Whether points are rows of products, so that their t have places of their own.
    pub are_rows: u32,
    /// Whether this is the first call for these points.
    pub is_first: u32,
}

impl RefineParams {
    /// Words of a block's masks: a bit for each place that a point may have.
    #[inline(always)]
    pub const fn n_words(&self) -> u32 {
        let n_places = match self.are_rows {
            0 => self.n_points,
            // The last block's rows are anywhere in it.
            _ => self.n_points.div_ceil(BLOCK) * BLOCK,
        };
        n_places.div_ceil(SELECT_POINTS)
    }
}

/// A power of two that coordinates up to a magnitude, given by its bits, are multiplied by: the
/// products are below 1, or a small number where the magnitude is close to the largest of f32.
#[inline(always)]
pub const fn scale(most: u32) -> f32 {
    let exponent = 253 - (most >> 23) as i32;
    f32::from_bits((if exponent < 1 { 1 } else { exponent } as u32) << 23)
}

/// What is known of a point, and of the other cloud.
#[derive(Clone, Copy, Debug)]
pub struct SelectedPoint {
    /// ‖p̂‖².
    pub norm: f32,
    /// The distance of p̂ from the scaled point, or more.
    pub error: f32,
    /// The largest ‖q̂‖².
    pub other_norm: f32,
    /// The largest error of a q̂.
    pub other_error: f32,
    /// What coordinates are multiplied by.
    pub scale: f32,
    /// Dims of copies.
    pub dims: f32,
}

/// 2⁻²²
const ULP: f32 = 1.0 / 4_194_304.0;

impl SelectedPoint {
    /// A number that s of no point is below whose distance, by differences in f32, is as given or
    /// smaller. `root` is the square root.
    ///
    /// With D the distance of the scaled points, that of copies is at most D + e_p + e_q, and
    /// s = (‖p̂‖² − ‖p̂ − q̂‖²)/2. A sum of n squares in f32 is at least (1 − (n + 2) · 2⁻²⁴) of
    /// what it is, and products of tensor cores, which cut what they add off behind 23 bits of the
    /// largest, are off by less than (n + 64) · 2⁻²² · (‖p̂‖ ‖q̂‖ + ‖q̂‖²/2).
    #[inline(always)]
    pub fn bound(&self, distance: f32, root: impl Fn(f32) -> f32 + Copy) -> f32 {
        let far = self.far(distance, root);
        let bound = 0.5 * (self.norm - far * far) - self.rounded(root) - 8.0 * ULP * far * far;
        if bound.is_nan() { f32::NEG_INFINITY } else { bound }
    }

    /// A number that t of no point is above whose distance, by differences in f32, is as given or
    /// smaller: as [`SelectedPoint::bound`], of half the squared distance of copies.
    #[inline(always)]
    pub fn bound_of_half(&self, distance: f32, root: impl Fn(f32) -> f32 + Copy) -> f32 {
        let far = self.far(distance, root);
        let bound = (0.5 + 8.0 * ULP) * far * far + self.rounded(root);
        if bound.is_nan() { f32::INFINITY } else { bound }
    }

    /// No smaller than the distance, by differences in f32, of a point with such a t, cut off to
    /// f16: that was less than one step larger.
    #[inline(always)]
    pub fn reach_of_half(&self, t: f32, root: impl Fn(f32) -> f32 + Copy) -> f32 {
        let whole = t * (1.0 + 1.0 / 1024.0) + 1.0 / 16_777_216.0;
        self.reach_of_squared(2.0 * whole, root)
    }

    /// No smaller than the distance, by differences in f32, of a point that has such an s.
    ///
    /// That of copies is √(‖p̂‖² − 2 s) where s is what it is; three times what it may be off by
    /// are added, since the difference is rounded, too.
    #[inline(always)]
    pub fn reach(&self, s: f32, root: impl Fn(f32) -> f32 + Copy) -> f32 {
        self.reach_of_squared(self.norm - 2.0 * s, root)
    }

    /// As [`SelectedPoint::reach`], by the squared distance of copies as products say it.
    #[inline(always)]
    fn reach_of_squared(&self, squared: f32, root: impl Fn(f32) -> f32 + Copy) -> f32 {
        let SelectedPoint { error, other_error, scale, dims, .. } = *self;
        let squared = squared + 6.0 * self.rounded(root);
        let near = root(if squared > 0.0 { squared } else { 0.0 });
        let far = (near + error + other_error) * (1.0 + 8.0 * ULP) / scale;
        far * far * (1.0 + dims * ULP) + dims * f32::MIN_POSITIVE
    }

    /// No smaller than how far copies are of points at a distance, by differences in f32.
    #[inline(always)]
    fn far(&self, distance: f32, root: impl Fn(f32) -> f32) -> f32 {
        let SelectedPoint { error, other_error, scale, dims, .. } = *self;
        // Squares may be too small for f32, too.
        let distance = distance * (1.0 + dims * ULP) + dims * f32::MIN_POSITIVE;
        (root(distance) * scale + error + other_error) * (1.0 + 8.0 * ULP)
    }

    /// No smaller than what a product s is off by, or t.
    #[inline(always)]
    fn rounded(&self, root: impl Fn(f32) -> f32) -> f32 {
        let SelectedPoint { norm, other_norm, dims, .. } = *self;
        // Tensor cores take elements below 2⁻¹⁴ for as large as that.
        let small = root(dims) * (1.0 / 16384.0);
        let (own, other) = (root(norm) + small, root(other_norm) + small);
        // The terms of ‖q̂‖²/2 meet an element that is 1: below 2⁻¹⁴ they count for that, and what
        // is added with them is cut off behind 23 bits of it, two steps of at most 17 addends.
        let terms = ULP / 512.0;
        (dims + 64.0) * ULP * (own * other + 0.5 * (own * own + other * other)) + terms
    }
}

const _: () = assert!(ITEM.is_multiple_of(SELECT_POINTS) && SELECT_POINTS == u32::BITS);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// A number of 11 bits, as f16 has them, rounded to nearest.
    fn copied(x: f32) -> f32 {
        f32::from_bits((x.to_bits() + 0x1000) & !0x1FFF)
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    }

    /// A number from 0 on, cut off to f16.
    fn cut_off(x: f64) -> f32 {
        let step = 2f64.powi(x.max(2f64.powi(-14)).log2().floor() as i32 - 10);
        ((x.max(0.0) / step).floor() * step) as f32
    }

    /// Points of a cloud of `DIM` dims, some of them near the others, and what is known of them.
    struct Copies<const DIM: usize> {
        points: Vec<[f32; DIM]>,
        copies: Vec<[f32; DIM]>,
        errors: Vec<f32>,
    }

    impl<const DIM: usize> Copies<DIM> {
        fn new(n: usize, scale: f32) -> Copies<DIM> {
            let mut state = 7u64;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
            };
            let mut points: Vec<[f32; DIM]> = Vec::new();
            for i in 0..n {
                let near = if i % 3 > 0 { points[i - 1] } else { [0.0; DIM] };
                let by = if i % 3 > 0 { 1e-3 } else { 1.0 };
                points.push(near.map(|x| x + by * next()));
            }
            let copies: Vec<_> = points.iter().map(|p| p.map(|x| copied(x * scale))).collect();
            let error = |(p, copy): (&[f32; DIM], &[f32; DIM])| {
                let off = p.iter().zip(copy).map(|(x, y)| f64::from(x * scale - y).powi(2));
                (off.sum::<f64>().sqrt() * 1.000_001) as f32
            };
            let errors = points.iter().zip(&copies).map(error).collect();
            Copies { points, copies, errors }
        }

        /// Pairs of points whose s is below the bound of their distance, and of what s says that
        /// the distance may be; the same of t, cut off; and of t as if it were not cut off.
        fn n_missed(&self, scale: f32, errors: &[f32]) -> [usize; 5] {
            let most = |of: &[f32]| of.iter().fold(0.0f32, |most, &x| most.max(x));
            let norms: Vec<f32> = self.copies.iter().map(|p| dot(p, p) as f32).collect();
            let mut n_missed = [0; 5];
            for (i, p) in self.points.iter().enumerate() {
                let point = SelectedPoint {
                    norm: norms[i],
                    error: errors[i],
                    other_norm: most(&norms),
                    other_error: most(errors),
                    scale,
                    dims: copied_dim(DIM) as f32,
                };
                for (j, q) in self.points.iter().enumerate() {
                    let differences = p.iter().zip(q).map(|(p, q)| p - q);
                    let distance = differences.fold(0.0f32, |sum, x| x.mul_add(x, sum));
                    let copies = [&self.copies[i], &self.copies[j]];
                    let s = dot(copies[0], copies[1]) - 0.5 * dot(copies[1], copies[1]);
                    n_missed[0] += usize::from(s < f64::from(point.bound(distance, f32::sqrt)));
                    n_missed[1] += usize::from(point.reach(s as f32, f32::sqrt) < distance);
                    let t = cut_off(0.5 * dot(copies[0], copies[0]) - s);
                    n_missed[2] += usize::from(t > point.bound_of_half(distance, f32::sqrt));
                    n_missed[3] += usize::from(point.reach_of_half(t, f32::sqrt) < distance);
                    let whole = point.reach_of_squared(2.0 * t, f32::sqrt);
                    n_missed[4] += usize::from(whole < distance);
                }
            }
            n_missed
        }
    }

    /// No point is missed, however near; without the errors of copies many are.
    #[test]
    fn bounds_miss_no_point() {
        let scale = scale(0.51f32.to_bits());
        let copies = Copies::<40>::new(150, scale);
        let missed = copies.n_missed(scale, &copies.errors);
        assert_eq!(missed[..4], [0; 4]);
        let missed_if_whole = missed[4];
        let missed = copies.n_missed(scale, &vec![0.0; copies.errors.len()]);
        assert!(missed[0] > 100 && missed[1] > 20, "{missed:?}");
        assert!(missed[2] > 20 && missed_if_whole > 0, "{missed:?}, {missed_if_whole}");
    }

    #[test]
    fn scales_are_powers_of_two() {
        for most in [1e-40f32, 1e-38, 0.5, 0.999, 1.0, 3.0, 1e30, f32::MAX] {
            let scale = scale(most.to_bits());
            assert_eq!(scale.to_bits() & 0x7F_FFFF, 0);
            let scaled = scale * most;
            assert!(scaled < if most > 1e37 { 8.0 } else { 1.0 }, "{most}");
            assert!(scaled >= 0.5 || most < 1e-37, "{most}");
        }
    }
}
