//! Operations beside the sum of maxima.

pub mod chamfer;
pub mod projection;
pub mod xtr;

use maxsim::format::{Element, ElementType, TokenFormat};
use maxsim::{Device, DeviceTokens, Result, Tokens, TokensRef};
use pyo3::prelude::*;

use crate::cuda;
use crate::errors::shape;
use crate::pool;
use crate::side::Side;

/// Where a call runs that its caller waits for.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Place(
    /* threads of the CPU engine */ usize,
    /* number of a CUDA device, else the CPU */ Option<usize>,
);

impl Place {
    /// Runs a call without the interpreter's lock. On a CUDA device it is not in the order of the
    /// caller's streams: what writes its memory must have been waited for.
    fn run<R: Send>(
        self,
        py: Python<'_>,
        call: impl FnOnce(&Device) -> Result<R> + Send,
    ) -> PyResult<R> {
        let Place(n_threads, ordinal) = self;
        pool::run(py, n_threads, || match ordinal {
            None => call(&Device::cpu()),
            Some(ordinal) => call(&Device::cuda(ordinal)?),
        })
    }
}

/// The caller's tokens where they are.
#[derive(Debug)]
enum There<T: Element> {
    Host(Tokens<'static, T>),
    OnDevice(DeviceTokens<T>),
}

impl<T: Element> There<T> {
    /// # Safety
    /// Addresses must be those of memory of the device, or of the host for the CPU, that is as the
    /// numbers say, and stays so while the result is used.
    unsafe fn new(device: &Device, side: &Side) -> Result<There<T>> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match device.ordinal() {
                None => There::Host(side.elements()?),
                Some(_) => There::OnDevice(cuda::elements(device, side)?),
            })
        }
    }

    fn tokens(&self) -> TokensRef<'_, T> {
        match self {
            There::Host(tokens) => tokens.into(),
            There::OnDevice(tokens) => tokens.into(),
        }
    }
}

/// The element type of both sides.
fn element(sides: &(Side, Side)) -> Result<ElementType> {
    match (sides.0.format()?, sides.1.format()?) {
        (TokenFormat::Element(x), TokenFormat::Element(y)) if x == y => Ok(x),
        (_, other) => Err(shape("element types", "f32, f16 or bf16 on both sides", other)),
    }
}
