//! Handles that are compressed where they are: codes and scales are those of `Tokens::quantize`, to
//! the bit, on every engine, and so is all that is made of them.

use bytemuck::{Pod, cast_slice, pod_read_unaligned};
use half::{bf16, f16};
use maxsim::format::{
    Element, ElementType, Format, Fp8, Int8, Int8Affine, Quantized, RawRows, ScaleType, Scales,
    ScorableWith, with_element,
};
use maxsim::{Device, DeviceTokens, Error, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::case::{Case, Data, Pairs, elements, tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{same_bits, text};
use maxsim_tests::quantized::{QuantizedCase, quantized_cases, special_row};
use maxsim_tests::strategy::EDGE_DIMS;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::{Values, stored};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::foreign_memory::check_view;

const BY_ROW: [ScaleType; 2] = [ScaleType::F16, ScaleType::F32];

/// Every device of the machine.
fn devices() -> Vec<Device> {
    [Device::cpu()].into_iter().chain(cuda_devices().iter().cloned()).collect()
}

pub(super) fn from_bytes<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect()
}

/// What scales are, as bits, with how they are stored.
fn bits(scales: &Scales<'_>) -> (&'static str, Vec<u32>) {
    let halves = |halves: &[f16]| halves.iter().map(|x| x.to_bits().into()).collect::<Vec<u32>>();
    match scales {
        Scales::F16(scales) => ("f16", halves(scales)),
        Scales::F32(scales) => ("f32", scales.iter().map(|x| x.to_bits()).collect()),
        Scales::Tensor(scale) => ("tensor", vec![scale.to_bits()]),
        Scales::Affine { scales, mins } => ("affine", [halves(scales), halves(mins)].concat()),
        other => panic!("no test knows {other:?}"),
    }
}

/// Compares layouts, masks and matrices.
pub(super) fn check_matrix<F: Format>(
    found: &Tokens<'_, F>,
    expected: &Tokens<'_, F>,
) -> Result<(), String> {
    if found.layout() != expected.layout() || found.mask() != expected.mask() {
        return Err("another layout or mask".into());
    }
    let (found, wanted) = (cast_slice::<_, u8>(found.data()), cast_slice::<_, u8>(expected.data()));
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    if found.len() != wanted.len() || first.is_some() {
        let bytes = first.map(|i| (found[i], wanted[i]));
        return Err(format!("byte {first:?} of the matrix: {bytes:?} (found, expected)"));
    }
    Ok(())
}

pub(super) fn check_codes<F: Quantized>(
    found: &Tokens<'_, F>,
    expected: &Tokens<'_, F>,
) -> Result<(), String> {
    let (a, b) = (bits(found.scales()), bits(expected.scales()));
    let first = a.1.iter().zip(&b.1).position(|(a, b)| a != b);
    if a != b {
        let values = first.map(|i| (a.1[i], b.1[i]));
        return Err(format!("{} and {} scales, {first:?}: {values:x?}", a.0, b.0));
    }
    check_matrix(found, expected)
}

/// The codes' memory, row by row with what lies behind each.
fn memory<F: Format>(codes: &DeviceTokens<F>) -> Result<(usize, Vec<u8>), String> {
    let (access, rows) = (codes.access(), codes.layout().rows());
    let layout = TokenLayout::padded(1, rows, access.pitch_bytes as usize / 4).map_err(text)?;
    // SAFETY: the codes outlive the view, and nothing writes to them.
    let view = unsafe {
        DeviceTokens::<f32>::from_raw_parts(
            codes.device(),
            RawRows::new(access.base, access.pitch_bytes),
            layout,
        )
    };
    let words = view.and_then(|view| view.download()).map_err(text)?;
    Ok((access.pitch_bytes as usize, cast_slice(words.data()).to_vec()))
}

/// A handle of tokens, compressed, against the tokens compressed.
fn check_handle<T: Element, F: Quantized>(
    suite: &Suite,
    handle: &DeviceTokens<T>,
    tokens: &Tokens<'_, T>,
    scales: ScaleType,
) -> Result<(), String> {
    let name = format!("{} {} of {}, {scales:?}", handle.device(), F::FORMAT, T::TYPE);
    let at = |what: String| format!("{name}: {what}");
    let expected = tokens.quantize::<F>(scales).map_err(text)?;
    let codes = handle.quantize::<F>(scales).map_err(text).map_err(at)?;
    check_codes(&codes.download().map_err(text).map_err(at)?, &expected).map_err(at)?;
    if handle.device().ordinal().is_some() && codes.layout().rows() > 0 {
        let (pitch, memory) = memory(&codes).map_err(at)?;
        let dim = codes.layout().dim();
        if memory.chunks(pitch).any(|row| row[dim..].iter().any(|&byte| byte != 0)) {
            return Err(at("there is something behind a row".into()));
        }
    }
    suite.count(&format!("{} {}", handle.device(), F::FORMAT));
    Ok(())
}

/// Codes that were uploaded come back as they were, and so do those that a handle makes; both as
/// documents of `queries`.
fn check_documents<Q: ScorableWith<F>, T: Element, F: Quantized>(
    queries: &DeviceTokens<Q>,
    handle: &DeviceTokens<T>,
    tokens: &Tokens<'_, T>,
    scales: ScaleType,
) -> Result<(), String> {
    let expected = tokens.quantize::<F>(scales).map_err(text)?;
    for codes in [handle.device().upload(&expected), handle.quantize::<F>(scales)] {
        let codes = codes.map_err(text)?;
        check_codes(&codes.download().map_err(text)?, &expected)?;
        check_view(queries, &codes)?;
    }
    Ok(())
}

/// As [`check_handle`], in all formats.
pub(super) fn check_formats<T: Element>(
    suite: &Suite,
    handle: &DeviceTokens<T>,
    tokens: &Tokens<'_, T>,
) -> Result<(), String> {
    for scales in BY_ROW {
        check_handle::<T, Int8>(suite, handle, tokens, scales)?;
        check_handle::<T, Fp8>(suite, handle, tokens, scales)?;
        let (int8, fp8) = (handle.quantize::<Int8>(scales), handle.quantize::<Fp8>(scales));
        let (int8, fp8) = (int8.map_err(text)?, fp8.map_err(text)?);
        check_view(&int8, &int8).map_err(|what| format!("int8 view: {what}"))?;
        check_view(&fp8, &fp8).map_err(|what| format!("fp8 view: {what}"))?;
        check_documents::<_, T, Int8Affine>(&int8, handle, tokens, ScaleType::F16)
            .map_err(|what| format!("int8-affine: {what}"))?;
        check_documents::<_, T, Fp8>(&fp8, handle, tokens, ScaleType::Tensor)
            .map_err(|what| format!("fp8 with one scale: {what}"))?;
    }
    check_handle::<T, Fp8>(suite, handle, tokens, ScaleType::Tensor)?;
    check_handle::<T, Int8Affine>(suite, handle, tokens, ScaleType::F16)
}

/// Tokens on every device.
fn check_tokens<T: Element>(suite: &Suite, tokens: &Tokens<'_, T>) -> Result<(), String> {
    for device in devices() {
        let handle = device.upload(tokens).map_err(text)?;
        check_matrix(&handle.download().map_err(text)?, tokens)?;
        check_formats(suite, &handle, tokens)?;
    }
    Ok(())
}

/// Both sides of a case.
fn check_data(suite: &Suite, case: &Case, data: &Data) -> Result<(), String> {
    fn check<T: Element>(suite: &Suite, case: &Case, data: &Data) -> Result<(), String> {
        for (side, matrix) in [(&case.queries, &data.queries), (&case.documents, &data.documents)] {
            let elements = elements::<T>(matrix);
            check_tokens(suite, &tokens(side, matrix, &elements).map_err(text)?)?;
        }
        Ok(())
    }
    with_element!(case.element, T => check::<T>(suite, case, data))
}

fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    check_data(suite, case, &case.data())
}

