//! Tensor maps: how TMA finds a box of a token matrix.

use maxsim_kernels::layout::sm90::{BOX_ELEMENTS, BOX_ROWS};
use maxsim_kernels::params::TensorMap;

use super::context::CudaDevice;
use super::forward::raw;
use crate::element::ElementType;
use crate::error::Result;
use crate::plan::Access;

// Values of the driver's enums, which the bindings (CUDA 11.4) do not have yet.
const FLOAT16: i32 = 6;
const BFLOAT16: i32 = 9;
const INTERLEAVE_NONE: i32 = 0;
const SWIZZLE_128B: i32 = 3;
const L2_PROMOTION_256B: i32 = 3;
/// Elements outside the matrix read as zero.
const OUT_OF_BOUNDS_ZERO: i32 = 0;

/// `CUtensorMap`, aligned as the driver wants it. Kernel parameters align their copy anew.
#[repr(C, align(64))]
struct Aligned(TensorMap);

/// Whether TMA can take a matrix: half precision, rows on 16-byte boundaries that are whole
/// 16-byte chunks, at least one row.
pub(super) fn can_map(element: ElementType, access: Access, rows: usize, dim: usize) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
        && access.is_aligned()
        && access.pitch_bytes < 1 << 40
        && rows > 0
        && dim.is_multiple_of(8)
}

/// The map of a matrix `[rows, dim]` that [`can_map`], in boxes of one slab of [`BOX_ROWS`]
/// rows, swizzled as `maxsim_kernels::layout` says. A box may reach outside the matrix, where
/// it is filled with zeros.
pub(super) fn encode(
    device: &CudaDevice,
    element: ElementType,
    access: Access,
    rows: usize,
    dim: usize,
) -> Result<TensorMap> {
    let code = match element {
        ElementType::Bf16 => BFLOAT16,
        _ => FLOAT16,
    };
    let dims = [dim as u64, rows as u64];
    let strides_bytes = [access.pitch_bytes];
    let box_dims = [BOX_ELEMENTS as u32, BOX_ROWS as u32];
    let element_strides = [1, 1];
    let mut map = Aligned(TensorMap::NONE);
    let _entered = device.enter()?;
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
            L2_PROMOTION_256B,
            OUT_OF_BOUNDS_ZERO,
        )
    };
    device.check("cuTensorMapEncodeTiled", status)?;
    Ok(map.0)
}
