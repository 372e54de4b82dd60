//! The calls that most calls are, with little around them: padded tensors of torch without gaps,
//! every query `[Nq, Lq, dim]` against every document `[Nd, Ld, dim]`, or against its own
//! `[Nq, K, Ld, dim]`. What is not so is left to Python, where all is checked and explained.

mod exchange;

use maxsim::format::{ElementType, with_element};
use maxsim::{Device, Result};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cpu::{self, GradientRoom, Room};
use crate::cuda::{self, GradientMemory, Results};
use crate::errors::raised;
use crate::side::{Memory, Pairs, Side};
use crate::streams::{Call, Outcome};
use exchange::{Dense, Exchange, Kind};

/// Documents below so many tokens have winners of two bytes on a GPU.
pub const WIDE_FROM: usize = 65535;

/// Bits of a call's options.
const NORMALIZE: u8 = 1;
const TF32: u8 = 2;
const CONSISTENT: u8 = 4;

/// Queries, documents, and their masks.
type Given<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

/// Scores, and winners as the device keeps them where they are asked for.
type Scored<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Gradients of queries and of documents, where these are asked for.
type Gradients<'py> = (Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

/// Makes these calls on tensors of torch.
#[pyclass(frozen)]
pub struct Quick {
    exchange: Exchange,
    /// Asks how many threads a call on the CPU uses.
    n_threads: Py<PyAny>,
    empty_like: Py<PyAny>,
    /// Keywords of element types, made once.
    float32: Py<PyDict>,
    int16: Py<PyDict>,
    int32: Py<PyDict>,
}

/// Sizes of a call whose tensors go together.
struct Sizes {
    sides: (Side, Side),
    pairs: Pairs,
    element: ElementType,
    /// Of the scores.
    shape: [usize; 2],
    query_len: usize,
    document_len: usize,
    device: Option<i32>,
}

impl Sizes {
    fn n_scores(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    fn winner_kind(&self) -> Kind {
        match self.device.is_some() && self.document_len < WIDE_FROM {
            true => Kind::I16,
            false => Kind::I32,
        }
    }

    /// Memory of winners: bytes on a device, entries in host memory.
    fn winners(&self, address: u64) -> Memory {
        let n = self.n_scores() * self.query_len;
        match (self.device, self.winner_kind()) {
            (None, _) => Memory(address, n),
            (Some(_), Kind::I16) => Memory(address, n * 2),
            (Some(_), _) => Memory(address, n * 4),
        }
    }
}

#[pymethods]
impl Quick {
    /// Raises where torch does not show its tensors to compiled code (before 2.10).
    #[new]
    fn new(py: Python<'_>, n_threads: Py<PyAny>) -> PyResult<Quick> {
        let torch = py.import("torch")?;
        let keywords = |name| {
            let keywords = PyDict::new(py);
            keywords.set_item("dtype", torch.getattr(name)?)?;
            Ok::<_, PyErr>(keywords.unbind())
        };
        Ok(Quick {
            exchange: Exchange::new(&torch)?,
            n_threads,
            empty_like: torch.getattr("empty_like")?.unbind(),
            float32: keywords("float32")?,
            int16: keywords("int16")?,
            int32: keywords("int32")?,
        })
    }

    /// Whether a call on these is of the kind.
    fn takes(&self, given: Given<'_>) -> bool {
        self.sizes(&given).is_some()
    }

