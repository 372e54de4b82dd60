//! The documents of a unit of work, one after the other, and where the winners and scores of their
//! query tokens go in the pair-major outputs.

use crate::abi::params::{ForwardParams, Group, Segment};
use crate::primitives::work_tile::{Work, document, score_index, segment};
use crate::ptx::global::{load_u64, store_u16, store_u32};

/// The documents of a unit; the next one's rows are fetched while the last is worked on.
pub struct Documents<'a> {
    params: &'a ForwardParams,
    entry: u32,
    entry_end: u32,
    ahead: Segment,
}

impl<'a> Documents<'a> {
    /// No documents.
    #[cfg(maxsim_arch = "sm_80")]
    #[inline(always)]
    pub fn none(params: &'a ForwardParams) -> Self {
        Documents { params, entry: 0, entry_end: 0, ahead: Segment { start: 0, len: 0 } }
    }

    /// The documents of a unit.
    ///
    /// # Safety
    /// The work must be of this launch.
    #[inline(always)]
    pub unsafe fn new(params: &'a ForwardParams, work: &Work) -> Self {
        let mut documents = Documents {
            params,
            entry: work.entry,
            entry_end: work.entry_end,
            ahead: Segment { start: 0, len: 0 },
        };
        match work.first {
            Some(first) => documents.ahead = first,
            // SAFETY: the caller's promise.
            None => unsafe { documents.fetch() },
        }
        documents
    }

    /// Rows of the first document, before [`Documents::next`] has been called.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub fn first(&self) -> Segment {
        self.ahead
    }

    /// The next entry and its document.
    ///
    /// # Safety
    /// As [`Documents::new`].
    #[inline(always)]
    pub unsafe fn next(&mut self) -> Option<(u32, Segment)> {
        if self.entry >= self.entry_end {
            return None;
        }
        let next = (self.entry, self.ahead);
        self.entry += 1;
        // SAFETY: the caller's promise.
        unsafe { self.fetch() };
        Some(next)
    }

    #[inline(always)]
    unsafe fn fetch(&mut self) {
        if self.entry < self.entry_end {
            // SAFETY: the entry exists.
            self.ahead = unsafe { document(self.params, self.entry) };
        }
    }
}

/// Place of a group's query tokens in the pair-major outputs.
#[derive(Clone, Copy)]
pub struct TokenPlace {
    /// Index of the group's first row for entry 0 where every query has equally many entries;
    /// otherwise the group's first row within its query.
    base: u64,
    /// Tokens of the query.
    len: u32,
}

impl TokenPlace {
    /// No place.
    pub const NONE: TokenPlace = TokenPlace { base: 0, len: 0 };

    /// The place of a group with tokens.
    ///
    /// # Safety
    /// The group must be of this launch, and there must be pair-major outputs.
    #[inline(always)]
    pub unsafe fn new(params: &ForwardParams, group: Group) -> TokenPlace {
        let base = u64::from(group.row);
        if params.query_token_base == 0 {
            return TokenPlace { base, len: 0 };
        }
        // SAFETY: eight bytes per query; the query exists.
        unsafe {
            let len = segment(&params.queries, group.query).len;
            let first = u64::from(group.query * params.entry_stride) * u64::from(len);
            let own = load_u64(params.query_token_base + u64::from(group.query) * 8);
            TokenPlace { base: (base + own).wrapping_sub(first), len }
        }
    }

    /// Index of the group's first row for an entry.
    ///
    /// # Safety
    /// The entry must belong to the group's query.
    #[inline(always)]
    pub unsafe fn index(&self, params: &ForwardParams, entry: u32) -> u64 {
        let offset = if params.query_token_base != 0 {
            u64::from(entry) * u64::from(self.len)
        } else {
            // SAFETY: eight bytes per score.
            unsafe {
                let score = score_index(params, entry);
                load_u64(params.score_token_base + u64::from(score) * 8)
            }
        };
        self.base.wrapping_add(offset)
    }
}

/// Stores one query token's winner and token score, where they are wanted.
///
/// # Safety
/// `index` must be an index of the pair-major outputs that only this thread stores.
#[inline(always)]
pub unsafe fn store_token(params: &ForwardParams, index: u64, winner: i32, score: f32) {
    // SAFETY: the host sized the outputs for every query token of every entry.
    unsafe {
        if params.token_scores != 0 {
            store_u32(params.token_scores + index * 4, score.to_bits());
        }
        if params.winners != 0 {
            if params.winner_bytes == 2 {
                store_u16(params.winners + index * 2, winner as u32);
            } else {
                store_u32(params.winners + index * 4, winner as u32);
            }
        }
    }
}
