//! Streams of other CUDA libraries, and workspaces in memory of these.

use std::ptr;

use super::Device;
use super::stream::Stream;
use crate::cuda::CudaStream;
use crate::error::{Error, Result};
use crate::runtime::on::On;

/// What workspaces are aligned to.
const WORKSPACE_ALIGN_BYTES: u64 = 256;

impl Stream {
    /// A stream of another CUDA library of the process; 0 is the legacy default stream.
    /// Its workspace is this value's own.
    ///
    /// While the stream is captured, calls become part of the graph that its owner captures,
    /// if a call as large was made before: the workspace cannot grow meanwhile. (A capture by
    /// this library is [`Device::capture`], which needs none of this.)
    ///
    /// ```no_run
    /// use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
    /// use maxsim::{DeviceTokens, Result};
    ///
    /// /// Scores pages on PyTorch's current stream, behind what is enqueued there.
    /// ///
    /// /// # Safety
    /// /// `current` is `torch.cuda.current_stream().cuda_stream` of the tokens' device, and the
    /// /// stream outlives the result.
    /// unsafe fn enqueue(
    ///     current: u64,
    ///     [queries, pages]: [&DeviceTokens<f32>; 2],
    ///     work: &PreparedScore,
    ///     scores: &mut DeviceScores,
    /// ) -> Result<Stream> {
    ///     // SAFETY: the caller's promise.
    ///     let mut stream = unsafe { Stream::from_raw(queries.device(), current)? };
    ///     stream.score_into(queries, pages, work, scores)?; // returns at once
    ///     Ok(stream)
    /// }
    /// ```
    /// # Safety
    /// `handle` must be a `CUstream` (`cudaStream_t`) of the device's primary context that outlives
    /// this value, or 0, or 2: `CU_STREAM_PER_THREAD`, which is another stream on every thread, so
    /// that this value must then be used and dropped on this one. It may not be dropped while the
    /// stream is captured. Until the last launch of a graph that calls were captured into has
    /// finished, this value and whatever the calls were given must be kept, prepared work from a
    /// cache included; and no such graph may run beside other work of this value.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the CPU.
    pub unsafe fn from_raw(device: &Device, handle: u64) -> Result<Stream> {
        let cuda = device.cuda_device("a stream of a CUDA device")?;
        let handle = ptr::with_exposed_provenance_mut(handle as usize);
        // SAFETY: the caller's promise.
        let stream = unsafe { CudaStream::from_raw(cuda, handle) };
        Ok(Stream { device: device.clone(), inner: On::Cuda(stream) })
    }

    /// Replaces the workspace by device memory of the caller, which the stream does not grow: a
    /// call that needs more is an error ([`PreparedScore::workspace_bytes`],
    /// [`PreparedBackward::workspace_bytes`]). Does not wait. Its start is cleared in stream order;
    /// while the stream is captured, whenever the graph runs.
    ///
    /// The memory's place is not checked.
    ///
    /// ```no_run
    /// use maxsim::Result;
    /// use maxsim::stream::{PreparedScore, Stream};
    /// use maxsim::training::PreparedBackward;
    ///
    /// /// Makes room for scores and their gradients in memory of another library's allocator.
    /// ///
    /// /// # Safety
    /// /// What it allocates is the stream's alone, for as long as the stream's work uses it.
    /// unsafe fn make_room(
    ///     stream: &mut Stream,
    ///     score: &PreparedScore,
    ///     backward: &PreparedBackward,
    ///     allocate: impl Fn(u64) -> u64,
    /// ) -> Result<()> {
    ///     let len_bytes = score.workspace_bytes().max(backward.workspace_bytes_of(false));
    ///     // SAFETY: the caller's promise.
    ///     unsafe { stream.set_workspace(allocate(len_bytes), len_bytes) }
    /// }
    /// ```
    ///
    /// [`PreparedScore::workspace_bytes`]: crate::stream::PreparedScore::workspace_bytes
    /// [`PreparedBackward::workspace_bytes`]: crate::training::PreparedBackward::workspace_bytes
    ///
    /// # Safety
    /// `len_bytes` bytes from `address` on must be memory of the device that, in the stream's
    /// order, nothing else uses from now on until this value is dropped or given another workspace.
    /// For calls that were captured that is until the last launch of their graph has finished.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU; [`Error::ForeignPointer`] for an address that is no
    /// multiple of 256.
    pub unsafe fn set_workspace(&mut self, address: u64, len_bytes: u64) -> Result<()> {
        self.check_workspace(address)?;
        match &mut self.inner {
            On::Cpu(()) => Ok(()),
            // SAFETY: the caller's promise.
            On::Cuda(stream) => unsafe { stream.set_workspace(address, len_bytes) },
        }
    }

