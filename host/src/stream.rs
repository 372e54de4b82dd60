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
//! Calls that come again and again together are cheaper as a [`Graph`](crate::Graph).
//! On [`Device::cpu`] the same calls work, one after the other.

use std::time::Instant;

#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::{self, CudaStream};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{Event, EventInner};
use crate::format::{Against, Format};
use crate::graph::CpuCall;
use crate::handle::DeviceTokens;
use crate::work::{DeviceScores, ScoresInner, Work, WorkInner};

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
    /// Does not wait, and on a CUDA device allocates nothing, on the host neither, once the
    /// stream's workspace (at most 32 MB) has grown to what the work needs. (Where rows are normalised,
    /// the first call with a handle that the work was not prepared with waits, once.) Dropping a handle,
    /// the work or the scores waits for calls that use them.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], or [`Error::Shape`] where handles or scores are not what the
    /// work was prepared for; nothing is enqueued then. [`Error::DeviceMemory`] where the
    /// workspace cannot grow.
    pub fn score_into<Q: Against<D>, D: Format>(
        &mut self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        work: &Work,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        work.check_call(&self.device, queries, documents, scores)?;
        if let Some(scored) = work.scored() {
            scores.scored.set(scored);
        }
        match (&mut self.inner, &work.inner, &scores.inner) {
            (StreamInner::Cpu, WorkInner::Cpu, ScoresInner::Cpu(_)) => {
                CpuCall::new(queries, documents, work, scores)?.run()
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            (StreamInner::Cuda(stream), WorkInner::Cuda(cuda), ScoresInner::Cuda(outputs)) => {
                let queries = queries.cuda_tokens()?;
                let documents = documents.cuda_tokens()?;
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

    /// Enqueues a kernel that reads the whole matrix of `tokens` once and computes nothing,
    /// with so many blocks of 512 threads per multiprocessor. A call that must read these
    /// tokens from memory can hardly be faster: benchmarks take its time as the limit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU, [`Error::WrongDevice`], and [`Error::Shape`] for a
    /// matrix that is not on a 16-byte boundary or for no blocks.
    pub fn read_roof<F: Format>(
        &mut self,
        tokens: &DeviceTokens<F>,
        blocks_per_multiprocessor: usize,
    ) -> Result<()> {
        self.device.check_same("tokens", tokens.device())?;
        match &mut self.inner {
            StreamInner::Cpu => {
                let _ = blocks_per_multiprocessor;
                Err(Error::Unsupported {
                    what: "timing the read of a matrix on the CPU".into(),
                    why: "it needs a device from Device::cuda".into(),
                })
            }
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            StreamInner::Cuda(stream) => cuda::read(stream, tokens, blocks_per_multiprocessor),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::pairing::Pairing;
    use crate::problem::Problem;
    use crate::scores::ScoreOptions;
    use crate::tokens::{TokenLayout, Tokens};
    use crate::work::OutputShape;

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
        assert_eq!([1, 2].map(|query| expected.row(query)), [Some(&expected.values()[1..]), None]);
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
    fn the_read_roof_is_a_cuda_devices() {
        let device = Device::cpu();
        let tokens = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let read = device.stream().unwrap().read_roof(&tokens, 1);
        assert!(matches!(read, Err(Error::Unsupported { .. })));
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
