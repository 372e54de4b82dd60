//! The two sides of every call of a run: queries in the format that documents are scored with, and
//! documents as they are read.

use std::ops::Range;

use anyhow::{Result, bail};
use half::f16;
use maxsim::format::{AnyDeviceTokens, AnyTokensRef, ElementType, TokenFormat, with_element};
use maxsim::residual::ResidualTokens;
use maxsim::{AnyTokens, Device};

use crate::documents::Documents;
use crate::finite::Checked;
use crate::input::{Change, Items, ReadItems};
use crate::rank::queries::query_format;
use crate::rank::stream::Request;
use crate::residual::{decode, of_items};

/// Reads some documents.
type Read<'a> = Box<dyn Fn(&Items<'_>) -> Result<Part<'a>> + 'a>;

/// Queries, and how documents are read for them.
pub(super) struct Sides<'a> {
    /// Queries, in the format that documents are scored with.
    pub queries: AnyTokens<'a>,
    /// Format that documents are read in.
    pub format: TokenFormat,
    /// Reads some documents, which are checked to be finite.
    read: Read<'a>,
    documents: &'a Documents<'a>,
}

/// One side of a call.
pub(super) enum Part<'a> {
    /// Uploaded for the call.
    Tokens(AnyTokens<'a>),
    /// There already.
    Handle(AnyDeviceTokens),
}

impl<'a> From<&'a Part<'a>> for AnyTokensRef<'a> {
    fn from(part: &'a Part<'a>) -> Self {
        match part {
            Part::Tokens(tokens) => AnyTokensRef::Host(tokens),
            Part::Handle(handle) => AnyTokensRef::Device(handle),
        }
    }
}

impl<'a> Sides<'a> {
    /// Reads some documents, which are checked to be finite.
    ///
    /// # Errors
    /// Where the file has changed since it was opened: it may be shorter than it was, and a mapping
    /// of what is gone ends the process.
    pub fn read(&self, items: &Items<'_>) -> Result<Part<'a>> {
        self.documents.check_unchanged(Change::Content)?;
        (self.read)(items)
    }

    /// The sides of calls of a range of queries.
    pub fn new(request: &Request<'a>, queries: Range<usize>) -> Result<Sides<'a>> {
        let Request { queries: file, documents: all, query_scales, allow_infinite, .. } = *request;
        let documents = match all {
            Documents::Tokens(documents) => *documents,
            Documents::Residual(tokens, _) => return Sides::decoded(request, tokens, queries),
        };
        let (of_queries, format) = (file.contents().format, documents.contents().format);
        let of_queries = query_format(of_queries, format);
        // The CPU has an engine for all formats that go together.
        if !Device::cpu().can_score(of_queries, format) {
            bail!(
                "{of_queries} queries cannot be scored against {format} documents; \
                 use the queries' uncompressed embeddings"
            );
        }
        let queries = match file.any_tokens(queries)? {
            queries if queries.format() == of_queries => queries,
            queries => queries.quantize(of_queries, query_scales)?,
        };
        let documents = Checked::new(documents, "document", allow_infinite);
        let read = move |items: &Items<'_>| documents.any_items(items).map(Part::Tokens);
        Ok(Sides { queries, format, read: Box::new(read), documents: all })
    }

    /// The sides of residual-compressed documents: compressed for f16 queries, and decoded to f32
    /// for others. As bf16 they would keep 8 bits of what they decode to; bf16 queries lose nothing
    /// as f32.
    fn decoded(
        request: &Request<'a>,
        tokens: &'a ResidualTokens<'a>,
        queries: Range<usize>,
    ) -> Result<Sides<'a>> {
        let Request { queries: file, device, options, .. } = *request;
        let queries: AnyTokens<'_> = match file.contents().format.element() {
            None | Some(ElementType::F16 | ElementType::F32) => file.any_tokens(queries)?,
            Some(element) => with_element!(element, T => {
                file.tokens::<T>(queries)?.convert::<f32>()?.0.into()
            }),
        };
        let of_queries = queries.format();
        let (format, read): (_, Read<'a>) = match of_queries.element() {
            // Rows are normalised where they are elements.
            Some(ElementType::F16) if options.normalize => {
                let read = |items: &Items<'_>| decode::<f16>(tokens, items);
                (of_queries, Box::new(move |items| Ok(Part::Tokens(read(items)?.into()))))
            }
            Some(ElementType::F16) => {
                let upload = |items: &Items<'_>| {
                    let part = of_items(tokens, items)?;
                    Ok(Part::Handle(device.upload_residual_any(&part, ElementType::F16)?))
                };
                (TokenFormat::Residual(ElementType::F16), Box::new(upload))
            }
            Some(_) => {
                let read = |items: &Items<'_>| decode::<f32>(tokens, items);
                (of_queries, Box::new(move |items| Ok(Part::Tokens(read(items)?.into()))))
            }
            None => bail!(
                "{of_queries} queries cannot be scored against plaid documents; \
                 use the queries' uncompressed embeddings"
            ),
        };
        Ok(Sides { queries, format, read, documents: request.documents })
    }
}
