//! Coarse to fine: INT8 codes find the winners, full precision scores them.

use std::sync::Arc;

use super::score::prepared::{DeviceScores, PreparedScore, check_side};
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::cuda::CudaRescore;
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::ops::search::bounds::first_row_beyond;
use crate::plan::choice::Plan;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::problem::shape::ScoreShape;
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::{Int8, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::ScaleType;

/// The codes that find winners: of queries and of documents, with the layouts and masks of the
/// tokens that they were made of ([`Tokens::quantize`](crate::Tokens::quantize), or
/// [`DeviceTokens::quantize`] where they are on a device).
///
/// Codes of other tokens would find other winners, and scores would be too low without a word. So a
/// call makes sure of it, unless [`CoarseCodes::assumed`] takes that on the caller's word: codes
/// that [`DeviceTokens::quantize`] made know their handle, and rows in host memory are compared
/// with their codes, by reading both. Calls in stream order take the first alone.
///
/// ```text
/// scores[q, d] = Σ_s ⟨Q[q, s], D[d, w(q, d, s)]⟩        w = argmax_t of the INT8 similarity
/// ```
///
/// INT8 similarities are those of [`Int8`] tokens with both scales, so that rows of different
/// lengths compare as they do in full precision; equal ones go to the lower token. A winner's
/// similarity is never more than the maximum: with ε = (dim + query length + 8) · 2⁻²³,
///
/// ```text
/// scores[q, d] ≤ exact[q, d] + ε · Σ_s ‖Q[q, s]‖₂ · max_t ‖D[d, t]‖₂
/// ```
///
/// and where no winner is another token than the exact one, it is the exact score. (On unit rows
/// the difference is the least: another winner is one whose similarity is nearly as large.)
/// Documents without tokens score 0, and so do query tokens that are masked. A row with a NaN or an
/// infinity has no INT8 similarity that is not NaN: it, or another such row, is every query token's
/// winner. So a score that is NaN or infinite exactly is NaN or infinite here.
///
/// ```
/// use maxsim::format::{Int8, ScaleType};
/// use maxsim::search::CoarseCodes;
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// // One query of two tokens; documents of one and two tokens; dim 2.
/// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
/// let documents = Tokens::packed(&[2.0f32, 0.3, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
/// let codes = documents.quantize::<Int8>(ScaleType::F16)?;
///
/// // The query's codes are made on the way.
/// let coarse = CoarseCodes::of_documents(&codes);
/// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
/// let scores =
///     Device::best().rescore(&queries, &documents, &coarse, &cross, &options)?;
/// // Not rounded to codes: 0.3 is.
/// assert_eq!(scores.values(), [2.3, 8.0]);
/// assert!(scores.are_rescored());
///
/// // Digests are compared with each call; a program that has just made the codes need not.
/// let coarse = coarse.assumed();
/// let again = Device::best().rescore(&queries, &documents, &coarse, &cross, &options)?;
/// assert_eq!(again.values(), scores.values());
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// It takes the time of INT8 scores, and of reading one document row per query token and
/// document: where documents are much longer than queries, little more than half of the time of
/// f16. Both matrices have to be there.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CoarseCodes<'a> {
    queries: Option<TokensRef<'a, Int8>>,
    documents: TokensRef<'a, Int8>,
    is_assumed: bool,
}

impl<'a> CoarseCodes<'a> {
    /// Codes of both sides, host tokens or handles.
    pub fn new(
        queries: impl Into<TokensRef<'a, Int8>>,
        documents: impl Into<TokensRef<'a, Int8>>,
    ) -> CoarseCodes<'a> {
        CoarseCodes {
            queries: Some(queries.into()),
            documents: documents.into(),
            is_assumed: false,
        }
    }

    /// Codes of documents. Those of queries are made for the call where the queries are, with f32
    /// scales.
    pub fn of_documents(documents: impl Into<TokensRef<'a, Int8>>) -> CoarseCodes<'a> {
        CoarseCodes { queries: None, documents: documents.into(), is_assumed: false }
    }

    /// Skips the check that the codes are those of the tokens: the caller vouches for it, for every
    /// call that takes these codes. Where that is wrong, winners are wrong, and scores are too low.
    pub fn assumed(self) -> CoarseCodes<'a> {
        CoarseCodes { is_assumed: true, ..self }
    }

    /// Checks that handles of codes were made of the handles of tokens. Reads and allocates
    /// nothing.
    fn check_handles<T: Element>(
        &self,
        tokens: [&DeviceTokens<T>; 2],
        codes: [&DeviceTokens<Int8>; 2],
    ) -> Result<()> {
        let arguments = ["codes of queries", "codes of documents"];
        let mut sides = arguments.into_iter().zip(codes.into_iter().zip(tokens));
        match sides.find(|(_, (codes, tokens))| !codes.is_made_of(tokens)) {
            Some((argument, _)) if !self.is_assumed => Err(not_made_of(argument)),
            _ => Ok(()),
        }
    }

    /// The handles of both sides, as calls in stream order take them.
    fn handles(&self) -> Result<[&'a DeviceTokens<Int8>; 2]> {
        let handle = |argument: &'static str, side: Option<TokensRef<'a, Int8>>| match side {
            Some(TokensRef::Device(tokens)) => Ok(tokens),
            side => Err(Error::Shape {
                argument,
                expected: "a handle from Device::upload".into(),
                found: side.map_or("no codes", |_| "tokens in host memory").into(),
            }),
        };
        Ok([
            handle("codes of queries", self.queries)?,
            handle("codes of documents", Some(self.documents))?,
        ])
    }
}

