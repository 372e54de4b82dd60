//! Calls on CUDA devices, on memory and streams of the caller: the one place that knows how the
//! library gets these.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use maxsim::format::{
    AnyDeviceTokens, Element, Format, Fp8, Int8, Int8Affine, Quantized, RawCodes, RawScaleWords,
    ScaleType, ScorableWith, TokenFormat, with_element,
};
use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
use maxsim::training::{
    BackwardOptions, DeviceGradScores, DeviceGradients, GradientSides, GradientType,
    PreparedBackward, WithGrad,
};
use maxsim::{Device, DeviceTokens, Error, Result, ScoreOptions, TokenLayout};
use pyo3::prelude::*;

use crate::errors::{raised, shape};
use crate::side::{self, Memory, Pairs, Side, entries};
use crate::streams::{self, Call, Outcome, Used, finished, lock};

/// Layouts that are kept: those of so many shapes.
const KEPT: usize = 4096;

/// Device memory for results; none where one is not asked for.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Results(
    /* f32 scores */ pub Memory,
    /* winners as the library has them: bytes */ pub Option<Memory>,
    /* f32 token scores */ pub Option<Memory>,
);

/// Device memory that gradients are made of and go to; none for a side that needs none.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct GradientMemory(
    /* f32 gradients of scores */ pub Memory,
    /* winners as the library has them: bytes */ pub Memory,
    /* queries' gradient */ pub Option<Memory>,
    /* documents' gradient */ pub Option<Memory>,
);

/// Layouts of padded items, by the numbers that they are made of: those of a step are those of
/// the next, and prepared calls are found again by them.
static LAYOUTS: LazyLock<Mutex<HashMap<[usize; 7], Arc<TokenLayout>>>> =
    LazyLock::new(Mutex::default);

/// The layout of a side, with its mask and weights unread.
///
/// # Safety
/// As [`Side::layout`].
pub unsafe fn layout(side: &Side) -> Result<Arc<TokenLayout>> {
    // SAFETY: the caller's promise.
    let new = || unsafe {
        let mut layout = side.layout()?;
        if side.is_masked() {
            layout = layout.with_unread_mask();
        }
        if side.is_weighted() {
            layout = layout.with_unread_weights();
        }
        Ok(Arc::new(layout))
    };
    let Some(key) = side.regular_key() else { return new() };
    if let Some(found) = lock(&LAYOUTS).get(&key) {
        return Ok(found.clone());
    }
    let found: Arc<TokenLayout> = new()?;
    let mut kept = lock(&LAYOUTS);
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(key, found.clone());
    Ok(found)
}

/// A view of elements in device memory, which nothing is waited for.
///
/// # Safety
/// Addresses must be those of memory that is as the numbers say and stays so until the calls that
/// use the view are done, in the order of the stream.
pub unsafe fn elements<T: Element>(device: &Device, side: &Side) -> Result<DeviceTokens<T>> {
    // SAFETY: the caller's promise.
    unsafe { DeviceTokens::from_raw_unchecked(device, side.raw_rows()?, layout(side)?) }
}

/// A view of tokens of any format, which nothing is waited for.
///
/// # Safety
/// As [`elements`].
unsafe fn view(device: &Device, side: &Side) -> Result<AnyDeviceTokens> {
    /// # Safety
    /// As [`elements`].
    unsafe fn codes<F: Quantized>(device: &Device, side: &Side) -> Result<DeviceTokens<F>> {
        // SAFETY: the caller's promise.
        unsafe {
            let (rows, scales) = (side.raw_rows()?, side.scale_words(F::FORMAT)?);
            DeviceTokens::from_raw_codes_unchecked(device, rows, scales, layout(side)?)
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match side.format()? {
            TokenFormat::Element(element) => with_element!(element, T => {
                elements::<T>(device, side)?.into()
            }),
            TokenFormat::Int8 => codes::<Int8>(device, side)?.into(),
            TokenFormat::Int8Affine => codes::<Int8Affine>(device, side)?.into(),
            _ => codes::<Fp8>(device, side)?.into(),
        })
    }
}

