//! The search of the CPU engine.

use crate::cpu;
use crate::cpu::tokens::Matrix;
use crate::cuda::StreamFound;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::chunks::Chunk;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::top_k::{BestKeys, RankedRows};
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::Streamed;

/// Arguments of a search on the CPU.
pub(super) struct HostCall<'a, Q: Format, D: Format> {
    pub queries: Matrix<'a, Q>,
    pub query_layout: &'a TokenLayout,
    pub documents: &'a Streamed<'a, D>,
    pub chunks: &'a [Chunk],
    pub k: usize,
    pub options: &'a ScoreOptions,
    pub passed: &'a (dyn Fn(&Chunk) -> Result<()> + Sync),
}

impl<Q: Format, D: Format> HostCall<'_, Q, D> {
    /// Scores one chunk after the other and keeps the best of each query.
    pub fn run(&self) -> Result<StreamFound> {
        let mut best = BestKeys::new(self.query_layout.n_items(), self.k)?;
        let mut memory = Vec::new();
        for chunk in self.chunks {
            self.run_chunk(chunk, &mut memory, &mut best)?;
            (self.passed)(chunk)?;
        }
        let kernels = if self.chunks.is_empty() { vec![] } else { vec!["cpu"] };
        Ok(StreamFound { best, kernels })
    }

    fn run_chunk(
        &self,
        chunk: &Chunk,
        memory: &mut Vec<D::Stored>,
        best: &mut BestKeys,
    ) -> Result<()> {
        let part = self.documents.part(chunk.items.clone(), memory)?;
        let cross = Pairing::cross();
        let problem = Problem::new(self.query_layout, part.layout(), &cross)?;
        let matrix = TokensRef::Host(&part).host_matrix()?;
        let scores = cpu::score(&problem, self.queries, matrix, self.options)?;
        // Ids are below 2³¹, as items are.
        let first_id = chunk.items.start as u32;
        best.select(&RankedRows::new(&problem)?, scores.values(), first_id, true)
    }
}
