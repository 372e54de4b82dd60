//! Scores of hidden states and their gradients made ready, for many steps on a device.

use std::sync::Arc;

use super::Projection;
use super::backward::{ProjectedGradients, ProjectionGradients};
use super::prepared::PreparedProjected;
use crate::cuda::{CudaGradScores, CudaGradients, CudaProjectedBackward};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::backward::outputs::DeviceGradScores;
use crate::ops::backward::prepared::GradientType;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::GradientMatrix;
use crate::problem::pairing::Pairing;
use crate::runtime::alloc::{filled, zeroed};
use crate::runtime::on::On;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::layout::{TokenLayout, check_len};

/// Scores of hidden states with gradients that stay on a device, made ready for many steps; see
/// [`Device::prepare_projected_training`].
#[derive(Debug)]
#[must_use]
pub struct PreparedProjectedTraining<'a, T: Element> {
    /// In front of the scores, whose winners it reads.
    backward: CudaProjectedBackward,
    scores: PreparedProjected<'a, T>,
    pub(super) room: Room,
    n_scores: usize,
    has_scores: bool,
}

/// Gradients of queries, and of what documents' tokens are made of, on a device: written by
/// [`PreparedProjectedTraining::backward`]. Each is a matrix without gaps, row-major.
///
/// ```
/// use maxsim::projection::DeviceProjectedGradients;
///
/// /// What the optimizer of another library reads: the gradients of weight and bias.
/// fn of_layer(gradients: &DeviceProjectedGradients) -> (u64, Option<u64>) {
///     (gradients.addresses().weight, gradients.addresses().bias)
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct DeviceProjectedGradients {
    pub(super) device: Device,
    /// Of queries, hidden states and query weights; of weight and bias.
    pub(super) parts: [Arc<CudaGradients>; 2],
}

/// Device addresses of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectedAddresses {
    /// `[rows, dim]` of the queries' matrix.
    pub queries: u64,
    /// One f32 per row of the queries' matrix, where query tokens have
    /// [weights](crate::Tokens::with_weights).
    pub query_weights: Option<u64>,
    /// `[rows, hidden]` of the matrix of hidden states; `None` where it is not wanted.
    pub hidden: Option<u64>,
    /// `[dim, hidden]`, of the weight.
    pub weight: u64,
    /// `[dim]`, of the bias, where there is one.
    pub bias: Option<u64>,
}

/// What [`Device::backward_projected_into`] is given in device memory, and where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectedStep {
    /// Address of the winners of [`Device::score_projected`], an i32 each: a number that is no row
    /// of its document is none.
    pub winners: u64,
    /// Address of a gradient of each score, f32.
    pub grad_scores: u64,
    /// Room for the gradients.
    pub to: ProjectedAddresses,
    /// Their type.
    pub gradients: GradientType,
}

/// The gradients that a call has, as matrices without addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room([[GradientMatrix; 3]; 2]);

impl Room {
    pub(super) fn new<T: Element>(
        queries: &TokenLayout,
        hidden: &TokenLayout,
        projection: &Projection<'_, T>,
        gradients: GradientType,
    ) -> Room {
        let element = match gradients {
            GradientType::F32 => ElementType::F32,
            GradientType::Tokens => T::TYPE,
        };
        let of = |rows, dim| GradientMatrix { address: 0, element, rows, dim };
        let (dim, n) = (projection.dim(), projection.hidden());
        let n_weights = if queries.is_weighted() { queries.rows() } else { 0 };
        let weights = GradientMatrix { element: ElementType::F32, ..of(n_weights, 1) };
        let bias = of(usize::from(projection.bias.is_some()), dim);
        let sides = [of(queries.rows(), dim), of(hidden.rows(), n), weights];
        Room([sides, [of(dim, n), bias, of(0, 1)]])
    }

    /// The matrices at addresses.
    ///
    /// # Errors
    /// [`Error::Shape`] where an address is given for no gradient, or none for one.
    pub(super) fn at(self, to: ProjectedAddresses) -> Result<[[GradientMatrix; 3]; 2]> {
        let Room([[queries, hidden, query_weights], [weight, bias, none]]) = self;
        let given =
            [("query_weights", query_weights.rows, to.query_weights), ("bias", bias.rows, to.bias)];
        for (argument, rows, address) in given {
            if (rows > 0) != address.is_some() {
                let word = |is: bool| if is { "an address" } else { "no address" };
                let (expected, found) = (word(rows > 0).into(), word(address.is_some()).into());
                return Err(Error::Shape { argument, expected, found });
            }
        }
        let placed = |matrix, address| GradientMatrix { address, ..matrix };
        let of_weights = placed(query_weights, to.query_weights.unwrap_or(0));
        let of_hidden = match to.hidden {
            None => GradientMatrix { rows: 0, ..hidden },
            Some(address) => placed(hidden, address),
        };
        let sides = [placed(queries, to.queries), of_hidden, of_weights];
        Ok([sides, [placed(weight, to.weight), placed(bias, to.bias.unwrap_or(0)), none]])
    }

