//! Training: scores whose winners are kept, and the gradients that they give.

pub(crate) mod blocking;
pub(crate) mod cache;
pub(crate) mod command;
pub(crate) mod outputs;
pub(crate) mod prepared;
pub(crate) mod training_scores;
pub(crate) mod with_grad;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::problem::options::ScoreOptions;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

/// How gradients are computed. All ways give the same gradients up to rounding, and each but
/// [`BackwardStrategy::Atomic`] the same bits every time.
///
/// With `g` the gradient of a loss with respect to the scores, and `winner(q, d, s)` the document
/// token that query token `s` chose,
///
/// ```text
/// ∂Q[q, s] = Σ_d g[q, d] · D[d, winner(q, d, s)]
/// ∂D[d, t] = Σ_{(q, s): winner(q, d, s) = t} g[q, d] · Q[q, s]
/// ```
///
/// with the sums over the scored pairs, as often as a pair is scored. Rows that several items share
/// get what each of them adds. Only ∂Q reads rows of documents, which may have become codes since
/// they were scored ([`GradientSource`](crate::format::GradientSource)).
///
/// With [`ScoreOptions::normalize`](crate::ScoreOptions::normalize) these sums, over rows x̂ = r ·
/// x, are the gradients ∂x̂ with respect to normalised rows, and
///
/// ```text
/// ∂x = r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩)     or r · ∂x̂ where ‖x‖² is at most 10⁻¹²: r is constant there
/// ```
///
/// and 0 where x = 0 in angular scores ([`ScoreOptions::angular`](crate::ScoreOptions::angular)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum BackwardStrategy {
    /// Chosen by the device; bitwise repeatable. It is [`BackwardStrategy::Deterministic`] on every
    /// device so far.
    #[default]
    Auto,
    /// From the saved winners, sorted by document row: each gradient row is summed once, by one
    /// thread or warp, in the order of the scores and within a score of the query's tokens.
    ///
    /// On a GPU, a row of many sources is divided into parts at places that depend on the call and
    /// the device alone (segmented sum): each part is summed in that order, and the parts are added
    /// in theirs. Beyond inputs, winners and gradients it takes the stream's workspace of at most
    /// 32 MB and lists: 32 bytes per eight rows of a query, 64 per 8192 winners of a document, and
    /// where documents are listed by ids or items of a side overlap, 40 per score. The sums of
    /// normalised rows are f32 first: unless gradients are f32 and overwritten, **4 bytes per
    /// element of both sides** in the stream's workspace, and on the CPU of one side after the
    /// other.
    Deterministic,
    /// From the saved winners, in one pass over the query tokens of all pairs, which adds to rows
    /// of documents atomically, in whatever order they are reached: **the bits of their gradients
    /// vary from run to run**, by as much as f32 sums do whose terms change places, and sums below
    /// 2⁻¹²⁶ may become 0. Those of the queries are the same every time. For GPUs only.
    ///
    /// Nothing is sorted, which may be faster where few winners share a row. Of 64 neighbouring
    /// tokens of a query those that chose the same row are summed first and added once; a row that
    /// many more chose receives such sums one after the other. Beyond inputs, winners and gradients
    /// it takes, for gradients in the tokens' type of two bytes, **the documents' gradient in
    /// f32**: 4 bytes per element, in the stream's workspace, and 32 per eight rows. f32 gradients
    /// are added to in place. Besides, there are at most 5 MB of parts of the queries' sums, 32
    /// bytes per eight rows of a query, and where documents are listed by ids or queries overlap,
    /// 36 per score. Normalised rows take as much more as with [`BackwardStrategy::Deterministic`].
    Atomic,
    /// As [`BackwardStrategy::Deterministic`], from winners that are found again: none need be
    /// saved, from [`Device::score_for_recompute`] or from work without winners
    /// ([`Device::prepare_backward`]), so that none take memory between the scores and their
    /// gradients. Takes the time of the scores once more, and memory of winners while a synchronous
    /// call runs, or the [`PreparedBackward`](crate::training::PreparedBackward) lives: 4 bytes per
    /// query token of each pair on the CPU, [`DeviceScores::winner_bytes`] on a GPU, there at most
    /// [`BackwardOptions::winner_bytes`].
    ///
    /// If the winners of a cross product take more, they are found for some queries at a time, and
    /// rows of documents are summed in f32 over all of them: other bits than those of
    /// [`BackwardStrategy::Deterministic`], the same every time, and for gradients in the tokens'
    /// type of two bytes **4 bytes per element of the documents** (if that and the limit are less
    /// than all winners take). Which of several NaN similarities wins may then be another one, too.
    ///
    /// [`DeviceScores::winner_bytes`]: crate::stream::DeviceScores::winner_bytes
    Recompute,
}

/// The sides of a call that get gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum GradientSides {
    /// Queries and documents.
    #[default]
    Both,
    /// Queries alone: documents are fixed.
    Queries,
    /// Documents alone.
    Documents,
}