/// The cases with every type of elements.
fn of_every_type(cases: Vec<Case>) -> impl Iterator<Item = Case> {
    let of = |case: Case| ElementType::ALL.map(|element| Case { element, ..case.clone() });
    cases.into_iter().flat_map(of)
}

#[test]
fn random() {
    let check = |suite: &Suite, case: &QuantizedCase| check_case(suite, &case.case);
    Suite::run_random("quantized_handles_random", quantized_cases, check);
}

/// Every number of lanes and of document splits.
#[test]
fn dims() {
    let dims = (1..=70).chain(EDGE_DIMS).chain([240, 241, 272, 1000, 1024, 2049, 4080, 4095]);
    let cases = dims.map(|dim| Case { values: Values::Mixed, ..Case::new(dim, &[1], &[37, 4]) });
    Suite::run("quantized_handles_dims", of_every_type(cases.collect()), check_case);
}

#[test]
fn layouts_and_masks() {
    let case = Case { poison: true, ..Case::new(40, &[5, 0, 17, 1], &[16, 70, 0, 1, 9]) };
    let mut cases = case.in_every_layout_and_pairing();
    cases.retain(|case| case.pairs == Pairs::Cross);
    for nothing in [vec![], vec![0]] {
        let mut case = Case::new(16, &nothing, &nothing);
        cases.push(case.clone());
        case.queries.valid_percent = Some(50);
        cases.push(case);
    }
    for ((i, case), values) in (0..).zip(&mut cases).zip(Values::ALL.into_iter().cycle()) {
        (case.values, case.seed) = (values, case.seed + i);
    }
    Suite::run("quantized_handles_layouts", of_every_type(cases), check_case);
}

