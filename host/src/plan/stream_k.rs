//! Stream-K shares of contiguous documents of one length: a pure function of shapes.
//!
//! A CTA has whole documents, or one equal share of all token rows, whose ends may lie within
//! documents. It publishes the partial maxima of a document that continues in the next share, for
//! the CTA that has the document's end. Whole documents stay where their shares are equal enough.
//! The thresholds were measured (docs/decisions/forward-schedules.md).

use maxsim_kernels::abi::layout::contiguous::{PRODUCT_ROWS, QUERY_ROWS};
use maxsim_kernels::abi::params::{N_PARTIAL_ROWS, inverse};

/// CTAs a multiprocessor that share the rows of a cross product. A third one would fit, and does
/// better where queries have documents of their own (docs/decisions/short-queries.md).
pub(crate) const BLOCKS_OF_A_CROSS: usize = 2;

/// CTAs a multiprocessor where they have equal shares of at least [`ROWS_OF_THREE_MIN`] rows.
const BLOCKS_OF_SHARES: usize = 3;

/// Rows of a share, at least, of three CTAs a multiprocessor: with fewer rows two are faster.
const ROWS_OF_THREE_MIN: u64 = 700;

/// Divisor of the mean share: the longest share of whole documents must exceed the mean by at least
/// mean / 32. Equal shares cost a little, which one document more among many does not repay.
const SAVED_PART_MIN: u64 = 32;

/// Rows of the mean share, at least, where there are no fewer documents than CTAs.
const SHARE_ROWS_MIN: u64 = 128;

/// Rows by which the longest share must be above the mean where there are fewer documents than
/// CTAs: those that have one read faster, as memory's rate is theirs alone.
const SAVED_ROWS_MIN_OF_FEW: u64 = 640;

/// Units of equal numbers of steps, [`PRODUCT_ROWS`] rows each but for the last of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Steps of a document.
    pub document_steps: u32,
    /// Steps of a unit; the first `n_longer` have one more.
    pub per_unit: u32,
    pub n_longer: u32,
    pub n_units: u32,
}

impl Shares {
    /// Divides `n_documents` of `len` tokens each among the multiprocessors; `None` where whole
    /// documents do as well.
    pub(crate) fn new(n_documents: u32, len: u32, n_multiprocessors: usize) -> Option<Shares> {
        let blocks = most_blocks(n_multiprocessors * BLOCKS_OF_A_CROSS);
        let longest = u64::from(n_documents.div_ceil(blocks)) * u64::from(len);
        let n_rows = u64::from(n_documents) * u64::from(len);
        let mean = n_rows / u64::from(blocks);
        let saved = longest - mean;
        let are_unequal = match n_documents < blocks {
            true => saved >= SAVED_ROWS_MIN_OF_FEW,
            false => saved > 0 && mean >= SHARE_ROWS_MIN,
        };
        if !are_unequal || saved < mean / SAVED_PART_MIN {
            return None;
        }
        let n_resident = blocks_of_shares(n_rows, n_multiprocessors);
        Shares::of(n_documents, len, n_multiprocessors * n_resident)
    }

    /// Divides documents into equal shares without a comparison with whole documents; `None` where
    /// the kernel cannot divide by a document's steps.
    pub(crate) fn of(n_documents: u32, len: u32, n_blocks: usize) -> Option<Shares> {
        let document_steps = len.div_ceil(PRODUCT_ROWS as u32);
        let n_steps = n_documents.checked_mul(document_steps)?;
        // The kernel divides by multiplying.
        if document_steps < 2 || inverse(document_steps, n_steps) == 0 {
            return None;
        }
        let n_units = most_blocks(n_blocks).min(n_steps / STEPS_MIN).max(1);
        let (per_unit, n_longer) = (n_steps / n_units, n_steps % n_units);
        Some(Shares { document_steps, per_unit, n_longer, n_units })
    }

    /// Units that have some of a document.
    pub(crate) fn units_of_a_document(&self) -> u32 {
        self.document_steps.div_ceil(self.per_unit) + 1
    }
}

/// CTAs a multiprocessor that have equal shares of so many rows.
pub(crate) fn blocks_of_shares(n_rows: u64, n_multiprocessors: usize) -> usize {
    let share = n_rows / (n_multiprocessors * BLOCKS_OF_SHARES).max(1) as u64;
    if share < ROWS_OF_THREE_MIN { BLOCKS_OF_A_CROSS } else { BLOCKS_OF_SHARES }
}

/// Limits a number of CTAs to those that can have a unit: each publishes a word for every query row
/// of a tile.
fn most_blocks(n_blocks: usize) -> u32 {
    u32::try_from(n_blocks).unwrap_or(u32::MAX).clamp(1, N_PARTIAL_ROWS / QUERY_ROWS as u32)
}

/// Steps of a unit, at least: one for each warp.
const STEPS_MIN: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_span_ctas_where_whole_ones_leave_blocks_idle() {
        for (n_documents, len, n_resident) in [
            (550, 300, Some(2)),
            (1000, 100, Some(2)),
            (20, 8000, Some(2)),
            (60, 1024, Some(2)),
            (1, 9000, Some(2)),
            (1000, 300, Some(3)),
            (1000, 1024, Some(3)),
            (2000, 300, Some(3)),
            (3000, 512, Some(3)),
            (400, 1024, Some(3)),
            // Equal enough.
            (1056, 970, None),
            (1030, 300, None),
            (10_000, 1024, None),
            // Too little to save.
            (200, 1024, None),
            (130, 1024, None),
            (60, 300, None),
            (300, 64, None),
            (1, 16, None),
            (40_000, 1, None),
            (0, 300, None),
            // The kernel cannot divide.
            (3, 10_000_000, None),
        ] {
            let shares = Shares::new(n_documents, len, 132);
            let found = shares.map(|shares| shares.n_units);
            let expected = n_resident.map(|n| 132 * n);
            // One long document may have fewer steps than there are CTAs.
            let expected = expected.map(|n| n.min(n_documents * len.div_ceil(16) / STEPS_MIN));
            assert_eq!(found, expected, "{n_documents} × {len}");
        }
    }

    #[test]
    fn units_have_equal_shares_and_places() {
        for n_documents in (1..400).chain([1000, 3000, 20_000]) {
            for len in (1..40).chain([100, 300, 512, 1024, 3000, 9000]) {
                for n_multiprocessors in [1, 2, 132, 148, 4000] {
                    let Some(shares) = Shares::new(n_documents, len, n_multiprocessors) else {
                        continue;
                    };
                    let Shares { document_steps, per_unit, n_longer, n_units } = shares;
                    assert!(document_steps >= 2 && per_unit >= STEPS_MIN);
                    assert!(n_units as usize <= n_multiprocessors * 3 && n_longer < n_units);
                    assert!(n_units * QUERY_ROWS as u32 <= N_PARTIAL_ROWS);
                    assert_eq!(n_units * per_unit + n_longer, n_documents * document_steps);
                }
            }
        }
    }
}
