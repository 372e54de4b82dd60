//! A search over documents that pass through a device: some are copied while those before them are
//! scored.
//!
//! ```text
//! threads   fill pieces of page-locked memory with rows       (not where the rows are in such)
//! caller    enqueues their copies to the slot of their chunk, then the chunk's work
//! ahead     plans the next chunks and makes their work lists
//! device    copy stream │ chunk 3 → slot 0 │ chunk 4 → slot 1 │ chunk 5 → slot 2
//!           score stream    │ chunk 2, best k │ chunk 3, best k │ chunk 4, best k
//! ```
//!
//! A slot is copied to when the work on its last chunk is done, a piece is filled when the copies
//! out of it are: events say so, and only the thread that needs them waits. Slots are made
//! once, pieces are kept by the device for the next search, and lists of a chunk lie in blocks that
//! are handed out again. The best of each query stay on the device and are read at the end; where
//! all scores are wanted, those of a chunk are read when its slot is needed again.

mod ahead;
mod slots;
#[allow(unsafe_code)]
mod staging;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use self::ahead::Ready;
use self::slots::{Memory, Places};
use self::staging::{Copies, Filled, Piece, Queue, Staging, find_norms};
use super::buffers::outputs::CudaOutputs;
use super::buffers::residual::residual_tables;
use super::calls::{Kept, Selection, StreamCall, StreamFound, StreamedRows};
use super::driver::context::CudaDevice;
use super::driver::pointer::is_page_locked;
use super::driver::stream::CudaStream;
use super::top_k::CudaTopK;
use crate::error::{Error, Result};
use crate::problem::outputs::OutputShape;
use crate::tokens::streamed::staged::{MaskAlone, Staged};

/// Pieces of staging memory for each thread: one that is filled, one that is copied.
const PIECES_PER_THREAD: usize = 2;

/// Chunks that are made ready before their turn.
const N_AHEAD: usize = 2;

impl CudaDevice {
    /// Scores all chunks of a search, and selects the best of each query or reads the scores.
    pub(crate) fn search_stream(
        self: &Arc<CudaDevice>,
        call: &StreamCall<'_>,
    ) -> Result<StreamFound> {
        let tables = match call.rows {
            StreamedRows::Stored(..) => None,
            StreamedRows::Residual(element, codec, _) => {
                Some(residual_tables(self, element, codec)?)
            }
        };
        let locked = Locked::find(self, call.rows)?;
        let mask_alone = MaskAlone(call.documents);
        let (staged, staged_pitch): (&dyn Staged, usize) = match locked {
            None => (call.documents, call.documents.pitch_bytes()),
            Some(Locked { words: None, .. }) => (call.documents, 0),
            Some(Locked { words: Some(_), .. }) => (&mask_alone, 0),
        };
        let staging = Staging::new(self, staged, staged_pitch);
        let memory = Memory::new(self, call)?;
        let mut pass = Pass::new(self, call, &staging, &memory, locked)?;
        thread::scope(|scope| {
            let (idle_sender, idle) = channel();
            let (filled_sender, filled) = channel();
            let (ready_sender, ready) = sync_channel(N_AHEAD);
            let n_threads = if staging.is_needed() { call.n_threads } else { 0 };
            for _ in 0..n_threads * PIECES_PER_THREAD {
                let _ = idle_sender.send(Piece::new(self));
            }
            let jobs = Box::new(staging.jobs(call.chunks));
            let queue = Arc::new(Mutex::new(Queue { jobs, idle }));
            for _ in 0..n_threads {
                let (queue, filled, staging) = (queue.clone(), filled_sender.clone(), &staging);
                scope.spawn(move || staging.work(&queue, &filled));
            }
            drop((queue, filled_sender));
            let (memory, tables) = (&memory, tables.as_ref());
            scope.spawn(move || {
                for number in 0..call.chunks.len() {
                    let ready = Ready::new(self, call, memory, tables, number);
                    if ready_sender.send(ready).is_err() {
                        return;
                    }
                }
            });
            // Whatever ends the pass drops the channels, by which the threads end.
            pass.run(Channels { idle: idle_sender, filled, ready })
        })
    }
}

