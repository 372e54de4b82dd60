//! Residual-compressed documents in memory of a GPU: scores, and gradients of queries.

use std::sync::Arc;

use maxsim::format::{AnyDeviceTokens, Element, ElementType, RawResiduals, Residual, TokenFormat};
use maxsim::half::{bf16, f16};
use maxsim::residual::{Arrangement, BitOrder};
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, DeviceTokens, Result, TokenLayout};
use pyo3::prelude::*;

use crate::cuda::{
    Results, WithMemory, check_bytes, elements, enqueue_gradients, layout, lists, options, score,
};
use crate::errors::{raised, shape};
use crate::plaid::Plaid;
use crate::side::{Memory, Pairs, Side, entries};
use crate::streams::{self, Call, Outcome, Used, finished};

/// Documents as GPUs decode them, with the layout and mask of their rows.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Documents(
    /* layout and mask; its matrix is not read */ Side,
    /* nbits */ u32,
    /* i32 codes */ Memory,
    /* bytes of residuals */ Memory,
    /* centroids, in the queries' element type: bytes */ Memory,
    /* number of centroids */ usize,
    /* bytes of the weights' tables */ Memory,
    /* f32 norms; none where tokens are not normalised */ Option<Memory>,
);

/// Device memory that a gradient is made of and goes to.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct QueryGradient(
    /* f32 gradients of scores */ Memory,
    /* winners as the library has them: bytes */ Memory,
    /* queries' f32 gradient */ Memory,
);

impl Documents {
    /// A view, which nothing is waited for.
    ///
    /// # Safety
    /// Addresses must be those of device memory that is as the numbers say and stays so until the
    /// calls that use the view are done, in the order of the stream; codes must be centroids.
    unsafe fn view<T: Element>(&self, device: &Device) -> Result<DeviceTokens<Residual<T>>> {
        let Documents(items, nbits, codes, residuals, centroids, n_centroids, weights, norms) =
            *self;
        if !matches!(nbits, 1 | 2 | 4 | 8) {
            return Err(shape("nbits", "1, 2, 4 or 8", nbits));
        }
        let lens = RawResiduals::lens_bytes(nbits, n_centroids, items.rows(), items.dim());
        check_bytes("codes", Some(codes), lens[0], 4)?;
        check_bytes("residuals", Some(residuals), lens[1], 1)?;
        check_bytes("centroids", Some(centroids), lens[2], 1)?;
        check_bytes("bucket_weights", Some(weights), lens[3], 1)?;
        check_bytes("norms", norms, lens[4], 4)?;
        let raw =
            RawResiduals::new(nbits, [codes.0, residuals.0], (centroids.0, n_centroids), weights.0);
        let raw = raw.norms(norms.map(|norms| norms.0)).mask(items.mask()?.map(|mask| mask.0));
        let raw = raw.segments(items.segments());
        // SAFETY: the caller's promise.
        unsafe { DeviceTokens::from_raw_residuals(device, raw, layout(&items)?) }
    }
}

/// The element type of queries, of those that documents can be decoded for.
fn element(format: TokenFormat) -> Result<ElementType> {
    match format {
        TokenFormat::Element(element) => Ok(element),
        other => Err(shape("element types", "f16 or bf16 queries", other)),
    }
}

/// Runs a call with the element type of queries that GPUs decode documents for.
macro_rules! with_half {
    ($format:expr, $T:ident => $call:expr) => {
        match element($format)? {
            ElementType::F16 => {
                type $T = f16;
                $call
            }
            ElementType::Bf16 => {
                type $T = bf16;
                $call
            }
            other => Err(shape("element types", "f16 or bf16 queries", other)),
        }
    };
}

/// How GPUs keep residuals: bytes of a row, rows of padding, bytes of a centroid and of the
/// weights' tables; the tables of a chunk's bytes, 256 64-bit numbers each; the chunks' slots.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn arrangement(
    dim: usize,
    nbits: u32,
    is_little_endian: bool,
) -> PyResult<(usize, usize, usize, usize, Vec<Vec<u64>>, Vec<usize>)> {
    let order = if is_little_endian { BitOrder::LittleEndian } else { BitOrder::Colbert };
    let found = Arrangement::new(dim, nbits, order).map_err(raised)?;
    let tables = found.tables.iter().map(|table| table.to_vec()).collect();
    let Arrangement { row_bytes, padding_rows, centroid_bytes, weight_bytes, slots, .. } = found;
    Ok((row_bytes, padding_rows, centroid_bytes, weight_bytes, tables, slots))
}

/// Enqueues the kernel that finds the documents' norms, for queries of a format.
#[pyfunction]
pub fn cuda_residual_norms(
    py: Python<'_>,
    call: Call,
    documents: Documents,
    format: u8,
) -> PyResult<()> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let format = crate::side::format(format)?;
        // SAFETY: the Python caller gives tensors that torch frees in the order of the stream, and
        // keeps the norms for the calls that follow.
        with_half!(format, T => unsafe {
            let documents = documents.view::<T>(&device)?;
            streams::enqueue(&device, &call, 0, |stream| stream.find_residual_norms(&documents))
        })
    }))
}

/// Enqueues scores of documents in device memory, and gives the bytes of a winner.
#[pyfunction]
pub fn cuda_score_residuals(
    py: Python<'_>,
    call: Call,
    queries: Side,
    documents: Documents,
    pairs: Pairs,
    results: Results,
) -> PyResult<usize> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        // SAFETY: as in `cuda_residual_norms`.
        with_half!(queries.format()?, T => unsafe {
            let of_documents = documents.view::<T>(&device)?;
            let tokens = (elements::<T>(&device, &queries)?, &of_documents);
            let outcome = score(&device, &call, tokens, &queries, &pairs, &results)?;
            Ok(outcome.keep_also(|| lists(&documents.0, of_documents)))
        })
    }))
}

