//! Calls of gradients.

use std::ffi::c_char;

use maxsim::training::{BackwardOptions, DeviceGradScores, DeviceGradients, GradientType};

use super::handle::{get, outputs_of, stream_of, string, tokens, wrong};
use super::{done, made};
use crate::object::{AnyWork, Object, enqueue_backward, text};
use crate::options;

/// Makes the gradients of a work with winners ready, in the tokens' element type. `strategy` is
/// `owner`, `atomic` or `recompute`. Null for an error.
///
/// # Safety
/// The handle must live, `strategy` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_prepare_backward(
    work: *const Object,
    strategy: *const c_char,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Work(AnyWork::Plain(work), _) = get(work)? else {
            return wrong("a work", work);
        };
        let options = BackwardOptions::new(options::strategy(string(strategy)?)?);
        let work = work.device().prepare_backward(work, &options, GradientType::Tokens);
        Ok(Object::Backward(work.map_err(text)?))
    })
}

/// Gradients of scores (f32), of tokens and, where `weights` is not 0, of the query tokens' weights
/// (f32) in foreign memory, on a GPU. Null for an error.
///
/// # Safety
/// The handle must live; the memory must until the gradients are freed, and have no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_gradients(
    backward: *const Object,
    grad_scores: u64,
    queries: u64,
    documents: u64,
    weights: u64,
) -> *mut Object {
    // SAFETY: the caller's promises.
    made(|| unsafe {
        let Object::Backward(work) = get(backward)? else {
            return wrong("a gradient's work", backward);
        };
        let grad_scores = DeviceGradScores::from_raw_parts(work, grad_scores).map_err(text)?;
        let weights = (weights != 0).then_some(weights);
        let gradients = DeviceGradients::from_raw_parts(work, queries, documents, weights);
        let gradients = gradients.map_err(text)?;
        Ok(Object::Gradients(grad_scores, gradients))
    })
}

/// Enqueues the gradients of a call that was enqueued before; 0, or -1 for an error.
///
/// # Safety
/// The handles must live, and stream, outputs and gradients be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_enqueue_backward(
    stream: *mut Object,
    queries: *const Object,
    documents: *const Object,
    backward: *const Object,
    outputs: *mut Object,
    gradients: *mut Object,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Backward(work) = get(backward)? else {
            return wrong("a gradient's work", backward);
        };
        let Some(Object::Gradients(grad_scores, gradients)) = gradients.as_mut() else {
            return wrong("gradients", gradients);
        };
        enqueue_backward(
            stream_of(stream)?,
            tokens(queries)?,
            tokens(documents)?,
            work,
            outputs_of(outputs)?,
            grad_scores,
            gradients,
        )
    })
}
