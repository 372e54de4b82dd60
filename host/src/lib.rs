//! Fused late-interaction (ColBERT / ColPali) scoring.
//!
//! MaxSim scores a query against a document as
//!
//! ```text
//! scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩
//! ```
//!
//! with `s` over the query's valid tokens and `t` over the document's. The
//! token-by-token similarities are never stored.
//!
//! ```
//! use maxsim::{Device, Pairing, Tokens};
//!
//! // One query of two tokens; documents of one and two tokens; dim 2.
//! let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
//! let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
//! let scores = Device::best().score(&queries, &documents, &Pairing::cross())?;
//! // max(2) + max(0), max(3, -1) + max(4, 5)
//! assert_eq!(scores.values(), [2.0, 8.0]);
//! # Ok::<(), maxsim::Error>(())
//! ```
//!
//! [`Device`] is where to start: it scores, uploads [`Tokens`] into handles, and says which kernel
//! it would run. [`Pairing`] says which queries meet which documents, [`ScoreOptions`] what to
//! compute besides scores, and [`TopK`] turns scores into a ranking. The rest is in modules:
//!
//!  - [`format`](mod@format): what tokens are stored as. [`Tokens::quantize`] compresses them
//!    to one byte an element, [`DeviceTokens::quantize`] on the device where they are.
//!  - [`layout`] and [`digest`]: how rows belong to items, and what codes were made of.
//!  - [`stream`]: calls that are prepared once and enqueued, or captured into a graph.
//!  - [`search`]: compressed tokens find what full precision scores again.
//!  - [`Devices`]: several GPUs that search as one.
//!  - [`streaming`]: searches over more documents than fit, from memory, files or programs.
//!  - [`training`] and [`loss`]: gradients of scores with respect to tokens, and losses.
//!  - [`chamfer`] and [`angular`]: distances of clouds of points, and by cosine.
//!  - [`xtr`]: scores of the document tokens that query tokens retrieve.
//!  - [`projection`]: documents as hidden states, projected while they are scored.
//!  - [`residual`]: tokens as ColBERTv2 and PLAID store them.
//!  - [`plan`]: which kernel runs a call, and why.
//!
//! Features: `cuda` (the GPU engines, on Linux), `files` (the module of that name reads tokens of
//! `.safetensors` and `.npy` files), `ndarray` (tokens from its arrays, scores as such) and `serde`
//! (options, plans and rankings are written and read).
//!
//! Environment: MAXSIM_CPU (the most that the CPU engine may use: `portable`, `avx2`, `vnni`, ..;
//! the error of another name lists them), MAXSIM_KERNELS (`cubin` or `ptx`: load kernels from files
//! assembled for the device, or have the driver compile them, and fail where that cannot be; unset,
//! the first where possible and else the second), MAXSIM_INSTRUCTIONS (`sm_80`: run what an older
//! device would be given), MAXSIM_JIT_LOG (a file to append loaded kernels and drivers' logs to).

#![deny(unsafe_code)]
// Much of what plans and problems know is for kernels alone.
#![cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))]

mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
#[cfg(not(all(feature = "cuda", target_os = "linux")))]
#[path = "cuda/absent.rs"]
mod cuda;
mod device;
mod error;
#[cfg(feature = "files")]
pub mod files;
mod linalg;
mod ops;
pub mod plan;
mod problem;
pub mod residual;
mod runtime;
mod tokens;

pub use device::tokens::{DeviceTokens, TokensRef};
pub use device::warm_up::{WarmUp, WarmUpReport};
pub use device::{Device, Memory};
pub use error::{Error, Result};
/// The crate that has the types of f16 and bf16 tokens.
pub use half;
pub use ops::devices::Devices;
pub use ops::{angular, loss};
pub use problem::options::ScoreOptions;
pub use problem::pairing::Pairing;
pub use problem::ranking::{Ranked, Ranking, TopK};
pub use problem::scores::Scores;
pub use problem::shape::ScoreShape;
pub use runtime::interrupt::Interrupt;
pub use tokens::Tokens;
pub use tokens::any::AnyTokens;
pub use tokens::layout::TokenLayout;