/// Options of a call, of which nothing but scores is asked for.
pub fn options(call: &Call) -> ScoreOptions {
    ScoreOptions::default().normalize(call.2).allow_tf32(call.3).consistent(call.4)
}

impl Results {
    /// Options of a call that writes these.
    pub fn options(&self, call: &Call) -> ScoreOptions {
        options(call).winners(self.1.is_some()).token_scores(self.2.is_some())
    }
}

/// Lists of a side that a graph reads, where it has some: what is not said by a few numbers.
pub fn lists(side: &Side, tokens: impl Send + Sync + 'static) -> Option<Used> {
    side.regular_key().is_none().then(|| Box::new(tokens) as Used)
}

/// Enqueues scores on a stream, and gives the bytes of a winner.
#[pyfunction]
pub fn cuda_score(
    py: Python<'_>,
    call: Call,
    sides: (Side, Side),
    pairs: Pairs,
    results: Results,
) -> PyResult<usize> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        // SAFETY: the Python caller gives tensors that torch frees in the order of the stream, and
        // host arrays that it keeps meanwhile.
        unsafe {
            match (sides.0.format()?, sides.1.format()?) {
                (TokenFormat::Element(a), TokenFormat::Element(b)) if a == b => {
                    with_element!(a, T => {
                        score_elements::<T>(&device, &call, &sides, &pairs, &results)
                    })
                }
                _ => {
                    let queries = view(&device, &sides.0)?;
                    let documents = view(&device, &sides.1)?;
                    let (pairing, options) = (pairs.pairing()?, results.options(&call));
                    let work =
                        device.prepare_any_cached(&queries, &documents, &pairing, &options)?;
                    let outcome = enqueue(&device, &call, &work, &results, |stream, room| {
                        stream.score_any_into(&queries, &documents, &work, room)
                    })?;
                    let of = || [lists(&sides.0, queries), lists(&sides.1, documents)];
                    Ok(outcome.keep(&work, of))
                }
            }
        }
    }))
}

/// Scores elements.
///
/// # Safety
/// As [`cuda_score`].
pub unsafe fn score_elements<T: Element + ScorableWith<T>>(
    device: &Device,
    call: &Call,
    sides: &(Side, Side),
    pairs: &Pairs,
    results: &Results,
) -> Result<Outcome<usize>> {
    // SAFETY: the caller's promise.
    unsafe {
        let queries = elements::<T>(device, &sides.0)?;
        let documents = elements::<T>(device, &sides.1)?;
        let outcome = score(device, call, (queries, &documents), &sides.0, pairs, results)?;
        Ok(outcome.keep_also(|| lists(&sides.1, documents)))
    }
}

/// Scores a view of `side`, the queries, with documents; a graph's are the caller's to keep.
///
/// # Safety
/// As [`cuda_score`].
pub unsafe fn score<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    call: &Call,
    (queries, documents): (DeviceTokens<Q>, &DeviceTokens<D>),
    side: &Side,
    pairs: &Pairs,
    results: &Results,
) -> Result<Outcome<usize>> {
    // SAFETY: the caller's promise.
    unsafe {
        let (pairing, options) = (pairs.pairing()?, results.options(call));
        let work = device.prepare_cached(&queries, documents, &pairing, &options)?;
        let outcome = enqueue(device, call, &work, results, |stream, room| {
            stream.score_into(&queries, documents, &work, room)
        })?;
        Ok(outcome.keep(&work, || [lists(side, queries), None]))
    }
}