/// A checked and planned coarse-to-fine problem, with its work lists on the device.
///
/// Made by [`Device::prepare_rescore`] and used with any handles that have the same layouts,
/// as a [`PreparedScore`] is.
#[derive(Debug)]
#[must_use]
pub struct PreparedRescore {
    /// Prepared scores of the codes, which find the winners.
    coarse_scores: PreparedScore,
    element: ElementType,
    /// As the caller has them.
    options: ScoreOptions,
    outputs: Arc<OutputShape>,
    inner: On<(), Arc<CudaRescore>>,
}

/// The scores of the codes, which have the same shape and documents.
impl AsRef<PreparedScore> for PreparedRescore {
    fn as_ref(&self) -> &PreparedScore {
        &self.coarse_scores
    }
}

impl PreparedRescore {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        self.coarse_scores.device()
    }

    /// The kernel that finds winners, and why.
    pub fn plan(&self) -> &Plan {
        self.coarse_scores.plan()
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.outputs.shape
    }

    /// Room for the results of the work: scores 0, winners -1, token scores 0. On a CUDA device
    /// winners take their place, asked for or not.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new_scores(&self) -> Result<DeviceScores> {
        DeviceScores::with_room(self.device(), &self.outputs)
    }

    /// The call that scores these handles on a queue of `device`, checked.
    pub(crate) fn command<'a, T: Element>(
        &'a self,
        device: &Device,
        tokens: [&'a DeviceTokens<T>; 2],
        coarse: &CoarseCodes<'a>,
        scores: &'a DeviceScores,
    ) -> Result<Command<'a>> {
        let codes = coarse.handles()?;
        self.check_call(device, tokens, codes, scores)?;
        coarse.check_handles(tokens, codes)?;
        let call = match (&self.inner, &scores.inner) {
            (On::Cpu(()), On::Cpu(room)) => on_cpu(CpuRescore::new(tokens, codes, self, room)?),
            (On::Cuda(work), On::Cuda(outputs)) => On::Cuda(CudaCommand::Rescore {
                work,
                codes: [codes[0].cuda_tokens()?, codes[1].cuda_tokens()?],
                tokens: [tokens[0].cuda_tokens()?, tokens[1].cuda_tokens()?],
                outputs,
            }),
            _ => return Err(scores.wrong_device(self.device())),
        };
        Ok(Command { call, written: None })
    }

    /// Checks that a call on `device` is one that the work was prepared for. Allocates nothing when
    /// it is.
    fn check_call<T: Element>(
        &self,
        device: &Device,
        tokens: [&DeviceTokens<T>; 2],
        codes: [&DeviceTokens<Int8>; 2],
        scores: &DeviceScores,
    ) -> Result<()> {
        let work = &self.coarse_scores;
        device.check_same("work", &work.device)?;
        let layouts = [&work.queries, &work.documents];
        for ((i, layout), codes) in (0..).zip(layouts).zip(codes) {
            let format = self.element.into();
            let argument = ["queries", "documents"][i];
            check_side(&work.device, argument, tokens[i], format, layout)?;
            let argument = ["codes of queries", "codes of documents"][i];
            check_side(&work.device, argument, codes, TokenFormat::Int8, layout)?;
        }
        scores.check("scores", device, &self.outputs)
    }
}

