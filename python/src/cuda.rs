//! Calls on CUDA devices, on memory and streams of the caller: the one place that knows how the
//! library gets these.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use maxsim::format::{
    AnyDeviceTokens, Element, Fp8, Int8, Int8Affine, Quantized, TokenFormat, with_element,
};
use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
use maxsim::training::{BackwardOptions, DeviceGradScores, DeviceGradients, GradientType};
use maxsim::{Device, DeviceTokens, Result, ScoreOptions, TokenLayout};
use pyo3::prelude::*;

use crate::errors::{raised, shape};
use crate::plaid::Plaid;
use crate::side::{Pairs, Side};

/// Layouts that are kept: those of so many shapes.
const KEPT: usize = 4096;

/// Where a call runs, and what of it.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Call(
    /* device */ usize,
    /* stream */ u64,
    /* normalize */ bool,
    /* tf32 */ bool,
);

/// Device memory for results; 0 where one is not asked for.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Results(
    /* f32 scores */ u64,
    /* winners as the library has them */ u64,
    /* f32 token scores */ u64,
    /* number of scores */ usize,
);

/// Device memory that gradients are made of and go to; 0 for a side that needs none.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct GradientMemory(
    /* f32 gradients of scores */ u64,
    /* winners */ u64,
    /* queries' gradient */ u64,
    /* documents' gradient */ u64,
    /* number of scores */ usize,
);

/// Layouts of padded items, by the numbers that they are made of: those of a step are those of
/// the next, and prepared calls are found again by them.
static LAYOUTS: LazyLock<Mutex<HashMap<[usize; 7], Arc<TokenLayout>>>> =
    LazyLock::new(Mutex::default);

type Streams = HashMap<(usize, u64), Arc<Mutex<Stream>>>;
static STREAMS: LazyLock<Mutex<Streams>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stream(device: &Device, ordinal: usize, handle: u64) -> Result<Arc<Mutex<Stream>>> {
    if let Some(stream) = lock(&STREAMS).get(&(ordinal, handle)) {
        return Ok(stream.clone());
    }
    // SAFETY: the handle is that of a stream of torch, which never destroys its streams.
    let stream = Arc::new(Mutex::new(unsafe { Stream::from_raw(device, handle)? }));
    Ok(lock(&STREAMS).entry((ordinal, handle)).or_insert(stream).clone())
}

