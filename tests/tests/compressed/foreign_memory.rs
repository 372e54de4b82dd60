//! Tokens and codes in foreign memory, which start and end anywhere: they are compressed and scored
//! as those that were uploaded.

use bytemuck::cast_slice;
use half::{bf16, f16};
use maxsim::format::{
    Element, Fp8, Int8, Quantized, RawRows, RawScales, ScaleType, Scales, ScorableWith,
};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::FORWARD;
use maxsim_tests::case::{Case, elements, tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{same_bits, text};
use maxsim_tests::suite::Suite;

use super::handles::{check_codes, check_formats, check_matrix, from_bytes};

/// Codes and scales where they are, as a handle of their own: they are the same, and so are scores.
pub(super) fn check_view<Q: ScorableWith<F>, F: Quantized>(
    queries: &DeviceTokens<Q>,
    codes: &DeviceTokens<F>,
) -> Result<(), String> {
    let (device, layout) = (codes.device(), codes.layout());
    let expected = codes.download().map_err(text)?;
    let rows = layout.rows();
    // Scales are put there as one row.
    let is_one_row = (1..=4096).contains(&rows);
    let can_score = device.can_score(Q::FORMAT, F::FORMAT);
    // As documents, which have no weights.
    let has_beside = expected.mask().is_some() || layout.is_weighted();
    if device.ordinal().is_none() || !can_score || has_beside || !is_one_row {
        return Ok(());
    }
    // What is put there stays until the view has been made.
    let (mut halves, mut numbers) = (Vec::new(), Vec::new());
    let mut put = |scales: &[f16]| -> Result<u64, String> {
        let tokens = Tokens::padded(scales, 1, 1, rows).map_err(text)?;
        halves.push(device.upload(&tokens).map_err(text)?);
        Ok(halves[halves.len() - 1].access().base)
    };
    let raw = match expected.scales() {
        Scales::F16(scales) => RawScales::F16(put(scales)?),
        Scales::Affine { scales, mins } => {
            RawScales::Affine { scales: put(scales)?, mins: put(mins)? }
        }
        Scales::F32(scales) => {
            let tokens = Tokens::padded(scales, 1, 1, rows).map_err(text)?;
            numbers.push(device.upload(&tokens).map_err(text)?);
            RawScales::F32(numbers[0].access().base)
        }
        Scales::Tensor(scale) => RawScales::Tensor(*scale),
        other => panic!("no test knows {other:?}"),
    };
    let access = codes.access();
    // SAFETY: the codes outlive the view, and nothing writes to them.
    let view = unsafe {
        let layout = layout.clone();
        DeviceTokens::<F>::from_raw_codes(
            device,
            RawRows::new(access.base, access.pitch_bytes),
            raw,
            layout,
        )
    };
    let view = view.map_err(text)?;
    check_codes(&view.download().map_err(text)?, &expected)?;
    let cross = Pairing::cross();
    let [ours, theirs] = [codes, &view].map(|documents| device.score(queries, documents, &cross));
    match same_bits(&ours.map_err(text)?, &theirs.map_err(text)?) {
        true => Ok(()),
        false => Err("other scores of a view".into()),
    }
}

/// Foreign rows and masks, which start and end anywhere.
#[test]
fn views() {
    fn check<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for (dim, first, pitch) in [
            (128, 0, 128usize),
            (128, 8, 136),
            (128, 1, 129),
            (96, 3, 100),
            (7, 1, 9),
            (257, 2, 260),
            (1, 0, 1),
            (2000, 16, 2064),
        ] {
            let mut case = Case { element: T::TYPE, ..Case::new(dim, &[1], &[130, 1, 0, 64]) };
            case.documents.valid_percent = Some(60);
            let data = case.data();
            let rows = elements::<T>(&data.documents);
            let masked = tokens(&case.documents, &data.documents, &rows).map_err(text)?;
            let layout =
                TokenLayout::packed(195, dim, &[0i64, 130, 131, 131, 195]).map_err(text)?;
            let plain = Tokens::from_layout(&rows[..], layout.clone()).map_err(text)?;
            // What lies between the rows must not show.
            let n = (first + 195 * pitch).next_multiple_of(8);
            let mut spread = vec![T::from_f32(f32::NAN); n];
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                spread[first + i * pitch..][..dim].copy_from_slice(row);
            }
            let mut mask = masked.mask().unwrap_or_default().to_vec();
            mask.resize(mask.len().next_multiple_of(16), 0);
            let mask: Vec<f32> = from_bytes(&mask);
            for device in cuda_devices() {
                let at = |why| format!("dim {dim}, {first} + i · {pitch}: {why}");
                let upload = |tokens: Result<_, Error>| -> Result<DeviceTokens<T>, String> {
                    tokens.and_then(|tokens: Tokens<'_, T>| device.upload(&tokens)).map_err(text)
                };
                let memory = upload(Tokens::padded(&spread, n / 8, 1, 8))?;
                let mask = Tokens::padded(&mask, mask.len() / 4, 1, 4).map_err(text)?;
                let mask = device.upload(&mask).map_err(text)?;
                let size = size_of::<T>() as u64;
                let view = |mask: Option<u64>| {
                    let address = memory.access().base + first as u64 * size;
                    let (pitch_bytes, layout) = (pitch as u64 * size, layout.clone());
                    // SAFETY: both outlive the view, and nothing writes to them.
                    unsafe {
                        DeviceTokens::<T>::from_raw_parts(
                            device,
                            RawRows::new(address, pitch_bytes).mask(mask),
                            layout,
                        )
                    }
                };
                for (mask, tokens) in [(None, &plain), (Some(mask.access().base), &masked)] {
                    let view = view(mask).map_err(text)?;
                    let found = view.download().map_err(text)?;
                    check_matrix(&found, tokens).map_err(at)?;
                    check_formats(suite, &view, tokens).map_err(at)?;
                    n_cases += 1;
                }
            }
        }
        Ok(n_cases)
    }
    Suite::run_gpu("quantized_handles_views", |suite| {
        Ok(check::<f16>(suite)? + check::<bf16>(suite)? + check::<f32>(suite)?)
    });
}