impl Device {
    /// Scores the winners that INT8 codes find, in full precision: see [`CoarseCodes`].
    ///
    /// `options` are those of [`Device::score_with`]: winners are the codes', token scores those of
    /// full precision, and a kernel that is named is one of INT8. Masks are those of the codes.
    ///
    /// # Errors
    /// [`Error::Shape`] where the codes are not those of the tokens ([`CoarseCodes`]), or queries,
    /// documents and pairing do not fit together. [`Error::Unsupported`] where rows are to be
    /// normalised or query tokens have weights, and where a CUDA device has no kernel for INT8.
    pub fn rescore<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        coarse: &CoarseCodes<'_>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let (queries, documents) = (queries.into(), documents.into());
        let (own_codes, own_handle);
        let query_codes = match (coarse.queries, &queries) {
            (Some(codes), _) => codes,
            (None, TokensRef::Host(tokens)) => {
                own_codes = tokens.quantize::<Int8>(ScaleType::F32)?;
                TokensRef::Host(&own_codes)
            }
            (None, TokensRef::Device(tokens)) => {
                queries.check_device("queries", self)?;
                own_handle = tokens.quantize::<Int8>(ScaleType::F32)?;
                TokensRef::Device(&own_handle)
            }
        };
        let document_codes = coarse.documents;
        check_codes("codes of queries", query_codes.layout(), queries.layout())?;
        check_codes("codes of documents", document_codes.layout(), documents.layout())?;
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
        if !coarse.is_assumed {
            if let Some(codes) = &coarse.queries {
                check_made_of("codes of queries", codes, &queries)?;
            }
            check_made_of("codes of documents", &document_codes, &documents)?;
        }
        documents.layout().check_read("documents")?;
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        // Check the options before anything is uploaded.
        let coarse_options = coarse_options(options);
        let _ = self.plan_problem(&problem, &query_codes, &document_codes, &coarse_options)?;
        match &self.0 {
            On::Cpu(()) => cpu::rescore(
                &problem,
                [query_codes.host_matrix()?, document_codes.host_matrix()?],
                [queries.host_matrix()?, documents.host_matrix()?],
                options,
            ),
            On::Cuda(cuda) => {
                let (mut q, mut d) = (None, None);
                let tokens = [queries.on(self, &mut q)?, documents.on(self, &mut d)?];
                let (mut q, mut d) = (None, None);
                let codes = [query_codes.on(self, &mut q)?, document_codes.on(self, &mut d)?];
                // Checked above.
                let coarse = CoarseCodes::new(codes[0], codes[1]).assumed();
                let work = self.prepare_rescore(tokens[0], tokens[1], &coarse, pairing, options)?;
                let scores = work.new_scores()?;
                if let On::Cuda(call) = work.command(self, tokens, &coarse, &scores)?.call {
                    cuda.on_idle_stream(|stream| call.enqueue(stream))?;
                }
                scores.read()
            }
        }
    }

    /// Checks and plans a coarse-to-fine problem, loads its kernels and uploads its work lists, for
    /// any number of [`Queue::rescore_into`](crate::stream::Queue::rescore_into) calls with
    /// handles of these layouts.
    ///
    /// # Errors
    /// The errors of [`Device::rescore`], and [`Error::Shape`] where the codes are not handles.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::search::{CoarseCodes, PreparedRescore};
    /// use maxsim::stream::Queue;
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.6, 0.8], 1, 2, 2)?)?;
    /// let codes = tokens.quantize::<Int8>(ScaleType::F32)?;
    /// let coarse = CoarseCodes::new(&codes, &codes);
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let rescore: PreparedRescore =
    ///     device.prepare_rescore(&tokens, &tokens, &coarse, &cross, &options)?;
    /// let mut scores = rescore.new_scores()?;
    /// device.stream()?.rescore_into(&tokens, &tokens, &coarse, &rescore, &mut scores)?;
    /// assert_eq!(scores.read()?.values(), [2.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn prepare_rescore<T: Element>(
        &self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<T>,
        coarse: &CoarseCodes<'_>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<PreparedRescore> {
        let codes = coarse.handles()?;
        check_codes("codes of queries", codes[0].layout(), queries.layout())?;
        check_codes("codes of documents", codes[1].layout(), documents.layout())?;
        self.check_same("codes of queries", codes[0].device())?;
        self.check_same("codes of documents", codes[1].device())?;
        self.check_same("queries", queries.device())?;
        self.check_same("documents", documents.device())?;
        coarse.check_handles([queries, documents], codes)?;
        let coarse_scores = self.prepare(codes[0], codes[1], pairing, &coarse_options(options))?;
        documents.layout().check_read("documents")?;
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        let outputs = OutputShape::of_rescored(&problem, options);
        let inner = match (&self.0, &coarse_scores.inner) {
            (On::Cuda(device), On::Cuda(work)) => {
                On::Cuda(Arc::new(CudaRescore::new(device, &problem, T::TYPE, work, &outputs)?))
            }
            _ => On::Cpu(()),
        };
        Ok(PreparedRescore {
            coarse_scores,
            element: T::TYPE,
            options: options.clone(),
            outputs: Arc::new(outputs),
            inner,
        })
    }
}

