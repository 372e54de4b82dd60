//! Lists that lie one behind the other in one memory.

/// Alignment of each list.
pub(super) const ALIGN_BYTES: u64 = 256;

/// Where lists of so many bytes lie, from the next boundary behind `start` on, and their end.
pub(super) fn lay_out<const N: usize>(start: u64, lens_bytes: [u64; N]) -> ([u64; N], u64) {
    let mut end = start.next_multiple_of(ALIGN_BYTES);
    let offsets = lens_bytes.map(|len| {
        let offset = end;
        end = (offset + len).next_multiple_of(ALIGN_BYTES);
        offset
    });
    (offsets, end)
}
