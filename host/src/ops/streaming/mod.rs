//! Searches over documents that pass by, of which any number fits.

mod host;
pub(crate) mod options;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use self::host::HostCall;
use self::options::{StreamFound, StreamOptions, StreamProgress};
use crate::cpu;
use crate::cuda::{self, StreamCall};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::devices::on_each;
use crate::ops::score::check_normalize;
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::chunks::{Chunk, chunks, shares};
use crate::problem::pairing::Pairing;
use crate::problem::top_k::{BestKeys, check_k};
use crate::runtime::interrupt::Interrupt;
use crate::runtime::on::On;
use crate::runtime::swap::lock;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::{Source, Streamed};

/// Bytes of a buffer on a device: two milliseconds of a fast link, beside which the calls of a
/// chunk take no time.
const DEVICE_BUFFER_BYTES: u64 = 128 << 20;

/// Bytes of a buffer on the CPU, whose calls cost little, and which should stay in its caches.
const CPU_BUFFER_BYTES: u64 = 16 << 20;

impl Device {
    /// The best `k` documents of each query among documents that pass by, from memory, a file or a
    /// program: as many as there are, since no more than three buffers of them are on a device at
    /// once. Many queries take one pass, and on a GPU hardly longer than one.
    ///
    /// The ranking is that of [`Device::top_k`]. Documents are scored in chunks that depend on
    /// [`StreamOptions::buffer_bytes`](field@StreamOptions::buffer_bytes) alone: so do, on a GPU,
    /// the kernels that are chosen and the last bits of scores that products of another order
    /// change. The CPU engine's scores are those of any other call of it.
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
    /// [`Error::TooLarge`] for a `k` above 4096 on a GPU. Those of [`Device::score_with`]. After
    /// each of them the next call works.
    pub fn search_stream<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        k: usize,
        options: &StreamOptions,
    ) -> Result<StreamFound> {
        search_on(std::slice::from_ref(self), queries.into(), source, k, options)
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
        let queries = queries.into();
        let documents = Streamed::new(source)?;
        let score = options.score.clone().winners(false).token_scores(false);
        let interrupt = Interrupt::current();
        let mut memory = Vec::new();
        for chunk in self.chunks_of(queries.layout(), &documents, options) {
            interrupt.check()?;
            let part = documents.part(chunk.items.clone(), &mut memory)?;
            let scores = self.score_with(queries, &part, &Pairing::cross(), &score)?;
            let rows = scores.values().chunks_exact(chunk.items.len()).enumerate();
            // By document, then by query.
            let nan = rows.filter_map(|(query, scores)| {
                Some([scores.iter().position(|score| score.is_nan())?, query])
            });
            if let Some([document, query]) = nan.min() {
                return Ok(Some([query, chunk.items.start + document]));
            }
        }
        Ok(None)
    }

    /// The chunks that a search scores one after the other.
    fn chunks_of<D: Format>(
        &self,
        queries: &TokenLayout,
        documents: &Streamed<'_, D>,
        options: &StreamOptions,
    ) -> Vec<Chunk> {
        let (layout, n_queries) = (documents.layout, queries.n_items());
        let (buffer_bytes, pitch_bytes) = match self.ordinal() {
            None => (CPU_BUFFER_BYTES, layout.dim() * D::FORMAT.size_bytes()),
            Some(_) => {
                let access = Access::uploaded(layout.dim(), D::FORMAT);
                (DEVICE_BUFFER_BYTES, access.pitch_bytes as usize)
            }
        };
        let buffer_bytes = options.buffer_bytes.unwrap_or(buffer_bytes);
        chunks(layout, documents.bytes_per_row(pitch_bytes), n_queries, buffer_bytes)
    }

    /// Searches some consecutive chunks.
    fn search_chunks<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: &Streamed<'_, D>,
        chunks: &[Chunk],
        k: usize,
        options: &StreamOptions,
        passed: &(dyn Fn(&Chunk) -> Result<()> + Sync),
    ) -> Result<cuda::StreamFound> {
        let score = options.score.clone().winners(false).token_scores(false);
        let query_layout = queries.layout();
        queries.check_device("queries", self)?;
        check_normalize(&score, [Q::FORMAT, D::FORMAT])?;
        // Even where there are no documents to be scored.
        let (cross, (_, none)) = (Pairing::cross(), documents.items(0..0)?);
        let _ = Problem::new(query_layout, &none, &cross)?;
        match &self.0 {
            On::Cpu(()) => {
                let _ = Plan::cpu(&score, cpu::n_threads())?;
                let queries = queries.host_matrix()?;
                let options = &score;
                HostCall { queries, query_layout, documents, chunks, k, options, passed }.run()
            }
            On::Cuda(device) => {
                check_k(k)?;
                let mut own_queries = None;
                let queries = queries.cuda_tokens(self, &mut own_queries)?;
                device.search_stream(&StreamCall {
                    queries,
                    query_layout,
                    query_format: Q::FORMAT,
                    documents,
                    chunks,
                    k,
                    options: &score,
                    n_threads: options.n_threads(),
                    passed,
                })
            }
        }
    }
}

/// Searches on devices of one kind, at least one: each takes some consecutive chunks.
pub(crate) fn search_on<Q: ScorableWith<D>, D: Format>(
    devices: &[Device],
    queries: TokensRef<'_, Q>,
    source: &dyn Source<D>,
    k: usize,
    options: &StreamOptions,
) -> Result<StreamFound> {
    let documents = Streamed::new(source)?;
    // More than there are cannot be selected.
    let k = k.min(documents.layout.n_items());
    let chunks = devices[0].chunks_of(queries.layout(), &documents, options);
    let progress = Mutex::new(StreamProgress {
        documents: 0,
        n_documents: documents.layout.n_items() as u64,
        bytes: 0,
    });
    let row_bytes = (documents.layout.dim() * D::FORMAT.size_bytes()) as u64;
    let (interrupt, has_failed) = (Interrupt::current(), AtomicBool::new(false));
    let passed = |chunk: &Chunk| {
        let mut progress = lock(&progress);
        progress.documents += chunk.items.len() as u64;
        progress.bytes += chunk.rows.len() as u64 * row_bytes;
        options.report(&progress);
        interrupt.check()?;
        match has_failed.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    };
    interrupt.check()?;
    let shares = shares(chunks.iter().map(|chunk| chunk.rows.len()), devices.len());
    let found = on_each(devices, &shares, |device, share| {
        let chunks = &chunks[share];
        let found = interrupt
            .heeded_by(|| device.search_chunks(queries, &documents, chunks, k, options, &passed));
        has_failed.fetch_or(found.is_err(), Ordering::Relaxed);
        found
    })?;
    let mut best = BestKeys::new(queries.layout().n_items(), k)?;
    let mut kernels = Vec::new();
    for found in found {
        best.merge(&found.best)?;
        let new = found.kernels.into_iter().filter(|kernel| !kernels.contains(kernel));
        kernels.extend(new.collect::<Vec<_>>());
    }
    Ok(StreamFound {
        rankings: best.rankings(),
        kernels,
        n_chunks: chunks.len(),
        bytes: lock(&progress).bytes,
    })
}
