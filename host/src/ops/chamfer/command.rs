//! The commands of Chamfer distances and of their gradients.

use std::sync::Arc;

use super::backward::{Factors, check_clouds};
use super::prepared::{DeviceChamfer, PreparedChamfer};
use super::{ChamferGrad, on_host};
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::cuda::ChamferGradCall;
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::backward::blocking::Gradients;
use crate::ops::backward::outputs::{DeviceGradScores, DeviceGradients};
use crate::ops::backward::with_grad::WithGrad;
use crate::problem::chamfer::{Chamfer, ChamferOptions, CloudPairs};
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::element::Element;
use crate::tokens::layout::{TokenLayout, check_len};

impl PreparedChamfer {
    /// The call on a queue of `device`, checked.
    pub(crate) fn command<'a, T: Element>(
        &'a self,
        device: &Device,
        [x, y]: [&'a DeviceTokens<T>; 2],
        found: &'a DeviceChamfer,
    ) -> Result<Command<'a>> {
        self.check(device, [x, y], found)?;
        let call = match (&self.inner, &found.inner) {
            (On::Cpu(()), On::Cpu(found)) => on_cpu(CpuChamfer {
                clouds: self.clouds([x, y])?,
                options: self.options.clone(),
                found: found.clone(),
            }),
            (On::Cuda(work), On::Cuda(found)) => {
                let tokens = [x.cuda_tokens()?, y.cuda_tokens()?];
                On::Cuda(CudaCommand::Chamfer { work, tokens, found })
            }
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }

    /// The call for gradients on a queue of `device`, checked.
    pub(crate) fn backward_command<'a, T: Element>(
        &'a self,
        device: &Device,
        [x, y]: [&'a DeviceTokens<T>; 2],
        found: WithGrad<'a, DeviceChamfer, DeviceGradScores>,
        gradients: &'a DeviceGradients,
    ) -> Result<Command<'a>> {
        let WithGrad { scores: found, grad_scores: grad } = found;
        self.check(device, [x, y], found)?;
        self.check_has_values()?;
        device.check_same("grad", &grad.device)?;
        check_len("grad", self.n_values(), "one per value", grad.n_scores)?;
        device.check_same("gradients", &gradients.device)?;
        let rows = [x.layout().rows(), y.layout().rows(), 0];
        if (gradients.rows, gradients.dim) != (rows, x.layout().dim()) {
            return Err(Error::Shape {
                argument: "gradients",
                expected: format!("{rows:?} rows of dim {}", x.layout().dim()),
                found: format!("{:?} rows of dim {}", gradients.rows, gradients.dim),
            });
        }
        let call = match (&self.inner, &found.inner, &grad.inner, &gradients.inner) {
            (On::Cpu(()), On::Cpu(found), On::Cpu(grad), On::Cpu(gradients)) => {
                on_cpu(CpuChamferBackward {
                    clouds: self.clouds([x, y])?,
                    found: found.clone(),
                    grad: grad.clone(),
                    gradients: gradients.clone(),
                })
            }
            (On::Cuda(work), On::Cuda(found), On::Cuda(grad), On::Cuda(gradients)) => {
                work.check_backward()?;
                let tokens = [x.cuda_tokens()?, y.cuda_tokens()?];
                let grad = ChamferGradCall { gradients: grad, most_of_points: None };
                On::Cuda(CudaCommand::ChamferBackward { work, tokens, found, grad, gradients })
            }
            _ => return Err(device.wrong_queue()),
        };
        Ok(Command { call, written: None })
    }

    /// Checks that a call on `device` is one that the work was prepared for.
    fn check<T: Element>(
        &self,
        device: &Device,
        [x, y]: [&DeviceTokens<T>; 2],
        found: &DeviceChamfer,
    ) -> Result<()> {
        device.check_same("work", &self.device)?;
        device.check_same("x", x.device())?;
        device.check_same("y", y.device())?;
        device.check_same("found", &found.device)?;
        if T::TYPE != self.element {
            return Err(Error::Shape {
                argument: "x, y",
                expected: format!("{} points, as the work was prepared for", self.element),
                found: format!("{} points", T::TYPE),
            });
        }
        let items = |argument, expected: &TokenLayout, found: &TokenLayout| {
            let is_same = expected.same_items(found);
            if is_same { Ok(()) } else { check_clouds(argument, expected, found) }
        };
        items("x", &self.layouts[0], x.layout())?;
        items("y", &self.layouts[1], y.layout())?;
        items("found", &self.layouts[0], &found.layouts[0])?;
        items("found", &self.layouts[1], &found.layouts[1])?;
        if found.options != self.options {
            return Err(Error::Shape {
                argument: "found",
                expected: format!("room for {:?}", self.options),
                found: format!("room for {:?}", found.options),
            });
        }
        Ok(())
    }

    fn clouds<T: Element>(&self, [x, y]: [&DeviceTokens<T>; 2]) -> Result<CpuClouds<T>> {
        let points = [x.host_tokens()?.clone(), y.host_tokens()?.clone()];
        Ok(CpuClouds { layouts: [x.layout().clone(), y.layout().clone()], points })
    }
}

/// Clouds in host memory.
struct CpuClouds<T: Element> {
    layouts: [TokenLayout; 2],
    points: [Arc<HostTokens<T>>; 2],
}

impl<T: Element> CpuClouds<T> {
    fn pairs(&self, options: &ChamferOptions) -> Result<CloudPairs<'_>> {
        CloudPairs::new(&self.layouts[0], &self.layouts[1], options)
    }

    fn matrices(&self) -> [cpu::tokens::Matrix<'_, T>; 2] {
        self.points.each_ref().map(|points| points.matrix())
    }
}

/// A search on the CPU, with everything that it uses.
struct CpuChamfer<T: Element> {
    clouds: CpuClouds<T>,
    options: ChamferOptions,
    found: Arc<Swap<Chamfer>>,
}

impl<T: Element> CpuCall for CpuChamfer<T> {
    fn run(&self) -> Result<()> {
        let pairs = self.clouds.pairs(&self.options)?;
        self.found.set(on_host(&pairs, self.clouds.matrices(), &self.options)?);
        Ok(())
    }
}

/// Gradients on the CPU.
struct CpuChamferBackward<T: Element> {
    clouds: CpuClouds<T>,
    found: Arc<Swap<Chamfer>>,
    grad: Arc<Swap<Vec<f32>>>,
    gradients: Arc<Swap<Gradients>>,
}

impl<T: Element> CpuCall for CpuChamferBackward<T> {
    fn run(&self) -> Result<()> {
        let (found, grad) = (self.found.get(), self.grad.get());
        let pairs = self.clouds.pairs(&found.options)?;
        let factors = Factors::new(&found, ChamferGrad::Values(&grad))?;
        let of = |side: usize, pair: usize, point: usize| factors.of(side, pair, point);
        let [queries, documents] =
            cpu::chamfer::gradients(&pairs, self.clouds.matrices(), &found, &of)?;
        self.gradients.set(Gradients { queries, documents, weights: Vec::new() });
        Ok(())
    }
}
