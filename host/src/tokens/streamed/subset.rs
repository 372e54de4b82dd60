//! Some items of a source, as a source of their own.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;

use super::runs::RowRuns;
use super::{Source, Streamed};
use crate::error::{Error, Result};
use crate::runtime::alloc::reserve;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// Some items of a [`Source`], or of a [`ResidualSource`](crate::residual::ResidualSource): no
/// other rows are read. A filter, for example, or the candidates of an earlier stage.
///
/// Items are numbered by their place among those that were chosen, so that `ids[found.id]` is what
/// a ranking has found. Ids rise, so that ties stay in the order of the source.
///
/// ```
/// use maxsim::streaming::{StreamOptions, Subset};
/// use maxsim::{Device, Tokens};
///
/// let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
/// let documents = Tokens::padded(&[0.5f32, 4.0, 2.0, 1.0], 4, 1, 1)?;
/// let ids = [0, 2, 3];
/// let subset = Subset::new(&documents, &ids)?;
/// let found = Device::best().search_stream(&query, &subset, 1, &StreamOptions::default())?;
/// let best = found.rankings[0].ranked[0];
/// assert_eq!((ids[best.id as usize], best.score), (2, 2.0));
/// // Ids that do not rise, or that there are not.
/// assert!(Subset::new(&documents, &[2, 2]).is_err() && Subset::new(&documents, &[4]).is_err());
/// # Ok::<(), maxsim::Error>(())
/// ```
#[must_use]
pub struct Subset<'a, S: ?Sized> {
    source: &'a S,
    layout: TokenLayout,
    mask: Option<Vec<u8>>,
    scales: Option<Scales<'static>>,
    rows: RowRuns,
}

/// Prints the layout.
impl<S: ?Sized> fmt::Debug for Subset<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subset").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl<'a, S: ?Sized> Subset<'a, S> {
    /// The items of a source with these ids, which rise.
    ///
    /// # Errors
    /// [`Error::Id`] for an item that there is not, [`Error::Offset`] where ids do not rise,
    /// [`Error::TooLarge`] where the items have more rows than a layout has room for,
    /// [`Error::HostMemory`]. Those of the source's layout, mask and scales.
    pub fn new<F: Format>(source: &'a S, ids: &[u32]) -> Result<Subset<'a, S>>
    where
        S: Source<F>,
    {
        let all = Streamed::new(&source)?;
        let subset = Subset::of_rows(source, all.layout, all.mask, ids)?;
        let scales = all.scales.map(|scales| scales.gathered(&subset.rows)).transpose()?;
        Ok(Subset { scales, ..subset })
    }

    /// The items of a source of this layout and mask, which are checked, without scales.
    pub(crate) fn of_rows(
        source: &'a S,
        layout: &TokenLayout,
        mask: Option<&[u8]>,
        ids: &[u32],
    ) -> Result<Subset<'a, S>> {
        check_ids(ids, layout.n_items())?;
        let mut offsets = Vec::new();
        reserve(&mut offsets, ids.len() + 1)?;
        offsets.push(0);
        let mut end = 0;
        for &id in ids {
            end += layout.item_len(id as usize);
            offsets.push(end);
        }
        let own = TokenLayout::packed(end, layout.dim(), &offsets)?;
        let mut rows = RowRuns::default();
        ids.iter().try_for_each(|&id| rows.push(layout.item_rows(id as usize)))?;
        let mask = mask.map(|mask| rows.gathered(mask)).transpose()?;
        Ok(Subset { source, layout: own, mask, scales: None, rows })
    }

    /// The source that has all items.
    pub(crate) fn source(&self) -> &'a S {
        self.source
    }

    pub(crate) fn own_layout(&self) -> &TokenLayout {
        &self.layout
    }

    pub(crate) fn own_mask(&self) -> Option<&[u8]> {
        self.mask.as_deref()
    }

    /// The rows of the source that some rows are, with their places among those.
    pub(crate) fn parts(
        &self,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut place = 0;
        self.rows.stored(rows).map(move |stored| {
            let first = place;
            place += stored.len();
            (stored, first..place)
        })
    }
}

/// Refuses ids that do not rise, and those of no item.
fn check_ids(ids: &[u32], n_items: usize) -> Result<()> {
    for (index, &id) in ids.iter().enumerate() {
        if id as usize >= n_items {
            return Err(Error::Id { argument: "ids", index, found: id.into(), n_items });
        }
        if let Some(before) = index.checked_sub(1).map(|before| ids[before])
            && before >= id
        {
            let expected = format!("an id above {before}: ids rise");
            return Err(Error::Offset { argument: "ids", index, expected, found: id.into() });
        }
    }
    Ok(())
}

impl<F: Format, S: Source<F> + ?Sized> Source<F> for Subset<'_, S> {
    fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.own_mask()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        self.scales.as_ref().map(Scales::borrowed)
    }

    fn view(&self, rows: Range<usize>) -> io::Result<Option<Cow<'_, [F::Stored]>>> {
        let mut parts = self.parts(rows);
        match (parts.next(), parts.next()) {
            (Some((rows, _)), None) => self.source.view(rows),
            _ => Ok(None),
        }
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        let dim = self.layout.dim();
        let fill = |(rows, place): (Range<usize>, Range<usize>)| {
            self.source.fill(rows, &mut to[place.start * dim..place.end * dim])
        };
        self.parts(rows).try_for_each(fill)
    }
}