    /// Whether matrices are these, or all but that of hidden states.
    fn is_of(&self, parts: [[GradientMatrix; 3]; 2]) -> bool {
        let of = |matrix: &GradientMatrix| (matrix.element, matrix.rows, matrix.dim);
        let Room(mut own) = *self;
        own[0][1].rows = own[0][1].rows.min(parts[0][1].rows);
        own.iter().flatten().map(of).eq(parts.iter().flatten().map(of))
    }
}

impl Device {
    /// Makes [`Device::score_projected_for_training`] and [`Device::backward_projected`] ready for
    /// many steps on a CUDA device, whose gradients stay there: in the element type of the hidden
    /// states, as torch has them, or in f32. Queries of later calls have the same items and lie on
    /// the same boundaries; of `queries` alone that is taken.
    ///
    /// Work is planned for as many chosen rows as there can be, the winners of a document or its
    /// rows: the host reads neither winners nor gradients, and waits once for scores and once for
    /// gradients. Memory is the library's for up to 128 MiB of such rows, or one document's, and is
    /// kept for the next work.
    ///
    /// ```no_run
    /// use maxsim::projection::{PreparedProjectedTraining, Projection};
    /// use maxsim::training::GradientType;
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let device = Device::cuda(0)?;
    /// let weight = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
    /// let head = Projection::new(&weight)?;
    /// let queries = device.upload(&Tokens::padded(&[1.0f32, 1.0], 1, 1, 2)?)?;
    /// // One document, of tokens (3, 4) and (-1, 6).
    /// let hidden = device.upload(&Tokens::padded(&[3.0f32, 2.0, -1.0, 3.0], 1, 2, 2)?)?;
    /// let (cross, element) = (Pairing::cross(), GradientType::Tokens);
    /// let mut work: PreparedProjectedTraining<'_, f32> =
    ///     device.prepare_projected_training(&queries, &hidden, &head, &cross, element)?;
    /// let mut gradients = work.new_gradients()?;
    /// assert_eq!(work.score(&queries)?, [7.0]);
    /// let of_scores = work.upload_grad_scores(&[0.5])?;
    /// work.backward(&queries, &of_scores, &mut gradients)?;
    /// assert_eq!(gradients.read()?.documents.hidden, [0.5, 1.0, 0.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_projected`]; [`Error::Unsupported`] on the CPU.
    pub fn prepare_projected_training<'a, 'q, T: Element>(
        &self,
        queries: impl Into<TokensRef<'q, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'a, T>,
        pairing: &Pairing,
        gradients: GradientType,
    ) -> Result<PreparedProjectedTraining<'a, T>> {
        let (queries, hidden) = (queries.into(), hidden.into());
        self.cuda_device("gradients of projections that stay on a device")?;
        let options = ScoreOptions::default().winners(true);
        let scores = self.prepare_projected(queries, hidden, projection, pairing, &options)?;
        let problem = Problem::new(queries.layout(), &scores.documents, pairing)?;
        let n_scores = problem.shape().n_scores();
        let mut winners = filled(n_scores as u64, (0, 2))?;
        let places = scores.on_cuda.as_ref().map_or(Vec::new(), |on| on.winners());
        for (slice, (address, bytes)) in scores.slices.iter().zip(places) {
            let part = Problem::new(problem.queries(), &slice.documents, &slice.pairing)?;
            let offsets = part.token_offsets();
            for i in 0..part.shape().n_scores() {
                let first = offsets.range(i).start * bytes;
                winners[slice.score(i)] = (address + first as u64, bytes as u32);
            }
        }
        let backward = scores.projector.backward(&problem, projection.hidden(), &|p| winners[p])?;
        let room = Room::new(queries.layout(), hidden.layout(), projection, gradients);
        Ok(PreparedProjectedTraining { backward, scores, room, n_scores, has_scores: false })
    }
}