    /// Scores; none of a call that is not of the kind, or that needs memory first.
    fn score<'py>(
        &self,
        py: Python<'py>,
        given: Given<'py>,
        options: u8,
        with_winners: bool,
    ) -> PyResult<Option<Scored<'py>>> {
        let Some(sizes) = self.sizes(&given) else { return Ok(None) };
        let scores = self.new_empty(&given.0, sizes.shape, Kind::F32)?;
        let [n, m] = sizes.shape;
        let winners = with_winners
            .then(|| self.new_empty(&given.0, [n, m, sizes.query_len], sizes.winner_kind()))
            .transpose()?;
        let of_scores = Memory(address(&scores)?, sizes.n_scores());
        let of_winners = winners.as_ref().map(address).transpose()?.map(|at| sizes.winners(at));
        if let Some(ordinal) = sizes.device {
            let call = self.call(py, ordinal, options)?;
            let results = Results(of_scores, of_winners, None);
            // SAFETY: torch frees its tensors in the order of the stream that is its current one.
            let outcome = py.detach(|| unsafe { score_on_device(&call, &sizes, &results) });
            return Ok(done(outcome)?.map(|_| (scores, winners)));
        }
        let width = if with_winners { sizes.query_len } else { 0 };
        let room = Room(of_scores, of_winners, None, width);
        let is_normalized = options & NORMALIZE != 0;
        cpu::score(py, self.n_threads(py)?, sizes.sides, sizes.pairs, is_normalized, room)?;
        Ok(Some((scores, winners)))
    }

    /// Gradients of the sides that need one, in the type of the tokens; none of a call that is
    /// not of the kind, or that needs memory first.
    fn gradients<'py>(
        &self,
        py: Python<'py>,
        given: Given<'py>,
        of_scores: (Bound<'py, PyAny>, Bound<'py, PyAny>),
        options: u8,
        needs: (bool, bool),
    ) -> PyResult<Option<Gradients<'py>>> {
        let Some(sizes) = self.sizes(&given) else { return Ok(None) };
        let (grad, winners) = (self.exchange.read(&of_scores.0), self.exchange.read(&of_scores.1));
        let (Some(grad), Some(winners)) = (grad, winners) else { return Ok(None) };
        let [n, m] = sizes.shape;
        let is_right = grad.kind == Kind::F32
            && grad.shape() == [n, m]
            && winners.kind == sizes.winner_kind()
            && winners.shape() == [n, m, sizes.query_len]
            && [grad.device, winners.device] == [sizes.device; 2];
        if !is_right {
            return Ok(None);
        }
        let of_scores = (Memory(grad.address, grad.len()), sizes.winners(winners.address));
        match sizes.device {
            Some(ordinal) => {
                let call = self.call(py, ordinal, options)?;
                self.device_gradients(py, &given, &call, &sizes, of_scores, needs)
            }
            None => self.host_gradients(py, &given, &sizes, of_scores, options, needs).map(Some),
        }
    }
}

