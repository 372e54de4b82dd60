//! Documents that are read a part at a time: from memory, from a file, from a program.

pub(crate) mod generated;
pub(crate) mod reader;
pub(crate) mod runs;
pub(crate) mod staged;
pub(crate) mod subset;

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::Tokens;
use super::format::{Format, TokenFormat};
use super::layout::{TokenLayout, check_len};
use super::scales::Scales;
use crate::error::{Error, Result};
use crate::runtime::alloc::fill;
use crate::runtime::pool::Parallel;

/// Rows that a thread of the CPU engine reads at a time.
const ROWS_AT_ONCE: usize = 1 << 12;

/// Documents whose rows a search reads once, from front to back, some at a time and from several
/// threads.
///
/// What is small stays in memory: which rows are whose, a mask, the scales of codes. The rows,
/// which may be more than any memory holds, are written to where the search asks for them.
/// [`Tokens`] are a source, of whatever memory or mapped file they borrow;
/// [`TokenReader`](crate::streaming::TokenReader) reads a file,
/// [`Generated`](crate::streaming::Generated) calls a closure.
///
/// ```
/// use std::ops::Range;
///
/// use maxsim::streaming::{Source, StreamOptions};
/// use maxsim::{Device, TokenLayout, Tokens};
///
/// /// Document i is the token (i, -i).
/// struct Ramp(TokenLayout);
///
/// impl Source<f32> for Ramp {
///     fn layout(&self) -> &TokenLayout {
///         &self.0
///     }
///
///     fn fill(&self, rows: Range<usize>, to: &mut [f32]) -> std::io::Result<()> {
///         for (row, token) in rows.zip(to.chunks_exact_mut(2)) {
///             token.copy_from_slice(&[row as f32, -(row as f32)]);
///         }
///         Ok(())
///     }
/// }
///
/// let ramp = Ramp(TokenLayout::padded(1000, 1, 2)?);
/// assert!(ramp.in_memory().is_none());
/// let query = Tokens::padded(&[2.0f32, 1.0], 1, 1, 2)?;
/// let found = Device::best().search_stream(&query, &ramp, 2, &StreamOptions::default())?;
/// assert!(found.rankings[0].ranked.iter().map(|found| found.id).eq([999, 998]));
/// # Ok::<(), maxsim::Error>(())
/// ```
pub trait Source<F: Format>: Sync {
    /// Shape and items. Documents whose rows lie in their order, one behind the other, are read
    /// fastest: rows between those of neighbours travel with them.
    fn layout(&self) -> &TokenLayout;

    /// A byte per row, 0 where the row is no token. It may be given although the layout has no
    /// mask.
    fn mask(&self) -> Option<&[u8]> {
        None
    }

    /// The scales of all rows, where rows are codes.
    fn scales(&self) -> Option<Scales<'_>> {
        None
    }

    /// All rows, where they are in memory. From [page-locked
    /// memory](crate::Device::page_locked) a GPU takes them without a copy on the host.
    fn in_memory(&self) -> Option<&[F::Stored]> {
        None
    }

    /// Some rows, `[rows.len(), dim]`, where they need not be written anywhere: as they lie in
    /// memory or in a mapped file, say. The CPU engine asks for the rows of each chunk here, once,
    /// before it has them written ([`Source::fill`]). By default those of [`Source::in_memory`].
    ///
    /// # Errors
    /// As [`Source::fill`].
    fn view(&self, rows: Range<usize>) -> io::Result<Option<Cow<'_, [F::Stored]>>> {
        let dim = self.layout().dim();
        Ok(self.in_memory().map(|all| all[rows.start * dim..rows.end * dim].into()))
    }

    /// Writes some rows, `[rows.len(), dim]`. All of `to` must be written: it has rows of an
    /// earlier call. Several threads call this at once, each for other rows. A row is the same
    /// whenever it is asked for: some searches read some rows again, and rely on that.
    ///
    /// # Errors
    /// Whatever reading them gives: the search ends with [`Error::Source`], which has it.
    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()>;
}

impl<F: Format> Source<F> for Tokens<'_, F> {
    fn layout(&self) -> &TokenLayout {
        self.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        self.scales_of_codes().map(Scales::borrowed)
    }

    fn in_memory(&self) -> Option<&[F::Stored]> {
        Some(self.data())
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        let dim = self.layout().dim();
        to.copy_from_slice(&self.data()[rows.start * dim..rows.end * dim]);
        Ok(())
    }
}

impl<F: Format, S: Source<F> + ?Sized> Source<F> for &S {
    fn layout(&self) -> &TokenLayout {
        (**self).layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        (**self).mask()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        (**self).scales()
    }

    fn in_memory(&self) -> Option<&[F::Stored]> {
        (**self).in_memory()
    }

    fn view(&self, rows: Range<usize>) -> io::Result<Option<Cow<'_, [F::Stored]>>> {
        (**self).view(rows)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        (**self).fill(rows, to)
    }
}

/// What a source has beside its rows, checked.
pub(crate) struct Streamed<'a, F: Format> {
    source: &'a dyn Source<F>,
    pub layout: &'a TokenLayout,
    pub mask: Option<&'a [u8]>,
    pub scales: Option<Scales<'a>>,
    pub in_memory: Option<&'a [F::Stored]>,
    /// Set once the scales of all valid rows have been found to be right.
    are_checked: OnceLock<()>,
}

