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
}

/// The range that has the key of the last place.
#[derive(Clone, Copy)]
pub struct Search {
    pub step: Step,
    /// Entries of the block.
    n_all: u32,
    /// All words that may be wanted.
    all: WordRange,
    /// Keys that are selected.
    pub wanted: u32,
    /// Keys that there is room for.
    capacity: u32,
    /// Words among which that of the last key is: upper ones, or the lower ones of keys with an
    /// upper word.
    pub range: WordRange,
    /// That upper word; before that, none.
    pub word: u32,
    /// How many keys are above the range: fewer than are wanted.
    pub n_above: u32,
    /// 1 where the range is one key, of a candidate that is named more often than there is room.
    pub are_equal: u32,
}

impl Search {
    /// Begins when entries are counted.
    #[inline(always)]
    pub fn new(params: &TopKParams, survey: &Survey) -> Search {
        let wanted = if survey.n_all < params.k { survey.n_all } else { params.k };
        let n_numbers = survey.n_all - survey.n_nan - survey.n_empty;
        let has_enough_groups = wanted <= survey.n_groups && is_number(survey.least_of_groups);
        let low = match (n_numbers >= wanted, has_enough_groups) {
            (false, _) => NO_WORD + 1,
            (true, false) => NUMBER_MIN,
            (true, true) => survey.least_of_groups,
        };
        let all = WordRange { low, high: survey.most };
        let mut search = Search {
            step: Step::BoundOfThreads,
            n_all: survey.n_all,
            all,
            wanted,
            capacity: params.capacity,
            range: WordRange { low: survey.least_most, high: survey.most },
            word: NO_WORD,
            n_above: 0,
            are_equal: 0,
        };
        if wanted > K_OF_THREADS || wanted > survey.n_threads {
            search.step = Step::BoundOfGroups;
            search.range.low = survey.least_of_groups;
            if wanted > survey.n_groups / 4 * 3 {
                search.narrow();
            }
        }
        search
    }

    /// Begins anew with the range that has all keys which may be wanted.
    #[inline(always)]
    pub fn narrow(&mut self) {
        (self.range, self.word, self.n_above) = (self.all, NO_WORD, 0);
        self.step_into(self.n_all);
    }

    /// Takes the last key to be in a bin of the range: so many are above it, and in it.
    #[inline(always)]
    pub fn advance(&mut self, bin: u32, n_before: u32, n_inside: u32) {
        self.range = self.range.of_bin(bin);
        if self.step == Step::Narrow {
            self.n_above += n_before;
            self.step_into(n_inside);
        } else {
            // As many threads, or groups, have an entry that is not below the bin.
            self.step = Step::Gather;
        }
    }

    /// Chooses the step for a range of so many keys, at most.
    #[inline(always)]
    fn step_into(&mut self, n_inside: u32) {
        let (is_one, fits) = (self.range.is_one(), self.n_above + n_inside <= self.capacity);
        let is_over = fits || is_one && self.word != NO_WORD;
        self.are_equal = (is_over && !fits) as u32;
        self.step = if is_over { Step::Gather } else { Step::Narrow };
        if !is_over && is_one {
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
        self.low() + u64::from(self.are_equal)
    }

    /// The upper word of that key.
    #[inline(always)]
    pub fn least_word(&self) -> u32 {
        upper_word(self.least())
    }
}
