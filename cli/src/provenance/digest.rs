//! Digests of whole files, a run of documents at a time.

use std::ops::Range;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use maxsim::digest::{TokenDigest, TokenHasher};
use maxsim::format::{Element, ElementType, Quantized, ScaleType, TokenFormat, with_format};
use maxsim::search::first_row_beyond;
use maxsim::{TokenLayout, Tokens};

use super::Notes;
use crate::input::TokenFile;
use crate::progress::progress_bar;

/// The digests of embeddings and of the codes that are made of them, row by row.
pub(crate) struct Digests {
    element: ElementType,
    source: TokenHasher,
    codes: TokenHasher,
}

impl Digests {
    /// Starts digests without rows.
    pub fn new<T: Element>(format: TokenFormat, scales: ScaleType, dim: usize) -> Digests {
        let source = TokenHasher::of_elements(T::TYPE, dim);
        Digests { element: T::TYPE, source, codes: TokenHasher::of_codes(format, scales, dim) }
    }

    /// The next rows, of which some belong to items.
    pub fn rows<T: Element, F: Quantized>(
        &mut self,
        elements: &Tokens<'_, T>,
        codes: &Tokens<'_, F>,
        is_used: &[bool],
    ) {
        let dim = elements.layout().dim();
        let mut start = 0;
        for run in is_used.chunk_by(|a, b| a == b) {
            let rows = start..start + run.len();
            start = rows.end;
            if run[0] {
                let places = rows.start * dim..rows.end * dim;
                let elements = &elements.data()[places.clone()];
                let (source, of_codes) = (&mut self.source, &mut self.codes);
                rayon::join(
                    || source.rows(bytemuck::cast_slice(elements)),
                    || of_codes.rows(bytemuck::cast_slice(&codes.data()[places])),
                );
                self.codes.scales_of_rows(codes.scales(), rows);
            }
        }
        if codes.scales().storage() == ScaleType::Tensor {
            self.codes.scales_of_rows(codes.scales(), 0..0);
        }
    }

    /// Makes the notes of a file of the codes, whose rows were those of `file`.
    pub fn finish(mut self, file: &TokenFile, is_used: &[bool]) -> Notes {
        let layout = file.layout();
        let used = |item: usize| is_used[layout.item_rows(item)].iter().filter(|used| **used);
        let counts = (0..layout.n_items()).map(|item| used(item).count() as u64);
        self.source.counts(counts.clone());
        self.codes.counts(counts);
        let source = self.source.finish();
        Notes {
            element: self.element.name().to_owned(),
            source,
            identity: file.identity(),
            codes: Some(self.codes.finish_codes(&source)),
            ids: None,
        }
    }
}

/// Elements that are looked at at once.
const CHUNK_LEN: usize = 1 << 24;

/// The digest of a file of embeddings.
pub(super) fn of_elements(file: &TokenFile) -> Result<TokenDigest> {
    fn of<T: Element>(file: &TokenFile) -> Result<TokenDigest> {
        let mut hasher = TokenHasher::of_elements(T::TYPE, file.layout().dim());
        for_items(file.layout(), "documents to verify", |items| {
            hasher.tokens(&file.tokens::<T>(items)?);
            Ok(true)
        })?;
        Ok(hasher.finish())
    }
    with_format!(file.contents().format, {
        element T => of::<T>(file),
        other => bail!("{other} tokens are no embeddings"),
    })
}

/// The digest of a file of codes that were made of embeddings with the digest `source`.
pub(super) fn of_codes(file: &TokenFile, source: &TokenDigest) -> Result<TokenDigest> {
    fn of<F: Quantized>(file: &TokenFile, source: &TokenDigest) -> Result<TokenDigest> {
        let storage = file.codes::<F>(0..0)?.scales().storage();
        let mut hasher = TokenHasher::of_codes(F::FORMAT, storage, file.layout().dim());
        for_items(file.layout(), "compressed documents to verify", |items| {
            hasher.tokens(&file.codes::<F>(items)?);
            Ok(true)
        })?;
        Ok(hasher.finish_codes(source))
    }
    with_format!(file.contents().format, {
        codes F => of::<F>(file, source),
        other => bail!("{other} tokens are no codes with scales"),
    })
}

/// The first token, by document and place in it, that is further from its codes than bounds count
/// with.
pub(super) fn first_other_row(
    screen: &TokenFile,
    documents: &TokenFile,
) -> Result<Option<[usize; 2]>> {
    fn of<F: Quantized, T: Element>(
        screen: &TokenFile,
        documents: &TokenFile,
    ) -> Result<Option<[usize; 2]>> {
        let mut found = None;
        for_items(documents.layout(), "documents to compare", |items| {
            let (codes, tokens) =
                (screen.codes::<F>(items.clone())?, documents.tokens::<T>(items.clone())?);
            found = first_row_beyond(&codes, &tokens)?.map(|[item, row]| [items.start + item, row]);
            Ok(found.is_none())
        })?;
        Ok(found)
    }
    fn of_codes<F: Quantized>(
        screen: &TokenFile,
        documents: &TokenFile,
    ) -> Result<Option<[usize; 2]>> {
        with_format!(documents.contents().format, {
            element T => of::<F, T>(screen, documents),
            other => bail!("{other} tokens are no embeddings"),
        })
    }
    with_format!(screen.contents().format, {
        codes F => of_codes::<F>(screen, documents),
        other => bail!("{other} tokens are no codes with scales"),
    })
}

/// Visits all items, in ranges of a number of elements, until `take` has enough.
fn for_items(
    layout: &TokenLayout,
    of: &'static str,
    mut take: impl FnMut(Range<usize>) -> Result<bool>,
) -> Result<()> {
    let bar: ProgressBar = progress_bar(layout.n_items(), of);
    let mut start = 0;
    while start < layout.n_items() {
        let mut end = start;
        let mut left = CHUNK_LEN;
        while end < layout.n_items() {
            let len = layout.item_len(end) * layout.dim();
            if end > start && len > left {
                break;
            }
            left = left.saturating_sub(len);
            end += 1;
        }
        if !take(start..end)? {
            break;
        }
        bar.inc((end - start) as u64);
        start = end;
    }
    bar.finish_and_clear();
    Ok(())
}
