//! XTR: thresholds, scores, gradients and rankings by their definitions, in f64.
//!
//! A threshold is the k-th largest of many similarities, and moves at most as far as the one that
//! moves most: it must be within the largest error that any of them may have. Whether a maximum is
//! retrieved is then a comparison of two numbers of the engine, which must come out as they do;
//! sums, divisors and rankings follow from that. Where no sum can round, all of it is the oracle's.

use std::collections::BTreeSet;

use maxsim::format::{Element, ElementType, with_element};
use maxsim::training::BackwardOptions;
use maxsim::xtr::{Normalizer, TokenPool, XtrOptions, XtrScores};
use maxsim::{Device, Error, Ranked, ScoreOptions, Scores};

use crate::agree::allowance;
use crate::case::{Case, Data, Pairs};
use crate::engines::Problem;
use crate::gradients::{all_devices, check, grad_scores, gradients};
use crate::oracle::{Matrix, similarity};
use crate::suite::Suite;

/// Numbers of tokens that cases retrieve.
pub const KS: [usize; 6] = [1, 2, 5, 17, 64, 300];

/// Divisors of scores that are checked by the engine's own thresholds; what PyLate counts as
/// retrieved is of whole documents, and compared where no sum rounds.
const NORMALIZERS: [Normalizer; 3] =
    [Normalizer::Retrieved, Normalizer::QueryTokens, Normalizer::None];

/// Checks a case on every device, with a number of tokens, a pool and a normaliser that its seed
/// chooses: thresholds, scores, gradients, and of a cross product rankings.
pub fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    all_devices().iter().try_for_each(|device| {
        let found = with_element!(case.element, T => check_as::<T>(suite, case, device));
        found.map_err(|why| format!("{device}: {why}"))
    })
}

fn check_as<T: Element>(suite: &Suite, case: &Case, device: &Device) -> Result<(), String> {
    let problem = Problem::<T>::new(case);
    let [k, normalizer, pool] = [0, 8, 16].map(|shift| (case.seed >> shift) as usize);
    let pools = [TokenPool::AllDocuments, TokenPool::PairedDocuments];
    let options = XtrOptions::default()
        .k(KS[k % KS.len()])
        .normalizer(NORMALIZERS[normalizer % NORMALIZERS.len()])
        .pool(pools[pool % pools.len()])
        .normalize(case.normalize);
    check_with(&problem, case, device, &options).map_err(|why| format!("{options:?}: {why}"))?;
    suite.count(&device.to_string());
    if problem.data.exact {
        let options = options.normalizer(Normalizer::PylateCompatible);
        check_compatible(&problem, device, &options)
            .map_err(|why| format!("{options:?}: {why}"))?;
        suite.count(&format!("{device} as PyLate"));
    }
    Ok(())
}

fn check_with<T: Element>(
    problem: &Problem<'_, T>,
    case: &Case,
    device: &Device,
    options: &XtrOptions,
) -> Result<(), String> {
    let data = &problem.data;
    let (found, plain) = run(problem, device, options).map_err(|e| e.to_string())?;
    check_thresholds(data, options, found.thresholds())?;
    check_scores(data, options, &found, &plain)?;
    if data.pairs.is_empty() {
        return Ok(());
    }
    let grads = grad_scores(data, case.seed);
    let winners = found.winners().map_err(|e| e.to_string())?;
    let of_sums: Vec<f32> = grads.iter().zip(found.divisors()).map(|(g, z)| g / z).collect();
    // Quotients round, even of small integers.
    let rounded = Data { exact: false, ..data.clone() };
    let expected = gradients(&rounded, winners, &of_sums);
    let gradients = problem.call(device, |queries, documents, _| {
        let options = BackwardOptions::default();
        device.xtr_backward(queries, documents, found.with_grad(&grads), &options)
    });
    check(&rounded, &expected, &gradients.map_err(|e| e.to_string())?)?;
    if case.pairs == Pairs::Cross {
        check_search(problem, device, options, &found, &plain)?;
    }
    Ok(())
}

