//! Coarse-to-fine scores on CUDA devices: rows that lie anywhere, other work at the same time, and
//! the time that it takes.

use half::{bf16, f16};
use maxsim::format::{Element, Int8, RawRows, ScaleType, Scales};
use maxsim::search::CoarseCodes;
use maxsim::stream::{DeviceScores, Queue};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_tests::case::{Case, elements, tokens};
use maxsim_tests::coarse::has_kernels;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{same_bits, text};
use maxsim_tests::suite::Suite;

const EVERYTHING: fn() -> ScoreOptions =
    || ScoreOptions::default().winners(true).token_scores(true);

/// The devices that have kernels for INT8 codes.
fn devices() -> impl Iterator<Item = &'static Device> {
    cuda_devices().iter().filter(|device| has_kernels(device))
}

/// A matrix's rows in foreign memory, `pitch` elements apart from element `first` on,
/// with ones between them: that memory, and the view.
fn view<T: Element>(
    device: &Device,
    rows: &[T],
    layout: &TokenLayout,
    [first, pitch]: [usize; 2],
) -> Result<(DeviceTokens<T>, DeviceTokens<T>), Error> {
    let dim = layout.dim();
    let n = (first + layout.rows() * pitch).next_multiple_of(8);
    let mut spread = vec![T::from_f32(1.0); n];
    for (i, row) in rows.chunks_exact(dim).enumerate() {
        spread[first + i * pitch..][..dim].copy_from_slice(row);
    }
    let memory = device.upload(&Tokens::padded(&spread, n / 8, 1, 8)?)?;
    let size = size_of::<T>() as u64;
    let address = memory.access().base + first as u64 * size;
    // SAFETY: the caller keeps `memory` as long as the view, and nothing writes to it.
    let view = unsafe {
        DeviceTokens::from_raw_parts(
            device,
            RawRows::new(address, pitch as u64 * size),
            layout.clone(),
        )?
    };
    Ok((memory, view))
}

/// Scores of views must be those of uploaded rows, but for rounding: winners are the same, and
/// zeros of either sign.
fn check_views<T: Element>(suite: &Suite) -> Result<usize, String> {
    let mut n_cases = 0;
    // Rows of whole 16-byte vectors; rows that start anywhere; rows that end anywhere.
    for (dim, first, pitch) in
        [(128, 0, 128), (128, 8, 136), (128, 1, 129), (96, 3, 100), (7, 1, 9), (257, 2, 260)]
    {
        let case = Case { element: T::TYPE, ..Case::new(dim, &[40, 3, 0], &[130, 1, 0, 64]) };
        let data = case.data();
        let (q, d): (Vec<T>, Vec<T>) = (elements(&data.queries), elements(&data.documents));
        let queries = tokens(&case.queries, &data.queries, &q).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &d).map_err(text)?;
        let codes = [queries.quantize::<Int8>(ScaleType::F32), documents.quantize(ScaleType::F16)];
        let [query_codes, document_codes] = codes.map(|codes| codes.expect("codes"));
        let by_codes = CoarseCodes::new(&query_codes, &document_codes).assumed();
        for device in devices() {
            let at = |why: String| format!("{device} {} dim {dim} + {first}: {why}", T::TYPE);
            for pairing in
                [Ok(Pairing::cross()), Pairing::pairs(&[0i64, 1, 1, 2, 0], &[3i64, 0, 2, 1, 1])]
            {
                let pairing = pairing.map_err(text)?;
                let place = [first, pitch];
                let (_query_memory, query_view) =
                    view(device, &q, queries.layout(), place).map_err(text)?;
                let (_document_memory, document_view) =
                    view(device, &d, documents.layout(), place).map_err(text)?;
                let options = EVERYTHING();
                let uploaded = device
                    .rescore(&queries, &documents, &by_codes, &pairing, &options)
                    .map_err(text)?;
                let of_views = device
                    .rescore(&query_view, &document_view, &by_codes, &pairing, &options)
                    .map_err(text)?;
                same_but_for_rounding(&uploaded, &of_views, dim).map_err(at)?;
                let mixed = device
                    .rescore(&queries, &document_view, &by_codes, &pairing, &options)
                    .map_err(text)?;
                same_but_for_rounding(&uploaded, &mixed, dim).map_err(at)?;
                n_cases += 1;
            }
            suite.count(&device.to_string());
        }
    }
    Ok(n_cases)
}

