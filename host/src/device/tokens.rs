//! Tokens on a device, and the sides of a call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Device;
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::cuda::CudaTokens;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::residual::ResidualTokens;
use crate::runtime::alloc::shared_copy_of;
use crate::runtime::arrival::Arrival;
use crate::runtime::on::On;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::Residual;
use crate::tokens::format::{Format, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// Tokens on a device: made once, scored any number of times, as queries or as documents.
///
/// Dropping a handle does not wait: its memory stays for the calls that use it, and is free when
/// the last of them is done. What a [`Graph`](crate::stream::Graph) uses stays until the graph is
/// dropped too.
#[must_use]
pub struct DeviceTokens<F: Format> {
    device: Device,
    pub(crate) layout: Arc<TokenLayout>,
    storage: Storage<F>,
    origin: Origin,
}

/// Identity of a handle's tokens. Handles are never written to, unless their memory is the
/// caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// No other handle of the process has it.
    id: u64,
    /// The handle that codes were made of.
    made_of: Option<u64>,
    /// Whether the memory is the caller's, who may write to it between calls.
    is_foreign: bool,
}

impl Origin {
    fn new(made_of: Option<u64>, is_foreign: bool) -> Origin {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Origin { id: NEXT.fetch_add(1, Ordering::Relaxed), made_of, is_foreign }
    }
}

/// Prints everything but the matrix.
impl<F: Format> fmt::Debug for DeviceTokens<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTokens")
            .field("device", &self.device)
            .field("format", &F::FORMAT)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// Tokens in the memory of their device.
pub(crate) type Storage<F> = On<Arc<HostTokens<F>>, Arc<CudaTokens>>;

impl<F: Format> DeviceTokens<F> {
    pub(crate) fn new(device: Device, layout: TokenLayout, storage: Storage<F>) -> Self {
        let origin = Origin::new(None, false);
        DeviceTokens { device, layout: Arc::new(layout), storage, origin }
    }

    /// Makes a handle of the caller's memory.
    pub(crate) fn foreign(device: Device, layout: Arc<TokenLayout>, storage: Storage<F>) -> Self {
        let origin = Origin::new(None, true);
        DeviceTokens { device, layout, storage, origin }
    }

    /// Whether the caller may write to the tokens between calls.
    pub(crate) fn is_foreign(&self) -> bool {
        self.origin.is_foreign
    }

    /// Whether [`DeviceTokens::quantize`] made these codes of what `tokens` still has.
    pub(crate) fn is_made_of<G: Format>(&self, tokens: &DeviceTokens<G>) -> bool {
        self.origin.made_of == Some(tokens.origin.id)
    }

    /// Storage format of the tokens.
    pub fn format(&self) -> TokenFormat {
        F::FORMAT
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    /// The device that holds the tokens.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn storage(&self) -> &Storage<F> {
        &self.storage
    }

    /// Codes of these tokens, on the same device and in the same layout.
    pub(crate) fn codes<G: Format>(&self, storage: Storage<G>) -> DeviceTokens<G> {
        let made_of = (!self.origin.is_foreign).then_some(self.origin.id);
        DeviceTokens {
            device: self.device.clone(),
            layout: self.layout.clone(),
            storage,
            origin: Origin::new(made_of, false),
        }
    }

    /// The same rows as other items: those of the layout, or, where it is unread, those of these
    /// segments. On the CPU there is no such handle: calls there list pairs.
    pub(crate) fn as_items(
        &self,
        layout: TokenLayout,
        segments: &[[u32; 2]],
    ) -> Result<DeviceTokens<F>> {
        let cuda = self.device.cuda_device("other items of the same rows")?;
        let (rows, max_len) = (layout.rows(), layout.max_len());
        let is_within = |&[start, len]: &[u32; 2]| {
            len as usize <= max_len && start as usize + len as usize <= rows
        };
        let n_segments = if layout.is_unread() { layout.n_items() } else { 0 };
        if segments.len() != n_segments
            || rows != self.layout.rows()
            || !segments.iter().all(is_within)
        {
            return Err(Error::Shape {
                argument: "segments",
                expected: format!("{n_segments} of up to {max_len} of {rows} rows"),
                found: format!("{} in {} rows", segments.len(), self.layout.rows()),
            });
        }
        let view = self.cuda_tokens()?.of_items(cuda, &layout, segments)?;
        Ok(self.viewed_as(layout, view))
    }

    /// The same rows as other items, those of an unread layout, whose segments are at an address of
    /// the device for as long as calls use them.
    pub(crate) fn as_items_at(
        &self,
        layout: TokenLayout,
        segments: u64,
    ) -> Result<DeviceTokens<F>> {
        let cuda = self.device.cuda_device("other items of the same rows")?;
        let view = self.cuda_tokens()?.of_segments(cuda, &layout, segments)?;
        Ok(self.viewed_as(layout, view))
    }

