//! Stream-K shares of contiguous documents: where units begin and end.
//!
//! Documents of one length that are one run of rows are counted in *steps* of [`PRODUCT_ROWS`]
//! rows, from each document's start on, the last step of a document with what is left: no unit's
//! end splits a product. Units are equal numbers of steps.

use crate::abi::layout::contiguous::PRODUCT_ROWS;

/// The first step of a unit, where each has `per_unit` and the first `n_longer` one more.
#[inline(always)]
pub const fn first_step(unit: u32, per_unit: u32, n_longer: u32) -> u32 {
    unit * per_unit + if unit < n_longer { unit } else { n_longer }
}

/// Documents and rows of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first document that ends in the unit, if any does.
    pub first: u32,
    /// The document behind the last that ends in it.
    pub last: u32,
    /// Whether the first one began in a unit before.
    pub is_end: bool,
    /// First row.
    pub start: u32,
    /// First row of the partial document that continues in the next unit; `end` where there is
    /// none.
    pub partial: u32,
    /// One past the last row.
    pub end: u32,
}

impl Share {
    /// Divides steps from `begin` up to `end`, of documents of `item_len` rows and `document_steps`
    /// steps, of which `inverse` is that for steps up to the last one's
    /// ([`crate::abi::params::inverse`]); neither is 0.
    #[inline(always)]
    pub const fn new(
        [begin, end]: [u32; 2],
        [document_steps, inverse]: [u32; 2],
        item_len: u32,
    ) -> Share {
        let first = ((begin as u64 * inverse as u64) >> 32) as u32;
        let last = ((end as u64 * inverse as u64) >> 32) as u32;
        // Rows that a document lacks of its steps.
        let lacks = document_steps * PRODUCT_ROWS as u32 - item_len;
        let is_end = first * document_steps != begin;
        let start = begin * PRODUCT_ROWS as u32 - first * lacks;
        let end = end * PRODUCT_ROWS as u32 - last * lacks;
        let of_last = last * item_len;
        Share {
            first,
            last,
            is_end,
            start,
            partial: if start > of_last { start } else { of_last },
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::abi::params::inverse;

    #[test]
    fn units_have_every_row_once_and_end_between_products() {
        for (n_documents, len, n_units) in [
            (1, 17, 2),
            (1, 9000, 264),
            (2, 130, 18),
            (3, 31, 2),
            (20, 8000, 264),
            (1000, 300, 264),
            (1000, 1024, 264),
            (264, 40, 264),
            (3000, 33, 100),
            (7, 8191, 13),
            (5, 48, 15),
        ] {
            let of_document = len / 16 + u32::from(len % 16 > 0);
            let n_steps = n_documents * of_document;
            let division = [of_document, inverse(of_document, n_steps)];
            let (per_unit, n_longer) = (n_steps / n_units, n_steps % n_units);
            let step = |unit| first_step(unit, per_unit, n_longer);
            let shares: Vec<Share> = (0..n_units)
                .map(|unit| Share::new([step(unit), step(unit + 1)], division, len))
                .collect();
            assert_eq!((shares[0].start, shares[0].first, shares[0].is_end), (0, 0, false));
            for (share, next) in shares.iter().zip(&shares[1..]) {
                // One behind the other.
                assert_eq!((share.end, share.last), (next.start, next.first));
                assert_eq!(share.partial < share.end, next.is_end);
            }
            let last = shares[shares.len() - 1];
            assert_eq!(
                (last.end, last.last, last.partial),
                (n_documents * len, n_documents, last.end)
            );
            for Share { first, last, is_end, start, partial, end } in shares {
                assert!(start <= partial && partial <= end && start < end);
                // Only the first of a document's partials begins with it, and all but the last are
                // whole products.
                assert_eq!(is_end, start % len != 0);
                assert_eq!((start % len % 16, (end - partial) % 16), (0, 0));
                // Every partial that is not carried into the next share ends at a document
                // boundary.
                assert_eq!((first, last), (start / len, end / len));
                assert!(partial == end || partial == start || partial % len == 0);
                assert!(partial == start || partial == last * len);
            }
        }
    }
}