fn same_but_for_rounding(a: &Scores, b: &Scores, dim: usize) -> Result<(), String> {
    // Unit rows: a similarity's products are at most 1 in all, and a query has 40 tokens.
    let near = |a: &[f32], b: &[f32], n_tokens: f32| {
        let most = n_tokens * (dim as f32 + 8.0) * f32::EPSILON;
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= most)
    };
    let token_scores = (a.token_scores().unwrap_or(&[]), b.token_scores().unwrap_or(&[1.0]));
    match a.winners() == b.winners()
        && near(token_scores.0, token_scores.1, 1.0)
        && near(a.values(), b.values(), 40.0)
    {
        true => Ok(()),
        false => Err(format!("{a:?} and {b:?}")),
    }
}

#[test]
fn rows_may_lie_anywhere() {
    Suite::run_gpu("gpu_coarse_views", |suite| {
        Ok(check_views::<f16>(suite)? + check_views::<bf16>(suite)? + check_views::<f32>(suite)?)
    });
}

/// Two streams with one work: winners belong to scores, so that neither sees the other's.
#[test]
fn streams_share_a_work() {
    Suite::run_gpu("gpu_coarse_streams", |suite| {
        let case = Case::new(64, &[32, 70], &[200; 300]);
        let data = [case.data(), Case { seed: 7, ..case.clone() }.data()];
        for device in devices() {
            let mut sets = Vec::new();
            for data in &data {
                let (q, d): (Vec<f32>, Vec<f32>) =
                    (elements(&data.queries), elements(&data.documents));
                let queries = tokens(&case.queries, &data.queries, &q).map_err(text)?;
                let documents = tokens(&case.documents, &data.documents, &d).map_err(text)?;
                let codes = documents.quantize::<Int8>(ScaleType::F16).map_err(text)?;
                let query_codes = queries.quantize::<Int8>(ScaleType::F16).map_err(text)?;
                let by_codes = CoarseCodes::new(&query_codes, &codes).assumed();
                let (cross, options) = (Pairing::cross(), EVERYTHING());
                let expected = device
                    .rescore(&queries, &documents, &by_codes, &cross, &options)
                    .map_err(text)?;
                let handles = (
                    device.upload(&queries).map_err(text)?,
                    device.upload(&documents).map_err(text)?,
                    device.upload(&query_codes).map_err(text)?,
                    device.upload(&codes).map_err(text)?,
                );
                sets.push((handles, expected));
            }
            let (q, d, query_codes, codes) = &sets[0].0;
            let by_codes = CoarseCodes::new(query_codes, codes).assumed();
            let work = device
                .prepare_rescore(q, d, &by_codes, &Pairing::cross(), &EVERYTHING())
                .map_err(text)?;
            let mut streams = Vec::new();
            for _ in 0..2 {
                let scores: DeviceScores = work.new_scores().map_err(text)?;
                streams.push((device.stream().map_err(text)?, scores));
            }
            for _ in 0..20 {
                for ((stream, scores), (handles, _)) in streams.iter_mut().zip(&sets) {
                    let (q, d, query_codes, codes) = handles;
                    let by_codes = CoarseCodes::new(query_codes, codes).assumed();
                    stream.rescore_into(q, d, &by_codes, &work, scores).map_err(text)?;
                }
            }
            for ((_, scores), (_, expected)) in streams.iter().zip(&sets) {
                if !same_bits(&scores.read().map_err(text)?, expected) {
                    return Err(format!("{device}: another stream's winners"));
                }
            }
            suite.count(&device.to_string());
        }
        Ok(40)
    });
}

/// Median milliseconds of a call.
fn median_ms(
    device: &Device,
    mut call: impl FnMut(&mut maxsim::stream::Stream) -> Result<(), Error>,
) -> Result<f32, Error> {
    let mut stream = device.stream()?;
    for _ in 0..5 {
        call(&mut stream)?;
    }
    let mut times = Vec::new();
    for _ in 0..21 {
        let (mut start, mut end) = (device.event()?, device.event()?);
        stream.record(&mut start)?;
        call(&mut stream)?;
        stream.record(&mut end)?;
        times.push(end.elapsed_ms(&start)?);
    }
    times.sort_by(f32::total_cmp);
    Ok(times[times.len() / 2])
}

