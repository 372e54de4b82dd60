//! Gradients in device memory: of scores, and of tokens.

use std::ptr;
use std::sync::Arc;

use maxsim_kernels::abi::params::backward::Output;

use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::memory::{Buffer, download, fill, overwrite};
use crate::cuda::driver::pointer::check_foreign;
use crate::cuda::driver::transfer::upload;
use crate::error::Result;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::Trust;
use crate::tokens::dispatch::with_element;
use crate::tokens::element::{Element, ElementType};

/// Gradients of scores, one f32 each.
#[derive(Debug)]
pub(crate) struct CudaGradScores {
    device: Arc<CudaDevice>,
    address: u64,
    hazard: Arc<Hazard>,
    /// Memory that the address points to, unless it is foreign.
    _owned: Option<Buffer>,
}

impl CudaGradScores {
    /// A copy.
    pub(crate) fn upload(device: &Arc<CudaDevice>, values: &[f32]) -> Result<CudaGradScores> {
        let owned = upload(device, bytemuck::cast_slice(values))?;
        let (address, hazard) = (owned.address(), Arc::new(Hazard::new(device)?));
        Ok(CudaGradScores { device: device.clone(), address, hazard, _owned: Some(owned) })
    }

    /// Foreign memory, checked.
    ///
    /// # Safety
    /// As [`crate::training::DeviceGradScores::from_raw_parts`].
    pub(crate) unsafe fn from_raw_parts(
        device: &Arc<CudaDevice>,
        address: u64,
        n: usize,
        trust: Trust,
    ) -> Result<CudaGradScores> {
        check_foreign(device, address, n as u64 * 4, 4, trust)?;
        let hazard = Arc::new(Hazard::of_foreign(device, trust)?);
        Ok(CudaGradScores { device: device.clone(), address, hazard, _owned: None })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Waits for the last work and copies the values, of which there must be as many.
    pub(crate) fn read(&self, values: &mut [f32]) -> Result<()> {
        let _last = self.hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        // SAFETY: the memory is as long as the values (the caller's promise).
        unsafe { download(&entered, self.address, bytemuck::cast_slice_mut(values)) }
    }

    /// Replaces the values, of which there must be as many, once no work uses them any more.
    pub(crate) fn write(&self, values: &[f32]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let _last = self.hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        self.device.synchronize(&entered)?;
        // SAFETY: there is memory for the values, which nothing else uses.
        unsafe { overwrite(&entered, self.address, bytemuck::cast_slice(values)) }
    }
}

impl GradientMatrix {
    pub(in crate::cuda) fn len_bytes(&self) -> u64 {
        self.rows as u64 * self.dim as u64 * self.element.size_bytes() as u64
    }

    /// The matrix as kernels write it.
    pub(in crate::cuda) fn output(&self, adds: bool) -> Output {
        output(self.address, self.element, self.dim, adds)
    }

