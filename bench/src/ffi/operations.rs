//! Chamfer distances, scores of XTR and scores of projected documents.

use maxsim::chamfer::{ChamferOptions, DeviceChamfer, PreparedChamfer};
use maxsim::format::{Element, with_element};
use maxsim::projection::Projection;
use maxsim::stream::Queue;
use maxsim::training::{DeviceGradScores, DeviceGradients, GradientType};
use maxsim::xtr::XtrOptions;
use maxsim::{DeviceTokens, Pairing, ScoreOptions};

use super::handle::{get, stream_of, tokens, wrong};
use super::{done, made};
use crate::object::{AnyTokens, Object, Result, copy_to, text};

/// Chamfer distances of clouds made ready, what they find, and the gradients of their sum.
pub struct ChamferStep {
    work: PreparedChamfer,
    found: DeviceChamfer,
    grad: DeviceGradScores,
    gradients: DeviceGradients,
}

/// A call that waits for its results, which are values.
pub struct WholeCall(Box<dyn FnMut() -> Result<Vec<f32>>>);

/// Tokens as those of a type.
fn typed<T: Element>(tokens: &AnyTokens) -> Result<&DeviceTokens<T>> {
    let none = || format!("expected {} elements, found {}", T::TYPE, tokens.tokens.format());
    tokens.tokens.typed::<T>().ok_or_else(none)
}

/// Evaluates an expression with the element type of tokens.
macro_rules! with_type_of {
    ($tokens:expr, $T:ident => $result:expr) => {{
        let format = $tokens.tokens.format();
        let element = format.element().ok_or_else(|| format!("{format} are no elements"))?;
        with_element!(element, $T => $result)
    }};
}

/// Makes mean squared distances of clouds in both directions ready, and room for their gradients,
/// in the points' element type and times the points of the longest first cloud. Null for an error.
///
/// # Safety
/// The handles must live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_prepare_chamfer(
    x: *const Object,
    y: *const Object,
) -> *mut Object {
    // SAFETY: the caller's promise.
    made(|| unsafe {
        let (x, y) = (tokens(x)?, tokens(y)?);
        let device = x.tokens.device();
        let options = ChamferOptions::default();
        let work = with_type_of!(x, T => {
            device.prepare_chamfer(typed::<T>(x)?, typed::<T>(y)?, &options)
        });
        let work = work.map_err(text)?;
        // A mean over many points has gradients below what f16 holds: training scales them.
        let layout = x.tokens.layout();
        let scales = vec![layout.max_len() as f32; layout.n_items()];
        Ok(Object::Chamfer(Box::new(ChamferStep {
            found: work.new_found().map_err(text)?,
            grad: work.upload_grad(&scales).map_err(text)?,
            gradients: work.new_gradients(GradientType::Tokens).map_err(text)?,
            work,
        })))
    })
}

/// Enqueues the search of nearest neighbours and, where `part` is not 0, the gradients; where it is
/// 2, these alone. 0, or -1 for an error.
///
/// # Safety
/// The handles must live, and stream and step be in use nowhere else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_chamfer(
    stream: *mut Object,
    x: *const Object,
    y: *const Object,
    step: *mut Object,
    part: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let (stream, x, y) = (stream_of(stream)?, tokens(x)?, tokens(y)?);
        let Some(Object::Chamfer(step)) = step.as_mut() else {
            return wrong("a step of Chamfer distances", step);
        };
        let ChamferStep { work, found, grad, gradients } = step.as_mut();
        with_type_of!(x, T => {
            let (x, y) = (typed::<T>(x)?, typed::<T>(y)?);
            if part != 2 {
                stream.chamfer_into(x, y, work, found).map_err(text)?;
            }
            if part != 0 {
                let found = found.with_grad(grad);
                stream.chamfer_backward(x, y, work, found, gradients).map_err(text)?;
            }
            Ok(())
        })
    })
}

/// Waits for the last step, and copies to host addresses: the values, the indices of the neighbours
/// of both sides (i32) and, in f32, the gradients of both sides. 0 or -1.
///
/// # Safety
/// The handle must live; as many numbers must be writable as there are, or the address be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_chamfer_found(
    step: *const Object,
    values: u64,
    of_x: u64,
    of_y: u64,
    grad_x: u64,
    grad_y: u64,
) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Object::Chamfer(step) = get(step)? else {
            return wrong("a step of Chamfer distances", step);
        };
        let found = step.found.read().map_err(text)?;
        copy_to(values, found.values())?;
        copy_to(of_x, &found.x().indices)?;
        copy_to(of_y, found.y().map_or(&[][..], |y| &y.indices))?;
        let gradients = step.gradients.read().map_err(text)?;
        copy_to(grad_x, &gradients.queries)?;
        copy_to(grad_y, &gradients.documents)
    })
}

