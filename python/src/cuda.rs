//! Calls on CUDA devices, on memory and streams of the caller: the one place that knows how the
//! library is told of these.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use maxsim::format::{AnyDeviceTokens, Fp8, Int8, Int8Affine, TokenFormat, with_element};
use maxsim::stream::{DeviceScores, PreparedScore, Queue, Stream};
use maxsim::training::{
    BackwardOptions, DeviceGradScores, DeviceGradients, GradientType, PreparedBackward,
};
use maxsim::{Device, DeviceTokens, Result, ScoreOptions};
use pyo3::prelude::*;

use crate::errors::{raised, shape};
use crate::plaid::Plaid;
use crate::side::{Pairs, Side};

/// Calls that are kept prepared.
const KEPT: usize = 512;

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

/// What a prepared call depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    device: usize,
    sides: [[u64; 8]; 2],
    pairs: [u64; 2],
    options: [bool; 4],
}

/// A call that is ready for any memory of its layouts.
struct Prepared {
    score: PreparedScore,
    backward: Mutex<Option<Arc<PreparedBackward>>>,
}

static PREPARED: LazyLock<Mutex<HashMap<Key, Arc<Prepared>>>> = LazyLock::new(Mutex::default);

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

/// A view of tokens in device memory.
///
/// # Safety
/// Addresses must be those of memory that is as the numbers say and stays so until the calls that
/// use the view are done, in the order of the stream.
unsafe fn view(device: &Device, side: &Side) -> Result<AnyDeviceTokens> {
    // SAFETY: the caller's promise.
    unsafe {
        let (layout, rows) = (side.layout()?, side.raw_rows());
        Ok(match side.format()? {
            TokenFormat::Element(element) => with_element!(element, T => {
                DeviceTokens::<T>::from_raw_parts(device, rows, layout)?.into()
            }),
            TokenFormat::Int8 => {
                let scales = side.raw_scales()?;
                DeviceTokens::<Int8>::from_raw_codes(device, rows, scales, layout)?.into()
            }
            TokenFormat::Int8Affine => {
                let scales = side.raw_scales()?;
                DeviceTokens::<Int8Affine>::from_raw_codes(device, rows, scales, layout)?.into()
            }
            _ => {
                let scales = side.raw_scales()?;
                DeviceTokens::<Fp8>::from_raw_codes(device, rows, scales, layout)?.into()
            }
        })
    }
}

fn options(call: &Call, winners: bool, token_scores: bool) -> ScoreOptions {
    let options = ScoreOptions::default().normalize(call.2).allow_tf32(call.3);
    options.winners(winners).token_scores(token_scores)
}

/// The prepared call of these sides, kept from an earlier one where shapes are all it depends on.
///
/// # Safety
/// As [`Pairs::pairing`].
unsafe fn prepared(
    device: &Device,
    call: &Call,
    (sides, views): ([&Side; 2], [&AnyDeviceTokens; 2]),
    pairs: &Pairs,
    options: &ScoreOptions,
) -> Result<Arc<Prepared>> {
    let keys = (sides[0].key(), sides[1].key(), pairs.key());
    let key = match keys {
        (Some(queries), Some(documents), Some(pairs)) => Some(Key {
            device: call.0,
            sides: [queries, documents],
            pairs,
            options: [call.2, call.3, options.winners, options.token_scores],
        }),
        _ => None,
    };
    if let Some(found) = key.as_ref().and_then(|key| lock(&PREPARED).get(key).cloned()) {
        return Ok(found);
    }
    // SAFETY: the caller's promise.
    let pairing = unsafe { pairs.pairing()? };
    let score = device.prepare_any(views[0], views[1], &pairing, options)?;
    let new = Arc::new(Prepared { score, backward: Mutex::default() });
    if let Some(key) = key {
        let mut kept = lock(&PREPARED);
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(key, new.clone());
    }
    Ok(new)
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
            let views = (view(&device, &sides.0)?, view(&device, &sides.1)?);
            let views = [&views.0, &views.1];
            let sides = ([&sides.0, &sides.1], views);
            let prepared = prepared(&device, &call, sides, &pairs, &options)?;
            enqueue(&device, &call, views, &prepared.score, &results)
        }
    })
    .map_err(raised)
}

/// # Safety
/// As [`cuda_score`].
unsafe fn enqueue(
    device: &Device,
    call: &Call,
    views: [&AnyDeviceTokens; 2],
    work: &PreparedScore,
    results: &Results,
) -> Result<usize> {
    let Results(scores, winners, token_scores, n) = *results;
    if work.shape().n_scores() != n {
        return Err(shape("scores", format!("room for {}", work.shape().n_scores()), n));
    }
    if n == 0 {
        return Ok(4);
    }
    let some = |address: u64| (address != 0).then_some(address);
    // SAFETY: the caller's promise.
    let mut room =
        unsafe { DeviceScores::from_raw_parts(work, scores, some(winners), some(token_scores))? };
    let winner_bytes = room.winner_bytes();
    let stream = stream(device, call.0, call.1)?;
    lock(&stream).score_any_into(views[0], views[1], work, &mut room)?;
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
        let options = options(&call, true, false);
        let GradientMemory(_, _, _, _, n) = memory;
        // SAFETY: as in `cuda_score`.
        unsafe {
            let views = (view(&device, &sides.0)?, view(&device, &sides.1)?);
            let views = [&views.0, &views.1];
            let sides = ([&sides.0, &sides.1], views);
            let prepared = prepared(&device, &call, sides, &pairs, &options)?;
            if prepared.score.shape().n_scores() != n {
                let expected = format!("{} gradients", prepared.score.shape().n_scores());
                return Err(shape("grad_scores", expected, n));
            }
            let backward = {
                let mut kept = lock(&prepared.backward);
                match &*kept {
                    Some(backward) => backward.clone(),
                    None => {
                        let options = BackwardOptions::default();
                        let (work, kind) = (&prepared.score, GradientType::Tokens);
                        let new = Arc::new(device.prepare_backward(work, &options, kind)?);
                        kept.insert(new).clone()
                    }
                }
            };
            let stream = stream(&device, call.0, call.1)?;
            let calls = (&prepared.score, &*backward);
            match views[0].format() {
                TokenFormat::Element(element) => with_element!(element, T => {
                    gradients::<T>(&mut lock(&stream), views, calls, &memory)
                }),
                other => Err(shape("element types", "f32, f16 or bf16", other)),
            }
        }
    })
    .map_err(raised)
}

/// # Safety
/// As [`cuda_score`].
unsafe fn gradients<T: maxsim::format::Element>(
    stream: &mut Stream,
    views: [&AnyDeviceTokens; 2],
    (work, backward): (&PreparedScore, &PreparedBackward),
    memory: &GradientMemory,
) -> Result<()> {
    let GradientMemory(grad_scores, winners, of_queries, of_documents, _) = *memory;
    let [Some(queries), Some(documents)] = views.map(AnyDeviceTokens::typed::<T>) else {
        return Err(shape("element types", "one on both sides", views[1].format()));
    };
    // SAFETY: the caller's promise. The memory of scores is not read by gradients; that of their
    // gradients is as large.
    unsafe {
        let scores = DeviceScores::from_raw_parts(work, grad_scores, Some(winners), None)?;
        let grad_scores = DeviceGradScores::from_raw_parts(backward, grad_scores)?;
        let mut to = DeviceGradients::from_raw_parts(backward, of_queries, of_documents)?;
        let scores = scores.with_grad(&grad_scores);
        stream.backward(queries, documents, backward, scores, &mut to)
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
            enqueue(&device, &call, [&queries, &documents], &work, &results)
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
