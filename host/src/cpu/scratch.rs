//! Working memory of one thread: bounded by the constants of the engine and dim, whatever
//! the sizes of the problem. It grows once and is reused by every task.

use pulp::Arch;

use super::maxima::Maxima;
use super::panels::Panel;
use super::tiles::Span;
use crate::error::Result;
use crate::runtime::alloc::fill;

/// Buffers that a task works in.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The CPU's instruction set, looked up once.
    pub arch: Arch,
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
    /// Rows of a tile as f32, where they cannot be read in place.
    pub rows: Vec<f32>,
    /// Similarities of a tile and a panel.
    pub products: Vec<f32>,
    /// Sums of whole numbers over the dims so far, where f32 cannot hold them.
    pub integers: Vec<i32>,
    pub spans: Vec<Span>,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// Makes `values` at least `len` long. Its contents are unspecified.
pub(super) fn grow(values: &mut Vec<f32>, len: usize) -> Result<()> {
    if values.len() < len {
        fill(values, len, 0.0)?;
    }
    Ok(())
}
