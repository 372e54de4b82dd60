//! Rows that a program makes when a search asks for them.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

use super::Source;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// A [`Source`] whose rows a closure writes: decoded, received, computed.
///
/// ```
/// use maxsim::streaming::{Generated, StreamOptions};
/// use maxsim::{Device, TokenLayout, Tokens};
///
/// // Document i is the token (i / 10).
/// let layout = TokenLayout::padded(20, 1, 1)?;
/// let documents = Generated::<f32, _>::new(layout, |rows, to| {
///     for (row, x) in rows.zip(to) {
///         *x = row as f32 / 10.0;
///     }
///     Ok(())
/// });
/// // All but the last one.
/// let documents = documents.with_mask((0..20).map(|row| u8::from(row < 19)).collect::<Vec<u8>>());
/// let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
/// let found = Device::best().search_stream(&query, &documents, 1, &StreamOptions::default())?;
/// assert_eq!(found.rankings[0].ranked[0].id, 18);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[must_use]
pub struct Generated<'a, F: Format, G> {
    layout: TokenLayout,
    mask: Option<Cow<'a, [u8]>>,
    scales: Option<Scales<'a>>,
    fill: G,
    format: PhantomData<fn() -> F>,
}

/// Prints everything but the closure and the scales.
impl<F: Format, G> fmt::Debug for Generated<'_, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generated")
            .field("format", &F::FORMAT)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<'a, F, G> Generated<'a, F, G>
where
    F: Format,
    G: Fn(Range<usize>, &mut [F::Stored]) -> io::Result<()> + Sync,
{
    /// Rows that `fill` writes, as [`Source::fill`] says.
    pub fn new(layout: TokenLayout, fill: G) -> Generated<'a, F, G> {
        Generated { layout, mask: None, scales: None, fill, format: PhantomData }
    }

    /// Switches rows off: a byte per row, 0 where it is no token.
    pub fn with_mask(self, mask: impl Into<Cow<'a, [u8]>>) -> Generated<'a, F, G> {
        Generated { mask: Some(mask.into()), ..self }
    }

    /// Gives codes their scales, of all rows.
    ///
    /// ```
    /// use maxsim::format::{Int8, Scales};
    /// use maxsim::streaming::{Generated, Source};
    /// use maxsim::TokenLayout;
    ///
    /// let layout = TokenLayout::padded(2, 1, 1)?;
    /// let codes = Generated::<Int8, _>::new(layout, |_, to| Ok(to.fill(127)));
    /// let codes = codes.with_scales(Scales::F32(vec![0.5, 0.25].into()));
    /// assert_eq!(codes.scales().map(|scales| scales.scale(1)), Some(0.25));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn with_scales(self, scales: Scales<'a>) -> Generated<'a, F, G> {
        Generated { scales: Some(scales), ..self }
    }
}

impl<F, G> Source<F> for Generated<'_, F, G>
where
    F: Format,
    G: Fn(Range<usize>, &mut [F::Stored]) -> io::Result<()> + Sync,
{
    fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask.as_deref()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        self.scales.as_ref().map(Scales::borrowed)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        (self.fill)(rows, to)
    }
}
