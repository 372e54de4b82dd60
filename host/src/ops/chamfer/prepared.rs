//! Chamfer distances made ready, and what they find on a device.

use std::sync::Arc;

use super::n_points;
use crate::cuda::{CudaChamfer, CudaChamferWork, CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::backward::blocking::{Gradients, matrices};
use crate::ops::backward::outputs::{DeviceGradScores, DeviceGradients};
use crate::ops::backward::prepared::GradientType;
use crate::ops::backward::with_grad::WithGrad;
use crate::problem::chamfer::{Chamfer, ChamferOptions, CloudPairs, Neighbours, PointReduction};
use crate::runtime::alloc::{copy_of, filled};
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::layout::{TokenLayout, check_len};

/// Chamfer distances made ready, for any handles with the same clouds.
///
/// ```
/// use maxsim::chamfer::{ChamferOptions, DeviceChamfer, PreparedChamfer};
/// use maxsim::stream::Queue;
/// use maxsim::training::GradientType;
/// use maxsim::{Device, Tokens};
///
/// // Points on a line: 0 and 4; 1, 2 and 5.
/// let device = Device::best();
/// let x = device.upload(&Tokens::padded(&[0.0f32, 4.0], 1, 2, 1)?)?;
/// let y = device.upload(&Tokens::padded(&[1.0f32, 2.0, 5.0], 1, 3, 1)?)?;
/// let work: PreparedChamfer = device.prepare_chamfer(&x, &y, &ChamferOptions::default())?;
/// let mut found: DeviceChamfer = work.new_found()?;
/// let grad = work.upload_grad(&[3.0])?;
/// let mut gradients = work.new_gradients(GradientType::F32)?;
/// let mut step = device.capture(|capture| {
///     capture.chamfer_into(&x, &y, &work, &mut found)?;
///     let found = found.with_grad(&grad);
///     capture.chamfer_backward(&x, &y, &work, found, &mut gradients)
/// })?;
/// step.launch(&mut device.stream()?)?; // returns at once
/// assert_eq!(found.read()?.values(), [1.0 + 2.0]); // waits
/// assert_eq!(gradients.read()?.queries, [-9.0, -5.0]); // those of x
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PreparedChamfer {
    pub(super) device: Device,
    pub(super) layouts: [TokenLayout; 2],
    pub(super) options: ChamferOptions,
    pub(super) element: ElementType,
    pub(super) inner: On<(), Arc<CudaChamferWork>>,
}

/// Chamfer distances on a device: written by
/// [`Queue::chamfer_into`](crate::stream::Queue::chamfer_into), read when needed.
#[derive(Debug)]
#[must_use]
pub struct DeviceChamfer {
    pub(super) device: Device,
    pub(super) layouts: [TokenLayout; 2],
    pub(super) options: ChamferOptions,
    pub(super) inner: On<Arc<Swap<Chamfer>>, Arc<CudaChamfer>>,
}

/// Where the memory of [`PreparedChamfer::found_from_raw_unchecked`] has what was found, in bytes
/// from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundMemory {
    /// Bytes in all.
    pub len_bytes: u64,
    /// f32 distances of the points of the first clouds, and after them of those of the second.
    pub distances: u64,
    /// i32 indices of their neighbours, likewise.
    pub indices: u64,
    /// f32 values, one for each pair of clouds.
    pub values: u64,
}

impl Device {
    /// Makes the [Chamfer distances](Device::chamfer) of clouds ready, for any number of
    /// [`Queue::chamfer_into`](crate::stream::Queue::chamfer_into) calls with clouds that lie as
    /// these.
    ///
    /// # Errors
    /// Those of [`Device::chamfer`].
    pub fn prepare_chamfer<T: Element>(
        &self,
        x: &DeviceTokens<T>,
        y: &DeviceTokens<T>,
        options: &ChamferOptions,
    ) -> Result<PreparedChamfer> {
        let pairs = CloudPairs::new(x.layout(), y.layout(), options)?;
        self.check_same("x", x.device())?;
        self.check_same("y", y.device())?;
        let inner = match &self.0 {
            On::Cpu(()) => On::Cpu(()),
            On::Cuda(cuda) => {
                On::Cuda(Arc::new(CudaChamferWork::new(cuda, &pairs, options, T::TYPE)?))
            }
        };
        Ok(PreparedChamfer {
            device: self.clone(),
            layouts: pairs.layouts.map(Clone::clone),
            options: options.clone(),
            element: T::TYPE,
            inner,
        })
    }
}

impl PreparedChamfer {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of workspace that a stream needs for [`Queue::chamfer_into`]; a stream that has none
    /// of the caller's ([`Stream::set_workspace`](crate::stream::Stream::set_workspace)) allocates
    /// them once. 0 but for large clouds on a CUDA device, whose points are sorted, about 36 bytes
    /// a point of the largest pair, or multiplied, about 4 · dim bytes a point and up to 64 MB
    /// besides.
    ///
    /// ```
    /// # use maxsim::{chamfer::ChamferOptions, Device, Tokens};
    /// let device = Device::best();
    /// let x = device.upload(&Tokens::padded(&[0.0f32, 4.0], 1, 2, 1)?)?;
    /// let work = device.prepare_chamfer(&x, &x, &ChamferOptions::default())?;
    /// assert_eq!(work.workspace_bytes(), 0); // all points are compared
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// [`Queue::chamfer_into`]: crate::stream::Queue::chamfer_into
    pub fn workspace_bytes(&self) -> u64 {
        match &self.inner {
            On::Cpu(()) => 0,
            On::Cuda(work) => work.workspace_bytes(),
        }
    }

