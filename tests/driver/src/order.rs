//! Which copies the work of a stream comes behind.

use std::collections::BTreeMap;

/// Copies that are done before something: of each stream that copies, the newest.
#[derive(Clone, Debug, Default)]
pub struct Copies(BTreeMap<usize, u64>);

impl Copies {
    const NONE: Copies = Copies(BTreeMap::new());

    fn add(&mut self, others: &Copies) {
        for (&stream, &copy) in &others.0 {
            let newest = self.0.entry(stream).or_default();
            *newest = copy.max(*newest);
        }
    }
}

/// The copies to the device, and what each stream's work comes behind.
pub struct Order {
    n_copies: u64,
    all: Copies,
    /// Those that the host has waited for: any work that follows comes behind them.
    done: Copies,
    behind: BTreeMap<usize, Copies>,
}

impl Order {
    pub const NEW: Order =
        Order { n_copies: 0, all: Copies::NONE, done: Copies::NONE, behind: BTreeMap::new() };

    /// A stream copies.
    pub fn copy(&mut self, stream: usize) {
        self.n_copies += 1;
        let copy = Copies(BTreeMap::from([(stream, self.n_copies)]));
        self.all.add(&copy);
        self.wait(stream, &copy);
    }

    /// What the work of a stream so far comes behind.
    pub fn of(&self, stream: usize) -> Copies {
        self.behind.get(&stream).cloned().unwrap_or_default()
    }

    /// Work of a stream from now on comes behind these, too.
    pub fn wait(&mut self, stream: usize, copies: &Copies) {
        self.behind.entry(stream).or_default().add(copies);
    }

    /// The host has waited for these.
    pub fn finish(&mut self, copies: &Copies) {
        self.done.add(copies);
    }

    /// The host has waited for all of them.
    pub fn finish_all(&mut self) {
        self.done = self.all.clone();
    }

    /// Whether work of a stream would begin before some copy is done.
    pub fn is_early(&self, stream: usize) -> bool {
        let mut known = self.of(stream);
        known.add(&self.done);
        self.all.0.iter().any(|(by, copy)| known.0.get(by) < Some(copy))
    }
}
