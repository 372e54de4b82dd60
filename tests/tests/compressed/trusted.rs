//! Codes that are made in memory of the caller, and scored there: they are those of
//! `DeviceTokens::quantize`, and so are their scores, to the bit.

use bytemuck::cast_slice;
use half::{bf16, f16};
use maxsim::format::{
    Element, Format, Fp8, Int8, Int8Affine, Quantized, RawCodes, RawRows, RawScaleWords, ScaleType,
    ScorableWith,
};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions};
use maxsim_tests::case::{Case, elements, tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{memory, same_bits, text};
use maxsim_tests::suite::Suite;

use super::handles::check_matrix;

/// Device memory of so many bytes at least, every word a NaN.
fn room(device: &Device, len_bytes: u64) -> Result<DeviceTokens<f32>, String> {
    memory(device, &vec![0xFF; len_bytes as usize])
}

/// Codes of `handle` that were made in room of the test, against those of the library's own.
fn check<T: Element, Q: ScorableWith<F>, F: Quantized>(
    queries: &DeviceTokens<Q>,
    handle: &DeviceTokens<T>,
    mask: Option<&DeviceTokens<f32>>,
    scales: ScaleType,
) -> Result<(), String> {
    let (device, layout) = (handle.device(), handle.layout());
    let (rows, pitch_bytes) = (layout.rows(), RawCodes::pitch_bytes(layout.dim()));
    let codes = room(device, rows as u64 * pitch_bytes)?;
    let words = room(device, RawScaleWords::len_bytes(rows))?;
    let words_at = RawScaleWords::new(words.access().base);
    let mut stream = device.stream().map_err(text)?;
    // SAFETY: the room outlives the call, and nothing else uses it.
    let enqueued = unsafe {
        let to = RawCodes::new(codes.access().base, words_at);
        stream.quantize_into::<T, F>(handle, scales, to)
    };
    enqueued.and_then(|()| stream.synchronize()).map_err(text)?;
    let raw = RawRows::new(codes.access().base, pitch_bytes).mask(mask.map(|x| x.access().base));
    // SAFETY: the room outlives the view, and nothing writes to it.
    let view = unsafe {
        DeviceTokens::<F>::from_raw_codes_unchecked(device, raw, words_at, layout.clone())
    };
    let view = view.map_err(text)?;
    let expected = handle.quantize::<F>(scales).map_err(text)?;
    let (found, wanted) = (view.download().map_err(text)?, expected.download().map_err(text)?);
    check_matrix(&found, &wanted)?;
    let numbers = |scales: &maxsim::format::Scales<'_>, row| [scales.scale(row), scales.min(row)];
    for row in 0..rows {
        let [a, b] = [&found, &wanted].map(|x| numbers(x.scales(), row).map(f32::to_bits));
        if a != b {
            return Err(format!("scale and minimum of row {row}: {a:x?}, expected {b:x?}"));
        }
    }
    for winners in [false, true] {
        let options = ScoreOptions::default().winners(winners).token_scores(winners);
        let score = |documents| device.score_with(queries, documents, &Pairing::cross(), &options);
        if !same_bits(&score(&expected).map_err(text)?, &score(&view).map_err(text)?) {
            return Err(format!("other scores of a view, winners: {winners}"));
        }
    }
    Ok(())
}

/// All formats of documents of elements `T`.
fn check_case<T: Element>(suite: &Suite, device: &Device, case: &Case) -> Result<(), String> {
    let data = case.data();
    let rows = elements::<T>(&data.documents);
    let documents = tokens(&case.documents, &data.documents, &rows).map_err(text)?;
    let handle = device.upload(&documents).map_err(text)?;
    let mask = documents.mask().map(|mask| memory(device, mask)).transpose()?;
    let of_queries = elements::<f32>(&data.queries);
    let of_queries = tokens(&case.queries, &data.queries, &of_queries).map_err(text)?;
    let of_queries = device.upload(&of_queries).map_err(text)?;
    let halves = elements::<f16>(&data.queries);
    let halves = tokens(&case.queries, &data.queries, &halves).map_err(text)?;
    let halves = device.upload(&halves).map_err(text)?;
    for scales in [ScaleType::F16, ScaleType::F32] {
        let int8 = of_queries.quantize::<Int8>(scales).map_err(text)?;
        check::<T, Int8, Int8>(&int8, &handle, mask.as_ref(), scales)?;
        let fp8 = of_queries.quantize::<Fp8>(scales).map_err(text)?;
        check::<T, Fp8, Fp8>(&fp8, &handle, mask.as_ref(), scales)?;
        suite.count(&format!("{device} {} {}", Int8::FORMAT, T::TYPE));
    }
    check::<T, f16, Int8Affine>(&halves, &handle, mask.as_ref(), ScaleType::F16)
}

#[test]
fn codes_in_memory_of_the_caller() {
    Suite::run_gpu("codes_in_memory_of_the_caller", |suite| {
        let mut n_cases = 0;
        for device in cuda_devices() {
            for dim in [128, 96, 64, 7, 257, 1, 16, 2000] {
                for (lengths, valid) in
                    [([130, 1, 0, 64], None), ([300, 7, 200, 65], Some(60)), ([0; 4], None)]
                {
                    let mut case = Case::new(dim, &[32, 5], &lengths);
                    case.documents.valid_percent = valid;
                    let at = |why| format!("{device} {case:?}: {why}");
                    check_case::<f16>(suite, device, &case).map_err(at)?;
                    check_case::<bf16>(suite, device, &case).map_err(at)?;
                    check_case::<f32>(suite, device, &case).map_err(at)?;
                    n_cases += 3;
                }
            }
        }
        Ok(n_cases)
    });
}

/// A row with one scale for all is a row with a scale of its own.
#[test]
fn one_scale_for_all_rows_as_words() {
    Suite::run_gpu("one_scale_for_all_rows_as_words", |suite| {
        let mut n_cases = 0;
        for device in cuda_devices() {
            let case = Case::new(128, &[32], &[200, 31, 64]);
            let data = case.data();
            let rows = elements::<f32>(&data.documents);
            let documents = tokens(&case.documents, &data.documents, &rows).map_err(text)?;
            let codes = documents.quantize::<Fp8>(ScaleType::Tensor).map_err(text)?;
            let expected = device.upload(&codes).map_err(text)?;
            let n = codes.layout().rows();
            let scales: Vec<f32> = (0..n).map(|row| codes.scales().scale(row)).collect();
            let mut bytes: Vec<u8> = cast_slice(&scales).to_vec();
            bytes.resize(RawScaleWords::len_bytes(n) as usize, 0xFF);
            let words = memory(device, &bytes)?;
            let access = expected.access();
            // SAFETY: codes and words outlive the view, and nothing writes to them.
            let view = unsafe {
                DeviceTokens::<Fp8>::from_raw_codes_unchecked(
                    device,
                    RawRows::new(access.base, access.pitch_bytes),
                    RawScaleWords::new(words.access().base),
                    codes.layout().clone(),
                )
            };
            let view = view.map_err(text)?;
            let [a, b] = [&expected, &view].map(|x| device.score(&expected, x, &Pairing::cross()));
            if !same_bits(&a.map_err(text)?, &b.map_err(text)?) {
                return Err(format!("{device}: other scores"));
            }
            suite.count(&format!("{device}"));
            n_cases += 1;
        }
        Ok(n_cases)
    });
}