impl Quick {
    /// The sizes of a call, where its tensors are of the kind and go together.
    fn sizes(&self, given: &Given<'_>) -> Option<Sizes> {
        let [queries, documents] = [&given.0, &given.1].map(|tokens| self.tokens(tokens));
        let (queries, documents) = (queries?, documents?);
        let element = match queries.kind {
            Kind::F32 => ElementType::F32,
            Kind::F16 => ElementType::F16,
            Kind::Bf16 => ElementType::Bf16,
            _ => return None,
        };
        let [n, query_len, dim] = *queries.shape() else { return None };
        let (m, document_len, pairs) = match *documents.shape() {
            [m, len, d] if d == dim => (m, len, Pairs::cross()),
            [of, k, len, d] if d == dim && of == n => (k, len, Pairs::own(k)),
            _ => return None,
        };
        let is_together = queries.kind == documents.kind && queries.device == documents.device;
        if !is_together || queries.len() == 0 || documents.len() == 0 {
            return None;
        }
        let side = |tokens: &Dense, mask: &Option<Bound<'_, PyAny>>| {
            let (dim, rows) = tokens.shape().split_last()?;
            let mask = match mask {
                None => None,
                Some(mask) => {
                    let mask = self.exchange.read(mask)?;
                    let is_one = mask.kind == Kind::Byte
                        && mask.shape() == rows
                        && mask.device == tokens.device;
                    Some(is_one.then(|| Memory(mask.address, mask.len()))?)
                }
            };
            let (len, items) = rows.split_last()?;
            let sizes = [items.iter().product(), *len, *dim];
            Some(Side::padded(tokens.address, element, sizes, mask))
        };
        Some(Sizes {
            sides: (side(&queries, &given.2)?, side(&documents, &given.3)?),
            pairs,
            element,
            shape: [n, m],
            query_len,
            document_len,
            device: queries.device,
        })
    }

    /// Tokens whose memory holds what they are: torch may turn signs when it reads.
    fn tokens(&self, tensor: &Bound<'_, PyAny>) -> Option<Dense> {
        let tokens = self.exchange.read(tensor)?;
        let is_negated = tensor.call_method0(intern!(tensor.py(), "is_neg"));
        match is_negated.and_then(|is_negated| is_negated.extract()) {
            Ok(false) => Some(tokens),
            _ => None,
        }
    }

    /// A tensor beside another, of a shape and type.
    fn new_empty<'py, const N: usize>(
        &self,
        like: &Bound<'py, PyAny>,
        shape: [usize; N],
        kind: Kind,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        let keywords = match kind {
            Kind::I16 => &self.int16,
            Kind::I32 => &self.int32,
            _ => &self.float32,
        };
        let shape = pyo3::types::PyTuple::new(py, shape)?;
        like.call_method(intern!(py, "new_empty"), (shape,), Some(keywords.bind(py)))
    }

    /// Room for the gradient of tokens, of a side that needs one: a tensor like them, in their type
    /// where no other is named, and its memory.
    fn room<'py>(
        &self,
        needs: bool,
        like: &Bound<'py, PyAny>,
        side: &Side,
        of_type: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Option<Bound<'py, PyAny>>, Option<Memory>)> {
        if !needs {
            return Ok((None, None));
        }
        let room = self.empty_like.bind(like.py()).call((like,), of_type)?;
        let memory = Memory(address(&room)?, side.rows() * side.dim());
        Ok((Some(room), Some(memory)))
    }

    fn n_threads(&self, py: Python<'_>) -> PyResult<usize> {
        self.n_threads.bind(py).call0()?.extract()
    }

    fn call(&self, py: Python<'_>, ordinal: i32, options: u8) -> PyResult<Call> {
        let has = |bit| options & bit != 0;
        let (stream, ordinal) = (self.exchange.stream(py, ordinal)?, ordinal as usize);
        Ok(Call(ordinal, stream, has(NORMALIZE), has(TF32), has(CONSISTENT), None))
    }

    fn device_gradients<'py>(
        &self,
        py: Python<'py>,
        given: &Given<'py>,
        call: &Call,
        sizes: &Sizes,
        (grad, winners): (Memory, Memory),
        needs: (bool, bool),
    ) -> PyResult<Option<Gradients<'py>>> {
        let (of_queries, to_queries) = self.room(needs.0, &given.0, &sizes.sides.0, None)?;
        let (of_documents, to_documents) = self.room(needs.1, &given.1, &sizes.sides.1, None)?;
        let memory = GradientMemory(grad, winners, to_queries, to_documents);
        let outcome = py.detach(|| {
            let device = Device::cuda(call.0)?;
            let sides = [&sizes.sides.0, &sizes.sides.1];
            // SAFETY: as in `score`.
            with_element!(sizes.element, T => unsafe {
                cuda::gradients::<T>(&device, call, sides, &sizes.pairs, (&memory, None))
            })
        });
        Ok(done(outcome)?.map(|()| (of_queries, of_documents)))
    }

    fn host_gradients<'py>(
        &self,
        py: Python<'py>,
        given: &Given<'py>,
        sizes: &Sizes,
        (grad, winners): (Memory, Memory),
        options: u8,
        needs: (bool, bool),
    ) -> PyResult<Gradients<'py>> {
        let f32 = Some(self.float32.bind(py));
        let (of_queries, to_queries) = self.room(needs.0, &given.0, &sizes.sides.0, f32)?;
        let (of_documents, to_documents) = self.room(needs.1, &given.1, &sizes.sides.1, f32)?;
        let room = GradientRoom(grad, winners, sizes.query_len, to_queries, to_documents);
        let is_normalized = options & NORMALIZE != 0;
        cpu::backward(
            py,
            self.n_threads(py)?,
            sizes.sides,
            sizes.pairs,
            is_normalized,
            room,
            None,
        )?;
        let rounded = |found: Option<Bound<'py, PyAny>>, like: &Bound<'py, PyAny>| match found {
            Some(found) if sizes.element != ElementType::F32 => {
                found.call_method1(intern!(py, "to"), (like,)).map(Some)
            }
            found => Ok(found),
        };
        Ok((rounded(of_queries, &given.0)?, rounded(of_documents, &given.1)?))
    }
}

/// Enqueues scores of elements.
///
/// # Safety
/// As [`cuda::cuda_score`].
unsafe fn score_on_device(call: &Call, sizes: &Sizes, results: &Results) -> Result<Outcome<usize>> {
    let device = Device::cuda(call.0)?;
    // SAFETY: the caller's promise.
    with_element!(sizes.element, T => unsafe {
        cuda::score_elements::<T>(&device, call, &sizes.sides, &sizes.pairs, results)
    })
}

fn address(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract()
}

/// What was enqueued; none where memory is wanting, for which Python asks torch.
fn done<R>(outcome: Result<Outcome<R>>) -> PyResult<Option<R>> {
    match outcome {
        Ok(Outcome::Done { result, .. }) => Ok(Some(result)),
        Ok(Outcome::NeedsWorkspace { .. }) | Err(maxsim::Error::DeviceMemory { .. }) => Ok(None),
        Err(error) => Err(raised(error)),
    }
}