/// The kernel that finds maxima on a CUDA device, of which thresholds have the bits.
fn kernel<T: Element>(data: &Data, device: &Device, options: &XtrOptions) -> String {
    let dim = data.queries.dim;
    let is_compatible = options.normalizer == Normalizer::PylateCompatible;
    if !is_compatible && is_sampled(T::TYPE, data, device, options) {
        return format!("maxsim_forward_sm90_{}_d128_q256_winners", T::TYPE);
    }
    let tile = match (options.normalize, T::TYPE) {
        (true, ElementType::F32) => "q128_normalized",
        (true, _) => "wide_q128_normalized",
        (false, ElementType::F32) => "q128_winners",
        (false, _) if dim <= 128 => "d128_q256_winners",
        (false, _) => "wide_q128_winners",
    };
    format!("maxsim_forward_sm80_{}_{tile}", T::TYPE)
}

/// Whether a device's kernel for compute capability 9.0 collects above bounds of a sample: of a
/// cross product with 128 documents, of which few enough tokens are retrieved.
pub fn is_sampled(
    element: ElementType,
    data: &Data,
    device: &Device,
    options: &XtrOptions,
) -> bool {
    let (queries, documents) = (&data.queries, &data.documents);
    let is_hopper = device.limits().is_some_and(|limits| limits.capability == (9, 0));
    let total = |side: &Matrix| side.items.iter().map(|item| item.len()).sum::<usize>();
    let (n, k) = (documents.items.len(), options.k);
    let sample = (n / 16 * 3).max(64) as f64;
    let mean = sample * k as f64 / n as f64;
    let rank = (mean + 4.5 * (mean * (1.0 - mean / sample).max(0.0)).sqrt()).ceil() + 1.0;
    let room = ((10 << 20) / 4 / total(queries).max(1)).min(4096);
    is_hopper
        && element != ElementType::F32
        && !options.normalize
        && queries.dim <= 128
        && data.pairs.len() == queries.items.len() * n
        && n >= 128
        && k < n
        && k <= total(documents)
        && rank <= sample
        && room >= 4 * k
}

/// XTR scores, and the maxima and winners that they are of.
fn run<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    options: &XtrOptions,
) -> Result<(XtrScores, Scores), Error> {
    problem.call(device, |queries, documents, pairing| {
        let plain = ScoreOptions::default().winners(true).token_scores(true);
        let plain = plain.normalize(options.normalize);
        let kernel = kernel::<T>(&problem.data, device, options);
        let plain = match device.ordinal() {
            Some(_) => plain.kernel(&*kernel).document_splits(1),
            None => plain,
        };
        Ok((
            device.xtr(queries, documents, pairing, options)?,
            device.score_with(queries, documents, pairing, &plain)?,
        ))
    })
}

/// The documents that each query retrieves from.
fn pools(data: &Data, pool: TokenPool) -> Vec<BTreeSet<usize>> {
    let paired = |query: usize| {
        let pairs = data.pairs.iter().filter(move |pair| pair.0 == query);
        pairs.map(|pair| pair.1).collect()
    };
    let all = || (0..data.documents.items.len()).collect();
    let of = |query| if pool == TokenPool::AllDocuments { all() } else { paired(query) };
    (0..data.queries.items.len()).map(of).collect()
}

/// Every threshold, by query and token: its value, and the error that it may have. None of masked
/// query tokens.
fn expected_thresholds(data: &Data, options: &XtrOptions) -> Vec<Option<(f64, f64)>> {
    let mut expected = Vec::new();
    for (query, pool) in pools(data, options.pool).into_iter().enumerate() {
        for token in 0..data.queries.items[query].len() {
            expected.push(data.queries.token(query, token).map(|row| {
                let tokens = pool.iter().flat_map(|&d| data.documents.tokens(d));
                let all: Vec<_> = tokens.map(|(_, document)| similarity(row, document)).collect();
                let limits = all.iter().filter(|value| value.exact.is_finite());
                let limits = limits
                    .map(|value| allowance(*value, data.documents.dim, data.has_row_scales()));
                let limit = limits.fold(0.0, f64::max);
                let numbers = all.iter().map(|value| value.exact).filter(|x| !x.is_nan());
                let mut numbers: Vec<f64> = numbers.collect();
                numbers.sort_by(|a, b| b.total_cmp(a));
                (numbers.get(options.k - 1).copied().unwrap_or(f64::NEG_INFINITY), limit)
            }));
        }
    }
    expected
}

