//! Finds rows of zeros at the ends of items, where the file does not state how long items are.
//!
//! Such rows are padding, most of the time, and as tokens they have a similarity of 0 to
//! everything: more than that of a token that points away. Models that pad on the left have them at
//! the start.

use rayon::prelude::*;

use super::padded_layout;
use super::valid::masked;
use crate::files::contents::Contents;
use crate::files::error::{Advice, Message, Result};
use crate::files::options::TrailingZeros;
use crate::tokens::layout::LayoutKind;

/// Rows of zeros at the start and at the end of each item; those of an item without others are at
/// its start.
fn at_ends(contents: &Contents, bytes: &[u8]) -> Vec<[usize; 2]> {
    let is_zero = |row: usize| is_zero(contents, bytes, row);
    let ends = |item: usize| {
        let rows = contents.layout.item_rows(item);
        let start = rows.clone().take_while(|&row| is_zero(row)).count();
        if start == rows.len() {
            return [start, 0];
        }
        [start, rows.rev().take_while(|&row| is_zero(row)).count()]
    };
    (0..contents.layout.n_items()).into_par_iter().map(ends).collect()
}

/// Whether a row stands for zeros.
fn is_zero(contents: &Contents, bytes: &[u8], row: usize) -> bool {
    let row_bytes = contents.layout.dim() * contents.format.size_bytes();
    let elements = &bytes[contents.data.clone()][row * row_bytes..][..row_bytes];
    let format = contents.format;
    // −0 is what a mask of 0 makes of a negative number.
    let sign = match format.element().is_some() || format.nan_code().is_some() {
        true => 0x80,
        false => 0,
    };
    let size = format.size_bytes();
    let are_zeros = elements
        .chunks_exact(size)
        .all(|x| x[size - 1] & !sign == 0 && x[..size - 1].iter().all(|&byte| byte == 0));
    let mins = contents.scales.as_ref().and_then(|place| place.mins.clone());
    let min = mins.map(|mins| &bytes[mins][2 * row..][..2]);
    are_zeros && min.is_none_or(|min| min[0] == 0 && min[1] & 0x7F == 0)
}

/// Removes rows of zeros from items, or warns that there are some.
pub(in crate::files) fn check(
    contents: &mut Contents,
    bytes: &[u8],
    wanted: Option<TrailingZeros>,
) -> Result<Option<Message>> {
    if contents.is_stated || wanted == Some(TrailingZeros::Tokens) {
        return Ok(None);
    }
    let ends = at_ends(contents, bytes);
    let n_rows: usize = ends.iter().flatten().sum();
    if n_rows == 0 {
        return Ok(None);
    }
    if wanted == Some(TrailingZeros::Pad) {
        leave_out(contents, &ends)?;
        return Ok(None);
    }
    let (n_items, n) = (ends.iter().filter(|[a, b]| a + b > 0).count(), ends.len());
    let rows = if n_rows == 1 { "row of zeros" } else { "rows of zeros" };
    let text = format!(
        "{n_items} of {n} items begin or end with {n_rows} {rows}, scored as tokens: the file does \
         not say how long items are"
    );
    Ok(Some(Message::new(text, Some(Advice::TrailingZeros))))
}

fn leave_out(contents: &mut Contents, ends: &[[usize; 2]]) -> Result<()> {
    let layout = &contents.layout;
    let n = layout.n_items();
    let is_prefix =
        |(item, &[start, _]): (usize, &[usize; 2])| start == 0 || start == layout.item_len(item);
    let is_prefix = ends.iter().enumerate().all(is_prefix);
    if layout.kind() == LayoutKind::Padded && is_prefix {
        let lengths: Vec<i64> = ends
            .iter()
            .enumerate()
            .map(|(item, [start, end])| (layout.item_len(item) - start - end) as i64)
            .collect();
        contents.layout = padded_layout([n, layout.max_len(), layout.dim()], Some(&lengths))?;
        return Ok(());
    }
    let mut is_valid = vec![true; layout.rows()];
    for (item, &[start, end]) in ends.iter().enumerate() {
        let rows = layout.item_rows(item);
        is_valid[rows.start..rows.start + start].fill(false);
        is_valid[rows.end - end..rows.end].fill(false);
    }
    let (layout, valid) = masked(layout, |row| is_valid[row])?;
    (contents.layout, contents.valid) = (layout, Some(valid));
    Ok(())
}
