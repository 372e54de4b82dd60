//! Tensors of torch as addresses and shapes, read without a call of Python for each.
//!
//! A library of arrays offers C functions for this as the attribute `__dlpack_c_exchange_api__` of
//! its type, a capsule. The structures are those of DLPack 1.x: <https://github.com/dmlc/dlpack>,
//! `include/dlpack/dlpack.h`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

/// `DLPackExchangeAPI`: functions that are not called here are pointers.
#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    own_object: *const c_void,
    to_object: *const c_void,
    /// Fills the structure with what a tensor of the type is; -1 and an exception of Python
    /// otherwise. Shape and strides are the tensor's own.
    view: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut Tensor) -> c_int>,
    /// The current stream of a device.
    stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *const c_void,
    device_type: c_int,
    device: i32,
    n_axes: i32,
    /// `DLDataType`: code, bits, and lanes.
    element: (u8, u8, u16),
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Kinds of devices (`DLDeviceType`).
const CPU: c_int = 1;
const CUDA: c_int = 2;

/// Most axes of a tensor that is read.
const MAX_AXES: usize = 4;

/// Element types that are read, with their names in DLPack: code and bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    I16,
    I32,
    /// Booleans or unsigned bytes.
    Byte,
}

impl Kind {
    fn new(code: u8, bits: u8) -> Option<Kind> {
        Some(match (code, bits) {
            (2, 32) => Kind::F32,
            (2, 16) => Kind::F16,
            (4, 16) => Kind::Bf16,
            (0, 16) => Kind::I16,
            (0, 32) => Kind::I32,
            (1 | 6, 8) => Kind::Byte,
            _ => return None,
        })
    }
}

/// A tensor without gaps between its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Dense {
    pub address: u64,
    pub kind: Kind,
    /// Its CUDA device; none in host memory.
    pub device: Option<i32>,
    shape: [usize; MAX_AXES],
    n_axes: usize,
}

impl Dense {
    /// Lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.n_axes]
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }
}

/// The functions of torch, and the types of which its tensors are.
pub struct Exchange {
    types: [Py<PyType>; 2],
    view: unsafe extern "C" fn(*mut ffi::PyObject, *mut Tensor) -> c_int,
    stream: unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int,
}

impl Exchange {
    /// The functions that `torch.Tensor` offers; parameters are read too.
    pub fn new(torch: &Bound<'_, PyAny>) -> PyResult<Exchange> {
        let tensor = torch.getattr("Tensor")?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        let capsule = tensor.getattr("__dlpack_c_exchange_api__")?.cast_into::<PyCapsule>()?;
        let at = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?.cast::<Functions>();
        // SAFETY: a capsule of this name is of this structure, which is never freed. Its first
        // numbers are the same in every version.
        let functions = unsafe {
            if (&raw const (*at.as_ptr()).major).read() != 1 {
                return Err(PyRuntimeError::new_err("torch exchanges tensors by another DLPack"));
            }
            at.as_ref()
        };
        match (functions.view, functions.stream) {
            (Some(view), Some(stream)) => Ok(Exchange {
                types: [tensor.cast_into()?.unbind(), parameter.cast_into()?.unbind()],
                view,
                stream,
            }),
            _ => Err(PyRuntimeError::new_err("torch does not show its tensors by DLPack")),
        }
    }

    /// What a tensor is; none of another type, of elements that are not read, on another device,
    /// or with gaps.
    pub fn read(&self, object: &Bound<'_, PyAny>) -> Option<Dense> {
        let found = object.get_type();
        if !self.types.iter().any(|of| found.is(of)) {
            return None;
        }
        let mut tensor = Tensor {
            data: ptr::null(),
            device_type: 0,
            device: 0,
            n_axes: 0,
            element: (0, 0, 0),
            shape: ptr::null(),
            strides: ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the object is of the type that offers the function, which fills the structure.
        if unsafe { (self.view)(object.as_ptr(), &mut tensor) } != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        let n_axes = usize::try_from(tensor.n_axes).ok().filter(|n| (1..=MAX_AXES).contains(n))?;
        if tensor.shape.is_null() || tensor.strides.is_null() {
            return None;
        }
        // SAFETY: the library says that there are so many of both, while the object lives and is
        // not changed, which the interpreter's lock prevents.
        let (shape, strides) = unsafe {
            let axes = |at| slice::from_raw_parts(at, n_axes);
            (axes(tensor.shape), axes(tensor.strides))
        };
        let (code, bits, lanes) = tensor.element;
        let mut dense = Dense {
            address: (tensor.data.addr() as u64).checked_add(tensor.byte_offset)?,
            kind: Kind::new(code, bits).filter(|_| lanes == 1)?,
            device: match tensor.device_type {
                CPU => None,
                CUDA => Some(tensor.device),
                _ => return None,
            },
            shape: [0; MAX_AXES],
            n_axes,
        };
        let mut stride = 1;
        for axis in (0..n_axes).rev() {
            let len = usize::try_from(shape[axis]).ok()?;
            // Where there is one entry or none, no distance matters.
            if len > 1 && strides[axis] != stride {
                return None;
            }
            dense.shape[axis] = len;
            stride = stride.checked_mul(shape[axis])?;
        }
        Some(dense)
    }

    /// The current stream of a CUDA device.
    pub fn stream(&self, py: Python<'_>, device: i32) -> PyResult<u64> {
        let mut stream = ptr::null_mut();
        // SAFETY: the function writes the stream, or raises.
        match unsafe { (self.stream)(CUDA, device, &mut stream) } {
            0 => Ok(stream.addr() as u64),
            _ => Err(PyErr::take(py)
                .unwrap_or_else(|| PyRuntimeError::new_err("torch has no such stream"))),
        }
    }
}
