//! XTR: thresholds of query tokens, and scores of what they retrieve ([`crate::abi::params::xtr`]).

pub mod score;
pub mod select;

use crate::ptx::global::{read_u16, read_u32};

/// Whether an entry has a winner: the others are of masked query tokens, of documents without
/// tokens, and those whose winner was not retrieved.
///
/// # Safety
/// The entry must be there, of so many bytes, 2 or 4.
#[inline(always)]
unsafe fn has_winner(winners: u64, winner_bytes: u32, entry: u64) -> bool {
    let at = winners + entry * u64::from(winner_bytes);
    // SAFETY: the caller's promise.
    unsafe {
        match winner_bytes {
            2 => read_u16(at) != 0xFFFF,
            _ => read_u32(at) != u32::MAX,
        }
    }
}
