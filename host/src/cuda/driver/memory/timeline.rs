//! Which batches of dropped memory no stream uses any more: the part of [`super::retired`] that
//! needs no driver.

use std::collections::VecDeque;
use std::thread::ThreadId;

use super::Handle;
use super::sync::{Arc, AtomicBool, Ordering};

/// Number of the legacy default stream. Streams are numbered from 1.
pub(super) const DEFAULT_STREAM: u64 = 0;

/// Number of the event behind everything that a stream will ever be given.
const LAST: u64 = u64::MAX;

/// Memory without an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// A block of a size class, which is handed out again.
    Small { class: usize, address: u64 },
    /// Device memory of its own, which is freed.
    Large { address: u64, len_bytes: u64 },
    /// Page-locked host memory, by its exposed address.
    Pinned { address: usize },
}

/// Whether an event has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Pending,
    /// The event does not say: it became part of a capture that began meanwhile.
    Unknown,
}

/// A stream that work of the library may be on.
#[derive(Debug)]
pub(super) struct Tracked<E> {
    id: u64,
    pub raw: Handle,
    /// The thread on which the handle means this stream, where that is one thread alone.
    pub thread: Option<ThreadId>,
    /// Set before the library enqueues work.
    used: Arc<AtomicBool>,
    /// Events by the batch that they were recorded behind.
    events: VecDeque<(u64, E)>,
    /// The newest batch that an event was recorded behind.
    recorded: u64,
    /// The newest batch that the stream is known not to use.
    completed: u64,
    is_gone: bool,
}

/// Batches of dropped blocks, and how far each stream has come.
#[derive(Debug)]
pub(super) struct Timeline<E> {
    streams: Vec<Tracked<E>>,
    /// Number of the newest batch.
    newest: u64,
    /// Blocks that were dropped since.
    open: Vec<Block>,
    batches: VecDeque<(u64, Vec<Block>)>,
}

impl<E> Default for Timeline<E> {
    fn default() -> Timeline<E> {
        let (streams, open, batches) = (Vec::new(), Vec::new(), VecDeque::new());
        Timeline { streams, newest: 0, open, batches }
    }
}

impl<E> Timeline<E> {
    /// Adds a stream that no work of the library is on yet. The result must be set before there is.
    pub fn track(&mut self, id: u64, raw: Handle, thread: Option<ThreadId>) -> Arc<AtomicBool> {
        let used = Arc::new(AtomicBool::new(false));
        let (recorded, completed) = (self.newest, self.newest);
        let (events, is_gone) = (VecDeque::new(), false);
        let flag = used.clone();
        let of = Tracked { id, raw, thread, used, events, recorded, completed, is_gone };
        self.streams.push(of);
        flag
    }

    /// Notes that a stream will be given no more work. `record` records its last event.
    pub fn forget(&mut self, id: u64, record: impl FnOnce(&Tracked<E>) -> Option<E>) {
        let Some(index) = self.streams.iter().position(|stream| stream.id == id) else { return };
        let stream = &mut self.streams[index];
        if !stream.used.load(Ordering::Relaxed) {
            self.streams.swap_remove(index);
            return;
        }
        // Where nothing can be recorded, only a wait for the whole device shows that it is done.
        let event = record(stream);
        stream.events.extend(event.map(|event| (LAST, event)));
        (stream.recorded, stream.is_gone) = (LAST, true);
    }

    /// Adds a block whose owner is gone.
    pub fn retire(&mut self, block: Block) {
        self.open.push(block);
    }

