//! Scores of queries against documents: at once, or prepared and enqueued.

use std::sync::Arc;

use crate::cpu;
use crate::cuda::ForwardPlan;
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::ops::backward::cache::BackwardCache;
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::runtime::on::On;
use crate::tokens::format::{Format, ScorableWith, TokenFormat};
use crate::tokens::layout::TokenLayout;
use prepared::PreparedScore;

pub(crate) mod any;
pub(crate) mod cache;
pub(crate) mod command;
pub(crate) mod prepared;

impl Device {
    /// Scores queries against documents.
    ///
    /// Either side is borrowed host tokens or a handle from [`Device::upload`]. Both have the same
    /// element type, or [compressed formats](TokenFormat) that go together.
    ///
    /// # Errors
    /// [`Error::Shape`] and others where queries, documents and pairing do not fit together.
    /// [`Error::Unsupported`] where nothing on the device can run the call: compressed tokens where
    /// rows are to be normalised are among that.
    pub fn score<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        pairing: &Pairing,
    ) -> Result<Scores> {
        self.score_with(queries, documents, pairing, &ScoreOptions::default())
    }

    /// Scores queries against documents, with winners, token scores or a named kernel.
    pub fn score_with<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let plan = self.plan_problem(&problem, &queries, &documents, options)?;
        match (&self.0, plan.chosen()) {
            (On::Cuda(device), Some(chosen)) => {
                let (mut own_queries, mut own_documents) = (None, None);
                let queries = queries.cuda_tokens(self, &mut own_queries)?;
                let documents = documents.cuda_tokens(self, &mut own_documents)?;
                Ok(device.score(&problem, chosen, queries, documents, options)?.0)
            }
            _ => {
                let queries = queries.host_matrix()?;
                let documents = documents.host_matrix()?;
                cpu::score(&problem, queries, documents, options)
            }
        }
    }

    /// Plans a call of [`Device::score_with`] with these inputs, without running it: the kernel and
    /// the reason.
    pub fn plan<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        documents: impl Into<TokensRef<'a, D>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        self.plan_problem(&problem, &queries, &documents, options)
    }

    /// Checks and plans a problem, loads its kernel and uploads its work lists, for any number of
    /// [`Queue::score_into`](crate::stream::Queue::score_into) calls with handles of these layouts.
    ///
    /// # Errors
    /// The errors of [`Device::score_with`].
    pub fn prepare<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<PreparedScore> {
        let plan = self.plan(queries, documents, pairing, options)?;
        self.prepare_planned(plan, queries, documents, pairing, options)
    }

    pub(crate) fn plan_problem<Q: Format, D: Format>(
        &self,
        problem: &Problem<'_>,
        queries: &TokensRef<'_, Q>,
        documents: &TokensRef<'_, D>,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
        check_normalize(options, [Q::FORMAT, D::FORMAT])?;
        let access = [queries.access(), documents.access()];
        self.plan_formats(problem, [Q::FORMAT, D::FORMAT], access, options)
    }

    /// Plans a call of queries and documents of two formats, read with `access`.
    pub(crate) fn plan_formats(
        &self,
        problem: &Problem<'_>,
        [queries, documents]: [TokenFormat; 2],
        access: [Access; 2],
        options: &ScoreOptions,
    ) -> Result<Plan> {
        check_angular(options, problem.documents())?;
        match (self.limits(), TokenFormat::operand(queries, documents)) {
            (None, _) => Plan::cpu(options),
            (Some(limits), Some(operand)) => {
                Plan::choose(problem, operand, limits, access, options)
            }
            (Some(_), None) => Err(Error::Unsupported {
                what: format!("{queries} queries and {documents} documents on {self}"),
                why: "no kernel takes them yet; use Device::cpu()".into(),
            }),
        }
    }

    fn prepare_planned<Q: Format, D: Format>(
        &self,
        plan: Plan,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<PreparedScore> {
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let outputs = OutputShape::new(&problem, options);
        let inner = match (&self.0, plan.chosen()) {
            (On::Cuda(device), Some(chosen)) => {
                let work = ForwardPlan::new(device, &problem, chosen, &outputs)?;
                work.prepare_row_scales(queries.cuda_tokens()?, documents.cuda_tokens()?, None)?;
                On::Cuda(Arc::new(work))
            }
            _ => On::Cpu(()),
        };
        Ok(PreparedScore {
            device: self.clone(),
            formats: [Q::FORMAT, D::FORMAT],
            queries: queries.layout.clone(),
            documents: documents.layout.clone(),
            pairing: Arc::new(pairing.clone()),
            options: options.clone(),
            access: [queries.access(), documents.access()],
            plan,
            outputs: Arc::new(outputs),
            inner,
            backward: BackwardCache::default(),
        })
    }

    /// Whether there are kernels, or an engine, for queries and documents of these formats.
    pub fn can_score(&self, queries: TokenFormat, documents: TokenFormat) -> bool {
        let operand = TokenFormat::operand(queries, documents);
        operand.is_some_and(|operand| self.limits().is_none_or(|limits| limits.has_rows(operand)))
    }
}