/// Storage formats of rows of tokens: elements, or codes with scales.
///
/// [`TokenFormat`](format::TokenFormat) names a format at run time, [`Format`](format::Format) is
/// one as a Rust type, and [`ScorableWith`](format::ScorableWith) says which queries meet which
/// documents.
///
/// ```
/// use maxsim::format::{
///     Element, Format, Fp8, Int8, Quantized, ScaleType, ScorableWith, TokenFormat,
/// };
/// use maxsim::{Device, Pairing, Result, Scores, Tokens};
///
/// /// Scores of any queries and documents that go together.
/// fn score<Q: ScorableWith<D>, D: Format>(
///     queries: &Tokens<'_, Q>,
///     documents: &Tokens<'_, D>,
/// ) -> Result<Scores> {
///     Device::best().score(queries, documents, &Pairing::cross())
/// }
///
/// /// The same of codes.
/// fn score_codes<T: Element, F: Quantized + ScorableWith<F>>(
///     queries: &Tokens<'_, T>,
///     documents: &Tokens<'_, T>,
/// ) -> Result<Scores> {
///     score(&queries.quantize::<F>(ScaleType::F32)?, &documents.quantize::<F>(ScaleType::F32)?)
/// }
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// assert_eq!(score(&tokens, &tokens)?.values(), [1.0]);
/// assert!((score_codes::<f32, Int8>(&tokens, &tokens)?.values()[0] - 1.0).abs() < 0.01);
/// let device = Device::cpu();
/// assert!(device.can_score(Fp8::FORMAT, Fp8::FORMAT));
/// assert!(!device.can_score(Fp8::FORMAT, TokenFormat::Int8));
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// Codes that another program made are given with their [`Scales`](format::Scales):
///
/// ```
/// use maxsim::format::{Int8Affine, ScaleType, Scales};
/// use maxsim::half::f16;
/// use maxsim::{TokenLayout, Tokens};
///
/// // One token: 10 · 0.5 - 1 and 0 · 0.5 - 1.
/// let [scales, mins] = [0.5, -1.0].map(|x| vec![f16::from_f32(x)].into());
/// let scales = Scales::Affine { scales, mins };
/// let layout = TokenLayout::padded(1, 1, 2)?;
/// let tokens = Tokens::<Int8Affine>::from_codes(vec![10, 0], scales, layout)?;
/// assert_eq!(tokens.dequantize()?.data(), [4.0, -1.0]);
/// let scales = tokens.scales();
/// assert_eq!((scales.storage(), scales.scale(0), scales.min(0)), (ScaleType::F16, 0.5, -1.0));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod format {
    pub use crate::device::any::{AnyDeviceTokens, AnyTokensRef};
    pub use crate::device::raw::RawRows;
    pub use crate::device::raw_codes::{RawScaleWords, RawScales};
    pub use crate::device::raw_residuals::RawResiduals;
    pub use crate::ops::raw::RawCodes;
    pub use crate::tokens::conversion::Conversion;
    #[doc(inline)]
    pub use crate::tokens::dispatch::{with_element, with_format};
    pub use crate::tokens::element::{Element, ElementType};
    pub use crate::tokens::format::{
        Format, Fp8, GradientSource, Int8, Int8Affine, Quantized, Residual, ScorableWith,
        TokenFormat,
    };
    pub use crate::tokens::quantize_report::QuantizeReport;
    pub use crate::tokens::raw_items::{RawIndices, RawItems, RawItemsOut};
    pub use crate::tokens::scales::{ScaleType, Scales};
}

