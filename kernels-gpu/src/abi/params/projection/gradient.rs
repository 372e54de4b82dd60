//! Parameters of the kernels for gradients through a projection, and their geometry.

/// Threads of a CTA.
pub const THREADS: usize = 256;
/// Rows of the results of a CTA.
pub const TILE_M: usize = 128;
/// Columns of them.
pub const TILE_N: usize = 64;
/// Products that a stage has for each of them.
pub const TILE_K: usize = 8;
/// Numbers from one k of A to the next in a stage: so that a warp that stores some of eight k meets
/// no bank twice.
pub const A_PITCH: usize = TILE_M + 4;
/// Bytes of a stage.
pub const STAGE_BYTES: usize = TILE_K * (A_PITCH + TILE_N) * 4;
/// Dynamic shared memory: two stages.
pub const SHARED_BYTES: usize = 2 * STAGE_BYTES;

/// Parameters of `maxsim_projection_product_*`: C[m, n] = Σ_k A[m, k] · B[k, n], over all k or
/// parts of them. A CTA has a tile of a part: `⌈m / 128⌉ · ⌈n / 64⌉` of each, one part behind the
/// other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProductParams {
    /// Address of A, f32.
    pub a: u64,
    /// Address of B, whose row k has n elements.
    pub b: u64,
    /// Distance between rows of B in bytes; 0 = all rows are the same.
    pub b_pitch: u64,
    /// Address of the f32 results `[parts, m, n]`.
    pub out: u64,
    /// Numbers from one row of A to the next, and from one k to the next: one of them is 1.
    pub a_row: u32,
    /// See `a_row`.
    pub a_column: u32,
    /// Rows of A.
    pub m: u32,
    /// Elements of a row of B.
    pub n: u32,
    /// Rows of B.
    pub k: u32,
    /// Rows of B of each part, but of the last one. At most 2³¹.
    pub k_of_part: u32,
    /// 1 to add to what is there, 0 to overwrite it.
    pub adds: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of `maxsim_projection_gather`: row i is a copy of row `rows[i]`. A thread has 16
/// bytes. Rows of both matrices are aligned to 16 bytes; behind each there are zeros up to the next
/// such boundary.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatherRowsParams {
    /// Address of the matrix that has the rows.
    pub from: u64,
    /// Distance between its rows in bytes.
    pub from_pitch: u64,
    /// Address of a u32 for each row: which one it is.
    pub rows: u64,
    /// Address of the copies.
    pub to: u64,
    /// Distance between them in bytes.
    pub to_pitch: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Bytes of a row, an even number.
    pub row_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_no_padding() {
        assert_eq!(size_of::<ProductParams>(), 4 * 8 + 8 * 4);
        assert_eq!(size_of::<GatherRowsParams>(), 5 * 8 + 2 * 4);
    }
}