/// Refuses to normalise rows that are compressed.
pub(crate) fn check_normalize(
    options: &ScoreOptions,
    [queries, documents]: [TokenFormat; 2],
) -> Result<()> {
    let elements = (queries.element(), documents.element());
    match (options.normalize, elements) {
        (true, (None, _) | (_, None)) => Err(Error::Unsupported {
            what: format!(
                "`{}` for {queries} queries and {documents} documents",
                if options.angular { "angular" } else { "normalize" }
            ),
            why: "rows are compressed; divide them by their lengths before".into(),
        }),
        _ => Ok(()),
    }
}

/// Refuses angular distances of rows that are not normalised, and of documents that the device
/// alone knows to have a token: one without any would be at distance 0.
pub(crate) fn check_angular(options: &ScoreOptions, documents: &TokenLayout) -> Result<()> {
    let refused = |why: &str| {
        Err(Error::Unsupported {
            what: "`angular` distances of such a call".into(),
            why: why.into(),
        })
    };
    match (options.angular, options.normalize, documents.knows_empty_items()) {
        (false, ..) | (true, true, true) => Ok(()),
        (true, false, _) => refused("they are of cosines: set `normalize`, too"),
        (true, true, false) => refused(
            "the device alone knows which documents have a token, and one without is at no \
             distance; give their lengths and mask on the host",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    use crate::tokens::{Tokens, format::Int8, scales::ScaleType};

    #[test]
    fn documents_that_may_be_empty_unseen_are_at_no_angular_distance() {
        let options = ScoreOptions::default().angular(true);
        let known = TokenLayout::padded(2, 1, 1).unwrap();
        assert!(check_angular(&options, &known).is_ok());
        for documents in [known.with_unread_mask(), TokenLayout::unread(2, 1, 2, 1, 1).unwrap()] {
            assert!(check_angular(&options, &documents).is_err());
            assert!(check_angular(&ScoreOptions::default(), &documents).is_ok());
        }
    }

    /// In a process of its own, in which nothing else starts threads. (One that is emulated starts
    /// none.)
    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn a_short_call_starts_no_threads() {
        const NAME: &str = "ops::score::tests::a_short_call_starts_no_threads";
        const IS_CHILD: &str = "MAXSIM_TEST_IS_CHILD";
        if std::env::var_os(IS_CHILD).is_none() {
            let program = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(program);
            // A pool of one thread would not be asked for either.
            child.args(["--exact", NAME]).env(IS_CHILD, "1").env("RAYON_NUM_THREADS", "3");
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let n_threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = n_threads();
        let rows = vec![0.5f32; 300 * 8 * 16];
        let q = Tokens::padded(&rows[..32 * 16], 1, 32, 16).unwrap();
        let d = Tokens::padded(&rows[..10 * 8 * 16], 10, 8, 16).unwrap();
        let device = Device::cpu();
        let cross = Pairing::cross();
        for options in [ScoreOptions::default(), ScoreOptions::default().normalize(true)] {
            assert!(device.score_with(&q, &d, &cross, &options).is_ok());
            let codes = |t: &Tokens<'_, f32>| t.quantize::<Int8>(ScaleType::F32).unwrap();
            assert!(device.score(&codes(&q), &codes(&d), &cross).is_ok());
            assert_eq!(n_threads(), before);
        }
        // A call of several batches does.
        let rows = vec![0.5f32; 4 * 1024 * 1024];
        let q = Tokens::padded(&rows[..32 * 1024], 1, 32, 1024).unwrap();
        let d = Tokens::padded(&rows, 4, 1024, 1024).unwrap();
        assert!(device.score(&q, &d, &cross).is_ok());
        assert_eq!(n_threads(), before + 3);
    }
}
