//! Similarities of one tile of documents and one panel of queries.

use std::ops::Range;

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use crate::error::Result;
use crate::runtime::alloc::fill;

/// Most query tokens of a panel. The widest GEMM micro-kernel (AVX-512) has 64 rows.
pub(crate) const PANEL_LEN: usize = 64;

/// Panel widths are multiples of this: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// Most document tokens of a tile: a multiple of the micro-kernels' 4 and 6 columns, and the
/// most for which `gemm` reads the query panel in place (8 · 6) instead of packing it anew.
pub(crate) const TILE_LEN: usize = 48;

/// Longest run of dims that one GEMM call adds up. `gemm` splits longer ones by rules that
/// depend on the shape of the whole call; splitting here keeps similarities independent of it.
const DEPTH_LEN: usize = 512;

/// Fewest rows of a tile: a single one would take `gemm`'s matrix-vector route, which adds
/// up in another order. The caller adds a row.
pub(crate) const MIN_ROWS: usize = 2;

/// Writes `similarities[t · width + s] = Σ_k panel[k · width + s] · rows[t · dim + k]`.
///
/// `panel` is `[dim, width]`, `rows` `[n_rows, dim]`, `similarities` `[n_rows, width]`.
/// Every similarity is added up in the same order, whatever its `s` and `t`.
///
/// # Panics
/// When a slice has another length, or a size is outside what the engine uses.
pub(crate) fn similarities(
    panel: &[f32],
    width: usize,
    rows: &[f32],
    dim: usize,
    similarities: &mut [f32],
) {
    for (start, end) in blocks(dim) {
        multiply(panel, width, rows, dim, start..end, start > 0, similarities);
    }
}

/// As [`similarities`] of whole numbers, exact up to i32's range and then rounded once. Their
/// products are at most 128 · 255, so that a block's sum is below 2²⁴, where f32 has all whole
/// numbers.
pub(crate) fn integer_similarities(
    panel: &[f32],
    width: usize,
    rows: &[f32],
    dim: usize,
    sums: &mut Vec<i32>,
    similarities: &mut [f32],
) -> Result<()> {
    const { assert!(DEPTH_LEN * 128 * 255 < 1 << 24) };
    if dim <= DEPTH_LEN {
        multiply(panel, width, rows, dim, 0..dim, false, similarities);
        return Ok(());
    }
    fill(sums, similarities.len(), 0)?;
    for (start, end) in blocks(dim) {
        multiply(panel, width, rows, dim, start..end, false, similarities);
        sums.iter_mut().zip(&*similarities).for_each(|(sum, &part)| *sum += part as i32);
    }
    similarities.iter_mut().zip(sums).for_each(|(value, sum)| *value = *sum as f32);
    Ok(())
}

/// The runs of dims that are added up at once: of nearly equal length, so that none is short.
fn blocks(dim: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_blocks = dim.div_ceil(DEPTH_LEN);
    (0..n_blocks).map(move |block| (block * dim / n_blocks, (block + 1) * dim / n_blocks))
}

/// Writes the part of [`similarities`] that the dims of `block` are, or adds it to what is there.
#[allow(unsafe_code)]
fn multiply(
    panel: &[f32],
    width: usize,
    rows: &[f32],
    dim: usize,
    block: Range<usize>,
    adds: bool,
    similarities: &mut [f32],
) {
    let n_rows = rows.len() / dim;
    assert!(width > 0 && width <= PANEL_LEN && width.is_multiple_of(LANES));
    assert!((MIN_ROWS..=TILE_LEN).contains(&n_rows));
    assert_eq!(panel.len(), dim * width);
    assert_eq!(rows.len(), dim * n_rows);
    assert_eq!(similarities.len(), n_rows * width);
    let Range { start, end } = block;
    assert!(start <= end && end <= dim);
    // SAFETY: with depth = end - start ≤ dim - start, `gemm` reads elements s + k · width
    // of `panel[start · width ..]` and k + t · dim of `rows[start ..]`, and reads and
    // writes elements s + t · width of `similarities`, for s < width, t < n_rows,
    // k < depth. The asserted lengths hold all of them, the strides fit an isize because
    // the slices exist, and `similarities` is borrowed mutably, so nothing overlaps it.
    unsafe {
        get_gemm_fn()(
            width,
            n_rows,
            end - start,
            similarities.as_mut_ptr(),
            width as isize,
            1,
            adds,
            panel[start * width..].as_ptr(),
            width as isize,
            1,
            rows[start..].as_ptr(),
            dim as isize,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small numbers whose products need rounding.
    fn value(i: usize) -> f32 {
        ((i * 2_654_435_761) % 1009) as f32 / 761.0 - 0.6
    }

    #[test]
    fn identical_rows_tie_bitwise_wherever_they_lie() {
        for dim in
            [1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 64, 127, 128, 129, 511, 512, 513, 1023, 1025]
        {
            let row: Vec<f32> = (0..dim).map(value).collect();
            let token: Vec<f32> = (0..dim).map(|k| value(k + 7777)).collect();
            let mut seen = None;
            for width in (LANES..=PANEL_LEN).step_by(LANES) {
                let panel: Vec<f32> = (0..dim * width).map(|i| token[i / width]).collect();
                for n_rows in MIN_ROWS..=TILE_LEN {
                    let rows = row.repeat(n_rows);
                    let mut found = vec![f32::NAN; n_rows * width];
                    similarities(&panel, width, &rows, dim, &mut found);
                    let expected = *seen.get_or_insert(found[0]);
                    assert!(
                        found.iter().all(|x| x.to_bits() == expected.to_bits()),
                        "dim {dim}, width {width}, {n_rows} rows"
                    );
                }
            }
        }
    }

    #[test]
    fn similarities_are_dot_products() {
        let (dim, width, n_rows) = (1025, 32, 5);
        let panel: Vec<f32> = (0..dim * width).map(value).collect();
        let rows: Vec<f32> = (0..dim * n_rows).map(|i| value(i + 31)).collect();
        let mut found = vec![f32::NAN; n_rows * width];
        similarities(&panel, width, &rows, dim, &mut found);
        for t in 0..n_rows {
            for s in 0..width {
                let terms = (0..dim)
                    .map(|k| f64::from(panel[k * width + s]) * f64::from(rows[t * dim + k]));
                let (sum, size) = terms.fold((0.0, 0.0), |(a, b), x| (a + x, b + x.abs()));
                assert!((f64::from(found[t * width + s]) - sum).abs() <= 1e-5 * size);
            }
        }
    }
}
