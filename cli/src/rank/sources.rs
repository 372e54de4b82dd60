//! Files of documents as the library's sources: rows are checked when they are read, and errors
//! keep what they say of files.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use maxsim::format::{Element, Quantized, Scales};
use maxsim::residual::{BitOrder, ResidualCodec, ResidualSource, ResidualTokens};
use maxsim::streaming::Source;
use maxsim::{TokenLayout, Tokens};

use crate::finite::{Checked, Threads};
use crate::input::{Change, TokenFile};
use crate::residual::ResidualFile;

/// No code stands for more than so many scales, beside its minimum.
const LARGEST_CODE: f32 = 448.0;

/// Tables of this magnitude may have sums that f16 has no number for.
const LARGEST_SUM: f32 = 3e4;

/// What is found out while documents are read.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Bits of the largest magnitude of what was read, where that is looked at.
    largest: Option<AtomicU32>,
    /// The first error, with all that it says.
    error: Mutex<Option<anyhow::Error>>,
}

impl Found {
    /// For who asks for the largest magnitude, too.
    pub fn measuring() -> Found {
        Found { largest: Some(AtomicU32::new(0)), ..Found::default() }
    }

    /// The largest magnitude of what was read, or more; NaN where that is not known.
    pub fn largest(&self) -> f32 {
        self.largest.as_ref().map_or(f32::NAN, |bits| f32::from_bits(bits.load(Ordering::Relaxed)))
    }

    /// The first error of a source, or else the library's.
    pub fn error(&self, error: anyhow::Error) -> anyhow::Error {
        let mut found = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        found.take().unwrap_or(error)
    }

    fn measure(&self, largest: impl FnOnce() -> f32) {
        if let Some(bits) = &self.largest {
            // Bits of numbers of 0 and more have their order, and those of NaN are above.
            bits.fetch_max(largest().to_bits(), Ordering::Relaxed);
        }
    }

    fn keep<T>(&self, result: Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let said = io::Error::other(error.to_string());
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            said
        })
    }
}

/// Embeddings of a file.
pub(super) struct Elements<'a> {
    documents: Checked<'a>,
    file: &'a TokenFile,
    found: &'a Found,
}

impl<'a> Elements<'a> {
    pub fn new(file: &'a TokenFile, allow_infinite: bool, found: &'a Found) -> Elements<'a> {
        Elements { documents: Checked::new(file, "document", allow_infinite), file, found }
    }

    fn read<T: Element>(&self, rows: Range<usize>, threads: Threads) -> Result<Cow<'a, [T]>> {
        self.file.check_unchanged(Change::Content)?;
        let elements = self.documents.element_rows::<T>(rows, threads)?;
        self.found.measure(|| T::largest_magnitude(&elements));
        Ok(elements)
    }
}

impl<T: Element> Source<T> for Elements<'_> {
    fn layout(&self) -> &TokenLayout {
        self.file.layout()
    }

    fn view(&self, rows: Range<usize>) -> io::Result<Option<Cow<'_, [T]>>> {
        self.found.keep(self.read(rows, Threads::All).map(Some))
    }

    fn fill(&self, rows: Range<usize>, to: &mut [T]) -> io::Result<()> {
        let read = self.read(rows, Threads::This);
        self.found.keep(read.map(|elements| to.copy_from_slice(&elements)))
    }
}

/// Codes of a file, and their scales.
pub(super) struct Codes<'a> {
    documents: Checked<'a>,
    file: &'a TokenFile,
    scales: Scales<'a>,
    found: &'a Found,
}

