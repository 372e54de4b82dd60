//! Options of a search over documents that pass by, and what it gives.

use std::fmt;
use std::sync::Arc;

use crate::problem::options::ScoreOptions;
use crate::problem::ranking::Ranking;

/// Most threads that read documents, where the caller does not say: more than that fill memory
/// faster than a link empties it.
const THREADS_MAX: usize = 8;

/// Options of [`Device::search_stream`](crate::Device::search_stream).
///
/// ```
/// use maxsim::ScoreOptions;
/// use maxsim::streaming::StreamOptions;
///
/// let options = StreamOptions::default()
///     .score(ScoreOptions::default().normalize(true))
///     .buffer_bytes(64 << 20)
///     .threads(4)
///     .progress(|progress| println!("{} of {}", progress.documents, progress.n_documents));
/// assert_eq!((options.buffer_bytes, options.threads), (Some(64 << 20), Some(4)));
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct StreamOptions {
    /// How documents are scored. What is asked for beside scores is not computed, but by
    /// [`Device::score_candidates`](crate::Device::score_candidates).
    pub score: ScoreOptions,
    /// Bytes of the documents that are scored at a time, one document at least: on a GPU there are
    /// three such buffers. `None`: 128 MiB there, 16 MiB on the CPU.
    pub buffer_bytes: Option<u64>,
    /// Threads that read documents. `None`: up to 8, as many as the machine runs at once. Not used
    /// where the rows are in page-locked memory, nor in any memory on the CPU. For a GPU each fills
    /// two pieces of 4 MiB of page-locked memory, of which the device keeps 64 MiB for the next
    /// search.
    pub threads: Option<usize>,
    progress: Option<Report>,
}

/// What is called after each chunk.
type Report = Arc<dyn Fn(&StreamProgress) + Send + Sync>;

/// How far a search is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamProgress {
    /// What is counted.
    pub stage: StreamStage,
    /// Documents that were scored.
    pub documents: u64,
    /// Documents in all.
    pub n_documents: u64,
    /// Pairs of a query and a document that were scored: on the CPU also those of long documents
    /// that not all queries have met.
    pub pairs: u64,
    /// Bytes of the rows that were read, in all stages so far.
    pub bytes: u64,
}

/// What a search is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamStage {
    /// All documents pass by. Where codes do, and the best of them do not prove what was found,
    /// they do so once more, counted anew.
    #[default]
    Scan,
    /// Documents that codes have found are scored in full precision
    /// ([`Device::search_coarse_stream`](crate::Device::search_coarse_stream)): each is counted for
    /// each query that it is scored for, of those that are known to be scored so far.
    Rescore,
}

/// What a search over documents that pass by has found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct StreamFound {
    /// Per query its best documents.
    pub rankings: Vec<Ranking>,
    /// The kernels that ran, in the order of their first use, or `cpu`.
    pub kernels: Vec<&'static str>,
    /// Chunks that were scored one after the other.
    pub n_chunks: usize,
    /// Bytes of the rows that were read.
    pub bytes: u64,
}

impl fmt::Debug for StreamOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamOptions")
            .field("score", &self.score)
            .field("buffer_bytes", &self.buffer_bytes)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl StreamOptions {
    /// Sets [`StreamOptions::score`](field@StreamOptions::score).
    pub fn score(self, score: ScoreOptions) -> StreamOptions {
        StreamOptions { score, ..self }
    }

    /// Sets [`StreamOptions::buffer_bytes`](field@StreamOptions::buffer_bytes).
    pub fn buffer_bytes(self, buffer_bytes: impl Into<Option<u64>>) -> StreamOptions {
        StreamOptions { buffer_bytes: buffer_bytes.into(), ..self }
    }

    /// Sets [`StreamOptions::threads`](field@StreamOptions::threads).
    pub fn threads(self, threads: impl Into<Option<usize>>) -> StreamOptions {
        StreamOptions { threads: threads.into(), ..self }
    }

    /// Has `report` called after each chunk, or a part of one, on the thread that searches. To end
    /// the search early, raise an [`Interrupt`](crate::Interrupt) that it heeds.
    pub fn progress(
        self,
        report: impl Fn(&StreamProgress) + Send + Sync + 'static,
    ) -> StreamOptions {
        StreamOptions { progress: Some(Arc::new(report)), ..self }
    }

    /// How scores are computed, and nothing beside them.
    pub(super) fn score_alone(&self) -> ScoreOptions {
        self.score.clone().winners(false).token_scores(false)
    }

    /// Calls what is to be called.
    pub(super) fn report(&self, progress: &StreamProgress) {
        if let Some(report) = &self.progress {
            report(progress);
        }
    }

    /// Threads that read documents.
    pub(super) fn n_threads(&self) -> usize {
        let most = || std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        self.threads.unwrap_or_else(most).max(1)
    }
}