/// Makes room of the results' memory, and enqueues a call that writes there.
///
/// # Safety
/// As [`cuda_score`].
pub unsafe fn enqueue(
    device: &Device,
    call: &Call,
    work: &PreparedScore,
    results: &Results,
    score: impl FnOnce(&mut Stream, &mut DeviceScores) -> Result<()>,
) -> Result<Outcome<usize>> {
    let Results(scores, winners, token_scores) = *results;
    let n = work.shape().n_scores();
    scores.check("scores", n)?;
    if n == 0 {
        return Ok(Outcome::Done { result: 4, is_captured: false });
    }
    let address = |memory: Option<Memory>| memory.map(|memory| memory.0);
    let (at_winners, at_token_scores) = (address(winners), address(token_scores));
    // SAFETY: the caller's promise.
    let mut room =
        unsafe { DeviceScores::from_raw_unchecked(work, scores.0, at_winners, at_token_scores)? };
    let [_, winner_bytes, token_score_bytes] = room.len_bytes();
    check_bytes("winners", winners, winner_bytes, 1)?;
    check_bytes("token_scores", token_scores, token_score_bytes, 4)?;
    let score = |stream: &mut Stream| {
        score(stream, &mut room)?;
        Ok(room.winner_bytes())
    };
    // SAFETY: the caller's promise.
    unsafe { streams::enqueue(device, call, work.workspace_bytes(), score) }
}

/// Checks that memory of entries of `entry_bytes`, where there is some, has as many bytes as the
/// library writes.
pub fn check_bytes(
    argument: &'static str,
    memory: Option<Memory>,
    len_bytes: u64,
    entry_bytes: u64,
) -> Result<()> {
    let Some(Memory(_, n)) = memory else { return Ok(()) };
    match (n as u64).checked_mul(entry_bytes).is_some_and(|found| found >= len_bytes) {
        true => Ok(()),
        false => {
            Err(shape(argument, format!("room for {len_bytes} bytes"), n as u64 * entry_bytes))
        }
    }
}

/// Enqueues gradients on a stream, in the element type of the tokens; those of the queries'
/// weights, an f32 a row, come with those of the queries alone.
#[pyfunction]
#[pyo3(signature = (call, sides, pairs, memory, of_weights=None))]
pub fn cuda_backward(
    py: Python<'_>,
    call: Call,
    sides: (Side, Side),
    pairs: Pairs,
    memory: GradientMemory,
    of_weights: Option<Memory>,
) -> PyResult<()> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let formats = (sides.0.format()?, sides.1.format()?);
        match formats {
            (TokenFormat::Element(a), TokenFormat::Element(b)) if a == b => {
                let to = (&memory, of_weights);
                // SAFETY: as in `cuda_score`.
                with_element!(a, T => unsafe {
                    gradients::<T>(&device, &call, [&sides.0, &sides.1], &pairs, to)
                })
            }
            (_, other) => Err(shape("element types", "f32, f16 or bf16 on both sides", other)),
        }
    }))
}

/// Enqueues gradients of elements.
///
/// # Safety
/// As [`cuda_score`].
pub unsafe fn gradients<T: Element>(
    device: &Device,
    call: &Call,
    sides: [&Side; 2],
    pairs: &Pairs,
    (memory, of_weights): (&GradientMemory, Option<Memory>),
) -> Result<Outcome<()>> {
    let GradientMemory(grad_scores, winners, of_queries, of_documents) = *memory;
    let gradient = |argument, memory: Option<Memory>, side: &Side| {
        let Some(memory) = memory else { return Ok(0) };
        memory.check(argument, entries(side.rows(), side.dim())?)?;
        Ok::<_, Error>(memory.0)
    };
    // SAFETY: the caller's promise.
    unsafe {
        let queries = elements::<T>(device, sides[0])?;
        let documents = elements::<T>(device, sides[1])?;
        let (pairing, options) = (pairs.pairing()?, options(call).winners(true));
        let work = device.prepare_cached(&queries, &documents, &pairing, &options)?;
        let to = [
            gradient("queries' gradient", of_queries, sides[0])?,
            gradient("documents' gradient", of_documents, sides[1])?,
        ];
        if let Some(of_weights) = of_weights {
            of_weights.check("weights' gradient", sides[0].rows())?;
        }
        let to = (to, of_weights.map(|memory| memory.0));
        let wanted = match (of_queries, of_documents) {
            (Some(_), Some(_)) => GradientSides::Both,
            (Some(_), None) => GradientSides::Queries,
            (None, Some(_)) => GradientSides::Documents,
            (None, None) => return Ok(Outcome::Done { result: (), is_captured: false }),
        };
        let options = BackwardOptions::default().sides(wanted);
        let backward = device.prepare_backward_cached(&work, &options, GradientType::Tokens)?;
        let of = (&*work, &*backward);
        let outcome = enqueue_gradients(device, call, of, grad_scores, winners, to, |call| {
            let WithMemory { stream, scores, to } = call;
            stream.backward(&queries, &documents, &backward, scores, to)
        })?;
        Ok(outcome.keep(&backward, || [lists(sides[0], queries), lists(sides[1], documents)]))
    }
}