/// Parts of a [`TokenLayout`], and its limits.
///
/// ```
/// use maxsim::layout::{Index, LayoutKind, MAX_COUNT, MAX_DIM, MAX_HIDDEN};
/// use maxsim::{Device, Pairing, Result, TokenLayout, Tokens};
///
/// /// Offsets of any integer type.
/// fn packed<I: Index>(rows: usize, offsets: &[I]) -> Result<TokenLayout> {
///     TokenLayout::packed(rows, 128, offsets)
/// }
///
/// assert_eq!(packed(3, &[0u32, 1, 3])?.kind(), LayoutKind::Packed);
/// assert!(packed(3, &[0i64, -1, 3]).is_err());
/// assert!(TokenLayout::padded(1, 1, MAX_HIDDEN + 1).is_err());
/// // Longer rows than those of tokens are hidden states, which are projected, not scored.
/// let hidden = vec![0.0f32; MAX_DIM + 1];
/// let hidden = Tokens::padded(&hidden, 1, 1, MAX_DIM + 1)?;
/// assert!(Device::cpu().score(&hidden, &hidden, &Pairing::cross()).is_err());
/// assert!(TokenLayout::padded(MAX_COUNT, 1, 8).is_err());
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod layout {
    pub use crate::problem::shape::TokenOffsets;
    pub use crate::tokens::index::Index;
    pub use crate::tokens::layout::limits::{MAX_DIM, MAX_HIDDEN};
    pub use crate::tokens::layout::{LayoutKind, MAX_COUNT};
    pub use crate::tokens::pack::Row;
}

/// Digests of token rows, by which codes know what they were made of.
///
/// ```
/// use maxsim::Tokens;
/// use maxsim::digest::{TokenDigest, TokenHasher};
/// use maxsim::format::{ElementType, Int8Affine, ScaleType, TokenFormat};
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
/// // Of items that come one after the other.
/// let mut hasher = TokenHasher::of_elements(ElementType::F32, 2);
/// hasher.tokens(&tokens.items(0..1)?);
/// hasher.tokens(&tokens.items(1..2)?);
/// let digest = hasher.finish();
/// assert_eq!(digest, TokenDigest::of(&tokens));
/// assert_eq!(format!("{:02x}", digest.as_bytes()[0]), digest.to_string()[..2]);
///
/// // Of codes that are read a row at a time, where each row is an item.
/// let codes = tokens.quantize::<Int8Affine>(ScaleType::F16)?;
/// let mut hasher = TokenHasher::of_codes(TokenFormat::Int8Affine, ScaleType::F16, 2);
/// for row in 0..2 {
///     hasher.rows(&codes.data()[row * 2..][..2]);
///     hasher.scales_of_rows(codes.scales(), row..row + 1);
///     hasher.counts([1]);
/// }
/// assert_eq!(hasher.finish_codes(&digest), TokenDigest::of_codes(&codes, &digest));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod digest {
    pub use crate::tokens::digest::{TokenDigest, TokenHasher};
}

/// Coarse to fine: codes select, full precision scores.
///
/// [`CoarseCodes`](search::CoarseCodes) find winners for
/// [`Device::rescore`], [`SearchTokens`](search::SearchTokens) find documents for
/// [`Device::search`], a [`SearchSource`](search::SearchSource) does so while codes pass by
/// ([`Device::search_coarse_stream`]), and a [`Shortlist`](search::Shortlist) is one query's search
/// over documents that come in whatever chunks.
///
/// ```
/// use maxsim::format::{ElementType, Int8, ScaleType};
/// use maxsim::search::{
///     ErrorTerms, Hit, SearchOptions, SearchRanking, SearchTokens, first_row_beyond,
///     rescore_bounds,
/// };
/// use maxsim::{Device, Pairing, Tokens};
///
/// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// let documents = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
/// let codes = [&queries, &documents].map(|tokens| tokens.quantize::<Int8>(ScaleType::F32));
/// let [query_codes, document_codes] = codes;
/// let (query_codes, document_codes) = (query_codes?, document_codes?);
/// // They are what these embeddings are compressed to, so that bounds need the codes alone.
/// assert_eq!(first_row_beyond(&document_codes, &documents)?, None);
/// let terms = [&query_codes, &document_codes].map(ErrorTerms::new);
/// let bounds = rescore_bounds(&terms[0], &terms[1], &Pairing::cross(), ElementType::F32)?;
/// assert!(bounds.iter().all(|&bound| bound < 0.02));
///
/// let queries = SearchTokens::measured(&queries, &query_codes)?;
/// let documents = SearchTokens::measured(&documents, &document_codes)?;
/// let options = SearchOptions::default();
/// let found: Vec<SearchRanking> = Device::best().search(&queries, &documents, 2, &options)?;
/// let ids = found[0].documents.iter().map(|hit: &Hit| hit.id);
/// assert!(ids.eq([1, 0]));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod search {
    pub use crate::ops::rescore::{CoarseCodes, PreparedRescore};
    pub use crate::ops::search::bounds::{ErrorTerms, first_row_beyond};
    pub use crate::ops::search::compressed::SearchTokens;
    pub use crate::ops::search::pair_bounds::{rescore_bounds, score_bounds};
    pub use crate::ops::search::{
        Candidate, Certainty, Hit, SearchOptions, SearchRanking, Shortlist,
    };
    pub use crate::ops::streaming::coarse::SearchFound;
    pub use crate::ops::streaming::search_source::SearchSource;
}

