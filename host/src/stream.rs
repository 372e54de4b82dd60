//! Stream-ordered calls: prepare once, enqueue many times, read when needed.
//!
//! ```no_run
//! use maxsim::{Device, DeviceScores, Pairing, ScoreOptions, Tokens};
//!
//! # fn main() -> maxsim::Result<()> {
//! # let (query_data, document_data) = (vec![0f32; 32 * 128], vec![0f32; 1000 * 300 * 128]);
//! let device = Device::best();
//! let queries = device.upload(&Tokens::padded(&query_data, 1, 32, 128)?)?;
//! let documents = device.upload(&Tokens::padded(&document_data, 1000, 300, 128)?)?;
//! let work =
//!     device.prepare(&queries, &documents, &Pairing::cross(), &ScoreOptions::default())?;
//! let mut scores = DeviceScores::new(&work)?;
//! let mut stream = device.stream()?;
//! for _ in 0..100 {
//!     stream.score_into(&queries, &documents, &work, &mut scores)?; // returns at once
//! }
//! println!("{:?}", scores.read()?.values()); // waits
//! # Ok(())
//! # }
//! ```
//!
//! On [`Device::cpu`] the same calls work, one after the other.

use std::sync::Arc;
use std::time::Instant;

use crate::cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::{CudaEvent, CudaOutputs, CudaStream, CudaWork};
use crate::device::Device;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::handle::DeviceTokens;
use crate::pairing::Pairing;
use crate::plan::Plan;
use crate::problem::{Problem, ScoreShape, TokenOffsets};
use crate::scores::{ScoreOptions, Scores};
use crate::tokens::TokenLayout;

/// A checked and planned problem, with its work lists on the device.
///
/// Made by [`Device::prepare`] and used with any handles that have the same layouts. It does
/// not keep the handles: their contents may change between calls.
#[derive(Debug)]
pub struct Work {
    pub(crate) device: Device,
    pub(crate) element: ElementType,
    pub(crate) queries: Arc<TokenLayout>,
    pub(crate) documents: Arc<TokenLayout>,
    pub(crate) pairing: Pairing,
    pub(crate) options: ScoreOptions,
    pub(crate) plan: Plan,
    pub(crate) outputs: Arc<OutputShape>,
    pub(crate) inner: WorkInner,
}

#[derive(Debug)]
pub(crate) enum WorkInner {
    Cpu,
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Box<CudaWork>),
}

impl Work {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel that the work runs, and why.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.outputs.shape
    }

    fn check<T: Element>(
        &self,
        argument: &'static str,
        tokens: &DeviceTokens<T>,
        layout: &Arc<TokenLayout>,
    ) -> Result<()> {
        self.device.check_same(argument, tokens.device())?;
        if self.element != T::TYPE {
            return Err(Error::Shape {
                argument,
                expected: format!("{} tokens, as the work was prepared for", self.element),
                found: format!("{} tokens", T::TYPE),
            });
        }
        if !Arc::ptr_eq(layout, &tokens.layout) && !layout.same_items(&tokens.layout) {
            return Err(Error::Shape {
                argument,
                expected: "the layout that the work was prepared for".into(),
                found: "another layout; prepare the work with these handles".into(),
            });
        }
        Ok(())
    }
}

/// Which outputs there are, and of what size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputShape {
    pub shape: ScoreShape,
    /// Where winners or token scores are asked for.
    pub token_offsets: Option<TokenOffsets>,
    pub winners: bool,
    pub token_scores: bool,
    /// Bytes of a winner on a CUDA device.
    pub winner_bytes: usize,
}

impl OutputShape {
    pub(crate) fn new(problem: &Problem<'_>, options: &ScoreOptions) -> OutputShape {
        OutputShape {
            shape: problem.shape(),
            token_offsets: (options.winners || options.token_scores)
                .then(|| problem.token_offsets()),
            winners: options.winners,
            token_scores: options.token_scores,
            // All-ones means none, so the last index must stay below it.
            winner_bytes: if problem.documents().max_len() < 65535 { 2 } else { 4 },
        }
    }

    /// Bytes of scores, winners and token scores on a CUDA device.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn lens_bytes(&self) -> [u64; 3] {
        let n_tokens = self.token_offsets.as_ref().map_or(0, TokenOffsets::total);
        [
            self.shape.n_scores() as u64 * 4,
            if self.winners { n_tokens * self.winner_bytes as u64 } else { 0 },
            if self.token_scores { n_tokens * 4 } else { 0 },
        ]
    }

    /// Room on the host: scores 0, winners -1, token scores 0.
    pub(crate) fn host_scores(&self) -> Result<Scores> {
        Scores::with_room(self.shape, self.token_offsets.clone(), self.winners, self.token_scores)
    }
}

/// Results on a device: written by [`Stream::score_into`], read when needed.
///
/// Calls on different streams that write the same results run one after the other.
#[derive(Debug)]
pub struct DeviceScores {
    pub(crate) device: Device,
    pub(crate) shape: Arc<OutputShape>,
    pub(crate) inner: ScoresInner,
}

