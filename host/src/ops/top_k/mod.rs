//! The best k documents of each query, selected where the scores are.

pub(crate) mod command;
pub(crate) mod prepared;

use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::problem::ranking::Ranking;
use crate::problem::top_k::{BestKeys, K_MAX, RankedRows};
use crate::tokens::format::{Format, ScorableWith};

impl Device {
    /// The best `k` documents of each query: scores them, and copies no more than the best to the
    /// host. Of [pairs](Pairing::pairs), the best of each query's.
    ///
    /// The ranking is that of [`Scores::top_k_of`](crate::Scores::top_k_of): the best score first,
    /// equal scores by lower id, then NaN, then documents without tokens. For calls that repeat,
    /// see [`Device::prepare_top_k`].
    ///
    /// ```
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let best = Device::best().top_k(&queries, &documents, &cross, &options, 1)?;
    /// assert_eq!((best[0].ranked[0].id, best[0].ranked[0].score), (1, 8.0));
    ///
    /// // A first stage's candidates, of which each query may have another number.
    /// let pairs = Pairing::pairs(&[0, 0], &[1, 0])?;
    /// let best = Device::best().top_k(&queries, &documents, &pairs, &options, 10)?;
    /// assert!(best[0].ranked.iter().map(|found| found.id).eq([1, 0]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::score_with`].
    pub fn top_k<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        pairing: &Pairing,
        options: &ScoreOptions,
        k: usize,
    ) -> Result<Vec<Ranking>> {
        let (queries, documents) = (queries.into(), documents.into());
        let options = options.clone().winners(false).token_scores(false);
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let rows = RankedRows::new(&problem)?;
        // More than there are cannot be selected.
        let k = k.min(rows.row_len);
        if self.ordinal().is_none() || k > K_MAX {
            documents.layout().check_read("documents")?;
            let scores = self.score_with(queries, documents, pairing, &options)?;
            return match pairing.0 {
                Kind::Pairs { .. } => {
                    let mut best = BestKeys::new(rows.n_rows, k)?;
                    best.select(&rows, scores.values(), 0, false)?;
                    Ok(best.rankings())
                }
                _ => scores.top_k_of(pairing, documents.layout(), k),
            };
        }
        if let TokensRef::Host(_) = documents {
            // Before anything is uploaded.
            let _ = self.plan_problem(&problem, &queries, &documents, &options)?;
        }
        drop(rows);
        let (mut own_queries, mut own_documents) = (None, None);
        let queries = queries.sent_to(self, &mut own_queries)?;
        let documents = documents.on(self, &mut own_documents)?;
        let work = match pairing.has_documents_in_order() {
            true => self.prepare_cached(queries, documents, pairing, &options)?,
            // Lists hardly ever come again.
            false => self.prepare(queries, documents, pairing, &options)?.into(),
        };
        let top_k = self.prepare_top_k_reading(&work, documents, k)?;
        let scores = work.new_unfilled()?;
        self.enqueue(work.command(self, queries, documents, &scores)?)?;
        top_k.select(&scores)
    }
}
