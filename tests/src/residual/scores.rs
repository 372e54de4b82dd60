//! Scores of residual-compressed documents on every engine, against the oracle.
//!
//! The oracle sees what an engine multiplies: f32 sums of centroids and weights on the CPU; on a
//! GPU the tables and their sum rounded to the queries' type, or the tables alone where a kernel
//! multiplies them apart. Each time r is that of sums that are rounded, where tokens are
//! normalised.

use std::cell::LazyCell;

use maxsim::format::{Element, ElementType, with_element};
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::{Device, Error, ScoreOptions};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::engines::cuda_devices;
use crate::gpu::text;
use crate::oracle::{Matrix, maxsim};
use crate::residual::{self, Parts};
use crate::suite::Suite;

/// A case whose documents are residual-compressed.
#[derive(Clone, Debug)]
pub struct ResidualCase {
    /// Queries, layouts and pairs.
    pub case: Case,
    /// Bits of a bucket.
    pub nbits: u32,
    /// How bits lie.
    pub order: BitOrder,
    /// Whether tokens are normalised.
    pub normalize: bool,
    /// Storage type of the centroids.
    pub centroids: ElementType,
    /// Number of centroids; the last one is NaN where the case is poisoned, of rows that no token
    /// may use.
    pub n_centroids: usize,
    /// Whether some rows that are used have it, too.
    pub has_nan: bool,
}

/// Every number of bits, order of bits, type of centroids, and rows normalised or not, in turns.
pub fn in_turns(cases: impl IntoIterator<Item = Case>) -> Vec<ResidualCase> {
    let of = |(i, case): (usize, Case)| ResidualCase {
        nbits: [2, 4, 1, 8][i % 4],
        order: BitOrder::ALL[i / 4 % 2],
        normalize: i / 2 % 2 == 0,
        centroids: ElementType::ALL[i % 3],
        n_centroids: [2, 40, 7][i % 3],
        has_nan: false,
        case: Case { element: ElementType::ALL[i / 3 % 3], normalize: false, ..case },
    };
    cases.into_iter().enumerate().map(of).collect()
}

impl ResidualCase {
    /// Makes the case of the same numbers for [`crate::residual`].
    pub(crate) fn shape(&self, rows: usize) -> residual::Case {
        residual::Case {
            nbits: self.nbits,
            dim: self.case.dim,
            rows,
            n_centroids: self.n_centroids,
            normalize: self.normalize,
            order: self.order,
            seed: self.case.seed,
        }
    }

    /// Generates what documents are made of.
    pub fn parts(&self, documents: &Matrix) -> Parts {
        let dim = self.case.dim;
        let rows = documents.values.len() / dim;
        let mut parts = self.shape(rows).parts();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(!self.case.seed);
        let scale = 1.0 / (dim as f32).sqrt();
        parts.centroids.iter_mut().for_each(|x| *x = self.stored(*x * scale));
        parts.weights.iter_mut().for_each(|x| *x *= 0.3 * scale);
        let Some(first) = self.n_centroids.checked_sub(2) else { return parts };
        let last = first as i32 + 1;
        if self.case.poison || self.has_nan {
            parts.centroids[(first + 1) * dim..].fill(f32::NAN);
        }
        let mut is_used = vec![false; rows];
        documents.items.iter().for_each(|item| is_used[item.clone()].fill(true));
        if let Some(mask) = &documents.mask {
            is_used.iter_mut().zip(mask).for_each(|(used, &m)| *used &= m != 0);
        }
        for (code, is_used) in parts.codes.iter_mut().zip(is_used) {
            *code = match is_used {
                false if self.case.poison => last,
                true if self.has_nan && rng.random_range(0..9) == 0 => last,
                _ => (*code).min(first as i32),
            };
        }
        parts
    }

    fn stored(&self, x: f32) -> f32 {
        crate::values::stored(self.centroids, x)
    }

    /// The tokens in the documents' layout.
    pub fn tokens<'a>(
        &self,
        parts: &'a Parts,
        documents: &Matrix,
    ) -> Result<ResidualTokens<'a>, Error> {
        let unmasked = Matrix { mask: None, ..documents.clone() };
        let zeros = vec![0f32; documents.values.len()];
        let layout = tokens(&self.case.documents, &unmasked, &zeros)?.layout().clone();
        let centroids = Centroids::rounded(parts.centroids.clone(), self.centroids);
        let codec = ResidualCodec::new(
            self.nbits,
            self.case.dim,
            centroids,
            &parts.weights,
            self.normalize,
        )?;
        let (codes, residuals) = (&parts.codes[..], &parts.residuals[..]);
        let tokens = ResidualTokens::new(codec.into(), codes, residuals, self.order, layout)?;
        match &documents.mask {
            Some(mask) => tokens.with_mask(mask.clone()),
            None => Ok(tokens),
        }
    }

    /// Decodes the rows that an engine multiplies, rounded by `round`.
    pub(crate) fn decoded(
        &self,
        parts: &Parts,
        documents: &Matrix,
        round: impl Fn(f32) -> f32,
    ) -> Matrix {
        self.decoded_by(parts, documents, |centroid, weight| round(round(centroid) + round(weight)))
    }

    /// Decodes the rows where centroids and weights are multiplied apart: their sums are not
    /// rounded, but for those of which r is computed.
    fn decoded_apart(
        &self,
        parts: &Parts,
        documents: &Matrix,
        round: impl Fn(f32) -> f32,
    ) -> Matrix {
        let whole = self.decoded(parts, documents, &round);
        let sum = |centroid, weight| round(centroid) + round(weight);
        Matrix { factors: whole.factors, ..self.decoded_by(parts, documents, sum) }
    }

    fn decoded_by(
        &self,
        parts: &Parts,
        documents: &Matrix,
        sum: impl Fn(f32, f32) -> f32,
    ) -> Matrix {
        let dim = self.case.dim;
        let shape = self.shape(parts.codes.len());
        let element = |row: usize, k: usize| {
            let centroid = parts.centroids[parts.codes[row] as usize * dim + k];
            let weight = parts.weights[shape.bucket(parts, row, k)];
            sum(centroid, weight)
        };
        let rows = 0..parts.codes.len();
        let values = rows.flat_map(|row| (0..dim).map(move |k| (row, k)));
        let values = values.map(|(row, k)| element(row, k)).collect();
        let matrix = Matrix { values, ..documents.clone() };
        if self.normalize { matrix.normalized() } else { matrix }
    }
}

