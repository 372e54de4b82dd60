//! Scores of tokens whose format is known only when a program runs.

use std::sync::Arc;

use super::prepared::{DeviceScores, PreparedScore};
use crate::device::Device;
use crate::device::any::{AnyDeviceTokens, AnyFormat, AnyTokensRef};
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::ops::queue::Queue;
use crate::plan::choice::Plan;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::residual::ResidualTokens;
use crate::tokens::any::AnyTokens;
use crate::tokens::dispatch::{with_element, with_host, with_pair};
use crate::tokens::element::ElementType;
use crate::tokens::format::{Format, ScorableWith, TokenFormat};

/// A call of queries and documents of formats that go together.
trait Call {
    type Output;

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<Self::Output>;
}

/// Runs a call with the formats that the tokens have.
fn dispatch<C: Call>(
    queries: AnyTokensRef<'_>,
    documents: AnyTokensRef<'_>,
    call: C,
) -> Result<C::Output> {
    fn of<Q: AnyFormat + ScorableWith<D>, D: AnyFormat, C: Call>(
        queries: AnyTokensRef<'_>,
        documents: AnyTokensRef<'_>,
        call: C,
    ) -> Result<C::Output> {
        match (queries.typed::<Q>(), documents.typed::<D>()) {
            (Some(queries), Some(documents)) => call.run(queries, documents),
            _ => Err(mismatch(queries.format(), documents.format())),
        }
    }
    let formats = (queries.format(), documents.format());
    with_pair!(formats.0, formats.1, Q, D => of::<Q, D, C>(queries, documents, call), else {
        Err(mismatch(formats.0, formats.1))
    })
}

fn mismatch(queries: TokenFormat, documents: TokenFormat) -> Error {
    Error::Unsupported {
        what: format!("{queries} queries with {documents} documents, which do not go together"),
        why: "elements go with the same elements, f16 and bf16 queries with int8-affine documents \
              too, int8 with int8 and int8-affine, fp8 with fp8, and plaid documents with the \
              queries that they were uploaded for; convert or compress one side"
            .into(),
    }
}

/// The handles of a call that takes no tokens in host memory.
fn handles<'a, Q: Format, D: Format>(
    queries: TokensRef<'a, Q>,
    documents: TokensRef<'a, D>,
    action: &str,
) -> Result<(&'a DeviceTokens<Q>, &'a DeviceTokens<D>)> {
    match (queries, documents) {
        (TokensRef::Device(queries), TokensRef::Device(documents)) => Ok((queries, documents)),
        _ => Err(Error::Unsupported {
            what: format!("{action} a call of tokens in host memory"),
            why: "a prepared call reads handles; upload the tokens".into(),
        }),
    }
}

/// Arguments of scores besides tokens.
struct Scoring<'a> {
    device: &'a Device,
    pairing: &'a Pairing,
    options: &'a ScoreOptions,
}

/// [`Device::score_with`].
struct Score<'a>(Scoring<'a>);

impl Call for Score<'_> {
    type Output = Scores;

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<Scores> {
        let Scoring { device, pairing, options } = self.0;
        device.score_with(queries, documents, pairing, options)
    }
}

/// [`Device::plan`].
struct Planning<'a>(Scoring<'a>);

impl Call for Planning<'_> {
    type Output = Plan;

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<Plan> {
        let Scoring { device, pairing, options } = self.0;
        device.plan(queries, documents, pairing, options)
    }
}

/// [`Device::prepare`], of handles alone.
struct Preparation<'a>(Scoring<'a>);

impl Call for Preparation<'_> {
    type Output = PreparedScore;

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<PreparedScore> {
        let Scoring { device, pairing, options } = self.0;
        let (queries, documents) = handles(queries, documents, "preparing")?;
        device.prepare(queries, documents, pairing, options)
    }
}

impl Device {
    /// As [`Device::upload`], of tokens of any format.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload_any(&self, tokens: &AnyTokens<'_>) -> Result<AnyDeviceTokens> {
        Ok(with_host!(tokens, tokens => self.upload(tokens)?.into()))
    }

    /// As [`Device::upload_residual`], for queries whose element type is known at run time.
    ///
    /// # Errors
    /// As [`Device::upload_residual`].
    pub fn upload_residual_any(
        &self,
        tokens: &ResidualTokens<'_>,
        queries: ElementType,
    ) -> Result<AnyDeviceTokens> {
        Ok(with_element!(queries, T => self.upload_residual::<T>(tokens)?.into()))
    }

    /// As [`Device::score_with`], of tokens of any format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the formats do not go together; those of
    /// [`Device::score_with`].
    pub fn score_any<'a>(
        &self,
        queries: impl Into<AnyTokensRef<'a>>,
        documents: impl Into<AnyTokensRef<'a>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let scoring = Scoring { device: self, pairing, options };
        dispatch(queries.into(), documents.into(), Score(scoring))
    }

    /// As [`Device::plan`], of tokens of any format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the formats do not go together; those of [`Device::plan`].
    pub fn plan_any<'a>(
        &self,
        queries: impl Into<AnyTokensRef<'a>>,
        documents: impl Into<AnyTokensRef<'a>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let scoring = Scoring { device: self, pairing, options };
        dispatch(queries.into(), documents.into(), Planning(scoring))
    }

    /// As [`Device::prepare`], of tokens of any format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the formats do not go together; those of [`Device::prepare`].
    pub fn prepare_any(
        &self,
        queries: &AnyDeviceTokens,
        documents: &AnyDeviceTokens,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<PreparedScore> {
        let scoring = Scoring { device: self, pairing, options };
        dispatch(queries.into(), documents.into(), Preparation(scoring))
    }

    /// As [`Device::prepare_cached`], of tokens of any format.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::{AnyDeviceTokens, Int8, ScaleType};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
    /// let codes = AnyDeviceTokens::from(tokens.quantize::<Int8>(ScaleType::F32)?);
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let work = device.prepare_any_cached(&codes, &codes, &cross, &options)?;
    /// let again = device.prepare_any_cached(&codes, &codes, &cross, &options)?;
    /// assert!(Arc::ptr_eq(&work, &again));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::prepare_any`].
    pub fn prepare_any_cached(
        &self,
        queries: &AnyDeviceTokens,
        documents: &AnyDeviceTokens,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Arc<PreparedScore>> {
        let scoring = Scoring { device: self, pairing, options };
        dispatch(queries.into(), documents.into(), CachedPreparation(scoring))
    }
}

/// [`Device::prepare_cached`], of handles alone.
struct CachedPreparation<'a>(Scoring<'a>);

