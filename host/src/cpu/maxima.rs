//! Running maxima over the tokens of a document, one per query token of a panel.

use pulp::{Arch, Simd, WithSimd};

use crate::linalg::gemm::PANEL_LEN;
use crate::linalg::kernels::dispatch;

/// The best similarity so far of every column of a panel, and the token that has it.
#[derive(Clone, Debug)]
pub(super) struct Maxima {
    pub best: [f32; PANEL_LEN],
    /// Kept up to date only where winners are asked for.
    pub winners: [i32; PANEL_LEN],
}

impl Maxima {
    pub fn new() -> Maxima {
        Maxima { best: [f32::NEG_INFINITY; PANEL_LEN], winners: [-1; PANEL_LEN] }
    }

    /// Accumulates `similarities` `[n_rows, width]` of the document tokens from `token` on;
    /// `is_first` when they are the document's first valid ones.
    pub fn take_in(
        &mut self,
        arch: Arch,
        similarities: &[f32],
        width: usize,
        token: usize,
        is_first: bool,
        with_winners: bool,
    ) {
        if is_first {
            self.best[..width].copy_from_slice(&similarities[..width]);
            self.winners[..width].fill(token as i32);
        }
        let token = token as i32;
        dispatch(arch, TakeIn { maxima: self, similarities, width, token, with_winners });
    }
}

/// The loop of [`Maxima::take_in`], compiled for the widest registers that the CPU has.
struct TakeIn<'a> {
    maxima: &'a mut Maxima,
    similarities: &'a [f32],
    width: usize,
    token: i32,
    with_winners: bool,
}

impl WithSimd for TakeIn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Two registers at a time hide the latency of the compare-and-select chain.
        let mut column = 0;
        while column < self.width {
            let is_pair = self.width - column >= 2 * S::F32_LANES;
            match (is_pair, self.with_winners) {
                (true, false) => self.columns::<S, 2, false>(simd, column),
                (true, true) => self.columns::<S, 2, true>(simd, column),
                (false, false) => self.columns::<S, 1, false>(simd, column),
                (false, true) => self.columns::<S, 1, true>(simd, column),
            }
            column += if is_pair { 2 } else { 1 } * S::F32_LANES;
        }
    }
}

impl TakeIn<'_> {
    /// Accumulates `V` registers of columns.
    #[inline(always)]
    fn columns<S: Simd, const V: usize, const WINNERS: bool>(&mut self, simd: S, column: usize) {
        let columns = column..column + V * S::F32_LANES;
        let best = &mut self.maxima.best[columns.clone()];
        let winners = &mut self.maxima.winners[columns.clone()];
        let rows = self.similarities.chunks_exact(self.width).map(|row| &row[columns.clone()]);
        // In registers.
        let mut b: [S::f32s; V] = std::array::from_fn(|v| S::as_simd_f32s(best).0[v]);
        let mut w: [S::i32s; V] = std::array::from_fn(|v| S::as_simd_i32s(winners).0[v]);
        let mut sum = b;
        for (token, row) in (self.token..).zip(rows.clone()) {
            let (row, token) = (S::as_simd_f32s(row).0, simd.splat_i32s(token));
            for v in 0..V {
                let is_better = simd.greater_than_f32s(row[v], b[v]);
                b[v] = simd.select_f32s(is_better, row[v], b[v]);
                if WINNERS {
                    w[v] = simd.select_i32s(is_better, token, w[v]);
                }
                // A NaN anywhere makes this one.
                sum[v] = simd.add_f32s(sum[v], row[v]);
            }
        }
        let sum = sum[1..].iter().fold(sum[0], |a, &b| simd.add_f32s(a, b));
        if simd.reduce_sum_f32s(sum).is_nan() {
            return take_in_nans(best, winners, rows, self.token);
        }
        S::as_mut_simd_f32s(best).0.copy_from_slice(&b);
        if WINNERS {
            S::as_mut_simd_i32s(winners).0.copy_from_slice(&w);
        }
    }
}

/// As [`TakeIn::columns`], where there may be NaNs: one replaces the best, and then stays. Only
/// another NaN replaces it.
#[inline(never)]
fn take_in_nans<'a>(
    best: &mut [f32],
    winners: &mut [i32],
    rows: impl Iterator<Item = &'a [f32]>,
    token: i32,
) {
    for (token, row) in (token..).zip(rows) {
        for ((best, winner), &x) in best.iter_mut().zip(&mut *winners).zip(row) {
            if x > *best || x.is_nan() {
                (*best, *winner) = (x, token);
            }
        }
    }
}
