//! What Chamfer distances find, and their gradients, in device memory of the caller.

use std::sync::Arc;

use super::n_points;
use super::prepared::{DeviceChamfer, FoundMemory, PreparedChamfer};
use crate::cuda::{CudaChamfer, CudaChamferWork, CudaDevice, CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::error::Result;
use crate::ops::backward::blocking::matrices;
use crate::ops::backward::outputs::{DeviceGradScores, DeviceGradients};
use crate::ops::backward::prepared::GradientType;
use crate::problem::outputs::Trust;
use crate::runtime::on::On;

/// ```no_run
/// use maxsim::chamfer::{FoundMemory, PreparedChamfer};
/// use maxsim::stream::{Queue, Stream};
/// use maxsim::training::GradientType;
/// use maxsim::{DeviceTokens, Result};
///
/// /// Enqueues a step in memory of another library, and gives the address of the values.
/// ///
/// /// # Safety
/// /// `zeros` gives memory of zeros, `empty` any, that stay until the stream has done the step;
/// /// `grad` is that of one f32 for each value.
/// unsafe fn step(
///     stream: &mut Stream,
///     [x, y]: [&DeviceTokens<f32>; 2],
///     work: &PreparedChamfer,
///     grad: u64,
///     [zeros, empty]: [&dyn Fn(u64) -> u64; 2],
/// ) -> Result<u64> {
///     let FoundMemory { len_bytes, values, .. } = work.found_memory()?;
///     let memory = zeros(len_bytes);
///     let to = [x, y].map(|side| empty(4 * (side.layout().rows() * side.layout().dim()) as u64));
///     // SAFETY: the caller's promise.
///     unsafe {
///         let mut found = work.found_from_raw_unchecked(memory)?;
///         let grad = work.grad_from_raw_unchecked(grad)?;
///         let mut gradients = work.gradients_from_raw_unchecked(to, GradientType::F32)?;
///         stream.chamfer_into(x, y, work, &mut found)?;
///         stream.chamfer_backward(x, y, work, found.with_grad(&grad), &mut gradients)?;
///     }
///     Ok(memory + values)
/// }
/// ```
impl PreparedChamfer {
    /// The memory that [`PreparedChamfer::found_from_raw_unchecked`] takes.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a work of the CPU.
    pub fn found_memory(&self) -> Result<FoundMemory> {
        let (_, work) = self.cuda()?;
        let (len_bytes, [distances, indices, values]) = work.found_memory(n_points(&self.layouts));
        Ok(FoundMemory { len_bytes, distances, indices, values })
    }

    /// Room for what is found, as [`PreparedChamfer::new_found`], in device memory of the caller.
    /// The driver is not asked about the memory.
    ///
    /// # Safety
    /// The memory must be of the device, as long as [`PreparedChamfer::found_memory`] says, and
    /// zeros when the first call runs. Until this value and every graph that captured it are
    /// dropped *and* every call and launch that was given them has finished, nothing else may write
    /// to it, or read it while a call or launch runs. It may be freed in stream order, behind all
    /// calls that were given this value. The caller orders calls on different streams that use the
    /// memory: nothing is recorded of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a work of the CPU,
    /// [`Error::ForeignPointer`](crate::Error::ForeignPointer) for an address that is no multiple
    /// of 256.
    pub unsafe fn found_from_raw_unchecked(&self, address: u64) -> Result<DeviceChamfer> {
        let (device, _) = self.cuda()?;
        let [x, _] = &self.layouts;
        let (n_points, n_pairs) = (n_points(&self.layouts), x.n_items());
        // SAFETY: the caller's promise.
        let found = unsafe {
            CudaChamfer::from_raw_unchecked(device, n_points, n_pairs, x.dim(), address)?
        };
        Ok(DeviceChamfer {
            device: self.device.clone(),
            layouts: self.layouts.clone(),
            options: self.options.clone(),
            inner: On::Cuda(Arc::new(found)),
        })
    }

    /// Gradients with respect to the values, as [`PreparedChamfer::upload_grad`], in device memory
    /// of the caller: an f32 for each pair of clouds. The driver is not asked about the memory.
    ///
    /// # Safety
    /// As [`DeviceGradScores::from_raw_unchecked`].
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a work of the CPU, and where distances
    /// are not reduced to values; [`Error::ForeignPointer`](crate::Error::ForeignPointer) for an
    /// address that is no multiple of 4.
    pub unsafe fn grad_from_raw_unchecked(&self, address: u64) -> Result<DeviceGradScores> {
        let (device, _) = self.cuda()?;
        self.check_has_values()?;
        let n_scores = self.n_values();
        // SAFETY: the caller's promise.
        let own =
            unsafe { CudaGradScores::from_raw_parts(device, address, n_scores, Trust::Unchecked)? };
        let inner = On::Cuda(Arc::new(own));
        Ok(DeviceGradScores { device: self.device.clone(), n_scores, inner })
    }

    /// Room for the gradients with respect to points, as [`PreparedChamfer::new_gradients`], in
    /// device memory of the caller: of `x` and of `y`, each `[rows, dim]` without gaps. The driver
    /// is not asked about the memory.
    ///
    /// # Safety
    /// As [`DeviceGradients::from_raw_unchecked`].
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a work of the CPU,
    /// [`Error::ForeignPointer`](crate::Error::ForeignPointer) for an address that is no multiple
    /// of the element size.
    pub unsafe fn gradients_from_raw_unchecked(
        &self,
        [x, y]: [u64; 2],
        element: GradientType,
    ) -> Result<DeviceGradients> {
        let (device, _) = self.cuda()?;
        let (rows, dim, element) = self.gradient_shape(element);
        let parts = matrices([x, y, 0], element, rows, dim);
        // SAFETY: the caller's promise.
        let own = unsafe { CudaGradients::from_raw_parts(device, parts, Trust::Unchecked)? };
        let inner = On::Cuda(Arc::new(own));
        Ok(DeviceGradients { device: self.device.clone(), element, rows, dim, inner })
    }

    /// The device and the work there.
    fn cuda(&self) -> Result<(&Arc<CudaDevice>, &CudaChamferWork)> {
        let device = self.device.cuda_device("memory of a CUDA device")?;
        match &self.inner {
            On::Cuda(work) => Ok((device, work)),
            On::Cpu(()) => Err(Device::cpu().wrong_queue()),
        }
    }
}
