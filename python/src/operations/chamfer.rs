//! Chamfer distances of clouds of points.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use maxsim::chamfer::{self, ChamferGrad, ChamferOptions, Metric, PointReduction, PreparedChamfer};
use maxsim::format::{Element, ElementType, with_element};
use maxsim::stream::Queue;
use maxsim::training::GradientType;
use maxsim::{Device, Result};
use pyo3::prelude::*;

use super::element;
use crate::cuda::{elements, lists};
use crate::errors::{raised, shape};
use crate::pool;
use crate::side::{Memory, Side, entries};
use crate::streams::{self, Call, Outcome, finished, lock};

/// Prepared calls that are kept: those of so many shapes.
const KEPT: usize = 256;

/// What is asked for, as `_clouds.py` numbers it.
#[derive(FromPyObject, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked(
    /* L1, not squared L2 */ bool,
    /* reduction */ u8,
    /* single direction */ bool,
);

impl Asked {
    fn options(self) -> Result<ChamferOptions> {
        let Asked(is_l1, reduction, single_direction) = self;
        let reduction = match reduction {
            0 => PointReduction::Mean,
            1 => PointReduction::Sum,
            2 => PointReduction::Max,
            3 => PointReduction::None,
            other => return Err(shape("reduction", "0 to 3", other)),
        };
        let metric = if is_l1 { Metric::L1 } else { Metric::SquaredL2 };
        let options = ChamferOptions::default().metric(metric).reduction(reduction);
        Ok(options.single_direction(single_direction))
    }
}

/// What was found for clouds in host memory.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct Chamfer(chamfer::Chamfer);

#[pymethods]
impl Chamfer {
    /// Finds the neighbours of the points of both sides.
    #[new]
    fn new(
        py: Python<'_>,
        n_threads: usize,
        sides: (Side, Side),
        asked: Asked,
    ) -> PyResult<Chamfer> {
        pool::run(py, n_threads, || {
            let options = asked.options()?;
            // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
            with_element!(element(&sides)?, T => unsafe {
                let (x, y) = (sides.0.elements::<T>()?, sides.1.elements::<T>()?);
                Ok(Chamfer(Device::cpu().chamfer(&x, &y, &options)?))
            })
        })
    }

    /// Writes the values, and of the points of both sides, one after the other, distances and
    /// indices; where there is a single direction, those of its points.
    fn read(&self, values: Memory, distances: Memory, indices: Memory) -> PyResult<()> {
        let sides = [Some(self.0.x()), self.0.y()];
        let n = sides.iter().flatten().map(|side| side.indices.len()).sum();
        // SAFETY: as in `new`.
        let write = || unsafe {
            let to = values.write::<f32>("values", self.0.values().len())?;
            to.copy_from_slice(self.0.values());
            let distances = distances.write::<f32>("distances", n)?;
            let indices = indices.write::<i32>("indices", n)?;
            let mut first = 0;
            for side in sides.into_iter().flatten() {
                let own = first..first + side.indices.len();
                first = own.end;
                distances[own.clone()].copy_from_slice(&side.distances);
                indices[own].copy_from_slice(&side.indices);
            }
            Ok(())
        };
        write().map_err(raised)
    }

    /// Writes gradients of points, from those of the values or, where there are none, of distances
    /// as `read` writes them.
    fn backward(
        &self,
        py: Python<'_>,
        n_threads: usize,
        sides: (Side, Side),
        grad: Memory,
        to: (Memory, Memory),
    ) -> PyResult<()> {
        pool::run(py, n_threads, || {
            // SAFETY: as in `new`.
            with_element!(element(&sides)?, T => unsafe {
                self.gradients::<T>(&sides, grad, to)
            })
        })
    }
}

impl Chamfer {
    /// # Safety
    /// Addresses must be those of host memory that is as long as the numbers say, and that of `to`
    /// this call's alone.
    unsafe fn gradients<T: Element>(
        &self,
        sides: &(Side, Side),
        grad: Memory,
        to: (Memory, Memory),
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (sides.0.elements::<T>()?, sides.1.elements::<T>()?);
            let grad = grad.read::<f32>("grad", grad.1)?;
            let n_x = self.0.x().distances.len();
            let grad = match self.0.options().reduction {
                PointReduction::None if grad.len() >= n_x => {
                    ChamferGrad::Distances(&grad[..n_x], &grad[n_x..])
                }
                _ => ChamferGrad::Values(grad),
            };
            let found = Device::cpu().chamfer_backward(&x, &y, &self.0, grad)?;
            for (to, found) in [(to.0, found.x), (to.1, found.y)] {
                to.write("gradients", found.len())?.copy_from_slice(&found);
            }
            Ok(())
        }
    }
}

/// All that prepared clouds depend on.
type Key = (usize, ElementType, [[usize; 7]; 2], Asked);

/// Prepared calls of clouds that a few numbers say.
static WORKS: LazyLock<Mutex<HashMap<Key, Arc<PreparedChamfer>>>> = LazyLock::new(Mutex::default);