    /// Runs calls with device memory of the caller for their workspace, in place of what the stream
    /// has, which it goes back to. Does not wait. The memory's start is cleared first, in stream
    /// order: so a call that is captured works in memory of its graph alone.
    ///
    /// ```no_run
    /// use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
    /// use maxsim::{DeviceTokens, Result};
    ///
    /// /// Scores on another library's stream, in memory of its allocator: that of the stream, or
    /// /// where it is captured, that of the graph.
    /// ///
    /// /// # Safety
    /// /// What it allocates is the call's alone, until the stream or the graph has done it.
    /// unsafe fn score(
    ///     stream: &mut Stream,
    ///     [queries, documents]: [&DeviceTokens<f32>; 2],
    ///     work: &PreparedScore,
    ///     scores: &mut DeviceScores,
    ///     allocate: impl FnOnce(u64) -> u64,
    /// ) -> Result<()> {
    ///     let len_bytes = work.workspace_bytes();
    ///     if !stream.is_captured()? && stream.workspace_bytes() >= len_bytes {
    ///         return stream.score_into(queries, documents, work, scores);
    ///     }
    ///     let workspace = (allocate(len_bytes), len_bytes);
    ///     let score = |stream: &mut Stream| stream.score_into(queries, documents, work, scores);
    ///     // SAFETY: the caller's promise.
    ///     unsafe { stream.with_workspace(workspace, score) }
    /// }
    /// ```
    ///
    /// # Safety
    /// The bytes from the address on must be memory of the device that, in the stream's order,
    /// nothing else uses until the calls are done; for calls that are captured, whenever their
    /// graph runs.
    ///
    /// # Errors
    /// Those of the calls; [`Error::Unsupported`] on the CPU; [`Error::ForeignPointer`] for an
    /// address that is no multiple of 256.
    pub unsafe fn with_workspace<R>(
        &mut self,
        (address, len_bytes): (u64, u64),
        calls: impl FnOnce(&mut Stream) -> Result<R>,
    ) -> Result<R> {
        self.check_workspace(address)?;
        let before = match &mut self.inner {
            On::Cpu(()) => return calls(self),
            // SAFETY: the caller's promise.
            On::Cuda(stream) => unsafe { stream.lend_workspace(address, len_bytes)? },
        };
        let result = calls(self);
        if let On::Cuda(stream) = &mut self.inner {
            stream.restore_workspace(before);
        }
        result
    }

    /// Bytes of the workspace that the stream has now, its own or the caller's: what needs more
    /// makes it grow, or is an error.
    pub fn workspace_bytes(&self) -> u64 {
        match &self.inner {
            On::Cpu(()) => 0,
            On::Cuda(stream) => stream.workspace_bytes(),
        }
    }

    /// Whether another library captures the stream now, so that calls become part of its graph.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] after a fault.
    pub fn is_captured(&self) -> Result<bool> {
        match &self.inner {
            On::Cpu(()) => Ok(false),
            On::Cuda(stream) => stream.is_captured(),
        }
    }

    /// The `CUstream` (`cudaStream_t`), valid while this value lives; `None` on the CPU.
    pub fn handle(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(()) => None,
            On::Cuda(stream) => Some(stream.raw().expose_provenance() as u64),
        }
    }

    fn check_workspace(&self, address: u64) -> Result<()> {
        self.device.cuda_device("a workspace on a CUDA device")?;
        if address.is_multiple_of(WORKSPACE_ALIGN_BYTES) {
            return Ok(());
        }
        let why = format!("a workspace is aligned to {WORKSPACE_ALIGN_BYTES} bytes");
        Err(Error::ForeignPointer { address, why })
    }
}
