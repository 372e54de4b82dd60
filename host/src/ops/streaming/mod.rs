//! Searches over documents that pass by, of which any number fits.

mod candidates;
pub(crate) mod coarse;
pub(crate) mod corpus;
mod on_host;
pub(crate) mod options;
pub(crate) mod scored;
pub(crate) mod scored_pairs;
pub(crate) mod search_source;
mod taking;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use self::corpus::{Corpus, Passed};
use self::options::{StreamFound, StreamOptions, StreamProgress, StreamStage};
use crate::cuda::{self, Kept};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::devices::on_each;
use crate::problem::chunks::{Chunk, shares};
use crate::problem::pairing::Pairing;
use crate::problem::top_k::BestKeys;
use crate::residual::streamed::{ResidualSource, StreamedResiduals};
use crate::runtime::interrupt::{Heeded, Interrupt};
use crate::runtime::swap::{into_inner, lock};
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::{Source, Streamed};

impl Device {
    /// The best `k` documents of each query among documents that pass by, from memory, a file or a
    /// program: as many as there are, since no more than three buffers of them are on a device at
    /// once. Many queries take one pass, and on a GPU hardly longer than one.
    ///
    /// The ranking is that of [`Device::top_k`]. (A GPU selects up to 4096 documents of a query;
    /// for more, the scores of each chunk are read and the host selects.) Documents are scored in
    /// chunks that depend on [`StreamOptions::buffer_bytes`](field@StreamOptions::buffer_bytes)
    /// alone: so do, on a GPU, the kernels that are chosen and the last bits of scores that
    /// products of another order change. The CPU engine's scores are those of any other call of it.
    ///
    /// ```
    /// use maxsim::streaming::{StreamFound, StreamOptions};
    /// use maxsim::{Device, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    /// let options = StreamOptions::default();
    /// let found: StreamFound = Device::best().search_stream(&queries, &documents, 1, &options)?;
    /// assert_eq!((found.rankings[0].ranked[0].id, found.rankings[0].ranked[0].score), (1, 8.0));
    /// assert_eq!((found.n_chunks, found.bytes), (1, 24));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Source`] where the source fails, with its error. [`Error::Interrupted`] where an
    /// [`Interrupt`] that this call heeds is raised, on any device.
    /// Those of [`Device::score_with`]. After each of them the next call works.
    pub fn search_stream<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        k: usize,
        options: &StreamOptions,
    ) -> Result<StreamFound> {
        let documents = Streamed::new(source)?;
        search_on(std::slice::from_ref(self), queries.into(), &documents, k, options)
    }

    /// As [`Device::search_stream`], of residual-compressed documents, which are scored as those of
    /// [`Device::upload_residual`] are: `T` is f16 or bf16 on a GPU. A GPU reads
    /// [`ArrangedTokens`](crate::residual::ArrangedTokens) several times as fast as others, whose
    /// buckets threads have to arrange, and fastest from page-locked memory
    /// ([`Device::page_locked_residual`]).
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::half::f16;
    /// use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualSource, ResidualTokens};
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Result, TokenLayout, Tokens};
    ///
    /// /// The best document of a query, from wherever the corpus is.
    /// fn best(query: &Tokens<'_, f16>, corpus: &impl ResidualSource) -> Result<u32> {
    ///     assert!(!corpus.is_arranged() && corpus.order() == BitOrder::LittleEndian);
    ///     let options = StreamOptions::default();
    ///     let found = Device::best().search_residual_stream(query, corpus, 1, &options)?;
    ///     Ok(found.rankings[0].ranked[0].id)
    /// }
    ///
    /// // Two centroids of dim 2, buckets of 1 bit that add ±0.25; three documents of one token.
    /// let centroids = Centroids::F32(vec![1.0, 0.0, 0.0, 1.0].into());
    /// let codec = Arc::new(ResidualCodec::new(1, 2, centroids, &[-0.25, 0.25], false)?);
    /// let (codes, buckets) = (vec![0i32, 1, 0], vec![0b00u8, 0b11, 0b01]);
    /// let layout = TokenLayout::padded(3, 1, 2)?;
    /// let order = BitOrder::LittleEndian;
    /// let corpus = ResidualTokens::new(codec, codes, buckets, order, layout)?;
    /// let query = [f16::ONE, f16::ZERO];
    /// assert_eq!(best(&Tokens::padded(&query, 1, 1, 2)?, &corpus)?, 2);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_stream`] and of [`Device::upload_residual`]. [`Error::Id`] for a
    /// code of no centroid. [`Error::Unsupported`] for arranged documents on the CPU.
    pub fn search_residual_stream<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl ResidualSource,
        k: usize,
        options: &StreamOptions,
    ) -> Result<StreamFound> {
        let documents = StreamedResiduals::new(source)?;
        search_on(std::slice::from_ref(self), queries.into(), &documents, k, options)
    }

    /// The first document with a score that is NaN, and the first query that gives it:
    /// `[query, document]`. A search [counts](field@crate::Ranking::n_nan) such scores and does not
    /// keep where they were. Reads the documents again up to that one, more slowly than a search.
    ///
    /// ```
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Tokens};
    ///
    /// let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
    /// let documents = Tokens::padded(&[1.0f32, f32::NAN, 2.0, f32::NAN], 4, 1, 1)?;
    /// let (device, options) = (Device::best(), StreamOptions::default());
    /// let found = device.search_stream(&query, &documents, 2, &options)?;
    /// assert_eq!(found.rankings[0].n_nan, 2);
    /// assert_eq!(device.first_nan(&query, &documents, &options)?, Some([0, 1]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_stream`].
    pub fn first_nan<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        options: &StreamOptions,
    ) -> Result<Option<[usize; 2]>> {
        first_nan_in(self, queries.into(), &Streamed::new(source)?, options)
    }

    /// As [`Device::first_nan`], of residual-compressed documents, as
    /// [`Device::search_residual_stream`] has them.
    ///
    /// ```
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Result, Tokens};
    ///
    /// /// Refuses a corpus whose scores are not all numbers.
    /// fn check(queries: &Tokens<'_, f32>, corpus: &ResidualTokens<'_>) -> Result<()> {
    ///     let (device, options) = (Device::cpu(), StreamOptions::default());
    ///     match device.first_residual_nan(queries, corpus, &options)? {
    ///         None => Ok(()),
    ///         Some([query, document]) => panic!("query {query}, document {document}"),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_residual_stream`]; [`Error::Unsupported`] for arranged documents.
    pub fn first_residual_nan<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl ResidualSource,
        options: &StreamOptions,
    ) -> Result<Option<[usize; 2]>> {
        first_nan_in(self, queries.into(), &StreamedResiduals::new(source)?, options)
    }
}

