//! Graphs: calls captured once and launched together, any number of times.

use super::Device;
use super::command::{Command, CpuCalls, Submit};
use super::stream::Stream;
use crate::cuda::{CudaCall, CudaGraph};
use crate::error::{Error, Result};
use crate::problem::provenance::{LastProvenance, Provenance};
use crate::runtime::on::On;

/// Collects the calls of a graph; see [`Device::capture`].
#[derive(Debug)]
pub struct Capture {
    device: Device,
    calls: On<CpuCalls, Vec<CudaCall>>,
    /// Winners that the calls write, and their provenance.
    written: Vec<(LastProvenance, Provenance)>,
}

/// Calls that are launched together; see [`Device::capture`].
///
/// Launches of one graph, and other work that writes the same scores, run one after the other, on
/// whatever streams they are.
///
/// ```
/// use maxsim::stream::{DeviceScores, Queue};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// let device = Device::best();
/// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?)?;
/// let titles = device.upload(&Tokens::padded(&[2.0f32, 0.0], 1, 1, 2)?)?;
/// let texts = device.upload(&Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?)?;
/// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
/// let on_titles = device.prepare(&queries, &titles, &cross, &options)?;
/// let on_texts = device.prepare(&queries, &texts, &cross, &options)?;
/// let mut title_scores = on_titles.new_scores()?;
/// let mut text_scores = on_texts.new_scores()?;
///
/// let mut graph = device.capture(|capture| {
///     capture.score_into(&queries, &titles, &on_titles, &mut title_scores)?;
///     capture.score_into(&queries, &texts, &on_texts, &mut text_scores)
/// })?;
/// let mut stream = device.stream()?;
/// graph.launch(&mut stream)?; // both calls, for the price of one; returns at once
/// assert_eq!(title_scores.read()?.values(), [2.0]); // waits
/// assert_eq!(text_scores.read()?.values(), [8.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// A graph shares tokens, works and scores with their handles: they stay where they are, and
/// are freed when the handle and every graph are gone. Its workspace is its own. A launch reads
/// what the tokens hold at that time, which is how a view of foreign memory
/// (`DeviceTokens::from_raw_parts`) is scored again with other contents.
///
/// On [`Device::cpu`] the same calls work: a launch makes them one after the other.
#[derive(Debug)]
#[must_use]
pub struct Graph {
    device: Device,
    inner: On<CpuCalls, CudaGraph>,
    /// Winners that a launch writes, and their provenance.
    written: Vec<(LastProvenance, Provenance)>,
}

impl Capture {
    pub(crate) fn new(device: &Device) -> Capture {
        let calls = match &device.0 {
            On::Cuda(_) => On::Cuda(Vec::new()),
            On::Cpu(()) => On::Cpu(CpuCalls::default()),
        };
        Capture { device: device.clone(), calls, written: Vec::new() }
    }

    pub(crate) fn finish(self) -> Result<Graph> {
        let inner = match self.calls {
            On::Cpu(calls) => On::Cpu(calls),
            On::Cuda(calls) => {
                let cuda = self.device.cuda_device("a graph of a CUDA device")?;
                On::Cuda(CudaGraph::new(cuda, calls)?)
            }
        };
        Ok(Graph { device: self.device, inner, written: self.written })
    }
}

impl Submit for Capture {
    fn device(&self) -> &Device {
        &self.device
    }

    fn provenance(&self, scores: &LastProvenance) -> Option<Provenance> {
        let written = self.written.iter().rev().find(|(written, _)| written.is(scores));
        written.map(|(_, provenance)| provenance.clone()).or_else(|| scores.get())
    }

    fn submit(&mut self, command: Command<'_>) -> Result<()> {
        match (command.call, &mut self.calls) {
            (On::Cpu(call), On::Cpu(calls)) => calls.push(call),
            (On::Cuda(call), On::Cuda(calls)) => calls.push(call.record()?),
            _ => return Err(self.device.wrong_queue()),
        }
        self.written
            .extend(command.written.map(|(written, provenance)| (written.clone(), provenance)));
        Ok(())
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
        self.written.iter().for_each(|(written, provenance)| written.set(provenance.clone()));
        match (&mut self.inner, &mut stream.inner) {
            (On::Cpu(calls), On::Cpu(())) => calls.run(),
            (On::Cuda(graph), On::Cuda(stream)) => graph.launch(stream),
            _ => Err(Error::WrongDevice {
                argument: "stream",
                expected: self.device.to_string(),
                found: "another device".into(),
            }),
        }
    }
}

impl Device {
    /// Captures calls into a graph, which launches all of them at once, any number of times.
    /// Nothing is scored until then.
    ///
    /// # Errors
    /// The errors of `calls`; and [`crate::Error::DeviceMemory`] where there is no room for the
    /// graph.
    pub fn capture(&self, calls: impl FnOnce(&mut Capture) -> Result<()>) -> Result<Graph> {
        let mut capture = Capture::new(self);
        calls(&mut capture)?;
        capture.finish()
    }
}
