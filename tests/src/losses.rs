//! Losses on devices: scores of any bits there, and how far losses may be from those in f64.

use maxsim::loss::Loss;
use maxsim::stream::{DeviceScores, PreparedScore, Queue};
use maxsim::training::{BackwardOptions, DeviceGradScores, GradientType, PreparedBackward};
use maxsim::{Device, Pairing, Result, ScoreOptions, Tokens};

/// Scores `[n_queries, n_documents]` on a device that hold what the host says.
#[derive(Debug)]
pub struct GivenScores {
    /// The scores.
    pub scores: DeviceScores,
    /// For gradients of as many.
    pub backward: PreparedBackward,
    /// Memory that the scores are a view of, on a CUDA device.
    _memory: DeviceGradScores,
}

impl GivenScores {
    /// Scores of the given bits, but for the payload of NaNs.
    pub fn new(device: &Device, n_documents: usize, values: &[f32]) -> Result<GivenScores> {
        // Tokens of one element each: of a query's own documents, whose products with 1 they are.
        let n_queries = values.len() / n_documents;
        let queries = device.upload(&Tokens::padded(&vec![1.0f32; n_queries], n_queries, 1, 1)?)?;
        let documents = device.upload(&Tokens::padded(values, values.len(), 1, 1)?)?;
        let own = Pairing::own_candidates(n_documents);
        let prepare = |winners| {
            let options = ScoreOptions::default().winners(winners);
            device.prepare(&queries, &documents, &own, &options)
        };
        let (trained, work): (PreparedScore, PreparedScore) = (prepare(true)?, prepare(false)?);
        let backward =
            device.prepare_backward(&trained, &BackwardOptions::default(), GradientType::F32)?;
        let memory = backward.upload_grad_scores(values)?;
        let scores = match memory.address() {
            // SAFETY: the memory goes behind the scores, and nothing else uses it.
            Some(address) => unsafe { DeviceScores::from_raw_parts(&work, address, None, None)? },
            None => {
                let mut scores = work.new_scores()?;
                device.stream()?.score_into(&queries, &documents, &work, &mut scores)?;
                scores
            }
        };
        Ok(GivenScores { scores, backward, _memory: memory })
    }
}

/// The bounds that `PreparedLoss` states for losses of devices.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Error of each gradient.
    pub gradient: f64,
    /// Error of the value.
    pub value: f64,
}

impl Bounds {
    /// Errors of a loss with temperature `t` over rows of `n_documents` scores, whose targets and
    /// probabilities have logarithms that add up to `magnitude`, weighted with the targets.
    pub fn new(n_queries: usize, n_documents: usize, t: f32, magnitude: f64) -> Bounds {
        let b = (40.0 + 16.0 * (n_documents as f64).ln()) * 2f64.powi(-24);
        let gradient = b / (f64::from(t) * n_queries as f64);
        Bounds { gradient, value: b * (1.0 + magnitude) }
    }

    /// Whether a loss of a device is that of the host.
    pub fn check(&self, expected: &Loss, found: &Loss) -> std::result::Result<(), String> {
        let close = |e: f32, f: f32, bound: f64| {
            let (e, f) = (f64::from(e), f64::from(f));
            // The host's result is rounded to f32, too.
            e == f || e.is_nan() && f.is_nan() || (e - f).abs() <= bound + e.abs() * 2f64.powi(-24)
        };
        if !close(expected.value, found.value, self.value) {
            let (e, f) = (expected.value, found.value);
            return Err(format!("value {f:e} instead of {e:e}, at most {:e} from it", self.value));
        }
        let pairs = expected.grad_scores.iter().zip(&found.grad_scores);
        for (i, (&e, &f)) in pairs.enumerate() {
            if !close(e, f, self.gradient) {
                let most = self.gradient;
                return Err(format!("gradient [{i}]: {f:e} instead of {e:e}, at most {most:e}"));
            }
        }
        Ok(())
    }
}

/// Σ_d y · (|log y| + |log p|) of a row, y = softmax(teacher / t) and p = softmax(scores / t); for
/// a contrastive loss without the teacher's term. 0 where there is no such number.
pub fn magnitude(scores: &[f32], target: Target<'_>, t: f32) -> f64 {
    let log_p = log_softmax(scores, t);
    let sum = match target {
        Target::Positive(positive) => log_p[positive].abs(),
        Target::Teacher(teacher) => {
            let terms = log_softmax(teacher, t).into_iter().zip(&log_p);
            let terms = terms.filter(|(log_y, _)| log_y.exp() != 0.0);
            terms.map(|(log_y, log_p)| log_y.exp() * (log_y.abs() + log_p.abs())).sum()
        }
    };
    if sum.is_finite() { sum } else { 0.0 }
}

/// Target that a row is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A document.
    Positive(usize),
    /// Scores.
    Teacher(&'a [f32]),
}

fn log_softmax(row: &[f32], t: f32) -> Vec<f64> {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let scaled: Vec<f64> = row.iter().map(|&x| (f64::from(x) - max) / f64::from(t)).collect();
    let log_sum = scaled.iter().map(|x| x.exp()).sum::<f64>().ln();
    scaled.into_iter().map(|x| x - log_sum).collect()
}

/// Numbers between -1 and 1.
#[derive(Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one.
    pub fn draw(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// So many, times `size`.
    pub fn many(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| self.draw() * size).collect()
    }
}

/// How scores are generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Numbers of this size.
    Plain(f32),
    /// All the same.
    Equal,
    /// The positive is far above the others.
    Right,
    /// One in four is −∞.
    LeftOut,
    /// As these, and some rows have no softmax.
    Bad,
}

/// All kinds.
pub const KINDS: [Kind; 7] = [
    Kind::Plain(1.0),
    Kind::Plain(40.0),
    Kind::Plain(1e38),
    Kind::Equal,
    Kind::Right,
    Kind::LeftOut,
    Kind::Bad,
];

/// Scores of `n_queries × n_documents`, the positives, and a teacher's scores.
pub fn drawn(
    kind: Kind,
    n_queries: usize,
    n: usize,
    seed: u64,
) -> (Vec<f32>, Vec<usize>, Vec<f32>) {
    let mut numbers = Numbers(seed);
    let size = if let Kind::Plain(size) = kind { size } else { 5.0 };
    let mut scores = numbers.many(n_queries * n, size);
    let mut teacher = numbers.many(n_queries * n, size);
    let positives: Vec<usize> = (0..n_queries).map(|q| (q * 7 + 3) % n).collect();
    for (q, &positive) in positives.iter().enumerate() {
        let (row, teacher) = (&mut scores[q * n..][..n], &mut teacher[q * n..][..n]);
        match kind {
            Kind::Plain(_) => {}
            Kind::Equal => row.fill(-3.5),
            Kind::Right => row[positive] += 12.0,
            Kind::LeftOut | Kind::Bad => {
                for d in (0..n).filter(|d| (d + q) % 4 == 1 && *d != positive) {
                    row[d] = f32::NEG_INFINITY;
                    if d % 8 != 3 {
                        teacher[d] = f32::NEG_INFINITY;
                    }
                }
            }
        }
        if kind == Kind::Bad {
            match q % 6 {
                1 => row[n / 2] = f32::NAN,
                2 => row[n - 1] = f32::INFINITY,
                3 => row.fill(f32::NEG_INFINITY),
                4 => teacher[n / 3] = f32::NAN,
                _ => {}
            }
        }
    }
    (scores, positives, teacher)
}
