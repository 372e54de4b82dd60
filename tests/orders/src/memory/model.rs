//! A device of a default stream and another one, threads that give them work and drop what it
//! used, and one that looks for memory that is free.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::Handle;
use super::sync::{AtomicBool, Ordering};
use super::timeline::{Block, Progress, Timeline};
use crate::{Model, in_all_orders};

/// What is checked.
pub const MODELS: &[Model] = &[
    ("memory that work of two streams used", used_by_two_streams),
    ("memory that the default stream used twice", used_by_the_default_stream),
    ("memory and the stream that used it", dropped_with_its_stream),
];

/// The numbers of the streams.
const DEFAULT: usize = 0;
const OTHER: usize = 1;

/// A point of a stream: so many works were given to it.
type Event = (usize, u64);

/// What streams were given and have done, and the work that uses each block.
#[derive(Default)]
struct Streams {
    given: [u64; 2],
    done: [u64; 2],
    uses: Vec<(u64, Event)>,
}

struct Device {
    streams: Mutex<Streams>,
    timeline: Mutex<Timeline<Event>>,
    used: [Arc<AtomicBool>; 2],
}

impl Device {
    fn new() -> Arc<Device> {
        let mut timeline = Timeline::default();
        let used = [DEFAULT, OTHER].map(|id| timeline.track(id as u64, Handle(id), None));
        let (streams, timeline) = (Mutex::default(), Mutex::new(timeline));
        Arc::new(Device { streams, timeline, used })
    }

    /// Gives a stream work that uses a block.
    fn give(&self, stream: usize, address: u64) {
        let mut streams = self.streams.lock().expect("no thread panics");
        streams.given[stream] += 1;
        let event = (stream, streams.given[stream]);
        streams.uses.push((address, event));
    }

    /// A call on the stream, whose handle marks it.
    fn call(&self, address: u64) {
        self.used[OTHER].store(true, Ordering::Release);
        self.give(OTHER, address);
    }

    /// Zeroes new memory, before it has an owner.
    fn zero(&self, address: u64) {
        self.give(DEFAULT, address);
        self.used[DEFAULT].store(true, Ordering::Release);
    }

    fn retire(&self, address: u64) {
        let mut timeline = self.timeline.lock().expect("no thread panics");
        timeline.retire(Block::Small { class: 0, address });
    }

    /// Drops the handle of the stream.
    fn forget(&self) {
        let mut timeline = self.timeline.lock().expect("no thread panics");
        timeline.forget(OTHER as u64, |stream| Some(self.recorded(stream.raw)));
    }

    fn recorded(&self, Handle(stream): Handle) -> Event {
        (stream, self.streams.lock().expect("no thread panics").given[stream])
    }

    /// Hands on what is free, none of which may be used; how many blocks that were.
    fn advance(&self) -> usize {
        let mut timeline = self.timeline.lock().expect("no thread panics");
        timeline.close();
        timeline.record(|stream| Some(self.recorded(stream.raw)));
        timeline.poll(|&(stream, n)| {
            let streams = self.streams.lock().expect("no thread panics");
            if streams.done[stream] >= n { Progress::Done } else { Progress::Pending }
        });
        let free = timeline.take_done();
        let streams = self.streams.lock().expect("no thread panics");
        for block in &free {
            let Block::Small { address, .. } = *block else { unreachable!() };
            let mut uses = streams.uses.iter().filter(|(used, _)| *used == address);
            let is_done = |(_, (stream, n)): &(u64, Event)| streams.done[*stream] >= *n;
            assert!(uses.all(is_done), "block {address} is handed on while work uses it");
        }
        free.len()
    }

    /// The device does all that it was given.
    fn work(&self) {
        let mut streams = self.streams.lock().expect("no thread panics");
        streams.done = streams.given;
    }
}

/// Runs what threads do beside one that looks for memory twice, with and without the device working
/// in between; `n_blocks` are dropped in all. The number of orders.
fn run(n_blocks: usize, threads: [fn(&Device); 2]) -> usize {
    let of = |works: bool| {
        in_all_orders(4, move || {
            let device = Device::new();
            let threads = threads.map(|run| {
                let device = device.clone();
                thread::spawn(move || run(&device))
            });
            let mut n_free = device.advance();
            if works {
                device.work();
            }
            n_free += device.advance();
            threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
            n_free += device.advance();
            device.work();
            n_free += device.advance();
            assert_eq!(n_free, n_blocks, "memory that nothing uses is handed on");
        })
    };
    of(true) + of(false)
}

fn used_by_two_streams() -> usize {
    let both = |device: &Device| {
        device.zero(1);
        device.call(1);
        device.retire(1);
    };
    let one = |device: &Device| {
        device.call(2);
        device.retire(2);
    };
    run(2, [both, one])
}

fn used_by_the_default_stream() -> usize {
    let first = |device: &Device| {
        device.zero(1);
        device.retire(1);
    };
    let second = |device: &Device| {
        device.zero(2);
        device.retire(2);
    };
    run(2, [first, second])
}

fn dropped_with_its_stream() -> usize {
    let stream = |device: &Device| {
        device.call(1);
        device.retire(1);
        device.forget();
    };
    let other = |device: &Device| {
        device.zero(2);
        device.retire(2);
    };
    run(2, [stream, other])
}
