//! Hidden states that are projected to tokens, and scored meanwhile.

use maxsim::format::{Element, with_element};
use maxsim::projection::{ProjectedAddresses, ProjectedStep, Projection, ProjectionGradients};
use maxsim::training::{GradientType, TrainingScores};
use maxsim::{Device, Result};
use pyo3::prelude::*;

use super::{Place, There, element};
use crate::cpu::Room;
use crate::errors::raised;
use crate::side::{Memory, Pairs, Side};

/// The linear layer.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Head(
    /* weight, an item of all rows */ Side,
    /* bias, an item of one row */ Option<Side>,
    /* normalize */ bool,
);

/// Its numbers where they are.
#[derive(Debug)]
struct HeadThere<T: Element> {
    weight: There<T>,
    bias: Option<There<T>>,
    normalize: bool,
}

impl Head {
    /// # Safety
    /// As [`There::new`].
    unsafe fn on<T: Element>(&self, device: &Device) -> Result<HeadThere<T>> {
        let Head(weight, bias, normalize) = self;
        // SAFETY: the caller's promise.
        unsafe {
            let bias = bias.as_ref().map(|bias| There::new(device, bias)).transpose()?;
            Ok(HeadThere { weight: There::new(device, weight)?, bias, normalize: *normalize })
        }
    }
}

impl<T: Element> HeadThere<T> {
    fn projection(&self) -> Result<Projection<'_, T>> {
        let projection = Projection::new(self.weight.tokens())?.normalize(self.normalize);
        match &self.bias {
            None => Ok(projection),
            Some(bias) => projection.bias(bias.tokens()),
        }
    }
}

/// Room for f32 gradients of hidden states, weight and bias.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct HeadRoom(Memory, Memory, Option<Memory>);

impl HeadRoom {
    /// # Safety
    /// The addresses must be those of as much memory as the numbers say, of this call alone.
    unsafe fn write(&self, found: &ProjectionGradients) -> Result<()> {
        let ProjectionGradients { hidden, weight, bias, .. } = found;
        // SAFETY: the caller's promise.
        unsafe {
            self.0.write("hidden states' gradient", hidden.len())?.copy_from_slice(hidden);
            self.1.write("weight's gradient", weight.len())?.copy_from_slice(weight);
            if let Some(to) = self.2 {
                to.write("bias's gradient", bias.len())?.copy_from_slice(bias);
            }
        }
        Ok(())
    }
}

/// Projects hidden states in host memory to tokens of their element type.
#[pyfunction]
pub fn project(
    py: Python<'_>,
    place: Place,
    hidden: Side,
    head: Head,
    tokens: Memory,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: the Python caller gives the addresses of tensors that it keeps meanwhile.
        with_element!(element(&(hidden, head.0))?, T => unsafe {
            let (hidden, head) = (There::<T>::new(device, &hidden)?, head.on::<T>(device)?);
            let found = device.project(hidden.tokens(), &head.projection()?)?.download()?;
            tokens.write("tokens", found.data().len())?.copy_from_slice(found.data());
            Ok(())
        })
    })
}

/// Gradients of hidden states, weight and bias from those of tokens, an f32 each.
#[pyfunction]
pub fn project_backward(
    py: Python<'_>,
    place: Place,
    hidden: Side,
    head: Head,
    grad: Memory,
    to: HeadRoom,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: as in `project`.
        with_element!(element(&(hidden, head.0))?, T => unsafe {
            let (hidden, head) = (There::<T>::new(device, &hidden)?, head.on::<T>(device)?);
            let grad = grad.read("grad", grad.1)?;
            to.write(&device.project_backward(hidden.tokens(), &head.projection()?, grad)?)
        })
    })
}

/// Scores queries against hidden states where they are, and writes to host memory.
#[pyfunction]
pub fn score_projected(
    py: Python<'_>,
    place: Place,
    sides: (Side, Side),
    head: Head,
    pairs: Pairs,
    consistent: bool,
    room: Room,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: as in `project`.
        with_element!(element(&sides)?, T => unsafe {
            let queries = There::<T>::new(device, &sides.0)?;
            let (hidden, head) = (There::<T>::new(device, &sides.1)?, head.on::<T>(device)?);
            let (pairing, options) = (pairs.pairing()?, room.options(false).consistent(consistent));
            let (queries, hidden) = (queries.tokens(), hidden.tokens());
            let projection = head.projection()?;
            room.write(&device.score_projected(queries, hidden, &projection, &pairing, &options)?)
        })
    })
}

