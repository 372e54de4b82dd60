//! Graphs that other code captures, on a device: the driver is called as another library
//! would call it.

use std::ptr;

use cust::sys::{CUgraph, CUgraphExec};

use crate::cuda::driver::event::CudaEvent;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::symbols::raw;
use crate::device::Device;
use crate::device::stream::Stream;
use crate::device::tests::on_every_device;
use crate::device::tokens::DeviceTokens;
use crate::error::Error;
use crate::ops::queue::Queue;
use crate::ops::score::prepared::{DeviceScores, PreparedScore};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::tokens::Tokens;

const DIM: usize = 64;
const THREAD_LOCAL: i32 = 1;

/// Work whose scores are sums over several tiles of any kernel, and that fills winners.
struct Prepared {
    queries: DeviceTokens<f32>,
    documents: DeviceTokens<f32>,
    work: PreparedScore,
    expected: Scores,
}

impl Prepared {
    fn new(device: &Device) -> Prepared {
        let numbers = |n: usize| -> Vec<f32> {
            (0..n * DIM).map(|i| ((i * 7919) % 251) as f32 / 251.0 - 0.5).collect()
        };
        let (queries, documents) = (numbers(2000), numbers(300));
        let queries = Tokens::packed(&queries, DIM, &[0i64, 1990, 1990, 2000]).unwrap();
        let documents = Tokens::packed(&documents, DIM, &[0i64, 200, 200, 300]).unwrap();
        let options = ScoreOptions { winners: true, ..ScoreOptions::default() };
        let queries = device.upload(&queries).unwrap();
        let documents = device.upload(&documents).unwrap();
        let work = device.prepare(&queries, &documents, &Pairing::cross(), &options).unwrap();
        let cross = Pairing::cross();
        let expected = device.score_with(&queries, &documents, &cross, &options).unwrap();
        assert!(expected.values()[0] != 0.0);
        Prepared { queries, documents, work, expected }
    }

    fn score(&self, stream: &mut Stream, scores: &mut DeviceScores) -> crate::Result<()> {
        stream.score_into(&self.queries, &self.documents, &self.work, scores)
    }
}

/// A stream of another library, and a stream of ours for it.
fn foreign(device: &Device) -> (CudaStream, Stream) {
    let foreign = CudaStream::independent(device.cuda_device("a stream").unwrap()).unwrap();
    let handle = foreign.raw().expose_provenance() as u64;
    // SAFETY: the caller keeps the stream, for longer than what this gives.
    let stream = unsafe { Stream::from_raw(device, handle).unwrap() };
    (foreign, stream)
}

/// What another library would do with its stream.
struct Library<'a> {
    device: &'a Device,
    stream: &'a CudaStream,
}