/// The layout of a side, with its mask unread.
///
/// # Safety
/// As [`Side::layout`].
unsafe fn layout(side: &Side) -> Result<Arc<TokenLayout>> {
    // SAFETY: the caller's promise.
    let new = || unsafe {
        let layout = side.layout()?;
        Ok(Arc::new(match side.mask_address() {
            Some(_) => layout.with_unread_mask(),
            None => layout,
        }))
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
unsafe fn elements<T: Element>(device: &Device, side: &Side) -> Result<DeviceTokens<T>> {
    // SAFETY: the caller's promise.
    unsafe { DeviceTokens::from_raw_unchecked(device, side.raw_rows(), layout(side)?) }
}

/// A view of tokens of any format. Scales of codes are read, which is waited for.
///
/// # Safety
/// As [`elements`].
unsafe fn view(device: &Device, side: &Side) -> Result<AnyDeviceTokens> {
    /// # Safety
    /// As [`elements`].
    unsafe fn codes<F: Quantized>(device: &Device, side: &Side) -> Result<DeviceTokens<F>> {
        // SAFETY: the caller's promise.
        unsafe {
            let (layout, scales) = (side.layout()?, side.raw_scales()?);
            DeviceTokens::from_raw_codes(device, side.raw_rows(), scales, layout)
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

fn options(call: &Call, winners: bool, token_scores: bool) -> ScoreOptions {
    let options = ScoreOptions::default().normalize(call.2).allow_tf32(call.3);
    options.winners(winners).token_scores(token_scores)
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
    py.detach(|| {
        let device = Device::cuda(call.0)?;
        let options = options(&call, results.1 != 0, results.2 != 0);
        // SAFETY: the Python caller gives tensors that torch frees in the order of the stream, and
        // host arrays that it keeps meanwhile.
        unsafe {
            let pairing = pairs.pairing()?;
            match (sides.0.format()?, sides.1.format()?) {
                (TokenFormat::Element(a), TokenFormat::Element(b)) if a == b => {
                    with_element!(a, T => {
                        let queries = elements::<T>(&device, &sides.0)?;
                        let documents = elements::<T>(&device, &sides.1)?;
                        let work =
                            device.prepare_cached(&queries, &documents, &pairing, &options)?;
                        enqueue(&device, &call, &work, &results, |stream, room| {
                            stream.score_into(&queries, &documents, &work, room)
                        })
                    })
                }
                _ => {
                    let queries = view(&device, &sides.0)?;
                    let documents = view(&device, &sides.1)?;
                    let work = device.prepare_any(&queries, &documents, &pairing, &options)?;
                    enqueue(&device, &call, &work, &results, |stream, room| {
                        stream.score_any_into(&queries, &documents, &work, room)
                    })
                }
            }
        }
    })
    .map_err(raised)
}

/// Makes room of the results' memory, and enqueues a call that writes there.
///
/// # Safety
/// As [`cuda_score`].
unsafe fn enqueue(
    device: &Device,
    call: &Call,
    work: &PreparedScore,
    results: &Results,
    score: impl FnOnce(&mut Stream, &mut DeviceScores) -> Result<()>,
) -> Result<usize> {
    let Results(scores, winners, token_scores, n) = *results;
    if work.shape().n_scores() != n {
        return Err(shape("scores", format!("room for {}", work.shape().n_scores()), n));
    }
    if n == 0 {
        return Ok(4);
    }
    let some = |address: u64| (address != 0).then_some(address);
    let (winners, token_scores) = (some(winners), some(token_scores));
    // SAFETY: the caller's promise.
    let mut room =
        unsafe { DeviceScores::from_raw_unchecked(work, scores, winners, token_scores)? };
    let winner_bytes = room.winner_bytes();
    let stream = stream(device, call.0, call.1)?;
    score(&mut lock(&stream), &mut room)?;
    Ok(winner_bytes)
}

/// Enqueues gradients on a stream, in the element type of the tokens.
#[pyfunction]
pub fn cuda_backward(
    py: Python<'_>,
    call: Call,
    sides: (Side, Side),
    pairs: Pairs,
    memory: GradientMemory,
) -> PyResult<()> {
    py.detach(|| {
        let device = Device::cuda(call.0)?;
        let formats = (sides.0.format()?, sides.1.format()?);
        match formats {
            (TokenFormat::Element(a), TokenFormat::Element(b)) if a == b => {
                // SAFETY: as in `cuda_score`.
                with_element!(a, T => unsafe {
                    gradients::<T>(&device, &call, [&sides.0, &sides.1], &pairs, &memory)
                })
            }
            (_, other) => Err(shape("element types", "f32, f16 or bf16 on both sides", other)),
        }
    })
    .map_err(raised)
}

/// # Safety
/// As [`cuda_score`].
unsafe fn gradients<T: Element>(
    device: &Device,
    call: &Call,
    sides: [&Side; 2],
    pairs: &Pairs,
    memory: &GradientMemory,
) -> Result<()> {
    let GradientMemory(grad_scores, winners, of_queries, of_documents, n) = *memory;
    // SAFETY: the caller's promise. The memory of scores is not read by gradients; that of their
    // gradients is as large.
    unsafe {
        let queries = elements::<T>(device, sides[0])?;
        let documents = elements::<T>(device, sides[1])?;
        let (pairing, options) = (pairs.pairing()?, options(call, true, false));
        let work = device.prepare_cached(&queries, &documents, &pairing, &options)?;
        if work.shape().n_scores() != n {
            let expected = format!("{} gradients", work.shape().n_scores());
            return Err(shape("grad_scores", expected, n));
        }
        let (options, kind) = (BackwardOptions::default(), GradientType::Tokens);
        let backward = device.prepare_backward_cached(&work, &options, kind)?;
        let scores = DeviceScores::from_raw_unchecked(&work, grad_scores, Some(winners), None)?;
        let grad_scores = DeviceGradScores::from_raw_unchecked(&backward, grad_scores)?;
        let mut to = DeviceGradients::from_raw_unchecked(&backward, of_queries, of_documents)?;
        let (stream, scores) = (stream(device, call.0, call.1)?, scores.with_grad(&grad_scores));
        lock(&stream).backward(&queries, &documents, &backward, scores, &mut to)
    }
}

/// Enqueues scores of residual-compressed documents on a stream, and gives the bytes of a winner.
#[pyfunction]
pub fn cuda_score_plaid(
    py: Python<'_>,
    call: Call,
    queries: Side,
    documents: PyRef<'_, Plaid>,
    pairs: Pairs,
    results: Results,
) -> PyResult<usize> {
    let documents: &Plaid = &documents;
    py.detach(|| {
        let device = Device::cuda(call.0)?;
        let options = options(&call, results.1 != 0, results.2 != 0);
        // SAFETY: as in `cuda_score`.
        unsafe {
            let queries = view(&device, &queries)?;
            let documents = documents.handle(&device, queries.format())?;
            let pairing = pairs.pairing()?;
            let work = device.prepare_any(&queries, &documents, &pairing, &options)?;
            enqueue(&device, &call, &work, &results, |stream, room| {
                stream.score_any_into(&queries, &documents, &work, room)
            })
        }
    })
    .map_err(raised)
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