/// Searches over more documents than a device or a machine has room for.
///
/// [`Device::search_stream`] reads each document of a [`Source`](streaming::Source) once, scores it
/// against all queries and keeps the best. On a GPU documents are copied while those before them
/// are scored, three buffers in turns, so that a search takes as long as its documents take to
/// arrive.
///
/// ```
/// use maxsim::streaming::{Source, StreamFound, StreamOptions, StreamProgress};
/// use maxsim::{Device, Error, Interrupt, Result, Tokens};
///
/// /// The best ten, unless another thread says that it is enough.
/// fn search(
///     queries: &Tokens<'_, f32>,
///     documents: &impl Source<f32>,
///     enough: &Interrupt,
/// ) -> Result<StreamFound> {
///     let show = |done: &StreamProgress| println!("{} documents", done.documents);
///     let options = StreamOptions::default().progress(show);
///     enough.heeded_by(|| Device::best().search_stream(queries, documents, 10, &options))
/// }
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 2, 1, 2)?;
/// let enough = Interrupt::default();
/// assert_eq!(search(&tokens, &tokens, &enough)?.rankings[1].ranked[0].id, 1);
/// enough.raise();
/// assert!(matches!(search(&tokens, &tokens, &enough), Err(Error::Interrupted)));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod streaming {
    pub use crate::device::page_locked::PageLocked;
    pub use crate::ops::devices::Shards;
    pub use crate::ops::streaming::options::{
        StreamFound, StreamOptions, StreamProgress, StreamStage,
    };
    pub use crate::ops::streaming::scored::{ScoredDocuments, StreamScored};
    pub use crate::ops::streaming::scored_pairs::ScoredPairs;
    pub use crate::tokens::streamed::Source;
    pub use crate::tokens::streamed::generated::Generated;
    pub use crate::tokens::streamed::reader::TokenReader;
    pub use crate::tokens::streamed::subset::Subset;
}

/// Gradients of losses with respect to tokens, at once or in stream order. Losses themselves are
/// in [`loss`].
///
/// ```
/// use maxsim::format::{Element, GradientSource};
/// use maxsim::loss::{self, Loss};
/// use maxsim::training::{
///     BackwardOptions, BackwardStrategy, Gradients, TrainingScores, WithGrad,
/// };
/// use maxsim::{Device, Pairing, Result, Tokens};
///
/// /// Gradients from the documents that were scored, or from codes of them.
/// fn gradients<T: Element, D: GradientSource<T>>(
///     queries: &Tokens<'_, T>,
///     documents: &Tokens<'_, D>,
///     scores: WithGrad<'_, TrainingScores, [f32]>,
/// ) -> Result<Gradients> {
///     let options = BackwardOptions::new(BackwardStrategy::Deterministic);
///     Device::best().backward(queries, documents, scores, &options)
/// }
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
/// let scores = Device::best().score_for_training(&tokens, &tokens, &Pairing::cross())?;
/// let Loss { value, grad_scores, .. } =
///     loss::contrastive(scores.scores().values(), 2, &[0, 1], 1.0)?;
/// assert!((value - 0.3133).abs() < 1e-4);
/// let found = gradients(&tokens, &tokens, scores.with_grad(&grad_scores))?;
/// assert!(found.queries[0] < 0.0 && found.queries[1] > 0.0);
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod training {
    pub use crate::ops::backward::blocking::{GradientSlices, Gradients};
    pub use crate::ops::backward::outputs::{DeviceGradScores, DeviceGradients};
    pub use crate::ops::backward::prepared::{GradientType, PreparedBackward};
    pub use crate::ops::backward::training_scores::TrainingScores;
    pub use crate::ops::backward::with_grad::WithGrad;
    pub use crate::ops::backward::{BackwardOptions, BackwardStrategy, GradientSides};
    pub use crate::ops::residual::ResidualScoreGradients;
}

