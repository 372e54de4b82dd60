//! Graphs: calls captured once and launched together, any number of times.
//!
//! ```
//! use maxsim::{Device, DeviceScores, Pairing, ScoreOptions, Tokens};
//!
//! let device = Device::best();
//! let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?)?;
//! let titles = device.upload(&Tokens::padded(&[2.0f32, 0.0], 1, 1, 2)?)?;
//! let texts = device.upload(&Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?)?;
//! let (cross, options) = (Pairing::cross(), ScoreOptions::default());
//! let on_titles = device.prepare(&queries, &titles, &cross, &options)?;
//! let on_texts = device.prepare(&queries, &texts, &cross, &options)?;
//! let mut title_scores = DeviceScores::new(&on_titles)?;
//! let mut text_scores = DeviceScores::new(&on_texts)?;
//!
//! let mut graph = device.capture(|capture| {
//!     capture.score_into(&queries, &titles, &on_titles, &mut title_scores)?;
//!     capture.score_into(&queries, &texts, &on_texts, &mut text_scores)
//! })?;
//! let mut stream = device.stream()?;
//! graph.launch(&mut stream)?; // both calls, for the price of one; returns at once
//! assert_eq!(title_scores.read()?.values(), [2.0]); // waits
//! assert_eq!(text_scores.read()?.values(), [8.0]);
//! # Ok::<(), maxsim::Error>(())
//! ```
//!
//! A graph shares tokens, works and scores with their handles: they stay where they are, and
//! are freed when the handle and every graph are gone. Its workspace is its own. A launch reads
//! what the tokens hold at that time, which is how a view of foreign memory
//! (`DeviceTokens::from_raw_parts`) is scored again with other contents.
//!
//! On [`Device::cpu`] the same calls work: a launch makes them one after the other.

use std::fmt;
use std::sync::Arc;

use crate::cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::{CudaCall, CudaGraph};
use crate::device::Device;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::error::Error;
use crate::error::Result;
use crate::format::{Against, Format};
use crate::handle::{DeviceTokens, HostTokens};
use crate::lock::Replaced;
use crate::pairing::Pairing;
use crate::problem::Problem;
use crate::scored::{LastScored, Scored};
use crate::scores::{ScoreOptions, Scores};
use crate::stream::{Stream, StreamInner};
use crate::tokens::TokenLayout;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::work::WorkInner;
use crate::work::{DeviceScores, ScoresInner, Work};

/// Collects the calls of a graph; see [`Device::capture`].
#[derive(Debug)]
pub struct Capture {
    device: Device,
    calls: Calls,
    /// The winners that the calls write, and what they are of.
    written: Vec<(LastScored, Scored)>,
}

/// Calls that are launched together; see [`Device::capture`].
///
/// Launches of one graph run one after the other, on whatever streams, and so does other work
/// that writes the same scores.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    inner: GraphInner,
    /// The winners that a launch writes, and what they are of.
    written: Vec<(LastScored, Scored)>,
}

#[derive(Debug)]
enum Calls {
    Cpu(CpuCalls),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Vec<CudaCall>),
}

#[derive(Debug)]
enum GraphInner {
    Cpu(CpuCalls),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(CudaGraph),
}

impl Capture {
    pub(crate) fn new(device: &Device) -> Capture {
        let calls = match device.ordinal() {
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Some(_) => Calls::Cuda(Vec::new()),
            _ => Calls::Cpu(CpuCalls::default()),
        };
        Capture { device: device.clone(), calls, written: Vec::new() }
    }

