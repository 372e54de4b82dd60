//! Documents that pass by, as searches of either half take them.

use std::sync::Mutex;

use super::options::StreamOptions;
use crate::cpu;
use crate::cuda::{Kept, StreamCall, StreamFound, StreamedRows};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::score::check_normalize;
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
use crate::tokens::format::{Format, Residual, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::may_be_long;
use crate::tokens::streamed::staged::{Staged, StagedRows};
use crate::tokens::streamed::{Streamed, items_of};

/// Bytes of a buffer on a device: two milliseconds of a fast link, beside which the calls of a
/// chunk take no time.
pub(super) const DEVICE_BUFFER_BYTES: u64 = 128 << 20;

/// Bytes of a buffer on the CPU, whose calls cost little, and which should stay in its caches.
pub(super) const CPU_BUFFER_BYTES: u64 = 16 << 20;

/// What is called with each chunk that is done; an error ends the search.
pub(super) type Passed<'a> = &'a (dyn Fn(&Chunk) -> Result<()> + Sync);

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

    /// Scores consecutive documents on the CPU, and says how they are ranked.
    fn score_part(
        &self,
        queries: TokensRef<'_, Q>,
        chunk: &Chunk,
        options: &ScoreOptions,
    ) -> Result<(RankedRows, Scores)>;

    /// Runs a search on a GPU with what it gets of the documents.
    fn on_cuda(&self, options: &ScoreOptions, search: OnCuda<'_>) -> Result<StreamFound>;
}

/// Scores host tokens on the CPU.
pub(super) fn score_on_cpu<Q: Format, D: Format>(
    queries: TokensRef<'_, Q>,
    documents: TokensRef<'_, D>,
    options: &ScoreOptions,
) -> Result<(RankedRows, Scores)> {
    let cross = Pairing::cross();
    let problem = Problem::new(queries.layout(), documents.layout(), &cross)?;
    let (queries, documents) = (queries.host_matrix()?, documents.host_matrix()?);
    let scores = cpu::score(&problem, queries, documents, options)?;
    Ok((RankedRows::new(&problem)?, scores))
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

    fn score_part(
        &self,
        queries: TokensRef<'_, Q>,
        chunk: &Chunk,
        options: &ScoreOptions,
    ) -> Result<(RankedRows, Scores)> {
        let mut memory = Vec::new();
        let part = self.part(chunk.items.clone(), &mut memory)?;
        score_on_cpu(queries, TokensRef::Host(&part), options)
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

    fn score_part(
        &self,
        queries: TokensRef<'_, T>,
        chunk: &Chunk,
        options: &ScoreOptions,
    ) -> Result<(RankedRows, Scores)> {
        let part = Device::cpu().upload_residual::<T>(&self.part(chunk.items.clone())?)?;
        score_on_cpu(queries, TokensRef::<Residual<T>>::Device(&part), options)
    }

    fn on_cuda(&self, _: &ScoreOptions, search: OnCuda<'_>) -> Result<StreamFound> {
        search(self, StreamedRows::Residual(T::TYPE, self.codec()))
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
        // Even where there are no documents to be scored.
        let (cross, (_, none)) = (Pairing::cross(), documents.layout().items(0..0)?);
        let _ = Problem::new(queries.layout(), &none, &cross)?;
        if self.ordinal().is_none() {
            let _ = Plan::cpu(options, cpu::n_threads())?;
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
                return search_host(queries, documents, chunks, kept, &score, passed);
            }
            (On::Cuda(_), Kept::Best(k)) if k > K_MAX => {
                return self.select_on_host(queries, documents, chunks, k, options, passed);
            }
            (On::Cuda(device), _) => device,
        };
        let mut own_queries = None;
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
                passed,
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
            let (_, part) = items_of(documents.layout(), documents.mask(), chunk.items.clone())?;
            let cross = Pairing::cross();
            let rows = RankedRows::new(&Problem::new(queries.layout(), &part, &cross)?)?;
            // Ids are below 2³¹, as items are.
            lock(&best).select(&rows, scores, chunk.items.start as u32, true)
        };
        let kept = Kept::Scores(&select);
        let found = self.search_chunks(queries, documents, chunks, kept, options, passed)?;
        Ok(StreamFound { best: into_inner(best), ..found })
    }
}

/// Scores one chunk after the other on the CPU, and keeps of the scores what is asked for.
fn search_host<Q: Format, C: Corpus<Q>>(
    queries: TokensRef<'_, Q>,
    documents: &C,
    chunks: &[Chunk],
    kept: Kept<'_>,
    options: &ScoreOptions,
    passed: Passed<'_>,
) -> Result<StreamFound> {
    let mut best = BestKeys::new(queries.layout().n_items(), kept.k())?;
    for chunk in chunks {
        let (rows, scores) = documents.score_part(queries, chunk, options)?;
        match kept {
            // Ids are below 2³¹, as items are.
            Kept::Best(_) => {
                best.select(&rows, scores.values(), chunk.items.start as u32, true)?;
            }
            Kept::Scores(take) => take(chunk, scores.values())?,
        }
        passed(chunk)?;
    }
    let kernels = if chunks.is_empty() { vec![] } else { vec!["cpu"] };
    Ok(StreamFound { best, kernels })
}
