//! Projects hidden states on the CPU: u = H · Wᵀ + b, tokens u · r, and the gradients through that.
//!
//! Rows pass by in tiles of at most [`TILE_LEN`], as documents do in scores, and a tile is
//! multiplied with one panel of W after the other. An element of u is one chain of fused
//! multiply-adds over the hidden states, in blocks that depend on their number alone, so that a
//! row's token has the same bits wherever the row lies.

pub(crate) mod gradients;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use crate::error::Result;
use crate::linalg::gemm::{LANES, PANEL_LEN, TILE_LEN, similarities};
use crate::linalg::kernels::Kernels;
use crate::linalg::normalize::row_norm;
use crate::runtime::alloc::{fill, filled, reserve};
use crate::runtime::interrupt::Interrupt;
use crate::runtime::pool::Parallel;
use crate::tokens::element::Element;
use crate::tokens::format::widen;

/// A projection as the engine multiplies with it.
#[derive(Debug)]
pub(crate) struct Weights {
    dim: usize,
    hidden: usize,
    /// W, `[dim, hidden]`.
    values: Vec<f32>,
    /// Wᵀ.
    panels: Panels,
    /// None or `dim` of it.
    bias: Vec<f32>,
    normalize: bool,
}

/// A matrix `[depth, columns]`, some columns at a time: panels as [`similarities`] reads them, with
/// columns of zeros behind the last one.
#[derive(Debug, Default)]
struct Panels {
    depth: usize,
    columns: usize,
    /// Each `[depth, width]`, one behind the other.
    values: Vec<f32>,
}

impl Panels {
    /// Packs the matrix whose element is `of(k, column)`.
    fn pack(
        &mut self,
        depth: usize,
        columns: usize,
        of: impl Fn(usize, usize) -> f32,
    ) -> Result<()> {
        (self.depth, self.columns) = (depth, columns);
        self.values.clear();
        reserve(&mut self.values, depth * columns.next_multiple_of(LANES))?;
        for first in (0..columns).step_by(PANEL_LEN) {
            let n = PANEL_LEN.min(columns - first);
            for k in 0..depth {
                let column = |s: usize| if s < n { of(k, first + s) } else { 0.0 };
                self.values.extend((0..n.next_multiple_of(LANES)).map(column));
            }
        }
        Ok(())
    }

    /// The panels: first column, number of columns, width, and values.
    fn iter(&self) -> impl Iterator<Item = (usize, usize, usize, &[f32])> {
        (0..self.columns).step_by(PANEL_LEN).map(|first| {
            let n = PANEL_LEN.min(self.columns - first);
            let width = n.next_multiple_of(LANES);
            (first, n, width, &self.values[first * self.depth..][..self.depth * width])
        })
    }

    /// Multiplies `n_rows` rows of `depth` elements with the matrix, and gives `take` the number of
    /// each row, the first column of some, and their products.
    fn multiply(
        &self,
        rows: &[f32],
        n_rows: usize,
        products: &mut [f32],
        mut take: impl FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let kernel = Kernels::get()?.f32;
        let rows = &rows[..n_rows * self.depth];
        for (first, n, width, panel) in self.iter() {
            let products = &mut products[..n_rows * width];
            similarities(kernel, panel, width, rows, self.depth, products);
            for (row, products) in products.chunks_exact(width).enumerate() {
                take(row, first, &products[..n]);
            }
        }
        Ok(())
    }
}

/// Memory of a thread that projects.
#[derive(Default)]
struct Scratch {
    /// A tile of rows, widened.
    rows: Vec<f32>,
    /// Products of a tile and a panel.
    products: Vec<f32>,
    /// u of a tile.
    projected: Vec<f32>,
}

impl Scratch {
    /// Makes room for tiles of a projection, once.
    fn grow(&mut self, weights: &Weights) -> Result<()> {
        if self.rows.is_empty() {
            fill(&mut self.rows, TILE_LEN * weights.hidden, 0.0)?;
            fill(&mut self.products, TILE_LEN * PANEL_LEN, 0.0)?;
            fill(&mut self.projected, TILE_LEN * weights.dim, 0.0)?;
        }
        Ok(())
    }
}

impl Weights {
    /// `weight` is `[dim, hidden]`, and so is `bias` as long as a row of it.
    pub(crate) fn new<T: Element>(
        weight: &[T],
        bias: Option<&[T]>,
        hidden: usize,
        normalize: bool,
    ) -> Result<Weights> {
        let dim = weight.len() / hidden;
        let mut values = filled(weight.len() as u64, 0.0)?;
        widen::<T>(weight, &mut values);
        let mut panels = Panels::default();
        panels.pack(hidden, dim, |k, column| values[column * hidden + k])?;
        let bias = bias.unwrap_or_default().iter().map(|&b| b.to_f32()).collect();
        Ok(Weights { dim, hidden, values, panels, bias, normalize })
    }

    /// Elements of a row of hidden states.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Writes the tokens of rows of hidden states: `[rows, dim]`.
    pub(crate) fn project<T: Element>(&self, hidden: &[T], tokens: &mut [T]) -> Result<()> {
        let interrupt = &Interrupt::current();
        let tiles = hidden.par_chunks(TILE_LEN * self.hidden);
        let tiles = tiles.zip(tokens.par_chunks_mut(TILE_LEN * self.dim));
        Parallel::new().share(|min_len| {
            tiles.with_min_len(min_len).try_for_each_init(
                Scratch::default,
                |scratch, (hidden, tokens)| {
                    interrupt.check()?;
                    self.project_tile(hidden.chunks_exact(self.hidden), scratch)?;
                    let rows = tokens.chunks_exact_mut(self.dim);
                    for (u, token) in scratch.projected.chunks_exact(self.dim).zip(rows) {
                        let r = self.norm(u);
                        token.iter_mut().zip(u).for_each(|(x, &u)| *x = T::from_f32(u * r));
                    }
                    Ok(())
                },
            )
        })
    }

    /// r of a projected row.
    fn norm(&self, u: &[f32]) -> f32 {
        if self.normalize { row_norm(u) } else { 1.0 }
    }

    /// Projects rows of hidden states, at most [`TILE_LEN`].
    fn project_tile<'a, T: Element>(
        &self,
        hidden: impl Iterator<Item = &'a [T]>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        scratch.grow(self)?;
        let Scratch { rows, products, projected } = scratch;
        let mut n_rows = 0;
        for (stored, row) in hidden.zip(rows.chunks_exact_mut(self.hidden)) {
            widen::<T>(stored, row);
            n_rows += 1;
        }
        self.panels.multiply(rows, n_rows, products, |row, first, products| {
            let u = &mut projected[row * self.dim + first..][..products.len()];
            u.copy_from_slice(products);
            let bias = self.bias.get(first..).unwrap_or_default();
            u.iter_mut().zip(bias).for_each(|(u, b)| *u += b);
        })
    }
}
