//! Stream-K shares of contiguous documents, as [`crate::sm90::stream_k`] has them of tiles.
//!
//! With few documents per CTA whole ones are unequal shares: 1000 on 264 CTAs are three or four.
//! Where one query tile meets documents of one length, units are equal shares instead
//! ([`crate::abi::stream_k`]), one for each CTA.
//!
//! A CTA begins with the partial document that continues in the next unit, whose maxima are
//! published long before that unit's CTA receives them. Then come the unit's other rows from the
//! first one on, which may end a document that began before. To the warps that multiply all this is
//! one run: rows are counted on behind the unit's end, and the copies wrap round to its start.

use crate::abi::layout::contiguous::QUERY_ROWS;
use crate::abi::params::{ContiguousParams, ContiguousStreamKParams, N_COUNTERS};
use crate::abi::stream_k;
use crate::abi::stream_k::first_step;
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_word, store_word};
use crate::ptx::math::max_nan;
use crate::sm90::contiguous::units::Run;
use crate::sm90::reduction::PUBLISHED;

/// A block's unit.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// The unit's entries and rows, in the order of the copies. A partial that continues in the
    /// next unit counts as the entry before the first that ends in the unit.
    pub(super) run: Run,
    /// Rows of the run from here on lie `n_back` before.
    turn: u32,
    n_back: u32,
    /// The first entry that ends in the unit.
    first: u32,
    /// Whether that began in a unit before.
    is_end: bool,
}

impl Share {
    /// Computes a CTA's share. Few instructions: those before the first copy come out of memory,
    /// too.
    #[inline(always)]
    pub(super) fn new(params: &ContiguousStreamKParams, unit: u32) -> Share {
        let all = &params.runs;
        let begin = first_step(unit, all.entries_per_unit, all.n_longer_units);
        let end = begin + all.entries_per_unit + (unit < all.n_longer_units) as u32;
        let division = [params.document_steps, params.document_steps_inverse];
        let stream_k::Share { first, last, is_end, start, partial, end } =
            stream_k::Share::new([begin, end], division, all.item_len);
        let n_rows = end - start;
        let run = Run {
            entry: first.wrapping_sub((partial < end) as u32),
            entry_end: last,
            start: partial,
            end: partial + n_rows,
        };
        Share { run, turn: end, n_back: n_rows, first, is_end }
    }

    /// Maps a row of the run to a row of the matrix.
    #[inline(always)]
    pub(super) fn row(&self, row: u32) -> u32 {
        if row >= self.turn { row - self.n_back } else { row }
    }

    /// The row of the run behind the last of an entry of it.
    #[inline(always)]
    pub(super) fn end_of(&self, entry: u32, item_len: u32) -> u32 {
        if self.continues(entry) { self.turn } else { (entry + 1) * item_len + self.n_back }
    }

    /// Whether an entry of the run is the partial that continues in the next unit.
    #[inline(always)]
    pub(super) fn continues(&self, entry: u32) -> bool {
        entry.wrapping_add(1) == self.first
    }

    /// Whether an entry's document began in a unit before.
    #[inline(always)]
    pub(super) fn is_end(&self, entry: u32) -> bool {
        self.is_end && entry == self.first
    }

    /// Loads a word of where partials are published; gives 0, which the assembler does not know.
    /// The first access to a page of memory waits longest, and should not when there is something
    /// to publish (0.1 to 0.2 µs of a call).
    ///
    /// # Safety
    /// The unit must be this block's; there must be places of partials behind the counters.
    #[inline(always)]
    pub(super) unsafe fn touch(&self, all: &ContiguousParams, unit: u32, lane: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { load_word(place_of(all, unit, lane)) as u32 & all.zero }
    }