/// A call of gradients: its stream, and the caller's memory as the library has it.
pub struct WithMemory<'a> {
    pub stream: &'a mut Stream,
    pub scores: WithGrad<'a, DeviceScores, DeviceGradScores>,
    pub to: &'a mut DeviceGradients,
}

/// Makes room of memory for gradients of queries and documents, and enqueues a call that writes
/// there.
///
/// # Safety
/// As [`cuda_score`].
pub unsafe fn enqueue_gradients(
    device: &Device,
    call: &Call,
    (work, backward): (&PreparedScore, &PreparedBackward),
    grad_scores: Memory,
    winners: Memory,
    ([of_queries, of_documents], of_weights): ([u64; 2], Option<u64>),
    enqueue: impl FnOnce(WithMemory<'_>) -> Result<()>,
) -> Result<Outcome<()>> {
    grad_scores.check("grad_scores", work.shape().n_scores())?;
    // SAFETY: the caller's promise. The memory of scores is not read by gradients; that of their
    // gradients is as large.
    unsafe {
        let scores = DeviceScores::from_raw_unchecked(work, grad_scores.0, Some(winners.0), None)?;
        check_bytes("winners", Some(winners), scores.len_bytes()[1], 1)?;
        let grad_scores = DeviceGradScores::from_raw_unchecked(backward, grad_scores.0)?;
        let mut to =
            DeviceGradients::from_raw_unchecked(backward, of_queries, of_documents, of_weights)?;
        streams::enqueue(device, call, backward.workspace_bytes_of(false), |stream| {
            let scores = scores.with_grad(&grad_scores);
            enqueue(WithMemory { stream, scores, to: &mut to })
        })
    }
}

/// Enqueues the compression of rows to codes, which begin at multiples of 16 bytes, and to their
/// scales as GPUs read them.
#[pyfunction]
pub fn cuda_quantize(
    py: Python<'_>,
    call: Call,
    tokens: Side,
    format: u8,
    is_f16: bool,
    codes: Memory,
    words: Memory,
) -> PyResult<()> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let scales = if is_f16 { ScaleType::F16 } else { ScaleType::F32 };
        let (rows, pitch_bytes) = (tokens.rows(), RawCodes::pitch_bytes(tokens.dim()));
        check_bytes("codes", Some(codes), rows as u64 * pitch_bytes, 1)?;
        check_bytes("scales", Some(words), RawScaleWords::len_bytes(rows), 4)?;
        let to = RawCodes::new(codes.0, RawScaleWords::new(words.0));
        let (TokenFormat::Element(element), format) = (tokens.format()?, side::format(format)?)
        else {
            return Err(shape("element types", "f32, f16 or bf16", tokens.format()?));
        };
        // SAFETY: as in `cuda_score`.
        with_element!(element, T => unsafe {
            let tokens = elements::<T>(&device, &tokens)?;
            streams::enqueue(&device, &call, 0, |stream| match format {
                TokenFormat::Int8 => stream.quantize_into::<T, Int8>(&tokens, scales, to),
                TokenFormat::Int8Affine => {
                    stream.quantize_into::<T, Int8Affine>(&tokens, scales, to)
                }
                TokenFormat::Fp8 => stream.quantize_into::<T, Fp8>(&tokens, scales, to),
                other => Err(shape("format", "codes", other)),
            })
        })
    }))
}

/// The name of a device that can run the kernels; an error that says why it cannot.
#[pyfunction]
pub fn cuda_open(py: Python<'_>, ordinal: usize) -> PyResult<String> {
    py.detach(|| {
        let device = Device::cuda(ordinal)?;
        Ok(device.name().to_owned())
    })
    .map_err(raised)
}