fn check_thresholds(data: &Data, options: &XtrOptions, found: &[f32]) -> Result<(), String> {
    let expected = expected_thresholds(data, options);
    if expected.len() != found.len() {
        return Err(format!("{} thresholds, not {}", found.len(), expected.len()));
    }
    for (i, (expected, &found)) in expected.iter().zip(found).enumerate() {
        let (want, limit) = expected.unwrap_or((f64::NEG_INFINITY, 0.0));
        let got = f64::from(found);
        let limit = if data.exact { 0.0 } else { limit };
        if want != got && (got.is_nan() || (got - want).abs() > limit) {
            return Err(format!("threshold {i}: expected {want}, found {got}, allowed {limit:e}"));
        }
    }
    Ok(())
}

/// Where the thresholds of each query begin.
fn first_tokens(data: &Data) -> Vec<usize> {
    let starts = data.queries.items.iter().scan(0, |next, item| {
        *next += item.len();
        Some(*next - item.len())
    });
    starts.collect()
}

/// Whether a maximum was retrieved.
fn is_retrieved(maximum: f32, threshold: f32) -> bool {
    maximum.is_nan() || maximum >= threshold
}

fn check_scores(
    data: &Data,
    options: &XtrOptions,
    found: &XtrScores,
    plain: &Scores,
) -> Result<(), String> {
    let all_of = |values: Option<&[f32]>| values.map(<[f32]>::to_vec).unwrap_or_default();
    let maxima = all_of(plain.token_scores());
    let offsets = plain.token_offsets().ok_or("no offsets")?;
    let (first, winners) = (first_tokens(data), plain.winners().unwrap_or_default());
    let retrieved = found.winners().map_err(|e| e.to_string())?;
    for (p, &(query, document)) in data.pairs.iter().enumerate() {
        let at = |what: String| format!("score {p} (query {query}, document {document}): {what}");
        let (mut sum, mut magnitude, mut n) = (0.0, 0.0, 0);
        for (entry, threshold) in offsets.range(p).zip(&found.thresholds()[first[query]..]) {
            let counts = winners[entry] >= 0 && is_retrieved(maxima[entry], *threshold);
            let expected = if counts { winners[entry] } else { -1 };
            if retrieved[entry] != expected {
                return Err(at(format!("winner {}, not {expected}", retrieved[entry])));
            }
            if counts {
                sum += f64::from(maxima[entry]);
                magnitude += f64::from(maxima[entry]).abs();
                n += 1;
            }
        }
        let divisor = match options.normalizer {
            Normalizer::Retrieved => n.max(1),
            Normalizer::None => 1,
            _ => data.queries.tokens(query).count().max(1),
        };
        check_value(sum / divisor as f64, magnitude / divisor as f64, found.values()[p])
            .map_err(at)?;
        if found.divisors()[p] != divisor as f32 {
            return Err(at(format!("divisor {}, not {divisor}", found.divisors()[p])));
        }
    }
    Ok(())
}

/// Compares a sum of f32 numbers in f64 with what it was rounded to.
fn check_value(expected: f64, magnitude: f64, found: f32) -> Result<(), String> {
    let got = f64::from(found);
    let is_same = got == expected || got.is_nan() && expected.is_nan();
    // A magnitude beyond f32 rounds to infinity.
    let limit = magnitude * 2f64.powi(-23) + 2f64.powi(-149);
    if is_same || (got - expected).abs() <= limit || expected as f32 == found {
        return Ok(());
    }
    Err(format!("expected {expected}, found {found}"))
}