impl<'a, F: Format> Streamed<'a, F> {
    /// Checks what can be checked before rows are read.
    pub(crate) fn new(source: &'a dyn Source<F>) -> Result<Streamed<'a, F>> {
        let (layout, mask, scales) = (source.layout(), source.mask(), source.scales());
        layout.check_read("documents")?;
        check_beside(layout, mask)?;
        let are_codes = TokenFormat::QUANTIZED.contains(&F::FORMAT);
        match &scales {
            Some(scales) if are_codes => scales.check(F::FORMAT, layout.rows())?,
            None if !are_codes => {}
            _ => {
                let say = |has: bool| if has { "scales" } else { "no scales" };
                return Err(Error::Shape {
                    argument: "documents",
                    expected: format!("{} of {} tokens", say(are_codes), F::FORMAT),
                    found: say(scales.is_some()).into(),
                });
            }
        }
        let in_memory = source.in_memory();
        if let Some(rows) = in_memory {
            let expected = layout.rows() * layout.dim();
            check_len("rows", expected, "rows × dim", rows.len())?;
        }
        let are_checked = OnceLock::new();
        Ok(Streamed { source, layout, mask, scales, in_memory, are_checked })
    }

    /// The layout with the mask.
    pub(crate) fn masked_layout(&self) -> Result<Cow<'a, TokenLayout>> {
        masked(self.layout, self.mask)
    }

    /// What the rows are read from.
    pub(crate) fn source(&self) -> &'a dyn Source<F> {
        self.source
    }

    /// Writes some rows, `[rows.len(), dim]`.
    pub(crate) fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> Result<()> {
        self.source.fill(rows.clone(), to).map_err(failed(rows))
    }

    /// Some rows where they lie, if they need not be written anywhere.
    fn view(&self, rows: Range<usize>) -> Result<Option<Cow<'_, [F::Stored]>>> {
        let len = rows.len() * self.layout.dim();
        let found = self.source.view(rows.clone()).map_err(failed(rows))?;
        if let Some(found) = &found {
            check_len("rows", len, "rows × dim", found.len())?;
        }
        Ok(found)
    }

    /// Refuses scales of valid rows that are negative or infinite, of which one is among `rows`.
    pub(crate) fn check_scales(&self, rows: Range<usize>) -> Result<()> {
        let Some(scales) = &self.scales else { return Ok(()) };
        let is_wrong = |row: usize| !scales.is_right(row);
        if self.are_checked.get().is_none() && rows.into_iter().any(is_wrong) {
            // It may be the scale of a row that no document has.
            scales.check_values(self.layout, self.mask)?;
            let _ = self.are_checked.set(());
        }
        Ok(())
    }

    /// Some consecutive items, whose rows are read into `memory` where they are not in memory.
    pub(crate) fn part<'b>(
        &'b self,
        items: Range<usize>,
        memory: &'b mut Vec<F::Stored>,
    ) -> Result<Tokens<'b, F>> {
        let (rows, layout) = items_of(self.layout, self.mask, items)?;
        let dim = layout.dim();
        let data = match self.view(rows.clone())? {
            Some(data) => data,
            None => {
                fill(memory, rows.len() * dim, bytemuck::Zeroable::zeroed())?;
                each_part(memory, ROWS_AT_ONCE * dim, &|i, part| {
                    let first = rows.start + i * ROWS_AT_ONCE;
                    self.fill(first..first + part.len() / dim, part)
                })?;
                (&memory[..]).into()
            }
        };
        // A source may know better what is wrong with its rows.
        self.check_scales(rows.clone())?;
        let scales = self.scales.as_ref().map(|scales| scales.of_rows(rows.clone()));
        let mask = self.mask.map(|mask| &mask[rows]);
        Tokens::assemble(data, scales, layout, (mask, None))
    }
}

/// Does `each` with every part of `len` elements and its number, until there is an error. Of the
/// elements' type alone, so that programs have it few times.
fn each_part<V: Send>(
    elements: &mut [V],
    len: usize,
    each: &(dyn Fn(usize, &mut [V]) -> Result<()> + Sync),
) -> Result<()> {
    let parts = elements.par_chunks_mut(len).enumerate();
    let each = |(i, part): (usize, &mut [V])| each(i, part);
    Parallel::new().share(|min_len| parts.with_min_len(min_len).try_for_each(each))
}

/// The error of a source that did not give rows.
fn failed(rows: Range<usize>) -> impl FnOnce(io::Error) -> Error {
    let (first_row, n_rows) = (rows.start as u64, rows.len() as u64);
    move |source| Error::Source { first_row, n_rows, source }
}

/// A layout with the mask of its rows, where there is one.
pub(crate) fn masked<'a>(
    layout: &'a TokenLayout,
    mask: Option<&[u8]>,
) -> Result<Cow<'a, TokenLayout>> {
    match mask {
        Some(mask) => Ok(Cow::Owned(layout.clone().with_mask(mask)?)),
        None => Ok(Cow::Borrowed(layout)),
    }
}

/// Consecutive items with their mask: the rows from their first to their last token, and how they
/// lie there.
pub(crate) fn items_of(
    layout: &TokenLayout,
    mask: Option<&[u8]>,
    items: Range<usize>,
) -> Result<(Range<usize>, TokenLayout)> {
    let (rows, layout) = layout.items(items)?;
    match mask {
        Some(mask) => Ok((rows.clone(), layout.with_mask(&mask[rows])?)),
        None => Ok((rows, layout)),
    }
}

/// Refuses a mask of another length, and one that is missing; and weights, which documents have
/// none of: parts of the rows would be without them.
pub(crate) fn check_beside(layout: &TokenLayout, mask: Option<&[u8]>) -> Result<()> {
    layout.check_unweighted("of documents", "weights are those of query tokens")?;
    match mask {
        Some(mask) => check_len("mask", layout.rows(), "one byte per row", mask.len()),
        None if layout.is_masked() => Err(Error::Shape {
            argument: "documents",
            expected: "a source with the mask that its layout was made with".into(),
            found: "a source without a mask".into(),
        }),
        None => Ok(()),
    }
}