/// Rows of every special kind, each kind alone among ordinary rows, and all at once.
#[test]
fn special_rows() {
    let dims = [1, 5, 128, 1100];
    let cases = dims.into_iter().flat_map(|dim| {
        let cases = of_every_type(vec![Case::new(dim, &[3, 2], &[4, 1, 27])]);
        cases.flat_map(|case| (0..17).map(move |kind| (kind, case.clone())))
    });
    Suite::run("quantized_handles_special_rows", cases, |suite, (kind, case)| {
        let mut data = case.data();
        for side in [&mut data.queries, &mut data.documents] {
            for (i, row) in side.values.chunks_exact_mut(side.dim).enumerate() {
                match kind {
                    16 => special_row(i % 16, row),
                    kind if i % 2 == 1 => special_row(*kind, row),
                    _ => continue,
                }
                row.iter_mut().for_each(|x| *x = stored(case.element, *x));
            }
        }
        check_data(suite, case, &data)
    });
}

/// Elements of any bits: subnormal numbers, NaNs of any payload, and neighbours that are as far
/// from each other as can be; and the same rows without what is not finite.
#[test]
fn any_bits() {
    fn check<T: Element>(suite: &Suite, dim: usize) -> Result<(), String> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(dim as u64);
        let bytes: Vec<u8> = (0..700 * dim * size_of::<T>()).map(|_| rng.random()).collect();
        let mut elements: Vec<T> = from_bytes(&bytes);
        for finite in [false, true] {
            if finite {
                let zero =
                    |x: &mut T| *x = if x.to_f32().is_finite() { *x } else { T::from_f32(0.0) };
                elements.iter_mut().for_each(zero);
            }
            check_tokens(suite, &Tokens::padded(&elements, 1, 700, dim).map_err(text)?)?;
        }
        Ok(())
    }
    let cases = [1, 2, 3, 4, 8, 13, 64]
        .into_iter()
        .flat_map(|dim| ElementType::ALL.into_iter().map(move |element| (element, dim)));
    Suite::run(
        "quantized_handles_any_bits",
        cases,
        |suite, &(element, dim)| with_element!(element, T => check::<T>(suite, dim)),
    );
}

