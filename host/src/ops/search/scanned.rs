//! The scan of a search: the scores of all codes, where they were made.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::score::prepared::{DeviceScores, PreparedScore};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranking;
use crate::problem::scores::Scores;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

/// The scores of all codes, where they were made.
pub(super) enum Scanned {
    Host(Scores),
    Device { device: Device, work: Arc<PreparedScore>, scores: DeviceScores },
}

impl Scanned {
    /// Scores all codes. On a GPU the scores may not be there when this returns.
    pub fn new<Q: ScorableWith<D>, D: Format>(
        device: &Device,
        queries: TokensRef<'_, Q>,
        documents: TokensRef<'_, D>,
    ) -> Result<Scanned> {
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        if device.ordinal().is_none() {
            return Ok(Scanned::Host(device.score(queries, documents, &cross)?));
        }
        if let TokensRef::Host(_) = documents {
            // Before anything is uploaded.
            let _ = device.plan(queries, documents, &cross, &options)?;
        }
        let (mut own_queries, mut own_documents) = (None, None);
        let queries = queries.sent_to(device, &mut own_queries)?;
        let documents = documents.on(device, &mut own_documents)?;
        let work = device.prepare_cached(queries, documents, &cross, &options)?;
        let scores = work.new_unfilled()?;
        device.enqueue(work.command(device, queries, documents, &scores)?)?;
        Ok(Scanned::Device { device: device.clone(), work, scores })
    }

    /// The best `k` of each query.
    pub fn best(&self, documents: &TokenLayout, k: usize) -> Result<Vec<Ranking>> {
        match self {
            Scanned::Host(scores) => scores.top_k_of(&Pairing::cross(), documents, k),
            Scanned::Device { device, work, scores } => {
                device.prepare_top_k(&**work, documents, k)?.select(scores)
            }
        }
    }

    /// The scores of some queries, of `n_documents` each.
    pub fn rows(&self, queries: Range<usize>, n_documents: usize) -> Result<Cow<'_, [f32]>> {
        let scores = queries.start * n_documents..queries.end * n_documents;
        match self {
            Scanned::Host(all) => Ok(Cow::Borrowed(&all.values()[scores])),
            Scanned::Device { scores: all, .. } => Ok(Cow::Owned(all.read_some(scores)?)),
        }
    }
}
