//! Host/device ABI of the gradients of scores of residual-compressed documents.
//!
//! With g the gradient of a pair's score, a winner (query row q, document row d) adds
//!
//! ```text
//! ∂Q[q] += g · y[d]      ∂y[d] += g · Q[q]      y = x̂, or r · x̂ where tokens are normalised
//! ```
//!
//! and, with x̂ the decoded row of [`crate::abi::residual_chunk`], whose rounding counts as no
//! change,
//!
//! ```text
//! ∂x = ∂y, or r · (∂y - y · ⟨y, ∂y⟩), or r · ∂y where r is constant
//! ∂centroids[c][k]    = Σ_{rows of code c} ∂x[k]
//! ∂bucket_weights[b] = Σ_{elements of bucket b} ∂x[k]
//! ```
//!
//! `gather` sums ∂Q over pairs, of rows that it decodes in registers. ∂y comes from the kernels of
//! `backward`, a *window* of rows at a time; `project` makes it ∂x in place, and `tables`
//! adds the window's rows to the parts of both tables. A part of the centroids' is that of up to
//! [`UNIT_ROWS`] rows of one code, a *unit*, whichever windows they lie in; one of the weights' is
//! that of the units of a warp. `sum` adds the parts in their order. So every order is fixed by
//! codes, shapes and window, and nothing is added atomically.

use crate::abi::params::Residuals;
use crate::abi::params::backward::GatherParams;

/// Threads per CTA of `maxsim_residual_tables`; of the others
/// [`crate::abi::params::backward::THREADS`].
pub const TABLES_THREADS: usize = 64;

/// Warps per CTA of it.
pub const TABLES_WARPS: u32 = TABLES_THREADS as u32 / 32;

/// Most CTAs of a launch of it: each warp has a part of the weights' gradient.
pub const TABLES_GRID_MAX: u32 = 1024;

/// Lanes that share a row in `maxsim_residual_project_*`.
pub const PROJECT_LANES: u32 = 8;

/// Most rows of a unit.
pub const UNIT_ROWS: usize = 256;

/// Dynamic shared memory of a CTA of `maxsim_residual_tables`: a sum per bucket and thread.
pub const fn tables_shared_bytes(nbits: u32) -> usize {
    (TABLES_THREADS << nbits) * 4
}

/// Parameters of `maxsim_residual_gather_*`: as those of `maxsim_gradient_gather_*`, and what the
/// documents' rows are decoded from. Of `sums.source` dim and lanes count.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResidualGatherParams {
    /// The sums over pairs.
    pub sums: GatherParams,
    /// The documents' tokens.
    pub documents: Residuals,
}

/// Rows of the documents' matrix, and their gradients.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Address of f32 gradients `[n_rows, dim]`, on a 16-byte boundary.
    pub base: u64,
    /// First row.
    pub first_row: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// Elements per row.
    pub dim: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

impl Window {
    /// Address of an element of row `index` of the window.
    #[inline(always)]
    pub const fn address(&self, index: u32, element: u32) -> u64 {
        self.base + (index as u64 * self.dim as u64 + element as u64) * 4
    }
}

/// Parameters of `maxsim_residual_project_*`: a warp per `32 / PROJECT_LANES` rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResidualProjectParams {
    /// The documents' tokens, which are normalised.
    pub tokens: Residuals,
    /// Gradients with respect to normalised rows, which become those of rows.
    pub window: Window,
}

/// Parameters of `maxsim_residual_tables`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TablesParams {
    /// The documents' tokens.
    pub tokens: Residuals,
    /// The gradients that are added.
    pub window: Window,
    /// Address of a u32 per row of the matrix: the rows sorted by code, and rising within a code.
    pub rows: u64,
    /// Address of a u32 per unit, and one more: where its rows start in that list.
    pub units: u64,
    /// Address of f32 sums `[unit, dim]`, which are added to.
    pub centroid_parts: u64,
    /// Address of f32 sums `[warp of the grid, 2^nbits]`, which are added to.
    pub weight_parts: u64,
    /// Number of units.
    pub n_units: u32,
    /// The binary logarithm of the lanes that share a row, 8 elements each.
    pub lanes_log2: u32,
    /// How often as many elements as the lanes take must be taken for a row.
    pub n_columns: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of `maxsim_residual_sum`: `out[i] = Σ_{p = firsts[i] .. firsts[i + 1]} parts[p]`, a
/// warp per row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartsParams {
    /// Address of f32 sums `[part, dim]`.
    pub parts: u64,
    /// Address of a u32 per row, and one more: its first part.
    pub firsts: u64,
    /// Address of the f32 sums `[n_rows, dim]`.
    pub out: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Elements per row.
    pub dim: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::params::backward::{CODE_BYTES, columns};

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<Window>(), 8 + 4 * 4);
        assert_eq!(size_of::<ResidualGatherParams>(), size_of::<GatherParams>() + 56);
        assert_eq!(size_of::<ResidualProjectParams>(), 56 + 24);
        assert_eq!(size_of::<TablesParams>(), 56 + 24 + 4 * 8 + 4 * 4);
        assert_eq!(size_of::<PartsParams>(), 3 * 8 + 2 * 4);
    }

    #[test]
    fn sums_of_every_bucket_fit_into_the_least_shared_memory() {
        assert_eq!(tables_shared_bytes(8), 64 * 1024);
        assert_eq!(tables_shared_bytes(4), 4 * 1024);
    }

    /// A lane of a column has one chunk, and the columns are the centroid as the kernels lay it
    /// out.
    #[test]
    fn lanes_have_a_chunk_each() {
        for dim in 1..=4096 {
            let (lanes_log2, n_columns) = columns(dim * CODE_BYTES);
            let chunks = n_columns as usize * (1 << lanes_log2);
            assert!(chunks * crate::abi::residual_chunk::CHUNK_LEN >= dim, "{dim}");
        }
    }
}