/// What the device reads from page-locked memory.
#[derive(Clone, Copy)]
struct Locked<'a> {
    /// All rows.
    rows: &'a [u8],
    /// The words beside them, where they are not staged.
    words: Option<&'a [u8]>,
}

impl<'a> Locked<'a> {
    fn find(device: &CudaDevice, rows: StreamedRows<'a>) -> Result<Option<Locked<'a>>> {
        let (rows, words) = match rows {
            StreamedRows::Stored(_, Some(rows)) => (rows, None),
            StreamedRows::Residual(.., Some([rows, words])) => (rows, Some(words)),
            StreamedRows::Stored(_, None) | StreamedRows::Residual(.., None) => return Ok(None),
        };
        let is_locked = is_page_locked(device, rows)?
            && words.map_or(Ok(true), |words| is_page_locked(device, words))?;
        Ok(is_locked.then_some(Locked { rows, words }))
    }
}

/// What connects the thread that enqueues to the others.
struct Channels<'a> {
    idle: Sender<Piece<'a>>,
    filled: Receiver<Result<Filled<'a>>>,
    ready: Receiver<Result<Ready>>,
}

/// A search in flight: what is enqueued, and on which streams.
struct Pass<'a> {
    call: &'a StreamCall<'a>,
    staging: &'a Staging<'a>,
    memory: &'a Memory,
    locked: Option<Locked<'a>>,
    best: CudaTopK,
    /// Scores that are to be read, of consecutive chunks.
    unread: VecDeque<(CudaOutputs, OutputShape)>,
    copies: Copies<'a>,
    stream: CudaStream,
    kernels: Vec<&'static str>,
    /// Chunks whose slots are copied to.
    n_open: usize,
    /// Pieces of each chunk that are missing.
    left: Vec<usize>,
}