    /// Makes a handle of a view of the same rows.
    fn viewed_as(&self, layout: TokenLayout, view: CudaTokens) -> DeviceTokens<F> {
        let origin = Origin::new(None, self.origin.is_foreign);
        let (device, storage) = (self.device.clone(), On::Cuda(Arc::new(view)));
        DeviceTokens { device, layout: Arc::new(layout), storage, origin }
    }

    /// Copies the tokens to host memory, as they are stored: elements, or codes and scales, with
    /// layout and mask. Waits for the copy.
    ///
    /// # Errors
    /// [`Error::HostMemory`]. [`Error::Unsupported`] for [residual-compressed](crate::residual)
    /// tokens, which are stored as the device decodes them.
    pub fn download(&self) -> Result<Tokens<'static, F>> {
        if matches!(F::FORMAT, TokenFormat::Residual(_)) {
            return Err(Error::Unsupported {
                what: "reading residual-compressed tokens back".into(),
                why: "they are stored as the device decodes them; keep the `ResidualTokens` that \
                      were uploaded"
                    .into(),
            });
        }
        match &self.storage {
            On::Cpu(tokens) => {
                let matrix = tokens.matrix();
                let scales = matrix.scales.map(Scales::copied).transpose()?;
                let data = shared_copy_of(matrix.data)?.into();
                let beside = (matrix.mask, matrix.weights);
                Tokens::assemble(data, scales, self.layout().clone(), beside)
            }
            On::Cuda(tokens) => {
                tokens.download(self.device.cuda_device("tokens of a CUDA device")?, self.layout())
            }
        }
    }

    pub(crate) fn host_tokens(&self) -> Result<&Arc<HostTokens<F>>> {
        match &self.storage {
            On::Cpu(tokens) => Ok(tokens),
            On::Cuda(_) => Err(self.wrong_device("cpu")),
        }
    }

    pub(crate) fn cuda_tokens(&self) -> Result<&Arc<CudaTokens>> {
        match &self.storage {
            On::Cuda(tokens) => Ok(tokens),
            On::Cpu(_) => Err(self.wrong_device("a CUDA device")),
        }
    }

    fn wrong_device(&self, expected: &str) -> Error {
        let (expected, found) = (expected.into(), self.device.to_string());
        Error::WrongDevice { argument: "tokens", expected, found }
    }

    /// Address and pitch of the rows in device memory. The base is 0 on the CPU.
    pub fn access(&self) -> Access {
        match &self.storage {
            On::Cpu(_) => Access::uploaded(self.layout.dim(), F::FORMAT),
            On::Cuda(tokens) => tokens.access(),
        }
    }
}

impl<F: Format> AsRef<TokenLayout> for DeviceTokens<F> {
    fn as_ref(&self) -> &TokenLayout {
        self.layout()
    }
}

impl<T: Element> DeviceTokens<T> {
    /// Checks that f32 can hold what [`ScoreOptions::normalize`](crate::ScoreOptions::normalize)
    /// multiplies: that no valid row is more than 2⁶² long, or that the rows were uploaded.
    ///
    /// Rows of any length have their direction where a handle was made by
    /// [`Device::upload`](crate::Device::upload), which keeps rows that are too long a second time,
    /// times a power of two. On a GPU a handle of foreign memory (`DeviceTokens::from_raw_parts`),
    /// or one made by [`Device::project`](crate::Device::project), reads the rows as they are: a
    /// dot product of two rows that are together more than 2¹²⁷ long is infinite then, as IEEE has
    /// it. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Shape`] that names the first such row.
    pub fn check_normalizable(&self) -> Result<()> {
        match &self.storage {
            On::Cpu(_) => Ok(()),
            On::Cuda(tokens) => {
                let device = self.device.cuda_device("tokens of a CUDA device")?;
                tokens.check_normalizable(device, self.layout())
            }
        }
    }
}

/// One side of a call: host tokens or a handle.
/// ```
/// use maxsim::format::Element;
/// use maxsim::{Device, Pairing, Result, Scores, Tokens, TokensRef};
///
/// /// Scores of items with each other, wherever either side is.
/// fn score<T: Element>(
///     queries: TokensRef<'_, T>,
///     documents: TokensRef<'_, T>,
/// ) -> Result<Scores> {
///     Device::cpu().score(queries, documents, &Pairing::cross())
/// }
///
/// let tokens = Tokens::padded(&[1.0f32, 2.0], 1, 1, 2)?;
/// let handle = Device::cpu().upload(&tokens)?;
/// assert_eq!(score((&tokens).into(), (&handle).into())?.values(), [5.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum TokensRef<'a, F: Format> {
    /// Tokens in host memory, uploaded for this call where that is needed.
    Host(&'a Tokens<'a, F>),
    /// Tokens on the device.
    Device(&'a DeviceTokens<F>),
}

