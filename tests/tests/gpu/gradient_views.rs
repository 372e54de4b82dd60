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

/// Numbers in memory of a device, as others have them: rows of four, so that they lie without gaps.
fn memory(device: &Device, values: &[f32]) -> Result<DeviceTokens<f32>, String> {
    let mut values = values.to_vec();
    values.resize(values.len().next_multiple_of(4).max(4), 5.0);
    let tokens = Tokens::padded(&values, values.len() / 4, 1, 4).map_err(text)?;
    device.upload(&tokens).map_err(text)
}

/// A side's tokens, and where they lie in a larger matrix.
struct Side<T: Element> {
    /// Of query tokens, where they have any.
    weights: Option<Vec<f32>>,
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
        let spread = spread(rows, dim, first, pitch, seed);
        Side { weights: None, plain, spread, layout, first, pitch }
    }

    /// With weights of which some are 0 or negative.
    fn weighted(self) -> Side<T> {
        let weights = (0..self.layout.rows()).map(|row| (row % 4) as f32 - 1.0).collect();
        Side { weights: Some(weights), ..self }
    }

    fn tokens(&self) -> Result<Tokens<'_, T>, String> {
        let tokens = Tokens::from_layout(&self.plain, self.layout.clone()).map_err(text)?;
        match &self.weights {
            Some(weights) => tokens.with_weights(weights).map_err(text),
            None => Ok(tokens),
        }
    }

    /// The memory of rows and weights, and a view of it, which the memory must outlive.
    fn view(&self, device: &Device) -> Result<(Memory<T>, DeviceTokens<T>), String> {
        let all = Tokens::padded(&self.spread, self.spread.len() / 8, 1, 8).map_err(text)?;
        let memory = device.upload(&all).map_err(text)?;
        let size = size_of::<T>() as u64;
        let base = memory.access().base + self.first as u64 * size;
        let weights =
            self.weights.as_ref().map(|weights| self::memory(device, weights)).transpose()?;
        let rows = RawRows::new(base, self.pitch as u64 * size)
            .weights(weights.as_ref().map(|weights| weights.access().base));
        // SAFETY: the caller keeps the memory, to which nothing writes.
        let view = unsafe { DeviceTokens::<T>::from_raw_parts(device, rows, self.layout.clone()) };
        Ok(((memory, weights), view.map_err(text)?))
    }
}

/// Rows, and weights where there are any.
type Memory<T> = (DeviceTokens<T>, Option<DeviceTokens<f32>>);

fn same(found: &Gradients, expected: &Gradients, what: &str) -> Result<(), String> {
    for (side, found, expected) in [
        ("queries", &found.queries, &expected.queries),
        ("documents", &found.documents, &expected.documents),
        ("weights", &found.weights, &expected.weights),
    ] {
        if found.len() != expected.len() {
            return Err(format!("{what}: {} numbers of {side}", found.len()));
        }
        if let Some(i) = (0..expected.len()).find(|&i| found[i] != expected[i]) {
            return Err(format!("{what}: {side}[{i}] is {}, not {}", found[i], expected[i]));
        }
    }
    Ok(())
}

fn check<T: Element>(suite: &Suite, weighted: bool) -> Result<usize, String> {
    let mut n_cases = 0;
    for (dim, first, pitch) in
        [(100, 0, 100), (128, 1, 129), (33, 3, 40), (128, 8, 136), (7, 0, 7), (256, 5, 300)]
    {
        let queries = Side::<T>::new(&QUERY_LENS, dim, first, pitch, 1);
        let queries = if weighted { queries.weighted() } else { queries };
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
    let of_scores = memory(device, grads)?;
    let [of_queries, of_documents, of_weights] = [
        memory(device, &vec![9.0; expected.queries.len()])?,
        memory(device, &vec![9.0; expected.documents.len()])?,
        memory(device, &vec![9.0; expected.weights.len()])?,
    ];
    let weights = queries.layout().is_weighted().then_some(of_weights.access().base);
    let mut scores = work.new_scores().map_err(text)?;
    // SAFETY: the handles outlive the gradients, and nothing else uses their memory meanwhile.
    let (grad_scores, gradients) = unsafe {
        (
            DeviceGradScores::from_raw_parts(&backward, of_scores.access().base),
            DeviceGradients::from_raw_parts(
                &backward,
                of_queries.access().base,
                of_documents.access().base,
                weights,
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
    if gradients.weights_address() != weights {
        return Err("the gradient of weights is elsewhere".into());
    }
    drop(gradients);
    for (side, memory, expected) in [
        ("queries", of_queries, &expected.queries),
        ("documents", of_documents, &expected.documents),
        ("weights", of_weights, &expected.weights),
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
        let mut n_cases = 0;
        for weighted in [false, true] {
            n_cases += check::<f16>(suite, weighted)?;
            n_cases += check::<bf16>(suite, weighted)? + check::<f32>(suite, weighted)?;
        }
        Ok(n_cases)
    });
}
