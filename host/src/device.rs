//! Devices, and tokens that live on them.

use std::fmt;

use crate::cpu;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::pairing::Pairing;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::scores::{ScoreOptions, Scores};
use crate::tokens::{TokenLayout, Tokens};

/// Where scores are computed: the CPU, or one CUDA device.
///
/// Cheap to clone; clones are the same device. The same calls work on every device.
#[derive(Clone, Debug)]
pub struct Device(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Cpu,
}

impl Device {
    /// The CPU engine.
    pub fn cpu() -> Device {
        Device(Inner::Cpu)
    }

    /// CUDA device number `ordinal`. Opens the driver at first use.
    pub fn cuda(_ordinal: usize) -> Result<Device> {
        Err(Error::CudaNotBuilt)
    }

    /// The first CUDA device that can run the kernels, or else the CPU.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or_else(|_| Device::cpu())
    }

    /// Copies tokens to the device, to be scored any number of times.
    pub fn upload<T: Element>(&self, tokens: &Tokens<'_, T>) -> Result<DeviceTokens<T>> {
        match &self.0 {
            Inner::Cpu => Ok(DeviceTokens {
                device: self.clone(),
                layout: tokens.layout().clone(),
                storage: Storage::Host {
                    data: tokens.data().to_vec(),
                    mask: tokens.mask().map(<[u8]>::to_vec),
                },
            }),
        }
    }

    /// Scores queries against documents.
    ///
    /// Either side is borrowed host tokens or a handle from [`Device::upload`].
    pub fn score<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
    ) -> Result<Scores> {
        self.score_with(queries, documents, pairing, &ScoreOptions::default())
    }

    /// Scores queries against documents, with winners, token scores or a named kernel.
    pub fn score_with<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        match &self.0 {
            Inner::Cpu => {
                Plan::cpu(options, cpu::n_threads())?;
                let queries = queries.host_matrix("queries", self)?;
                let documents = documents.host_matrix("documents", self)?;
                cpu::score(&problem, queries, documents, options)
            }
        }
    }

    /// What [`Device::score_with`] would run for these inputs, and why.
    pub fn plan<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let (queries, documents) = (queries.into(), documents.into());
        let _problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        match &self.0 {
            Inner::Cpu => Plan::cpu(options, cpu::n_threads()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Cpu => f.write_str("cpu"),
        }
    }
}

/// Tokens on a device: made once, scored any number of times.
#[derive(Debug)]
pub struct DeviceTokens<T: Element> {
    device: Device,
    layout: TokenLayout,
    storage: Storage<T>,
}

#[derive(Debug)]
enum Storage<T: Element> {
    Host { data: Vec<T>, mask: Option<Vec<u8>> },
}

impl<T: Element> DeviceTokens<T> {
    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    /// The device that holds the tokens.
    pub fn device(&self) -> &Device {
        &self.device
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

    fn host_matrix(&self, _argument: &'static str, _device: &Device) -> Result<cpu::Matrix<'a, T>> {
        match self {
            Input::Host(tokens) => Ok(cpu::Matrix { data: tokens.data(), mask: tokens.mask() }),
            Input::Device(DeviceTokens { storage: Storage::Host { data, mask }, .. }) => {
                Ok(cpu::Matrix { data, mask: mask.as_deref() })
            }
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
