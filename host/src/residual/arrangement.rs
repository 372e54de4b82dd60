//! How GPUs keep residuals, for those who put them there themselves.

use maxsim_kernels::abi::params::NORMS_PADDING;
use maxsim_kernels::abi::residual::BitOrder;
use maxsim_kernels::abi::residual_chunk::{
    CHUNK_LEN, PLANES, arranged, centroid_bytes, n_slots, row_bytes, slot,
};

use super::codec::check_nbits;
use crate::error::Result;
use crate::tokens::layout::limits::check_dim;

/// Weights of the table for buckets of 8 bits.
const N_WEIGHTS: usize = 256;

/// Bytes of the weights' tables.
pub(crate) const WEIGHT_BYTES: usize = (PLANES * 4) + N_WEIGHTS * size_of::<u16>();

/// How GPUs keep the residuals of tokens, and the tables that they are decoded with, for memory
/// that [`RawResiduals`](crate::format::RawResiduals) names.
///
/// A *chunk* is 8 elements: `nbits` bytes of a row's residuals, as ColBERT has them. The `c`-th
/// chunk of a row becomes the number
///
/// ```text
/// tables[0][byte 0] | tables[1][byte 1] | …          bytes that a row does not have are 0
/// ```
///
/// whose lowest `nbits` bytes, the lowest first, lie at byte `slots[c] · nbits` of the row there.
/// What no chunk comes to is 0.
///
/// ```
/// use maxsim::residual::{Arrangement, BitOrder};
///
/// let arrangement = Arrangement::new(128, 2, BitOrder::Colbert)?;
/// assert_eq!((arrangement.row_bytes, arrangement.centroid_bytes), (32, 256));
/// // The second chunk of a row, bytes 2 and 3.
/// let stored: Vec<u8> = (0..32).map(|byte| byte * 7).collect();
/// let mut row = [0; 32];
/// arrangement.arrange(&stored, &mut row);
/// let [low, high] = [0, 1].map(|at| arrangement.tables[at][usize::from(stored[2 + at])]);
/// let chunk = (low | high).to_le_bytes();
/// assert_eq!(row[arrangement.slots[1] * 2..][..2], chunk[..2]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Arrangement {
    /// Bytes of a row's residuals.
    pub row_bytes: usize,
    /// Rows that lie behind the last one, with any residuals and codes of centroids.
    pub padding_rows: usize,
    /// Bytes of a centroid: its elements, and zeros behind them.
    pub centroid_bytes: usize,
    /// Bytes of the bucket weights' tables. With the two bytes of a number of the queries' type:
    /// the lower bytes of the first 16 weights, the upper bytes of these, and behind them all
    /// weights; zeros for those that there are not.
    pub weight_bytes: usize,
    /// For each byte of a chunk, what its values become.
    pub tables: Vec<[u64; 256]>,
    /// The place of each chunk of a row, in chunks.
    pub slots: Vec<usize>,
}

impl Arrangement {
    /// The arrangement of rows of `dim` elements, with buckets of `nbits` bits in an order.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for other bits than 1, 2, 4 and 8, and a dim that
    /// there is not.
    pub fn new(dim: usize, nbits: u32, order: BitOrder) -> Result<Arrangement> {
        check_nbits(nbits)?;
        check_dim(dim)?;
        debug_assert_eq!(row_bytes(dim, nbits), n_slots(dim) * nbits as usize);
        Ok(Arrangement {
            row_bytes: row_bytes(dim, nbits),
            padding_rows: NORMS_PADDING,
            centroid_bytes: centroid_bytes(dim),
            weight_bytes: WEIGHT_BYTES,
            tables: (0..nbits).map(|at| arranged(nbits, order, at)).collect(),
            slots: (0..dim.div_ceil(CHUNK_LEN)).map(slot).collect(),
        })
    }

    /// Arranges a row's residuals in room of [`Arrangement::row_bytes`].
    ///
    /// # Panics
    /// When the room is shorter.
    pub fn arrange(&self, stored: &[u8], to: &mut [u8]) {
        if self.slots.len() * self.tables.len() < self.row_bytes {
            to.fill(0);
        }
        // Chunks of a length that is known are moved without a call, five times as fast.
        match &self.tables[..] {
            [a] => arrange_chunks([a], &self.slots, stored, to),
            [a, b] => arrange_chunks([a, b], &self.slots, stored, to),
            [a, b, c, d] => arrange_chunks([a, b, c, d], &self.slots, stored, to),
            [a, b, c, d, e, f, g, h] => {
                arrange_chunks([a, b, c, d, e, f, g, h], &self.slots, stored, to);
            }
            // There are no other bits.
            _ => {}
        }
    }
}

/// Arranges chunks of `N` bytes.
fn arrange_chunks<const N: usize>(
    tables: [&[u64; 256]; N],
    slots: &[usize],
    stored: &[u8],
    to: &mut [u8],
) {
    let ((whole, rest), (to, _)) = (stored.as_chunks(), to.as_chunks_mut());
    let arranged = |from: &[u8; N]| {
        let bytes = from.iter().zip(tables);
        let chunk = bytes.fold(0, |chunk, (&byte, table)| chunk | table[usize::from(byte)]);
        let mut lowest = [0; N];
        lowest.copy_from_slice(&chunk.to_le_bytes()[..N]);
        lowest
    };
    for (&slot, from) in slots.iter().zip(whole) {
        to[slot] = arranged(from);
    }
    if let (false, Some(&slot)) = (rest.is_empty(), slots.get(whole.len())) {
        let mut from = [0; N];
        from[..rest.len()].copy_from_slice(rest);
        to[slot] = arranged(&from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte of a chunk by the tables, as the documentation says.
    #[test]
    fn rows_of_any_length_lie_as_the_tables_say() {
        for (nbits, dim) in [1, 2, 4, 8].into_iter().flat_map(|n| [4, 8, 20, 128].map(|d| (n, d))) {
            for order in [BitOrder::LittleEndian, BitOrder::Colbert] {
                let arrangement = Arrangement::new(dim, nbits, order).expect("an arrangement");
                let n = nbits as usize;
                let len = (dim * n).div_ceil(8);
                let stored: Vec<u8> = (0..len).map(|i| (i * 151 + 77) as u8).collect();
                let mut expected = vec![0; arrangement.row_bytes];
                for (c, &slot) in arrangement.slots.iter().enumerate() {
                    let byte = |at: usize| stored.get(c * n + at).copied().unwrap_or(0);
                    let of = |at: usize| arrangement.tables[at][usize::from(byte(at))];
                    let chunk = (0..n).fold(0, |chunk, at| chunk | of(at));
                    let bytes = (0..n).map(|at| (chunk >> (8 * at)) as u8);
                    expected.splice(slot * n..(slot + 1) * n, bytes);
                }
                let mut row = vec![0xFF; arrangement.row_bytes];
                arrangement.arrange(&stored, &mut row);
                assert_eq!(row, expected, "{nbits} bits, dim {dim}, {order:?}");
            }
        }
    }
}
