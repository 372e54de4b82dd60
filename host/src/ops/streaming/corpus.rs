//! Documents that pass by, as searches of either half take them.

use std::ops::Range;
use std::sync::Mutex;

use super::on_host::Queries;
use super::options::StreamOptions;
use crate::cuda::{Kept, StreamCall, StreamFound, StreamedRows};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::score::{check_angular, check_normalize};
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::chunks::{Chunk, chunks};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::problem::top_k::{BestKeys, K_MAX, RankedRows};
use crate::residual::streamed::StreamedResiduals;
use crate::runtime::on::On;
use crate::runtime::swap::{into_inner, lock};
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::may_be_long;
use crate::tokens::streamed::staged::{Staged, StagedRows};
use crate::tokens::streamed::{Streamed, items_of};

/// Bytes of a buffer on a device: two milliseconds of a fast link, beside which the calls of a
/// chunk take no time.
pub(super) const DEVICE_BUFFER_BYTES: u64 = 128 << 20;

/// Bytes of a buffer on the CPU, whose calls cost little, and which should stay in its caches.
pub(super) const CPU_BUFFER_BYTES: u64 = 16 << 20;

/// What is called with each chunk and the queries that it has been scored for, of which the last
/// end it; an error ends the search.
pub(super) type Passed<'a> = &'a (dyn Fn(&Chunk, Range<usize>) -> Result<()> + Sync);

/// Scores queries against documents that were read, and names the kernel.
pub(super) type Score<'a, Q> =
    &'a dyn Fn(TokensRef<'_, Q>, &Pairing, &ScoreOptions) -> Result<(&'static str, Scores)>;

/// What searches documents on a GPU.
type OnCuda<'a> = &'a mut dyn FnMut(&dyn Staged, StreamedRows<'_>) -> Result<StreamFound>;

/// Documents that pass by, of a format that queries of format `Q` meet.
pub(crate) trait Corpus<Q: Format>: Sync {
    /// What rows are stored as.
    const FORMAT: TokenFormat;

    fn layout(&self) -> &TokenLayout;

    fn mask(&self) -> Option<&[u8]>;

    /// Bytes of a row where it is read.
    fn row_bytes(&self) -> usize;

    /// Bytes of a row in a buffer of the CPU engine, and of a GPU.
    fn buffered_bytes(&self) -> [usize; 2];

    /// Reads consecutive documents, and runs scores against them on a device, which gets them from
    /// host memory.
    fn with_part(
        &self,
        device: &Device,
        items: Range<usize>,
        run: &mut dyn FnMut(Score<'_, Q>) -> Result<()>,
    ) -> Result<()>;

    /// Runs a search on a GPU with what it gets of the documents.
    fn on_cuda(&self, options: &ScoreOptions, search: OnCuda<'_>) -> Result<StreamFound>;
}

/// Scores queries against documents on a device, and names the kernel.
fn score<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    queries: TokensRef<'_, Q>,
    documents: TokensRef<'_, D>,
    pairing: &Pairing,
    options: &ScoreOptions,
) -> Result<(&'static str, Scores)> {
    let plan = device.plan(queries, documents, pairing, options)?;
    Ok((plan.name(), device.score_with(queries, documents, pairing, options)?))
}

impl<Q: ScorableWith<D>, D: Format> Corpus<Q> for Streamed<'_, D> {
    const FORMAT: TokenFormat = D::FORMAT;

    fn layout(&self) -> &TokenLayout {
        self.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask
    }

    fn row_bytes(&self) -> usize {
        self.layout.dim() * D::FORMAT.size_bytes()
    }

    fn buffered_bytes(&self) -> [usize; 2] {
        let staged = self.staged(&ScoreOptions::default());
        [<Self as Corpus<Q>>::row_bytes(self), staged.pitch_bytes].map(|x| staged.bytes_per_row(x))
    }

    fn with_part(
        &self,
        device: &Device,
        items: Range<usize>,
        run: &mut dyn FnMut(Score<'_, Q>) -> Result<()>,
    ) -> Result<()> {
        let mut memory = Vec::new();
        let part = self.part(items, &mut memory)?;
        run(&|queries, pairing, options| {
            score(device, queries, TokensRef::Host(&part), pairing, options)
        })
    }

    fn on_cuda(&self, options: &ScoreOptions, search: OnCuda<'_>) -> Result<StreamFound> {
        let staged = self.staged(options);
        let is_together = staged.pitch_bytes == self.layout.dim() * D::FORMAT.size_bytes();
        let rows = self.in_memory.filter(|_| is_together && !staged.rescales);
        search(&staged, StreamedRows::Stored(D::FORMAT, rows.map(bytemuck::cast_slice)))
    }
}

impl<D: Format> Streamed<'_, D> {
    /// The documents as threads write them for a device.
    fn staged(&self, options: &ScoreOptions) -> StagedRows<'_, D> {
        let access = Access::uploaded(self.layout.dim(), D::FORMAT);
        let rescales = options.normalize && may_be_long(D::FORMAT);
        StagedRows { documents: self, pitch_bytes: access.pitch_bytes as usize, rescales }
    }
}

impl<T: Element> Corpus<T> for StreamedResiduals<'_> {
    const FORMAT: TokenFormat = TokenFormat::Residual(T::TYPE);

    fn layout(&self) -> &TokenLayout {
        Staged::layout(self)
    }

    fn mask(&self) -> Option<&[u8]> {
        Staged::mask(self)
    }

    fn row_bytes(&self) -> usize {
        size_of::<i32>() + self.stored_bytes()
    }

    fn buffered_bytes(&self) -> [usize; 2] {
        [self.stored_bytes(), self.pitch_bytes()].map(|bytes| self.bytes_per_row(bytes))
    }

    fn with_part(
        &self,
        device: &Device,
        items: Range<usize>,
        run: &mut dyn FnMut(Score<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let part = device.upload_residual::<T>(&self.part(items)?)?;
        run(&|queries, pairing, options| {
            score(device, queries, TokensRef::Device(&part), pairing, options)
        })
    }

    fn on_cuda(&self, _: &ScoreOptions, search: OnCuda<'_>) -> Result<StreamFound> {
        search(self, StreamedRows::Residual(T::TYPE, self.codec(), self.in_memory()))
    }
}

impl Device {
    /// The chunks that a search scores one after the other.
    pub(super) fn chunks_of<Q: Format, C: Corpus<Q>>(
        &self,
        queries: &TokenLayout,
        documents: &C,
        options: &StreamOptions,
    ) -> Vec<Chunk> {
        let [on_cpu, on_cuda] = documents.buffered_bytes();
        let (buffer_bytes, bytes_per_row) = match self.ordinal() {
            None => (CPU_BUFFER_BYTES, on_cpu),
            Some(_) => (DEVICE_BUFFER_BYTES, on_cuda),
        };
        let buffer_bytes = options.buffer_bytes.unwrap_or(buffer_bytes);
        chunks(documents.layout(), bytes_per_row, queries.n_items(), buffer_bytes)
    }

    /// What can be refused of a search before its documents are read.
    pub(super) fn check_search<Q: Format, C: Corpus<Q>>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: &C,
        options: &ScoreOptions,
    ) -> Result<()> {
        queries.check_device("queries", self)?;
        check_normalize(options, [Q::FORMAT, C::FORMAT])?;
        check_angular(options, documents.layout())?;
        // Even where there are no documents to be scored.
        let (cross, (_, none)) = (Pairing::cross(), documents.layout().items(0..0)?);
        let _ = Problem::new(queries.layout(), &none, &cross)?;
        if self.ordinal().is_none() {
            let _ = Plan::cpu(options)?;
        }
        Ok(())
    }

    /// Searches some consecutive chunks.
    pub(super) fn search_chunks<Q: Format, C: Corpus<Q>>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: &C,
        chunks: &[Chunk],
        kept: Kept<'_>,
        options: &StreamOptions,
        passed: Passed<'_>,
    ) -> Result<StreamFound> {
        let score = options.score_alone();
        self.check_search(queries, documents, &score)?;
        let device = match (&self.0, kept) {
            (On::Cpu(()), _) => {
                return search_host(self, queries, documents, chunks, kept, (&score, passed));
            }
            (On::Cuda(_), Kept::Best(k)) if k > K_MAX => {
                return self.select_on_host(queries, documents, chunks, k, options, passed);
            }
            (On::Cuda(device), _) => device,
        };
        let (mut own_queries, n_queries) = (None, queries.layout().n_items());
        let handle = queries.cuda_tokens(self, &mut own_queries)?;
        documents.on_cuda(&score, &mut |documents, rows| {
            device.search_stream(&StreamCall {
                queries: handle,
                query_layout: queries.layout(),
                query_format: Q::FORMAT,
                documents,
                rows,
                chunks,
                kept,
                options: &score,
                n_threads: options.n_threads(),
                passed: &|chunk| passed(chunk, 0..n_queries),
            })
        })
    }

    /// As [`Device::search_chunks`], of more documents than a device selects: the scores of each
    /// chunk are read.
    fn select_on_host<Q: Format, C: Corpus<Q>>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: &C,
        chunks: &[Chunk],
        k: usize,
        options: &StreamOptions,
        passed: Passed<'_>,
    ) -> Result<StreamFound> {
        let best = Mutex::new(BestKeys::new(queries.layout().n_items(), k)?);
        let select = |chunk: &Chunk, scores: &[f32]| {
            select(&mut lock(&best), queries.layout(), documents, chunk, scores)
        };
        let kept = Kept::Scores(&select);
        let found = self.search_chunks(queries, documents, chunks, kept, options, passed)?;
        Ok(StreamFound { best: into_inner(best), ..found })
    }
}

