//! Equal shares of documents of one length, for kernels that read them as one run of rows: a pure function of shapes.
//!
//! A block has whole documents, or one share of all rows, whose ends may lie within documents
//! (`maxsim_kernels::shares`). What it finds of a document that goes on in the next share it leaves in memory, for the
//! block that has the document's end: that costs up to 0.4 µs a call, so whole documents stay where
//! they are shares that are equal enough.

use maxsim_kernels::layout::runs::{PRODUCT_ROWS, QUERY_ROWS};
use maxsim_kernels::params::{N_PIECE_ROWS, inverse};

/// Blocks a multiprocessor that share the runs of rows of a cross product. A third one would fit, and
/// does better where queries have documents of their own (docs/decisions.md).
pub(crate) const BLOCKS_OF_A_CROSS: usize = 2;

/// Rows by which the longest share of whole documents must be above the mean. Of 32 × n × len on an H200, µs: 64 rows lose
/// 0.1 (1000 × 300), 127 gain 0.2 (2000 × 300), 217 0.5 (1000 × 1024), 275 1.4 (550 × 300), 326 1.1 (3000 × 512). From here on
/// it is 1 % or more.
const SAVED_ROWS_MIN: u64 = 256;

/// The same where there are fewer documents than blocks: those that have one read faster, as memory's rate is theirs alone.
/// 232 rows gain nothing (60 × 300), 248 lose 0.1 µs (200 × 1024), 520 0.2 (130 × 1024), 791 gain 1.0 (60 × 1024).
const SAVED_ROWS_MIN_OF_FEW: u64 = 640;

/// What part of the mean they must be, too: of many documents for each block one more or less is no matter.
const SAVED_PART_MIN: u64 = 64;

/// Units of equal numbers of steps, [`PRODUCT_ROWS`] rows each but for the last of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))]
pub(crate) struct Shares {
    /// Steps of a document.
    pub document_steps: u32,
    /// Steps of a unit; the first `n_longer` have one more.
    pub per_unit: u32,
    pub n_longer: u32,
    pub n_units: u32,
}

impl Shares {
    /// Those of `n_documents` of `len` tokens each on so many blocks; `None` where whole documents do as well.
    pub(crate) fn new(n_documents: u32, len: u32, n_blocks: usize) -> Option<Shares> {
        let blocks = most_blocks(n_blocks);
        let longest = u64::from(n_documents.div_ceil(blocks)) * u64::from(len);
        let mean = u64::from(n_documents) * u64::from(len) / u64::from(blocks);
        let saved_min = if n_documents < blocks { SAVED_ROWS_MIN_OF_FEW } else { SAVED_ROWS_MIN };
        if longest - mean < saved_min.max(mean / SAVED_PART_MIN) {
            return None;
        }
        Shares::of(n_documents, len, n_blocks)
    }

    /// The same whatever whole documents do; `None` where the kernel cannot divide by a document's steps.
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

/// Of so many blocks those that may have a unit: each leaves a word for every query row of a tile.
fn most_blocks(n_blocks: usize) -> u32 {
    u32::try_from(n_blocks).unwrap_or(u32::MAX).clamp(1, N_PIECE_ROWS / QUERY_ROWS as u32)
}

/// Steps of a unit, at least: one for each warp.
const STEPS_MIN: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_cut_where_whole_ones_leave_blocks_idle() {
        for (n_documents, len, is_cut) in [
            (550, 300, true),
            (3000, 512, true),
            (400, 1024, true),
            (20, 8000, true),
            (60, 1024, true),
            (1, 9000, true),
            // Equal enough.
            (1000, 300, false),
            (1000, 1024, false),
            (2000, 300, false),
            (1056, 970, false),
            (10_000, 1024, false),
            // Too little to save.
            (200, 1024, false),
            (130, 1024, false),
            (60, 300, false),
            (1, 16, false),
            (40_000, 1, false),
            (0, 300, false),
            // The kernel cannot divide.
            (3, 10_000_000, false),
        ] {
            let shares = Shares::new(n_documents, len, 264);
            assert_eq!(shares.is_some(), is_cut, "{n_documents} × {len}");
        }
    }

    #[test]
    fn units_have_equal_shares_and_places() {
        for n_documents in (1..400).chain([1000, 3000, 20_000]) {
            for len in (1..40).chain([100, 300, 512, 1024, 3000, 9000]) {
                for n_blocks in [1, 3, 264, 396, 4000] {
                    let Some(shares) = Shares::new(n_documents, len, n_blocks) else { continue };
                    let Shares { document_steps, per_unit, n_longer, n_units } = shares;
                    assert!(document_steps >= 2 && per_unit >= STEPS_MIN);
                    assert!(n_units as usize <= n_blocks && n_longer < n_units);
                    assert!(n_units * QUERY_ROWS as u32 <= N_PIECE_ROWS);
                    assert_eq!(n_units * per_unit + n_longer, n_documents * document_steps);
                }
            }
        }
    }
}
