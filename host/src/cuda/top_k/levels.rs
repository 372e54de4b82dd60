//! How a selection divides rows among CTAs: pure, of sizes alone.

use maxsim_kernels::abi::params::top_k::KEY_BYTES;
use maxsim_kernels::abi::params::top_k::groups::n_groups;

/// Longest rows that one CTA has for itself.
const ROW_MAX: u64 = 64 << 10;

/// Scores of a chunk of a longer row: few enough for all that are scored at a time to be read again
/// from the L2 cache, and so many that what a CTA does once does not count.
const CHUNK: u64 = 32 << 10;

/// Fewest selections that one CTA merges: each level has a sixteenth of the one before.
const FAN_IN: u64 = 16;

/// Most bytes of keys between two levels, and of what is known of groups.
const BETWEEN_BYTES_MAX: u64 = 8 << 20;

/// One launch for some rows: a CTA for each chunk of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// Entries of a row: scores at first, then keys.
    pub row_len: u32,
    pub chunk_len: u32,
    pub n_chunks: u32,
}

/// The launches of a selection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Levels {
    /// The launches for some rows, in order. The last one has a chunk per row, and writes the
    /// result; where k is 0 there is none to write.
    pub levels: Vec<Level>,
    /// Groups of a row in which its best are searched for, so that levels before the last have
    /// nothing to do but for rows of which too many scores are equal; 0 = there is no such search.
    pub n_groups: u32,
    /// Rows of one round of launches.
    pub rows_at_once: usize,
}

impl Levels {
    /// Those of rows of so many scores of which the best k are selected. Rows of plain scores have
    /// documents with tokens, in order.
    pub(super) fn new(n_rows: usize, row_len: usize, k: usize, is_plain: bool) -> Levels {
        let (mut left, k) = (row_len as u64, k as u64);
        let mut levels = Vec::new();
        loop {
            let n_most = (BETWEEN_BYTES_MAX / (k.max(1) * KEY_BYTES)).max(FAN_IN);
            let chunk_len = match left {
                0..=ROW_MAX => left.max(1),
                // A multiple of k, of whole selections.
                _ if !levels.is_empty() => k * (CHUNK / k).max(FAN_IN),
                _ => CHUNK.max(FAN_IN * k).max(left.div_ceil(n_most)),
            };
            let n_chunks = left.div_ceil(chunk_len).max(1);
            // Fewer than 2³¹ scores have fewer keys.
            levels.push(Level {
                row_len: left as u32,
                chunk_len: chunk_len as u32,
                n_chunks: n_chunks as u32,
            });
            if n_chunks == 1 || k == 0 {
                break;
            }
            left = n_chunks * k;
        }
        let n_groups = match is_plain && levels.len() > 1 {
            true => n_groups(row_len as u32, k as u32),
            false => 0,
        };
        let areas = room(&levels, n_groups, k);
        // A launch has fewer than 2³¹ CTAs.
        let n_chunks = levels.iter().map(|level| u64::from(level.n_chunks)).max().unwrap_or(1);
        let at_once = (3 * BETWEEN_BYTES_MAX / areas.iter().sum::<u64>().max(1))
            .min(i32::MAX as u64 / n_chunks);
        let rows_at_once = (at_once.max(1) as usize).min(n_rows.max(1));
        Levels { levels, n_groups, rows_at_once }
    }

    /// Bytes of keys between levels, of one and of the next, which take turns; and of what is known
    /// of groups: two words of each row, and one of each of its groups.
    pub(super) fn between_bytes(&self, k: usize) -> [u64; 3] {
        room(&self.levels, self.n_groups, k as u64).map(|bytes| bytes * self.rows_at_once as u64)
    }
}

/// The same of a row.
fn room(levels: &[Level], n_groups: u32, k: u64) -> [u64; 3] {
    // Each level has fewer chunks than the one before.
    let bytes = |level: Option<&Level>| match level {
        Some(level) if level.n_chunks > 1 => u64::from(level.n_chunks) * k * KEY_BYTES,
        _ => 0,
    };
    let groups = if n_groups == 0 { 0 } else { 8 + u64::from(n_groups) * 4 };
    [bytes(levels.first()), bytes(levels.get(1)), groups]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_are_one_launch() {
        for row_len in [0, 1, 1000, 20_000, 50_000, ROW_MAX as usize] {
            for k in [1, 100, 4096] {
                let levels = Levels::new(32, row_len, k, true);
                assert_eq!((levels.levels.len(), levels.rows_at_once), (1, 32));
                assert_eq!(levels.between_bytes(k), [0; 3]);
                assert_eq!(levels.n_groups, 0);
            }
        }
    }

    #[test]
    fn a_million_scores_take_two_launches() {
        let levels = Levels::new(32, 1_000_000, 100, true);
        let of = |row_len, chunk_len, n_chunks| Level { row_len, chunk_len, n_chunks };
        assert_eq!(levels.levels, [of(1_000_000, 32_768, 31), of(3100, 3100, 1)]);
        assert_eq!((levels.rows_at_once, levels.n_groups), (32, 8197));
        assert_eq!(Levels::new(32, 1_000_000, 100, false).n_groups, 0);
        assert_eq!(Levels::new(32, 1_000_000, 4096, true).rows_at_once, 32);
    }

    #[test]
    fn every_selection_ends_with_a_chunk_and_takes_bounded_memory() {
        for row_len in [0, 1, 65_536, 65_537, 100_000, 1 << 20, 10_000_000, (1 << 31) - 1] {
            for k in [1, 2, 3, 100, 1000, 4095, 4096] {
                for n_rows in [0, 1, 1000, 1 << 20] {
                    let levels = Levels::new(n_rows, row_len, k, true);
                    assert!(levels.levels.len() <= 8, "{levels:?}");
                    let mut left = row_len as u64;
                    for level in &levels.levels {
                        assert_eq!(u64::from(level.row_len), left);
                        let covered = u64::from(level.chunk_len) * u64::from(level.n_chunks);
                        assert!(covered >= left && level.chunk_len > 0);
                        left = u64::from(level.n_chunks) * k as u64;
                    }
                    for level in levels.levels.iter().skip(1) {
                        let is_whole = (level.chunk_len as usize).is_multiple_of(k);
                        assert!(is_whole || level.n_chunks == 1);
                    }
                    assert_eq!(levels.levels.last().unwrap().n_chunks, 1);
                    let sum = levels.between_bytes(k).iter().sum::<u64>();
                    assert!(sum <= 3 * BETWEEN_BYTES_MAX, "{row_len} {k}: {levels:?}");
                    let room = u64::from(levels.levels[0].n_chunks) * k as u64;
                    assert!(levels.n_groups == 0 || room >= 2 * k as u64);
                    for level in &levels.levels {
                        let grid = u64::from(level.n_chunks) * levels.rows_at_once as u64;
                        assert!(grid < 1 << 31 && levels.rows_at_once >= 1);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_merged_where_nothing_is_kept() {
        assert_eq!(Levels::new(1, 1 << 20, 0, true).levels.len(), 1);
    }
}