/// Foreign codes that start and end anywhere are scored by kernels that copy them byte by
/// byte: scores are those of the same kernel for codes that were uploaded.
#[test]
fn views_of_codes() {
    fn check<F: Quantized + ScorableWith<F>>(
        suite: &Suite,
        operand: Operand,
    ) -> Result<usize, String> {
        let mut n_cases = 0;
        for (dim, first, pitch) in [
            (128, 0, 128usize),
            (128, 16, 144),
            (128, 1, 129),
            (96, 3, 100),
            (7, 1, 9),
            (257, 2, 260),
            (1, 0, 1),
            (2000, 16, 2057),
        ] {
            let data = Case::new(dim, &[40, 3, 0, 70], &[130, 1, 0, 64]).data();
            let codes = |values: &[f32], offsets: &[i64; 5], mask: &[u8]| {
                let tokens = Tokens::packed(values, dim, offsets)?.with_mask(mask)?;
                tokens.quantize::<F>(ScaleType::F32)
            };
            let mask: Vec<u8> = (0..195).map(|row| u8::from(row % 5 != 3)).collect();
            let offsets = [&[0, 40, 43, 43, 113], &[0, 130, 131, 131, 195]];
            let queries = codes(&data.queries.values, offsets[0], &mask[..113]).map_err(text)?;
            let documents = codes(&data.documents.values, offsets[1], &mask).map_err(text)?;
            let layout = |offsets: &[i64; 5]| {
                TokenLayout::packed(offsets[4] as usize, dim, offsets).map_err(text)
            };
            let layouts = [layout(offsets[0])?, layout(offsets[1])?];
            for device in cuda_devices() {
                let at = |why| format!("{device} {} dim {dim} + {first}: {why}", F::FORMAT);
                let uploaded = [&queries, &documents].map(|codes| device.upload(codes));
                let [of_queries, of_documents] = uploaded.map(|codes| codes.map_err(text));
                let (of_queries, of_documents) = (of_queries?, of_documents?);
                let place = [first, pitch];
                let query_parts = parts_of(device, &queries, place)?;
                let document_parts = parts_of(device, &documents, place)?;
                let query_view = view_of::<F>(&query_parts, &layouts[0], place).map_err(text)?;
                let document_view =
                    view_of::<F>(&document_parts, &layouts[1], place).map_err(text)?;
                let named = |name: &str| {
                    ScoreOptions::default().winners(true).token_scores(true).kernel(name)
                };
                let any = named("").kernel(None);
                let cross = Pairing::cross();
                let plan = device.plan(&query_view, &document_view, &cross, &any);
                let plan = plan.map_err(text).map_err(at)?;
                let rows = FORWARD.iter().filter(|row| row.operand == operand);
                let rows = rows.filter(|row| row.arch == Arch::Sm80 && dim <= row.dim_max);
                for name in rows.map(|row| row.name).chain([plan.name()]) {
                    let options = named(name);
                    let expected = device.score_with(&of_queries, &of_documents, &cross, &options);
                    let found = device.score_with(&query_view, &document_view, &cross, &options);
                    let (expected, found) = (expected.map_err(text)?, found.map_err(text)?);
                    if !same_bits(&expected, &found) {
                        return Err(at(format!("other scores by {name}")));
                    }
                    suite.count(&format!("{device} {name}"));
                }
                n_cases += 1;
            }
        }
        Ok(n_cases)
    }
    Suite::run_gpu("quantized_handles_views_of_codes", |suite| {
        Ok(check::<Int8>(suite, Operand::I8)? + check::<Fp8>(suite, Operand::E4m3)?)
    });
}