impl<T: Element> PreparedProjectedTraining<'_, T> {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        self.scores.projector.device()
    }

    /// The values of [`PreparedProjected::score`], and waits for them. Winners stay on the device.
    ///
    /// # Errors
    /// As there.
    pub fn score<'q>(&mut self, queries: impl Into<TokensRef<'q, T>>) -> Result<Vec<f32>> {
        let queries = queries.into();
        self.scores.check_queries(&queries)?;
        let mut all = zeroed(self.n_scores as u64)?;
        let device = self.scores.projector.device();
        let Some(slices) = &mut self.scores.on_cuda else { return Err(device.wrong_queue()) };
        self.has_scores = false;
        let mut own = None;
        let found = slices.score_values(queries.cuda_tokens(device, &mut own)?)?;
        for (slice, found) in self.scores.slices.iter().zip(&found) {
            found.iter().enumerate().for_each(|(i, &value)| all[slice.score(i)] = value);
        }
        self.has_scores = true;
        Ok(all)
    }

    /// Writes the gradients that [`Device::backward_projected`] finds, from those of the scores
    /// that were computed last, whose queries these must be; and waits for them. What `to` holds
    /// is replaced. The same bits every time.
    ///
    /// # Errors
    /// Those of [`PreparedProjectedTraining::score`]; [`Error::Shape`] before the first scores, and
    /// for gradients of other work.
    pub fn backward<'q>(
        &mut self,
        queries: impl Into<TokensRef<'q, T>>,
        grad_scores: &DeviceGradScores,
        to: &mut DeviceProjectedGradients,
    ) -> Result<()> {
        let queries = queries.into();
        self.scores.check_queries(&queries)?;
        let device = self.scores.projector.device();
        device.check_same("grad_scores", &grad_scores.device)?;
        check_len("grad_scores", self.n_scores, "one per score", grad_scores.n_scores)?;
        device.check_same("gradients", &to.device)?;
        if !self.room.is_of([to.parts[0].parts(), to.parts[1].parts()]) {
            return Err(Error::Shape {
                argument: "gradients",
                expected: "room that this work has made".into(),
                found: "that of another one".into(),
            });
        }
        if !self.has_scores {
            return Err(Error::Shape {
                argument: "work",
                expected: "scores, whose winners have gradients".into(),
                found: "none yet; call PreparedProjectedTraining::score".into(),
            });
        }
        let On::Cuda(grad_scores) = &grad_scores.inner else { return Err(device.wrong_queue()) };
        let mut own = None;
        let queries = queries.cuda_tokens(device, &mut own)?;
        self.backward.run(queries, grad_scores, [&to.parts[0], &to.parts[1]])
    }

    /// Gradients of scores on the device: a copy of one number per score.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is another number of them; [`Error::DeviceMemory`].
    pub fn upload_grad_scores(&self, values: &[f32]) -> Result<DeviceGradScores> {
        check_len("grad_scores", self.n_scores, "one per score", values.len())?;
        let cuda = self.device().cuda_device("memory of a CUDA device")?;
        let inner = On::Cuda(Arc::new(CudaGradScores::upload(cuda, values)?));
        Ok(DeviceGradScores { device: self.device().clone(), n_scores: values.len(), inner })
    }

    /// Room for gradients: zeros.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`].
    pub fn new_gradients(&self) -> Result<DeviceProjectedGradients> {
        let cuda = self.device().cuda_device("memory of a CUDA device")?;
        let Room([sides, layer]) = self.room;
        let zeros = |parts| CudaGradients::zeros(cuda, parts).map(Arc::new);
        let parts = [zeros(sides)?, zeros(layer)?];
        Ok(DeviceProjectedGradients { device: self.device().clone(), parts })
    }

    /// Number of scores.
    pub(super) fn n_scores(&self) -> usize {
        self.n_scores
    }
}

impl DeviceProjectedGradients {
    /// Where the gradients are. They are there when the call that writes them has returned.
    pub fn addresses(&self) -> ProjectedAddresses {
        let [[queries, hidden, query_weights], [weight, bias, _]] =
            [self.parts[0].parts(), self.parts[1].parts()];
        let some = |matrix: GradientMatrix| Some(matrix.address).filter(|_| matrix.rows > 0);
        ProjectedAddresses {
            queries: queries.address,
            query_weights: some(query_weights),
            hidden: some(hidden),
            weight: weight.address,
            bias: some(bias),
        }
    }

    /// Copies the gradients to the host, widened to f32; of hidden states none where there is no
    /// room for it.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<ProjectedGradients> {
        let room = |matrix: GradientMatrix| zeroed(matrix.rows as u64 * matrix.dim as u64);
        let [sides, layer] = [self.parts[0].parts(), self.parts[1].parts()];
        let mut found = ProjectedGradients {
            queries: room(sides[0])?,
            query_weights: room(sides[2])?,
            documents: ProjectionGradients {
                hidden: room(sides[1])?,
                weight: room(layer[0])?,
                bias: room(layer[1])?,
            },
        };
        let ProjectedGradients { queries, query_weights, documents } = &mut found;
        let ProjectionGradients { hidden, weight, bias } = documents;
        self.parts[0].read([queries, hidden, query_weights])?;
        self.parts[1].read([weight, bias, &mut []])?;
        Ok(found)
    }
}