impl GradientSides {
    /// Whether queries, and whether documents, get gradients.
    pub(crate) fn wanted(self) -> [bool; 2] {
        [self != GradientSides::Documents, self != GradientSides::Queries]
    }
}

/// How to compute gradients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct BackwardOptions {
    /// The way to go.
    pub strategy: BackwardStrategy,
    /// The sides whose gradients are wanted: of the other one none is computed, and no memory is
    /// there for it.
    pub sides: GradientSides,
    /// Most bytes of winners that [`BackwardStrategy::Recompute`] has at once on a GPU, 128 MB by
    /// default: those of a cross product that are more are found for some queries at a time, at
    /// least one.
    pub winner_bytes: Option<u64>,
}

impl BackwardOptions {
    /// Options for a strategy.
    pub fn new(strategy: BackwardStrategy) -> BackwardOptions {
        BackwardOptions { strategy, ..BackwardOptions::default() }
    }

    /// Sets [`BackwardOptions::winner_bytes`](field@BackwardOptions::winner_bytes).
    pub fn winner_bytes(self, winner_bytes: impl Into<Option<u64>>) -> BackwardOptions {
        BackwardOptions { winner_bytes: winner_bytes.into(), ..self }
    }

    /// Sets [`BackwardOptions::sides`](field@BackwardOptions::sides).
    ///
    /// ```
    /// use maxsim::training::{BackwardOptions, GradientSides};
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0], 1, 1, 2)?;
    /// let device = Device::best();
    /// let scores = device.score_for_training(&queries, &documents, &Pairing::cross())?;
    /// let options = BackwardOptions::default().sides(GradientSides::Queries);
    /// let found = device.backward(&queries, &documents, scores.with_grad(&[1.0]), &options)?;
    /// assert_eq!((&found.queries[..], found.documents.len()), (&[3.0, 4.0][..], 0));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn sides(self, sides: GradientSides) -> BackwardOptions {
        BackwardOptions { sides, ..self }
    }

    pub(crate) fn winner_bytes_max(&self) -> u64 {
        self.winner_bytes.unwrap_or(128 << 20)
    }
}

impl BackwardStrategy {
    /// Whether the strategy does not read saved winners; an error where the device does not have
    /// it.
    pub(crate) fn finds_winners_again(self, device: &Device) -> Result<bool> {
        match self {
            BackwardStrategy::Auto | BackwardStrategy::Deterministic => Ok(false),
            BackwardStrategy::Recompute => Ok(true),
            BackwardStrategy::Atomic if device.ordinal().is_some() => Ok(false),
            BackwardStrategy::Atomic => Err(Error::Unsupported {
                what: "BackwardStrategy::Atomic on the CPU".into(),
                why: "it adds in GPU memory, with bits that vary from run to run; choose \
                BackwardStrategy::Deterministic or BackwardStrategy::Recompute"
                    .into(),
            }),
        }
    }

    /// Refuses one side's gradients where the strategy finds both in one pass.
    pub(crate) fn check_sides(self, sides: GradientSides) -> Result<()> {
        match (self, sides) {
            (BackwardStrategy::Atomic, GradientSides::Queries | GradientSides::Documents) => {
                Err(Error::Unsupported {
                    what: "BackwardStrategy::Atomic for the gradients of one side".into(),
                    why: "it adds to both in one pass; choose BackwardStrategy::Deterministic"
                        .into(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Refuses strategies that cannot do with saved codes in place of the documents that were
    /// scored.
    pub(crate) fn check_saved(self, documents: TokenFormat, normalize: bool) -> Result<()> {
        if documents.element().is_some() {
            return Ok(());
        }
        let (what, why) = match self {
            BackwardStrategy::Atomic => (
                "BackwardStrategy::Atomic",
                "no kernel adds atomically from codes; choose \
                 BackwardStrategy::Deterministic, or give the documents that were scored",
            ),
            BackwardStrategy::Recompute => (
                "BackwardStrategy::Recompute",
                "codes may find other winners than the scores have; choose \
                 BackwardStrategy::Deterministic, which reads saved ones, or give the documents \
                 that were scored",
            ),
            BackwardStrategy::Auto | BackwardStrategy::Deterministic if normalize => (
                "gradients of normalised rows",
                "they need the documents' rows; give the documents that were scored, or score \
                 rows that were normalised before",
            ),
            BackwardStrategy::Auto | BackwardStrategy::Deterministic => return Ok(()),
        };
        let what = format!("{what} from documents saved as {documents}");
        Err(Error::Unsupported { what, why: why.into() })
    }
}

/// Refuses gradients of weights of angular scores: they would be sums of distances, which winners
/// do not say.
pub(crate) fn check_angular_weights(options: &ScoreOptions, queries: &TokenLayout) -> Result<()> {
    match options.angular {
        true => queries.check_unweighted(
            "of angular scores with gradients",
            "winners do not say how far away they are; multiply the gradients of scores instead",
        ),
        false => Ok(()),
    }
}
