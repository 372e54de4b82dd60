//! Sorts rows by their codes.

use crate::error::Result;
use crate::runtime::alloc::filled;

/// The rows that have each code, in rising order.
#[derive(Debug)]
pub(crate) struct ByCode {
    /// Index in `rows` of each code's first row; one entry more than there are codes.
    starts: Vec<u32>,
    rows: Vec<u32>,
}

impl ByCode {
    /// Sorts rows by code with a counting sort. There are fewer than 2³¹ rows.
    pub fn new(codes: &[i32], n_codes: usize) -> Result<ByCode> {
        let mut starts = filled(n_codes as u64 + 1, 0u32)?;
        for &code in codes {
            starts[code as usize + 1] += 1;
        }
        for i in 0..n_codes {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut rows = filled(codes.len() as u64, 0u32)?;
        for (row, &code) in codes.iter().enumerate() {
            let place = &mut next[code as usize];
            rows[*place as usize] = row as u32;
            *place += 1;
        }
        Ok(ByCode { starts, rows })
    }

    /// Index in [`ByCode::rows`] of each code's first row, and one past the last row.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// The rows of all codes.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The rows of a code.
    pub fn members(&self, code: usize) -> &[u32] {
        &self.rows[self.starts[code] as usize..self.starts[code + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_under_their_codes() {
        let by_code = ByCode::new(&[2, 0, 2, 3, 0], 5).unwrap();
        let members: Vec<&[u32]> = (0..5).map(|code| by_code.members(code)).collect();
        assert_eq!(members, [&[1, 4][..], &[], &[0, 2], &[3], &[]]);
    }
}
