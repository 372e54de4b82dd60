//! Tensor maps: how TMA finds a box of a token matrix.

use std::sync::OnceLock;

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::layout::SLAB_BYTES;
use maxsim_kernels::abi::layout::sm90::{DOCUMENT_TILE, STREAM_K_BOX_ROWS};
use maxsim_kernels::abi::params::{Group, TensorMap};

use super::context::Entered;
use super::symbols::raw;
use crate::error::Result;
use crate::plan::limits::Access;
use crate::tokens::element::ElementType;

// Values of the driver's enums, which the bindings (CUDA 11.4) do not have yet.
const UINT8: i32 = 0;
const FLOAT16: i32 = 6;
const FLOAT32: i32 = 7;
const BFLOAT16: i32 = 9;
/// binary32 in memory, rounded to TF32 on the way.
const TFLOAT32: i32 = 11;
const INTERLEAVE_NONE: i32 = 0;
const SWIZZLE_128B: i32 = 3;
const L2_PROMOTION_128B: i32 = 2;
const L2_PROMOTION_256B: i32 = 3;
/// Elements outside the matrix read as zero.
const OUT_OF_BOUNDS_ZERO: i32 = 0;

/// `CUtensorMap`, aligned as the driver wants it. Kernel parameters align their copy anew.
#[repr(C, align(64))]
struct Aligned(TensorMap);

/// How f32 elements arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Rounding {
    /// As they are.
    None,
    /// Rounded to TF32.
    Tf32,
}

/// A matrix as TMA reads it. Its maps are made when a kernel first reads them: a call with new
/// memory needs three of the six that both sides have.
pub(in crate::cuda) struct Maps {
    operand: Operand,
    access: Access,
    rows: usize,
    dim: usize,
    rounding: Rounding,
    groups: OnceLock<TensorMap>,
    tiles: OnceLock<TensorMap>,
    parts: OnceLock<TensorMap>,
}

/// Whether TMA can take a matrix: rows on 16-byte boundaries, at least one row.
pub(in crate::cuda) fn can_map(access: Access, rows: usize) -> bool {
    access.is_aligned() && access.pitch_bytes < 1 << 40 && rows > 0
}

impl Maps {
    /// The maps of a matrix `[rows, dim]` that [`can_map`].
    pub(in crate::cuda) fn new(
        operand: Operand,
        access: Access,
        rows: usize,
        dim: usize,
        rounding: Rounding,
    ) -> Maps {
        let [groups, tiles, parts] = [const { OnceLock::new() }; 3];
        Maps { operand, access, rows, dim, rounding, groups, tiles, parts }
    }

    /// The map in boxes of a group's rows.
    pub(in crate::cuda) fn groups(&self, entered: &Entered<'_>) -> Result<&TensorMap> {
        self.made(entered, &self.groups, Group::ROWS)
    }

    /// The map in boxes of a document tile's rows.
    pub(in crate::cuda) fn tiles(&self, entered: &Entered<'_>) -> Result<&TensorMap> {
        self.made(entered, &self.tiles, DOCUMENT_TILE)
    }

    /// The map in boxes of [`STREAM_K_BOX_ROWS`] rows.
    pub(in crate::cuda) fn parts(&self, entered: &Entered<'_>) -> Result<&TensorMap> {
        self.made(entered, &self.parts, STREAM_K_BOX_ROWS)
    }

    fn made<'a>(
        &self,
        entered: &Entered<'_>,
        map: &'a OnceLock<TensorMap>,
        box_rows: usize,
    ) -> Result<&'a TensorMap> {
        if let Some(map) = map.get() {
            return Ok(map);
        }
        let &Maps { operand, access, rows, dim, rounding, .. } = self;
        let made = encode(entered, operand, access, [rows, dim], box_rows, rounding)?;
        Ok(map.get_or_init(|| made))
    }
}

/// Encodes the map of a matrix in boxes of one slab of `box_rows` rows, swizzled by
/// `maxsim_kernels::abi::layout`. A box may reach outside the matrix, where it is filled with
/// zeros.
fn encode(
    entered: &Entered<'_>,
    operand: Operand,
    access: Access,
    [rows, dim]: [usize; 2],
    box_rows: usize,
    rounding: Rounding,
) -> Result<TensorMap> {
    let code = match (operand, rounding) {
        (
            Operand::Element(element) | Operand::Affine(element) | Operand::Residual(element),
            rounding,
        ) => match (element, rounding) {
            (ElementType::F16, _) => FLOAT16,
            (ElementType::Bf16, _) => BFLOAT16,
            (ElementType::F32, Rounding::None) => FLOAT32,
            (ElementType::F32, Rounding::Tf32) => TFLOAT32,
        },
        // Codes are bytes.
        _ => UINT8,
    };
    let dims = [dim as u64, rows as u64];
    let strides_bytes = [access.pitch_bytes];
    let box_dims = [(SLAB_BYTES / operand.size_bytes()) as u32, box_rows as u32];
    let element_strides = [1, 1];
    // Measured (docs/decisions/forward-kernels.md): less time for short queries at dim 128, more at
    // dim 256.
    let promotion = match dim * operand.size_bytes() {
        ..=256 => L2_PROMOTION_128B,
        _ => L2_PROMOTION_256B,
    };
    let mut map = Aligned(TensorMap::NONE);
    // SAFETY: the arrays have the lengths that rank 2 asks for (one stride fewer), the map is
    // 128 bytes aligned to 64. The driver only encodes: it does not read the matrix.
    let status = unsafe {
        raw::cuTensorMapEncodeTiled(
            (&raw mut map.0).cast(),
            code,
            2,
            access.base as *mut _,
            dims.as_ptr(),
            strides_bytes.as_ptr(),
            box_dims.as_ptr(),
            element_strides.as_ptr(),
            INTERLEAVE_NONE,
            SWIZZLE_128B,
            promotion,
            OUT_OF_BOUNDS_ZERO,
        )
    };
    entered.device().check("cuTensorMapEncodeTiled", status)?;
    Ok(map.0)
}
