//! Calls of the CPU engine on memory of the caller.

use maxsim::format::Element;
use maxsim::layout::TokenOffsets;
use maxsim::training::{BackwardOptions, GradientSlices, TrainingScores};
use maxsim::{AnyTokens, Device, Error, Result, ScoreOptions, Scores, TokenLayout, Tokens};
use pyo3::prelude::*;

use crate::errors::shape;
use crate::pool;
use crate::side::{Memory, Pairs, Side, entries};

/// Room for results; none for what is not asked for.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Room(
    /* f32 scores */ pub Memory,
    /* i32 winners, `width` per score */ pub Option<Memory>,
    /* f32 token scores, `width` per score */ pub Option<Memory>,
    /* width */ pub usize,
);

impl Room {
    pub fn options(&self, normalize: bool) -> ScoreOptions {
        let options = ScoreOptions::default().normalize(normalize);
        options.winners(self.1.is_some()).token_scores(self.2.is_some())
    }

    /// Writes results: rows of tokens padded with -1 and 0 to the width.
    ///
    /// # Safety
    /// The addresses must be those of as much memory as the numbers say, of this call alone.
    pub unsafe fn write(&self, scores: &Scores) -> Result<()> {
        let Room(values, winners, token_scores, width) = *self;
        let n = scores.values().len();
        // SAFETY: the caller's promise.
        unsafe {
            values.write::<f32>("scores", n)?.copy_from_slice(scores.values());
            let Some(offsets) = scores.token_offsets() else { return Ok(()) };
            if let (Some(to), Some(found)) = (winners, scores.winners()) {
                pad(to.write("winners", entries(n, width)?)?, found, offsets, width, -1)?;
            }
            if let (Some(to), Some(found)) = (token_scores, scores.token_scores()) {
                pad(to.write("token_scores", entries(n, width)?)?, found, offsets, width, 0.0)?;
            }
        }
        Ok(())
    }
}

/// Copies the entries of every score into a row of `width`, and fills the rest.
fn pad<T: Copy>(
    rows: &mut [T],
    found: &[T],
    offsets: &TokenOffsets,
    width: usize,
    none: T,
) -> Result<()> {
    if found.len() == rows.len() {
        // Every query has as many tokens.
        rows.copy_from_slice(found);
        return Ok(());
    }
    for (score, row) in rows.chunks_mut(width.max(1)).enumerate() {
        let found = &found[offsets.range(score)];
        if found.len() > row.len() {
            return Err(shape("max_q_len", format!("at least {}", found.len()), width));
        }
        row[..found.len()].copy_from_slice(found);
        row[found.len()..].fill(none);
    }
    Ok(())
}

/// Takes the entries of every score, as many as its query has tokens, out of rows of `width`.
fn unpad(
    rows: &[i32],
    width: usize,
    lens: impl Iterator<Item = usize> + Clone,
) -> Result<Vec<i32>> {
    if width == 0 || lens.clone().all(|len| len == width) {
        return Ok(rows.to_vec());
    }
    let mut found = Vec::new();
    for (row, len) in rows.chunks(width).zip(lens) {
        let row = row.get(..len);
        let row = row.ok_or_else(|| shape("winners", format!("rows of {len} or more"), width))?;
        found.extend_from_slice(row);
    }
    Ok(found)
}

/// Scores tokens in host memory, and writes to host memory.
#[pyfunction]
pub fn score(
    py: Python<'_>,
    n_threads: usize,
    sides: (Side, Side),
    pairs: Pairs,
    normalize: bool,
    room: Room,
) -> PyResult<()> {
    pool::run(py, n_threads, || {
        // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
        unsafe {
            let (queries, documents) = (sides.0.tokens()?, sides.1.tokens()?);
            let (pairing, options) = (pairs.pairing()?, room.options(normalize));
            room.write(&Device::cpu().score_any(&queries, &documents, &pairing, &options)?)
        }
    })
}