impl<'a> Codes<'a> {
    pub fn new(file: &'a TokenFile, allow_infinite: bool, found: &'a Found) -> Result<Codes<'a>> {
        let documents = Checked::new(file, "document", allow_infinite);
        Ok(Codes { documents, file, scales: file.scales()?, found })
    }

    fn read<F: Quantized>(
        &self,
        rows: Range<usize>,
        threads: Threads,
    ) -> Result<Cow<'a, [F::Stored]>> {
        self.file.check_unchanged(Change::Content)?;
        let codes = self.documents.code_rows::<F>(rows.clone(), &self.scales, threads)?;
        self.found.measure(|| largest_of_codes(&self.scales, rows));
        Ok(codes)
    }
}

impl<F: Quantized> Source<F> for Codes<'_> {
    fn layout(&self) -> &TokenLayout {
        self.file.layout()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        Some(self.scales.clone())
    }

    fn view(&self, rows: Range<usize>) -> io::Result<Option<Cow<'_, [F::Stored]>>> {
        self.found.keep(self.read::<F>(rows, Threads::All).map(Some))
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        let read = self.read::<F>(rows, Threads::This);
        self.found.keep(read.map(|codes| to.copy_from_slice(&codes)))
    }
}

/// A magnitude that no number which codes of some rows stand for is above.
pub(super) fn largest_of_codes(scales: &Scales<'_>, mut rows: Range<usize>) -> f32 {
    let largest = |row| scales.scale(row).abs() * LARGEST_CODE + scales.min(row).abs();
    // NaN of rows that no item has must not be passed over.
    rows.try_fold(0.0f32, |most, row| match largest(row) {
        x if x.is_nan() => Err(x),
        x => Ok(most.max(x)),
    })
    .unwrap_or(f32::NAN)
}

/// Residual-compressed tokens of a file.
pub(super) struct Residuals<'a> {
    tokens: &'a ResidualTokens<'a>,
    file: &'a ResidualFile,
    found: &'a Found,
}

impl<'a> Residuals<'a> {
    pub fn new(
        tokens: &'a ResidualTokens<'a>,
        file: &'a ResidualFile,
        found: &'a Found,
    ) -> Residuals<'a> {
        found.measure(|| {
            let codec = tokens.codec();
            let centroids = f32::largest_magnitude(&codec.centroids().to_f32());
            let sum = centroids + f32::largest_magnitude(codec.bucket_weights());
            if sum < LARGEST_SUM { sum } else { f32::NAN }
        });
        Residuals { tokens, file, found }
    }
}

impl ResidualSource for Residuals<'_> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        self.tokens.codec()
    }

    fn order(&self) -> BitOrder {
        self.tokens.order()
    }

    fn layout(&self) -> &TokenLayout {
        self.tokens.layout()
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        self.found.keep(self.file.check_unchanged(Change::Content))?;
        self.tokens.fill(rows, codes, residuals)
    }
}

/// What residual-compressed tokens decode to.
pub(super) struct Decoded<'a>(pub Residuals<'a>);

impl Decoded<'_> {
    fn read<T: Element>(&self, rows: Range<usize>) -> Result<Tokens<'static, T>> {
        let Residuals { tokens, file, .. } = self.0;
        file.check_unchanged(Change::Content)?;
        let (codec, row_bytes) = (tokens.codec().clone(), tokens.codec().row_bytes());
        let residuals = &tokens.residuals()[rows.start * row_bytes..rows.end * row_bytes];
        // An item, whatever it is: rows are decoded alike.
        let layout = TokenLayout::packed(rows.len(), codec.dim(), &[0, rows.len()])?;
        let codes = &tokens.codes()[rows];
        let part = ResidualTokens::new(codec, codes, residuals, tokens.order(), layout)?;
        Ok(part.decode::<T>()?)
    }
}

impl<T: Element> Source<T> for Decoded<'_> {
    fn layout(&self) -> &TokenLayout {
        self.0.tokens.layout()
    }

    fn fill(&self, rows: Range<usize>, to: &mut [T]) -> io::Result<()> {
        let decoded = self.0.found.keep(self.read::<T>(rows))?;
        to.copy_from_slice(decoded.data());
        Ok(())
    }
}
