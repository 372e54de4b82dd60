//! Selections of the best documents of each query.

use super::handle::{get, outputs_of, stream_of, tokens, wrong};
use super::{done, made};
use crate::object::{AnyWork, Object, Result, copy_to, text};
use maxsim::Ranking;
use maxsim::stream::{DeviceTopK, PreparedTopK, Queue};

/// A selection and what it finds.
pub struct Selection {
    top_k: PreparedTopK,
    best: DeviceTopK,
}

/// Makes ready the selection of the best k documents of each query, of the scores of a work, with
/// room for what it finds. Null for an error.
///
/// # Safety
/// The handles must live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_prepare_top_k(
    work: *const Object,
    documents: *const Object,
    k: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Work(work, _) = get(work)? else { return wrong("a work", work) };
        let documents = &tokens(documents)?.tokens;
        let top_k = match work {
            AnyWork::Plain(work) => work.device().prepare_top_k(&**work, documents, k as usize),
            AnyWork::Coarse(work) => work.device().prepare_top_k(&**work, documents, k as usize),
        };
        let top_k = top_k.map_err(text)?;
        let best = top_k.new_best().map_err(text)?;
        Ok(Object::Selection(Selection { top_k, best }))
    })
}

/// Enqueues a selection among the scores of a call; 0, or -1 for an error.
///
/// # Safety
/// The handles must live and be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_top_k(
    stream: *mut Object,
    outputs: *mut Object,
    selection: *mut Object,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let (stream, outputs) = (stream_of(stream)?, outputs_of(outputs)?);
        let Selection { top_k, best } = selection_of(selection)?;
        stream.top_k_into(&outputs.scores, top_k, best).map_err(text)
    })
}

/// Waits for the last selection and copies what it found to host addresses: ids `[n_queries, k]`
/// of 64 bits and f32 scores, -1 and NaN where there are no more; 0, or -1 for an error.
///
/// # Safety
/// The handle must live and be in use nowhere else; the memory must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_best(selection: *mut Object, ids: u64, scores: u64) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Selection { top_k, best } = selection_of(selection)?;
        let rankings = best.read().map_err(text)?;
        copy_ranked(&rankings, top_k.k(), ids, scores)
    })
}

/// Copies ids and scores of the best `k` documents of each ranking to host addresses.
///
/// # Safety
/// The memory must be writable.
pub(super) unsafe fn copy_ranked(
    rankings: &[Ranking],
    k: usize,
    ids: u64,
    scores: u64,
) -> Result<()> {
    let rankings = rankings.iter().map(|r| r.ranked.iter().map(|found| (found.id, found.score)));
    // SAFETY: the caller's promise.
    unsafe { copy_rankings(rankings, k, ids, scores) }
}

/// Copies ids and scores of the best `k` documents of each query to host addresses.
///
/// # Safety
/// The memory must be writable.
pub(super) unsafe fn copy_rankings(
    rankings: impl Iterator<Item = impl Iterator<Item = (u32, f32)>>,
    k: usize,
    ids: u64,
    scores: u64,
) -> Result<()> {
    let (mut all_ids, mut all_scores) = (Vec::new(), Vec::new());
    for ranking in rankings {
        let end = all_ids.len() + k;
        for (id, score) in ranking.take(k) {
            all_ids.push(i64::from(id));
            all_scores.push(score);
        }
        all_ids.resize(end, -1);
        all_scores.resize(end, f32::NAN);
    }
    // SAFETY: the caller's promise.
    unsafe {
        copy_to(ids, &all_ids)?;
        copy_to(scores, &all_scores)
    }
}

/// # Safety
/// The handle must be null, or live and in use nowhere else.
unsafe fn selection_of<'a>(object: *mut Object) -> Result<&'a mut Selection> {
    // SAFETY: the caller's promise.
    match unsafe { object.as_mut() } {
        Some(Object::Selection(selection)) => Ok(selection),
        Some(other) => Err(format!("expected a selection, found {}", other.kind())),
        None => Err("a handle is null".to_string()),
    }
}
