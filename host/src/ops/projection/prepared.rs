//! Scores of hidden states made ready: slices, their plans and their memory, for many calls.

use super::Projection;
use super::projector::Projector;
use super::slices::{Slice, check_options};
use crate::cuda::CudaSlices;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

/// Scores of hidden states made ready, for any queries that lie as those it was prepared with; see
/// [`Device::prepare_projected`].
#[derive(Debug)]
#[must_use]
pub struct PreparedProjected<'a, T: Element> {
    pub(super) projector: Projector<'a, T>,
    pub(super) queries: TokenLayout,
    /// How the queries lay.
    access: Access,
    pub(super) documents: TokenLayout,
    pub(super) pairing: Pairing,
    pub(super) options: ScoreOptions,
    pub(super) slices: Vec<Slice>,
    /// The slices where a GPU has them.
    pub(super) on_cuda: Option<CudaSlices>,
}

impl Device {
    /// Makes [`Device::score_projected`] ready for many calls with the same hidden states and
    /// projection, and queries of the same items and rows on the same boundaries: of `queries`
    /// alone that is taken.
    ///
    /// On a CUDA device the plans of slices, their lists and memory are made now: tokens of two
    /// slices, each up to 15 MiB or as much as the longest document, and results of all. Then a
    /// call is two kernels a slice and a few more where queries or documents are split, enqueued
    /// without a wait, and one copy of each result. On the CPU a call is
    /// [`Device::score_projected`].
    ///
    /// ```
    /// use maxsim::projection::{PreparedProjected, Projection};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let weight = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
    /// let head = Projection::new(&weight)?;
    /// // Documents of one and two rows.
    /// let hidden = [2.0f32, 0.0, 3.0, 2.0, -1.0, 3.0];
    /// let hidden = device.upload(&Tokens::packed(&hidden, 2, &[0, 1, 3])?)?;
    /// let query = |token: [f32; 2]| device.upload(&Tokens::padded(&token, 1, 1, 2)?);
    /// let (first, second) = (query([1.0, 0.0])?, query([0.0, 1.0])?);
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let mut work: PreparedProjected<'_, f32> =
    ///     device.prepare_projected(&first, &hidden, &head, &cross, &options)?;
    /// assert_eq!(work.score(&first)?.values(), [2.0, 3.0]);
    /// assert_eq!(work.score(&second)?.values(), [0.0, 6.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// The weight stays for as long as what was prepared with it:
    ///
    /// ```compile_fail,E0505
    /// # use maxsim::projection::Projection;
    /// # use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    /// # let (device, numbers) = (Device::best(), [1.0f32, 2.0]);
    /// # let rows = device.upload(&Tokens::padded(&numbers, 1, 1, 2)?)?;
    /// # let query = device.upload(&Tokens::padded(&numbers[..1], 1, 1, 1)?)?;
    /// # let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let weight = device.upload(&Tokens::padded(&numbers, 1, 1, 2)?)?;
    /// let head = Projection::new(&weight)?;
    /// let mut work = device.prepare_projected(&query, &rows, &head, &cross, &options)?;
    /// drop(weight);
    /// let _ = work.score(&query)?;
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_projected`].
    pub fn prepare_projected<'a, 'q, T: Element>(
        &self,
        queries: impl Into<TokensRef<'q, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'a, T>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<PreparedProjected<'a, T>> {
        let (queries, hidden) = (queries.into(), hidden.into());
        queries.check_device("queries", self)?;
        check_options(options)?;
        let projector = Projector::new(self, projection, hidden)?;
        let documents = hidden.layout().projected(projection.dim());
        let problem = Problem::new(queries.layout(), &documents, pairing)?;
        let token_bytes = match self.ordinal() {
            None => projection.dim() * size_of::<T>(),
            Some(_) => Access::uploaded(projection.dim(), T::FORMAT).pitch_bytes as usize,
        };
        let slices = Slice::all(&problem, token_bytes)?;
        let on_cuda = projector.prepare(queries.access(), &problem, &slices, options)?;
        Ok(PreparedProjected {
            projector,
            queries: queries.layout().clone(),
            access: queries.access(),
            documents,
            pairing: pairing.clone(),
            options: options.clone(),
            slices,
            on_cuda,
        })
    }
}

impl<T: Element> PreparedProjected<'_, T> {
    /// Scores queries, and waits. Its results are those of [`Device::score_projected`] to the bit.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], or [`Error::Shape`] where queries are not the items that this was
    /// prepared with or, on a CUDA device, lie on other boundaries.
    pub fn score<'q>(&mut self, queries: impl Into<TokensRef<'q, T>>) -> Result<Scores> {
        let queries = queries.into();
        self.check_queries(&queries)?;
        let device = self.projector.device();
        let problem = Problem::new(queries.layout(), &self.documents, &self.pairing)?;
        let mut scores = Scores::new(&problem, &self.options)?;
        if let Some(slices) = &mut self.on_cuda {
            let mut own = None;
            let found = slices.score(queries.cuda_tokens(device, &mut own)?)?;
            self.slices.iter().zip(&found).for_each(|(slice, found)| {
                slice.store(found, &mut scores);
            });
            return Ok(scores);
        }
        for slice in &self.slices {
            let tokens = self.projector.tokens(slice.rows.clone(), slice.documents.clone())?;
            let found = device.score_with(queries, &tokens, &slice.pairing, &self.options)?;
            slice.store(&found, &mut scores);
        }
        Ok(scores)
    }

    /// Checks that queries are those that this was prepared for.
    pub(super) fn check_queries(&self, queries: &TokensRef<'_, T>) -> Result<()> {
        queries.check_device("queries", self.projector.device())?;
        let lie_alike = queries.access().class() == self.access.class();
        match lie_alike && queries.layout().same_tokens(&self.queries) {
            true => Ok(()),
            false => Err(Error::Shape {
                argument: "queries",
                expected: "the items that the work was prepared with, on such boundaries".into(),
                found: "others; prepare the work with these".into(),
            }),
        }
    }
}