/// Training scores of XTR of every query and document. Null for an error.
///
/// # Safety
/// The handles must live until that of the call is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_xtr(
    queries: *const Object,
    documents: *const Object,
    k: u64,
) -> *mut Object {
    // SAFETY: the caller's promise.
    made(|| unsafe {
        let (queries, documents): (&'static AnyTokens, &'static AnyTokens) =
            (tokens(queries)?, tokens(documents)?);
        let options = XtrOptions::default().k(k as usize);
        let device = queries.tokens.device();
        let call: Box<dyn FnMut() -> Result<Vec<f32>>> = with_type_of!(queries, T => {
            let (queries, documents) = (typed::<T>(queries)?, typed::<T>(documents)?);
            Box::new(move || {
                let found = device.xtr(queries, documents, &Pairing::cross(), &options);
                Ok(found.map_err(text)?.values().to_vec())
            })
        });
        Ok(Object::Whole(WholeCall(call)))
    })
}

/// Scores of every query and document of hidden states, projected by a weight and normalised; where
/// `gradients` is not 0, with the gradients of their sum. Null for an error.
///
/// # Safety
/// The handles must live until that of the call is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_projected(
    queries: *const Object,
    hidden: *const Object,
    weight: *const Object,
    gradients: u64,
) -> *mut Object {
    // SAFETY: the caller's promise.
    made(|| unsafe {
        let (queries, hidden): (&'static AnyTokens, &'static AnyTokens) =
            (tokens(queries)?, tokens(hidden)?);
        let weight: &'static AnyTokens = tokens(weight)?;
        let call = with_type_of!(queries, T => {
            let weight = Projection::new(typed::<T>(weight)?).map_err(text)?.normalize(true);
            projected(typed::<T>(queries)?, typed::<T>(hidden)?, weight, gradients != 0)?
        });
        Ok(Object::Whole(WholeCall(call)))
    })
}

/// The call of [`maxsim_bench_projected`], made ready; on the CPU with gradients it is a whole one.
/// Gradients stay on the device, in the element type.
fn projected<T: Element>(
    queries: &'static DeviceTokens<T>,
    hidden: &'static DeviceTokens<T>,
    projection: Projection<'static, T>,
    with_gradients: bool,
) -> Result<Box<dyn FnMut() -> Result<Vec<f32>>>> {
    let (device, cross) = (queries.device(), Pairing::cross());
    if !with_gradients {
        let options = ScoreOptions::default();
        let work = device.prepare_projected(queries, hidden, &projection, &cross, &options);
        let mut work = work.map_err(text)?;
        return Ok(Box::new(move || Ok(work.score(queries).map_err(text)?.values().to_vec())));
    }
    if device.ordinal().is_some() {
        let work = device.prepare_projected_training(
            queries,
            hidden,
            &projection,
            &cross,
            GradientType::Tokens,
        );
        let mut work = work.map_err(text)?;
        let mut gradients = work.new_gradients().map_err(text)?;
        let ones = vec![1.0; queries.layout().n_items() * hidden.layout().n_items()];
        let ones = work.upload_grad_scores(&ones).map_err(text)?;
        return Ok(Box::new(move || {
            let values = work.score(queries).map_err(text)?;
            work.backward(queries, &ones, &mut gradients).map_err(text)?;
            Ok(values)
        }));
    }
    Ok(Box::new(move || {
        let scores = device.score_projected_for_training(queries, hidden, &projection, &cross);
        let scores = scores.map_err(text)?;
        let values = scores.scores().values().to_vec();
        let ones = vec![1.0; values.len()];
        let of = scores.with_grad(&ones[..]);
        let gradients = device.backward_projected(queries, hidden, &projection, of);
        drop(gradients.map_err(text)?);
        Ok(values)
    }))
}

/// Makes a call, waits, and copies its values to a host address. 0 or -1.
///
/// # Safety
/// The handle must live and be in use nowhere else; as many numbers must be writable as there are,
/// or the address be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_whole(call: *mut Object, to: u64) -> i32 {
    // SAFETY: the caller's promises.
    done(|| unsafe {
        let Some(Object::Whole(WholeCall(run))) = call.as_mut() else {
            return wrong("a call that waits", call);
        };
        copy_to(to, &run()?)
    })
}
