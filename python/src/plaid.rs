//! Residual-compressed tokens (ColBERTv2, PLAID), in memory of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use maxsim::format::{AnyDeviceTokens, Element, ElementType, Residual, TokenFormat};
use maxsim::half::{bf16, f16};
use maxsim::residual::{
    Arithmetic, BitOrder, Centroids, Codes, EncodeOptions, Nearest, ResidualCodec, ResidualTokens,
    TrainOptions,
};
use maxsim::training::TrainingScores;
use maxsim::{AnyTokens, Device, DeviceTokens, Result, ScoreOptions, Tokens};
use pyo3::prelude::*;

use crate::cpu::{self, GradientRoom, Room};
use crate::errors::shape;
use crate::pool;
use crate::side::{self, Memory, Pairs, Side, entries};

/// The tables of a codec, in memory of the caller.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Tables(
    /* nbits */ u32,
    /* dim */ usize,
    /* centroids */ Memory,
    /* their format */ u8,
    /* number of centroids */ usize,
    /* f32 bucket weights, 2^nbits */ Memory,
    /* f32 bucket cutoffs, one less, or none */ Option<Memory>,
    /* normalize */ bool,
);

/// Handles by the device's number (-1 is the CPU) and the queries' element type.
type Handles = HashMap<(i32, u8), Arc<AnyDeviceTokens>>;

/// Residual-compressed documents.
#[pyclass(frozen, weakref)]
pub struct Plaid {
    tokens: ResidualTokens<'static>,
    handles: Mutex<Handles>,
}

fn order(is_little_endian: bool) -> BitOrder {
    if is_little_endian { BitOrder::LittleEndian } else { BitOrder::Colbert }
}

/// # Safety
/// All addresses must be those of as much memory as the numbers say.
unsafe fn codec(tables: Tables) -> Result<ResidualCodec<'static>> {
    let Tables(nbits, dim, centroids, format, n, weights, cutoffs, normalize) = tables;
    let (n_buckets, n_centroids) = (1usize << nbits.min(8), entries(n, dim)?);
    // SAFETY: the caller's promise.
    unsafe {
        let values = match side::format(format)? {
            TokenFormat::Element(ElementType::F32) => {
                Centroids::F32(centroids.read::<f32>("centroids", n_centroids)?.to_vec().into())
            }
            TokenFormat::Element(ElementType::F16) => {
                Centroids::F16(centroids.read::<f16>("centroids", n_centroids)?.to_vec().into())
            }
            TokenFormat::Element(ElementType::Bf16) => {
                Centroids::Bf16(centroids.read::<bf16>("centroids", n_centroids)?.to_vec().into())
            }
            other => return Err(shape("element types", "f32, f16 or bf16 centroids", other)),
        };
        let weights = weights.read("bucket_weights", n_buckets)?;
        let codec = ResidualCodec::new(nbits, dim, values, weights, normalize)?;
        match cutoffs {
            None => Ok(codec),
            Some(cutoffs) => codec.with_cutoffs(cutoffs.read("bucket_cutoffs", n_buckets - 1)?),
        }
    }
}

#[pymethods]
impl Plaid {
    /// Takes a copy of codes (i64) and residuals; `items` has the layout and mask of their rows.
    #[new]
    fn new(
        py: Python<'_>,
        n_threads: usize,
        tables: Tables,
        items: Side,
        codes: Memory,
        residuals: Memory,
        is_little_endian: bool,
    ) -> PyResult<Plaid> {
        pool::run(py, n_threads, || {
            // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
            unsafe {
                let codec = Arc::new(codec(tables)?);
                let (layout, rows) = (items.layout()?, items.rows());
                let codes = codes.read::<i64>("codes", rows)?;
                let residual_bytes = entries(rows, codec.row_bytes())?;
                let residuals = residuals.read::<u8>("residuals", residual_bytes)?;
                let order = order(is_little_endian);
                let codes = Codes::I64(codes.to_vec().into());
                let tokens = ResidualTokens::new(codec, codes, residuals.to_vec(), order, layout)?;
                let tokens = match items.mask()? {
                    None => tokens,
                    Some(mask) => tokens.with_mask(mask.read("mask", rows)?.to_vec())?,
                };
                Ok(Plaid { tokens, handles: Mutex::default() })
            }
        })
    }

