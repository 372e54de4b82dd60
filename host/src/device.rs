//! Devices: where scores are computed.

use std::fmt;
use std::sync::Arc;

use crate::cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::{self, CudaDevice, CudaEvent, CudaStream, CudaTokens, CudaWork};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::event::{Event, EventInner};
use crate::format::{Against, Format, Residual, TokenFormat};
use crate::graph::{Capture, Graph};
use crate::handle::{DeviceTokens, Input, Storage};
use crate::pairing::Pairing;
use crate::plan::{Access, DeviceLimits, Plan};
use crate::problem::Problem;
use crate::residual::{HostResiduals, ResidualTokens};
use crate::scores::{ScoreOptions, Scores};
use crate::stream::{Stream, StreamInner};
use crate::tokens::Tokens;
use crate::warm_up::{WarmUp, Warmed};
use crate::work::{OutputShape, Work, WorkInner};

/// Where scores are computed: the CPU, or one CUDA device.
///
/// Cheap to clone; clones are the same device. The same calls work on every device, from any
/// number of threads.
#[derive(Clone, Debug)]
pub struct Device(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Cpu,
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Arc<CudaDevice>),
}

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Free for everyone who uses the device.
    pub free_bytes: u64,
    /// All there is.
    pub total_bytes: u64,
}

impl Device {
    /// The CPU engine.
    pub fn cpu() -> Device {
        Device(Inner::Cpu)
    }

