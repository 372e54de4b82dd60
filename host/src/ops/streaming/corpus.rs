//! Documents that pass by, as searches of either half take them.

use super::options::StreamOptions;
use crate::cpu;
use crate::cuda::{StreamCall, StreamFound, StreamedRows};
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
use crate::problem::top_k::{BestKeys, RankedRows, check_k};
use crate::residual::streamed::StreamedResiduals;
use crate::runtime::on::On;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, Residual, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::may_be_long;
use crate::tokens::streamed::Streamed;
use crate::tokens::streamed::staged::{Staged, StagedRows};

/// Bytes of a buffer on a device: two milliseconds of a fast link, beside which the calls of a
/// chunk take no time.
pub(super) const DEVICE_BUFFER_BYTES: u64 = 128 << 20;

/// Bytes of a buffer on the CPU, whose calls cost little, and which should stay in its caches.
const CPU_BUFFER_BYTES: u64 = 16 << 20;

/// What is called with each chunk that is done; an error ends the search.
pub(super) type Passed<'a> = &'a (dyn Fn(&Chunk) -> Result<()> + Sync);

/// What searches documents on a GPU.
type OnCuda<'a> = &'a mut dyn FnMut(&dyn Staged, StreamedRows<'_>) -> Result<StreamFound>;

/// Documents that pass by, of a format that queries of format `Q` meet.
pub(crate) trait Corpus<Q: Format>: Sync {
    /// What rows are stored as.
    const FORMAT: TokenFormat;

    fn layout(&self) -> &TokenLayout;

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
fn score_on_cpu<Q: Format, D: Format>(
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

    /// Searches some consecutive chunks.
    pub(super) fn search_chunks<Q: Format, C: Corpus<Q>>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: &C,
        chunks: &[Chunk],
        k: usize,
        options: &StreamOptions,
        passed: Passed<'_>,
    ) -> Result<StreamFound> {
        let score = options.score.clone().winners(false).token_scores(false);
        queries.check_device("queries", self)?;
        check_normalize(&score, [Q::FORMAT, C::FORMAT])?;
        // Even where there are no documents to be scored.
        let (cross, (_, none)) = (Pairing::cross(), documents.layout().items(0..0)?);
        let _ = Problem::new(queries.layout(), &none, &cross)?;
        match &self.0 {
            On::Cpu(()) => {
                let _ = Plan::cpu(&score, cpu::n_threads())?;
                search_host(queries, documents, chunks, k, &score, passed)
            }
            On::Cuda(device) => {
                check_k(k)?;
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
                        k,
                        options: &score,
                        n_threads: options.n_threads(),
                        passed,
                    })
                })
            }
        }
    }
}

/// Scores one chunk after the other on the CPU, and keeps the best of each query.
fn search_host<Q: Format, C: Corpus<Q>>(
    queries: TokensRef<'_, Q>,
    documents: &C,
    chunks: &[Chunk],
    k: usize,
    options: &ScoreOptions,
    passed: Passed<'_>,
) -> Result<StreamFound> {
    let mut best = BestKeys::new(queries.layout().n_items(), k)?;
    for chunk in chunks {
        let (rows, scores) = documents.score_part(queries, chunk, options)?;
        // Ids are below 2³¹, as items are.
        best.select(&rows, scores.values(), chunk.items.start as u32, true)?;
        passed(chunk)?;
    }
    let kernels = if chunks.is_empty() { vec![] } else { vec!["cpu"] };
    Ok(StreamFound { best, kernels })
}
