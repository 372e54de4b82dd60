//! Page-locked pieces of memory that threads fill with rows, and their copies to the device.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use super::slots::{ALIGN_BYTES, Places, Slot};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::pieces;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::symbols::raw;
use crate::error::{Error, Result};
use crate::problem::chunks::Chunk;
use crate::runtime::swap::lock;
use crate::tokens::element::ElementType;
use crate::tokens::streamed::staged::Staged;

/// Bytes of a piece: what a thread copies in a few hundred microseconds.
const PIECE_BYTES: usize = 4 << 20;

/// Bytes of a piece where rows are page-locked already, and only words or a mask are staged: a
/// chunk has a few megabytes of these, and every piece is page-locked before it is filled, which
/// takes longer than that.
const SMALL_PIECE_BYTES: usize = 256 << 10;

/// Memory that one thread fills at a time. When it is dropped the device keeps it for the next
/// search.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    device: &'a CudaDevice,
    /// Taken by the thread that first fills it: page-locking, where the device keeps none, takes as
    /// long as filling.
    memory: Option<pieces::Piece>,
}

impl<'a> Piece<'a> {
    pub fn new(device: &'a CudaDevice) -> Piece<'a> {
        Piece { device, memory: None }
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.device.idle_pieces.give(memory);
        }
    }
}

/// Rows that a piece is filled with: those of a chunk, by its number.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub chunk: usize,
    pub rows: Range<usize>,
}

/// A piece that was filled.
#[derive(Debug)]
pub(super) struct Filled<'a> {
    pub job: Job,
    pub piece: Piece<'a>,
}

/// The stream of copies. Dropping it waits for them: they may read memory that is borrowed.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    pub stream: CudaStream,
    borrowed: PhantomData<&'a [u8]>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // A lost device has no copies under way; other errors were returned by what caused them.
        let _ = self.stream.synchronize();
    }
}

/// What threads do for the documents of a search.
pub(super) struct Staging<'a> {
    device: &'a Arc<CudaDevice>,
    documents: &'a dyn Staged,
    /// Where rows, words and mask of a piece lie in it; a pitch of 0 where rows are not staged.
    pub places: Places,
    /// Most rows of a piece.
    rows_max: usize,
    /// Bytes of a piece, which hardly differ between searches: what one made is of use to the next.
    room_bytes: usize,
}

/// What is left to be done, and with which pieces.
pub(super) struct Queue<'a> {
    pub jobs: Box<dyn Iterator<Item = Job> + Send + 'a>,
    pub idle: Receiver<Piece<'a>>,
}

/// Ends the thread that collects pieces where the source has panicked.
struct Sentinel<'a, 'b>(&'a Sender<Result<Filled<'b>>>);

impl Drop for Sentinel<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Err(Error::Interrupted));
        }
    }
}

impl<'a> Staging<'a> {
    /// Staging for rows at a pitch of `pitch_bytes`, or for what comes with them alone.
    pub fn new(
        device: &'a Arc<CudaDevice>,
        documents: &'a dyn Staged,
        pitch_bytes: usize,
    ) -> Staging<'a> {
        let piece_bytes = if pitch_bytes > 0 { PIECE_BYTES } else { SMALL_PIECE_BYTES };
        let rows_max = (piece_bytes / documents.bytes_per_row(pitch_bytes).max(1)).max(1);
        let places = Places::staging(rows_max, pitch_bytes, documents);
        let room_bytes = places.len_bytes.max(piece_bytes + 2 * ALIGN_BYTES);
        Staging { device, documents, places, rows_max, room_bytes }
    }

    /// Whether anything is staged.
    pub fn is_needed(&self) -> bool {
        self.documents.bytes_per_row(self.places.pitch_bytes) > 0
    }

    /// Number of pieces of a chunk.
    pub fn n_pieces(&self, chunk: &Chunk) -> usize {
        if self.is_needed() { chunk.rows.len().div_ceil(self.rows_max) } else { 0 }
    }

    /// The pieces of all chunks, in order.
    pub fn jobs<'c>(&self, chunks: &'c [Chunk]) -> impl Iterator<Item = Job> + Send + use<'c> {
        let rows_max = self.rows_max;
        let chunks = if self.is_needed() { chunks } else { &[] };
        chunks.iter().enumerate().flat_map(move |(number, chunk)| {
            let end = chunk.rows.end;
            let starts = chunk.rows.clone().step_by(rows_max);
            starts.map(move |start| Job { chunk: number, rows: start..end.min(start + rows_max) })
        })
    }

    /// Fills pieces until there is nothing left to do, or no thread that collects them.
    pub fn work(&self, queue: &Mutex<Queue<'a>>, filled: &Sender<Result<Filled<'a>>>) {
        let _sentinel = Sentinel(filled);
        // Pieces, which this thread makes, lie where it runs.
        self.device.keep_thread_near();
        let mut scratch = Vec::new();
        loop {
            let (piece, job) = {
                let mut queue = lock(queue);
                let Ok(piece) = queue.idle.recv() else { return };
                let Some(job) = queue.jobs.next() else { return };
                (piece, job)
            };
            let done = self.fill(piece, job, &mut scratch);
            if filled.send(done).is_err() {
                return;
            }
        }
    }

    /// Fills a piece with rows and what comes with them.
    fn fill(&self, mut piece: Piece<'a>, job: Job, scratch: &mut Vec<u64>) -> Result<Filled<'a>> {
        let Places { pitch_bytes, words_at, mask_at, .. } = self.places;
        let memory = match &mut piece.memory {
            Some(memory) => memory,
            none => none.insert(pieces::Piece::take(self.device, self.room_bytes)?),
        };
        memory.copied.synchronize()?;
        let (rows, rest) = memory.pinned.as_mut_slice().split_at_mut(words_at);
        let (words, mask) = rest.split_at_mut(mask_at - words_at);
        let rows = &mut rows[..job.rows.len() * pitch_bytes];
        let words = bytemuck::cast_slice_mut(words);
        self.documents.write(job.rows.clone(), rows, words, scratch)?;
        if let Some(all) = self.documents.mask() {
            mask[..job.rows.len()].copy_from_slice(&all[job.rows.clone()]);
        }
        Ok(Filled { job, piece })
    }
}