impl Call for CachedPreparation<'_> {
    type Output = Arc<PreparedScore>;

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<Arc<PreparedScore>> {
        let Scoring { device, pairing, options } = self.0;
        let (queries, documents) = handles(queries, documents, "preparing")?;
        device.prepare_cached(queries, documents, pairing, options)
    }
}

/// [`Queue::score_into`], of handles alone.
struct Enqueuing<'a, K: ?Sized> {
    queue: &'a mut K,
    work: &'a PreparedScore,
    scores: &'a mut DeviceScores,
}

impl<K: Queue + ?Sized> Call for Enqueuing<'_, K> {
    type Output = ();

    fn run<'a, Q: ScorableWith<D>, D: Format>(
        self,
        queries: TokensRef<'a, Q>,
        documents: TokensRef<'a, D>,
    ) -> Result<()> {
        let (queries, documents) = handles(queries, documents, "enqueueing")?;
        self.queue.score_into(queries, documents, self.work, self.scores)
    }
}

/// As [`Queue::score_into`], of handles of any format.
pub(crate) fn enqueue<K: Queue + ?Sized>(
    queue: &mut K,
    queries: &AnyDeviceTokens,
    documents: &AnyDeviceTokens,
    work: &PreparedScore,
    scores: &mut DeviceScores,
) -> Result<()> {
    dispatch(queries.into(), documents.into(), Enqueuing { queue, work, scores })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::tokens::Tokens;
    use crate::tokens::scales::ScaleType;

    /// Makes tokens of the same rows in every format.
    fn all(rows: &[f32]) -> Vec<AnyTokens<'_>> {
        let tokens = Tokens::padded(rows, 2, 2, 4).unwrap();
        let mut all = vec![
            tokens.convert::<f16>().unwrap().0.into(),
            tokens.convert::<bf16>().unwrap().0.into(),
            AnyTokens::from(tokens),
        ];
        for format in TokenFormat::QUANTIZED {
            all.push(all[2].quantize(format, ScaleType::F16).unwrap());
        }
        all
    }

    /// Formats that go together have the scores of their types, to the precision of the format,
    /// from host tokens and handles; the rest is refused with both formats.
    #[test]
    fn formats_go_together_or_are_refused() {
        let device = Device::cpu();
        let (pairing, options) = (Pairing::cross(), ScoreOptions::default());
        let rows: Vec<f32> = (0..16).map(|i| ((i * 7 % 11) as f32 - 5.0) / 8.0).collect();
        let tokens = Tokens::padded(&rows, 2, 2, 4).unwrap();
        let exact = device.score(&tokens, &tokens, &pairing).unwrap();
        let mut n_scored = 0;
        for queries in &all(&rows) {
            for documents in &all(&rows) {
                let formats = [queries.format(), documents.format()];
                let scores = match device.score_any(queries, documents, &pairing, &options) {
                    Ok(scores) => scores,
                    Err(error) => {
                        assert!(!device.can_score(formats[0], formats[1]), "{formats:?}");
                        let text = error.to_string();
                        assert!(formats.iter().all(|f| text.contains(f.name())), "{text}");
                        continue;
                    }
                };
                n_scored += 1;
                for (a, b) in scores.values().iter().zip(exact.values()) {
                    assert!((a - b).abs() < 0.05, "{formats:?}: {a} {b}");
                }
                let [q, d] = [queries, documents].map(|any| device.upload_any(any).unwrap());
                let of_handles = device.score_any(&q, &d, &pairing, &options).unwrap();
                assert_eq!(of_handles, scores, "{formats:?}");
                let work = device.prepare_any(&q, &d, &pairing, &options).unwrap();
                let mut room = work.new_scores().unwrap();
                let mut stream = device.stream().unwrap();
                stream.score_any_into(&q, &d, &work, &mut room).unwrap();
                assert_eq!(room.read().unwrap(), scores, "{formats:?}");
                assert!(device.plan_any(queries, &d, &pairing, &options).is_ok());
            }
        }
        assert_eq!(n_scored, 8);
    }

    #[test]
    fn codes_are_not_compressed_again() {
        let rows = [0.5f32; 16];
        for tokens in &all(&rows)[3..] {
            let error = tokens.quantize(TokenFormat::Fp8, ScaleType::F16).unwrap_err();
            assert!(error.to_string().contains(tokens.format().name()), "{error}");
        }
        let tokens = &all(&rows)[0];
        assert!(tokens.quantize(ElementType::F32.into(), ScaleType::F16).is_err());
    }
}
