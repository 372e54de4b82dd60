//! Stream-ordered calls: prepare once, enqueue many times, read when needed.

use std::time::Instant;

use super::Device;
use super::command::{Command, Submit};
use super::event::Event;
use super::tokens::DeviceTokens;
use crate::cuda;
use crate::cuda::CudaStream;
use crate::error::{Error, Result};
use crate::problem::provenance::{LastProvenance, Provenance};
use crate::runtime::on::On;
use crate::tokens::format::Format;

/// A queue of work on a device. Calls return at once and run in order; different streams
/// may run at the same time.
///
/// ```no_run
/// use maxsim::stream::{DeviceScores, Queue};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// # fn main() -> maxsim::Result<()> {
/// # let (query_data, document_data) = (vec![0f32; 32 * 128], vec![0f32; 1000 * 300 * 128]);
/// let device = Device::best();
/// let queries = device.upload(&Tokens::padded(&query_data, 1, 32, 128)?)?;
/// let documents = device.upload(&Tokens::padded(&document_data, 1000, 300, 128)?)?;
/// let work =
///     device.prepare(&queries, &documents, &Pairing::cross(), &ScoreOptions::default())?;
/// let mut scores = work.new_scores()?;
/// let mut stream = device.stream()?;
/// for _ in 0..100 {
///     stream.score_into(&queries, &documents, &work, &mut scores)?; // returns at once
/// }
/// println!("{:?}", scores.read()?.values()); // waits
/// # Ok(())
/// # }
/// ```
///
/// Calls that repeat together are cheaper as a [`Graph`](crate::stream::Graph). On [`Device::cpu`]
/// the same calls work, one after the other.
#[derive(Debug)]
#[must_use]
pub struct Stream {
    pub(crate) device: Device,
    pub(crate) inner: On<(), CudaStream>,
}

impl Stream {
    /// The device that the stream's work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues a kernel that reads the whole matrix of `tokens` once and computes nothing, with so
    /// many CTAs of 512 threads per multiprocessor. A call that must read these tokens from memory
    /// can hardly be faster: benchmarks take its time as the limit.
    ///
    /// ```no_run
    /// use maxsim::format::AnyDeviceTokens;
    /// use maxsim::{Device, Tokens};
    ///
    /// # fn main() -> maxsim::Result<()> {
    /// # let document_data = vec![0f32; 1000 * 300 * 128];
    /// let device = Device::cuda(0)?;
    /// let documents = device.upload(&Tokens::padded(&document_data, 1000, 300, 128)?)?;
    /// let mut stream = device.stream()?;
    /// stream.read_roof(&documents, 4)?; // loads the kernel
    ///
    /// let [mut start, mut end] = [device.event()?, device.event()?];
    /// let documents = AnyDeviceTokens::from(documents); // of any format
    /// stream.record(&mut start)?;
    /// stream.read_roof_any(&documents, 4)?;
    /// stream.record(&mut end)?;
    /// println!("no call that reads them takes less than {} ms", end.elapsed_ms(&start)?);
    /// # Ok(())
    /// # }
    /// ```
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, [`Error::WrongDevice`], and [`Error::Shape`] for a
    /// matrix that is not on a 16-byte boundary or for no CTAs.
    pub fn read_roof<F: Format>(
        &mut self,
        tokens: &DeviceTokens<F>,
        blocks_per_multiprocessor: usize,
    ) -> Result<()> {
        self.device.check_same("tokens", tokens.device())?;
        match &mut self.inner {
            On::Cpu(()) => {
                let _ = blocks_per_multiprocessor;
                Err(Error::Unsupported {
                    what: "timing the read of a matrix on the CPU".into(),
                    why: "it needs a device from Device::cuda".into(),
                })
            }
            On::Cuda(stream) => {
                let row_bytes = tokens.layout().dim() * F::FORMAT.size_bytes();
                cuda::read(stream, tokens.cuda_tokens()?, row_bytes, blocks_per_multiprocessor)
            }
        }
    }

    /// Waits until all work enqueued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        match &self.inner {
            On::Cpu(()) => Ok(()),
            On::Cuda(stream) => stream.synchronize(),
        }
    }

    /// Marks the end of the work enqueued so far. Does not wait.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for an event of another device.
    pub fn record(&self, event: &mut Event) -> Result<()> {
        self.device.check_same("event", &event.device)?;
        match &mut event.inner {
            On::Cpu(time) => *time = Instant::now(),
            On::Cuda(cuda) => {
                if let On::Cuda(stream) = &self.inner {
                    cuda.record_on(stream)?;
                }
            }
        }
        event.is_recorded = true;
        Ok(())
    }
}

impl Device {
    /// A new stream of work on this device.
    pub fn stream(&self) -> Result<Stream> {
        let inner = match &self.0 {
            On::Cpu(()) => On::Cpu(()),
            On::Cuda(device) => On::Cuda(CudaStream::new(device)?),
        };
        Ok(Stream { device: self.clone(), inner })
    }
}

impl Submit for Stream {
    fn device(&self) -> &Device {
        &self.device
    }

    fn provenance(&self, scores: &LastProvenance) -> Option<Provenance> {
        scores.get()
    }

    fn submit(&mut self, command: Command<'_>) -> Result<()> {
        if let Some((written, provenance)) = command.written {
            written.set(provenance);
        }
        match (command.call, &mut self.inner) {
            (On::Cpu(call), On::Cpu(())) => call.run(),
            (On::Cuda(call), On::Cuda(stream)) => call.enqueue(stream),
            _ => Err(self.device.wrong_queue()),
        }
    }
}