/// Scores one chunk after the other on the CPU, and keeps of the scores what is asked for.
fn search_host<Q: Format, C: Corpus<Q>>(
    device: &Device,
    queries: TokensRef<'_, Q>,
    documents: &C,
    chunks: &[Chunk],
    kept: Kept<'_>,
    (options, passed): (&ScoreOptions, Passed<'_>),
) -> Result<StreamFound> {
    let layout = queries.layout();
    let mut best = BestKeys::new(layout.n_items(), kept.k())?;
    let queries = Queries::new(device, queries, documents.layout())?;
    for chunk in chunks {
        let scores = queries.scores(documents, chunk, options, passed)?;
        match kept {
            Kept::Best(_) => select(&mut best, layout, documents, chunk, &scores)?,
            Kept::Scores(take) => take(chunk, &scores)?,
        }
    }
    let kernels = if chunks.is_empty() { vec![] } else { vec!["cpu"] };
    Ok(StreamFound { best, kernels })
}

/// Takes the scores of a chunk into account.
fn select<Q: Format, C: Corpus<Q>>(
    best: &mut BestKeys,
    queries: &TokenLayout,
    documents: &C,
    chunk: &Chunk,
    scores: &[f32],
) -> Result<()> {
    let (_, part) = items_of(documents.layout(), documents.mask(), chunk.items.clone())?;
    let cross = Pairing::cross();
    let rows = RankedRows::new(&Problem::new(queries, &part, &cross)?)?;
    // Ids are below 2³¹, as items are.
    best.select(&rows, scores, chunk.items.start as u32, true)
}
