//! Scores one task: packs its query tokens, passes the documents by them, sums the maxima.

use maxsim_kernels::abi::angular::angular;
use pulp::Arch;

use super::BLOCK_LEN;
use super::maxima::Maxima;
use super::panels::{Packing, Panel, QueryToken};
use super::row_scales::RowScales;
use super::scratch::{Scratch, TileScratch};
use super::tasks::Task;
use super::tiles::{Span, for_each_tile, tile_rows};
use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::{PANEL_LEN, Sides, TILE_LEN, products};
use crate::linalg::kernels::Kernel;
use crate::problem::Problem;
use crate::runtime::alloc::{fill, fill_lines, reserve};
use crate::tokens::format::{Format, TokenFormat};

/// Inputs that all tasks of a call share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a, Q: Format, D: Format> {
    pub problem: &'a Problem<'a>,
    pub queries: Matrix<'a, Q>,
    pub documents: Matrix<'a, D>,
    pub row_scales: RowScales<'a>,
    /// What multiplies rows of these formats.
    pub kernel: &'static Kernel,
    /// The CPU's instructions, for loops that a compiler vectorises.
    pub arch: Arch,
    /// Whether maxima are cosines, of which [`angular`] is added.
    pub angular: bool,
}

impl<Q: Format, D: Format> Call<'_, Q, D> {
    /// Computes all outputs of a task.
    pub fn run(&self, mut task: Task<'_>, scratch: &mut Scratch) -> Result<()> {
        fill(&mut scratch.sums, task.queries.len() * task.documents.len(), 0.0)?;
        let ids: Vec<usize> = task.queries.iter().map(|query| query.id).collect();
        let mut tokens = ids.iter().enumerate().flat_map(|(i, &id)| self.valid_tokens(i, id));
        while self.pack_block(&mut tokens, scratch)? {
            self.run_block(&mut task, scratch)?;
        }
        let mut sums = scratch.sums.iter();
        for query in &mut task.queries {
            for (score, &sum) in query.outputs.scores.iter_mut().zip(&mut sums) {
                *score = sum as f32;
            }
        }
        Ok(())
    }

    /// The valid tokens of query `id`, which is number `query` of its task.
    pub fn valid_tokens(&self, query: usize, id: usize) -> impl Iterator<Item = QueryToken> {
        let mask = self.queries.mask;
        let rows = self.problem.queries().item_rows(id).enumerate();
        rows.filter(move |(_, row)| mask.is_none_or(|mask| mask[*row] != 0))
            .map(move |(token, row)| QueryToken { query, token, row })
    }

    /// Packs the next query tokens that pass over the documents together, if there are any.
    pub fn pack_block(
        &self,
        tokens: &mut impl Iterator<Item = QueryToken>,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        scratch.n_panels = 0;
        while scratch.n_panels < BLOCK_LEN / PANEL_LEN {
            if scratch.panels.len() == scratch.n_panels {
                reserve(&mut scratch.panels, 1)?;
                scratch.panels.push(Panel::default());
            }
            let panel = &mut scratch.panels[scratch.n_panels];
            let packing = Packing {
                operand: self.kernel.operand(),
                groups: self.kernel.groups(self.problem.dim()),
                is_signed: D::FORMAT == TokenFormat::Int8,
                with_sums: self.row_scales.need_sums(),
            };
            let (dim, rows) = (self.problem.dim(), &mut scratch.tile.query_rows);
            if !panel.pack(tokens, self.queries, dim, packing, rows)? {
                break;
            }
            scratch.n_panels += 1;
        }
        Ok(scratch.n_panels > 0)
    }

    /// Passes the documents of a task by the packed query tokens.
    fn run_block(&self, task: &mut Task<'_>, scratch: &mut Scratch) -> Result<()> {
        let Scratch { panels, n_panels, maxima, tile, sums } = scratch;
        let panels = &panels[..*n_panels];
        let with_winners = task.queries.iter().any(|query| query.outputs.winners.is_some());
        fill(maxima, panels.len(), Maxima::new())?;
        let documents = task.documents.clone();
        self.pass(panels, documents.iter(), tile, |i, spans, mut products| {
            let (panel, maxima) = (&panels[i], &mut maxima[i]);
            for span in spans {
                let (part, rest) = products.split_at(span.rows.len() * panel.width);
                products = rest;
                maxima.take_in(
                    self.arch,
                    part,
                    panel.width,
                    span.token,
                    span.is_first,
                    with_winners,
                );
                if span.is_last {
                    self.finish(span, panel, maxima, task, sums);
                }
            }
            Ok(())
        })
    }

    /// Passes documents by panels of query tokens, tile by tile: `visit` gets a panel's number, the
    /// spans of a tile and their similarities `[rows, width]`, but for the query's scale.
    pub fn pass(
        &self,
        panels: &[Panel],
        documents: impl Iterator<Item = usize>,
        tile: &mut TileScratch,
        mut visit: impl FnMut(usize, &[Span], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let dim = self.problem.dim();
        let operand = self.kernel.operand();
        let groups = self.kernel.groups(dim);
        let _hold = self.kernel.hold();
        let TileScratch { rows: buffer, products: room, spans, factors, .. } = tile;
        let room = fill_lines(room, TILE_LEN * PANEL_LEN)?;
        let items = documents.map(|d| self.problem.documents().item_rows(d));
        for_each_tile(items, self.documents.mask, spans, |spans, next| {
            let rows =
                tile_rows((self.kernel, groups), self.arch, spans, self.documents, dim, buffer)?;
            let n_rows = rows.len() / groups;
            self.row_scales.of_tile(spans.iter().map(|span| span.rows.clone()), factors)?;
            // Fetched while the first panel is multiplied.
            let mut ahead = next.map_or(&[][..], |next| self.rows_from(next));
            for (i, panel) in panels.iter().enumerate() {
                let room = &mut room[..n_rows * panel.width];
                let Panel { width, added, .. } = panel;
                let sides =
                    Sides { panel: panel.groups(), width: *width, added, rows, groups, ahead };
                products(self.kernel, sides, room);
                ahead = &[];
                let similarities =
                    RowScales::apply(self.arch, operand.is_integer(), room, panel, factors);
                visit(i, spans, similarities)?;
            }
            Ok(())
        })
    }

    /// The bytes of a tile of document rows, as far as there are any.
    fn rows_from(&self, row: usize) -> &[u8] {
        let (data, dim) = (self.documents.data, self.problem.dim());
        let end = ((row + TILE_LEN) * dim).min(data.len());
        bytemuck::cast_slice(data.get(row * dim..end).unwrap_or(&[]))
    }

    /// Writes or adds the maxima over a document that has passed by.
    fn finish(
        &self,
        span: &Span,
        panel: &Panel,
        maxima: &Maxima,
        task: &mut Task<'_>,
        sums: &mut [f64],
    ) {
        let n_documents = task.documents.len();
        for (s, column) in panel.columns.iter().enumerate() {
            let mut best = maxima.best[s] * self.row_scales.query(column.row);
            if self.angular {
                best = angular(best);
            }
            let weight = self.queries.weights.map_or(1.0, |weights| weights[column.row]);
            sums[column.query * n_documents + span.document] += f64::from(best) * f64::from(weight);
            let query = &mut task.queries[column.query];
            let at = span.document * query.len + column.token;
            if let Some(winners) = &mut query.outputs.winners {
                winners[at] = maxima.winners[s];
            }
            if let Some(token_scores) = &mut query.outputs.token_scores {
                token_scores[at] = best;
            }
        }
    }
}
