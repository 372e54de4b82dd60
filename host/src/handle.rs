//! Tokens on a device, and what a call takes as one of its sides.

use std::sync::Arc;

use crate::cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::CudaTokens;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::Access;
use crate::tokens::{TokenLayout, Tokens};

/// Tokens on a device: made once, scored any number of times, as queries or as documents.
///
/// Dropping a handle waits for the calls that use it. What a [`Graph`](crate::Graph) uses stays
/// until the graph is dropped too.
#[derive(Debug)]
pub struct DeviceTokens<T: Element> {
    device: Device,
    pub(crate) layout: Arc<TokenLayout>,
    storage: Storage<T>,
}

#[derive(Debug)]
pub(crate) enum Storage<T: Element> {
    Host(Arc<HostTokens<T>>),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Arc<CudaTokens>),
}

/// A token matrix in host memory with its mask.
#[derive(Debug)]
pub(crate) struct HostTokens<T: Element> {
    data: Vec<T>,
    mask: Option<Vec<u8>>,
}

impl<T: Element> HostTokens<T> {
    pub(crate) fn matrix(&self) -> cpu::Matrix<'_, T> {
        cpu::Matrix { data: &self.data, mask: self.mask.as_deref() }
    }
}

impl<T: Element> Storage<T> {
    /// A copy in host memory.
    pub(crate) fn host(tokens: &Tokens<'_, T>) -> Result<Storage<T>> {
        let data = copy_of(tokens.data())?;
        let mask = tokens.mask().map(copy_of).transpose()?;
        Ok(Storage::Host(Arc::new(HostTokens { data, mask })))
    }
}

fn copy_of<V: Copy>(values: &[V]) -> Result<Vec<V>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len())
        .map_err(|_| Error::HostMemory { requested_bytes: size_of_val(values) as u64 })?;
    copy.extend_from_slice(values);
    Ok(copy)
}

impl<T: Element> DeviceTokens<T> {
    pub(crate) fn new(device: Device, layout: TokenLayout, storage: Storage<T>) -> Self {
        DeviceTokens { device, layout: Arc::new(layout), storage }
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    /// The device that holds the tokens.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn host_tokens(&self) -> Result<&Arc<HostTokens<T>>> {
        match &self.storage {
            Storage::Host(tokens) => Ok(tokens),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Storage::Cuda(_) => Err(self.wrong_device("cpu")),
        }
    }

    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn cuda_tokens(&self) -> Result<&Arc<CudaTokens>> {
        match &self.storage {
            Storage::Cuda(tokens) => Ok(tokens),
            Storage::Host(_) => Err(self.wrong_device("a CUDA device")),
        }
    }

    #[cfg(all(feature = "cuda", target_os = "linux"))]
    fn wrong_device(&self, expected: &str) -> Error {
        let (expected, found) = (expected.into(), self.device.to_string());
        Error::WrongDevice { argument: "tokens", expected, found }
    }

    /// Where the rows are in device memory, and how far apart. Base 0 on the CPU.
    pub fn access(&self) -> Access {
        match &self.storage {
            Storage::Host(_) => Access::uploaded(self.layout.dim(), T::TYPE),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Storage::Cuda(tokens) => tokens.access(),
        }
    }
}

/// One side of a call: host tokens or a handle.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a, T: Element> {
    /// Tokens in host memory, uploaded for this call where that is needed.
    Host(&'a Tokens<'a, T>),
    /// Tokens on the device.
    Device(&'a DeviceTokens<T>),
}

impl<'a, T: Element> Input<'a, T> {
    /// Shape and items.
    pub fn layout(&self) -> &'a TokenLayout {
        match self {
            Input::Host(tokens) => tokens.layout(),
            Input::Device(tokens) => tokens.layout(),
        }
    }

    pub(crate) fn check_device(&self, argument: &'static str, device: &Device) -> Result<()> {
        match self {
            Input::Host(_) => Ok(()),
            Input::Device(tokens) => device.check_same(argument, tokens.device()),
        }
    }

    /// How a kernel reaches the rows, before or after an upload.
    pub(crate) fn access(&self) -> Access {
        match self {
            Input::Host(tokens) => Access::uploaded(tokens.layout().dim(), T::TYPE),
            Input::Device(tokens) => tokens.access(),
        }
    }

    pub(crate) fn host_matrix(&self) -> Result<cpu::Matrix<'a, T>> {
        match self {
            Input::Host(tokens) => Ok(cpu::Matrix { data: tokens.data(), mask: tokens.mask() }),
            Input::Device(tokens) => Ok(tokens.host_tokens()?.matrix()),
        }
    }

    /// The handle's tokens, or host tokens uploaded into `own`.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn cuda_tokens<'b>(
        &self,
        device: &Device,
        own: &'b mut Option<DeviceTokens<T>>,
    ) -> Result<&'b Arc<CudaTokens>>
    where
        'a: 'b,
    {
        match self {
            Input::Host(tokens) => own.insert(device.upload(tokens)?).cuda_tokens(),
            Input::Device(tokens) => tokens.cuda_tokens(),
        }
    }
}

impl<'a, T: Element> From<&'a Tokens<'a, T>> for Input<'a, T> {
    fn from(tokens: &'a Tokens<'a, T>) -> Self {
        Input::Host(tokens)
    }
}

impl<'a, T: Element> From<&'a DeviceTokens<T>> for Input<'a, T> {
    fn from(tokens: &'a DeviceTokens<T>) -> Self {
        Input::Device(tokens)
    }
}