    /// Number of blocks that are in no batch yet.
    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    /// Whether there are blocks that may still be used.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.batches.is_empty()
    }

    /// Whether there are such blocks that will be freed.
    pub fn has_large(&self) -> bool {
        let all = self.batches.iter().flat_map(|(_, blocks)| blocks).chain(&self.open);
        all.into_iter().any(|block| matches!(block, Block::Large { .. }))
    }

    /// Makes a batch of the blocks that were dropped since the last one; the newest batch's number.
    pub fn close(&mut self) -> u64 {
        if !self.open.is_empty() {
            self.newest += 1;
            let blocks = std::mem::take(&mut self.open);
            self.batches.push_back((self.newest, blocks));
        }
        self.newest
    }

    /// Records an event on every stream whose last one is older than the newest batch. `record`
    /// gives none where that cannot be done now: the batches then wait for a later one.
    pub fn record(&mut self, mut record: impl FnMut(&Tracked<E>) -> Option<E>) {
        let newest = self.newest;
        for stream in self.streams.iter_mut().filter(|stream| stream.recorded < newest) {
            let is_default = stream.id == DEFAULT_STREAM;
            // The flag of the default stream, which anyone's work may be on, is cleared: what sets
            // it again has been enqueued after this, and memory that it uses is in no batch yet.
            let is_used = match is_default {
                true => stream.used.swap(false, Ordering::AcqRel),
                false => stream.used.load(Ordering::Acquire),
            };
            if is_used {
                match record(stream) {
                    Some(event) => stream.events.push_back((newest, event)),
                    None => {
                        stream.used.store(true, Ordering::Release);
                        continue;
                    }
                }
            } else if let Some((batch, _)) = stream.events.back_mut() {
                // Nothing was enqueued behind this event.
                *batch = newest;
            } else {
                stream.completed = newest;
            }
            stream.recorded = newest;
        }
    }

    /// Asks how far the streams have come, and returns the events that are not needed any more.
    pub fn poll(&mut self, mut progress: impl FnMut(&E) -> Progress) -> Vec<E> {
        let mut spent = Vec::new();
        for stream in &mut self.streams {
            while let Some((_, event)) = stream.events.front() {
                let found = progress(event);
                if found == Progress::Pending {
                    break;
                }
                let Some((batch, event)) = stream.events.pop_front() else { break };
                match found {
                    Progress::Unknown => {
                        if !stream.is_gone {
                            stream.recorded = stream.completed;
                        }
                    }
                    _ => {
                        stream.completed = batch;
                        spent.push(event);
                    }
                }
            }
        }
        self.streams.retain(|stream| stream.completed != LAST);
        spent
    }

    /// Removes the blocks that no stream uses any more.
    pub fn take_done(&mut self) -> Vec<Block> {
        let all_used = self.streams.iter().map(|stream| stream.completed).min().unwrap_or(LAST);
        self.take_through(all_used)
    }

    /// Removes the blocks of batches up to number `batch`, when the whole device was waited for
    /// since it was made; and streams that were gone by then.
    pub fn take_waited(&mut self, batch: u64, gone: &[u64]) -> Vec<Block> {
        self.streams.retain(|stream| !(stream.is_gone && gone.contains(&stream.id)));
        self.take_through(batch)
    }

    /// The numbers of streams that are gone, but not known to be done.
    pub fn gone(&self) -> Vec<u64> {
        self.streams.iter().filter(|stream| stream.is_gone).map(|stream| stream.id).collect()
    }

    fn take_through(&mut self, batch: u64) -> Vec<Block> {
        let mut done = Vec::new();
        while let Some((_, blocks)) = self.batches.pop_front_if(|(of, _)| *of <= batch) {
            done.extend(blocks);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn block(address: u64) -> Block {
        Block::Small { class: 0, address }
    }

    fn stream(timeline: &mut Timeline<u64>, id: u64) -> Arc<AtomicBool> {
        timeline.track(id, Handle(ptr::null_mut()), None)
    }

    /// Closes a batch and records, with events that are numbers.
    fn close(timeline: &mut Timeline<u64>, event: u64) {
        timeline.close();
        timeline.record(|stream| Some(event * 10 + stream.id));
    }

    /// The blocks that are done where these events have completed.
    fn done(timeline: &mut Timeline<u64>, completed: &[u64]) -> Vec<Block> {
        timeline.poll(|event| match completed.contains(event) {
            true => Progress::Done,
            false => Progress::Pending,
        });
        timeline.take_done()
    }

    #[test]
    fn a_block_waits_for_every_stream_that_was_used_before_it_was_dropped() {
        let mut timeline = Timeline::default();
        timeline.retire(block(1));
        close(&mut timeline, 1);
        assert_eq!(done(&mut timeline, &[]), [block(1)], "no stream was ever used");

        let used = [1, 2, 3].map(|id| stream(&mut timeline, id));
        used[..2].iter().for_each(|used| used.store(true, Ordering::Relaxed));
        timeline.retire(block(2));
        close(&mut timeline, 2);
        // What the third stream is given later does not matter.
        used[2].store(true, Ordering::Relaxed);
        assert_eq!(done(&mut timeline, &[21]), []);
        assert_eq!(done(&mut timeline, &[22]), [block(2)]);

        timeline.retire(block(3));
        assert_eq!(done(&mut timeline, &[]), [], "not in a batch");
        close(&mut timeline, 3);
        assert_eq!(done(&mut timeline, &[31, 32]), []);
        assert_eq!(done(&mut timeline, &[33]), [block(3)]);
    }

    /// A stream that is captured, or another thread's, is recorded later, for all batches so far.
    #[test]
    fn what_cannot_be_recorded_now_is_later() {
        let mut timeline = Timeline::default();
        let used = [1, 2].map(|id| stream(&mut timeline, id));
        used.iter().for_each(|used| used.store(true, Ordering::Relaxed));
        for batch in 1..=2 {
            timeline.retire(block(batch));
            timeline.close();
            timeline.record(|stream| (stream.id == 1).then_some(batch * 10 + 1));
        }
        assert_eq!(done(&mut timeline, &[11, 21]), []);
        timeline.record(|stream| Some(30 + stream.id));
        assert_eq!(done(&mut timeline, &[]), []);
        assert_eq!(done(&mut timeline, &[32]), [block(1), block(2)]);
        assert!(timeline.is_empty());

        // An event that a capture swallowed is recorded again.
        timeline.retire(block(4));
        close(&mut timeline, 4);
        timeline.poll(|event| if *event == 42 { Progress::Unknown } else { Progress::Done });
        assert_eq!(timeline.take_done(), []);
        timeline.record(|stream| Some(50 + stream.id));
        assert_eq!(done(&mut timeline, &[52]), [block(4)]);
    }

    #[test]
    fn the_default_stream_is_recorded_when_it_was_used_alone() {
        let mut timeline = Timeline::default();
        let used = stream(&mut timeline, DEFAULT_STREAM);
        used.store(true, Ordering::Relaxed);
        timeline.retire(block(1));
        close(&mut timeline, 1);
        timeline.retire(block(2));
        timeline.close();
        timeline.record(|_| panic!("it was not used since"));
        assert_eq!(done(&mut timeline, &[]), [], "the first event stands for both");
        assert_eq!(done(&mut timeline, &[10]), [block(1), block(2)]);
        timeline.retire(block(3));
        timeline.close();
        timeline.record(|_| panic!("it was not used since"));
        assert_eq!(done(&mut timeline, &[]), [block(3)]);
        // While it cannot be recorded it stays marked.
        used.store(true, Ordering::Relaxed);
        timeline.retire(block(4));
        timeline.close();
        timeline.record(|_| None);
        assert_eq!(done(&mut timeline, &[]), []);
        timeline.record(|_| Some(4));
        assert_eq!(done(&mut timeline, &[4]), [block(4)]);
    }

    #[test]
    fn a_stream_that_is_gone_counts_until_its_last_event() {
        let mut timeline = Timeline::default();
        let used = [1, 2, 3].map(|id| stream(&mut timeline, id));
        used[..2].iter().for_each(|used| used.store(true, Ordering::Relaxed));
        timeline.forget(1, |_| Some(99));
        // Nothing could be recorded: only a wait for the device helps.
        timeline.forget(2, |_| None);
        timeline.forget(3, |_| panic!("it was never used"));
        timeline.retire(block(1));
        let batch = timeline.close();
        timeline.record(|_| panic!("no stream is left"));
        assert_eq!(done(&mut timeline, &[]), []);
        assert_eq!(timeline.gone(), [1, 2]);
        assert_eq!(done(&mut timeline, &[99]), []);
        let gone = timeline.gone();
        assert_eq!(gone, [2]);
        assert_eq!(timeline.take_waited(batch, &gone), [block(1)]);
        timeline.retire(block(2));
        close(&mut timeline, 2);
        assert_eq!(done(&mut timeline, &[]), [block(2)]);
    }
}
