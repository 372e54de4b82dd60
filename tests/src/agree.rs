//! Does an engine's result agree with the oracle's?
//!
//! Exact first: a NaN, an infinity, the zero of an empty or masked item must be there
//! exactly. Then finite values: with *m* the magnitude Σ |q_k d_k| behind a value (for a
//! token score the largest of any candidate, since the maximum moves at most as far as
//! its candidates do; for a score the sum of its tokens'), and *n* the number of terms
//! that were added one after the other,
//!
//! ```text
//! |found − exact| ≤ 2 · |twin − exact| + (4 + n / 16) · 2⁻²³ · m
//! ```
//!
//! The twin is a sample of what f32 rounding does to these very numbers; the second term
//! covers a twin that was lucky. Its unit, 2⁻²³ · m, bounds one truncated addition; a
//! tensor core makes one of them per 16 products, and roundings to nearest in either
//! direction add up to less (√n halves of it). The 4 is for what happens inside one step.
//!
//! Where rows are normalised, (8 + n / 8) stands for (4 + n / 16): two sums of as many squares,
//! whose errors their roots halve, two roots, two quotients and two products come in. So it does
//! where rows are compressed: two products with scales come in, and a sum of the query's codes.
//!
//! Tensor cores add e4m3 products with fewer bits, which has a term of its own
//! ([`crate::quantized`]).
//!
//! Winners are the oracle's, or another valid token whose exact similarity lies within dim · 2⁻²³ ·
//! m (normalised or compressed: (dim + 8) · 2⁻²³ · m), the difference that engines may have; never
//! a token after an identical row. Where no sum can round (small integers), everything must be
//! equal.

use maxsim::{ScoreOptions, Scores};

use crate::case::Data;
use crate::oracle::{Answer, TokenAnswer, Value, similarity};

/// 2⁻²³: one unit in the last place of an f32 between 1 and 2.
const ULP: f64 = f32::EPSILON as f64;

/// The error that a value of `n_terms` added terms may have.
pub fn allowance(value: Value, n_terms: usize, has_row_scales: bool) -> f64 {
    let twin_error = (f64::from(value.twin) - value.exact).abs();
    let n_times = if has_row_scales { 2.0 } else { 1.0 };
    2.0 * twin_error + n_times * (4.0 + n_terms as f64 / 16.0) * ULP * value.magnitude
}

/// Compares what an engine found with the oracle's answers, one per score.
pub fn check(
    data: &Data,
    expected: &[Answer],
    options: &ScoreOptions,
    found: &Scores,
) -> Result<(), String> {
    if found.shape() != data.shape {
        return Err(format!("shape: expected {:?}, found {:?}", data.shape, found.shape()));
    }
    same("number of scores", expected.len(), found.values().len())?;
    same("winners present", options.winners, found.winners().is_some())?;
    same("token scores present", options.token_scores, found.token_scores().is_some())?;

    let dim = data.documents.dim;
    let mut token = 0;
    for (p, answer) in expected.iter().enumerate() {
        let pair = data.pairs[p];
        let at =
            |what: String| format!("score {p} (query {}, document {}): {what}", pair.0, pair.1);
        let query_len = answer.tokens.len();
        value(data, answer.score, dim + query_len, found.values()[p]).map_err(at)?;
        if let Some(offsets) = found.token_offsets() {
            same("token offsets", token..token + query_len, offsets.range(p)).map_err(at)?;
        }
        for (s, expected) in answer.tokens.iter().enumerate() {
            let at = |what: String| at(format!("query token {s}: {what}"));
            if let Some(token_scores) = found.token_scores() {
                value(data, expected.score, dim, token_scores[token + s]).map_err(at)?;
            }
            if let Some(winners) = found.winners() {
                winner(data, pair, s, expected, winners[token + s]).map_err(at)?;
            }
        }
        token += query_len;
    }
    for (what, len) in [
        ("number of winners", found.winners().map(<[i32]>::len)),
        ("number of token scores", found.token_scores().map(<[f32]>::len)),
    ] {
        same(what, token, len.unwrap_or(token))?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, found: T) -> Result<(), String> {
    if expected == found {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, found {found:?}"))
    }
}

fn value(data: &Data, expected: Value, n_terms: usize, found: f32) -> Result<(), String> {
    let (want, got) = (expected.exact, f64::from(found));
    let coarse = data.coarse * expected.magnitude;
    let limit = allowance(expected, n_terms, data.has_row_scales()) + coarse;
    let agree = if want.is_nan() {
        got.is_nan()
    } else if data.exact || want.is_infinite() {
        want == got
    } else {
        (got - want).abs() <= limit
    };
    if agree {
        return Ok(());
    }
    Err(format!("expected {want}, found {found}: off by {:e}, allowed {limit:e}", got - want))
}

fn winner(
    data: &Data,
    (q, d): (usize, usize),
    s: usize,
    expected: &TokenAnswer,
    found: i32,
) -> Result<(), String> {
    let wrong =
        |why: String| Err(format!("winner: expected {:?}, found {found}: {why}", expected.winner));
    let (Some(best), Some(query)) = (expected.winner, data.queries.token(q, s)) else {
        return if found == -1 { Ok(()) } else { wrong("there is none".into()) };
    };
    let token = |t: usize| data.documents.token(d, t);
    let found = match usize::try_from(found) {
        Ok(t) if t < data.documents.items[d].len() => t,
        _ => return wrong("no token of the document".into()),
    };
    let (Some(best_row), Some(row)) = (token(best), token(found)) else {
        return wrong("a masked token".into());
    };
    let (want, got) = (similarity(query, best_row), similarity(query, row));
    if want.exact.is_nan() {
        return if got.exact.is_nan() { Ok(()) } else { wrong("its similarity is not NaN".into()) };
    }
    if found == best {
        return Ok(());
    }
    let n_units = data.documents.dim + if data.has_row_scales() { 8 } else { 0 };
    let limit = (n_units as f64 * ULP + 2.0 * data.coarse) * want.magnitude.max(got.magnitude);
    let difference = want.exact - got.exact;
    if data.exact || !difference.is_finite() || difference.abs() > limit {
        return wrong(format!("its similarity is {difference:e} away, allowed {limit:e}"));
    }
    if (0..found).any(|t| token(t) == Some(row)) {
        return wrong("an earlier token has the same row".into());
    }
    Ok(())
}
