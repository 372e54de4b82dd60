//! The two sides of every call of a run: queries in the format that documents are scored with, and
//! documents as the library reads them.

use std::ops::Range;

use anyhow::{Result, bail};
use half::{bf16, f16};
use maxsim::format::{self, Element, ElementType, Format, ScorableWith, TokenFormat, with_element};
use maxsim::residual::{ResidualSource, ResidualTokens};
use maxsim::streaming::{Source, Subset};
use maxsim::{AnyTokens, Device, Tokens};

use crate::documents::Documents;
use crate::input::ReadItems;
use crate::rank::queries::query_format;
use crate::rank::sources::{Codes, Decoded, Elements, Found, Residuals};
use crate::rank::stream::Request;
use crate::residual::ResidualFile;
use crate::selection::Selected;

/// A call of queries and documents, of whichever formats they have.
pub(super) trait Call {
    type Output;

    /// Documents that are elements or codes.
    fn of_rows<Q: ScorableWith<D>, D: Format>(
        self,
        queries: &Tokens<'_, Q>,
        documents: &dyn Source<D>,
    ) -> Result<Self::Output>;

    /// Documents that are residual-compressed.
    fn of_residuals<T: Element>(
        self,
        queries: &Tokens<'_, T>,
        documents: &dyn ResidualSource,
    ) -> Result<Self::Output>;
}

/// Runs a call of a range of the queries and the documents that are selected: those of every query
/// where these are the same, and else all.
///
/// Errors are those of the files, where there are some.
pub(super) fn run<C: Call>(
    request: &Request<'_>,
    queries: Range<usize>,
    found: &Found,
    call: C,
) -> Result<C::Output> {
    let chosen = match request.selected {
        Selected::Same(ids) => Some(&ids[..]),
        Selected::All | Selected::Each(_) => None,
    };
    let sides = Sides { request, chosen, found };
    let done = match request.documents {
        Documents::Tokens(_) => sides.of_tokens(queries, call),
        Documents::Residual(tokens, file) => sides.of_residuals(tokens, file, queries, call),
    };
    done.map_err(|error| found.error(error))
}

struct Sides<'a> {
    request: &'a Request<'a>,
    /// The documents that are selected, where these are not all.
    chosen: Option<&'a [u32]>,
    found: &'a Found,
}

impl Sides<'_> {
    fn of_tokens<C: Call>(&self, queries: Range<usize>, call: C) -> Result<C::Output> {
        use ElementType::{Bf16, F16, F32};
        use TokenFormat::{Element, Fp8, Int8, Int8Affine};
        let Request { queries: file, documents, query_scales, allow_infinite, .. } = *self.request;
        let Documents::Tokens(documents) = documents else { bail!("the documents are plaid") };
        let stored = documents.contents().format;
        let of_queries = query_format(file.contents().format, stored);
        let queries = match file.any_tokens(queries)? {
            queries if queries.format() == of_queries => queries,
            // The CPU has an engine for all formats that go together.
            queries if Device::cpu().can_score(of_queries, stored) => {
                queries.quantize(of_queries, query_scales)?
            }
            queries => queries,
        };
        let elements = || Elements::new(documents, allow_infinite, self.found);
        let codes = || Codes::new(documents, allow_infinite, self.found);
        match (&queries, stored) {
            (AnyTokens::F16(q), Element(F16)) => self.rows::<_, f16, C>(q, &elements(), call),
            (AnyTokens::Bf16(q), Element(Bf16)) => self.rows::<_, bf16, C>(q, &elements(), call),
            (AnyTokens::F32(q), Element(F32)) => self.rows::<_, f32, C>(q, &elements(), call),
            (AnyTokens::Int8(q), Int8) => self.rows::<_, format::Int8, C>(q, &codes()?, call),
            (AnyTokens::Fp8(q), Fp8) => self.rows::<_, format::Fp8, C>(q, &codes()?, call),
            (AnyTokens::F16(q), Int8Affine) => {
                self.rows::<_, format::Int8Affine, C>(q, &codes()?, call)
            }
            (AnyTokens::Bf16(q), Int8Affine) => {
                self.rows::<_, format::Int8Affine, C>(q, &codes()?, call)
            }
            (AnyTokens::Int8(q), Int8Affine) => {
                self.rows::<_, format::Int8Affine, C>(q, &codes()?, call)
            }
            _ => bail!(
                "{of_queries} queries cannot be scored against {stored} documents; \
                 use the queries' uncompressed embeddings"
            ),
        }
    }

    /// Residual-compressed documents stay so for f16 queries, and are decoded to f32 for others. As
    /// bf16 they would keep 8 bits of what they decode to; bf16 queries lose nothing as f32.
    fn of_residuals<C: Call>(
        &self,
        tokens: &ResidualTokens<'_>,
        documents: &ResidualFile,
        queries: Range<usize>,
        call: C,
    ) -> Result<C::Output> {
        let Request { queries: file, options, .. } = *self.request;
        let documents = Residuals::new(tokens, documents, self.found);
        match file.contents().format.element() {
            // Rows are normalised where they are elements.
            Some(ElementType::F16) if options.normalize => {
                self.rows::<f16, f16, C>(&file.tokens(queries)?, &Decoded(documents), call)
            }
            Some(ElementType::F16) => {
                let queries = file.tokens::<f16>(queries)?;
                match self.chosen {
                    Some(ids) => {
                        call.of_residuals(&queries, &Subset::of_residuals(&documents, ids)?)
                    }
                    None => call.of_residuals(&queries, &documents),
                }
            }
            Some(element) => {
                let queries = with_element!(element, T => {
                    file.tokens::<T>(queries)?.convert::<f32>()?.0
                });
                self.rows::<_, f32, C>(&queries, &Decoded(documents), call)
            }
            None => bail!(
                "{} queries cannot be scored against plaid documents; \
                 use the queries' uncompressed embeddings",
                file.contents().format
            ),
        }
    }

    /// Runs a call with the documents that are selected.
    fn rows<Q: ScorableWith<D>, D: Format, C: Call>(
        &self,
        queries: &Tokens<'_, Q>,
        documents: &dyn Source<D>,
        call: C,
    ) -> Result<C::Output> {
        match self.chosen {
            Some(ids) => call.of_rows(queries, &Subset::new(documents, ids)?),
            None => call.of_rows(queries, documents),
        }
    }
}