/// The options of the call that finds winners.
fn coarse_options(options: &ScoreOptions) -> ScoreOptions {
    ScoreOptions { winners: true, token_scores: false, ..options.clone() }
}

/// Checks that codes are of tokens with this layout.
fn check_codes(argument: &'static str, codes: &TokenLayout, tokens: &TokenLayout) -> Result<()> {
    let why = "no kernel multiplies by them; score the tokens, or the codes, with Device::score";
    tokens.check_unweighted("of tokens that are scored again", why)?;
    if codes.same_items(tokens) {
        return Ok(());
    }
    let of = |layout: &TokenLayout| {
        let (n_items, rows, dim) = (layout.n_items(), layout.rows(), layout.dim());
        format!("{n_items} items in {rows} rows of dim {dim}")
    };
    let (expected, found) = (of(tokens), of(codes));
    let found = if expected == found { format!("{found}, which lie otherwise") } else { found };
    Err(Error::Shape { argument, expected: format!("the tokens' layout, {expected}"), found })
}

/// Checks that codes are those of tokens.
fn check_made_of<T: Element>(
    argument: &'static str,
    codes: &TokensRef<'_, Int8>,
    tokens: &TokensRef<'_, T>,
) -> Result<()> {
    if let (TokensRef::Device(codes), TokensRef::Device(tokens)) = (codes, tokens)
        && codes.is_made_of(tokens)
    {
        return Ok(());
    }
    let (mut own_codes, mut own_tokens) = (None, None);
    let both = (codes.in_host_memory(&mut own_codes)?, tokens.in_host_memory(&mut own_tokens)?);
    let (Some(codes), Some(tokens)) = both else { return Err(not_made_of(argument)) };
    match first_row_beyond(codes, tokens)? {
        None => Ok(()),
        Some([item, row]) => Err(Error::Shape {
            argument,
            expected: "those of the tokens".into(),
            found: format!("codes of another row than valid row {row} of item {item}"),
        }),
    }
}

fn not_made_of(argument: &'static str) -> Error {
    Error::Shape {
        argument,
        expected: "what DeviceTokens::quantize made of this very handle, or CoarseCodes::assumed"
            .into(),
        found: "codes that may be of other tokens".into(),
    }
}

/// A call of the CPU engine with everything that it uses.
struct CpuRescore<T: Element> {
    layouts: [Arc<TokenLayout>; 2],
    tokens: [Arc<HostTokens<T>>; 2],
    codes: [Arc<HostTokens<Int8>>; 2],
    pairing: Arc<Pairing>,
    options: ScoreOptions,
    scores: Arc<Swap<Scores>>,
}

impl<T: Element> CpuRescore<T> {
    /// The handles and scores must be of the work; [`PreparedRescore::check_call`] checks them.
    fn new(
        [queries, documents]: [&DeviceTokens<T>; 2],
        codes: [&DeviceTokens<Int8>; 2],
        work: &PreparedRescore,
        scores: &Arc<Swap<Scores>>,
    ) -> Result<CpuRescore<T>> {
        Ok(CpuRescore {
            layouts: [queries.layout.clone(), documents.layout.clone()],
            tokens: [queries.host_tokens()?.clone(), documents.host_tokens()?.clone()],
            codes: [codes[0].host_tokens()?.clone(), codes[1].host_tokens()?.clone()],
            pairing: work.coarse_scores.pairing.clone(),
            options: work.options.clone(),
            scores: scores.clone(),
        })
    }
}

impl<T: Element> CpuCall for CpuRescore<T> {
    fn run(&self) -> Result<()> {
        let [queries, documents] = &self.layouts;
        let problem = Problem::new(queries, documents, &self.pairing)?;
        let codes = self.codes.each_ref().map(|codes| codes.matrix());
        let tokens = self.tokens.each_ref().map(|tokens| tokens.matrix());
        let found = cpu::rescore(&problem, codes, tokens, &self.options)?;
        self.scores.set(found);
        Ok(())
    }
}