/// The first document with a score that is NaN, behind the first query that gives it.
fn first_nan_in<Q: Format, C: Corpus<Q>>(
    device: &Device,
    queries: TokensRef<'_, Q>,
    documents: &C,
    options: &StreamOptions,
) -> Result<Option<[usize; 2]>> {
    let alone = options.score_alone();
    let interrupt = Interrupt::current();
    for chunk in device.chunks_of(queries.layout(), documents, options) {
        interrupt.check()?;
        let mut first = None;
        documents.with_part(device, chunk.items.clone(), &mut |score| {
            let (_, scores) = score(queries, &Pairing::cross(), &alone)?;
            let rows = scores.values().chunks_exact(chunk.items.len()).enumerate();
            // By document, then by query.
            let nan = rows.filter_map(|(query, scores)| {
                Some([scores.iter().position(|score| score.is_nan())?, query])
            });
            first = nan.min();
            Ok(())
        })?;
        if let Some([document, query]) = first {
            return Ok(Some([query, chunk.items.start + document]));
        }
    }
    Ok(None)
}

/// Searches on devices of one kind, at least one: each takes some consecutive chunks.
pub(crate) fn search_on<Q: Format, C: Corpus<Q>>(
    devices: &[Device],
    queries: TokensRef<'_, Q>,
    documents: &C,
    k: usize,
    options: &StreamOptions,
) -> Result<StreamFound> {
    // More than there are cannot be selected.
    let k = k.min(documents.layout().n_items());
    let passage = Passage::new(devices, options);
    let found = passage.scan::<Q, C>(queries.layout(), documents, |device, chunks, passed| {
        device.search_chunks(queries, documents, chunks, Kept::Best(k), options, passed)
    })?;
    let best = merged(found, queries.layout().n_items(), k)?;
    let (kernels, n_chunks, bytes) = passage.into_parts();
    Ok(StreamFound { rankings: best.rankings(), kernels, n_chunks, bytes })
}