/// Chamfer distances of clouds of points, exact: [`Device::chamfer`] and
/// [`Device::chamfer_backward`].
///
/// ```
/// use maxsim::chamfer::{
///     Chamfer, ChamferGrad, ChamferGradients, ChamferOptions, Metric, Neighbours, NormalDistances,
///     PointReduction,
/// };
/// use maxsim::format::Element;
/// use maxsim::{Device, Result, Tokens};
///
/// /// The mean distance of each pair of clouds, and what would make it smaller.
/// fn step<T: Element>(
///     made: &Tokens<'_, T>,
///     wanted: &Tokens<'_, T>,
/// ) -> Result<(Chamfer, ChamferGradients)> {
///     let device = Device::cpu();
///     let options = ChamferOptions::default();
///     assert_eq!((options.metric, options.reduction), (Metric::SquaredL2, PointReduction::Mean));
///     let found = device.chamfer(made, wanted, &options)?;
///     let ones = vec![1.0; found.values().len()];
///     let gradients = device.chamfer_backward(made, wanted, &found, ChamferGrad::Values(&ones))?;
///     Ok((found, gradients))
/// }
///
/// // Two clouds of one and two points in space, and what they should be.
/// let made = [0.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0];
/// let made = Tokens::packed(&made, 3, &[0, 1, 3])?;
/// let wanted = Tokens::padded(&[0.0f32, 0.0, 1.0, 1.0, 1.0, 3.0], 2, 1, 3)?;
/// let (found, gradients) = step(&made, &wanted)?;
/// assert_eq!(found.values(), [2.0, 3.5 + 3.0]);
/// assert_eq!(gradients.x[..3], [0.0, 0.0, -4.0]);
/// let Neighbours { distances, indices } = found.x();
/// assert_eq!((&distances[..], &indices[..]), (&[1.0, 4.0, 3.0][..], &[0, 0, 0][..]));
/// assert!(!found.options().single_direction && found.y().is_some());
/// let normals: NormalDistances = found.normals(&made, &wanted, false)?;
/// assert_eq!(normals.values[0], 2.0); // of no normal: zeros
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod chamfer {
    pub use crate::ops::chamfer::backward::{ChamferGrad, ChamferGradients};
    pub use crate::ops::chamfer::normals::NormalDistances;
    pub use crate::ops::chamfer::prepared::{DeviceChamfer, FoundMemory, PreparedChamfer};
    pub use crate::problem::chamfer::{
        Chamfer, ChamferOptions, Metric, Neighbours, PointReduction,
    };
}

