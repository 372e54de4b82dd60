//! Fallible allocation of vectors: an error in place of an abort.
//!
//! A page of memory is placed near the thread that first writes to it, where a machine has several
//! nodes. So what many threads read is first written by many: by those that fill what [`zeroed`]
//! gives, and by all threads in [`shared_copy_of`].

use std::ops::{Deref, Range};

use bytemuck::{Pod, Zeroable};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::pool::Parallel;
use crate::error::{Error, Result};

/// Bytes that a thread copies at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A vector of `n` copies of `value`.
pub(crate) fn filled<T: Clone>(n: u64, value: T) -> Result<Vec<T>> {
    let requested_bytes = n.saturating_mul(size_of::<T>() as u64);
    let missing = |source| Error::HostMemory { requested_bytes, source };
    let n = usize::try_from(n).map_err(|_| missing(None))?;
    let mut values = Vec::new();
    values.try_reserve_exact(n).map_err(|error| missing(Some(error)))?;
    values.resize(n, value);
    Ok(values)
}

/// A vector of `n` zeros, of which large ones are not written to: their pages are untouched.
pub(crate) fn zeroed<T: Zeroable>(n: u64) -> Result<Vec<T>> {
    let requested_bytes = n.saturating_mul(size_of::<T>() as u64);
    let missing = |()| Error::HostMemory { requested_bytes, source: None };
    let n = usize::try_from(n).map_err(|_| missing(()))?;
    bytemuck::allocation::try_zeroed_vec(n).map_err(missing)
}

/// A copy of `values` that all threads make, where they are many.
pub(crate) fn shared_copy_of<V: Pod + Send + Sync>(values: &[V]) -> Result<Vec<V>> {
    let mut copy = zeroed(values.len() as u64)?;
    share_copy(values, &mut copy);
    Ok(copy)
}

/// Copies `values` into new memory, which each thread touches first where it will lie.
fn share_copy<V: Pod + Send + Sync>(values: &[V], to: &mut [V]) {
    let parallel = Parallel::new().unless(size_of_val(values) < 2 * CHUNK_BYTES);
    let n = CHUNK_BYTES / size_of::<V>().max(1);
    let chunks = to.par_chunks_mut(n).zip(values.par_chunks(n));
    parallel.for_each(chunks, |(to, from)| to.copy_from_slice(from));
}

/// Values of which the first begins a line of the caches, where they are a copy: what reads lines
/// or tiles reads each in one piece then, if rows are as long as some lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinedUp<V> {
    /// A few more than there are, as allocators line up less.
    all: Vec<V>,
    values: Range<usize>,
}

impl<V: Pod + Send + Sync> LinedUp<V> {
    /// A copy that all threads make, where there are many values.
    pub(crate) fn copy_of(values: &[V]) -> Result<LinedUp<V>> {
        let more = size_of::<Line>() / size_of::<V>().max(1);
        let mut all: Vec<V> = zeroed(values.len() as u64 + more as u64)?;
        let start = all.as_ptr().align_offset(size_of::<Line>()).min(more);
        let range = start..start + values.len();
        share_copy(values, &mut all[range.clone()]);
        Ok(LinedUp { all, values: range })
    }
}

impl<V> From<Vec<V>> for LinedUp<V> {
    /// The values where they lie.
    fn from(all: Vec<V>) -> LinedUp<V> {
        LinedUp { values: 0..all.len(), all }
    }
}

impl<V> Deref for LinedUp<V> {
    type Target = [V];

    fn deref(&self) -> &[V] {
        &self.all[self.values.clone()]
    }
}

/// A copy of `values`.
pub(crate) fn copy_of<V: Copy>(values: &[V]) -> Result<Vec<V>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len()).map_err(|error| Error::HostMemory {
        requested_bytes: size_of_val(values) as u64,
        source: Some(error),
    })?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// Makes `values` `len` copies of `value`, or says how much memory is missing.
pub(crate) fn fill<T: Clone>(values: &mut Vec<T>, len: usize, value: T) -> Result<()> {
    values.clear();
    reserve(values, len)?;
    values.resize(len, value);
    Ok(())
}

/// 64 bytes that lie in one line of the caches: registers and tiles of such lines are read and
/// written in one piece.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u32; 16]);

/// As [`fill`] with zeros, in lines; the numbers.
pub(crate) fn fill_lines(lines: &mut Vec<Line>, len: usize) -> Result<&mut [u32]> {
    fill(lines, len.div_ceil(16), Line::default())?;
    Ok(&mut bytemuck::cast_slice_mut(lines)[..len])
}

/// Reserves room for `additional` more values, or says how much memory is missing.
pub(crate) fn reserve<T>(values: &mut Vec<T>, additional: usize) -> Result<()> {
    values.try_reserve(additional).map_err(|error| Error::HostMemory {
        requested_bytes: (values.len() as u64 + additional as u64)
            .saturating_mul(size_of::<T>() as u64),
        source: Some(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_the_same_however_many_values_there_are() {
        for n in [0, 1, 1000, 2 * CHUNK_BYTES / 4, 3 * CHUNK_BYTES + 5] {
            let values: Vec<u32> = (0..n as u32).collect();
            assert_eq!(shared_copy_of(&values).unwrap(), values);
            let lined_up = LinedUp::copy_of(&values).unwrap();
            assert_eq!(*lined_up, values);
            assert!(lined_up.as_ptr().addr().is_multiple_of(64));
            let bytes: Vec<u8> = values.iter().map(|&x| x as u8).collect();
            assert!(LinedUp::copy_of(&bytes).unwrap().as_ptr().addr().is_multiple_of(64));
            assert_eq!(*LinedUp::from(bytes.clone()), bytes);
        }
    }

    #[test]
    fn too_many_zeros_are_an_error() {
        assert_eq!(zeroed::<f32>(3).unwrap(), [0.0; 3]);
        for n in [1 << 62, u64::MAX] {
            assert!(matches!(zeroed::<f32>(n), Err(Error::HostMemory { .. })));
        }
    }
}
