//! Host/device ABI of the search of a long row's best among the largest scores of its groups.

use super::K_MAX;

/// Threads per CTA of all three kernels.
pub const GROUP_THREADS: usize = super::THREADS;

/// Groups of a CTA that finds their largest scores: each has several threads.
pub const GROUPS_OF_CTA: u32 = 128;

/// Threads of a group.
pub const SLICES: u32 = GROUP_THREADS as u32 / GROUPS_OF_CTA;

/// Shared memory of a CTA that finds the largest scores, in bytes.
pub const LARGEST_SHARED_BYTES: usize = GROUP_THREADS * 4;

/// Fewest scores of a group: fewer would hardly be fewer than the scores themselves.
const GROUP_MIN: u64 = 32;

/// Groups that are enough for any small k.
const GROUPS_MIN: u64 = 8 << 10;

/// Groups of a row in which the best k are searched for; 0 = it is too short.
///
/// k groups whose largest scores are the largest have the best k, and of n groups some `k + k²/2n`
/// scores reach the smallest of these.
pub const fn n_groups(row_len: u32, k: u32) -> u32 {
    assert!(k as usize <= K_MAX);
    let (row_len, k) = (row_len as u64, k as u64);
    let most = if 8 * k < GROUPS_MIN { GROUPS_MIN } else { 8 * k };
    let len = row_len / most;
    let len = if len < GROUP_MIN { GROUP_MIN } else { len };
    let n = row_len.div_ceil(len);
    if k == 0 || n < 4 * k { 0 } else { n as u32 }
}

/// Parameters of the kernels that find the best of long rows of plain scores: every document has
/// tokens, and the score of document i of a row is score i of the row.
///
/// Group g of a row has its scores g, `g + n_groups`, `g + 2 * n_groups` …: of scores that lie
/// beside each other, each is of another group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TopKGroupsParams {
    /// Address of the f32 scores `[n_rows, row_len]`.
    pub scores: u64,
    /// Address of the upper words of the keys of the largest scores of groups, u32
    /// `[n_rows, n_groups]`.
    pub largest: u64,
    /// Address of two u32 per row: how many scores reach the row's bound, or `u32::MAX` where
    /// there is no bound; and that bound, the upper word of a key.
    pub found: u64,
    /// Address of the keys of scores that reach the bound, `[n_rows, room]`, in any order. Those
    /// for which there is no room are not stored.
    pub keys: u64,
    /// Address of the numbers of NaN and of empty documents `[n_rows, 2]`, u64, which NaN are added
    /// to.
    pub counts: u64,
    /// Scores of a row.
    pub row_len: u32,
    /// Groups of a row.
    pub n_groups: u32,
    /// Keys of a row for which there is room.
    pub room: u32,
    /// Keys that are wanted.
    pub k: u32,
    /// The id of the first document of the first row.
    pub first_id: u32,
    /// How many documents further that of the next row is.
    pub row_documents: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_many_and_long() {
        for row_len in [0, 1, 65_537, 100_000, 262_144, 1_000_000, 20_000_000, (1 << 31) - 1] {
            for k in [0, 1, 10, 100, 256, 1000, 4095, 4096] {
                let n = n_groups(row_len, k);
                if n == 0 {
                    assert!(k == 0 || row_len < 160 * k, "{row_len} {k}");
                    continue;
                }
                assert!(n >= 4 * k && row_len.div_ceil(n) >= GROUP_MIN as u32 - 1);
                // The steps of a thread stay below 2³².
                let step = u64::from(n * SLICES) * 8;
                assert!(u64::from(row_len) + step < 1 << 32, "{row_len} {k}: {n}");
                assert!(n <= 66 << 10, "{row_len} {k}: {n}");
            }
        }
    }
}