/// Every f16 and every bf16 number, as the largest of its row and beside larger ones.
#[test]
fn every_number() {
    fn check<T: Element>(suite: &Suite, from_bits: impl Fn(u16) -> T) -> Result<(), String> {
        let others = [0.0, 1.0, 448.0, 3.2e4].map(T::from_f32);
        for other in others {
            let rows: Vec<T> = (0..=u16::MAX).flat_map(|x| [from_bits(x), other]).collect();
            check_tokens(suite, &Tokens::padded(&rows, 1, 1 << 16, 2).map_err(text)?)?;
        }
        Ok(())
    }
    Suite::run("quantized_handles_every_number", [(); 1], |suite, ()| {
        check(suite, f16::from_bits)?;
        check(suite, bf16::from_bits)
    });
}

/// The largest magnitude of more rows than a device reads at once, wherever it is: beside larger
/// ones that are no number, are masked, or belong to no item.
#[test]
fn the_largest_of_many_rows() {
    const ROWS: usize = 10_000;
    const DIM: usize = 128;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let values: Vec<f32> = (0..ROWS * DIM).map(|_| rng.random_range(-1.0..1.0)).collect();
    let offsets = [3i64, 40, 9000, ROWS as i64 - 2];
    let mask: Vec<u8> =
        (0..ROWS).map(|row| if row % 4 == 1 { 0 } else { (row as u8).max(1) }).collect();
    let cases = [4, 39, 40, 4222, 8998, ROWS - 4].into_iter().map(|row| row * DIM + row % DIM);
    Suite::run("quantized_handles_many_rows", cases, |suite, &largest| {
        let mut values = values.clone();
        values[largest] = -2.0;
        // In a masked row, and in rows before and behind all items.
        for (element, x) in [(5 * DIM, 3.0), (2 * DIM + 127, 4.0), ((ROWS - 1) * DIM, 5.0)] {
            values[element] = x;
        }
        (values[6 * DIM], values[8002 * DIM]) = (f32::NAN, f32::NEG_INFINITY);
        let tokens = Tokens::packed(&values, DIM, &offsets).map_err(text)?;
        let tokens = tokens.with_mask(&mask[..]).map_err(text)?;
        let codes = tokens.quantize::<Fp8>(ScaleType::Tensor).map_err(text)?;
        if *codes.scales() != Scales::Tensor(2.0 / 448.0) {
            return Err(format!("scale {}", codes.scales().scale(0)));
        }
        for device in devices() {
            let handle = device.upload(&tokens).map_err(text)?;
            check_handle::<f32, Fp8>(suite, &handle, &tokens, ScaleType::Tensor)?;
            check_handle::<f32, Int8Affine>(suite, &handle, &tokens, ScaleType::F16)?;
        }
        Ok(())
    });
}

