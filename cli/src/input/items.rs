//! Some items of a file, and how they are read together: as they lie where they follow each other,
//! and copied where they do not.

use std::ops::Range;

use anyhow::{Result, bail};
use maxsim::format::{Quantized, Scales};
use maxsim::{TokenLayout, Tokens};

use super::ReadItems;

/// Items of a file, by rising number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items<'a> {
    /// Items that follow each other.
    Range(Range<usize>),
    /// Items by their numbers, which rise.
    Listed(&'a [u32]),
}

impl<'a> Items<'a> {
    /// Items by their numbers, which rise.
    pub fn of(ids: &'a [u32]) -> Items<'a> {
        match (ids.first(), ids.last()) {
            (Some(&first), Some(&last)) if (last - first) as usize + 1 == ids.len() => {
                Items::Range(first as usize..last as usize + 1)
            }
            _ => Items::Listed(ids),
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        match self {
            Items::Range(items) => items.len(),
            Items::Listed(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of one of them.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn get(&self, i: usize) -> usize {
        match self {
            Items::Range(items) => {
                assert!(i < items.len(), "item {i} of {}", items.len());
                items.start + i
            }
            Items::Listed(ids) => ids[i] as usize,
        }
    }

    /// Some of them, one after the other.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn part(&self, places: Range<usize>) -> Items<'a> {
        match self {
            Items::Range(items) => {
                assert!(places.end <= items.len(), "item {} of {}", places.end, items.len());
                Items::Range(items.start + places.start..items.start + places.end)
            }
            Items::Listed(ids) => Items::of(&ids[places]),
        }
    }

    /// Their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Rows that they have, which are as many as are read.
    fn n_rows(&self, layout: &TokenLayout) -> usize {
        self.iter().map(|item| layout.item_len(item)).sum()
    }

    /// Ranges of items that follow each other.
    pub(crate) fn runs(&self) -> Vec<Range<usize>> {
        match self {
            Items::Range(items) => vec![items.clone()],
            Items::Listed(ids) => {
                let runs = ids.chunk_by(|&a, &b| a + 1 == b);
                runs.map(|run| run[0] as usize..run[0] as usize + run.len()).collect()
            }
        }
    }
}

/// Reads some items of a file of codes.
pub(crate) fn codes<'a, F: Quantized>(
    file: impl ReadItems<'a>,
    items: &Items<'_>,
) -> Result<Tokens<'a, F>> {
    if let Items::Range(items) = items {
        return file.codes_of(items.clone());
    }
    let layout = file.file().layout();
    let dim = layout.dim();
    let mut rows: Vec<F::Stored> = Vec::with_capacity(items.n_rows(layout) * dim);
    let mut scales: Option<Scales<'static>> = None;
    let mut offsets = vec![0i64];
    for run in items.runs() {
        let part = file.codes_of::<F>(run)?;
        for of_item in rows_of(part.layout()) {
            rows.extend_from_slice(&part.data()[of_item.start * dim..of_item.end * dim]);
            offsets.push((rows.len() / dim) as i64);
            extend(&mut scales, part.scales(), of_item)?;
        }
    }
    let layout = TokenLayout::packed(rows.len() / dim, dim, &offsets)?;
    Ok(Tokens::from_codes(rows, scales.unwrap_or(Scales::Tensor(1.0)), layout)?)
}

/// The rows of each item in turn. No other row of theirs is off: a file's masks are in its layout.
fn rows_of(layout: &TokenLayout) -> impl Iterator<Item = Range<usize>> {
    (0..layout.n_items()).map(|item| layout.item_rows(item))
}

/// Adds the scales of some rows.
fn extend(all: &mut Option<Scales<'static>>, part: &Scales<'_>, rows: Range<usize>) -> Result<()> {
    let all = all.get_or_insert_with(|| match part {
        Scales::F32(_) => Scales::F32(Vec::new().into()),
        Scales::Affine { .. } => {
            Scales::Affine { scales: Vec::new().into(), mins: Vec::new().into() }
        }
        Scales::Tensor(scale) => Scales::Tensor(*scale),
        _ => Scales::F16(Vec::new().into()),
    });
    match (all, part) {
        (Scales::F16(all), Scales::F16(part)) => all.to_mut().extend_from_slice(&part[rows]),
        (Scales::F32(all), Scales::F32(part)) => all.to_mut().extend_from_slice(&part[rows]),
        (Scales::Tensor(_), Scales::Tensor(_)) => {}
        (Scales::Affine { scales, mins }, Scales::Affine { scales: of_part, mins: more }) => {
            scales.to_mut().extend_from_slice(&of_part[rows.clone()]);
            mins.to_mut().extend_from_slice(&more[rows]);
        }
        _ => bail!("the scales are stored in an unknown way"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ranges_where_items_follow_each_other() {
        assert_eq!(Items::of(&[3, 4, 5]), Items::Range(3..6));
        assert_eq!(Items::of(&[3, 5]), Items::Listed(&[3, 5]));
        let items = Items::of(&[1, 2, 5, 6, 9]);
        assert_eq!(items.runs(), [1..3, 5..7, 9..10]);
        assert_eq!(items.part(2..4), Items::Range(5..7));
        assert_eq!(Items::Range(4..9).part(1..3), Items::Range(5..7));
        assert!(items.iter().eq([1, 2, 5, 6, 9]));
    }
}