/// A call on a CUDA device, made ready.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct CudaChamfer(Arc<PreparedChamfer>);

#[pymethods]
impl CudaChamfer {
    /// Makes a call ready, or finds one again that was.
    #[new]
    fn new(py: Python<'_>, call: Call, sides: (Side, Side), asked: Asked) -> PyResult<CudaChamfer> {
        let prepared = || {
            let element = element(&sides)?;
            let keys = sides.0.regular_key().zip(sides.1.regular_key());
            let key = keys.map(|(x, y)| (call.0, element, [x, y], asked));
            if let Some(found) = key.and_then(|key| lock(&WORKS).get(&key).cloned()) {
                return Ok(found);
            }
            let device = Device::cuda(call.0)?;
            // SAFETY: the Python caller gives tensors that torch frees in the order of the stream,
            // and host arrays that it keeps meanwhile.
            let work = Arc::new(with_element!(element, T => unsafe {
                let x = elements::<T>(&device, &sides.0)?;
                let y = elements::<T>(&device, &sides.1)?;
                device.prepare_chamfer(&x, &y, &asked.options()?)?
            }));
            if let Some(key) = key {
                let mut works = lock(&WORKS);
                if works.len() >= KEPT {
                    works.clear();
                }
                works.insert(key, work.clone());
            }
            Ok(work)
        };
        py.detach(prepared).map(CudaChamfer).map_err(raised)
    }

    /// Bytes of what is found, and from where on these have distances, indices and values.
    fn memory(&self) -> PyResult<(u64, u64, u64, u64)> {
        let memory = self.0.found_memory().map_err(raised)?;
        Ok((memory.len_bytes, memory.distances, memory.indices, memory.values))
    }

    /// Enqueues the search. What it finds is in `memory`, bytes of zeros before.
    fn find(
        &self,
        py: Python<'_>,
        call: Call,
        sides: (Side, Side),
        memory: Memory,
    ) -> PyResult<()> {
        finished(py.detach(|| {
            // SAFETY: as in `new`.
            with_element!(element(&sides)?, T => unsafe {
                self.enqueue::<T>(&call, &sides, memory)
            })
        }))
    }

    /// Enqueues gradients of points, in their element type, from those of the values.
    fn backward(
        &self,
        py: Python<'_>,
        call: Call,
        sides: (Side, Side),
        memory: Memory,
        grad: Memory,
        to: (Memory, Memory),
    ) -> PyResult<()> {
        finished(py.detach(|| {
            // SAFETY: as in `new`.
            with_element!(element(&sides)?, T => unsafe {
                self.enqueue_backward::<T>(&call, &sides, [memory, grad], [to.0, to.1])
            })
        }))
    }
}

impl CudaChamfer {
    /// # Safety
    /// Addresses must be those of device memory that is as the numbers say and stays so until the
    /// call is done, in the order of the stream.
    unsafe fn enqueue<T: Element>(
        &self,
        call: &Call,
        sides: &(Side, Side),
        memory: Memory,
    ) -> Result<Outcome<()>> {
        let device = Device::cuda(call.0)?;
        let work = &self.0;
        memory.check("found", work.found_memory()?.len_bytes as usize)?;
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (elements::<T>(&device, &sides.0)?, elements::<T>(&device, &sides.1)?);
            let mut found = work.found_from_raw_unchecked(memory.0)?;
            let outcome = streams::enqueue(&device, call, work.workspace_bytes(), |stream| {
                stream.chamfer_into(&x, &y, work, &mut found)
            })?;
            Ok(outcome.keep(work, || [lists(&sides.0, x), lists(&sides.1, y)]))
        }
    }

    /// # Safety
    /// As [`CudaChamfer::enqueue`].
    unsafe fn enqueue_backward<T: Element>(
        &self,
        call: &Call,
        sides: &(Side, Side),
        [memory, grad]: [Memory; 2],
        to: [Memory; 2],
    ) -> Result<Outcome<()>> {
        let device = Device::cuda(call.0)?;
        let work = &self.0;
        memory.check("found", work.found_memory()?.len_bytes as usize)?;
        grad.check("grad", sides.0.n_items())?;
        for (side, to) in [&sides.0, &sides.1].into_iter().zip(to) {
            to.check("gradients", entries(side.rows(), side.dim())?)?;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (elements::<T>(&device, &sides.0)?, elements::<T>(&device, &sides.1)?);
            let found = work.found_from_raw_unchecked(memory.0)?;
            let grad = work.grad_from_raw_unchecked(grad.0)?;
            let to = to.map(|memory| memory.0);
            let mut to = work.gradients_from_raw_unchecked(to, GradientType::Tokens)?;
            let outcome = streams::enqueue(&device, call, 0, |stream| {
                stream.chamfer_backward(&x, &y, work, found.with_grad(&grad), &mut to)
            })?;
            Ok(outcome.keep(work, || [lists(&sides.0, x), lists(&sides.1, y)]))
        }
    }
}