/// One query against documents larger than any cache, f16, INT8, and coarse to fine. (Some of the
/// documents are the same rows elsewhere in memory.)
#[test]
fn a_short_query_gets_faster() {
    const DIM: usize = 128;
    const COPIES: usize = 20;
    Suite::run_gpu("gpu_coarse_time", |suite| {
        if std::env::var("MAXSIM_UNTIMED").as_deref() == Ok("1") {
            return Ok(0);
        }
        for (query_len, n, len) in [(32, 500, 1024), (32, 500, 300), (1024, 50, 1024)] {
            let case = Case::new(DIM, &[query_len], &vec![len; n]);
            let data = case.data();
            let q: Vec<f16> = data.queries.values.iter().map(|&x| f16::from_f32(x)).collect();
            let d: Vec<f16> = data.documents.values.iter().map(|&x| f16::from_f32(x)).collect();
            let queries = Tokens::padded(&q, 1, query_len, DIM).map_err(text)?;
            let few = Tokens::padded(&d, n, len, DIM).map_err(text)?;
            let few_codes = few.quantize::<Int8>(ScaleType::F16).map_err(text)?;
            let query_codes = queries.quantize::<Int8>(ScaleType::F16).map_err(text)?;
            let many = d.repeat(COPIES);
            let many = Tokens::padded(&many, n * COPIES, len, DIM).map_err(text)?;
            let Scales::F16(scales) = few_codes.scales() else { return Err("f16 scales".into()) };
            let codes = Tokens::<Int8>::from_codes(
                few_codes.data().repeat(COPIES),
                Scales::F16(scales.repeat(COPIES).into()),
                many.layout().clone(),
            );
            let codes = codes.map_err(text)?;
            for device in devices() {
                let (q, d) = (device.upload(&queries), device.upload(&many));
                let (q, d) = (q.map_err(text)?, d.map_err(text)?);
                let handles = (device.upload(&query_codes), device.upload(&codes));
                let (q8, d8) = (handles.0.map_err(text)?, handles.1.map_err(text)?);
                let (cross, options) = (Pairing::cross(), ScoreOptions::default());
                let f16_work = device.prepare(&q, &d, &cross, &options).map_err(text)?;
                let int8_work = device.prepare(&q8, &d8, &cross, &options).map_err(text)?;
                let by_codes = CoarseCodes::new(&q8, &d8).assumed();
                let work = device.prepare_rescore(&q, &d, &by_codes, &cross, &options);
                let work = work.map_err(text)?;
                let mut exact = f16_work.new_scores().map_err(text)?;
                let mut coarse = int8_work.new_scores().map_err(text)?;
                let mut both = work.new_scores().map_err(text)?;
                let f16_ms = median_ms(device, |s| s.score_into(&q, &d, &f16_work, &mut exact));
                let int8_ms =
                    median_ms(device, |s| s.score_into(&q8, &d8, &int8_work, &mut coarse));
                let both_ms =
                    median_ms(device, |s| s.rescore_into(&q, &d, &by_codes, &work, &mut both));
                let [f16_ms, int8_ms, both_ms] =
                    [f16_ms.map_err(text)?, int8_ms.map_err(text)?, both_ms.map_err(text)?];
                let exact = exact.read().map_err(text)?;
                let found = both.read().map_err(text)?;
                let mut loss = 0.0;
                for (&exact, &score) in exact.values().iter().zip(found.values()) {
                    // Tensor cores cut off what they add.
                    if score > exact * (1.0 + 1e-5) {
                        return Err(format!("{device}: {score} is above {exact}"));
                    }
                    loss += f64::from(exact - score) / f64::from(exact);
                }
                loss /= (n * COPIES) as f64;
                suite.note(&format!(
                    "{device} {query_len} × {} × {len}: f16 {f16_ms:.4} ms, INT8 {int8_ms:.4}, \
                     coarse to fine {both_ms:.4}, {:.2} × as fast as f16, mean loss {loss:.1e}",
                    n * COPIES,
                    f16_ms / both_ms
                ));
                if loss > 1e-3 {
                    return Err(format!("{device}: mean loss {loss:e}"));
                }
                suite.count(&device.to_string());
            }
        }
        Ok(3)
    });
}
