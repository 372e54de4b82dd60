//! Gradients through a projection, some rows after the other.
//!
//! Of tokens d̂ = u · r with the gradient G, and rows that no query token chose left out, whatever
//! they hold:
//!
//! ```text
//! ∂u = r · (G - d̂ · ⟨d̂, G⟩), or r · G where r is constant    ∂H = ∂u · W
//! ∂W = Σ ∂uᵀ · H                                             ∂b = Σ ∂u
//! ```
//!
//! The sums go over [`DEPTH`] rows at a time, in the order of the rows: no bit depends on the
//! number of threads.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::{Panels, Scratch, Weights};
use crate::error::Result;
use crate::linalg::gemm::{PANEL_LEN, TILE_LEN};
use crate::linalg::normalize::add_projected;
use crate::runtime::alloc::{fill, filled};
use crate::runtime::interrupt::Interrupt;
use crate::runtime::pool::Parallel;
use crate::tokens::element::Element;

/// Rows whose products are summed by one multiplication, at most.
const DEPTH: usize = 256;

/// The gradients of a projection, as far as rows have been added.
pub(crate) struct ProjectionSums<'a> {
    weights: &'a Weights,
    /// W, which rows of ∂u are multiplied with.
    panels: Panels,
    /// (∂W)ᵀ, `[hidden, dim]`.
    weight: Vec<f32>,
    bias: Vec<f64>,
}

/// Memory of a thread.
#[derive(Default)]
struct TileScratch {
    forward: Scratch,
    /// ∂u of a tile.
    of_projected: Vec<f32>,
    products: Vec<f32>,
    /// Rows of the tile that have a gradient.
    active: Vec<usize>,
}

