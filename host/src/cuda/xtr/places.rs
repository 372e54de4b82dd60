//! Where a call's own lists and results are.

/// Places in the stream's workspace, behind what the plans need: nothing there lives longer than
/// a call.
pub(super) struct Places {
    pub token_scores: u64,
    /// Scores and maxima of a sample.
    pub sample: [u64; 2],
    pub lists: u64,
    pub bounds: u64,
    pub counts: u64,
    /// What the host reads: the number of query tokens without a threshold, thresholds, divisors.
    pub n_open: u64,
    pub thresholds: u64,
    pub divisors: u64,
    pub end: u64,
}

impl Places {
    /// The addresses of these places in memory that starts at an address.
    pub(super) fn at(&self, start: u64) -> Places {
        Places {
            token_scores: start + self.token_scores,
            sample: self.sample.map(|place| start + place),
            lists: start + self.lists,
            bounds: start + self.bounds,
            counts: start + self.counts,
            n_open: start + self.n_open,
            thresholds: start + self.thresholds,
            divisors: start + self.divisors,
            end: start + self.end,
        }
    }
}