    /// Adds the scoring of queries against documents, to run after the calls before it.
    ///
    /// # Errors
    /// Those of [`Stream::score_into`].
    pub fn score_into<Q: Against<D>, D: Format>(
        &mut self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        work: &Work,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        work.check_call(&self.device, queries, documents, scores)?;
        match &mut self.calls {
            Calls::Cpu(calls) => {
                let call = CpuCall::new(queries, documents, work, scores)?;
                calls.0.push(Box::new(move || call.run()));
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Calls::Cuda(calls) => {
                if let (WorkInner::Cuda(work), ScoresInner::Cuda(outputs)) =
                    (&work.inner, &scores.inner)
                {
                    let (queries, documents) = (queries.cuda_tokens()?, documents.cuda_tokens()?);
                    calls.push(CudaCall::new(work, queries, documents, outputs)?);
                }
            }
        }
        self.written.extend(work.scored().map(|scored| (scores.scored.clone(), scored)));
        Ok(())
    }

    /// What winners will be of where the next call reads them.
    pub(crate) fn scored(&self, scores: &DeviceScores) -> Option<Scored> {
        let written = self.written.iter().rev().find(|(written, _)| written.is(&scores.scored));
        written.map(|(_, scored)| scored.clone()).or_else(|| scores.scored.get())
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Adds a call of the CPU engine.
    pub(crate) fn push_cpu(&mut self, call: impl Fn() -> Result<()> + Send + Sync + 'static) {
        match &mut self.calls {
            Calls::Cpu(calls) => calls.0.push(Box::new(call)),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Calls::Cuda(_) => {}
        }
    }

    /// Adds a call of a CUDA device.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn push_cuda(&mut self, call: CudaCall) {
        if let Calls::Cuda(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    pub(crate) fn finish(self) -> Result<Graph> {
        let inner = match self.calls {
            Calls::Cpu(calls) => GraphInner::Cpu(calls),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Calls::Cuda(calls) => {
                let cuda = self.device.cuda_device("a graph of a CUDA device")?;
                GraphInner::Cuda(CudaGraph::new(cuda, calls)?)
            }
        };
        Ok(Graph { device: self.device, inner, written: self.written })
    }
}

impl Graph {
    /// The device that the graph runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues all calls of the graph, behind everything that the stream has been given so
    /// far and that writes the same scores. Does not wait. Dropping the graph lets it finish.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice); [`Unsupported`](crate::Error::Unsupported) on
    /// a foreign stream that is captured.
    pub fn launch(&mut self, stream: &mut Stream) -> Result<()> {
        self.device.check_same("stream", &stream.device)?;
        self.written.iter().for_each(|(written, scored)| written.set(scored.clone()));
        match (&mut self.inner, &mut stream.inner) {
            (GraphInner::Cpu(calls), StreamInner::Cpu) => {
                calls.0.iter().try_for_each(|call| call())
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (GraphInner::Cuda(graph), StreamInner::Cuda(stream)) => graph.launch(stream),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            _ => Err(Error::WrongDevice {
                argument: "stream",
                expected: self.device.to_string(),
                found: "another device".into(),
            }),
        }
    }
}

/// Calls of the CPU engine, of whatever element types.
#[derive(Default)]
struct CpuCalls(Vec<Box<dyn Fn() -> Result<()> + Send + Sync>>);

impl fmt::Debug for CpuCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls", self.0.len())
    }
}

/// A call of the CPU engine with everything that it uses.
pub(crate) struct CpuCall<Q: Format, D: Format> {
    layouts: [Arc<TokenLayout>; 2],
    queries: Arc<HostTokens<Q>>,
    documents: Arc<HostTokens<D>>,
    pairing: Arc<Pairing>,
    options: ScoreOptions,
    scores: Arc<Replaced<Scores>>,
}

impl<Q: Format, D: Format> CpuCall<Q, D> {
    /// The handles and scores must be of the work; [`Work::check_call`] checks them.
    pub(crate) fn new(
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        work: &Work,
        scores: &DeviceScores,
    ) -> Result<CpuCall<Q, D>> {
        match &scores.inner {
            ScoresInner::Cpu(scores) => Ok(CpuCall {
                layouts: [queries.layout.clone(), documents.layout.clone()],
                queries: queries.host_tokens()?.clone(),
                documents: documents.host_tokens()?.clone(),
                pairing: work.pairing.clone(),
                options: work.options.clone(),
                scores: scores.clone(),
            }),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(_) => Err(Error::WrongDevice {
                argument: "scores",
                expected: work.device.to_string(),
                found: scores.device.to_string(),
            }),
        }
    }

    /// Makes the call.
    pub(crate) fn run(&self) -> Result<()> {
        let [queries, documents] = &self.layouts;
        let problem = Problem::new(queries, documents, &self.pairing)?;
        let (queries, documents) = (self.queries.matrix(), self.documents.matrix());
        let found = cpu::score(&problem, queries, documents, &self.options)?;
        self.scores.set(found);
        Ok(())
    }
}
