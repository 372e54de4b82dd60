//! Converts tokens to another element type, and reports what that rounds.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::Tokens;
use super::element::Element;
use super::format::widen;
use crate::error::Result;
use crate::runtime::alloc::{filled, zeroed};
use crate::runtime::pool::Parallel;

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 256;

/// Counts of what a conversion to another element type did to the elements of valid tokens. Rows
/// that no item has, or that the mask switches off, do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Conversion {
    /// Elements of valid tokens.
    pub n_elements: u64,
    /// Elements that are another number now.
    pub n_changed: u64,
    /// The largest |new − old| / |old| of those that are finite before and after; 1 where one
    /// became 0.
    pub max_relative_error: f64,
    /// Finite elements that became infinite.
    pub n_overflowed: u64,
    /// The first row with one of them.
    pub overflowed_row: Option<usize>,
    /// Rows that have an element other than 0, all of whose elements became 0.
    pub n_vanished_rows: u64,
    /// The first of them.
    pub vanished_row: Option<usize>,
}

impl Conversion {
    /// Whether every element is the number that it was.
    pub fn is_exact(&self) -> bool {
        self.n_changed == 0
    }

    /// Both, of which `self` comes first.
    fn and(self, next: Conversion) -> Conversion {
        Conversion {
            n_elements: self.n_elements + next.n_elements,
            n_changed: self.n_changed + next.n_changed,
            max_relative_error: self.max_relative_error.max(next.max_relative_error),
            n_overflowed: self.n_overflowed + next.n_overflowed,
            overflowed_row: self.overflowed_row.or(next.overflowed_row),
            n_vanished_rows: self.n_vanished_rows + next.n_vanished_rows,
            vanished_row: self.vanished_row.or(next.vanished_row),
        }
    }

    /// Counts one row.
    fn of_row(row: usize, before: &[f32], after: &[f32]) -> Conversion {
        let mut found = Conversion { n_elements: before.len() as u64, ..Conversion::default() };
        let (mut was_zero, mut is_zero) = (true, true);
        for (&x, &y) in before.iter().zip(after) {
            was_zero &= x == 0.0;
            is_zero &= y == 0.0;
            if x == y || x.is_nan() && y.is_nan() {
                continue;
            }
            found.n_changed += 1;
            if y.is_infinite() {
                found.n_overflowed += 1;
                found.overflowed_row = Some(row);
                continue;
            }
            let error = (f64::from(y) - f64::from(x)).abs() / f64::from(x).abs();
            found.max_relative_error = found.max_relative_error.max(error);
        }
        if is_zero && !was_zero {
            found.n_vanished_rows = 1;
            found.vanished_row = Some(row);
        }
        found
    }
}

impl<T: Element> Tokens<'_, T> {
    /// Converts the elements to another type, each to the nearest value there is (ties to even),
    /// and counts what was rounded. Layout and mask stay.
    ///
    /// To f32 it is exact; so is bf16 to f16 for magnitudes of 2⁻¹⁷ to 65504. Elements that are
    /// too large for f16 become infinite, those that are too small 0: [`Conversion`] says so.
    ///
    /// ```
    /// use maxsim::Tokens;
    /// use maxsim::format::Conversion;
    /// use maxsim::half::f16;
    ///
    /// let queries = Tokens::padded(&[0.5f32, 0.1], 1, 1, 2)?;
    /// let (queries, conversion): (Tokens<'_, f16>, Conversion) = queries.convert()?;
    /// assert_eq!(queries.data()[0], f16::from_f32(0.5));
    /// assert_eq!((conversion.n_changed, conversion.n_overflowed), (1, 0)); // 0.1
    /// assert!(conversion.max_relative_error < 0.0005);
    /// let (_, back) = queries.convert::<f32>()?;
    /// assert!(back.is_exact() && !conversion.is_exact());
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn convert<U: Element>(&self) -> Result<(Tokens<'static, U>, Conversion)> {
        let dim = self.layout().dim();
        let mut is_valid = filled(self.layout().rows() as u64, false)?;
        self.valid_rows()?.into_iter().for_each(|row| is_valid[row as usize] = true);
        let mut data = zeroed::<U>(self.data().len() as u64)?;
        let rows = self.data().par_chunks(CHUNK_LEN * dim);
        let chunks = rows.zip(data.par_chunks_mut(CHUNK_LEN * dim)).enumerate();
        let of_chunk = |(chunk, (from, to)): (usize, (&[T], &mut [U]))| {
            let (mut before, mut after) = (vec![0.0; dim], vec![0.0; dim]);
            let rows = from.chunks_exact(dim).zip(to.chunks_exact_mut(dim));
            (chunk * CHUNK_LEN..).zip(rows).fold(
                Conversion::default(),
                |found, (row, (from, to))| {
                    widen::<T>(from, &mut before);
                    to.iter_mut().zip(&before).for_each(|(to, &x)| *to = U::from_f32(x));
                    if !is_valid[row] {
                        return found;
                    }
                    widen::<U>(to, &mut after);
                    found.and(Conversion::of_row(row, &before, &after))
                },
            )
        };
        // In order, so that the first row is the first.
        let found: Vec<Conversion> =
            Parallel::new().share(|min_len| chunks.with_min_len(min_len).map(of_chunk).collect());
        let found = found.into_iter().fold(Conversion::default(), Conversion::and);
        let tokens = Tokens::assemble(data.into(), None, self.layout().clone(), self.beside())?;
        Ok((tokens, found))
    }
}
