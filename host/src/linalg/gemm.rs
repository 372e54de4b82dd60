//! Similarities of one tile of documents and one panel of queries.

use super::kernels::{Kernel, Operand, Plus, Tile};

/// Most query tokens of a panel.
pub(crate) const PANEL_LEN: usize = 64;

/// Panel widths are multiples of this: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// Most document tokens of a tile: a multiple of the kernels' 4, 6, 8 and 16 rows, little enough
/// for the tile and its products to stay in the first-level cache.
pub(crate) const TILE_LEN: usize = 48;

/// Longest run of dims that is added up in one chain of floating point numbers.
const DEPTH_LEN: usize = 512;

/// A panel and a tile: groups of 32 bits of both, as a [`Kernel`] reads them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides<'a> {
    /// `[groups, width]`.
    pub panel: &'a [u32],
    pub width: usize,
    /// Of whole numbers, a number for each column that is added to its products; else empty.
    pub added: &'a [u32],
    /// `[rows, groups]`.
    pub rows: &'a [u32],
    pub groups: usize,
    /// What will be read next; see [`Tile::ahead`].
    pub ahead: &'a [u8],
}

/// Writes `products[t · width + s] = Σ_k panel[k · width + s] · rows[t · groups + k]`: bits of f32,
/// or of i32 where the kernel multiplies whole numbers. They are `[rows, width]`.
///
/// Every product is added up in the same order, whatever its `s` and `t`: in one chain for each
/// block of dims, and blocks depend on dim alone.
///
/// # Panics
/// When a slice has another length, or a size is outside what the engine uses.
pub(crate) fn products(kernel: &Kernel, sides: Sides<'_>, products: &mut [u32]) {
    let Sides { panel, width, added, rows, groups, ahead } = sides;
    let mut tile =
        Tile { panel, width, rows, groups, block: 0..groups, plus: Plus::Nothing, ahead, products };
    let depth = DEPTH_LEN / kernel.operand().group();
    if kernel.operand().is_integer() || kernel.chain_len() <= depth {
        if !added.is_empty() {
            tile.plus = Plus::Columns(added);
        }
        return kernel.multiply(tile);
    }
    for (start, end) in blocks(groups, depth) {
        let plus = if start > 0 { Plus::Products } else { Plus::Nothing };
        let ahead = if end == groups { ahead } else { &[] };
        let products = &mut *tile.products;
        kernel.multiply(Tile { block: start..end, plus, ahead, products, ..tile });
    }
}

/// [`products`] of f32: `panel` is `[dim, width]`, `rows` `[n_rows, dim]`, `similarities`
/// `[n_rows, width]`.
pub(crate) fn similarities(
    kernel: &Kernel,
    panel: &[f32],
    width: usize,
    rows: &[f32],
    dim: usize,
    similarities: &mut [f32],
) {
    debug_assert_eq!(kernel.operand(), Operand::F32);
    let (panel, rows) = (bytemuck::cast_slice(panel), bytemuck::cast_slice(rows));
    let sides = Sides { panel, width, added: &[], rows, groups: dim, ahead: &[] };
    products(kernel, sides, bytemuck::cast_slice_mut(similarities));
}

/// The runs of at most `most` groups that are added up at once: of nearly equal length, so that
/// none is short.
fn blocks(groups: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_blocks = groups.div_ceil(most);
    (0..n_blocks).map(move |block| (block * groups / n_blocks, (block + 1) * groups / n_blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::kernels::Kernels;

    /// Small numbers whose products need rounding.
    fn value(i: usize) -> f32 {
        ((i * 2_654_435_761) % 1009) as f32 / 761.0 - 0.6
    }

    #[test]
    fn identical_rows_tie_bitwise_wherever_they_lie() {
        let kernel = Kernels::get().unwrap().f32;
        for dim in
            [1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 64, 127, 128, 129, 511, 512, 513, 1023, 1025]
        {
            let row: Vec<f32> = (0..dim).map(value).collect();
            let token: Vec<f32> = (0..dim).map(|k| value(k + 7777)).collect();
            let mut seen = None;
            for width in (LANES..=PANEL_LEN).step_by(LANES) {
                let panel: Vec<f32> = (0..dim * width).map(|i| token[i / width]).collect();
                for n_rows in 1..=TILE_LEN {
                    let rows = row.repeat(n_rows);
                    let mut found = vec![f32::NAN; n_rows * width];
                    similarities(kernel, &panel, width, &rows, dim, &mut found);
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
        let kernel = Kernels::get().unwrap().f32;
        let (dim, width, n_rows) = (1025, 32, 5);
        let panel: Vec<f32> = (0..dim * width).map(value).collect();
        let rows: Vec<f32> = (0..dim * n_rows).map(|i| value(i + 31)).collect();
        let mut found = vec![f32::NAN; n_rows * width];
        similarities(kernel, &panel, width, &rows, dim, &mut found);
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
