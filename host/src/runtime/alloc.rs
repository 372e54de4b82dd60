//! Fallible allocation of vectors: an error in place of an abort.
//!
//! A page of memory is placed near the thread that first writes to it, where a machine has several
//! nodes. So what many threads read is first written by many: by those that fill what [`zeroed`]
//! gives, and by all threads in [`shared_copy_of`].

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
    let parallel = Parallel::new().unless(size_of_val(values) < 2 * CHUNK_BYTES);
    if parallel.is_alone() {
        return copy_of(values);
    }
    let mut copy = zeroed(values.len() as u64)?;
    let n = CHUNK_BYTES / size_of::<V>().max(1);
    let chunks = copy.par_chunks_mut(n).zip(values.par_chunks(n));
    parallel.for_each(chunks, |(to, from)| to.copy_from_slice(from));
    Ok(copy)
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
