//! Losses over scores, with the gradients that [`Device::backward`](crate::Device::backward)
//! takes.
//!
//! Both are a mean over queries of a Kullback-Leibler divergence. With `T` the temperature, `x[q]`
//! the scores of query `q` and `y[q]` a target distribution over its documents,
//!
//! ```text
//! p[q]       = softmax(x[q] / T)
//! loss       = 1/n_queries · Σ_q Σ_d y[q, d] · (log y[q, d] − log p[q, d])
//! ∂loss/∂x   = (p − y) / (T · n_queries)
//! ```
//!
//! with terms of `y[q, d]` = 0 counting as 0. The gradients of a query add up to 0, up to rounding.
//! Everything is computed in f64, maxima subtracted before they are exponentiated, and rounded to
//! f32 at the end; the same input gives the same bits. [`Queue::loss`](crate::stream::Queue::loss)
//! computes the same on a device, in f32, without waiting.
//!
//! Scores are row-major, `n_documents` of each query: those of [`Pairing::cross`], or those of
//! candidates, where `n_documents` is the number of candidates of a query. A document without
//! tokens scores 0 and takes part like any other. To exclude documents, overwrite their scores
//! with −∞: −∞ has probability 0, and gradient 0 where its target is 0, too (where it is not,
//! the loss is +∞ and the gradient that of the formula). A query whose row of scores, of the
//! student or of the teacher, holds NaN or +∞ or nothing but −∞ has no softmax: the loss is NaN
//! and so are all gradients of that query, but not those of others.
//!
//! ```
//! use maxsim::training::BackwardOptions;
//! use maxsim::{Device, Pairing, Tokens, loss};
//!
//! // Two queries and their documents, of one token each; dim 2.
//! let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
//! let documents = Tokens::padded(&[1.0f32, 1.0, 1.0, 1.0], 2, 1, 2)?;
//! let (device, pairing) = (Device::cpu(), Pairing::cross());
//! let scores = device.score_for_training(&queries, &documents, &pairing)?;
//!
//! let loss = loss::contrastive(scores.scores().values(), 2, &[0, 1], 0.5)?;
//! assert_eq!(loss.value, 2f32.ln()); // both documents are as likely for either query
//! assert_eq!(loss.grad_scores, [-0.5, 0.5, 0.5, -0.5]);
//!
//! let options = BackwardOptions::default();
//! let gradients =
//!     device.backward(&queries, &documents, scores.with_grad(&loss.grad_scores), &options)?;
//! assert_eq!(gradients.documents, [-0.5, 0.5, 0.5, -0.5]); // each away from the other's query
//! # Ok::<(), maxsim::Error>(())
//! ```
//!
//! [`Pairing::cross`]: crate::Pairing::cross

mod command;
pub(crate) mod prepared;

pub use self::prepared::{DeviceLoss, PreparedLoss};

use crate::error::{Error, Result};
use crate::runtime::alloc::filled;
use crate::tokens::layout::check_len;

/// A loss and its gradients.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Loss {
    /// The mean over queries; 0 where there are none.
    pub value: f32,
    /// The derivative of the value with respect to each score, in the order of the scores.
    pub grad_scores: Vec<f32>,
}

/// The cross-entropy of each query's positive document among all of its documents, that is, the
/// loss of the [module](self) with `y[q, d]` = 1 for the positive and 0 for all others:
///
/// ```text
/// loss = mean over q of −log p[q, positives[q]]
/// ```
///
/// This is InfoNCE (van den Oord, Li and Vinyals, "Representation learning with contrastive
/// predictive coding", 2018). `positives` has the document of each query, as its column in the
/// scores: with in-batch negatives 0, 1, 2 and so on, with candidates whose first is the positive
/// only zeros.
///
/// ```
/// // The positive is three times as likely as the other document.
/// let loss = maxsim::loss::contrastive(&[0.0, 3f32.ln()], 2, &[1], 1.0)?;
/// assert!((loss.value - (4.0f32 / 3.0).ln()).abs() < 1e-6);
/// assert!((loss.grad_scores[0] - 0.25).abs() < 1e-6);
/// assert!((loss.grad_scores[1] + 0.25).abs() < 1e-6);
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] where the temperature is not finite and above 0, or there are not
/// `n_documents` scores per positive; [`Error::Id`] for a positive that is not below
/// `n_documents`; [`Error::HostMemory`] where the gradients find no room.
pub fn contrastive(
    scores: &[f32],
    n_documents: usize,
    positives: &[usize],
    temperature: f32,
) -> Result<Loss> {
    let temperature = checked_temperature(temperature)?;
    // If the product overflows it saturates, at a length that no slice has.
    let n_scores = positives.len().saturating_mul(n_documents);
    check_len("scores", n_scores, "n_documents per positive", scores.len())?;
    check_positives(positives, n_documents)?;
    mean_divergence(scores, n_documents, temperature, |query| {
        let positive = positives[query];
        move |document| if document == positive { 0.0 } else { f64::NEG_INFINITY }
    })
}