    /// Fills the matrix with zeros.
    ///
    /// # Safety
    /// `stream` must be a stream of the context, or null, and the matrix its to write.
    pub(in crate::cuda) unsafe fn clear(
        &self,
        entered: &Entered<'_>,
        stream: cust::sys::CUstream,
    ) -> Result<()> {
        // SAFETY: the matrix has this length; the caller's promise.
        unsafe { fill(entered, self.address, 0, self.len_bytes(), stream) }
    }
}

/// A matrix `[rows, dim]` without gaps, as kernels write it.
pub(in crate::cuda) fn output(base: u64, element: ElementType, dim: usize, adds: bool) -> Output {
    Output {
        base,
        element: Output::tag(element),
        adds: u32::from(adds),
        dim: dim as u32,
        aligned: u32::from(base.is_multiple_of(16) && dim.is_multiple_of(8)),
    }
}

/// Gradients of queries and documents, and of the queries' weights.
#[derive(Debug)]
pub(crate) struct CudaGradients {
    device: Arc<CudaDevice>,
    parts: [GradientMatrix; 3],
    hazard: Arc<Hazard>,
    /// Memory that the addresses point to, unless it is foreign.
    _owned: Vec<Buffer>,
}

impl CudaGradients {
    /// New memory of zeros. The addresses of `parts` are not looked at.
    pub(crate) fn zeros(
        device: &Arc<CudaDevice>,
        mut parts: [GradientMatrix; 3],
    ) -> Result<CudaGradients> {
        let mut owned = Vec::with_capacity(3);
        for side in &mut parts {
            let buffer = Buffer::new(device, side.len_bytes())?;
            side.address = buffer.address();
            owned.push(buffer);
        }
        let hazard = Arc::new(Hazard::new(device)?);
        let entered = device.enter()?;
        for side in &parts {
            // SAFETY: the buffers were just made, with these lengths; null is the default stream.
            unsafe { side.clear(&entered, ptr::null_mut())? };
        }
        hazard.record(&entered)?;
        drop(entered);
        Ok(CudaGradients { device: device.clone(), parts, hazard, _owned: owned })
    }

    /// Takes foreign memory after checks. Its contents stay as they are until the first call.
    ///
    /// # Safety
    /// As [`crate::training::DeviceGradients::from_raw_parts`].
    pub(crate) unsafe fn from_raw_parts(
        device: &Arc<CudaDevice>,
        parts: [GradientMatrix; 3],
        trust: Trust,
    ) -> Result<CudaGradients> {
        for side in &parts {
            let align_bytes = side.element.size_bytes() as u64;
            check_foreign(device, side.address, side.len_bytes(), align_bytes, trust)?;
        }
        let hazard = Arc::new(Hazard::of_foreign(device, trust)?);
        Ok(CudaGradients { device: device.clone(), parts, hazard, _owned: Vec::new() })
    }

    /// The gradients of queries and documents, and of the queries' weights: of no rows where there
    /// is none.
    pub(crate) fn parts(&self) -> [GradientMatrix; 3] {
        self.parts
    }

    pub(in crate::cuda) fn sides(&self) -> [GradientMatrix; 2] {
        let [queries, documents, _] = self.parts;
        [queries, documents]
    }

    pub(in crate::cuda) fn weights(&self) -> GradientMatrix {
        let [_, _, weights] = self.parts;
        weights
    }

    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Waits for the last work and copies all parts, widened to f32, whose lengths `parts` must
    /// have.
    pub(crate) fn read(&self, parts: [&mut [f32]; 3]) -> Result<()> {
        let _last = self.hazard.wait(&self.device)?;
        self.parts.iter().zip(parts).try_for_each(|(matrix, values)| match matrix.element {
            ElementType::F32 => self.download(matrix.address, values),
            element => with_element!(element, T => self.widened::<T>(matrix.address, values)),
        })
    }

    /// Waits for the last work and replaces an f32 part, whose length `values` must have.
    pub(crate) fn write(&self, part: usize, values: &[f32]) -> Result<()> {
        let _last = self.hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        let address = self.parts[part].address;
        // SAFETY: the memory is as long as the values; no work uses it, and none is given it while
        // the guard lives.
        unsafe { overwrite(&entered, address, bytemuck::cast_slice(values)) }
    }

    fn widened<T: Element>(&self, address: u64, values: &mut [f32]) -> Result<()> {
        let mut narrow = vec![T::from_f32(0.0); values.len()];
        self.download(address, &mut narrow)?;
        values.iter_mut().zip(narrow).for_each(|(value, narrow)| *value = narrow.to_f32());
        Ok(())
    }

    fn download<T: bytemuck::Pod>(&self, address: u64, values: &mut [T]) -> Result<()> {
        let entered = self.device.enter()?;
        // SAFETY: the memory is as long as the matrix, whose length the values have.
        unsafe { download(&entered, address, bytemuck::cast_slice_mut(values)) }
    }
}
