//! Tokens with what they were compressed to, as searches take them.

use std::borrow::Cow;
use std::sync::OnceLock;

#[cfg(doc)]
use super::Certainty;
use super::bounds::ErrorTerms;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, Quantized};
use crate::tokens::layout::TokenLayout;

/// Tokens, what they were compressed to, and how far that is off: one side of a search.
///
/// A search proves places by these bounds. So they are measured here, row by row, and the tokens
/// are those that the search re-scores: that the bounds are true is in the type. Where the caller
/// knows bounds already, there is [`SearchTokens::assumed`], with which nothing is proven.
#[derive(Clone, Debug)]
#[must_use]
pub struct SearchTokens<'a, T: Element, F: Format> {
    pub(crate) tokens: TokensRef<'a, T>,
    pub(crate) codes: TokensRef<'a, F>,
    terms: Measured<'a, T, F>,
    /// Whether the terms are known to be true of these tokens and codes, and to stay so.
    pub(crate) is_known: bool,
}

/// Bounds of what rows are off by, which may be measured when they are asked for.
#[derive(Clone, Debug)]
enum Measured<'a, T: Element, F: Format> {
    Given(Cow<'a, ErrorTerms>),
    /// Of host tokens and codes of the same rows, which stay as they are.
    Later {
        terms: OnceLock<ErrorTerms>,
        codes: &'a Tokens<'a, F>,
        tokens: &'a Tokens<'a, T>,
        measure: fn(&Tokens<'_, F>, &Tokens<'_, T>) -> ErrorTerms,
    },
}

/// Most elements of tokens that are measured when their bounds are asked for: of queries, while a
/// GPU scans for them.
const LATER_MAX: usize = 1 << 16;

impl<'a, T: Element> SearchTokens<'a, T, T> {
    /// Searches tokens as they are, as queries of affine documents.
    ///
    /// # Errors
    /// [`Error::HostMemory`]; [`Error::Unsupported`] where tokens have weights.
    pub fn plain(tokens: impl Into<TokensRef<'a, T>>) -> Result<SearchTokens<'a, T, T>> {
        let tokens = tokens.into();
        check_unweighted(tokens.layout())?;
        let mut own = None;
        let terms = ErrorTerms::new(on_host(&tokens, &mut own)?);
        Ok(SearchTokens {
            tokens,
            codes: tokens,
            terms: Measured::Given(Cow::Owned(terms)),
            is_known: is_own(&tokens),
        })
    }
}

impl<'a, T: Element, F: Quantized> SearchTokens<'a, T, F> {
    /// Tokens and codes, host tokens or handles, with bounds of what each row is off by: whatever
    /// codes these are, the bounds are true. Reads both once; handles are copied to the host for
    /// it, and the rows of a few queries may be read when a search needs their bounds. Keep the
    /// result: it serves any number of searches.
    ///
    /// # Errors
    /// [`Error::Shape`] where items have other lengths, another dim or another mask, or lie in
    /// other rows. [`Error::Unsupported`] where tokens have weights. [`Error::HostMemory`].
    pub fn measured(
        tokens: impl Into<TokensRef<'a, T>>,
        codes: impl Into<TokensRef<'a, F>>,
    ) -> Result<SearchTokens<'a, T, F>> {
        let (tokens, codes) = (tokens.into(), codes.into());
        check_same_tokens("codes", tokens.layout(), codes.layout())?;
        check_unweighted(tokens.layout())?;
        let (mut own_tokens, mut own_codes) = (None, None);
        let host_codes = on_host(&codes, &mut own_codes)?;
        let host_tokens = on_host(&tokens, &mut own_tokens)?;
        check_same_rows(0, host_tokens, host_codes)?;
        ErrorTerms::check_rows(host_codes, host_tokens)?;
        let terms = match (tokens, codes) {
            (TokensRef::Host(tokens), TokensRef::Host(codes))
                if tokens.data().len() <= LATER_MAX =>
            {
                let (terms, measure) = (OnceLock::new(), ErrorTerms::of_same_rows);
                Measured::Later { terms, codes, tokens, measure }
            }
            _ => {
                let terms = ErrorTerms::of_same_rows(host_codes, host_tokens);
                Measured::Given(Cow::Owned(terms))
            }
        };
        let is_known = is_own(&tokens) && is_own(&codes);
        Ok(SearchTokens { tokens, codes, terms, is_known })
    }
}