#[derive(Debug)]
pub(crate) enum ScoresInner {
    Cpu(Scores),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(CudaOutputs),
}

impl DeviceScores {
    /// Room for the results of a work: scores 0, winners -1, token scores 0.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new(work: &Work) -> Result<DeviceScores> {
        let inner = match &work.inner {
            WorkInner::Cpu => ScoresInner::Cpu(work.outputs.host_scores()?),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            WorkInner::Cuda(_) => {
                let cuda = work.device.cuda_device("work")?;
                ScoresInner::Cuda(CudaOutputs::new(cuda, &work.outputs)?)
            }
        };
        Ok(DeviceScores { device: work.device.clone(), shape: work.outputs.clone(), inner })
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape.shape
    }

    /// Waits for the last call that was given these results, and copies them to the host.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Scores> {
        match &self.inner {
            ScoresInner::Cpu(scores) => Ok(scores.clone()),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => outputs.read(&self.shape),
        }
    }

    /// Device address of the f32 scores; `None` on the CPU. Order work that reads them behind
    /// the stream that writes them.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => Some(outputs.addresses().scores),
        }
    }

    /// Device address of the winners, pair-major, each [`DeviceScores::winner_bytes`] long;
    /// `None` on the CPU or when they were not asked for.
    pub fn winners_address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => self.shape.winners.then_some(outputs.addresses().winners),
        }
    }

    /// Device address of the f32 token scores, pair-major; `None` on the CPU or when they
    /// were not asked for.
    pub fn token_scores_address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => {
                self.shape.token_scores.then_some(outputs.addresses().token_scores)
            }
        }
    }

    /// Bytes of a winner in device memory: 2 (u16, all-ones = none) while every document is
    /// shorter than 65 535 tokens, else 4 (i32, -1 = none).
    pub fn winner_bytes(&self) -> usize {
        self.shape.winner_bytes
    }
}

/// A queue of work on a device. Calls return at once and run in order; different streams
/// may run at the same time.
#[derive(Debug)]
pub struct Stream {
    pub(crate) device: Device,
    pub(crate) inner: StreamInner,
}

#[derive(Debug)]
pub(crate) enum StreamInner {
    Cpu,
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(CudaStream),
}

impl Stream {
    /// The device that the stream's work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues the scoring of queries against documents.
    ///
    /// Does not wait, and allocates nothing once the stream's workspace (at most 32 MB) has
    /// grown to what the work needs. Dropping a handle, the work or the scores waits for
    /// calls that use them.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], or [`Error::Shape`] where handles or scores are not what the
    /// work was prepared for; nothing is enqueued then. [`Error::DeviceMemory`] where the
    /// workspace cannot grow.
    pub fn score_into<T: Element>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<T>,
        work: &Work,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        self.device.check_same("work", &work.device)?;
        work.check("queries", queries, &work.queries)?;
        work.check("documents", documents, &work.documents)?;
        self.device.check_same("scores", &scores.device)?;
        if !Arc::ptr_eq(&scores.shape, &work.outputs) && scores.shape != work.outputs {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("room for the work's results {:?}", work.outputs.shape),
                found: format!("room for other results {:?}", scores.shape.shape),
            });
        }
        match (&mut self.inner, &work.inner, &mut scores.inner) {
            (StreamInner::Cpu, WorkInner::Cpu, ScoresInner::Cpu(scores)) => {
                let problem = Problem::new(queries.layout(), documents.layout(), &work.pairing)?;
                let queries = queries.host_matrix("queries")?;
                let documents = documents.host_matrix("documents")?;
                *scores = cpu::score(&problem, queries, documents, &work.options)?;
                Ok(())
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (StreamInner::Cuda(stream), WorkInner::Cuda(cuda), ScoresInner::Cuda(outputs)) => {
                let queries = queries.cuda_tokens("queries")?;
                let documents = documents.cuda_tokens("documents")?;
                cuda.enqueue(stream, queries, documents, outputs)
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            _ => Err(Error::WrongDevice {
                argument: "scores",
                expected: self.device.to_string(),
                found: "another device".into(),
            }),
        }
    }

    /// Waits until all work enqueued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        match &self.inner {
            StreamInner::Cpu => Ok(()),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            StreamInner::Cuda(stream) => stream.synchronize(),
        }
    }

    /// Marks the end of the work enqueued so far. Does not wait.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for an event of another device.
    pub fn record(&self, event: &mut Event) -> Result<()> {
        self.device.check_same("event", &event.device)?;
        match &mut event.inner {
            EventInner::Cpu(time) => *time = Instant::now(),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            EventInner::Cuda(cuda) => {
                if let StreamInner::Cuda(stream) = &self.inner {
                    cuda.record_on(stream)?;
                }
            }
        }
        event.is_recorded = true;
        Ok(())
    }
}