/// Scores of codes made on a device are those of codes that were uploaded.
#[test]
fn scores_are_those_of_uploaded_codes() {
    fn check<Q: Quantized + ScorableWith<D>, D: Quantized>(
        suite: &Suite,
        case: &Case,
        scales: [ScaleType; 2],
    ) -> Result<(), String> {
        let data = case.data();
        let (q, d) = (elements::<f16>(&data.queries), elements::<f16>(&data.documents));
        let queries = tokens(&case.queries, &data.queries, &q).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &d).map_err(text)?;
        let pairing = case.pairing(&data).map_err(text)?;
        let options = ScoreOptions::default().winners(true).token_scores(true);
        for device in devices() {
            if !device.can_score(Q::FORMAT, D::FORMAT) {
                continue;
            }
            let score = |q: Result<DeviceTokens<Q>, Error>, d: Result<DeviceTokens<D>, Error>| {
                device.score_with(&q?, &d?, &pairing, &options)
            };
            let [of_queries, of_documents] = scales;
            let expected = score(
                uploaded(&device, &queries, of_queries),
                uploaded(&device, &documents, of_documents),
            );
            let found =
                score(made(&device, &queries, of_queries), made(&device, &documents, of_documents));
            if !same_bits(&expected.map_err(text)?, &found.map_err(text)?) {
                return Err(format!("{device} {}×{}: other scores", Q::FORMAT, D::FORMAT));
            }
            suite.count(&format!("{device} {}×{}", Q::FORMAT, D::FORMAT));
        }
        Ok(())
    }
    fn uploaded<F: Quantized>(
        device: &Device,
        tokens: &Tokens<'_, f16>,
        scales: ScaleType,
    ) -> Result<DeviceTokens<F>, Error> {
        device.upload(&tokens.quantize::<F>(scales)?)
    }
    fn made<F: Quantized>(
        device: &Device,
        tokens: &Tokens<'_, f16>,
        scales: ScaleType,
    ) -> Result<DeviceTokens<F>, Error> {
        device.upload(tokens)?.quantize::<F>(scales)
    }
    let cases = [1, 15, 16, 100, 128, 300].map(|dim| {
        let mut case = Case::new(dim, &[7, 33, 0, 70], &[40, 1, 0, 150]);
        case.element = ElementType::F16;
        case.documents.valid_percent = Some(80);
        case
    });
    Suite::run("quantized_handles_scores", cases, |suite, case| {
        check::<Int8, Int8>(suite, case, [ScaleType::F32, ScaleType::F16])?;
        check::<Int8, Int8Affine>(suite, case, [ScaleType::F32, ScaleType::F16])?;
        check::<Fp8, Fp8>(suite, case, [ScaleType::F32, ScaleType::F16])?;
        check::<Fp8, Fp8>(suite, case, [ScaleType::Tensor, ScaleType::Tensor])
    });
}

/// Codes live without the rows that they were made of, and their memory is their own.
#[test]
fn codes_outlive_their_rows() {
    fn check<F: Quantized>(tokens: &Tokens<'_, f32>, scales: ScaleType) {
        let expected = tokens.quantize::<F>(scales).expect("codes");
        for device in devices() {
            let handle = device.upload(tokens).expect("a handle");
            let codes = handle.quantize::<F>(scales).expect("codes");
            drop(handle);
            let others = Tokens::padded(&[f32::NAN; 50 * 48], 1, 50, 48).expect("tokens");
            let _others = device.upload(&others).expect("a handle");
            check_codes(&codes.download().expect("codes"), &expected).expect("the same");
        }
    }
    let case = Case::new(48, &[1], &[50]);
    let data = case.data();
    let mask: Vec<u8> = (0..50).map(|i| u8::from(i % 3 != 0)).collect();
    let tokens = Tokens::padded(&data.documents.values, 1, 50, 48).expect("tokens");
    let tokens = tokens.with_mask(&mask[..]).expect("a mask");
    check::<Int8>(&tokens, ScaleType::F16);
    check::<Int8Affine>(&tokens, ScaleType::F16);
    check::<Fp8>(&tokens, ScaleType::Tensor);
}

#[test]
fn what_there_is_not_is_unsupported() {
    let values = [1.0f32, 2.0, 3.0, 4.0];
    let tokens = Tokens::padded(&values, 1, 2, 2).expect("tokens");
    let unsupported = |result: Result<(), Error>, words: [&str; 2]| match result {
        Err(Error::Unsupported { what, why }) => {
            assert!(what.contains(words[0]) && why.contains(words[1]), "{what}: {why}");
        }
        other => panic!("{other:?}"),
    };
    for device in devices() {
        let handle = device.upload(&tokens).expect("a handle");
        let int8 = handle.quantize::<Int8>(ScaleType::Tensor).map(|_| ());
        unsupported(int8, ["int8 tokens with scales of type tensor", "f16 or f32"]);
        for scales in [ScaleType::F32, ScaleType::Tensor] {
            let affine = handle.quantize::<Int8Affine>(scales).map(|_| ());
            let what = format!("int8-affine tokens with scales of type {}", scales.name());
            unsupported(affine, [&what, "f16"]);
        }
    }
}
