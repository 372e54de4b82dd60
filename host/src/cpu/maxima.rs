//! Running maxima over the tokens of a document, one per query token of a panel.

use pulp::{Arch, Simd, WithSimd};

use crate::linalg::gemm::{LANES, PANEL_LEN};

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
        arch.dispatch(TakeIn { maxima: self, similarities, width, token, with_winners });
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
    fn with_simd<S: Simd>(self, _: S) {
        // Two registers at a time hide the latency of the compare-and-select chain.
        let mut column = 0;
        while column < self.width {
            let is_pair = self.width - column >= 2 * LANES;
            let (best, winners) =
                (&mut self.maxima.best[column..], &mut self.maxima.winners[column..]);
            let rows = self.similarities[column..].chunks(self.width);
            match (is_pair, self.with_winners) {
                (true, false) => take_in_columns::<32, false>(best, winners, rows, self.token),
                (true, true) => take_in_columns::<32, true>(best, winners, rows, self.token),
                (false, false) => take_in_columns::<16, false>(best, winners, rows, self.token),
                (false, true) => take_in_columns::<16, true>(best, winners, rows, self.token),
            }
            column += if is_pair { 2 * LANES } else { LANES };
        }
    }
}

/// Accumulates the first `N` similarities of every row.
#[inline(always)]
fn take_in_columns<'a, const N: usize, const WINNERS: bool>(
    best: &mut [f32],
    winners: &mut [i32],
    rows: impl Iterator<Item = &'a [f32]>,
    token: i32,
) {
    // Copies, so that they live in registers.
    let (mut b, mut w) = ([0.0; N], [0; N]);
    b.copy_from_slice(&best[..N]);
    w.copy_from_slice(&winners[..N]);
    for (token, row) in (token..).zip(rows) {
        let row = &row[..N];
        for i in 0..N {
            // A NaN replaces the best, and then stays: only another NaN replaces it.
            let is_better = (row[i] > b[i]) | row[i].is_nan();
            b[i] = if is_better { row[i] } else { b[i] };
            if WINNERS {
                w[i] = if is_better { token } else { w[i] };
            }
        }
    }
    best[..N].copy_from_slice(&b);
    winners[..N].copy_from_slice(&w);
}