impl<'a> Copies<'a> {
    pub fn new(device: &Arc<CudaDevice>) -> Result<Copies<'a>> {
        Ok(Copies { stream: CudaStream::for_copies(device)?, borrowed: PhantomData })
    }

    /// Enqueues the copies of a piece to the slot of its chunk, which begins with row `first_row`.
    pub fn enqueue(
        &self,
        filled: &mut Filled<'_>,
        first_row: usize,
        staging: &Staging<'_>,
        slot: &Slot,
        to: &Places,
    ) -> Result<()> {
        let Staging { documents, places: from, .. } = staging;
        let Filled { job, piece } = filled;
        let (n, skipped) = (job.rows.len(), job.rows.start - first_row);
        // What is not given back to the piece, since an error ended this, is not kept.
        let Some(memory) = piece.memory.take() else { return Ok(()) };
        let pinned = &memory.pinned;
        let parts = [
            (0, 0, from.pitch_bytes),
            (from.words_at, to.words_at, if documents.has_words() { size_of::<u32>() } else { 0 }),
            (from.mask_at, to.mask_at, usize::from(documents.mask().is_some())),
        ];
        let device = slot.memory.device();
        let entered = device.enter()?;
        for (from, to, bytes_per_row) in parts {
            let (to, len) = (to + skipped * bytes_per_row, n * bytes_per_row);
            assert!(from + len <= pinned.len_bytes());
            // SAFETY: the piece has these bytes, as was checked, which stay as they are until
            // `copied` says that they were read.
            unsafe { self.copy(slot, to as u64, pinned.as_ptr().wrapping_add(from), len)? };
        }
        // SAFETY: the stream is never captured: its handle is not given away.
        unsafe { memory.copied.record(&entered, self.stream.raw())? };
        piece.memory = Some(memory);
        Ok(())
    }

    /// Enqueues the copy of bytes to a place of a slot.
    pub fn enqueue_bytes(&self, bytes: &'a [u8], slot: &Slot, to: usize) -> Result<()> {
        // SAFETY: the borrow outlives this, and dropping this waits for the copy.
        unsafe { self.copy(slot, to as u64, bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `from` must be `len` bytes of host memory that are not written to before the copy is done.
    unsafe fn copy(&self, slot: &Slot, to: u64, from: *const u8, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        assert!(to + len as u64 <= slot.memory.len_bytes());
        let device = slot.memory.device();
        let _entered = device.enter()?;
        // SAFETY: the slot has these bytes, as was checked; the caller's promise.
        let code = unsafe {
            raw::cuMemcpyHtoDAsync_v2(
                slot.memory.address() + to,
                from.cast(),
                len,
                self.stream.raw(),
            )
        };
        device.check("cuMemcpyHtoDAsync", code)
    }
}

/// Enqueues the kernel that finds what the residual-compressed rows of a chunk are normalised by,
/// where they are.
pub(super) fn find_norms(
    tokens: &CudaTokens,
    stream: &mut CudaStream,
    queries: ElementType,
    dim: usize,
) -> Result<()> {
    // SAFETY: the norms are in the slot, which the work of this stream alone uses until the chunk
    // is done; dropped memory outlives the work that uses it.
    unsafe { tokens.write_residual_norms(stream, queries, dim) }
}