/// Codes, scales and mask of tokens in foreign memory, the rows of codes `pitch` bytes
/// apart from byte `first` on, with bytes between them that are e4m3's NaN.
fn parts_of<F: Quantized>(
    device: &Device,
    tokens: &Tokens<'_, F>,
    [first, pitch]: [usize; 2],
) -> Result<[DeviceTokens<f32>; 3], String> {
    let (rows, dim) = (tokens.layout().rows(), tokens.layout().dim());
    let mut spread = vec![0x7F; (first + rows * pitch).next_multiple_of(4)];
    let codes: &[u8] = cast_slice(tokens.data());
    for (i, row) in codes.chunks_exact(dim).enumerate() {
        spread[first + i * pitch..][..dim].copy_from_slice(row);
    }
    let mut mask = tokens.mask().map_or(vec![1; rows], <[u8]>::to_vec);
    mask.resize(mask.len().next_multiple_of(4), 0);
    let scales: Vec<f32> = (0..rows).map(|row| tokens.scales().scale(row)).collect();
    // Rows of 16 bytes, which are uploaded without a gap.
    let upload = |bytes: &[u8]| {
        let mut words = from_bytes::<f32>(bytes);
        words.resize(words.len().next_multiple_of(4), 0.0);
        device.upload(&Tokens::padded(&words, words.len() / 4, 1, 4)?)
    };
    let uploaded = [&spread[..], cast_slice(&scales), &mask].map(upload);
    let [codes, scales, mask] = uploaded.map(|part| part.map_err(text));
    Ok([codes?, scales?, mask?])
}

/// A handle of what [`parts_of`] has put there.
fn view_of<F: Quantized>(
    [codes, scales, mask]: &[DeviceTokens<f32>; 3],
    layout: &TokenLayout,
    [first, pitch]: [usize; 2],
) -> Result<DeviceTokens<F>, Error> {
    let address = codes.access().base + first as u64;
    let scales = RawScales::F32(scales.access().base);
    // SAFETY: the parts outlive the view, and nothing writes to them.
    unsafe {
        DeviceTokens::from_raw_codes(
            codes.device(),
            RawRows::new(address, pitch as u64).mask(Some(mask.access().base)),
            scales,
            layout.clone(),
        )
    }
}