impl Library<'_> {
    fn call(&self, call: impl FnOnce() -> u32) {
        let _entered = self.device.cuda_device("a call").unwrap().enter().unwrap();
        assert_eq!(call(), 0);
    }

    fn begin(&self) {
        // SAFETY: the stream lives and is not captured.
        self.call(|| unsafe { raw::cuStreamBeginCapture_v2(self.stream.raw(), THREAD_LOCAL) });
    }

    fn end(&self) -> CUgraphExec {
        let (mut graph, mut exec): (CUgraph, CUgraphExec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is captured; what the results are written to outlives the calls.
        unsafe {
            self.call(|| raw::cuStreamEndCapture(self.stream.raw(), &mut graph));
            self.call(|| raw::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            self.call(|| raw::cuGraphDestroy(graph));
        }
        exec
    }

    fn launch(&self, exec: CUgraphExec) {
        // SAFETY: the test keeps the graph and what it uses.
        self.call(|| unsafe { raw::cuGraphLaunch(exec, self.stream.raw()) });
    }

    fn destroy(&self, exec: CUgraphExec) {
        // SAFETY: the test does not use the graph any more.
        self.call(|| unsafe { raw::cuGraphExecDestroy(exec) });
    }
}

#[test]
fn calls_become_part_of_a_foreign_graph() {
    on_every_device("calls_become_part_of_a_foreign_graph", |device| {
        let prepared = Prepared::new(device);
        let (theirs, mut stream) = foreign(device);
        let library = Library { device, stream: &theirs };
        let mut direct = prepared.work.new_scores().unwrap();
        // Grows the workspace.
        prepared.score(&mut stream, &mut direct).unwrap();
        assert_eq!(direct.read().unwrap(), prepared.expected);

        let mut captured = prepared.work.new_scores().unwrap();
        let nothing = captured.read().unwrap();
        library.begin();
        // Scores that were last written outside the capture, and such that never were; twice,
        // since the second call finds the first in the same capture.
        for _ in 0..2 {
            prepared.score(&mut stream, &mut direct).unwrap();
            prepared.score(&mut stream, &mut captured).unwrap();
        }
        let exec = library.end();
        // Nothing has run, and nothing waits for the capture.
        assert_eq!(captured.read().unwrap(), nothing);
        assert_eq!(direct.read().unwrap(), prepared.expected);
        let mut other_stream = device.stream().unwrap();
        for _ in 0..3 {
            library.launch(exec);
            assert_eq!(captured.read().unwrap(), prepared.expected);
            // Direct calls into the same scores wait for the graph, on whatever stream.
            library.launch(exec);
            prepared.score(&mut other_stream, &mut captured).unwrap();
            library.launch(exec);
            prepared.score(&mut stream, &mut captured).unwrap();
            assert_eq!(captured.read().unwrap(), prepared.expected);
            assert_eq!(direct.read().unwrap(), prepared.expected);
        }
        library.destroy(exec);
    });
}

/// A capture that was forked into two streams has two orders.
#[test]
fn streams_of_one_foreign_capture_take_turns() {
    on_every_device("streams_of_one_foreign_capture_take_turns", |device| {
        // Scores of one shape; those of the first work take long.
        let [long, short] = [4096, 1].map(|len| {
            let numbers: Vec<f32> =
                (0..64 * len * DIM).map(|i| ((i * 31) % 97) as f32 / 97.0 + len as f32).collect();
            let queries = device.upload(&Tokens::padded(&numbers[..DIM], 1, 1, DIM).unwrap());
            let documents = device.upload(&Tokens::padded(&numbers, 64, len, DIM).unwrap());
            let (queries, documents) = (queries.unwrap(), documents.unwrap());
            let (cross, options) = (Pairing::cross(), ScoreOptions::default());
            let work = device.prepare(&queries, &documents, &cross, &options).unwrap();
            let expected = device.score_with(&queries, &documents, &cross, &options).unwrap();
            Prepared { queries, documents, work, expected }
        });
        let (theirs, mut stream) = foreign(device);
        let (forked, mut forked_stream) = foreign(device);
        let library = Library { device, stream: &theirs };
        let mut scores = long.work.new_scores().unwrap();
        // Grows both workspaces.
        short.score(&mut forked_stream, &mut scores).unwrap();
        long.score(&mut stream, &mut scores).unwrap();
        assert_eq!(scores.read().unwrap(), long.expected);

        let cuda = device.cuda_device("events").unwrap();
        let [fork, join] = [(); 2].map(|()| CudaEvent::new(cuda, false).unwrap());
        let follow = |event: &CudaEvent, from: &CudaStream, to: &CudaStream| {
            let entered = cuda.enter().unwrap();
            event.mark_inside(&entered, from).unwrap();
            event.hold_back_inside(&entered, to).unwrap();
        };
        library.begin();
        follow(&fork, &theirs, &forked);
        long.score(&mut stream, &mut scores).unwrap();
        short.score(&mut forked_stream, &mut scores).unwrap();
        follow(&join, &forked, &theirs);
        let exec = library.end();
        for _ in 0..5 {
            library.launch(exec);
            assert_eq!(scores.read().unwrap(), short.expected);
        }
        library.destroy(exec);
    });
}

#[test]
fn the_stream_of_a_thread_scores_on_that_thread() {
    on_every_device("the_stream_of_a_thread_scores_on_that_thread", |device| {
        let prepared = Prepared::new(device);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // SAFETY: the driver's handle for it; the value stays on this thread.
                    let mut stream = unsafe { Stream::from_raw(device, 2).unwrap() };
                    for _ in 0..20 {
                        let mut scores = prepared.work.new_scores().unwrap();
                        prepared.score(&mut stream, &mut scores).unwrap();
                        assert_eq!(scores.read().unwrap(), prepared.expected);
                    }
                });
            }
        });
    });
}