impl<'a, T: Element, F: Format> SearchTokens<'a, T, F> {
    /// Tokens and codes with bounds that the caller has, on the caller's word that the codes are
    /// those of the tokens and the bounds those of the codes. Nothing that is found with them is
    /// [`Certainty::Proven`].
    ///
    /// # Errors
    /// [`Error::Shape`] where items have other lengths, another dim or another mask, or terms are
    /// of other items or another format; [`Error::Unsupported`] where tokens have weights.
    pub fn assumed(
        tokens: impl Into<TokensRef<'a, T>>,
        codes: impl Into<TokensRef<'a, F>>,
        terms: &'a ErrorTerms,
    ) -> Result<SearchTokens<'a, T, F>> {
        let known = SearchTokens::known(tokens, codes, terms)?;
        Ok(SearchTokens { is_known: false, ..known })
    }

    /// Tokens and codes of which the caller knows that terms are true, and that they stay so:
    /// places are proven on that word. Where rows are measured, or are the tokens themselves, there
    /// are [`SearchTokens::measured`] and [`SearchTokens::plain`]; this one is for callers that do
    /// not know in their types which of the two it is.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::search::{Certainty, ErrorTerms, SearchOptions, SearchTokens};
    /// use maxsim::{Device, Tokens};
    ///
    /// let tokens = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28], 2, 1, 2)?;
    /// let codes = tokens.quantize::<Int8>(ScaleType::F16)?;
    /// let terms = ErrorTerms::measured(&codes, &tokens)?;
    /// let sides = SearchTokens::known(&tokens, &codes, &terms)?;
    /// let found = Device::cpu().search(&sides, &sides, 1, &SearchOptions::default())?;
    /// assert_eq!(found[0].documents[0].certainty, Certainty::Proven);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SearchTokens::assumed`].
    pub fn known(
        tokens: impl Into<TokensRef<'a, T>>,
        codes: impl Into<TokensRef<'a, F>>,
        terms: &'a ErrorTerms,
    ) -> Result<SearchTokens<'a, T, F>> {
        let (tokens, codes) = (tokens.into(), codes.into());
        check_same_tokens("codes", tokens.layout(), codes.layout())?;
        check_unweighted(tokens.layout())?;
        terms.check("terms", codes.layout(), F::FORMAT)?;
        let terms = Measured::Given(Cow::Borrowed(terms));
        Ok(SearchTokens { tokens, codes, terms, is_known: true })
    }

    /// What the codes are off by.
    pub(crate) fn terms(&self) -> &ErrorTerms {
        match &self.terms {
            Measured::Given(terms) => terms,
            // Measured outside the lock: a thread of a pool that waits for the others meanwhile may
            // begin a search with the same tokens. Two threads that measure find the same.
            Measured::Later { terms, codes, tokens, measure } => match terms.get() {
                Some(terms) => terms,
                None => {
                    let measured = measure(codes, tokens);
                    terms.get_or_init(|| measured)
                }
            },
        }
    }
}

/// Refuses tokens whose scores no bound is of.
pub(super) fn check_unweighted(layout: &TokenLayout) -> Result<()> {
    let why = "bounds of what codes are off by are those of unweighted sums; score all documents";
    layout.check_unweighted("of tokens that a search compares by bounds", why)
}

/// Whether no other code can write to tokens.
fn is_own<F: Format>(tokens: &TokensRef<'_, F>) -> bool {
    match tokens {
        TokensRef::Host(_) => true,
        TokensRef::Device(handle) => !handle.is_foreign(),
    }
}