    /// Trains a codec on tokens in host memory, and encodes them.
    #[staticmethod]
    fn train(
        py: Python<'_>,
        n_threads: usize,
        tokens: Side,
        options: (u32, Option<usize>, usize, bool, u64, bool),
    ) -> PyResult<Plaid> {
        let (nbits, n_centroids, n_iterations, normalize, seed, is_little_endian) = options;
        let encode = EncodeOptions::default().order(order(is_little_endian));
        let encode = encode.nearest(Nearest::Distance).arithmetic(Arithmetic::F32);
        let options = TrainOptions::default().nbits(nbits).n_centroids(n_centroids).seed(seed);
        let options = options.n_iterations(n_iterations).normalize(normalize).encode(encode);
        pool::run(py, n_threads, || {
            // SAFETY: as in `new`.
            let tokens = match unsafe { tokens.tokens()? } {
                AnyTokens::F32(tokens) => trained(&tokens, &options)?,
                AnyTokens::F16(tokens) => trained(&tokens, &options)?,
                AnyTokens::Bf16(tokens) => trained(&tokens, &options)?,
                other => return Err(shape("element types", "f32, f16 or bf16", other.format())),
            };
            Ok(Plaid { tokens, handles: Mutex::default() })
        })
    }

    /// Rows, documents, dim, bits, centroids, bytes of a row of residuals.
    fn sizes(&self) -> (usize, usize, usize, u32, usize, usize) {
        let (codec, layout) = (self.tokens.codec(), self.tokens.layout());
        let (rows, n) = (layout.rows(), layout.n_items());
        (rows, n, codec.dim(), codec.nbits(), codec.n_centroids(), codec.row_bytes())
    }

    /// Bytes that the tokens take, without the tables.
    fn size_bytes(&self) -> u64 {
        self.tokens.size_bytes()
    }

    /// Copies codes (i32), residuals, centroids (f32) and bucket weights to room for them.
    fn parts(
        &self,
        codes: Memory,
        residuals: Memory,
        centroids: Memory,
        weights: Memory,
    ) -> PyResult<()> {
        let (tokens, codec) = (&self.tokens, self.tokens.codec());
        let copy = || {
            // SAFETY: as in `new`.
            unsafe {
                let (from, rows) = (tokens.codes(), tokens.residuals());
                codes.write("codes", from.len())?.copy_from_slice(from);
                residuals.write("residuals", rows.len())?.copy_from_slice(rows);
                let values = codec.centroids().to_f32();
                centroids.write("centroids", values.len())?.copy_from_slice(&values);
                let values = codec.bucket_weights();
                weights.write("bucket_weights", values.len())?.copy_from_slice(values);
            }
            Ok(())
        };
        copy().map_err(crate::errors::raised)
    }

    /// Tokens of the longest document.
    fn max_len(&self) -> usize {
        self.tokens.layout().max_len()
    }

    /// First row and length of each document (i32).
    fn segments(&self, to: Memory) -> PyResult<()> {
        let segments = self.tokens.layout().segments();
        // SAFETY: as in `new`.
        let to = unsafe { to.write::<i32>("segments", 2 * segments.len()) };
        let from = segments.iter().flatten().map(|&n| n as i32);
        to.map_err(crate::errors::raised)?.iter_mut().zip(from).for_each(|(to, n)| *to = n);
        Ok(())
    }

    /// Whether each document has a valid token, a byte each.
    fn has_tokens(&self, to: Memory) -> PyResult<()> {
        let layout = self.tokens.layout();
        // SAFETY: as in `new`.
        let to = unsafe { to.write::<u8>("has_tokens", layout.n_items()) };
        let to = to.map_err(crate::errors::raised)?;
        to.iter_mut().enumerate().for_each(|(i, has)| *has = layout.has_tokens(i).into());
        Ok(())
    }

