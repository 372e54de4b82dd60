//! Parameters of the kernels that quantise token rows.

use crate::abi::params::backward::{Rows, columns};

/// Multiple of codes that rows are padded to: 16 bytes, one vector load.
const PADDED_CODES: usize = 16;

/// Parameters of the kernels that make codes, INT8 and FP8, affine, with one scale: a warp per
/// `32 >> rows.lanes_log2` rows, in blocks of [`WARPS`](crate::abi::params::backward::WARPS).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeParams {
    /// The rows, with lanes as [`lanes`] has them.
    pub rows: Rows,
    /// Address of the codes of row 0, aligned to 16 bytes.
    pub codes: u64,
    /// Distance between rows of codes in bytes, as [`pitch_bytes`] has it. What lies behind a row
    /// becomes 0.
    pub pitch_bytes: u64,
    /// Address of an f32 per row, which becomes its scale; where codes are affine, of a word per
    /// row, which becomes its scale and above it its minimum, both f16.
    pub scales: u64,
    /// Address of a byte per row, or 0.
    pub mask: u64,
    /// Address that those bytes are copied to.
    pub mask_copy: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// One of [`QuantizeParams::INT8`], [`QuantizeParams::FP8`]; of rows with a scale each.
    pub format: u32,
    /// 1 when scales are rounded to f16, 0 when they stay f32; of rows with a scale each.
    pub f16_scales: u32,
    /// The scale of all rows (`maxsim_quantize_tensor_*` alone).
    pub scale: f32,
}

impl QuantizeParams {
    /// Codes are those of INT8.
    pub const INT8: u32 = 0;
    /// Codes are those of FP8.
    pub const FP8: u32 = 1;
}

/// Parameters of `maxsim_quantize_largest_*`: any number of blocks of
/// [`WARPS`](crate::abi::params::backward::WARPS) warps, which take turns at the rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LargestParams {
    /// The rows.
    pub rows: Rows,
    /// Address of a byte per row, which is 0 where the row counts for nothing, or 0.
    pub mask: u64,
    /// Address of more such bytes, or 0.
    pub used: u64,
    /// Address of a u32, 0 before the launch: the [`crate::abi::quantize::magnitude_bits`] that
    /// were sought.
    pub largest: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Bytes from one row of codes to the next: a multiple of 16.
pub const fn pitch_bytes(dim: usize) -> usize {
    dim.next_multiple_of(PADDED_CODES)
}

/// Lanes that share a row (as a binary logarithm), and how often they must be taken for it: for
/// everything up to the pitch of its codes, in elements of so many bytes.
pub const fn lanes(dim: usize, element_bytes: usize) -> (u32, u32) {
    columns(pitch_bytes(dim) * element_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the lanes do not come to would keep what the memory held before.
    #[test]
    fn lanes_come_to_everything_up_to_the_pitch() {
        for dim in 1..=4096 {
            for element_bytes in [2, 4] {
                let (lanes_log2, n_columns) = lanes(dim, element_bytes);
                let n_elements = (n_columns << lanes_log2) as usize * 16 / element_bytes;
                assert!(n_elements >= pitch_bytes(dim) && pitch_bytes(dim) >= dim, "{dim}");
                assert!(lanes_log2 <= 5 && pitch_bytes(dim) - dim < 16, "{dim}");
            }
        }
        assert_eq!([lanes(1, 2), lanes(128, 2), lanes(257, 4)], [(1, 1), (4, 1), (5, 3)]);
    }
}