    /// Room for what is found: zeros. On a CUDA device it has room for what gradients add up, too:
    /// in all about 16 + 8.5 · dim bytes per point.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new_found(&self) -> Result<DeviceChamfer> {
        let [x, y] = &self.layouts;
        let inner = match &self.device.0 {
            On::Cpu(()) => {
                let found = Chamfer {
                    layouts: self.layouts.clone(),
                    options: self.options.clone(),
                    values: filled(self.n_values() as u64, 0.0)?,
                    x: Neighbours::none(x)?,
                    y: match self.options.single_direction {
                        true => None,
                        false => Some(Neighbours::none(y)?),
                    },
                };
                On::Cpu(Arc::new(Swap::new(found)))
            }
            On::Cuda(cuda) => {
                let n_points = n_points(&self.layouts);
                On::Cuda(Arc::new(CudaChamfer::new(cuda, n_points, x.n_items(), x.dim())?))
            }
        };
        let (layouts, options) = (self.layouts.clone(), self.options.clone());
        Ok(DeviceChamfer { device: self.device.clone(), layouts, options, inner })
    }

    /// Gradients with respect to the values on the device: a copy of one number per pair.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is another number of them; [`Error::Unsupported`] where
    /// distances are not reduced to values; [`Error::HostMemory`] or [`Error::DeviceMemory`] where
    /// there is no room.
    pub fn upload_grad(&self, values: &[f32]) -> Result<DeviceGradScores> {
        self.check_has_values()?;
        check_len("grad", self.n_values(), "one per value", values.len())?;
        let inner = match &self.device.0 {
            On::Cpu(()) => On::Cpu(Arc::new(Swap::new(copy_of(values)?))),
            On::Cuda(cuda) => On::Cuda(Arc::new(CudaGradScores::upload(cuda, values)?)),
        };
        let n_scores = values.len();
        Ok(DeviceGradScores { device: self.device.clone(), n_scores, inner })
    }

    /// Room for the gradients with respect to points: zeros. Those of the first clouds are its
    /// `queries`, those of the second clouds its `documents`.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new_gradients(&self, element: GradientType) -> Result<DeviceGradients> {
        let (rows, dim, element) = self.gradient_shape(element);
        let inner = match &self.device.0 {
            On::Cpu(()) => On::Cpu(Arc::new(Swap::new(Gradients::of_rows(rows, dim)?))),
            On::Cuda(cuda) => {
                let parts = matrices([0; 3], element, rows, dim);
                On::Cuda(Arc::new(CudaGradients::zeros(cuda, parts)?))
            }
        };
        Ok(DeviceGradients { device: self.device.clone(), element, rows, dim, inner })
    }

    /// Rows of each matrix of gradients, their dim, and what they are stored as.
    pub(super) fn gradient_shape(&self, of: GradientType) -> ([usize; 3], usize, ElementType) {
        let element = match of {
            GradientType::F32 => ElementType::F32,
            GradientType::Tokens => self.element,
        };
        let [x, y] = &self.layouts;
        ([x.rows(), y.rows(), 0], x.dim(), element)
    }

    pub(super) fn n_values(&self) -> usize {
        match self.options.reduction {
            PointReduction::None => 0,
            _ => self.layouts[0].n_items(),
        }
    }

    pub(super) fn check_has_values(&self) -> Result<()> {
        match self.options.reduction {
            PointReduction::None => Err(Error::Unsupported {
                what: "gradients of values that there are not".into(),
                why: "distances are not reduced: use Device::chamfer_backward with \
                      ChamferGrad::Distances"
                    .into(),
            }),
            _ => Ok(()),
        }
    }
}

impl DeviceChamfer {
    /// Joins what is found and the gradients of a loss with respect to its values, for
    /// [`Queue::chamfer_backward`](crate::stream::Queue::chamfer_backward).
    pub fn with_grad<'a>(
        &'a self,
        grad: &'a DeviceGradScores,
    ) -> WithGrad<'a, DeviceChamfer, DeviceGradScores> {
        WithGrad { scores: self, grad_scores: grad }
    }

    /// Waits for the last call or launch that was given this, and copies it to the host.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Chamfer> {
        match (&self.inner, &self.device.0) {
            (On::Cpu(found), _) => Ok(Arc::unwrap_or_clone(found.get())),
            (On::Cuda(found), On::Cuda(cuda)) => {
                let (values, sides) = cuda.on_idle_stream(|stream| found.read(stream))?;
                Ok(Chamfer::of(self.layouts.clone(), &self.options, values, sides))
            }
            (On::Cuda(_), On::Cpu(())) => Err(self.device.wrong_queue()),
        }
    }
}