impl<'a, F: Format> TokensRef<'a, F> {
    /// Shape and items.
    pub fn layout(&self) -> &'a TokenLayout {
        match self {
            TokensRef::Host(tokens) => tokens.layout(),
            TokensRef::Device(tokens) => tokens.layout(),
        }
    }

    pub(crate) fn check_device(&self, argument: &'static str, device: &Device) -> Result<()> {
        match self {
            TokensRef::Host(_) => Ok(()),
            TokensRef::Device(tokens) => device.check_same(argument, tokens.device()),
        }
    }

    /// How a kernel reaches the rows, before or after an upload.
    pub(crate) fn access(&self) -> Access {
        match self {
            TokensRef::Host(tokens) => Access::uploaded(tokens.layout().dim(), F::FORMAT),
            TokensRef::Device(tokens) => tokens.access(),
        }
    }

    /// Borrows the tokens where they are in host memory; those of a CPU handle are put into `own`.
    pub(crate) fn in_host_memory<'b>(
        &self,
        own: &'b mut Option<Tokens<'a, F>>,
    ) -> Result<Option<&'b Tokens<'b, F>>>
    where
        'a: 'b,
    {
        match self {
            TokensRef::Host(tokens) => Ok(Some(tokens)),
            TokensRef::Device(handle) => match &handle.storage {
                On::Cpu(tokens) => Ok(Some(own.insert(tokens.tokens(&handle.layout)?))),
                On::Cuda(_) => Ok(None),
            },
        }
    }

    pub(crate) fn host_matrix(&self) -> Result<cpu::tokens::Matrix<'a, F>> {
        match self {
            TokensRef::Host(tokens) => {
                tokens.check_scales()?;
                let (scales, (mask, weights)) = (tokens.scales_of_codes(), tokens.beside());
                let data = tokens.data();
                Ok(cpu::tokens::Matrix { data, scales, residuals: None, mask, weights })
            }
            TokensRef::Device(tokens) => Ok(tokens.host_tokens()?.matrix()),
        }
    }

    /// The handle, or one of host tokens uploaded into `own`.
    pub(crate) fn on<'b>(
        &self,
        device: &Device,
        own: &'b mut Option<DeviceTokens<F>>,
    ) -> Result<&'b DeviceTokens<F>>
    where
        'a: 'b,
    {
        self.there(device, own, Arrival::Awaited)
    }

    /// As [`TokensRef::on`], for calls on the library's streams alone: few tokens may still be on
    /// their way, and are there before what streams are given later.
    pub(crate) fn sent_to<'b>(
        &self,
        device: &Device,
        own: &'b mut Option<DeviceTokens<F>>,
    ) -> Result<&'b DeviceTokens<F>>
    where
        'a: 'b,
    {
        self.there(device, own, Arrival::InOrder)
    }

    /// The handle, or one of host tokens that are copied into `own` by `arrival`.
    fn there<'b>(
        &self,
        device: &Device,
        own: &'b mut Option<DeviceTokens<F>>,
        arrival: Arrival,
    ) -> Result<&'b DeviceTokens<F>>
    where
        'a: 'b,
    {
        match self {
            TokensRef::Host(tokens) => Ok(own.insert(device.copy_of(tokens, arrival)?)),
            TokensRef::Device(tokens) => Ok(tokens),
        }
    }

    /// The handle's tokens, or host tokens uploaded into `own`.
    pub(crate) fn cuda_tokens<'b>(
        &self,
        device: &Device,
        own: &'b mut Option<DeviceTokens<F>>,
    ) -> Result<&'b Arc<CudaTokens>>
    where
        'a: 'b,
    {
        self.on(device, own)?.cuda_tokens()
    }
}

impl<'a, F: Format> From<&'a Tokens<'a, F>> for TokensRef<'a, F> {
    fn from(tokens: &'a Tokens<'a, F>) -> Self {
        TokensRef::Host(tokens)
    }
}

impl<'a, F: Format> From<&'a DeviceTokens<F>> for TokensRef<'a, F> {
    fn from(tokens: &'a DeviceTokens<F>) -> Self {
        TokensRef::Device(tokens)
    }
}

impl Device {
    /// Copies tokens to the device, to be scored any number of times. The bytes have arrived
    /// when this returns.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] where there is no room; the device stays usable.
    /// [`Error::Shape`] where scales of compressed tokens are negative or infinite.
    pub fn upload<F: Format>(&self, tokens: &Tokens<'_, F>) -> Result<DeviceTokens<F>> {
        self.copy_of(tokens, Arrival::Awaited)
    }

    /// As [`Device::upload`], with the bytes there by `arrival`.
    fn copy_of<F: Format>(
        &self,
        tokens: &Tokens<'_, F>,
        arrival: Arrival,
    ) -> Result<DeviceTokens<F>> {
        tokens.check_scales()?;
        let storage = match &self.0 {
            On::Cpu(()) => On::Cpu(Arc::new(HostTokens::copy_of(tokens)?)),
            On::Cuda(device) => On::Cuda(Arc::new(CudaTokens::upload(device, tokens, arrival)?)),
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
            On::Cpu(()) => On::Cpu(Arc::new(HostTokens::of_residuals(tokens)?)),
            On::Cuda(device) => {
                On::Cuda(Arc::new(CudaTokens::upload_residual::<T>(device, tokens)?))
            }
        };
        Ok(DeviceTokens::new(self.clone(), tokens.layout().clone(), storage))
    }
}