impl<'a> Pass<'a> {
    fn new(
        device: &Arc<CudaDevice>,
        call: &'a StreamCall<'a>,
        staging: &'a Staging<'a>,
        memory: &'a Memory,
        locked: Option<Locked<'a>>,
    ) -> Result<Pass<'a>> {
        Ok(Pass {
            call,
            staging,
            memory,
            locked,
            best: CudaTopK::new(device, call.query_layout.n_items(), call.kept.k())?,
            unread: VecDeque::new(),
            copies: Copies::new(device)?,
            stream: CudaStream::new(device)?,
            kernels: Vec::new(),
            n_open: 0,
            left: call.chunks.iter().map(|chunk| staging.n_pieces(chunk)).collect(),
        })
    }

    /// Enqueues all chunks in order.
    fn run(&mut self, channels: Channels<'_>) -> Result<StreamFound> {
        let (n_chunks, n_slots) = (self.call.chunks.len(), self.memory.slots.len());
        let mut held: Vec<Filled<'_>> = Vec::new();
        for number in 0..n_chunks {
            self.copy_rows(number)?;
            // Pieces of chunks whose slots still have others, whose work is not yet enqueued.
            let is_early = |filled: &mut Filled<'_>| filled.job.chunk < number + n_slots;
            for filled in held.extract_if(.., is_early).collect::<Vec<_>>() {
                self.copy(filled, &channels.idle)?;
            }
            while self.left[number] > 0 {
                // There is a sender for as long as pieces are missing.
                let mut filled = channels.filled.recv().map_err(|_| Error::Interrupted)??;
                match is_early(&mut filled) {
                    true => self.copy(filled, &channels.idle)?,
                    false => held.push(filled),
                }
            }
            self.memory.slot(number).copied.record_on(&self.copies.stream)?;
            if let Some(before) = number.checked_sub(n_slots) {
                self.finish(before)?;
            }
            let ready = channels.ready.recv().map_err(|_| Error::Interrupted)??;
            self.score(number, ready)?;
        }
        (n_chunks - n_slots..n_chunks).try_for_each(|number| self.finish(number))?;
        Ok(StreamFound { best: self.best.read()?, kernels: std::mem::take(&mut self.kernels) })
    }

    /// Orders the first copy of a chunk behind the work on what its slot had before, which is
    /// enqueued.
    fn open(&mut self, number: usize) -> Result<()> {
        let stream = &self.copies.stream;
        while self.n_open <= number {
            let entered = stream.device().enter()?;
            let order = stream.order(&entered)?;
            self.memory.slot(self.n_open).scored.hold_back(&entered, stream, order)?;
            self.n_open += 1;
        }
        Ok(())
    }

    /// Enqueues the copies of the rows of a chunk, where they are page-locked.
    fn copy_rows(&mut self, number: usize) -> Result<()> {
        let Some(locked) = self.locked else { return Ok(()) };
        self.open(number)?;
        let (rows, slot) = (&self.call.chunks[number].rows, self.memory.slot(number));
        let Places { pitch_bytes, words_at, .. } = self.memory.places;
        let bytes = rows.start * pitch_bytes..rows.end * pitch_bytes;
        self.copies.enqueue_bytes(&locked.rows[bytes], slot, 0)?;
        let Some(words) = locked.words else { return Ok(()) };
        let bytes = rows.start * size_of::<u32>()..rows.end * size_of::<u32>();
        self.copies.enqueue_bytes(&words[bytes], slot, words_at)
    }

    /// Enqueues the copies of a piece, and gives it back to be filled when they are done.
    fn copy<'p>(&mut self, mut filled: Filled<'p>, idle: &Sender<Piece<'p>>) -> Result<()> {
        let number = filled.job.chunk;
        self.open(number)?;
        let first_row = self.call.chunks[number].rows.start;
        let (slot, to) = (self.memory.slot(number), &self.memory.places);
        self.copies.enqueue(&mut filled, first_row, self.staging, slot, to)?;
        self.left[number] -= 1;
        // No thread takes it where all is filled.
        let _ = idle.send(filled.piece);
        Ok(())
    }

    /// Waits for the work on a chunk, hands its scores over where they are kept, and reports it.
    fn finish(&mut self, number: usize) -> Result<()> {
        let chunk = &self.call.chunks[number];
        self.memory.slot(number).scored.synchronize()?;
        if let (Kept::Scores(take), Some((outputs, shape))) =
            (self.call.kept, self.unread.pop_front())
        {
            take(chunk, outputs.read(&shape)?.values())?;
        }
        (self.call.passed)(chunk)
    }

    /// Enqueues the scores of a chunk and the selection of the best, behind its copies.
    fn score(&mut self, number: usize, ready: Ready) -> Result<()> {
        let slot = self.memory.slot(number);
        let entered = slot.memory.device().enter()?;
        let order = self.stream.order(&entered)?;
        slot.copied.hold_back(&entered, &self.stream, order)?;
        drop(entered);
        let Ready { tokens, score, outputs, shape, select, kernel } = ready;
        if let StreamedRows::Residual(element, codec, _) = self.call.rows
            && !score.decodes_once()
        {
            find_norms(&tokens, &mut self.stream, element, codec.dim())?;
        }
        score.enqueue(&mut self.stream, self.call.queries, &tokens, &outputs)?;
        match select {
            Some(select) => {
                // Ids are below 2³¹, as items are.
                let first_id = self.call.chunks[number].items.start as u32;
                let call = Selection { first_id, adds: true };
                select.enqueue(&mut self.stream, &outputs, &self.best, call)?;
            }
            None => self.unread.push_back((outputs, shape)),
        }
        slot.scored.record_on(&self.stream)?;
        if !self.kernels.contains(&kernel) {
            self.kernels.push(kernel);
        }
        Ok(())
    }
}
