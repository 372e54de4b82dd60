//! XTR on a CUDA device.

use std::sync::Arc;

use maxsim_kernels::abi::arch::Arch;

use super::{XtrScores, mask, reduce};
use crate::cuda::{CudaDevice, CudaTokens, ForwardPlan, Reduction, XtrCall, XtrFound};
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::ops::backward::training_scores::TrainingScores;
use crate::ops::score::prepared::PreparedScore;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::problem::scores::Scores;
use crate::problem::xtr::{Normalizer, Pool, TokenPool, XtrOptions, list_len, sample_rank};
use crate::runtime::on::On;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::{Format, ScorableWith};

impl Device {
    /// XTR scores of tokens of a CUDA device or the host.
    pub(super) fn xtr_on_device<T: Element>(
        &self,
        cuda: &Arc<CudaDevice>,
        [queries, documents]: [TokensRef<'_, T>; 2],
        pairing: &Pairing,
        options: &XtrOptions,
    ) -> Result<XtrScores> {
        let (mut own_queries, mut own_documents) = (None, None);
        let queries = queries.sent_to(self, &mut own_queries)?;
        let documents = documents.sent_to(self, &mut own_documents)?;
        let reduction = match options.normalizer {
            Normalizer::Retrieved => Some(Reduction::Retrieved),
            Normalizer::QueryTokens => Some(Reduction::QueryTokens),
            Normalizer::None => Some(Reduction::Sum),
            // Of minima, too, where some maxima are below 0.
            Normalizer::PylateCompatible => None,
        };
        let (work, found) =
            self.xtr_reduced(cuda, (queries, documents), pairing, options, reduction)?;
        let XtrFound { outputs, values, mut divisors, thresholds } = found;
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let layouts = [queries.layout(), documents.layout()];
        let score_options = work.options.clone();
        if reduction.is_some() {
            let scores = Scores {
                values,
                ..Scores::with_room(problem.shape(), Some(problem.token_offsets()), false, false)?
            };
            let scores = TrainingScores::new(scores, layouts, pairing, score_options);
            return Ok(XtrScores::new(scores.with_outputs(outputs), divisors, thresholds));
        }
        let mut scores = outputs.read(&work.outputs)?;
        let sides = [TokensRef::Device(queries), TokensRef::Device(documents)];
        let masks = [mask(&sides[0])?, mask(&sides[1])?];
        let masks = [masks[0].as_deref(), masks[1].as_deref()];
        let minima = || self.minima(&sides[0], sides[1], pairing, &work.options);
        divisors =
            reduce::reduce(&problem, &mut scores, &thresholds, options.normalizer, masks, minima)?;
        let scores = TrainingScores::new(scores, layouts, pairing, score_options);
        Ok(XtrScores::new(scores, divisors, thresholds))
    }

    /// Prepares, or finds again, and runs a call of tokens on a CUDA device.
    pub(super) fn xtr_reduced<Q: ScorableWith<D>, D: Format>(
        &self,
        cuda: &Arc<CudaDevice>,
        (queries, documents): (&DeviceTokens<Q>, &DeviceTokens<D>),
        pairing: &Pairing,
        options: &XtrOptions,
        reduction: Option<Reduction>,
    ) -> Result<(Arc<PreparedScore>, XtrFound)> {
        let (of_queries, of_documents) = (queries.layout(), documents.layout());
        of_queries.check_read("queries")?;
        of_documents.check_read("documents")?;
        let problem = Problem::new(of_queries, of_documents, pairing)?;
        let tokens = [&**queries.cuda_tokens()?, &**documents.cuda_tokens()?];
        let element = match (Q::FORMAT.element(), Q::FORMAT == D::FORMAT) {
            (Some(element), true) => element,
            _ => {
                return Err(Error::Unsupported {
                    what: format!(
                        "XTR of {} queries and {} documents on {self}",
                        Q::FORMAT,
                        D::FORMAT
                    ),
                    why: "its kernels take elements of one type; use Device::cpu()".into(),
                });
            }
        };
        let score_options = match is_mapped(cuda, &problem, tokens, element, options, reduction) {
            true => mapped_options(element),
            false => kernel_options(element, problem.dim(), options),
        };
        let work = self.prepare_cached(queries, documents, pairing, &score_options)?;
        let of_pool = pool_pairing(&problem, options.pool)?;
        let pool = match &of_pool {
            None => None,
            Some(pairing) => {
                let problem = Problem::new(of_queries, of_documents, pairing)?;
                Some((problem, self.prepare_cached(queries, documents, pairing, &score_options)?))
            }
        };
        let pool = match &pool {
            None => None,
            Some((problem, work)) => Some((problem, plan_of(work)?)),
        };
        let found = cuda.xtr(&XtrCall {
            problem: &problem,
            work: plan_of(&work)?,
            shape: &work.outputs,
            pool,
            tokens,
            k: options.k,
            reduction,
        })?;
        Ok((work, found))
    }
}

/// The plan of a work on a CUDA device.
fn plan_of(work: &PreparedScore) -> Result<&ForwardPlan> {
    match &work.inner {
        On::Cuda(plan) => Ok(plan),
        On::Cpu(()) => Err(Error::Unsupported {
            what: "XTR by the plan of another engine".into(),
            why: "there is no plan of a CUDA device".into(),
        }),
    }
}

/// How maxima are found on a CUDA device: by the kernel whose tiles the thresholds' kernel has, so
/// that a similarity has the same bits in both.
fn kernel_options(element: ElementType, dim: usize, options: &XtrOptions) -> ScoreOptions {
    let tile = match (options.normalize, element) {
        (true, ElementType::F32) => "q128_normalized",
        (true, _) => "wide_q128_normalized",
        (false, ElementType::F32) => "q128_winners",
        (false, _) if dim <= 128 => "d128_q256_winners",
        (false, _) => "wide_q128_winners",
    };
    let kernel = format!("maxsim_forward_sm80_{}_{tile}", element.name());
    let options = ScoreOptions::default().normalize(options.normalize);
    options.winners(true).token_scores(true).kernel(&*kernel).document_splits(1)
}

/// Whether a kernel for sm_90a collects, beside maxima and winners: of a cross product of tokens
/// that TMA reads, up to dim 128, with a sample of documents, and lists that most likely have
/// room for what is above its bound.
fn is_mapped(
    cuda: &CudaDevice,
    problem: &Problem<'_>,
    tokens: [&CudaTokens; 2],
    element: ElementType,
    options: &XtrOptions,
    reduction: Option<Reduction>,
) -> bool {
    let k = options.k as u64;
    element != ElementType::F32
        && !options.normalize
        && reduction.is_some()
        && problem.dim() <= 128
        && matches!(problem.pairing().0, Kind::Cross)
        && Arch::Sm90a.runs_on(cuda.limits().capability)
        && tokens.iter().all(|tokens| tokens.access().is_aligned())
        && k <= problem.documents().total_len()
        && list_len(problem.queries().total_len(), k) >= 4 * k
        && sample_rank(problem.documents().n_items(), options.k).is_some()
}

/// How maxima are found where [`is_mapped`].
fn mapped_options(element: ElementType) -> ScoreOptions {
    let kernel = format!("maxsim_forward_sm90_{}_d128_q256_winners", element.name());
    let options = ScoreOptions::default().winners(true).token_scores(true);
    options.kernel(&*kernel).document_splits(1)
}

/// The pairs that thresholds are of: every query with every document of its pool. `None` where they
/// are those that are scored.
fn pool_pairing(problem: &Problem<'_>, pool: TokenPool) -> Result<Option<Pairing>> {
    match (&problem.pairing().0, pool) {
        (Kind::Cross, _) => return Ok(None),
        (_, TokenPool::AllDocuments) => return Ok(Some(Pairing::cross())),
        _ => {}
    }
    let (mut query_ids, mut document_ids) = (Vec::new(), Vec::new());
    for pool in Pool::of(problem, pool)? {
        for query in pool.queries.clone() {
            query_ids.extend(pool.documents.iter().map(|_| query as u32));
            document_ids.extend_from_slice(&pool.documents);
        }
    }
    Pairing::pairs(&query_ids, &document_ids).map(Some)
}
