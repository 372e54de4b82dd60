//! Gradients of projected documents that stay on a device: in both types of elements, in room of
//! the library's and in memory of the caller, the same bits every time.

use maxsim::format::Element;
use maxsim::projection::{ProjectedGradients, ProjectedStep, Projection};
use maxsim::training::GradientType;
use maxsim::{Device, Error, Pairing, Tokens, TokensRef};

use crate::gpu::memory;

/// A call, its scores and winners, and gradients with respect to the scores.
pub(super) struct Call<'a, T: Element> {
    pub queries: &'a Tokens<'a, T>,
    pub hidden: TokensRef<'a, T>,
    pub projection: &'a Projection<'a, T>,
    pub pairing: &'a Pairing,
    pub values: &'a [f32],
    pub winners: &'a [i32],
    pub grad_scores: &'a [f32],
}

/// The gradients in f32, once all other ways were found to agree with them.
pub(super) fn gradients<T: Element>(
    device: &Device,
    call: &Call<'_, T>,
) -> Result<ProjectedGradients, String> {
    let failed = |error: Error| error.to_string();
    let &Call { queries, hidden, projection, pairing, values, winners, grad_scores } = call;
    let mut found = Vec::new();
    for element in [GradientType::F32, GradientType::Tokens] {
        let work = device.prepare_projected_training(queries, hidden, projection, pairing, element);
        let mut work = work.map_err(failed)?;
        let mut gradients = work.new_gradients().map_err(failed)?;
        let of_scores = work.upload_grad_scores(grad_scores).map_err(failed)?;
        if work.backward(queries, &of_scores, &mut gradients).is_ok() {
            return Err("gradients of scores that were not computed".into());
        }
        for _ in 0..2 {
            if work.score(queries).map_err(failed)? != values {
                return Err("other scores where gradients are wanted".into());
            }
            work.backward(queries, &of_scores, &mut gradients).map_err(failed)?;
            found.push(gradients.read().map_err(failed)?);
        }
        // The same memory, given by its addresses, and winners of the caller's.
        let to = gradients.addresses();
        // SAFETY: it is room for these gradients, which nothing else uses.
        let mut raw = unsafe { work.gradients_from_raw_unchecked(to).map_err(failed)? };
        work.backward(queries, &of_scores, &mut raw).map_err(failed)?;
        found.push(gradients.read().map_err(failed)?);
        let from = [bytemuck::cast_slice(winners), bytemuck::cast_slice(grad_scores)];
        let memory = [memory(device, from[0])?, memory(device, from[1])?];
        let from = memory.each_ref().map(|memory| memory.access().base);
        // SAFETY: as above; there are the winners and gradients of all scores.
        unsafe {
            let [winners, grad_scores] = from;
            let step = ProjectedStep { winners, grad_scores, to, gradients: element };
            let call = device.backward_projected_into(queries, hidden, projection, pairing, &step);
            call.map_err(failed)?;
        }
        found.push(gradients.read().map_err(failed)?);
    }
    let (sums, rounded) = found.split_at(4);
    if sums.iter().any(|other| !same(other, &sums[0], |x| x)) {
        return Err("other bits of gradients that stay on the device".into());
    }
    let of_type = |x: f32| T::from_f32(x).to_f32();
    match rounded.iter().all(|other| same(other, &sums[0], of_type)) {
        true => Ok(sums[0].clone()),
        false => Err("gradients of the element type are not those in f32, rounded".into()),
    }
}

/// Whether gradients are others, rounded by a function but for those of query weights.
fn same(a: &ProjectedGradients, b: &ProjectedGradients, round: impl Fn(f32) -> f32) -> bool {
    let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    let are_same = |a: &[f32], b: &[f32], round: &dyn Fn(f32) -> f32| {
        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| bits(a) == bits(round(b)))
    };
    are_same(&a.queries, &b.queries, &round)
        && are_same(&a.query_weights, &b.query_weights, &|x| x)
        && are_same(&a.documents.hidden, &b.documents.hidden, &round)
        && are_same(&a.documents.weight, &b.documents.weight, &round)
        && are_same(&a.documents.bias, &b.documents.bias, &round)
}