    /// Publishes the maximum of a lane's query row over the partial that continues in the next
    /// unit, for the unit that has the document's end. One word is both flag and value: a fence
    /// between two would keep the multiprocessor's copies waiting.
    ///
    /// # Safety
    /// As [`Share::touch`], which must have given `touched`.
    #[inline(always)]
    pub(super) unsafe fn publish(
        &self,
        all: &ContiguousParams,
        unit: u32,
        most: f32,
        touched: u32,
        lane: u32,
    ) {
        let word = PUBLISHED | u64::from(most.to_bits() | touched);
        // SAFETY: the caller's promise; a place is its lane's.
        unsafe { store_word(place_of(all, unit, lane), word) };
    }

    /// Requests the partial maxima of units before of the document whose end this one has, and does
    /// not wait for them: mostly they are there, and come while the document's end is multiplied.
    ///
    /// # Safety
    /// As [`Share::touch`]; the document must have begun in a unit before.
    #[inline(always)]
    pub(super) unsafe fn request(
        &self,
        params: &ContiguousStreamKParams,
        unit: u32,
        lane: u32,
    ) -> Partials {
        let all = &params.runs;
        let begin = self.first * params.document_steps;
        let mut first = unit - 1;
        while first_step(first, all.entries_per_unit, all.n_longer_units) > begin {
            first -= 1;
        }
        let mut partials = Partials { first, next: unit, ..Partials::NONE };
        // SAFETY: the caller's promise.
        unsafe { partials.request(all, lane) };
        partials
    }
}

/// Receives the partial maxima of a document from the units before. They have smaller numbers, and
/// their partials depend on no other unit: waiting for these ends, however many CTAs run at once.
pub(super) struct Partials {
    /// The unit that the document began in.
    first: u32,
    /// The last one whose partial has been requested.
    next: u32,
    places: [u64; AT_ONCE],
    words: [u64; AT_ONCE],
}

/// Units whose partials are requested at once: one after the other would take as many times as long
/// as memory answers.
const AT_ONCE: usize = 4;

impl Partials {
    pub(super) const NONE: Partials =
        Partials { first: 0, next: 0, places: [0; AT_ONCE], words: [0; AT_ONCE] };

    /// Asks some more, and behind the first unit that again, which changes nothing.
    ///
    /// # Safety
    /// As [`Share::request`].
    #[inline(always)]
    unsafe fn request(&mut self, all: &ContiguousParams, lane: u32) {
        unroll!(I in 0..4 => {
            self.next = self.next.saturating_sub(1).max(self.first);
            self.places[I] = place_of(all, self.next, lane);
        });
        // SAFETY: the caller's promise.
        unsafe { self.load() };
    }

    /// # Safety
    /// The places must be there.
    #[inline(always)]
    unsafe fn load(&mut self) {
        unroll!(I in 0..4 => {
            // SAFETY: the caller's promise.
            self.words[I] = unsafe { load_word(self.places[I]) };
        });
    }

    /// The maximum of a lane's query row over these partials and what the lane has itself.
    ///
    /// # Safety
    /// As [`Share::request`], which must have been called.
    #[inline(always)]
    pub(super) unsafe fn receive(
        &mut self,
        all: &ContiguousParams,
        mut most: f32,
        lane: u32,
    ) -> f32 {
        // SAFETY: the caller's promise; each of these units has a partial, and publishes it.
        unsafe {
            loop {
                loop {
                    let mut are_published = PUBLISHED;
                    unroll!(I in 0..4 => {
                        are_published &= self.words[I];
                    });
                    if are_published != 0 {
                        break;
                    }
                    self.load();
                }
                unroll!(I in 0..4 => {
                    store_word(self.places[I], 0);
                    most = max_nan(most, f32::from_bits(self.words[I] as u32));
                });
                if self.next == self.first {
                    return most;
                }
                self.request(all, lane);
            }
        }
    }
}

/// Address of the word in which a unit publishes the maximum of a lane's query row.
#[inline(always)]
fn place_of(all: &ContiguousParams, unit: u32, lane: u32) -> u64 {
    let places = all.forward.tickets + u64::from(N_COUNTERS) * 4;
    places + u64::from(unit * QUERY_ROWS as u32 + lane) * 8
}
