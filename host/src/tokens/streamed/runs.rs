//! Some rows of a matrix, in runs of rows that follow each other.

use std::ops::Range;

use crate::error::Result;
use crate::runtime::alloc::reserve;

/// Rows of a matrix that other rows are, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowRuns {
    /// First row of a run, counted without the others, and the row of the matrix that it is. A
    /// layout has fewer than 2³¹ rows.
    runs: Vec<[u32; 2]>,
    n_rows: usize,
}

/// What files ask.
#[cfg(feature = "files")]
impl RowRuns {
    /// Number of the rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// First row of each run, and the row of the matrix that it is.
    pub(crate) fn runs(&self) -> &[[u32; 2]] {
        &self.runs
    }

    /// Row of the matrix that a row is.
    pub(crate) fn stored_row(&self, row: usize) -> usize {
        let run = self.runs.partition_point(|&[first, _]| first as usize <= row);
        match run.checked_sub(1).map(|run| self.runs[run]) {
            Some([first, stored]) => stored as usize + (row - first as usize),
            None => row,
        }
    }
}

impl RowRuns {
    /// Adds rows of the matrix, behind those that are there.
    pub(crate) fn push(&mut self, rows: Range<usize>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let follows = self.runs.last().is_some_and(|&[first, stored]| {
            stored as usize + (self.n_rows - first as usize) == rows.start
        });
        if !follows {
            if self.runs.len() == self.runs.capacity() {
                let additional = self.runs.len().max(16);
                reserve(&mut self.runs, additional)?;
            }
            self.runs.push([self.n_rows as u32, rows.start as u32]);
        }
        self.n_rows += rows.len();
        Ok(())
    }

    /// What the rows have in a list with an entry for each row of the matrix.
    pub(crate) fn gathered<T: Copy>(&self, of_rows: &[T]) -> Result<Vec<T>> {
        let mut found = Vec::new();
        reserve(&mut found, self.n_rows)?;
        self.stored(0..self.n_rows).for_each(|rows| found.extend_from_slice(&of_rows[rows]));
        Ok(found)
    }

    /// The runs of the matrix that some rows are.
    pub(crate) fn stored(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let run = self.runs.partition_point(|&[first, _]| first as usize <= rows.start);
        let runs = run.saturating_sub(1)..self.runs.len();
        let ends = self.runs.iter().skip(runs.start + 1).map(|&[first, _]| first as usize);
        let parts = self.runs[runs].iter().zip(ends.chain([self.n_rows]));
        parts
            .map(move |(&[first, stored], end)| {
                let (first, stored) = (first as usize, stored as usize);
                let (start, end) = (rows.start.max(first), rows.end.min(end));
                stored + start - first..stored + end.max(start) - first
            })
            .take_while(|part| !part.is_empty())
    }
}