/// XTR: query tokens count only where they retrieved a token of the document. [`Device::xtr`] and
/// [`Device::xtr_backward`] are for training, [`Device::xtr_search`] ranks documents.
///
/// ```
/// use maxsim::format::Element;
/// use maxsim::training::{BackwardOptions, Gradients};
/// use maxsim::xtr::{Normalizer, TokenPool, XtrOptions, XtrScores};
/// use maxsim::{Device, Pairing, Result, Tokens, loss};
///
/// /// A contrastive step: query `i` belongs to document `i`.
/// fn step<T: Element>(
///     queries: &Tokens<'_, T>,
///     documents: &Tokens<'_, T>,
///     options: &XtrOptions,
/// ) -> Result<(f32, Gradients)> {
///     let device = Device::cpu();
///     let scores: XtrScores = device.xtr(queries, documents, &Pairing::cross(), options)?;
///     let n = queries.layout().n_items();
///     let targets: Vec<usize> = (0..n).collect();
///     let found = loss::contrastive(scores.values(), n, &targets, 1.0)?;
///     let scores = scores.with_grad(&found.grad_scores);
///     Ok((found.value, device.xtr_backward(queries, documents, scores, &Default::default())?))
/// }
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
/// let options = XtrOptions::default();
/// assert_eq!((options.k, options.normalizer), (256, Normalizer::Retrieved));
/// assert_eq!(options.pool, TokenPool::AllDocuments);
/// let (value, gradients) = step(&tokens, &tokens, &options)?;
/// assert!((value - 0.3133).abs() < 1e-4 && gradients.queries[0] < 0.0);
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod xtr {
    pub use crate::ops::xtr::XtrScores;
    pub use crate::problem::xtr::{Normalizer, TokenPool, XtrOptions};
}

/// Scores of hidden states: a linear layer makes tokens of them while they are scored.
///
/// ```
/// use maxsim::projection::{ProjectedGradients, Projection, ProjectionGradients};
/// use maxsim::{Device, Pairing, Tokens};
///
/// // The head of a model: from hidden states of three elements to normalised tokens of two.
/// let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 0.0, 2.0, 0.0], 1, 2, 3)?;
/// let head = Projection::new(&weight)?.normalize(true);
/// let query_states = Tokens::padded(&[5.0f32, 0.0, 9.0], 1, 1, 3)?;
/// let document_states = Tokens::padded(&[3.0f32, 2.0, 9.0, 0.0, 3.0, 9.0], 1, 2, 3)?;
///
/// let (device, cross) = (Device::cpu(), Pairing::cross());
/// let queries = device.project(&query_states, &head)?;
/// let scores = device.score_projected_for_training(&queries, &document_states, &head, &cross)?;
/// assert_eq!(scores.scores().values(), [0.6]);
///
/// let scores = scores.with_grad(&[1.0]);
/// let found: ProjectedGradients =
///     device.backward_projected(&queries, &document_states, &head, scores)?;
/// assert!(matches!(found.documents, ProjectionGradients { weight, .. } if weight.len() == 6));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod projection {
    pub use crate::ops::projection::backward::{ProjectedGradients, ProjectionGradients};
    pub use crate::ops::projection::{Projection, prepared::PreparedProjected, training::*};
}

/// Calls in stream order: prepared once, then enqueued on a [`Stream`](stream::Stream) or captured
/// into a [`Graph`](stream::Graph) any number of times.
///
/// ```
/// use maxsim::stream::{Capture, DeviceScores, Event, Graph, PreparedScore, Queue, Stream};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// let device = Device::best();
/// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
/// let options = ScoreOptions::default();
/// let score: PreparedScore = device.prepare(&tokens, &tokens, &Pairing::cross(), &options)?;
/// let mut scores: DeviceScores = score.new_scores()?;
/// let mut graph: Graph = device.capture(|capture: &mut Capture| {
///     capture.score_into(&tokens, &tokens, &score, &mut scores)
/// })?;
///
/// let mut stream: Stream = device.stream()?;
/// let [mut start, mut end]: [Event; 2] = [device.event()?, device.event()?];
/// stream.record(&mut start)?;
/// graph.launch(&mut stream)?;
/// stream.record(&mut end)?;
/// println!("{} ms", end.elapsed_ms(&start)?); // waits
/// assert_eq!(scores.read()?.values(), [5.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
pub mod stream {
    pub use crate::device::event::Event;
    pub use crate::device::graph::{Capture, Graph};
    pub use crate::device::stream::Stream;
    pub use crate::ops::queue::Queue;
    pub use crate::ops::score::prepared::{DeviceScores, PreparedScore};
    pub use crate::ops::top_k::prepared::{DeviceTopK, PreparedTopK};
}