/// What shares of a search have found together.
fn merged(
    found: impl IntoIterator<Item = cuda::StreamFound>,
    n_queries: usize,
    k: usize,
) -> Result<BestKeys> {
    let mut best = BestKeys::new(n_queries, k)?;
    found.into_iter().try_for_each(|found| best.merge(&found.best))?;
    Ok(best)
}

/// Documents that pass by several devices of one kind: what the threads of these share.
pub(super) struct Passage<'a> {
    devices: &'a [Device],
    options: &'a StreamOptions,
    interrupt: Heeded,
    /// Whether one of the devices has failed, so that the others may end.
    has_failed: AtomicBool,
    progress: Mutex<StreamProgress>,
    /// The kernels that ran, in the order of their first use.
    kernels: Mutex<Vec<&'static str>>,
    n_chunks: AtomicUsize,
}

impl<'a> Passage<'a> {
    pub fn new(devices: &'a [Device], options: &'a StreamOptions) -> Passage<'a> {
        Passage {
            devices,
            options,
            interrupt: Interrupt::current(),
            has_failed: AtomicBool::new(false),
            progress: Mutex::default(),
            kernels: Mutex::default(),
            n_chunks: AtomicUsize::new(0),
        }
    }

    /// Has each device run a part of a call. The others end where one fails.
    pub fn on_each<P: Clone + Send + Sync, R: Send>(
        &self,
        parts: &[P],
        run: impl Fn(&Device, P) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        self.interrupt.check()?;
        on_each(self.devices, parts, |device, part| {
            let done = self.interrupt.heeded_by(|| run(device, part));
            self.has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
            done
        })
    }

    /// An error where the call is to end.
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()?;
        match self.has_failed.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Begins a stage that has so many documents.
    pub fn begin(&self, stage: StreamStage, n_documents: u64) {
        let mut progress = lock(&self.progress);
        let bytes = progress.bytes;
        *progress = StreamProgress { stage, n_documents, bytes, ..StreamProgress::default() };
    }

    /// Counts and reports pairs that were scored, documents that no more queries meet, and the
    /// bytes of their rows.
    pub fn count(&self, pairs: usize, documents: usize, bytes: u64) -> Result<()> {
        let mut progress = lock(&self.progress);
        progress.pairs += pairs as u64;
        progress.documents += documents as u64;
        progress.bytes += bytes;
        self.options.report(&progress);
        self.check()
    }

    /// Notes calls of some kernels.
    pub fn note(&self, ran: &[&'static str], n_chunks: usize) {
        let mut kernels = lock(&self.kernels);
        for kernel in ran {
            if !kernels.contains(kernel) {
                kernels.push(kernel);
            }
        }
        self.n_chunks.fetch_add(n_chunks, Ordering::Relaxed);
    }

    /// Has each device search some consecutive chunks of all documents.
    pub fn scan<Q: Format, C: Corpus<Q>>(
        &self,
        queries: &TokenLayout,
        documents: &C,
        search: impl Fn(&Device, &[Chunk], Passed<'_>) -> Result<cuda::StreamFound> + Sync,
    ) -> Result<Vec<cuda::StreamFound>> {
        let chunks = self.devices[0].chunks_of::<Q, C>(queries, documents, self.options);
        self.begin(StreamStage::Scan, documents.layout().n_items() as u64);
        let (row_bytes, n_queries) = (documents.row_bytes() as u64, queries.n_items());
        let passed = |chunk: &Chunk, queries: Range<usize>| {
            let (n, bytes) = (chunk.items.len(), chunk.rows.len() as u64 * row_bytes);
            match queries.end == n_queries {
                true => self.count(queries.len() * n, n, bytes),
                false => self.count(queries.len() * n, 0, 0),
            }
        };
        let shares = shares(chunks.iter().map(|chunk| chunk.rows.len()), self.devices.len());
        let found =
            self.on_each(&shares, |device, share| search(device, &chunks[share], &passed))?;
        found.iter().for_each(|found| self.note(&found.kernels, 0));
        self.note(&[], chunks.len());
        Ok(found)
    }

    /// The kernels that ran, the number of their calls, and the bytes that were read.
    pub fn into_parts(self) -> (Vec<&'static str>, usize, u64) {
        let bytes = lock(&self.progress).bytes;
        (into_inner(self.kernels), self.n_chunks.into_inner(), bytes)
    }
}
