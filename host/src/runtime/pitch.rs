//! Rows at a distance.

/// Writes rows at their pitch, with zeros between them; the bytes written.
pub(crate) fn write_rows(
    to: &mut [u8],
    rows: &[u8],
    row_bytes: usize,
    pitch_bytes: usize,
) -> usize {
    if row_bytes == pitch_bytes {
        to[..rows.len()].copy_from_slice(rows);
        return rows.len();
    }
    let mut len = 0;
    for (row, place) in rows.chunks_exact(row_bytes).zip(to.chunks_exact_mut(pitch_bytes)) {
        let (filled, padding) = place.split_at_mut(row_bytes);
        filled.copy_from_slice(row);
        padding.fill(0);
        len += pitch_bytes;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_at_their_pitch_with_zeros_between() {
        let mut to = [7u8; 20];
        assert_eq!(write_rows(&mut to, &[1, 2, 3, 4, 5, 6], 3, 8), 16);
        assert_eq!(to, [1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 7, 7, 7, 7]);
        assert_eq!(write_rows(&mut to, &[9, 8], 1, 1), 2);
        assert_eq!(to[..4], [9, 8, 3, 0]);
    }
}
