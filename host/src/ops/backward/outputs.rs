//! Gradients on a device: of scores, which calls read, and of tokens, which they write.

use std::sync::Arc;

use super::blocking::Gradients;
use super::prepared::PreparedBackward;
use crate::cuda::{CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::error::Result;
use crate::runtime::alloc::{copy_of, filled};
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::element::ElementType;
use crate::tokens::layout::check_len;

/// Gradients of a loss with respect to scores, on a device: copied there, or written by
/// [`Queue::loss`](crate::stream::Queue::loss).
#[derive(Debug)]
#[must_use]
pub struct DeviceGradScores {
    pub(crate) device: Device,
    pub(crate) n_scores: usize,
    pub(crate) inner: On<Arc<Swap<Vec<f32>>>, Arc<CudaGradScores>>,
}

/// Gradients with respect to tokens, on a device: written by
/// [`Queue::backward`](crate::stream::Queue::backward), read when needed. Each is `[rows, dim]` of
/// its matrix, row-major without gaps.
///
/// ```
/// use maxsim::loss::DeviceLoss;
/// use maxsim::training::{DeviceGradScores, DeviceGradients};
///
/// /// What the optimizer of another library reads on a GPU, behind the stream that writes it: the
/// /// loss, its gradients with respect to scores and both sides' tokens, and bytes of an element.
/// fn addresses(
///     loss: &DeviceLoss,
///     grad_scores: &DeviceGradScores,
///     gradients: &DeviceGradients,
/// ) -> Option<([u64; 2], [u64; 2], usize)> {
///     let element_bytes = gradients.element_type().size_bytes();
///     Some(([loss.address()?, grad_scores.address()?], gradients.addresses()?, element_bytes))
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct DeviceGradients {
    pub(in crate::ops) device: Device,
    pub(in crate::ops) element: ElementType,
    /// Rows of queries and documents, and weights of queries.
    pub(in crate::ops) rows: [usize; 3],
    pub(in crate::ops) dim: usize,
    pub(in crate::ops) inner: On<Arc<Swap<Gradients>>, Arc<CudaGradients>>,
}

impl PreparedBackward {
    /// Gradients with respect to scores on the device: a copy of one number per score.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where there is another number of them; [`crate::Error::HostMemory`]
    /// or [`crate::Error::DeviceMemory`] where there is no room.
    pub fn upload_grad_scores(&self, values: &[f32]) -> Result<DeviceGradScores> {
        let n_scores = self.outputs.shape.n_scores();
        check_len("grad_scores", n_scores, "one per score", values.len())?;
        let inner = match &self.inner {
            On::Cpu(_) => On::Cpu(Arc::new(Swap::new(copy_of(values)?))),
            On::Cuda(_) => {
                let device = self.device.cuda_device("work for a CUDA device")?;
                On::Cuda(Arc::new(CudaGradScores::upload(device, values)?))
            }
        };
        Ok(DeviceGradScores { device: self.device.clone(), n_scores, inner })
    }

    /// Gradients with respect to scores on the device: zeros, one per score, to be written by
    /// [`Queue::loss`](crate::stream::Queue::loss).
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`] or [`crate::Error::DeviceMemory`] where there is no room.
    pub fn new_grad_scores(&self) -> Result<DeviceGradScores> {
        self.upload_grad_scores(&filled(self.outputs.shape.n_scores() as u64, 0.0)?)
    }

    /// Room for the gradients with respect to tokens: zeros.
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`] or [`crate::Error::DeviceMemory`] where there is no room.
    pub fn new_gradients(&self) -> Result<DeviceGradients> {
        let inner = match &self.inner {
            On::Cpu(_) => {
                let zeros = Gradients::of_rows(self.rows(), self.provenance.queries.dim())?;
                On::Cpu(Arc::new(Swap::new(zeros)))
            }
            On::Cuda(_) => {
                let device = self.device.cuda_device("work for a CUDA device")?;
                let zeros = CudaGradients::zeros(device, self.matrices([0; 2], Some(0)))?;
                On::Cuda(Arc::new(zeros))
            }
        };
        Ok(DeviceGradients::of(self, inner))
    }
}

impl DeviceGradScores {
    /// Waits for the last call or launch that was given these gradients, and copies them to the
    /// host.
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`] where there is no room; [`crate::Error::DeviceLost`] after a
    /// fault.
    pub fn read(&self) -> Result<Vec<f32>> {
        match &self.inner {
            On::Cpu(own) => Ok(Arc::unwrap_or_clone(own.get())),
            On::Cuda(own) => {
                let mut read = filled(self.n_scores as u64, 0.0)?;
                own.read(&mut read)?;
                Ok(read)
            }
        }
    }

    /// Replaces the numbers, once no work uses them any more: waits for the device.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where there is another number of them.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        check_len("grad_scores", self.n_scores, "one per score", values.len())?;
        match &self.inner {
            On::Cpu(own) => {
                own.set(copy_of(values)?);
                Ok(())
            }
            On::Cuda(own) => own.write(values),
        }
    }

    /// Device address of the numbers; `None` on the CPU.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(own) => Some(own.address()),
        }
    }
}

impl DeviceGradients {
    pub(crate) fn of(
        work: &PreparedBackward,
        inner: On<Arc<Swap<Gradients>>, Arc<CudaGradients>>,
    ) -> DeviceGradients {
        DeviceGradients {
            device: work.device.clone(),
            element: work.gradient,
            rows: work.rows(),
            dim: work.provenance.queries.dim(),
            inner,
        }
    }

    /// Element type of the gradients.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// Device addresses of the queries' and of the documents' gradient; `None` on the CPU. Order
    /// work that reads them behind the stream that writes them.
    pub fn addresses(&self) -> Option<[u64; 2]> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(gradients) => {
                let [queries, documents, _] = gradients.parts().map(|part| part.address);
                Some([queries, documents])
            }
        }
    }

    /// Device address of the gradient of the queries' [weights](crate::Tokens::with_weights), one
    /// f32 per row; `None` on the CPU, and where there is none.
    ///
    /// ```
    /// use maxsim::training::DeviceGradients;
    ///
    /// /// Where another library finds what steers its weights.
    /// fn steering(gradients: &DeviceGradients) -> Option<u64> {
    ///     gradients.weights_address()
    /// }
    /// ```
    pub fn weights_address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(gradients) => {
                let [_, _, weights] = gradients.parts().map(|part| part.address);
                Some(weights).filter(|&address| address != 0)
            }
        }
    }

    /// Waits for the last call or launch that was given these gradients, and copies them to the
    /// host, widened to f32.
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`] where there is no room; [`crate::Error::DeviceLost`] after a
    /// fault.
    pub fn read(&self) -> Result<Gradients> {
        match &self.inner {
            On::Cpu(gradients) => Ok(Arc::unwrap_or_clone(gradients.get())),
            On::Cuda(gradients) => {
                // Without room for the weights' gradient there is none to be read.
                let rows = gradients.parts().map(|part| part.rows);
                let mut read = Gradients::of_rows(rows, self.dim)?;
                gradients.read(read.parts())?;
                Ok(read)
            }
        }
    }
}