/// Enqueues the queries' gradient, of documents in device memory.
#[pyfunction]
pub fn cuda_backward_residuals(
    py: Python<'_>,
    call: Call,
    queries: Side,
    documents: Documents,
    pairs: Pairs,
    memory: QueryGradient,
) -> PyResult<()> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        // SAFETY: as in `cuda_residual_norms`.
        with_half!(queries.format()?, T => unsafe {
            let of_documents = documents.view::<T>(&device)?;
            let outcome = gradient(&device, &call, &queries, &of_documents, &pairs, &memory)?;
            Ok(outcome.keep_also(|| lists(&documents.0, of_documents)))
        })
    }))
}

/// Enqueues scores of an index that was copied to the device, or of its documents as other
/// `items`, which the device alone knows; gives the bytes of a winner.
#[pyfunction]
#[pyo3(signature = (call, queries, documents, items, pairs, results))]
pub fn cuda_score_plaid(
    py: Python<'_>,
    call: Call,
    queries: Side,
    documents: PyRef<'_, Plaid>,
    items: Option<Side>,
    pairs: Pairs,
    results: Results,
) -> PyResult<usize> {
    let documents: &Plaid = &documents;
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let documents = documents.handle(&device, queries.format()?)?;
        // SAFETY: as in `cuda_residual_norms`.
        with_half!(queries.format()?, T => unsafe {
            with_items::<T, _>(documents, items, |documents| {
                let tokens = (elements::<T>(&device, &queries)?, documents);
                score(&device, &call, tokens, &queries, &pairs, &results)
            })
        })
    }))
}

/// Enqueues the queries' gradient, of an index that was copied to the device, or of its documents
/// as other `items`.
#[pyfunction]
#[pyo3(signature = (call, queries, documents, items, pairs, memory))]
pub fn cuda_backward_plaid(
    py: Python<'_>,
    call: Call,
    queries: Side,
    documents: PyRef<'_, Plaid>,
    items: Option<Side>,
    pairs: Pairs,
    memory: QueryGradient,
) -> PyResult<()> {
    let documents: &Plaid = &documents;
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let documents = documents.handle(&device, queries.format()?)?;
        // SAFETY: as in `cuda_residual_norms`.
        with_half!(queries.format()?, T => unsafe {
            with_items::<T, _>(documents, items, |documents| {
                gradient(&device, &call, &queries, documents, &pairs, &memory)
            })
        })
    }))
}

/// Makes a call with the documents of an index, or with other items of its rows, and keeps the
/// index for the graph that the call may have become part of.
///
/// # Safety
/// As [`as_items`].
unsafe fn with_items<T: Element, R>(
    index: Arc<AnyDeviceTokens>,
    items: Option<Side>,
    call: impl FnOnce(&DeviceTokens<Residual<T>>) -> Result<Outcome<R>>,
) -> Result<Outcome<R>> {
    let all = typed::<T>(&index)?;
    // SAFETY: the caller's promise.
    let some = items.map(|items| unsafe { as_items(all, &items) }).transpose()?;
    let outcome = call(some.as_ref().unwrap_or(all))?;
    Ok(outcome.keep_also(|| Some(Box::new(index.clone()) as Used)))
}

/// Documents of an index as items that the device alone knows.
///
/// # Safety
/// As [`cuda_residual_norms`], of segments.
unsafe fn as_items<T: Element>(
    documents: &DeviceTokens<Residual<T>>,
    items: &Side,
) -> Result<DeviceTokens<Residual<T>>> {
    let segments = items.segments().ok_or_else(|| shape("items", "those of a device", "others"))?;
    // SAFETY: the caller's promise.
    unsafe {
        let layout = layout(items)?;
        let layout = match documents.layout().is_masked() {
            true => Arc::new(TokenLayout::clone(&layout).with_unread_mask()),
            false => layout,
        };
        documents.with_raw_segments(segments, layout)
    }
}

fn typed<T: Element>(documents: &AnyDeviceTokens) -> Result<&DeviceTokens<Residual<T>>> {
    let wrong = || shape("documents", "residuals of these queries", documents.format());
    documents.typed().ok_or_else(wrong)
}

/// # Safety
/// As [`cuda_residual_norms`].
unsafe fn gradient<T: Element>(
    device: &Device,
    call: &Call,
    side: &Side,
    documents: &DeviceTokens<Residual<T>>,
    pairs: &Pairs,
    memory: &QueryGradient,
) -> Result<Outcome<()>> {
    let QueryGradient(grad_scores, winners, of_queries) = *memory;
    // SAFETY: the caller's promise.
    unsafe {
        let queries = elements::<T>(device, side)?;
        let (pairing, options) = (pairs.pairing()?, options(call).winners(true));
        let work = device.prepare_cached(&queries, documents, &pairing, &options)?;
        of_queries.check("queries' gradient", entries(side.rows(), side.dim())?)?;
        let options = BackwardOptions::default();
        let backward = device.prepare_backward_cached(&work, &options, GradientType::F32)?;
        let (of, to) = ((&*work, &*backward), [of_queries.0, 0]);
        let outcome =
            enqueue_gradients(device, call, of, grad_scores, winners, (to, None), |call| {
                let WithMemory { stream, scores, to } = call;
                stream.backward_residual(&queries, documents, &backward, scores, to)
            })?;
        Ok(outcome.keep(&backward, || [lists(side, queries), None]))
    }
}
