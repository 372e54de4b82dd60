//! Working memory of one thread: bounded by the constants of the engine and dim, whatever
//! the sizes of the problem. It grows once and is reused by every task.

use super::maxima::Maxima;
use super::panels::Panel;
use super::row_scales::Factors;
use super::tiles::Span;
use crate::runtime::alloc::Line;

/// Buffers that a task works in.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub panels: Vec<Panel>,
    /// Panels in use.
    pub n_panels: usize,
    /// One per panel.
    pub maxima: Vec<Maxima>,
    pub tile: TileScratch,
    /// Σ of the maxima so far: per query of the task and document of the task. In f64, so
    /// that a long query loses nothing.
    pub sums: Vec<f64>,
}

/// Buffers of a tile of document tokens.
#[derive(Debug, Default)]
pub(super) struct TileScratch {
    /// Rows of query tokens as f32, as many as a line of a panel has room for.
    pub query_rows: Vec<f32>,
    /// Rows of a tile as groups, where they cannot be read in place.
    pub rows: Vec<Line>,
    /// Products of a tile and a panel, then their similarities: bits of i32 or f32.
    pub products: Vec<Line>,
    pub spans: Vec<Span>,
    pub factors: Factors,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }
}
