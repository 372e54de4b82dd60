//! What a block knows of the keys that it selects, and the step that it takes next.

use super::find::Survey;
use super::{
    K_OF_THREADS, NO_WORD, NUMBER_MIN, TopKParams, WordRange, is_number, key_of_word, upper_word,
};

/// A step: what is done with the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Counts the largest words of threads in a histogram.
    BoundOfThreads,
    /// Counts the largest words of groups, those that a thread takes at a time, in a histogram.
    BoundOfGroups,
    /// Counts the words of a range in a histogram.
    Narrow,
    /// Copies the keys that are to be sorted.
    Gather,
    /// The same, but for those of the range: it is one key, of a candidate that is named more often
    /// than there is room.
    GatherAbove,
}

/// What is wanted, and among what.
#[derive(Clone, Copy)]
pub struct All {
    /// Entries.
    pub n: u32,
    /// The words that they may have.
    pub range: WordRange,
    /// Keys that are selected.
    pub wanted: u32,
}

/// The range that has the key of the last place.
#[derive(Clone, Copy)]
pub struct Search {
    pub step: Step,
    /// Words among which that of the last key is: upper ones, or the lower ones of keys with an
    /// upper word.
    pub range: WordRange,
    /// That upper word; before that, none.
    pub word: u32,
    /// How many keys are above the range: fewer than are wanted.
    pub n_above: u32,
}

impl Search {
    /// Begins when entries are counted.
    #[inline(always)]
    pub fn new(params: &TopKParams, survey: &Survey) -> (Search, All) {
        let wanted = if survey.n_all < params.k { survey.n_all } else { params.k };
        let n_numbers = survey.n_all - survey.n_nan - survey.n_empty;
        let has_enough_groups = wanted <= survey.n_groups && is_number(survey.least_of_groups);
        let low = match (n_numbers >= wanted, has_enough_groups) {
            (false, _) => NO_WORD + 1,
            (true, false) => NUMBER_MIN,
            (true, true) => survey.least_of_groups,
        };
        let range = WordRange { low, high: survey.most };
        let all = All { n: survey.n_all, range, wanted };
        let mut search = Search {
            step: Step::BoundOfThreads,
            range: WordRange { low: survey.least_most, high: survey.most },
            word: NO_WORD,
            n_above: 0,
        };
        if wanted > K_OF_THREADS || wanted > survey.n_threads {
            search.step = Step::BoundOfGroups;
            search.range.low = survey.least_of_groups;
            if wanted > survey.n_groups / 4 * 3 {
                search.narrow(params, all);
            }
        }
        (search, all)
    }

    /// Begins anew with all that may be wanted.
    #[inline(always)]
    pub fn narrow(&mut self, params: &TopKParams, all: All) {
        (self.range, self.word, self.n_above) = (all.range, NO_WORD, 0);
        self.step_into(params, all.n);
    }

    /// Takes the last key to be in a bin of the range: so many are above it, and in it.
    #[inline(always)]
    pub fn advance(&mut self, params: &TopKParams, [bin, n_before, n_inside]: [u32; 3]) {
        self.range = self.range.of_bin(bin);
        if self.step == Step::Narrow {
            self.n_above += n_before;
            self.step_into(params, n_inside);
        } else {
            // As many threads, or groups, have an entry that is not below the bin.
            self.step = Step::Gather;
        }
    }

    /// Chooses the step for a range of so many keys, at most.
    #[inline(always)]
    fn step_into(&mut self, params: &TopKParams, n_inside: u32) {
        let (is_one, fits) = (self.range.is_one(), self.n_above + n_inside <= params.capacity);
        self.step = match (fits, is_one && self.word != NO_WORD) {
            (true, _) => Step::Gather,
            (false, true) => Step::GatherAbove,
            (false, false) => Step::Narrow,
        };
        if self.step == Step::Narrow && is_one {
            self.word = self.range.low;
            self.range = WordRange { low: 0, high: u32::MAX };
        }
    }

    /// The smallest key of the range.
    #[inline(always)]
    pub fn low(&self) -> u64 {
        // Ids are complements of the lower words.
        match self.word {
            NO_WORD => key_of_word(self.range.low, u32::MAX),
            word => key_of_word(word, !self.range.low),
        }
    }

    /// The smallest key that is gathered.
    #[inline(always)]
    pub fn least(&self) -> u64 {
        self.low() + u64::from(self.step == Step::GatherAbove)
    }

    /// Whether keys are gathered.
    #[inline(always)]
    pub fn gathers(&self) -> bool {
        matches!(self.step, Step::Gather | Step::GatherAbove)
    }

    /// The upper word of that key.
    #[inline(always)]
    pub fn least_word(&self) -> u32 {
        upper_word(self.least())
    }
}