    /// CUDA device number `ordinal`, in its primary context. Opens the driver at first use.
    /// A device stays open until the process ends.
    ///
    /// # Errors
    /// [`Error::CudaNotBuilt`], [`Error::NoDriver`], [`Error::NoDevice`],
    /// [`Error::UnsupportedDevice`], [`Error::DeviceMemory`] where the context has no room,
    /// and [`Error::Driver`] for what else the driver may say.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Ok(Device(Inner::Cuda(cuda::open(ordinal)?)))
    }

    /// CUDA device number `ordinal`.
    ///
    /// # Errors
    /// [`Error::CudaNotBuilt`]: this build has no GPU support.
    #[cfg(not(all(feature = "cuda", target_os = "linux")))]
    pub fn cuda(_ordinal: usize) -> Result<Device> {
        Err(Error::CudaNotBuilt)
    }

    /// Number of CUDA devices that the driver sees, able to run the kernels or not.
    ///
    /// # Errors
    /// [`Error::CudaNotBuilt`], [`Error::NoDriver`], or [`Error::Driver`] where the driver
    /// cannot be initialised.
    pub fn n_cuda() -> Result<usize> {
        #[cfg(all(feature = "cuda", target_os = "linux"))]
        return cuda::n_devices();
        #[cfg(not(all(feature = "cuda", target_os = "linux")))]
        Err(Error::CudaNotBuilt)
    }

    /// Every device that can score: the CUDA devices that can run the kernels, then the CPU.
    pub fn all() -> Vec<Device> {
        let n_cuda = Device::n_cuda().unwrap_or(0);
        let cuda = (0..n_cuda).filter_map(|ordinal| Device::cuda(ordinal).ok());
        cuda.chain([Device::cpu()]).collect()
    }

    /// The first CUDA device that can run the kernels, or else the CPU. [`Device::cuda`] says why a device
    /// cannot, a value of an environment variable that there is not included.
    pub fn best() -> Device {
        let n_cuda = Device::n_cuda().unwrap_or(0);
        (0..n_cuda).find_map(|ordinal| Device::cuda(ordinal).ok()).unwrap_or_else(Device::cpu)
    }

    /// The number that [`Device::cuda`] takes; `None` for the CPU.
    pub fn ordinal(&self) -> Option<usize> {
        match &self.0 {
            Inner::Cpu => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => Some(device.ordinal()),
        }
    }

    /// The product's name, as the driver gives it; `CPU` for the CPU.
    pub fn name(&self) -> &str {
        match &self.0 {
            Inner::Cpu => "CPU",
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => device.name(),
        }
    }

    /// What decides which kernels can run; `None` for the CPU.
    pub fn limits(&self) -> Option<&DeviceLimits> {
        match &self.0 {
            Inner::Cpu => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => Some(device.limits()),
        }
    }

    /// CUDA version of the driver as 1000 · major + 10 · minor; `None` for the CPU.
    pub fn driver_version(&self) -> Option<u32> {
        match &self.0 {
            Inner::Cpu => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => Some(device.driver_version()),
        }
    }

    /// Device memory; `None` for the CPU.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] after a fault.
    pub fn memory(&self) -> Result<Option<Memory>> {
        match &self.0 {
            Inner::Cpu => Ok(None),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => {
                let (free_bytes, total_bytes) = device.memory_bytes()?;
                Ok(Some(Memory { free_bytes, total_bytes }))
            }
        }
    }

    /// Copies tokens to the device, to be scored any number of times. The bytes have arrived
    /// when this returns.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] where there is no room; the device stays usable.
    /// [`Error::Shape`] where scales of compressed tokens are negative or infinite.
    pub fn upload<F: Format>(&self, tokens: &Tokens<'_, F>) -> Result<DeviceTokens<F>> {
        tokens.check_scales()?;
        let storage = match &self.0 {
            Inner::Cpu => Storage::host(tokens)?,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => Storage::Cuda(Arc::new(CudaTokens::upload(device, tokens)?)),
        };
        Ok(DeviceTokens::new(self.clone(), tokens.layout().clone(), storage))
    }

    /// Copies residual-compressed tokens to the device, as documents of queries of type `T`.
    ///
    /// The CPU engine decodes rows as [`ResidualTokens::decode`] says, in f32, whenever they are
    /// scored. A CUDA device rounds the codec's tables to `T`, f16 or bf16, and multiplies
    ///
    /// ```text
    /// x̂[k] = T(T(centroids[code][k]) + T(bucket_weights[bucket[k]]))
    /// ```
    ///
    /// whose similarities it multiplies by r = 1 / √max(‖x̂‖², 10⁻¹²), an f32 per row that is found
    /// here, where the codec says that tokens are normalised. With u = 2⁻¹¹ (f16) or 2⁻⁸ (bf16) an
    /// element differs from that of the CPU by up to u · (|centroid| + |weight| + |x|), and another
    /// u · |x| where rows are normalised. No decoded matrix exists on either.
    ///
    /// [`Device::backward_residual`] gives gradients of their scores.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for f32 queries on a CUDA device, which has no kernel for them.
    /// [`Error::Shape`] for bucket weights that are no finite numbers of `T` there, for finite
    /// centroids that are none, and for tables of 2⁴⁹ and more where tokens are normalised.
    /// [`Error::DeviceMemory`] or [`Error::HostMemory`] where there is no room.
    pub fn upload_residual<T: Element>(
        &self,
        tokens: &ResidualTokens<'_>,
    ) -> Result<DeviceTokens<Residual<T>>> {
        let storage = match &self.0 {
            Inner::Cpu => Storage::residuals(HostResiduals::new(tokens)?, tokens.mask())?,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => {
                tokens.codec().check_range::<T>()?;
                Storage::Cuda(Arc::new(CudaTokens::upload_residual::<T>(device, tokens)?))
            }
        };
        Ok(DeviceTokens::new(self.clone(), tokens.layout().clone(), storage))
    }

    /// Scores queries against documents.
    ///
    /// Either side is borrowed host tokens or a handle from [`Device::upload`]. Both have the same
    /// element type, or [compressed formats](crate::format) that go together.
    ///
    /// # Errors
    /// [`Error::Shape`] and others where queries, documents and pairing do not fit together.
    /// [`Error::Unsupported`] where nothing on the device can run the call: compressed tokens where rows
    /// are to be normalised are among that.
    pub fn score<'a, Q: Against<D>, D: Format>(
        &self,
        queries: impl Into<Input<'a, Q>>,
        documents: impl Into<Input<'a, D>>,
        pairing: &Pairing,
    ) -> Result<Scores> {
        self.score_with(queries, documents, pairing, &ScoreOptions::default())
    }

    /// Scores queries against documents, with winners, token scores or a named kernel.
    pub fn score_with<'a, Q: Against<D>, D: Format>(
        &self,
        queries: impl Into<Input<'a, Q>>,
        documents: impl Into<Input<'a, D>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let plan = self.plan_problem(&problem, &queries, &documents, options)?;
        match (&self.0, plan.chosen()) {
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (Inner::Cuda(device), Some(chosen)) => {
                let (mut own_queries, mut own_documents) = (None, None);
                let queries = queries.cuda_tokens(self, &mut own_queries)?;
                let documents = documents.cuda_tokens(self, &mut own_documents)?;
                Ok(device.score(&problem, chosen, queries, documents, options)?.0)
            }
            _ => {
                let queries = queries.host_matrix()?;
                let documents = documents.host_matrix()?;
                cpu::score(&problem, queries, documents, options)
            }
        }
    }

    /// What [`Device::score_with`] would run for these inputs, and why.
    pub fn plan<'a, Q: Against<D>, D: Format>(
        &self,
        queries: impl Into<Input<'a, Q>>,
        documents: impl Into<Input<'a, D>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        self.plan_problem(&problem, &queries, &documents, options)
    }

    /// Checks and plans a problem, loads its kernel and uploads its work lists, for any
    /// number of [`Stream::score_into`] calls with handles of these layouts.
    ///
    /// # Errors
    /// Those of [`Device::score_with`].
    pub fn prepare<Q: Against<D>, D: Format>(
        &self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Work> {
        let plan = self.plan(queries, documents, pairing, options)?;
        self.prepare_planned(plan, queries, documents, pairing, options)
    }

    /// A new stream of work on this device.
    pub fn stream(&self) -> Result<Stream> {
        let inner = match &self.0 {
            Inner::Cpu => StreamInner::Cpu,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => StreamInner::Cuda(CudaStream::new(device)?),
        };
        Ok(Stream { device: self.clone(), inner })
    }

    /// A new event, to be recorded on streams of this device.
    pub fn event(&self) -> Result<Event> {
        let inner = match &self.0 {
            Inner::Cpu => EventInner::Cpu(std::time::Instant::now()),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => EventInner::Cuda(CudaEvent::timing(device)?),
        };
        Ok(Event { device: self.clone(), inner, is_recorded: false })
    }

    /// Loads every kernel that calls like these can choose, and makes ready what uploads and
    /// synchronous calls need, so that the first call takes no longer than later ones. May be
    /// called again, from any thread: what is there stays. The CPU engine has nothing to load.
    ///
    /// # Errors
    /// Those of [`WarmUp::kernels`], and of the loading itself: [`Error::PtxTooNew`],
    /// [`Error::DeviceMemory`], [`Error::Driver`].
    pub fn warm_up(&self, calls: &WarmUp) -> Result<Warmed> {
        match &self.0 {
            Inner::Cpu => {
                let _ = calls;
                Ok(Warmed::default())
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Inner::Cuda(device) => {
                let start = std::time::Instant::now();
                let limits = device.limits();
                let others = [
                    calls.norm_kernels(),
                    calls.gradient_kernels(limits),
                    calls.coarse_kernels(limits),
                    calls.centroid_kernels(limits),
                ]
                .concat();
                let kernels = device.warm_up(&calls.kernels(limits)?, &others)?;
                Ok(Warmed { kernels, time: start.elapsed() })
            }
        }
    }

    /// Captures calls into a graph, which launches all of them at once, any number of times.
    /// Nothing is scored until then.
    ///
    /// # Errors
    /// Those of `calls`; and [`Error::DeviceMemory`] where there is no room for the graph.
    pub fn capture(&self, calls: impl FnOnce(&mut Capture) -> Result<()>) -> Result<Graph> {
        let mut capture = Capture::new(self);
        calls(&mut capture)?;
        capture.finish()
    }

    pub(crate) fn plan_problem<Q: Format, D: Format>(
        &self,
        problem: &Problem<'_>,
        queries: &Input<'_, Q>,
        documents: &Input<'_, D>,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
        let elements = (Q::FORMAT.element(), D::FORMAT.element());
        if let (true, (None, _) | (_, None)) = (options.normalize, elements) {
            return Err(Error::Unsupported {
                what: format!("`normalize` for {} queries and {} documents", Q::FORMAT, D::FORMAT),
                why: "rows are compressed; divide them by their lengths before".into(),
            });
        }
        let access = [queries.access(), documents.access()];
        self.plan_formats(problem, [Q::FORMAT, D::FORMAT], access, options)
    }

    /// The plan of queries and documents of two formats, and how they are read.
    pub(crate) fn plan_formats(
        &self,
        problem: &Problem<'_>,
        [queries, documents]: [TokenFormat; 2],
        access: [Access; 2],
        options: &ScoreOptions,
    ) -> Result<Plan> {
        match (self.limits(), TokenFormat::operand(queries, documents)) {
            (None, _) => Plan::cpu(options, cpu::n_threads()),
            (Some(limits), Some(operand)) => {
                Plan::choose(problem, operand, limits, access[0], access[1], options)
            }
            (Some(_), None) => Err(Error::Unsupported {
                what: format!("{queries} queries and {documents} documents on {self}"),
                why: "no kernel takes them yet; use Device::cpu()".into(),
            }),
        }
    }

    fn prepare_planned<Q: Format, D: Format>(
        &self,
        plan: Plan,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Work> {
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let outputs = OutputShape::new(&problem, options);
        let inner = match (&self.0, plan.chosen()) {
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (Inner::Cuda(device), Some(chosen)) => {
                let work = CudaWork::new(device, &problem, chosen, &outputs)?;
                work.prepare_norms(queries.cuda_tokens()?, documents.cuda_tokens()?, None)?;
                WorkInner::Cuda(Arc::new(work))
            }
            _ => WorkInner::Cpu,
        };
        Ok(Work {
            device: self.clone(),
            formats: [Q::FORMAT, D::FORMAT],
            queries: queries.layout.clone(),
            documents: documents.layout.clone(),
            pairing: Arc::new(pairing.clone()),
            options: options.clone(),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            access: [queries.access(), documents.access()],
            plan,
            outputs: Arc::new(outputs),
            inner,
        })
    }

    /// Whether there are kernels, or an engine, for queries and documents of these formats.
    pub fn can_score(&self, queries: TokenFormat, documents: TokenFormat) -> bool {
        let operand = TokenFormat::operand(queries, documents);
        operand.is_some_and(|operand| self.limits().is_none_or(|limits| limits.has_rows(operand)))
    }

    /// Checks that something of device `found` can be used here.
    pub(crate) fn check_same(&self, argument: &'static str, found: &Device) -> Result<()> {
        let is_same = match (&self.0, &found.0) {
            (Inner::Cpu, Inner::Cpu) => true,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (Inner::Cuda(a), Inner::Cuda(b)) => Arc::ptr_eq(a, b),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let (expected, found) = (self.to_string(), found.to_string());
        Err(Error::WrongDevice { argument, expected, found })
    }

    /// The CUDA device, if it is one.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn as_cuda(&self) -> Option<&Arc<CudaDevice>> {
        match &self.0 {
            Inner::Cuda(device) => Some(device),
            Inner::Cpu => None,
        }
    }

    /// The CUDA device, for `what` only a CUDA device has.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn cuda_device(&self, what: &str) -> Result<&Arc<CudaDevice>> {
        match &self.0 {
            Inner::Cuda(device) => Ok(device),
            Inner::Cpu => Err(Error::Unsupported {
                what: format!("{what} on the CPU"),
                why: "it needs a device from Device::cuda".into(),
            }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal() {
            None => f.write_str("cpu"),
            Some(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
