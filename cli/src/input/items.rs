//! Some items of a file.

use std::ops::Range;

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ranges_where_items_follow_each_other() {
        assert_eq!(Items::of(&[3, 4, 5]), Items::Range(3..6));
        assert_eq!(Items::of(&[3, 5]), Items::Listed(&[3, 5]));
        let items = Items::of(&[1, 2, 5, 6, 9]);
        assert_eq!(items.part(2..4), Items::Range(5..7));
        assert_eq!(Items::Range(4..9).part(1..3), Items::Range(5..7));
        assert!(items.iter().eq([1, 2, 5, 6, 9]));
    }
}
