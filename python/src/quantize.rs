//! Codes of tokens in host memory, and back.

use maxsim::format::{Quantized, ScaleType, Scales, TokenFormat};
use maxsim::{AnyTokens, Result, Tokens};
use pyo3::prelude::*;

use crate::errors::shape;
use crate::pool;
use crate::side::{self, Memory, Side};

/// Room for codes (one byte each), scales and minima.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct CodeRoom(Memory, Memory, Memory);

/// Compresses tokens to a format; `scale_kind` is that of the scales that it gives.
#[pyfunction]
pub fn quantize(
    py: Python<'_>,
    n_threads: usize,
    tokens: Side,
    format: u8,
    scale_kind: u8,
    room: CodeRoom,
) -> PyResult<()> {
    pool::run(py, n_threads, || {
        let scales = match scale_kind {
            1 | 4 => ScaleType::F16,
            2 => ScaleType::F32,
            _ => ScaleType::Tensor,
        };
        // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
        let found = unsafe { tokens.tokens()? }.quantize(side::format(format)?, scales)?;
        match &found {
            // SAFETY: as above.
            AnyTokens::Int8(codes) => unsafe { write(codes, room) },
            // SAFETY: as above.
            AnyTokens::Int8Affine(codes) => unsafe { write(codes, room) },
            // SAFETY: as above.
            AnyTokens::Fp8(codes) => unsafe { write(codes, room) },
            other => Err(shape("format", "codes", other.format())),
        }
    })
}

/// # Safety
/// The room must be as large as the tokens, their scales and minima, and this call's alone.
unsafe fn write<F: Quantized>(tokens: &Tokens<'_, F>, to: CodeRoom) -> Result<()> {
    let CodeRoom(codes, scales, mins) = to;
    // SAFETY: the caller's promise.
    unsafe {
        codes.write("codes", tokens.data().len())?.copy_from_slice(tokens.data());
        match tokens.scales() {
            Scales::F16(found) => scales.write("scales", found.len())?.copy_from_slice(found),
            Scales::F32(found) => scales.write("scales", found.len())?.copy_from_slice(found),
            Scales::Tensor(found) => scales.write("scales", 1)?.fill(*found),
            Scales::Affine { scales: found, mins: least } => {
                scales.write("scales", found.len())?.copy_from_slice(found);
                mins.write("mins", least.len())?.copy_from_slice(least);
            }
            other => {
                return Err(shape(
                    "scales",
                    "scales that there is room for",
                    other.storage().name(),
                ));
            }
        }
    }
    Ok(())
}

/// Decodes codes to f32.
#[pyfunction]
pub fn dequantize(py: Python<'_>, n_threads: usize, codes: Side, to: Memory) -> PyResult<()> {
    pool::run(py, n_threads, || {
        // SAFETY: as in `quantize`.
        let found = match unsafe { codes.tokens()? } {
            AnyTokens::Int8(codes) => codes.dequantize()?,
            AnyTokens::Int8Affine(codes) => codes.dequantize()?,
            AnyTokens::Fp8(codes) => codes.dequantize()?,
            other => {
                let format: TokenFormat = other.format();
                return Err(shape("element types", "codes", format));
            }
        };
        // SAFETY: as in `quantize`.
        unsafe { to.write::<f32>("tokens", found.data().len())?.copy_from_slice(found.data()) };
        Ok(())
    })
}