/// A point in a stream, to measure the time between two of them.
#[derive(Debug)]
pub struct Event {
    pub(crate) device: Device,
    pub(crate) inner: EventInner,
    pub(crate) is_recorded: bool,
}

#[derive(Debug)]
pub(crate) enum EventInner {
    Cpu(Instant),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(CudaEvent),
}

impl Event {
    /// Milliseconds from `start` to this event on the device's clock (resolution about half
    /// a microsecond). Waits for both.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when one of them was never recorded, [`Error::WrongDevice`]
    /// when they are of different devices.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        self.device.check_same("start", &start.device)?;
        if !self.is_recorded || !start.is_recorded {
            return Err(Error::Unsupported {
                what: "the time between events that were not recorded".into(),
                why: "Stream::record both of them first".into(),
            });
        }
        match (&self.inner, &start.inner) {
            (EventInner::Cpu(end), EventInner::Cpu(start)) => {
                Ok(end.saturating_duration_since(*start).as_secs_f32() * 1e3)
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (EventInner::Cuda(end), EventInner::Cuda(start)) => end.elapsed_ms(start),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            _ => Err(Error::WrongDevice {
                argument: "start",
                expected: self.device.to_string(),
                found: start.device.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokens;

    const DATA: [f32; 8] = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5, -1.0, 2.0];

    fn options() -> ScoreOptions {
        ScoreOptions { winners: true, token_scores: true, ..ScoreOptions::default() }
    }

    #[test]
    fn streams_of_the_cpu_give_what_a_synchronous_call_gives() {
        let device = Device::cpu();
        let queries = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let documents = device.upload(&Tokens::padded(&DATA, 1, 4, 2).unwrap()).unwrap();
        let pairing = Pairing::cross();
        let work = device.prepare(&queries, &documents, &pairing, &options()).unwrap();
        let mut scores = DeviceScores::new(&work).unwrap();
        assert_eq!(scores.read().unwrap().values(), [0.0, 0.0]);
        let mut stream = device.stream().unwrap();
        let (mut start, mut end) = (device.event().unwrap(), device.event().unwrap());
        stream.record(&mut start).unwrap();
        stream.score_into(&queries, &documents, &work, &mut scores).unwrap();
        stream.record(&mut end).unwrap();
        stream.synchronize().unwrap();
        assert!(end.elapsed_ms(&start).unwrap() >= 0.0);
        let expected = device.score_with(&queries, &documents, &pairing, &options()).unwrap();
        assert_eq!(scores.read().unwrap(), expected);
        assert_eq!((scores.address(), scores.winner_bytes()), (None, 2));
    }

    #[test]
    fn work_takes_only_what_it_was_prepared_for() {
        let device = Device::cpu();
        let queries = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let documents = device.upload(&Tokens::padded(&DATA, 1, 4, 2).unwrap()).unwrap();
        let pairing = Pairing::cross();
        let work = device.prepare(&queries, &documents, &pairing, &options()).unwrap();
        let mut scores = DeviceScores::new(&work).unwrap();
        let mut stream = device.stream().unwrap();
        let shape_error = |result: Result<()>, expected: &str| match result {
            Err(Error::Shape { argument, .. }) => assert_eq!(argument, expected),
            other => panic!("{other:?} instead of a shape error for {expected}"),
        };
        shape_error(stream.score_into(&documents, &documents, &work, &mut scores), "queries");
        shape_error(stream.score_into(&queries, &queries, &work, &mut scores), "documents");
        // Equal layouts are as good as the same one.
        let same = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        stream.score_into(&same, &documents, &work, &mut scores).unwrap();

        let plain =
            device.prepare(&queries, &documents, &pairing, &ScoreOptions::default()).unwrap();
        let mut plain_scores = DeviceScores::new(&plain).unwrap();
        shape_error(stream.score_into(&queries, &documents, &work, &mut plain_scores), "scores");

        let half = [half::f16::ONE; 8];
        let half_queries = device.upload(&Tokens::padded(&half, 2, 2, 2).unwrap()).unwrap();
        let half_documents = device.upload(&Tokens::padded(&half, 1, 4, 2).unwrap()).unwrap();
        shape_error(
            stream.score_into(&half_queries, &half_documents, &work, &mut scores),
            "queries",
        );
    }

    #[test]
    fn the_time_between_unrecorded_events_is_an_error() {
        let device = Device::cpu();
        let (start, mut end) = (device.event().unwrap(), device.event().unwrap());
        device.stream().unwrap().record(&mut end).unwrap();
        assert!(matches!(end.elapsed_ms(&start), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn winners_take_two_bytes_below_65535_tokens() {
        let pairing = Pairing::cross();
        let queries = TokenLayout::padded(1, 1, 1).unwrap();
        for (len, bytes) in [(65534, 2), (65535, 4), (65536, 4)] {
            let documents = TokenLayout::padded(1, len, 1).unwrap();
            let problem = Problem::new(&queries, &documents, &pairing).unwrap();
            assert_eq!(OutputShape::new(&problem, &options()).winner_bytes, bytes);
        }
    }
}