/// Addresses on a CUDA device: of i32 winners and f32 gradients of scores.
type From = (u64, u64);

/// And of room for gradients of queries, hidden states, where these are wanted, weight and bias.
type To = (u64, Option<u64>, u64, Option<u64>);

/// Gradients of scores of hidden states on a CUDA device, in its memory and the element type.
#[pyfunction]
pub fn projected_gradients(
    py: Python<'_>,
    place: Place,
    sides: (Side, Side),
    head: Head,
    pairs: Pairs,
    from: From,
    to: To,
) -> PyResult<()> {
    place.run(py, |device| {
        // SAFETY: as in `project`; there are winners and gradients of all scores, and room.
        with_element!(element(&sides)?, T => unsafe {
            let queries = There::<T>::new(device, &sides.0)?;
            let (hidden, head) = (There::<T>::new(device, &sides.1)?, head.on::<T>(device)?);
            let (queries, hidden) = (queries.tokens(), hidden.tokens());
            let (projection, pairing) = (head.projection()?, pairs.pairing()?);
            let (queries_at, hidden_at, weight, bias) = to;
            let to = ProjectedAddresses {
                queries: queries_at,
                query_weights: None,
                hidden: hidden_at,
                weight,
                bias,
            };
            let (winners, grad_scores) = from;
            let gradients = GradientType::Tokens;
            let step = ProjectedStep { winners, grad_scores, to, gradients };
            device.backward_projected_into(queries, hidden, &projection, &pairing, &step)
        })
    })
}

/// Scores of hidden states in host memory, with what their gradients need.
#[pyclass(frozen)]
#[derive(Debug)]
pub struct Projected(TrainingScores);

#[pymethods]
impl Projected {
    #[new]
    fn new(
        py: Python<'_>,
        place: Place,
        sides: (Side, Side),
        head: Head,
        pairs: Pairs,
    ) -> PyResult<Projected> {
        place.run(py, |device| {
            // SAFETY: as in `project`.
            with_element!(element(&sides)?, T => unsafe {
                let queries = There::<T>::new(device, &sides.0)?;
                let (hidden, head) = (There::<T>::new(device, &sides.1)?, head.on::<T>(device)?);
                let (queries, hidden) = (queries.tokens(), hidden.tokens());
                let (projection, pairing) = (head.projection()?, pairs.pairing()?);
                device
                    .score_projected_for_training(queries, hidden, &projection, &pairing)
                    .map(Projected)
            })
        })
    }

    /// Writes the scores, and winners where there is room for them.
    fn read(&self, room: Room) -> PyResult<()> {
        // SAFETY: as in `project`.
        unsafe { room.write(self.0.scores()) }.map_err(raised)
    }

    /// Writes f32 gradients of queries, and of what documents are made of, from those of the
    /// scores.
    fn backward(
        &self,
        py: Python<'_>,
        place: Place,
        sides: (Side, Side),
        head: Head,
        grad: Memory,
        to: (Memory, HeadRoom),
    ) -> PyResult<()> {
        place.run(py, |device| {
            // SAFETY: as in `project`.
            with_element!(element(&sides)?, T => unsafe {
                let queries = There::<T>::new(device, &sides.0)?;
                let (hidden, head) = (There::<T>::new(device, &sides.1)?, head.on::<T>(device)?);
                let scores = self.0.with_grad(grad.read("grad", grad.1)?);
                let (queries, hidden) = (queries.tokens(), hidden.tokens());
                let found =
                    device.backward_projected(queries, hidden, &head.projection()?, scores)?;
                let of_queries = to.0.write("queries' gradient", found.queries.len())?;
                of_queries.copy_from_slice(&found.queries);
                to.1.write(&found.documents)
            })
        })
    }
}