/// How far the scores' distribution over each query's documents is from that of a teacher's
/// scores, that is, the loss of the [module](self) with `y` = softmax(teacher / T):
///
/// ```text
/// loss = mean over q of KL(softmax(teacher[q] / T) ‖ softmax(scores[q] / T))
/// ```
///
/// This is how ColBERTv2 (Santhanam, Khattab, Saad-Falcon, Potts and Zaharia, "ColBERTv2:
/// effective and efficient retrieval via lightweight late interaction", NAACL 2022) learns from a
/// cross-encoder; in PyTorch it is `KLDivLoss(reduction="batchmean")` of log-softmaxes.
///
/// The factor T², which some apply to keep gradients of one size at every temperature, is not
/// applied: multiply value and gradients by it for that.
///
/// ```
/// // The teacher says 3 : 1, the scores say 1 : 1.
/// let loss = maxsim::loss::distillation(&[5.0, 5.0], &[3f32.ln(), 0.0], 2, 1.0)?;
/// assert!((loss.value - (0.75 * 1.5f32.ln() + 0.25 * 0.5f32.ln())).abs() < 1e-6);
/// assert!((loss.grad_scores[0] + 0.25).abs() < 1e-6);
/// assert!((loss.grad_scores[1] - 0.25).abs() < 1e-6);
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] where the temperature is not finite and above 0, there are not `n_documents`
/// scores per query, or the teacher's are not as many; [`Error::HostMemory`] where the gradients
/// find no room.
pub fn distillation(
    scores: &[f32],
    teacher: &[f32],
    n_documents: usize,
    temperature: f32,
) -> Result<Loss> {
    let temperature = checked_temperature(temperature)?;
    check_rows("scores", scores.len(), n_documents)?;
    check_len("teacher", scores.len(), "one per score", teacher.len())?;
    mean_divergence(scores, n_documents, temperature, |query| {
        let row = &teacher[query * n_documents..][..n_documents];
        let softmax = LogSoftmax::new(row, temperature);
        move |document| softmax.at(row[document])
    })
}

/// The loss of the module for whole rows of scores; `log_target` gives log y[query] as a function
/// of the document.
fn mean_divergence<Y: Fn(usize) -> f64>(
    scores: &[f32],
    n_documents: usize,
    temperature: f64,
    log_target: impl Fn(usize) -> Y,
) -> Result<Loss> {
    if scores.is_empty() {
        return Ok(Loss::default());
    }
    let n_queries = (scores.len() / n_documents) as f64;
    let mut grad_scores = filled(scores.len() as u64, 0.0)?;
    let mut sum = 0.0;
    let rows = scores.chunks_exact(n_documents).zip(grad_scores.chunks_exact_mut(n_documents));
    for (query, (row, grads)) in rows.enumerate() {
        let (log_target, softmax) = (log_target(query), LogSoftmax::new(row, temperature));
        for (document, (&score, grad)) in row.iter().zip(grads).enumerate() {
            let (log_y, log_p) = (log_target(document), softmax.at(score));
            let y = log_y.exp();
            // 0 · log 0 would be NaN.
            if y != 0.0 {
                sum += y * (log_y - log_p);
            }
            *grad = ((log_p.exp() - y) / (temperature * n_queries)) as f32;
        }
    }
    Ok(Loss { value: (sum / n_queries) as f32, grad_scores })
}

/// log softmax(row / temperature), as a function of an entry of the row.
struct LogSoftmax {
    max: f64,
    log_sum: f64,
    temperature: f64,
}

impl LogSoftmax {
    fn new(row: &[f32], temperature: f64) -> LogSoftmax {
        // `f32::max` passes over NaN, but the sum does not.
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|&x| ((f64::from(x) - max) / temperature).exp()).sum();
        LogSoftmax { max, log_sum: sum.ln(), temperature }
    }

    fn at(&self, x: f32) -> f64 {
        (f64::from(x) - self.max) / self.temperature - self.log_sum
    }
}

/// Checks that every positive is one of the documents.
pub(crate) fn check_positives(positives: &[usize], n_documents: usize) -> Result<()> {
    match positives.iter().position(|&positive| positive >= n_documents) {
        None => Ok(()),
        Some(index) => Err(Error::Id {
            argument: "positives",
            index,
            found: i64::try_from(positives[index]).unwrap_or(i64::MAX),
            n_items: n_documents,
        }),
    }
}

/// Checks that so many scores are whole rows.
pub(crate) fn check_rows(argument: &'static str, found: usize, n_documents: usize) -> Result<()> {
    if found.is_multiple_of(n_documents) {
        return Ok(());
    }
    Err(Error::Shape {
        argument,
        expected: format!("a multiple of {n_documents} entries (n_documents per query)"),
        found: format!("{found} entries"),
    })
}

pub(crate) fn checked_temperature(temperature: f32) -> Result<f64> {
    if temperature.is_finite() && temperature > 0.0 {
        return Ok(temperature.into());
    }
    Err(Error::Shape {
        argument: "temperature",
        expected: "a finite number above 0".into(),
        found: temperature.to_string(),
    })
}