impl<'a> ProjectionSums<'a> {
    pub(crate) fn new(weights: &'a Weights) -> Result<ProjectionSums<'a>> {
        let (dim, hidden) = (weights.dim, weights.hidden);
        let mut panels = Panels::default();
        panels.pack(dim, hidden, |k, column| weights.values[k * hidden + column])?;
        let weight = filled((dim * hidden) as u64, 0.0)?;
        Ok(ProjectionSums { weights, panels, weight, bias: filled(dim as u64, 0.0)? })
    }

    /// Adds some rows: `of_tokens` is G, `[rows, dim]`, and becomes ∂u; ∂H is added to `of_hidden`.
    pub(crate) fn add<T: Element>(
        &mut self,
        hidden: &[T],
        of_tokens: &mut [f32],
        of_hidden: &mut [f32],
    ) -> Result<()> {
        let (dim, n) = (self.weights.dim, self.weights.hidden);
        let tiles = of_tokens.par_chunks_mut(TILE_LEN * dim);
        let tiles = tiles.zip(hidden.par_chunks(TILE_LEN * n));
        let tiles = tiles.zip(of_hidden.par_chunks_mut(TILE_LEN * n));
        let interrupt = &Interrupt::current();
        let this = &*self;
        Parallel::new().share(|min_len| {
            tiles.with_min_len(min_len).try_for_each_init(
                TileScratch::default,
                |scratch, ((of_tokens, hidden), of_hidden)| {
                    interrupt.check()?;
                    this.add_tile(hidden, of_tokens, of_hidden, scratch)
                },
            )
        })?;
        let rows = of_tokens.chunks_exact(dim).enumerate();
        let active = rows.filter(|(_, row)| has_gradient(row)).map(|(row, _)| row);
        let active: Vec<usize> = active.collect();
        for &row in &active {
            let of_projected = of_tokens[row * dim..][..dim].iter();
            self.bias.iter_mut().zip(of_projected).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        active.chunks(DEPTH).try_for_each(|rows| self.add_weights(hidden, of_tokens, rows))
    }

    /// Makes ∂u of a tile's G, and adds ∂H.
    fn add_tile<T: Element>(
        &self,
        hidden: &[T],
        of_tokens: &mut [f32],
        of_hidden: &mut [f32],
        TileScratch { forward, of_projected, products, active }: &mut TileScratch,
    ) -> Result<()> {
        let Weights { dim, hidden: n, normalize, .. } = *self.weights;
        active.clear();
        let rows = of_tokens.chunks_exact(dim).enumerate();
        active.extend(rows.filter(|(_, row)| has_gradient(row)).map(|(row, _)| row));
        if active.is_empty() {
            return Ok(());
        }
        if of_projected.is_empty() {
            fill(of_projected, TILE_LEN * dim, 0.0)?;
            fill(products, TILE_LEN * PANEL_LEN, 0.0)?;
        }
        if normalize {
            let rows = active.iter().map(|&row| &hidden[row * n..][..n]);
            self.weights.project_tile(rows, forward)?;
        }
        for (i, &row) in active.iter().enumerate() {
            let of_token = &mut of_tokens[row * dim..][..dim];
            let of_row = &mut of_projected[i * dim..][..dim];
            if normalize {
                let u = &forward.projected[i * dim..][..dim];
                of_row.fill(0.0);
                add_projected(u, self.weights.norm(u), of_token, of_row);
                of_token.copy_from_slice(of_row);
            } else {
                of_row.copy_from_slice(of_token);
            }
        }
        self.panels.multiply(of_projected, active.len(), products, |i, first, products| {
            let of_row = &mut of_hidden[active[i] * n + first..][..products.len()];
            of_row.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
        })
    }

    /// Adds the part of ∂W that some rows are.
    fn add_weights<T: Element>(
        &mut self,
        hidden: &[T],
        of_projected: &[f32],
        rows: &[usize],
    ) -> Result<()> {
        let (dim, n) = (self.weights.dim, self.weights.hidden);
        let mut panels = Panels::default();
        panels.pack(rows.len(), dim, |k, column| of_projected[rows[k] * dim + column])?;
        let panels = &panels;
        let columns = self.weight.par_chunks_mut(TILE_LEN * dim).enumerate();
        let interrupt = &Interrupt::current();
        Parallel::new().share(|min_len| {
            columns.with_min_len(min_len).try_for_each_init(
                || (Vec::new(), Vec::new()),
                |(transposed, products), (tile, sums)| {
                    interrupt.check()?;
                    if products.is_empty() {
                        fill(transposed, TILE_LEN * rows.len(), 0.0)?;
                        fill(products, TILE_LEN * PANEL_LEN, 0.0)?;
                    }
                    let (first, n_columns) = (tile * TILE_LEN, sums.len() / dim);
                    for (k, row) in rows.iter().enumerate() {
                        let stored = hidden[row * n + first..][..n_columns].iter();
                        let to = transposed.iter_mut().skip(k).step_by(rows.len());
                        to.zip(stored).for_each(|(x, &h)| *x = h.to_f32());
                    }
                    panels.multiply(transposed, n_columns, products, |column, first, products| {
                        let sums = &mut sums[column * dim + first..][..products.len()];
                        sums.iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
                    })
                },
            )
        })
    }

    /// ∂W, `[dim, hidden]`, and ∂b, which is empty without a bias.
    pub(crate) fn into_gradients(self) -> Result<(Vec<f32>, Vec<f32>)> {
        let (dim, hidden) = (self.weights.dim, self.weights.hidden);
        let mut weight = filled((dim * hidden) as u64, 0.0)?;
        for (output, row) in weight.chunks_exact_mut(hidden).enumerate() {
            let column = self.weight.iter().skip(output).step_by(dim);
            row.iter_mut().zip(column).for_each(|(to, &x)| *to = x);
        }
        let bias = self.bias.iter().take(self.weights.bias.len()).map(|&sum| sum as f32);
        Ok((weight, bias.collect()))
    }
}

/// Whether a row has a gradient: a NaN is one.
fn has_gradient(row: &[f32]) -> bool {
    row.iter().any(|&x| x != 0.0)
}