    /// Decodes the tokens to f32.
    fn decode(&self, py: Python<'_>, n_threads: usize, to: Memory) -> PyResult<()> {
        pool::run(py, n_threads, || {
            let found = self.tokens.decode::<f32>()?;
            // SAFETY: as in `new`.
            unsafe { to.write::<f32>("tokens", found.data().len())?.copy_from_slice(found.data()) };
            Ok(())
        })
    }

    /// Scores queries in host memory.
    fn score(
        &self,
        py: Python<'_>,
        n_threads: usize,
        queries: Side,
        pairs: Pairs,
        room: Room,
    ) -> PyResult<()> {
        pool::run(py, n_threads, || {
            // SAFETY: as in `new`.
            unsafe {
                let (queries, pairing) = (queries.tokens()?, pairs.pairing()?);
                let documents = self.handle(&Device::cpu(), queries.format())?;
                let options = room.options(false);
                room.write(&Device::cpu().score_any(&queries, &*documents, &pairing, &options)?)
            }
        })
    }

    /// Gradients of queries in host memory; the documents' address in `room` is not used.
    fn backward(
        &self,
        py: Python<'_>,
        n_threads: usize,
        queries: Side,
        pairs: Pairs,
        room: GradientRoom,
    ) -> PyResult<()> {
        pool::run(py, n_threads, || {
            // SAFETY: as in `new`.
            match &unsafe { queries.tokens()? } {
                AnyTokens::F32(queries) => self.gradient(queries, pairs, room),
                AnyTokens::F16(queries) => self.gradient(queries, pairs, room),
                AnyTokens::Bf16(queries) => self.gradient(queries, pairs, room),
                other => Err(shape("element types", "f32, f16 or bf16", other.format())),
            }
        })
    }
}

fn trained<T: Element>(
    tokens: &Tokens<'_, T>,
    options: &TrainOptions,
) -> Result<ResidualTokens<'static>> {
    let codec = Arc::new(ResidualCodec::train(tokens, options)?);
    ResidualTokens::encode(codec, tokens, &options.encode)
}

impl Plaid {
    /// The documents on a device, for queries of a type; copied there at first use.
    pub fn handle(&self, device: &Device, queries: TokenFormat) -> Result<Arc<AnyDeviceTokens>> {
        let TokenFormat::Element(element) = queries else {
            return Err(shape("element types", "f32, f16 or bf16 queries", queries));
        };
        let key = (device.ordinal().map_or(-1, |ordinal| ordinal as i32), element as u8);
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handles.get(&key) {
            return Ok(handle.clone());
        }
        let handle = Arc::new(device.upload_residual_any(&self.tokens, element)?);
        handles.insert(key, handle.clone());
        Ok(handle)
    }

    fn gradient<T: Element>(
        &self,
        queries: &Tokens<'_, T>,
        pairs: Pairs,
        to: GradientRoom,
    ) -> Result<()> {
        let handle = self.handle(&Device::cpu(), T::FORMAT)?;
        let documents: &DeviceTokens<Residual<T>> = handle
            .typed::<Residual<T>>()
            .ok_or_else(|| shape("documents", "residuals of these queries", handle.format()))?;
        // SAFETY: as in `new`.
        unsafe {
            let layouts = [queries.layout().clone(), documents.layout().clone()];
            let pairing = pairs.pairing()?;
            let winners = cpu::winners(&to, pairs, &layouts)?;
            let options = ScoreOptions::default();
            let scores = TrainingScores::from_winners(winners, layouts, &pairing, &options)?;
            let grad_scores = to.0.read("grad_scores", scores.scores().values().len())?;
            let scores = scores.with_grad(grad_scores);
            let found = Device::cpu().backward_residual(queries, documents, scores)?.queries;
            if let Some(to) = to.3 {
                to.write::<f32>("queries' gradient", found.len())?.copy_from_slice(&found);
            }
        }
        Ok(())
    }
}
