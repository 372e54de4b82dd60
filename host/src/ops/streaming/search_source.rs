//! A corpus that is searched coarse to fine while its codes pass by.

use std::borrow::Cow;
use std::fmt;

use super::corpus::CPU_BUFFER_BYTES;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::search::bounds::ErrorTerms;
use crate::ops::search::compressed::{check_same_rows, check_same_tokens};
use crate::problem::chunks::chunks;
use crate::runtime::interrupt::Interrupt;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, Quantized};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::{Source, Streamed};

/// A corpus that [`Device::search_coarse_stream`](crate::Device::search_coarse_stream) searches:
/// the source of its codes, which pass by, and the source of its tokens, of which what codes find
/// is read by id. What [`SearchTokens`](crate::search::SearchTokens) is for documents in memory.
///
/// Two sources cannot show that one was made of the other. So a search proves places
///
/// | made by | which rests on |
/// |---|---|
/// | [`SearchSource::measured`] | what it has read: both sources, once |
/// | [`SearchSource::known`] | the caller's word, who has compared digests or rows |
/// | [`SearchSource::assumed`] | nothing: no place is proven |
///
/// and in either case on sources that give the same rows whenever they are read. A score in full
/// precision that is further from that of the codes than errors reach ends the search with an
/// error.
///
/// ```
/// use maxsim::format::{Int8, ScaleType};
/// use maxsim::search::{Certainty, ErrorTerms, SearchOptions, SearchSource, SearchTokens};
/// use maxsim::streaming::StreamOptions;
/// use maxsim::{Device, Tokens};
///
/// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// let query_codes = queries.quantize::<Int8>(ScaleType::F32)?;
/// let queries = SearchTokens::measured(&queries, &query_codes)?;
/// // Three documents of one token each: in files, say.
/// let tokens = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
/// let codes = tokens.quantize::<Int8>(ScaleType::F16)?;
///
/// let terms = ErrorTerms::new(&codes);
/// let sources = [
///     SearchSource::measured(&tokens, &codes)?,
///     SearchSource::known(&tokens, &codes, Some(&terms))?, // kept with the codes
///     SearchSource::known(&tokens, &codes, None)?,
///     SearchSource::assumed(&tokens, &codes, None)?,
/// ];
/// let (search, options) = (SearchOptions::default().n_candidates(1), StreamOptions::default());
/// for (source, is_proven) in sources.iter().zip([true, true, true, false]) {
///     let device = Device::best();
///     let found = device.search_coarse_stream(&queries, source, 1, &search, &options)?;
///     let best = &found.rankings[0].documents[0];
///     assert_eq!((best.id, best.score), (1, 0.96));
///     assert_eq!(best.certainty == Certainty::Proven, is_proven);
/// }
/// # Ok::<(), maxsim::Error>(())
/// ```
#[must_use]
pub struct SearchSource<'a, T: Element, D: Format> {
    pub(super) tokens: Streamed<'a, T>,
    pub(super) codes: Streamed<'a, D>,
    /// How the codes lie, with their mask.
    pub(super) layout: Cow<'a, TokenLayout>,
    /// Terms of all documents; `None` where they are found as codes pass by.
    pub(super) terms: Option<Cow<'a, ErrorTerms>>,
    /// Whether terms are taken to be true of these tokens and codes.
    pub(super) is_known: bool,
}

/// Prints everything but the sources.
impl<T: Element, D: Format> fmt::Debug for SearchSource<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchSource")
            .field("formats", &[T::FORMAT, D::FORMAT])
            .field("layout", &self.layout)
            .field("is_known", &self.is_known)
            .finish_non_exhaustive()
    }
}

impl<'a, T: Element, D: Quantized> SearchSource<'a, T, D> {
    /// Tokens and codes, with bounds of what each row is off by: whatever codes these are, the
    /// bounds are true. Reads both sources once. Keep the result: it serves any number of searches.
    ///
    /// # Errors
    /// [`Error::Source`] where a source fails. [`Error::Shape`] where items have other lengths,
    /// another dim or another mask, or their rows lie otherwise. [`Error::Interrupted`],
    /// [`Error::HostMemory`].
    pub fn measured(
        tokens: &'a impl Source<T>,
        codes: &'a impl Source<D>,
    ) -> Result<SearchSource<'a, T, D>> {
        let source = SearchSource::new(tokens, codes, None, true)?;
        let dim = source.layout.dim();
        let row_bytes = dim * (size_of::<T>() + D::FORMAT.size_bytes());
        let (mut of_tokens, mut of_codes) = (Vec::new(), Vec::new());
        let chunks = chunks(&source.layout, row_bytes, 1, CPU_BUFFER_BYTES);
        let interrupt = Interrupt::current();
        let parts = chunks.into_iter().map(|chunk| {
            interrupt.check()?;
            let tokens = source.tokens.part(chunk.items.clone(), &mut of_tokens)?;
            let first = chunk.items.start;
            let codes = source.codes.part(chunk.items, &mut of_codes)?;
            check_same_rows(first, &tokens, &codes)?;
            ErrorTerms::measured(&codes, &tokens)
        });
        let terms = ErrorTerms::of_parts(D::FORMAT, &source.layout, parts)?;
        Ok(SearchSource { terms: Some(Cow::Owned(terms)), ..source })
    }
}

impl<'a, T: Element, D: Format> SearchSource<'a, T, D> {
    /// Tokens and codes of which the caller knows that terms are true, and that they stay so:
    /// places are proven on that word.
    ///
    /// Without terms, those of [`ErrorTerms::new`] are found as codes pass by: then the codes must
    /// be those that [`Tokens::quantize`](crate::Tokens::quantize) makes, or rows within the same
    /// distance ([`first_row_beyond`](crate::search::first_row_beyond)). It takes no memory and
    /// reads codes once on the CPU. On a GPU, give terms where you can: it selects what is looked
    /// at then, where else the codes are read a second time, for their terms, and all scores are
    /// copied.
    ///
    /// # Errors
    /// [`Error::Shape`] where items have other lengths, another dim or another mask, or terms are
    /// of other items or another format.
    pub fn known(
        tokens: &'a impl Source<T>,
        codes: &'a impl Source<D>,
        terms: Option<&'a ErrorTerms>,
    ) -> Result<SearchSource<'a, T, D>> {
        SearchSource::new(tokens, codes, terms, true)
    }

    /// As [`SearchSource::known`], of codes that may be those of other tokens: nothing that is
    /// found is [`Certainty::Proven`](crate::search::Certainty::Proven).
    ///
    /// # Errors
    /// As [`SearchSource::known`].
    pub fn assumed(
        tokens: &'a impl Source<T>,
        codes: &'a impl Source<D>,
        terms: Option<&'a ErrorTerms>,
    ) -> Result<SearchSource<'a, T, D>> {
        SearchSource::new(tokens, codes, terms, false)
    }

    fn new(
        tokens: &'a dyn Source<T>,
        codes: &'a dyn Source<D>,
        terms: Option<&'a ErrorTerms>,
        is_known: bool,
    ) -> Result<SearchSource<'a, T, D>> {
        let (tokens, codes) = (Streamed::new(tokens)?, Streamed::new(codes)?);
        let layout = codes.masked_layout()?;
        check_same_tokens("codes", tokens.masked_layout()?.as_ref(), &layout)?;
        if let Some(terms) = terms {
            terms.check("terms", &layout, D::FORMAT)?;
        }
        Ok(SearchSource { tokens, codes, layout, terms: terms.map(Cow::Borrowed), is_known })
    }

    /// Shape and items, as the codes lie.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }
}