#[test]
fn a_workspace_does_not_grow_and_no_graph_starts_in_a_foreign_capture() {
    on_every_device("a_workspace_does_not_grow_in_a_foreign_capture", |device| {
        let prepared = Prepared::new(device);
        let (theirs, mut stream) = foreign(device);
        let library = Library { device, stream: &theirs };
        let mut scores = prepared.work.new_scores().unwrap();
        let graph = device.capture(|capture| {
            let Prepared { queries, documents, work, .. } = &prepared;
            capture.score_into(queries, documents, work, &mut scores)
        });
        let mut graph = graph.unwrap();
        library.begin();
        let grown = prepared.score(&mut stream, &mut scores);
        let launched = graph.launch(&mut stream);
        let exec = library.end();
        for (result, words) in [(grown, "workspace"), (launched, "graph")] {
            match result {
                Err(Error::Unsupported { what, .. }) => assert!(what.contains(words), "{what}"),
                other => panic!("{words}: {other:?}"),
            }
        }
        library.destroy(exec);
        // Outside the capture both work.
        prepared.score(&mut stream, &mut scores).unwrap();
        assert_eq!(scores.read().unwrap(), prepared.expected);
        graph.launch(&mut stream).unwrap();
        assert_eq!(scores.read().unwrap(), prepared.expected);
    });
}

#[test]
fn a_workspace_in_a_foreign_graph_is_kept_when_the_stream_needs_a_larger_one() {
    on_every_device("a_workspace_in_a_foreign_graph_is_kept", |device| {
        let (theirs, mut stream) = foreign(device);
        let StreamWorkspace { small, large } = StreamWorkspace::new(device);
        let library = Library { device, stream: &theirs };
        let mut scores = small.work.new_scores().unwrap();
        small.score(&mut stream, &mut scores).unwrap();
        library.begin();
        small.score(&mut stream, &mut scores).unwrap();
        let exec = library.end();
        let mut large_scores = large.work.new_scores().unwrap();
        large.score(&mut stream, &mut large_scores).unwrap();
        assert_eq!(large_scores.read().unwrap(), large.expected);
        // Would write over memory that the next upload gets, had the old workspace been freed.
        let other = Prepared::new(device);
        library.launch(exec);
        assert_eq!(scores.read().unwrap(), small.expected);
        let mut other_scores = other.work.new_scores().unwrap();
        other.score(&mut stream, &mut other_scores).unwrap();
        assert_eq!(other_scores.read().unwrap(), other.expected);
        library.destroy(exec);
    });
}

/// Two works of which the second needs more workspace.
struct StreamWorkspace {
    small: Prepared,
    large: Prepared,
}

impl StreamWorkspace {
    fn new(device: &Device) -> StreamWorkspace {
        let small = Prepared::new(device);
        let numbers: Vec<f32> = (0..4000 * DIM).map(|i| ((i * 31) % 97) as f32 / 97.0).collect();
        let queries = device.upload(&Tokens::padded(&numbers, 1, 4000, DIM).unwrap()).unwrap();
        let documents = device.upload(&Tokens::padded(&numbers, 1000, 4, DIM).unwrap()).unwrap();
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let work = device.prepare(&queries, &documents, &cross, &options).unwrap();
        let expected = device.score_with(&queries, &documents, &cross, &options).unwrap();
        StreamWorkspace { small, large: Prepared { queries, documents, work, expected } }
    }
}

/// Memory that is dropped during a capture disturbs neither the capture nor what it captured. (That
/// it is freed afterwards is counted by the stand-in's tests: what a device has free is changed by
/// every process.)
#[test]
fn what_is_dropped_during_a_capture_does_not_disturb_it() {
    on_every_device("what_is_dropped_during_a_capture_does_not_disturb_it", |device| {
        let prepared = Prepared::new(device);
        let (theirs, mut stream) = foreign(device);
        let library = Library { device, stream: &theirs };
        let mut scores = prepared.work.new_scores().unwrap();
        prepared.score(&mut stream, &mut scores).unwrap();
        let large = vec![1.0f32; 64 << 20];
        let tokens = device.upload(&Tokens::padded(&large, 1 << 20, 1, 64).unwrap()).unwrap();
        library.begin();
        prepared.score(&mut stream, &mut scores).unwrap();
        drop(tokens);
        let exec = library.end();
        library.launch(exec);
        assert_eq!(scores.read().unwrap(), prepared.expected);
        library.destroy(exec);
    });
}