/// What gradients are made of, and room for them; none for a side that needs none.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct GradientRoom(
    /* f32 gradients of scores */ pub Memory,
    /* i32 winners, `width` per score */ pub Memory,
    /* width */ pub usize,
    /* queries' f32 gradient */ pub Option<Memory>,
    /* documents' f32 gradient */ pub Option<Memory>,
);

/// Gradients of tokens in host memory; those of the queries' weights, an f32 a row, come with those
/// of the queries alone.
#[pyfunction]
#[pyo3(signature = (n_threads, sides, pairs, normalize, room, of_weights=None))]
pub fn backward(
    py: Python<'_>,
    n_threads: usize,
    sides: (Side, Side),
    pairs: Pairs,
    normalize: bool,
    room: GradientRoom,
    of_weights: Option<Memory>,
) -> PyResult<()> {
    pool::run(py, n_threads, || {
        // SAFETY: as in `score`.
        let (queries, documents) = unsafe { (sides.0.tokens()?, sides.1.tokens()?) };
        match (&queries, &documents) {
            (AnyTokens::F32(q), AnyTokens::F32(d)) => {
                gradients(q, d, pairs, normalize, (room, of_weights))
            }
            (AnyTokens::F16(q), AnyTokens::F16(d)) => {
                gradients(q, d, pairs, normalize, (room, of_weights))
            }
            (AnyTokens::Bf16(q), AnyTokens::Bf16(d)) => {
                gradients(q, d, pairs, normalize, (room, of_weights))
            }
            _ => {
                let found = format!("{} and {}", queries.format(), documents.format());
                Err(shape("element types", "f16, bf16 or f32 on both sides", found))
            }
        }
    })
}

/// The winners of a call as the library has them: as many per pair as its query has tokens.
///
/// # Safety
/// Winners and ids must be in host memory, as many as the numbers say.
pub unsafe fn winners(
    of: &GradientRoom,
    pairs: Pairs,
    [queries, documents]: &[TokenLayout; 2],
) -> Result<Vec<i32>> {
    let GradientRoom(Memory(_, n), winners, width, ..) = *of;
    let len = |query: u64| queries.segments().get(query as usize).map_or(0, |s| s[1] as usize);
    // SAFETY: the caller's promise.
    unsafe {
        let winners = winners.read("winners", entries(n, width)?)?;
        let ids = pairs.queries(n, documents.n_items())?;
        unpad(winners, width, ids.iter().map(|&query| len(query)))
    }
}

fn gradients<T: Element>(
    queries: &Tokens<'_, T>,
    documents: &Tokens<'_, T>,
    pairs: Pairs,
    normalize: bool,
    (room_of, of_weights): (GradientRoom, Option<Memory>),
) -> Result<()> {
    let GradientRoom(grad_scores, _, _, of_queries, of_documents) = room_of;
    let layouts = [queries.layout().clone(), documents.layout().clone()];
    // SAFETY: as in `score`.
    unsafe {
        let pairing = pairs.pairing()?;
        let winners = winners(&room_of, pairs, &layouts)?;
        let options = ScoreOptions::default().normalize(normalize);
        let scores = TrainingScores::from_winners(winners, layouts, &pairing, &options)?;
        let grad_scores = grad_scores.read("grad_scores", scores.scores().values().len())?;
        let side = |argument, memory: Option<Memory>, layout: &TokenLayout| {
            let Some(memory) = memory else { return Ok(None) };
            let side: &mut [f32] = memory.write(argument, layout.rows() * layout.dim())?;
            side.fill(0.0);
            Ok::<_, Error>(Some(side))
        };
        let sides = [
            side("queries' gradient", of_queries, queries.layout())?,
            side("documents' gradient", of_documents, documents.layout())?,
        ];
        let mut to = GradientSlices::from(sides);
        if let Some(of_weights) = of_weights {
            let weights: &mut [f32] =
                of_weights.write("weights' gradient", queries.layout().rows())?;
            weights.fill(0.0);
            to = to.weights(weights);
        }
        let scores = scores.with_grad(grad_scores);
        let options = BackwardOptions::default();
        Device::cpu().backward_sides(queries, documents, scores, &options, to)
    }
}