/// Tokens in host memory, a handle's copied into `own`.
fn on_host<'a, 'b, F: Format>(
    tokens: &TokensRef<'a, F>,
    own: &'b mut Option<Tokens<'a, F>>,
) -> Result<&'b Tokens<'b, F>>
where
    'a: 'b,
{
    match tokens {
        TokensRef::Host(tokens) => Ok(tokens),
        TokensRef::Device(handle) => Ok(own.insert(handle.download()?)),
    }
}

/// Checks that compressed tokens can be those of `tokens`, as far as layouts say.
pub(crate) fn check_same_tokens(
    argument: &'static str,
    tokens: &TokenLayout,
    codes: &TokenLayout,
) -> Result<()> {
    let of = |layout: &TokenLayout| {
        let mask = if layout.is_masked() { "with a mask" } else { "without a mask" };
        format!("{} items of dim {}, {mask}", layout.n_items(), layout.dim())
    };
    let (expected, found) = (of(tokens), of(codes));
    let refuse = |expected, found| Err(Error::Shape { argument, expected, found });
    if expected != found {
        return refuse(expected, found);
    }
    let same = |&i: &usize| {
        tokens.item_len(i) == codes.item_len(i) && tokens.has_tokens(i) == codes.has_tokens(i)
    };
    match (0..tokens.n_items()).find(|i| !same(i)) {
        None => Ok(()),
        Some(i) => {
            let of = |layout: &TokenLayout| match layout.has_tokens(i) {
                true => format!("{} tokens in item {i}", layout.item_len(i)),
                false => format!("no valid token in item {i}"),
            };
            refuse(of(tokens), of(codes))
        }
    }
}

/// Refuses codes of as many items whose valid tokens are other rows than those of `tokens`: errors
/// are measured row by row. `first` is the number of the first item.
pub(crate) fn check_same_rows<T: Format, F: Format>(
    first: usize,
    tokens: &Tokens<'_, T>,
    codes: &Tokens<'_, F>,
) -> Result<()> {
    let is_valid = |mask: Option<&[u8]>, row: usize| mask.is_none_or(|mask| mask[row] != 0);
    let (masks, layout) = ([tokens.mask(), codes.mask()], tokens.layout());
    let differs = |&i: &usize| {
        let mut rows = layout.item_rows(i);
        !rows.is_empty()
            && (rows != codes.layout().item_rows(i)
                || masks != [None, None]
                    && rows.any(|row| is_valid(masks[0], row) != is_valid(masks[1], row)))
    };
    match (0..layout.n_items()).find(differs) {
        None => Ok(()),
        Some(i) => Err(Error::Shape {
            argument: "codes",
            expected: format!("the rows and the mask of the tokens in item {}", first + i),
            found: "other rows, or another mask: compress these tokens".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;
    use crate::device::Device;
    use crate::ops::search::SearchOptions;
    use crate::tokens::format::Int8;
    use crate::tokens::scales::ScaleType;

    /// A thread that measures waits for others of its pool, and may begin another search meanwhile:
    /// none waits for the other.
    #[test]
    fn searches_of_a_pool_share_tokens() {
        let numbers: Vec<f32> =
            (0..64 * 8 * 16).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let tokens = Tokens::padded(&numbers, 64, 8, 16).unwrap();
        let codes = tokens.quantize::<Int8>(ScaleType::F32).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for _ in 0..20 {
            let sides = SearchTokens::measured(&tokens, &codes).unwrap();
            let search = |k: usize| {
                let options = SearchOptions::default().n_candidates(4);
                Device::cpu().search(&sides, &sides, k, &options).unwrap().len()
            };
            let found: Vec<usize> = pool.install(|| (1..9).into_par_iter().map(search).collect());
            assert_eq!(found, [64; 8]);
        }
    }
}
