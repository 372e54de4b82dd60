//! Asks for memory before it is needed.

/// Bytes that memory gives at once.
pub(crate) const CACHE_LINE: usize = 64;

/// Reads a byte of every cache line of rows that lie far apart: together they take little longer
/// than one, and one by one, between what is computed of them, each would be waited for.
#[inline(always)]
pub(crate) fn fetch<'a, T: bytemuck::Pod>(rows: impl Iterator<Item = &'a [T]>) {
    let mut read = 0;
    for row in rows {
        let bytes: &[u8] = bytemuck::cast_slice(row);
        bytes.iter().step_by(CACHE_LINE).for_each(|&byte| read ^= byte);
    }
    std::hint::black_box(read);
}
