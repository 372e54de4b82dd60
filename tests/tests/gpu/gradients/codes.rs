//! Gradients of documents that are saved as codes.

use maxsim::format::{Int8, RawRows, RawScales, ScaleType, Scales};
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, GradientType, Gradients};
use maxsim::{DeviceTokens, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::gpu::{free_bytes, text};
use maxsim_tests::gradients::{Step, grad_scores, relative_distances, same_bits};
use maxsim_tests::saved::{SCALES, SavedStep};
use maxsim_tests::suite::Suite;

use super::{BATCHES, Batch};

/// From codes, gradients have the same bits every time, and those of documents the bits that they
/// have from the documents themselves.
#[test]
fn twenty_calls_from_codes_give_the_same_bits() {
    Suite::run_gpu("gpu_gradient_saved_repeats", |suite| {
        let batches = BATCHES.into_iter().filter(|batch| !batch.normalize);
        let mut n_cases = 0;
        for (device, batch) in
            cuda_devices().iter().flat_map(|d| batches.clone().map(move |b| (d, b)))
        {
            for element in [GradientType::F32, GradientType::Tokens] {
                let mut step = batch.step(device, false, element)?;
                step.run().map_err(text)?;
                let ordinary = step.gradients.read().map_err(text)?;
                let mut saved = SavedStep::of(step, ScaleType::F16, element).map_err(text)?;
                let mut first: Option<Gradients> = None;
                for i in 0..20 {
                    saved.differentiate().map_err(text)?;
                    let found = saved.gradients.read().map_err(text)?;
                    if !same_bits(first.get_or_insert_with(|| found.clone()), &found) {
                        return Err(format!("{device} {batch:?}: call {i} differs"));
                    }
                }
                let found = first.ok_or("no call")?;
                let distances = relative_distances(&ordinary, &found);
                suite.note(&format!("{device} {batch:?} {element:?}: {distances:?}"));
                // Elements err by a 254th of their row's largest at most.
                if !(distances[0] > 0.0 && distances[0] < 0.01) {
                    return Err(format!("{device} {batch:?}: {distances:?}"));
                }
                let queries = ordinary.queries.clone();
                if !same_bits(&ordinary, &Gradients { queries, ..found }) {
                    return Err(format!("{device} {batch:?}: other gradients of documents"));
                }
                n_cases += 1;
                suite.count(&device.to_string());
            }
        }
        Ok(n_cases)
    });
}

/// Codes in memory of others have the gradients of ours, whatever lies behind a row of theirs.
#[test]
fn codes_of_others_give_the_same_gradients() {
    Suite::run_gpu("gpu_gradient_saved_views", |suite| {
        let (element, dims) = (GradientType::F32, [1, 7, 16, 100, 128, 257, 1030]);
        for (device, dim) in cuda_devices().iter().flat_map(|d| dims.map(move |dim| (d, dim))) {
            let case = Case::new(dim, &[17, 3], &[65, 1, 16]);
            let problem = Problem::<f32>::new(&case);
            let grads = grad_scores(&problem.data, 5);
            let options = BackwardOptions::default();
            let mut step = Step::new(&problem, device, element, &options, &grads).map_err(text)?;
            step.score().map_err(text)?;
            let mut saved = SavedStep::of(step, ScaleType::F32, element).map_err(text)?;
            saved.differentiate().map_err(text)?;
            let expected = saved.gradients.read().map_err(text)?;

            let tokens = saved.codes.download().map_err(text)?;
            let layout = tokens.layout().clone();
            let Scales::F32(scales) = tokens.scales() else { return Err("no f32 scales".into()) };
            let scales = Tokens::padded(&scales[..], 1, 1, scales.len()).map_err(text)?;
            let scales = device.upload(&scales).map_err(text)?;
            let (access, raw) = (saved.codes.access(), RawScales::F32(scales.access().base));
            let (address, pitch_bytes) = (access.base, access.pitch_bytes);
            // SAFETY: the codes outlive the view, and nothing writes to them.
            let view = unsafe {
                DeviceTokens::<Int8>::from_raw_codes(
                    device,
                    RawRows::new(address, pitch_bytes),
                    raw,
                    layout,
                )
            };
            let view = view.map_err(text)?;
            let SavedStep { queries, scores, backward, grad_scores, gradients, stream, .. } =
                &mut saved;
            stream
                .backward(queries, &view, backward, scores.with_grad(grad_scores), gradients)
                .map_err(text)?;
            if !same_bits(&expected, &gradients.read().map_err(text)?) {
                return Err(format!("{device}, dim {dim}: other gradients from a view"));
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len() * dims.len())
    });
}

/// Documents that become codes between the scores and their gradients give back what they took, but
/// for the codes and a scale of 4 bytes a row; while codes are made, there are both.
#[test]
fn documents_saved_as_codes_take_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_saved_memory", |suite| {
        let batch = Batch { queries: [8, 32], documents: [256, 1024], dim: 128, normalize: false };
        let element = GradientType::Tokens;
        for device in cuda_devices() {
            let free = || free_bytes(device);
            for scales in SCALES {
                let mut step = batch.step(device, false, element)?;
                step.run().map_err(text)?;
                let ordinary = step.gradients.read().map_err(text)?;
                // The kernel that makes codes is loaded, and all else is there.
                drop(step.documents.quantize::<Int8>(scales).map_err(text)?);
                let Step { queries, documents, work, scores, grad_scores, mut stream, .. } = step;
                let options = BackwardOptions::default();
                let backward =
                    device.prepare_backward_from_codes(&work, &options, element).map_err(text)?;
                let mut gradients = backward.new_gradients().map_err(text)?;

                let with_documents = free()?;
                let codes = documents.quantize::<Int8>(scales).map_err(text)?;
                let with_both = free()?;
                drop(documents);
                let with_codes = free()?;
                stream
                    .backward(
                        &queries,
                        &codes,
                        &backward,
                        scores.with_grad(&grad_scores),
                        &mut gradients,
                    )
                    .map_err(text)?;
                let found = gradients.read().map_err(text)?;
                let after = free()?;

                let n_rows = 256 * 1024;
                let (codes, promised) = (n_rows * (128 + 4), n_rows * (2 * 128 - 128 - 4));
                let made = with_documents.saturating_sub(with_both);
                let saved = with_codes.saturating_sub(with_documents);
                let figure = format!(
                    "{device} {scales:?}: {made} bytes of codes, {saved} saved without the \
                     documents"
                );
                suite.note(&figure);
                // The allocator takes 2 MB at a time, for codes and for scales.
                let slack = 6 << 20;
                if made > codes + slack || saved.abs_diff(promised) > slack {
                    return Err(format!("{figure}, not {codes} and {promised}"));
                }
                if after < with_codes {
                    return Err(format!("{device}: gradients allocate"));
                }
                if ordinary.documents != found.documents {
                    return Err(format!("{device}: other gradients of documents"));
                }
                suite.count(&format!("{device} {scales:?}"));
            }
        }
        Ok(2 * cuda_devices().len())
    });
}
