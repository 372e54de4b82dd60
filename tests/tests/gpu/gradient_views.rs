//! Gradients of tokens, and gradients, that lie in memory of others: rows at any distance from any
//! address.

use half::{bf16, f16};
use maxsim::format::{Element, RawRows};
use maxsim::stream::Queue;
use maxsim::training::{
    BackwardOptions, BackwardStrategy, DeviceGradScores, DeviceGradients, GradientType, Gradients,
};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::suite::Suite;

const QUERY_LENS: [i64; 3] = [17, 0, 3];
const DOCUMENT_LENS: [i64; 4] = [40, 1, 0, 130];

/// Whole numbers, so that sums are exact in whatever order, of rows `first + i · pitch`; NaN
/// between them, which no kernel may read.
fn spread<T: Element>(rows: usize, dim: usize, first: usize, pitch: usize, seed: usize) -> Vec<T> {
    let n = (first + rows * pitch).next_multiple_of(8);
    let mut data = vec![T::from_f32(f32::NAN); n];
    for row in 0..rows {
        for k in 0..dim {
            let number = (((row * 31 + k * 7 + seed) * 2_654_435_761) >> 7) % 9;
            data[first + row * pitch + k] = T::from_f32(number as f32 - 4.0);
        }
    }
    data
}

fn layout(lens: &[i64], dim: usize) -> TokenLayout {
    let offsets: Vec<i64> = (0..=lens.len()).map(|n| lens[..n].iter().sum()).collect();
    TokenLayout::packed(offsets[lens.len()] as usize, dim, &offsets).expect("a layout")
}

/// A side's tokens, and where they lie in a larger matrix.
struct Side<T: Element> {
    layout: TokenLayout,
    plain: Vec<T>,
    spread: Vec<T>,
    first: usize,
    pitch: usize,
}

impl<T: Element> Side<T> {
    fn new(lens: &[i64], dim: usize, first: usize, pitch: usize, seed: usize) -> Side<T> {
        let layout = layout(lens, dim);
        let rows = layout.rows();
        let plain = spread(rows, dim, 0, dim, seed)[..rows * dim].to_vec();
        Side { plain, spread: spread(rows, dim, first, pitch, seed), layout, first, pitch }
    }

    fn tokens(&self) -> Result<Tokens<'_, T>, String> {
        Tokens::from_layout(&self.plain, self.layout.clone()).map_err(text)
    }

    /// The memory, and a view of it, which the memory must outlive.
    fn view(&self, device: &Device) -> Result<(DeviceTokens<T>, DeviceTokens<T>), String> {
        let all = Tokens::padded(&self.spread, self.spread.len() / 8, 1, 8).map_err(text)?;
        let memory = device.upload(&all).map_err(text)?;
        let size = size_of::<T>() as u64;
        let base = memory.access().base + self.first as u64 * size;
        // SAFETY: the caller keeps the memory, to which nothing writes.
        let view = unsafe {
            let pitch_bytes = self.pitch as u64 * size;
            DeviceTokens::<T>::from_raw_parts(
                device,
                RawRows::new(base, pitch_bytes),
                self.layout.clone(),
            )
        };
        Ok((memory, view.map_err(text)?))
    }
}

fn same(found: &Gradients, expected: &Gradients, what: &str) -> Result<(), String> {
    for (side, found, expected) in [
        ("queries", &found.queries, &expected.queries),
        ("documents", &found.documents, &expected.documents),
    ] {
        if let Some(i) = (0..expected.len()).find(|&i| found[i] != expected[i]) {
            return Err(format!("{what}: {side}[{i}] is {}, not {}", found[i], expected[i]));
        }
    }
    Ok(())
}