/// Compares a cross product's rankings with those that thresholds and maxima give.
fn check_search<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    options: &XtrOptions,
    found: &XtrScores,
    plain: &Scores,
) -> Result<(), String> {
    let data = &problem.data;
    let options = XtrOptions::default().k(options.k).normalize(options.normalize);
    let rankings = problem
        .call(device, |queries, documents, _| {
            device.xtr_search(queries, documents, data.documents.items.len(), &options)
        })
        .map_err(|e| e.to_string())?;
    let (first, n_documents) = (first_tokens(data), data.documents.items.len());
    let maxima = plain.token_scores().unwrap_or_default();
    let offsets = plain.token_offsets().ok_or("no offsets")?;
    for (query, ranking) in rankings.iter().enumerate() {
        let is_valid = |token| data.queries.token(query, token).is_some();
        let mut expected = Vec::new();
        for document in 0..n_documents {
            let (mut sum, mut any) = (0.0, false);
            let entries = offsets.range(query * n_documents + document);
            let tokens = entries.zip(&found.thresholds()[first[query]..]).enumerate();
            for (_, (entry, &threshold)) in tokens.filter(|(token, _)| is_valid(*token)) {
                let retrieved = is_retrieved(maxima[entry], threshold);
                any |= retrieved;
                sum += f64::from(if retrieved { maxima[entry] } else { threshold });
            }
            if any && data.documents.tokens(document).next().is_some() {
                expected.push((document as u32, sum as f32));
            }
        }
        // By scores, equal ones by lower id, NaN last.
        expected.sort_by(|a, b| {
            let key = |x: f32| (x.is_nan(), -x);
            key(a.1).partial_cmp(&key(b.1)).unwrap_or_else(|| a.1.is_nan().cmp(&b.1.is_nan()))
        });
        let bits = |x: f32| if x.is_nan() { f32::NAN } else { x }.to_bits();
        let found = ranking.ranked.iter().map(|&Ranked { id, score, .. }| (id, bits(score)));
        let found: Vec<_> = found.collect();
        let expected: Vec<_> = expected.iter().map(|&(id, score)| (id, bits(score))).collect();
        if found != expected {
            return Err(format!("ranking of query {query}: {found:x?}, not {expected:x?}"));
        }
    }
    Ok(())
}

/// Compares scores with those of PyLate's algorithm, over data that do not round: items are padded
/// to the longest, what is not retrieved is 0 before the maximum, and so is padding.
fn check_compatible<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    options: &XtrOptions,
) -> Result<(), String> {
    let data = &problem.data;
    let (found, _) = run(problem, device, options).map_err(|e| e.to_string())?;
    let (thresholds, first) = (expected_thresholds(data, options), first_tokens(data));
    let longest = data.documents.items.iter().map(|item| item.len()).max().unwrap_or(0);
    for (p, &(query, document)) in data.pairs.iter().enumerate() {
        let (mut sum, mut n_positive) = (0.0, 0.0f64);
        for (token, row) in data.queries.tokens(query) {
            let (threshold, _) = thresholds[first[query] + token].ok_or("a masked token")?;
            let slot = |t: usize| match t < data.documents.items[document].len() {
                true => data.documents.token(document, t),
                false => None,
            };
            let masked = (0..longest).map(|t| {
                let similarity = slot(t).map(|column| similarity(row, column).exact);
                similarity.filter(|x| *x >= threshold).unwrap_or(0.0)
            });
            let maximum = masked.fold(f64::NEG_INFINITY, f64::max);
            if maximum.is_finite() {
                sum += maximum;
                n_positive += f64::from(u8::from(maximum > 0.0));
            }
        }
        let expected = (sum / n_positive.max(1e-3)) as f32;
        if found.values()[p] != expected {
            return Err(format!("score {p}: expected {expected}, found {}", found.values()[p]));
        }
    }
    Ok(())
}