/// Scores a case on every engine and compares each with the oracle.
pub fn check_residual_case(suite: &Suite, case: &ResidualCase) -> Result<(), String> {
    with_element!(case.case.element, T => check::<T>(suite, case))
}

fn check<T: Element>(suite: &Suite, case: &ResidualCase) -> Result<(), String> {
    let data = case.case.data();
    let parts = case.parts(&data.documents);
    let documents = case.tokens(&parts, &data.documents).map_err(text)?;
    let query_elements: Vec<T> = elements(&data.queries);
    let queries = tokens(&case.case.queries, &data.queries, &query_elements).map_err(text)?;
    let pairing = case.case.pairing(&data).map_err(text)?;
    let seen = |documents: Matrix| {
        let data = Data { documents, exact: false, ..data.clone() };
        let of = |&(q, d): &(usize, usize)| maxsim(&data.queries, q, &data.documents, d);
        let expected: Vec<_> = data.pairs.iter().map(of).collect();
        (data, expected)
    };
    let round = |x| T::from_f32(x).to_f32();
    let on_cpu = seen(case.decoded(&parts, &data.documents, |x| x));
    let on_gpu = LazyCell::new(|| seen(case.decoded(&parts, &data.documents, round)));
    let apart = LazyCell::new(|| seen(case.decoded_apart(&parts, &data.documents, round)));
    for device in std::iter::once(&Device::cpu()).chain(cuda_devices()) {
        let documents = match device.upload_residual::<T>(&documents) {
            Err(Error::Unsupported { .. }) if !takes::<T>(device) => continue,
            documents => documents.map_err(text)?,
        };
        for (row, winners) in rows(device, T::TYPE) {
            let options = ScoreOptions::default()
                .winners(winners)
                .token_scores(case.case.token_scores)
                .kernel(row.map(|row| row.name.to_string()).as_deref())
                .document_splits(case.case.document_splits.filter(|_| device.ordinal().is_some()));
            let name = row.map_or(device.to_string(), |row| format!("{device} {}", row.name));
            let at = |what: String| format!("{name}, winners {winners}: {what}");
            let found = match device.score_with(&queries, &documents, &pairing, &options) {
                // A row that does not take the case.
                Err(Error::Unsupported { .. }) if row.is_some() => continue,
                found => found.map_err(text).map_err(at)?,
            };
            let ran = device.plan(&queries, &documents, &pairing, &options).map_err(text)?;
            let (data, expected) = match ran.variant() {
                None => &on_cpu,
                Some(row) if row.schedule.is_by_centroid() => &apart,
                Some(_) => &on_gpu,
            };
            agree::check(data, expected, &options, &found).map_err(at)?;
            suite.count(&name);
        }
    }
    Ok(())
}

/// A device as it chooses, and each of its kernel rows by its name, with winners and without.
fn rows(
    device: &Device,
    element: ElementType,
) -> impl Iterator<Item = (Option<&'static Variant>, bool)> {
    let is_cuda = device.ordinal().is_some();
    let rows =
        FORWARD.iter().filter(move |row| is_cuda && row.operand == Operand::Residual(element));
    std::iter::once(None).chain(rows.map(Some)).flat_map(|row| [(row, false), (row, true)])
}

/// The rows of the variant table that a device runs for residual documents of queries of this type.
fn runnable<T: Element>(device: &Device) -> impl Iterator<Item = &'static Variant> {
    let runs = |row: &&Variant| match device.limits() {
        Some(limits) => row.arch.runs_on(limits.capability),
        None => true,
    };
    FORWARD.iter().filter(runs).filter(|row| row.operand == Operand::Residual(T::TYPE))
}

/// Whether a device takes residual documents of queries of this type.
pub fn takes<T: Element>(device: &Device) -> bool {
    runnable::<T>(device).next().is_some()
}

/// Whether it also finds their winners.
pub(crate) fn finds_winners<T: Element>(device: &Device) -> bool {
    device.ordinal().is_none() || runnable::<T>(device).any(|row| row.winners)
}