fn check<T: Element>(suite: &Suite) -> Result<usize, String> {
    let mut n_cases = 0;
    for (dim, first, pitch) in
        [(100, 0, 100), (128, 1, 129), (33, 3, 40), (128, 8, 136), (7, 0, 7), (256, 5, 300)]
    {
        let queries = Side::<T>::new(&QUERY_LENS, dim, first, pitch, 1);
        let documents = Side::<T>::new(&DOCUMENT_LENS, dim, first, pitch, 1 << 20);
        let (host_queries, host_documents) = (queries.tokens()?, documents.tokens()?);
        let cross = Pairing::cross();
        let grads: Vec<f32> =
            (0..QUERY_LENS.len() * DOCUMENT_LENS.len()).map(|i| (i * 5 % 7) as f32 - 3.0).collect();
        let cpu = Device::cpu();
        let options = BackwardOptions::default();
        let scores =
            cpu.score_for_training(&host_queries, &host_documents, &cross).map_err(text)?;
        let expected = cpu
            .backward(&host_queries, &host_documents, scores.with_grad(&grads), &options)
            .map_err(text)?;
        for device in cuda_devices() {
            let (_query_memory, query_view) = queries.view(device)?;
            let (_document_memory, document_view) = documents.view(device)?;
            let scores =
                device.score_for_training(&query_view, &document_view, &cross).map_err(text)?;
            for strategy in [
                BackwardStrategy::Deterministic,
                BackwardStrategy::Atomic,
                BackwardStrategy::Recompute,
            ] {
                let what = format!("{} {dim} {first} {pitch} {strategy:?}", T::TYPE);
                let options = BackwardOptions::new(strategy);
                let found = device
                    .backward(&query_view, &document_view, scores.with_grad(&grads), &options)
                    .map_err(|error| format!("{what}: {error}"))?;
                same(&found, &expected, &what)?;
                n_cases += 1;
            }
            in_memory_of_others(device, &query_view, &document_view, &grads, &expected)
                .map_err(|why| format!("{} {dim} {first} {pitch}: {why}", T::TYPE))?;
            suite.count(&device.to_string());
        }
    }
    Ok(n_cases)
}

/// The same in stream order, gradients of scores and of tokens in foreign memory.
fn in_memory_of_others<T: Element>(
    device: &Device,
    queries: &DeviceTokens<T>,
    documents: &DeviceTokens<T>,
    grads: &[f32],
    expected: &Gradients,
) -> Result<(), String> {
    let options = ScoreOptions::default().winners(true);
    let work = device.prepare(queries, documents, &Pairing::cross(), &options).map_err(text)?;
    let backward = device
        .prepare_backward(&work, &BackwardOptions::default(), GradientType::F32)
        .map_err(text)?;
    // Rows of four numbers, so that they lie without gaps.
    let memory = |values: &[f32]| {
        let mut values = values.to_vec();
        values.resize(values.len().next_multiple_of(4).max(4), 5.0);
        let tokens = Tokens::padded(&values, values.len() / 4, 1, 4).map_err(text)?;
        device.upload(&tokens).map_err(text)
    };
    let of_scores = memory(grads)?;
    let [of_queries, of_documents] = [
        memory(&vec![9.0; expected.queries.len()])?,
        memory(&vec![9.0; expected.documents.len()])?,
    ];
    let mut scores = work.new_scores().map_err(text)?;
    // SAFETY: the handles outlive the gradients, and nothing else uses their memory meanwhile.
    let (grad_scores, gradients) = unsafe {
        (
            DeviceGradScores::from_raw_parts(&backward, of_scores.access().base),
            DeviceGradients::from_raw_parts(
                &backward,
                of_queries.access().base,
                of_documents.access().base,
                None,
            ),
        )
    };
    let (grad_scores, mut gradients) = (grad_scores.map_err(text)?, gradients.map_err(text)?);
    let mut stream = device.stream().map_err(text)?;
    stream.score_into(queries, documents, &work, &mut scores).map_err(text)?;
    stream
        .backward(queries, documents, &backward, scores.with_grad(&grad_scores), &mut gradients)
        .map_err(text)?;
    same(&gradients.read().map_err(text)?, expected, "as read")?;
    drop(gradients);
    for (side, memory, expected) in [
        ("queries", of_queries, &expected.queries),
        ("documents", of_documents, &expected.documents),
    ] {
        let found = memory.download().map_err(text)?;
        let (found, behind) = found.data().split_at(expected.len());
        if found != &expected[..] || behind.iter().any(|&x| x != 5.0) {
            return Err(format!("memory of {side} has other numbers"));
        }
    }
    Ok(())
}

#[test]
fn gradients_of_rows_at_any_address() {
    Suite::run_gpu("gpu_gradients_of_views", |suite| {
        Ok(check::<f16>(suite)? + check::<bf16>(suite)? + check::<f32>(suite)?)
    });
}
